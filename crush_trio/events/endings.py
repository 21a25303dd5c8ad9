"""The endings of a log: which are remembered beyond its window, and which are not stored yet.

Plain data. An ending is *unsettled* from its publication until its place in the log is stored.
"""

from collections import deque
from typing import Final

from attrs import define, field

from crush_trio.events.entry import Entry
from crush_trio.events.facts import RunChange

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
