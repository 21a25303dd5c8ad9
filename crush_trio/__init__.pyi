# The names of `__init__.py`, for type checkers and editors.

from crush_trio.clock import Clock, IdSource
from crush_trio.errors import CrushError
from crush_trio.events import (
    Batch,
    Cursor,
    Event,
    EventLog,
    Fact,
    Form,
    GrowingMessage,
    MessageChange,
    Position,
    Resync,
    RunChange,
    Window,
    open_event_log,
)
from crush_trio.limits import SizeLimits
from crush_trio.providers.base import ModelRequest, Provider
from crush_trio.runtime import (
    AcceptedRun,
    CloseReport,
    Completion,
    Hit,
    Journal,
    Limits,
    MemoryJournal,
    Outcome,
    Run,
    StopReceipt,
    Submission,
    Turn,
    Workspace,
    open_workspace,
)
from crush_trio.tools.base import Tool, ToolCall, ToolError, ToolResult, Wanted
from crush_trio.wire.ids import RunId, SessionId
from crush_trio.wire.runs import RunKind, RunState, RunView

__version__: str

__all__ = [
    "AcceptedRun",
    "Batch",
    "Clock",
    "CloseReport",
    "Completion",
    "CrushError",
    "Cursor",
    "Event",
    "EventLog",
    "Fact",
    "Form",
    "GrowingMessage",
    "Hit",
    "IdSource",
    "Journal",
    "Limits",
    "MemoryJournal",
    "MessageChange",
    "ModelRequest",
    "Outcome",
    "Position",
    "Provider",
    "Resync",
    "Run",
    "RunChange",
    "RunId",
    "RunKind",
    "RunState",
    "RunView",
    "SessionId",
    "SizeLimits",
    "StopReceipt",
    "Submission",
    "Tool",
    "ToolCall",
    "ToolError",
    "ToolResult",
    "Turn",
    "Wanted",
    "Window",
    "Workspace",
    "open_event_log",
    "open_workspace",
]
