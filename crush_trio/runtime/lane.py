"""One session's active run and the runs waiting behind it.

A lane is plain data: no task, no lock. Every method is synchronous, and on Trio the absence of
`await` *is* the critical section, so each method is one indivisible step for everybody else.

Kept between any two steps:

* a run waits only while another is active, so nothing can wait for ever;
* the active run and every waiting run are among the lane's runs, each in one place only;
* whoever cancels the lane reaches every run that is in it now, and no run that comes later.
"""

from collections import deque
from typing import Generic, Protocol, TypeVar

import trio
from attrs import define, field, frozen

from crush_trio.wire.ids import RunId
from crush_trio.wire.native import RunState


@frozen
class Active:
    """The run has its session to itself until it leaves the lane."""


@frozen
class Folded:
    """The active run takes this run's prompt into its own turn."""

    into: RunId


@frozen
class CancelledOnEntry:
    """The run was cancelled before it could become active."""


Entry = Active | Folded | CancelledOnEntry
"""What a run is told when it enters its lane."""


class LaneRun(Protocol):
    """What a lane needs to know of a run, and what it tells it."""

    @property
    def id(self) -> RunId:
        """The run's own id."""
        ...

    @property
    def scope(self) -> trio.CancelScope:
        """The scope that the run's task is in, or will enter."""
        ...

    @property
    def foldable(self) -> bool:
        """Whether the active run may absorb this one."""
        ...

    def move(self, state: RunState) -> None:
        """Take note of a new state."""
        ...

    def decide(self, entry: Entry) -> None:
        """Take the lane's decision and wake up."""
        ...

    def cancel(self) -> None:
        """Cancel the run's scope, entered or not."""
        ...


R = TypeVar("R", bound=LaneRun)


@define(eq=False)
class Lane(Generic[R]):
    """The runs of one session that have been accepted and have not ended."""

    active: R | None = field(default=None, init=False)
    _waiting: deque[R] = field(factory=deque, init=False)
    _runs: dict[R, None] = field(factory=dict, init=False)

    @property
    def runs(self) -> tuple[R, ...]:
        """Every run in the lane, in the order of acceptance."""
        return tuple(self._runs)

    @property
    def waiting(self) -> tuple[R, ...]:
        """The queue, first in line first."""
        return tuple(self._waiting)

    @property
    def busy(self) -> bool:
        """Whether a run is active; accepted and waiting runs do not make a session busy (A11)."""
        return self.active is not None

    @property
    def empty(self) -> bool:
        """Whether nothing is left, so that the lane may be dropped."""
        return not self._runs

    def admit(self, run: R) -> None:
        """Take in a run that was accepted just now; from here on a cancel reaches it."""
        self._runs[run] = None

    def enter(self, run: R) -> Entry | None:
        """Decide what an admitted run does now; None means that it waits to be told.

        Being cancelled comes before being busy: a cancelled run is not queued first (A9).
        """
        if run.scope.cancel_called:
            return CancelledOnEntry()
        if self.active is not None:
            self._waiting.append(run)
            run.move(RunState.QUEUED)
            return None
        self._activate(run)
        return Active()

    def leave(self, run: R) -> None:
        """Let go of an ended run; if it was active, the next live one is active in this same step.

        Nobody can see the session idle between two turns, and a run can only remove itself (A28).
        """
        del self._runs[run]
        if self.active is run:
            self.active = None
            self._promote()
        else:
            self.withdraw(run)

    def withdraw(self, run: R) -> None:
        """Take a run out of the queue, if it is there."""
        if run in self._waiting:
            self._waiting.remove(run)

    def reorder(self, run: R, index: int) -> None:
        """Put a waiting run at *index* of the queue; an index past the end means the end."""
        self._waiting.remove(run)
        self._waiting.insert(index, run)

    def fold(self, into: R) -> R | None:
        """Hand the first foldable waiter to *into*; runs with a caller's id keep waiting.

        Only the active run gets any: a run that is over has no step left to take a prompt into.

        The decision stands from this step on: a cancel that comes later finds the prompt part of
        the active run's turn and shares its fate (A.8).
        """
        if self.active is not into:
            return None
        for waiter in self._waiting:
            if waiter.foldable:
                self._waiting.remove(waiter)
                waiter.decide(Folded(into=into.id))
                return waiter
        return None

    def cancel(self) -> None:
        """Cancel every run in the lane and empty the queue (A13, A15). Idle lanes do not care."""
        self._waiting.clear()
        for run in self._runs:
            run.cancel()

    def cancel_run(self, run: R) -> None:
        """Cancel one run, wherever in the lane it is."""
        self.withdraw(run)
        run.cancel()

    def clear_queue(self) -> None:
        """Cancel the waiting runs only (A30)."""
        dropped, self._waiting = self._waiting, deque()
        for run in dropped:
            run.cancel()

    def _promote(self) -> None:
        while self._waiting:
            run = self._waiting.popleft()
            if not run.scope.cancel_called:
                self._activate(run)
                run.decide(Active())
                return

    def _activate(self, run: R) -> None:
        self.active = run
        run.move(RunState.ACTIVE)
