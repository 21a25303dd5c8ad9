"""Host coding agents for many clients at once, on Trio.

An accepted run can be cancelled at any instant and ends exactly once. The names here are the
library's front door: the run core, the event log, and what a tool and a provider are. Whatever needs
more than Trio is imported from where it is: `crush_trio.client` for clients, `crush_trio.server` for a
server, `crush_trio.testing` for tests. `docs/library.md` is the reference.
"""

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

__version__ = "0.1.0"

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
    "__version__",
    "open_event_log",
    "open_workspace",
]
