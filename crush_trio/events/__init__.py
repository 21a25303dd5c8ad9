"""The event log: a workspace's events in order, for any number of readers.

Read in this order: `facts` (events as values), `log`, `cursor` (a reader's place), `state` (what a
resync needs); then how events become bytes: `entry`, `frames`, `growing_message`, `pieces`.
"""

from crush_trio.events.cursor import Batch, Cursor
from crush_trio.events.facts import Event, Fact, MessageChange, Position, Resync, RunChange
from crush_trio.events.frames import Form
from crush_trio.events.growing_message import GrowingMessage, MessageView
from crush_trio.events.log import EventLog, Window, open_event_log

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
