# The names of `__init__.py`, for type checkers and editors.

from crush_trio.events.cursor import (
    Batch,
    Cursor,
)
from crush_trio.events.facts import (
    Event,
    Fact,
    MessageChange,
    Position,
    Resync,
    RunChange,
)
from crush_trio.events.frames import (
    Form,
)
from crush_trio.events.growing_message import (
    GrowingMessage,
    MessageView,
)
from crush_trio.events.log import (
    EventLog,
    Window,
    open_event_log,
)

__all__ = [
    "Batch",
    "Cursor",
    "Event",
    "EventLog",
    "Fact",
    "Form",
    "GrowingMessage",
    "MessageChange",
    "MessageView",
    "Position",
    "Resync",
    "RunChange",
    "Window",
    "open_event_log",
]
