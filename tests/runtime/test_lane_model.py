"""A lane against a model of it that keeps every run in one of four places.

The model knows nothing of how a lane stores its runs. It says where each run must be, who is
cancelled, and who is next; after every step the lane has to agree.
"""

from attrs import define, field
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from crush_trio.runtime import Active, CancelledOnEntry, Entry, Folded, Lane
from crush_trio.wire.ids import RunId
from crush_trio.wire.native import RunState


@define
class FakeScope:
    """The part of a cancel scope that a lane uses; Trio's own answers only inside `trio.run`."""

    cancel_called: bool = False


@define(eq=False)
class FakeRun:
    """A run without a task; `hit` is what the model says about `scope`."""

    id: RunId
    foldable: bool
    scope: FakeScope = field(factory=FakeScope, repr=False)
    state: RunState = RunState.ACCEPTED
    entry: Entry | None = None
    hit: bool = False

    def move(self, state: RunState) -> None:
        self.state = state

    def decide(self, entry: Entry) -> None:
        assert self.entry is None, "a run is told once"
        self.entry = entry

    def cancel(self) -> None:
        self.scope.cancel_called = True


class LaneMachine(RuleBasedStateMachine):
    """Accepted runs enter; they wait or are active; a decided run has only to leave."""

    def __init__(self) -> None:
        super().__init__()
        self.lane: Lane[FakeRun] = Lane()
        self.admitted = 0
        self.accepted: list[FakeRun] = []
        self.waiting: list[FakeRun] = []
        self.active: FakeRun | None = None
        self.decided: list[FakeRun] = []
        self.left: list[FakeRun] = []

    @property
    def present(self) -> list[FakeRun]:
        active = [] if self.active is None else [self.active]
        return [*self.accepted, *self.waiting, *active, *self.decided]

    # ── What can happen ─────────────────────────────────────────────────────────────────────────

    @rule(foldable=st.booleans())
    def admit(self, foldable: bool) -> None:
        self.new_run(foldable)

    @precondition(lambda self: self.accepted)
    @rule(data=st.data())
    def enter(self, data: st.DataObject) -> None:
        self.let_in(data.draw(st.sampled_from(self.accepted)))

    @rule(foldable=st.lists(st.booleans(), min_size=2, max_size=4))
    def line_up(self, foldable: list[bool]) -> None:
        """Several runs at once: single steps alone seldom make a queue long enough to matter."""
        for each in foldable:
            self.let_in(self.new_run(each))

    def new_run(self, foldable: bool) -> FakeRun:
        self.admitted += 1
        run = FakeRun(RunId(f"run-{self.admitted}"), foldable)
        self.lane.admit(run)
        self.accepted.append(run)
        return run

    def let_in(self, run: FakeRun) -> None:
        self.accepted.remove(run)
        entry = self.lane.enter(run)
        if run.hit:
            assert entry == CancelledOnEntry()
            self.decided.append(run)
        elif self.active is not None:
            assert entry is None
            self.waiting.append(run)
        else:
            assert entry == Active()
            self.active = run

    @rule()
    def cancel(self) -> None:
        self.lane.cancel()
        for run in self.present:
            run.hit = True
        self.drop(self.waiting)

    @precondition(lambda self: self.present)
    @rule(data=st.data())
    def cancel_run(self, data: st.DataObject) -> None:
        run = data.draw(st.sampled_from(self.present))
        self.lane.cancel_run(run)
        run.hit = True
        if run in self.waiting:
            self.drop([run])

    @precondition(lambda self: self.present)
    @rule(data=st.data())
    def cancel_behind_the_lanes_back(self, data: st.DataObject) -> None:
        """Cancel a run by its token: a waiting one stays in the queue until its task moves."""
        run = data.draw(st.sampled_from(self.present))
        run.cancel()
        run.hit = True

    @rule()
    def clear_queue(self) -> None:
        self.lane.clear_queue()
        for run in self.waiting:
            run.hit = True
        self.drop(self.waiting)

    @precondition(lambda self: self.active is not None)
    @rule()
    def fold(self) -> None:
        assert self.active is not None
        expected = next((run for run in self.waiting if run.foldable), None)
        assert self.lane.fold(self.lane.active) is expected
        if expected is not None:
            assert expected.entry == Folded(into=self.active.id)
            self.drop([expected])

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        run = data.draw(st.sampled_from(self.waiting))
        self.lane.withdraw(run)
        self.drop([run])

    @precondition(lambda self: self.active is not None)
    @rule()
    def leave_active(self) -> None:
        assert self.active is not None
        self.lane.leave(self.active)
        self.left.append(self.active)
        passed_over = []
        self.active = None
        for run in self.waiting:
            if not run.hit:
                self.active = run
                break
            passed_over.append(run)
        self.drop(passed_over)
        if self.active is not None:
            self.waiting.remove(self.active)
            assert self.active.entry == Active(), "promoted in the same step, and told so"

    @precondition(lambda self: self.decided)
    @rule(data=st.data())
    def leave_decided(self, data: st.DataObject) -> None:
        self.leave(data.draw(st.sampled_from(self.decided)))

    @precondition(lambda self: self.accepted)
    @rule(data=st.data())
    def leave_without_entering(self, data: st.DataObject) -> None:
        """A run whose acceptance could not be stored never enters."""
        self.leave(data.draw(st.sampled_from(self.accepted)))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def leave_the_queue(self, data: st.DataObject) -> None:
        """A waiting run goes when everything around the workspace is cancelled."""
        self.leave(data.draw(st.sampled_from(self.waiting)))

    def leave(self, run: FakeRun) -> None:
        self.lane.leave(run)
        for place in (self.accepted, self.waiting, self.decided):
            if run in place:
                place.remove(run)
        self.left.append(run)

    def drop(self, runs: list[FakeRun]) -> None:
        """Move runs out of the queue: they have only to leave now."""
        self.decided += runs
        self.waiting = [run for run in self.waiting if run not in self.decided]

    # ── What always holds ───────────────────────────────────────────────────────────────────────

    @invariant()
    def a_run_waits_only_while_another_is_active(self) -> None:
        assert self.lane.busy or not self.lane.waiting

    @invariant()
    def active_and_waiting_runs_are_runs_of_the_lane_each_in_one_place(self) -> None:
        runs, waiting = self.lane.runs, self.lane.waiting
        assert len(set(waiting)) == len(waiting)
        assert set(waiting) <= set(runs)
        assert self.lane.active not in waiting
        assert self.lane.active is None or self.lane.active in runs

    @invariant()
    def no_run_is_forgotten_and_none_stays_behind(self) -> None:
        assert len(self.present) == len(set(self.present))
        assert set(self.lane.runs) == set(self.present)
        assert len(self.present) + len(self.left) == self.admitted

    @invariant()
    def runs_are_listed_in_the_order_of_acceptance(self) -> None:
        numbers = [int(run.id.removeprefix("run-")) for run in self.lane.runs]
        assert numbers == sorted(numbers)

    @invariant()
    def the_queue_is_first_in_first_out(self) -> None:
        assert list(self.lane.waiting) == self.waiting

    @invariant()
    def the_active_run_is_the_one_whose_turn_it_is(self) -> None:
        assert self.lane.active is self.active
        assert self.lane.busy == (self.active is not None)

    @invariant()
    def a_cancel_hits_the_runs_of_its_instant_and_no_other(self) -> None:
        for run in [*self.present, *self.left]:
            assert run.scope.cancel_called == run.hit

    @invariant()
    def every_run_knows_its_state(self) -> None:
        assert all(run.state is RunState.ACCEPTED for run in self.accepted)
        assert all(run.state is RunState.QUEUED and run.entry is None for run in self.waiting)
        assert self.active is None or self.active.state is RunState.ACTIVE

    @invariant()
    def the_lane_is_empty_when_nothing_is_left(self) -> None:
        assert self.lane.empty == (not self.present)


TestLaneModel = LaneMachine.TestCase
TestLaneModel.settings = settings(
    derandomize=True, max_examples=150, stateful_step_count=40, deadline=None
)
