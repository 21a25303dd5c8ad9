"""Attendance: whether a person is there to answer, and how long an ask waits without one.

A person is there while an event stream is open, and an ask then waits for as long as it takes. Once no
stream has been open for `patience` seconds without a break, the ask is given up, so that a run that no
one watches cannot stand still for ever.

No task waits or polls here. A stream that opens or closes moves the deadlines of the waiting asks in
the same step.
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
class Attendance:
    """The streams of one workspace, counted. All of it happens inside `trio.run`."""

    patience: float = DEFAULT_PATIENCE
    streams: int = field(default=0, init=False)
    """How many are open now."""
    _waiting: set[trio.CancelScope] = field(factory=set, init=False, repr=False)

    def arrive(self) -> None:
        """Count one more stream; asks then wait for as long as it takes."""
        self.streams += 1
        self._move_deadlines()

    def leave(self) -> None:
        """Count a stream out. When it was the last one, the patience of every ask begins anew."""
        self.streams -= 1
        self._move_deadlines()

    @contextmanager
    def present(self) -> Iterator[None]:
        """Be there for the length of the block."""
        self.arrive()
        try:
            yield
        finally:
            self.leave()

    @contextmanager
    def patiently(self, *, interactive: bool = True) -> Iterator[trio.CancelScope]:
        """Cancel the body once no stream has been open for `patience` seconds; see its scope.

        An ask that is not *interactive* comes from a run whose own client cannot show it. That
        client's stream says nothing about a person, so the body has `patience` seconds, however many
        streams are open.
        """
        deadline = self._deadline if interactive else trio.current_time() + self.patience
        with trio.CancelScope(deadline=deadline) as scope:
            if interactive:
                self._waiting.add(scope)
            try:
                yield scope
            finally:
                self._waiting.discard(scope)

    @property
    def _deadline(self) -> float:
        return inf if self.streams else trio.current_time() + self.patience

    def _move_deadlines(self) -> None:
        for scope in self._waiting:
            scope.deadline = self._deadline
