"""One session's active run and the runs waiting behind it.

A lane is plain data: no task, no lock. Every method is synchronous, and on Trio the absence of
`await` *is* the critical section, so each method is one indivisible step for all other tasks.

A run takes its place when it is accepted, so the order of the queue is the order of acceptance unless
the queue is edited. It is in exactly one of these places:

* it has the *turn*: it is active, or will be as soon as its acceptance is stored;
* it *waits*, first in line first;
* it is being *folded*: the active run takes its prompt in, and that is being stored;
* it is *withdrawn*: it was cancelled before it began, and its ending is being stored.

Kept between any two steps: a run waits only while another has the turn, a withdrawn run has not left
yet, the lane is held, or the workspace has as many active runs as it may have; a cancel of the lane reaches every run
that is in it now, and no run that comes later.

How many runs may be active at once.

Plain data, as a lane is. A lane that finds no free place leaves its name and is asked again when a
run has ended, in the order in which the lanes came. A place that is given back goes to a lane that waits
before any other can take it, so that a session with a long queue does not keep the others out.
"""

from collections.abc import Callable, Iterable
from math import inf
from typing import Generic, Protocol, TypeVar

from attrs import define, field, frozen

from crush_trio.wire.ids import RunId
from crush_trio.wire.runs import RunState


@define(eq=False)
class Capacity:
    """The places for active runs. Several workspaces may share one."""

    limit: float = inf
    taken: int = field(default=0, init=False)
    _waiting: dict[Callable[[], bool], None] = field(factory=dict, init=False, repr=False)
    """In the order in which they came; thousands of sessions may wait."""

    def take(self, ask_again: Callable[[], bool]) -> bool:
        """Take a place; if none is free, *ask_again* is called when one is.

        It returns whether it had a use for the place.
        """
        if self.taken < self.limit:
            self.taken += 1
            return True
        self._waiting.setdefault(ask_again)
        return False

    def forget(self, ask_again: Callable[[], bool]) -> None:
        """Ask a lane no more that has no run left that waits."""
        self._waiting.pop(ask_again, None)

    def give_back(self) -> None:
        """Free a place, and give it to the first lane that still has a use for it."""
        self.taken -= 1
        while self._waiting and self.taken < self.limit:
            ask_again = next(iter(self._waiting))
            del self._waiting[ask_again]
            ask_again()


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


Entry = Active | Folded | CancelledOnEntry
"""What a run is told when it enters its lane."""


