"""`Attendance`: whether someone can answer the asks of a workspace, now and while they wait.

Two things are known. An *event stream* is open: a client can hear of an ask. A *person* is there: a client
with an open stream has set a current session, or has opened the stream as interactive.

An ask of an interactive run waits while a stream is open, for as long as it takes. The client of a run that
is not interactive shows asks to no person, so its own stream says nothing. Such an ask waits while a person
is there, at another client, or may come back, and is refused at once if there is none.

Once there has been no stream, or no person, for `patience` seconds without a break, the ask is given up, so
that a run cannot wait for ever. A person whose connection broke may come back as long as the client's claim
lasts; once no claim of a person is left, what waits for one is given up at once. No task polls for this: a
client that comes or goes moves the deadlines of the waiting asks in the same step.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from typing import Final

import trio
from attrs import define, field

DEFAULT_PATIENCE: Final = 60.0
"""Seconds without an open stream after which an ask is given up."""


@define(eq=False)
class Presence:
    """How many are there, and the deadlines of what waits for them. Used inside `trio.run` only."""

    patience: float
    expected: bool = True
    """Whether one that is not there may come."""
    count: int = field(default=0, init=False)
    _waiting: set[trio.CancelScope] = field(factory=set, init=False, repr=False)

    def change(self, count: int, *, expected: bool = True) -> None:
        """Set how many are there. The patience begins when the last one has left.

        If none of them is *expected* back, there is no patience.
        """
        before = bool(self.count), self.expected
        self.count, self.expected = count, expected
        if before != (bool(count), expected):
            for scope in self._waiting:
                scope.deadline = self._deadline

    @contextmanager
    def patiently(self) -> Iterator[trio.CancelScope]:
        """Cancel the body once no one has been there for `patience` seconds; see its scope."""
        with trio.CancelScope(deadline=self._deadline) as scope:
            self._waiting.add(scope)
            try:
                yield scope
            finally:
                self._waiting.discard(scope)

    @property
    def _deadline(self) -> float:
        if self.count:
            return inf
        return trio.current_time() + (self.patience if self.expected else 0)


@define(eq=False)
class Attendance:
    """The streams of one workspace that may answer asks, and the persons behind them."""

    patience: float = DEFAULT_PATIENCE
    _streams: Presence = field(init=False, repr=False)
    _people: Presence = field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self._streams = Presence(self.patience)
        self._people = Presence(self.patience, expected=False)

    @property
    def streams(self) -> int:
        """How many streams are open now."""
        return self._streams.count

    def arrive(self) -> None:
        """Count one more stream."""
        self._streams.change(self.streams + 1)

    def leave(self) -> None:
        """Count a stream out."""
        self._streams.change(self.streams - 1)

    @contextmanager
    def present(self) -> Iterator[None]:
        """Count a stream for the length of the block."""
        self.arrive()
        try:
            yield
        finally:
            self.leave()

    def set_people(self, count: int, *, expected: bool = True) -> None:
        """Set at how many clients a person can answer now, and whether one that left may come back."""
        self._people.change(count, expected=expected)

    def of(self, *, interactive: bool) -> Presence:
        """Return those that an ask waits for: streams, or people if its run is not *interactive*."""
        return self._streams if interactive else self._people

    def refuses(self, *, interactive: bool) -> bool:
        """Whether an ask of such a run is refused without waiting, because no one can answer it."""
        return not (interactive or self._people.count or self._people.expected)
