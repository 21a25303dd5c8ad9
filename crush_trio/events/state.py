"""What is still going on in a workspace, as its log has told it: runs and messages that have no end.

Plain data. A message is known by the entry that showed it last.

The endings of a log: which are remembered beyond its window, and which are not stored yet.

Plain data. An ending is *unsettled* from its publication until its place in the log is stored.
"""

from collections import deque
from typing import Final

from attrs import define, field

from crush_trio.events.entry import Entry
from crush_trio.events.facts import Fact, MessageChange, Position, Resync, RunChange
from crush_trio.wire.events import EventType, PayloadType
from crush_trio.wire.ids import MessageId, RunId
from crush_trio.wire.runs import RunView

SETTLE_LIMIT: Final = 1.0
"""Seconds that a reader without a place waits for endings to be stored before it is told the state."""


@define(eq=False)
class Endings:
    """Endings that a log has dropped from its window.

    It remembers the newest *limit*, and fewer if their answers have more than *weight* characters.
    """

    limit: int
    weight: int
    forgotten: int = field(default=0, init=False)
    """The id of the newest ending that is not remembered any more."""
    _dropped: deque[Entry] = field(factory=deque, init=False)
    _unsettled: deque[int] = field(factory=deque, init=False)
    _weight: int = field(default=0, init=False)

    @property
    def unsettled(self) -> int | None:
        """The id of the oldest ending whose place is not stored yet."""
        return self._unsettled[0] if self._unsettled else None

    def hold(self, seq: int) -> None:
        """Take note of an ending whose place is to be stored."""
        self._unsettled.append(seq)

    def settle(self, upto: int) -> None:
        """Take note that the places of all endings up to *upto* are stored, or never will be."""
        while self._unsettled and self._unsettled[0] <= upto:
            self._unsettled.popleft()

    def remember(self, ending: Entry) -> bool:
        """Remember an ending that has left the window; return whether others were forgotten for it."""
        before = self.forgotten
        self._dropped.append(ending)
        self._weight += _weight(ending)
        while len(self._dropped) > self.limit or self._weight > self.weight:
            oldest = self._dropped.popleft()
            self._weight -= _weight(oldest)
            self.forgotten = oldest.id
        return self.forgotten != before

    def after(self, seq: int) -> list[Entry]:
        """Return those that are remembered and come after *seq*."""
        return [entry for entry in self._dropped if entry.id > seq]


def _weight(ending: Entry) -> int:
    """Return how many characters an ending has to keep, besides what all endings have."""
    assert isinstance(ending.event, RunChange)
    return len(ending.event.run.text) + len(ending.event.run.error)


@define(eq=False)
class Live:
    """Everything under way."""

    _runs: dict[RunId, RunView] = field(factory=dict, init=False)
    _messages: dict[MessageId, Entry] = field(factory=dict, init=False)

    def follow_run(self, event: RunChange) -> None:
        """Take note of a run's new state."""
        if event.terminal:
            self._runs.pop(event.run.id, None)
        else:
            self._runs[event.run.id] = event.run

    def follow_fact(self, event: Fact) -> list[Entry]:
        """Forget the open messages of a session that is deleted; no event says so one by one (J4).

        Returns the entries that show none any more.
        """
        if event.payload_type is not PayloadType.SESSION or event.change is not EventType.DELETED:
            return []
        session_id, gone = getattr(event.entity, "id", None), list[Entry]()
        for message_id, entry in list(self._messages.items()):
            assert isinstance(entry.event, MessageChange)
            if entry.event.view.head.session_id == session_id:
                gone.append(self._messages.pop(message_id))
        return gone

    def take(self, message_id: MessageId) -> Entry | None:
        """Return the entry that showed a message last, and forget it."""
        return self._messages.pop(message_id, None)

    def show(self, event: MessageChange, entry: Entry) -> None:
        """Take note that *entry* shows a message now, unless the message is over."""
        if event.change is not EventType.DELETED and not event.view.finished:
            self._messages[event.message_id] = entry

    def shows(self, entry: Entry) -> bool:
        """Whether an open message is known by *entry*."""
        event = entry.event
        return isinstance(event, MessageChange) and self._messages.get(event.message_id) is entry

    def snapshot(self, position: Position) -> Resync:
        """Return the state at *position*, which is now."""
        views = []
        for entry in self._messages.values():
            assert isinstance(entry.event, MessageChange)
            views.append(entry.event.view)
        return Resync(position=position, runs=tuple(self._runs.values()), messages=tuple(views))
