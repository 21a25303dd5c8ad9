"""Host coding agents for many clients at once, on Trio.

An accepted run can be cancelled at any instant and ends exactly once. The names here are the
library's front door; `docs/architecture.md` says how they fit together.
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
from crush_trio.wire.ids import RunId, SessionId
from crush_trio.wire.native import RunKind, RunState, RunView

__version__ = "0.1.0.dev0"

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
    "Outcome",
    "Position",
    "Resync",
    "Run",
    "RunChange",
    "RunId",
    "RunKind",
    "RunState",
    "RunView",
    "SessionId",
    "StopReceipt",
    "Submission",
    "Turn",
    "Window",
    "Workspace",
    "__version__",
    "open_event_log",
    "open_workspace",
]
