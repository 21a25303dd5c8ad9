"""Host coding agents for many clients at once, on Trio.

An accepted run can be cancelled at any instant and ends exactly once. The names here are the
library's front door: the run core, the event log, and what a tool and a provider are. Whatever needs
more than Trio is imported from where it is: `crush_trio.client` for clients, `crush_trio.server` for a
server, `crush_trio.testing` for tests. `docs/library.md` is the reference.
"""

from typing import Final

from crush_trio._exports import Homes, lazy, names_of

__version__ = "0.1.0"

_HOMES: Final[Homes] = {
    "crush_trio.clock": (
        "Clock",
        "IdSource",
    ),
    "crush_trio.errors": ("CrushError",),
    "crush_trio.events": (
        "Batch",
        "Cursor",
        "Event",
        "EventLog",
        "Fact",
        "Form",
        "GrowingMessage",
        "MessageChange",
        "Position",
        "Resync",
        "RunChange",
        "Window",
        "open_event_log",
    ),
    "crush_trio.limits": ("SizeLimits",),
    "crush_trio.providers.base": (
        "ModelRequest",
        "Provider",
    ),
    "crush_trio.runtime": (
        "AcceptedRun",
        "CloseReport",
        "Completion",
        "Hit",
        "Journal",
        "Limits",
        "MemoryJournal",
        "Outcome",
        "Run",
        "StopReceipt",
        "Submission",
        "Turn",
        "Workspace",
        "open_workspace",
    ),
    "crush_trio.tools.base": (
        "Tool",
        "ToolCall",
        "ToolError",
        "ToolResult",
        "Wanted",
    ),
    "crush_trio.wire.ids": (
        "RunId",
        "SessionId",
    ),
    "crush_trio.wire.runs": (
        "RunKind",
        "RunState",
        "RunView",
    ),
}

__all__ = names_of(_HOMES)
__getattr__, __dir__ = lazy(__name__, _HOMES)
