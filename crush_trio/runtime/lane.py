"""`Lane`: one session's active run and the waiting runs; `Capacity`: the limit of active runs.

Both are plain data: no task, no lock. Every method is synchronous. Trio switches tasks only at
`await`, so each method is one atomic step for all other tasks.

A run gets its place when it is accepted, so the order of the queue is the order of acceptance
unless the queue is edited. It is in exactly one of these places:

* it has the *turn*: it is active, or will be as soon as its acceptance is stored;
* it *waits* in the queue;
* it is being *folded*: the active run takes its prompt in, and that is being stored;
* it is *withdrawn*: it was cancelled before it began, and its ending is being stored.

Invariants between any two steps:

* a run waits only while another has the turn, a withdrawn run has not left yet, the lane is held,
  or the workspace has no capacity for another active run;
* a cancel of the lane reaches every run that is in it now, and no run that comes later.
"""

from collections.abc import Callable, Iterable
from math import inf
from typing import Generic, Protocol, Self, TypeVar

from attrs import define, field, frozen

from crush_trio.wire.ids import RunId
from crush_trio.wire.runs import RunState


@frozen
class Active:
    """The run has its session to itself until it leaves the lane."""


@frozen
class Folded:
    """The active run has taken this run's prompt into its own turn."""

    into: RunId


@frozen
class CancelledOnEntry:
    """The run was cancelled before it could become active; the cancel itself ends it."""


LaneDecision = Active | Folded | CancelledOnEntry
"""What a lane decides about a run that enters it."""


class LaneRun(Protocol):
    """What a lane reads of a run, and what it calls on it."""

    @property
    def id(self) -> RunId:
        """The run's own id."""
        ...

    @property
    def state(self) -> RunState:
        """Where the run is now."""
        ...

    def folds_into(self, active: Self) -> bool:
        """Whether *active* may absorb this run."""
        ...

    @property
    def counted(self) -> bool:
        """Whether the run counts among the active runs, which are limited in number."""
        ...

    @property
    def cancel_requested(self) -> bool:
        """Whether the run was cancelled."""
        ...

    def move(self, state: RunState) -> None:
        """Change to *state*."""
        ...

    def decide(self, entry: LaneDecision) -> None:
        """Take the lane's decision and wake the run's task."""
        ...

    def request_cancel(self) -> None:
        """Note that the run was cancelled, and when."""
        ...

    def cancel_scope(self) -> None:
        """Cancel the scope that the turn runs in, or will run in."""
        ...


@define(eq=False)
class Capacity:
    """The limit of runs that are active at once. Several workspaces may share one.

    A lane that finds no free place registers a callback. A place that is given back is offered to
    the registered lanes first, in the order of registration, so that a session with a long queue
    does not keep the other sessions waiting.
    """

    limit: float = inf
    taken: int = field(default=0, init=False)
    _waiting: dict[Callable[[], bool], None] = field(factory=dict, init=False, repr=False)
    """Callbacks in the order of registration.

    A dict: thousands may wait, and any may be removed.
    """

    def take(self, ask_again: Callable[[], bool]) -> bool:
        """Take a place and return True; if none is free, call *ask_again* when one is.

        *ask_again* returns whether it took the place.
        """
        if self.taken < self.limit:
            self.taken += 1
            return True
        self._waiting.setdefault(ask_again)
        return False

    def forget(self, ask_again: Callable[[], bool]) -> None:
        """Remove a callback: its lane has no waiting run left."""
        self._waiting.pop(ask_again, None)

    def give_back(self) -> None:
        """Free a place, and offer it to the registered lanes until one takes it."""
        self.taken -= 1
        while self._waiting and self.taken < self.limit:
            ask_again = next(iter(self._waiting))
            del self._waiting[ask_again]
            ask_again()


R = TypeVar("R", bound=LaneRun)
Result = TypeVar("Result")


