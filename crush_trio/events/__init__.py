"""The event log: a workspace's events in order, for any number of readers.

Read in this order: `facts` (events as values), `log`, `cursor` (a reader's place), `state` (what a
resync needs); then how events become bytes: `entry`, `frames`, `growing_message`, `pieces`.
"""

from typing import Final

from crush_trio._exports import Homes, lazy, names_of

_HOMES: Final[Homes] = {
    "crush_trio.events.cursor": (
        "Batch",
        "Cursor",
    ),
    "crush_trio.events.facts": (
        "Event",
        "Fact",
        "MessageChange",
        "Position",
        "Resync",
        "RunChange",
    ),
    "crush_trio.events.frames": ("Form",),
    "crush_trio.events.growing_message": (
        "GrowingMessage",
        "MessageView",
    ),
    "crush_trio.events.log": (
        "EventLog",
        "Window",
        "open_event_log",
    ),
}

__all__ = names_of(_HOMES)
__getattr__, __dir__ = lazy(__name__, _HOMES)
