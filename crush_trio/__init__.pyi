# The names of `__init__.py`, for type checkers and editors.

from crush_trio.backend.embedded import Agent, open_agent
from crush_trio.backend.run_handle import AgentRun, RunFailed
from crush_trio.backend.settings import WorkspaceSettings
from crush_trio.client.client import open_client
from crush_trio.errors import CrushError
from crush_trio.events.cursor import Cursor
from crush_trio.events.facts import RunChange
from crush_trio.limits import SizeLimits
from crush_trio.net.address import Address
from crush_trio.providers.base import Finished, ModelRequest, Parts, Provider, StreamPart, TextDelta
from crush_trio.runtime.accepted import AcceptedRun
from crush_trio.runtime.outcome import Completion, Outcome, Submission
from crush_trio.runtime.receipt import StopReceipt
from crush_trio.runtime.run import Run, Turn
from crush_trio.runtime.workspace import Workspace, open_workspace
from crush_trio.server.run import open_server
from crush_trio.server.settings import ServerSettings
from crush_trio.store.open import StoreSettings
from crush_trio.tools.base import (
    About,
    Tool,
    ToolCall,
    ToolError,
    ToolResult,
    Wanted,
    read_arguments,
    schema_of,
)
from crush_trio.wire.answers import ReceiptView
from crush_trio.wire.asks import (
    GrantScope,
    PermissionMode,
    PermissionPolicy,
    PermissionRequest,
    PermissionRule,
    Question,
    QuestionResponse,
    RuleDecision,
)
from crush_trio.wire.events import Envelope, EventType
from crush_trio.wire.ids import MessageId, RunId, SessionId, ToolCallId, WorkspaceId
from crush_trio.wire.messages import (
    FinishPart,
    FinishReason,
    Message,
    Role,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from crush_trio.wire.runs import RunKind, RunState, RunView, WhenBusy, WhenUnclaimed
from crush_trio.wire.views import Session

__version__: str

__all__ = [
    "About",
    "AcceptedRun",
    "Address",
    "Agent",
    "AgentRun",
    "Completion",
    "CrushError",
    "Cursor",
    "Envelope",
    "EventType",
    "FinishPart",
    "FinishReason",
    "Finished",
    "GrantScope",
    "Message",
    "MessageId",
    "ModelRequest",
    "Outcome",
    "Parts",
    "PermissionMode",
    "PermissionPolicy",
    "PermissionRequest",
    "PermissionRule",
    "Provider",
    "Question",
    "QuestionResponse",
    "ReceiptView",
    "Role",
    "RuleDecision",
    "Run",
    "RunChange",
    "RunFailed",
    "RunId",
    "RunKind",
    "RunState",
    "RunView",
    "ServerSettings",
    "Session",
    "SessionId",
    "SizeLimits",
    "StopReceipt",
    "StoreSettings",
    "StreamPart",
    "Submission",
    "TextDelta",
    "TextPart",
    "Tool",
    "ToolCall",
    "ToolCallId",
    "ToolCallPart",
    "ToolError",
    "ToolResult",
    "ToolResultPart",
    "Turn",
    "Wanted",
    "WhenBusy",
    "WhenUnclaimed",
    "Workspace",
    "WorkspaceId",
    "WorkspaceSettings",
    "open_agent",
    "open_client",
    "open_server",
    "open_workspace",
    "read_arguments",
    "schema_of",
]