@define(eq=False)
class Lane(Generic[R, Result]):
    """The runs of one session that have been accepted and have not ended, and their outcomes."""

    _capacity: Capacity = field(factory=Capacity, repr=False)
    _turn: R | None = field(default=None, init=False)
    _waiting: dict[R, None] = field(factory=dict, init=False)
    _folding: dict[R, None] = field(factory=dict, init=False)
    _withdrawn: dict[R, None] = field(factory=dict, init=False)
    _runs: dict[R, None] = field(factory=dict, init=False)
    _endings: dict[R, Result | None] = field(factory=dict, init=False)
    """The endings that are being stored, in the order of hand-over; an outcome once it is stored."""
    _held: bool = field(default=False, init=False)

    @property
    def runs(self) -> tuple[R, ...]:
        """Every run in the lane, in the order of acceptance."""
        return tuple(self._runs)

    @property
    def active(self) -> R | None:
        """The active run; a run whose ending is being stored is still active."""
        turn = self._turn
        if turn is None or turn in self._withdrawn or turn.state is RunState.ACCEPTED:
            return None
        return turn

    @property
    def waiting(self) -> tuple[R, ...]:
        """The queue, next run first; it holds runs whose acceptance is stored."""
        return tuple(run for run in self._waiting if run.state is RunState.QUEUED)

    @property
    def beyond_queue(self) -> tuple[R, ...]:
        """Every run of the lane that is not in its queue."""
        return tuple(run for run in self._runs if run not in self._waiting)

    @property
    def length(self) -> int:
        """The number of waiting runs, with those whose acceptance is still being stored."""
        return len(self._waiting)

    @property
    def busy(self) -> bool:
        """Whether a run is active; accepted and waiting runs do not make a session busy (A11)."""
        return self.active is not None

    @property
    def empty(self) -> bool:
        """Whether the lane holds nothing and may be removed."""
        return not self._runs and not self._held

    # ── From acceptance to the turn ─────────────────────────────────────────────────────────────

    def admit(self, run: R) -> bool:
        """Add a run that was accepted just now; return whether it has the turn."""
        self._runs[run] = None
        self._waiting[run] = None
        self.promote()
        return self._turn is run

    def enter(self, run: R) -> LaneDecision | None:
        """Decide about a run whose acceptance is stored; None means that it waits for `decide`.

        Only for runs without a decision.
        """
        if self._turn is run:
            run.move(RunState.ACTIVE)
            return Active()
        run.move(RunState.QUEUED)
        return None

    def leave(self, run: R) -> None:
        """Remove an ended run, and let the next one begin in the same step if it can.

        So no task can see the session idle between two turns. A run can only remove itself (A28).
        """
        del self._runs[run]
        self._endings.pop(run, None)
        for place in (self._waiting, self._folding, self._withdrawn):
            place.pop(run, None)
        if self._turn is run:
            self._turn = None
            if run.counted:
                self._capacity.give_back()
        self.promote()
        if not self._waiting:
            self._capacity.forget(self.promote)

    def promote(self) -> bool:
        """Give the turn to the next waiting run if the turn is free; return whether that happened."""
        first = next(iter(self._waiting), None)
        if self._turn is not None or self._withdrawn or self._held or first is None:
            return False
        if first.counted and not self._capacity.take(self.promote):
            return False
        del self._waiting[first]
        self._turn = first
        if first.state is RunState.QUEUED:
            first.move(RunState.ACTIVE)
            first.decide(Active())
        return True

    def hold(self) -> None:
        """Let no run begin until `release`; runs that are accepted meanwhile wait."""
        self._held = True

    def release(self) -> None:
        """End `hold` and let the next run begin."""
        self._held = False
        self.promote()

    # ── Ending ──────────────────────────────────────────────────────────────────────────────────

    def begin_ending(self, run: R) -> None:
        """Note that the ending of *run* is being handed to the journal."""
        self._endings.setdefault(run, None)

    def end(self, run: R, outcome: Result) -> None:
        """Note that *run* has ended with *outcome*; `next_ended` says when to announce it."""
        self._endings[run] = outcome

    def next_ended(self) -> tuple[R, Result] | None:
        """Return the next run whose ending can be announced now, with its outcome, or None.

        Endings are announced in the order in which they were handed to the journal. The tasks that
        wait for the journal may wake in another order.
        """
        run = next(iter(self._endings), None)
        outcome = None if run is None else self._endings[run]
        return None if run is None or outcome is None else (run, outcome)

    # ── Folding ─────────────────────────────────────────────────────────────────────────────────

    def fold(self, into: R) -> tuple[R, ...]:
        """Take the runs that *into* may absorb out of the queue; the others keep waiting.

        Only the active run gets any: a run that has ended has no step left to take a prompt into, and
        one that was cancelled will make none. What still waits then was not cancelled, and must run.
        And only after the endings of all withdrawn runs have been handed over: their records come
        first.

        The decision is final: a cancel that comes later finds the prompt inside the active run's
        turn, and the prompt ends as that run does (A.8).
        """
        last_withdrawn = next(reversed(self._withdrawn), None)
        if last_withdrawn is not None and last_withdrawn not in self._endings:
            return ()
        if self.active is not into or into.cancel_requested:
            return ()
        taken = tuple(run for run in self.waiting if run.folds_into(into))
        for run in taken:
            del self._waiting[run]
            self._folding[run] = None
        return taken

    def unfold(self, runs: Iterable[R]) -> tuple[R, ...]:
        """Put runs whose folding could not be stored back at the head of the queue.

        Runs that were cancelled meanwhile are withdrawn instead, and returned.
        """
        back = tuple(runs)
        self._waiting = {**dict.fromkeys(back), **self._waiting}
        for run in back:
            del self._folding[run]
            self._endings.pop(run, None)
        return self._withdraw(tuple(run for run in back if run.cancel_requested))

    # ── Editing and cancelling ──────────────────────────────────────────────────────────────────

    def reorder(self, run: R, index: int) -> None:
        """Move a waiting run to *index* of the queue; an index past the end means the end."""
        queue = [other for other in self._waiting if other is not run]
        queue.insert(index, run)
        self._waiting = dict.fromkeys(queue)

    def cancel(self, runs: Iterable[R]) -> tuple[R, ...]:
        """Cancel *runs* of this lane; return those that had not begun, in the order of the lane.

        Those are withdrawn: they never become active, and the caller must end them. An active run
        ends itself.
        """
        hit = set(runs)
        for run in hit:
            run.request_cancel()
        turn = self._turn
        begun = turn is not None and turn.state is not RunState.ACCEPTED
        if begun and turn in hit:
            turn.cancel_scope()
        first = () if begun or turn is None else (turn,)
        return self._withdraw(tuple(run for run in (*first, *self._waiting) if run in hit))

    def _withdraw(self, runs: tuple[R, ...]) -> tuple[R, ...]:
        new = tuple(run for run in runs if run not in self._withdrawn)
        for run in new:
            self._waiting.pop(run, None)
            self._withdrawn[run] = None
            run.decide(CancelledOnEntry())
        return new