class LaneRun(Protocol):
    """What a lane needs to know of a run, and what it tells it."""

    @property
    def id(self) -> RunId:
        """The run's own id."""
        ...

    @property
    def state(self) -> RunState:
        """Where the run is now."""
        ...

    @property
    def foldable(self) -> bool:
        """Whether the active run may absorb this one."""
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
        """Take note of a new state."""
        ...

    def decide(self, entry: Entry) -> None:
        """Take the lane's decision and wake up."""
        ...

    def request_cancel(self) -> None:
        """Note that the run was cancelled, and when."""
        ...

    def cancel_scope(self) -> None:
        """Cancel the scope that the turn runs in, or will."""
        ...


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
    """The endings that are being stored, in their order; with an outcome once it is certain."""
    _held: bool = field(default=False, init=False)

    @property
    def runs(self) -> tuple[R, ...]:
        """Every run in the lane, in the order of acceptance."""
        return tuple(self._runs)

    @property
    def active(self) -> R | None:
        """The active run; one whose ending is being stored still is."""
        turn = self._turn
        if turn is None or turn in self._withdrawn or turn.state is RunState.ACCEPTED:
            return None
        return turn

    @property
    def waiting(self) -> tuple[R, ...]:
        """The queue, first in line first; a run is in it from the moment its acceptance is stored."""
        return tuple(run for run in self._waiting if run.state is RunState.QUEUED)

    @property
    def beyond_queue(self) -> tuple[R, ...]:
        """Every run of the lane that does not wait in its queue."""
        return tuple(run for run in self._runs if run not in self._waiting)

    @property
    def length(self) -> int:
        """How many runs wait, those included whose acceptance is being stored."""
        return len(self._waiting)

    @property
    def busy(self) -> bool:
        """Whether a run is active; accepted and waiting runs do not make a session busy (A11)."""
        return self.active is not None

    @property
    def empty(self) -> bool:
        """Whether nothing is left, so that the lane may be dropped."""
        return not self._runs and not self._held

    # ── A run on its way ────────────────────────────────────────────────────────────────────────

    def admit(self, run: R) -> bool:
        """Take in a run that was accepted just now; return whether it has the turn."""
        self._runs[run] = None
        self._waiting[run] = None
        self.promote()
        return self._turn is run

    def enter(self, run: R) -> Entry | None:
        """Decide what a run does whose acceptance is stored; None means that it waits to be told.

        For runs that have not been told anything yet.
        """
        if self._turn is run:
            run.move(RunState.ACTIVE)
            return Active()
        run.move(RunState.QUEUED)
        return None

    def leave(self, run: R) -> None:
        """Let go of an ended run; if it was in the way of the next one, that begins in this same step.

        Nobody can see the session idle between two turns, and a run can only remove itself (A28).
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
        """Give the turn to the first in line, if it is free; return whether that happened."""
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
        """Let no run begin until `release`; those that are accepted wait."""
        self._held = True

    def release(self) -> None:
        """Let the first in line begin."""
        self._held = False
        self.promote()

    # ── Ending ──────────────────────────────────────────────────────────────────────────────────

    def begin_ending(self, run: R) -> None:
        """Take note that the ending of *run* is being handed to the journal."""
        self._endings.setdefault(run, None)

    def end(self, run: R, outcome: Result) -> None:
        """Take note that *run* has ended with *outcome*; `next_ended` says when to announce it."""
        self._endings[run] = outcome

    def next_ended(self) -> tuple[R, Result] | None:
        """Return the next run whose ending is to be announced now, and how it ended.

        Endings are announced in the order in which they were handed over, whichever task is the
        first to hear from the journal.
        """
        run = next(iter(self._endings), None)
        outcome = None if run is None else self._endings[run]
        return None if run is None or outcome is None else (run, outcome)

    # ── Folding ─────────────────────────────────────────────────────────────────────────────────

    def fold(self, into: R) -> tuple[R, ...]:
        """Hand the foldable waiters to *into*; runs with a caller's id keep waiting.

        Only the active run gets any: a run that is over has no step left to take a prompt into. And
        only once the endings of all withdrawn runs have been handed over: their records come first.

        The decision stands from this step on: a cancel that comes later finds the prompt part of
        the active run's turn and shares its fate (A.8).
        """
        last_withdrawn = next(reversed(self._withdrawn), None)
        if last_withdrawn is not None and last_withdrawn not in self._endings:
            return ()
        if self.active is not into:
            return ()
        taken = tuple(run for run in self.waiting if run.foldable)
        for run in taken:
            del self._waiting[run]
            self._folding[run] = None
        return taken

    def unfold(self, runs: Iterable[R]) -> tuple[R, ...]:
        """Put runs back to the head of the queue whose folding could not be stored.

        Those that were cancelled meanwhile are withdrawn instead, and returned.
        """
        back = tuple(runs)
        self._waiting = {**dict.fromkeys(back), **self._waiting}
        for run in back:
            del self._folding[run]
            self._endings.pop(run, None)
        return self._withdraw(tuple(run for run in back if run.cancel_requested))

    # ── Editing and cancelling ──────────────────────────────────────────────────────────────────

    def reorder(self, run: R, index: int) -> None:
        """Put a waiting run at *index* of the queue; an index past the end means the end."""
        queue = [other for other in self._waiting if other is not run]
        queue.insert(index, run)
        self._waiting = dict.fromkeys(queue)

    def cancel(self, runs: Iterable[R]) -> tuple[R, ...]:
        """Cancel *runs* of this lane; return those that had not begun, in the order of the lane.

        Those are withdrawn: they never become active, and whoever cancels them ends them. A run
        that is active ends by itself.
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
