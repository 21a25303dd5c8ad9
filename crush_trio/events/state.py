"""The state behind an event log: runs and messages under way, and endings outside the window.

`LiveState` holds the runs and messages that have not ended; a message is represented by the entry
that showed it last. `Endings` holds the endings that a log remembers beyond its window, and which
endings are *unsettled*: published, but with a place in the log that is not stored yet. Both are
plain data.
"""

from collections import deque
from typing import Final

from attrs import define, field

from crush_trio.events.entry import LogEntry
from crush_trio.events.facts import Fact, MessageChange, Position, Resync, RunChange
from crush_trio.wire.events import EventType, PayloadType
from crush_trio.wire.ids import MessageId, RunId
from crush_trio.wire.runs import RunView

SETTLE_LIMIT: Final = 1.0
"""Seconds that a lost reader waits for endings to be stored before it gets the state."""


@define(eq=False)
class Endings:
    """Endings that a log has dropped from its window.

    Keeps the newest *limit*, and fewer if their answers have more than *weight* characters.
    """

    limit: int
    weight: int
    forgotten: int = field(default=0, init=False)
    """The id of the newest ending that is not remembered any more."""
    _dropped: deque[LogEntry] = field(factory=deque, init=False)
    _unsettled: deque[int] = field(factory=deque, init=False)
    _weight: int = field(default=0, init=False)

    @property
    def unsettled(self) -> int | None:
        """The id of the oldest ending whose place is not stored yet."""
        return self._unsettled[0] if self._unsettled else None

    def hold(self, seq: int) -> None:
        """Note an ending whose place is not stored yet."""
        self._unsettled.append(seq)

    def settle(self, upto: int) -> None:
        """Note that the places of all endings up to *upto* are stored, or never will be."""
        while self._unsettled and self._unsettled[0] <= upto:
            self._unsettled.popleft()

    def remember(self, ending: LogEntry) -> bool:
        """Add an ending that has left the window; return whether others were dropped for it."""
        before = self.forgotten
        self._dropped.append(ending)
        self._weight += _weight(ending)
        while len(self._dropped) > self.limit or self._weight > self.weight:
            oldest = self._dropped.popleft()
            self._weight -= _weight(oldest)
            self.forgotten = oldest.id
        return self.forgotten != before

    def after(self, seq: int) -> list[LogEntry]:
        """Return the remembered endings after *seq*."""
        return [entry for entry in self._dropped if entry.id > seq]


def _weight(ending: LogEntry) -> int:
    """Return the characters of an ending's answer and error."""
    assert isinstance(ending.event, RunChange)
    return len(ending.event.run.text) + len(ending.event.run.error)


@define(eq=False)
class LiveState:
    """The runs and messages that have not ended."""

    _runs: dict[RunId, RunView] = field(factory=dict, init=False)
    _messages: dict[MessageId, LogEntry] = field(factory=dict, init=False)

    def follow_run(self, event: RunChange) -> None:
        """Note a run's new state."""
        if event.terminal:
            self._runs.pop(event.run.id, None)
        else:
            self._runs[event.run.id] = event.run

    def follow_fact(self, event: Fact) -> list[LogEntry]:
        """Drop the open messages of a deleted session; there is no event for each of them (J4).

        Returns the entries that no longer show an open message.
        """
        if event.payload_type is not PayloadType.SESSION or event.change is not EventType.DELETED:
            return []
        session_id, gone = getattr(event.entity, "id", None), list[LogEntry]()
        for message_id, entry in list(self._messages.items()):
            assert isinstance(entry.event, MessageChange)
            if entry.event.view.head.session_id == session_id:
                gone.append(self._messages.pop(message_id))
        return gone

    def take(self, message_id: MessageId) -> LogEntry | None:
        """Remove and return the entry that showed a message last."""
        return self._messages.pop(message_id, None)

    def show(self, event: MessageChange, entry: LogEntry) -> None:
        """Note that *entry* shows the newest state of a message, unless the message has ended."""
        if event.change is not EventType.DELETED and not event.view.finished:
            self._messages[event.message_id] = entry

    def shows(self, entry: LogEntry) -> bool:
        """Whether *entry* shows the newest state of an open message."""
        event = entry.event
        return isinstance(event, MessageChange) and self._messages.get(event.message_id) is entry

    def snapshot(self, position: Position) -> Resync:
        """Return the present state, with *position* as its place in the log."""
        views = []
        for entry in self._messages.values():
            assert isinstance(entry.event, MessageChange)
            views.append(entry.event.view)
        return Resync(position=position, runs=tuple(self._runs.values()), messages=tuple(views))
