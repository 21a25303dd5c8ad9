"""Whether anybody is there to answer, and how long an ask waits while nobody is.

Somebody is there while an event stream is open. An ask waits for as long as somebody is: a person
may think. Once nobody has been there for a while, without a break, it is given up, so that a run
which nobody watches cannot stand still for ever.

Nothing in here waits or is woken to look. Whoever comes or goes moves the deadlines of the asks that
wait, in the same step.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from typing import Final

import trio
from attrs import define, field

PATIENCE: Final = 60.0
"""Seconds without anybody there after which an ask is given up."""


@define(eq=False)
class Attendance:
    """The streams of one workspace, counted. All of it happens inside `trio.run`."""

    patience: float = PATIENCE
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
        """Give the body up once nobody has been there for `patience` seconds; see its scope.

        What is not *interactive* was asked by a run whose own client shows it to nobody. That
        client's stream says nothing about a person, so the body has `patience` seconds, whoever is
        there.
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
