"""Lanes against a model that keeps every run in one place.

The model knows nothing of how a lane stores its runs. It says where each run must be, which are
cancelled, and which is next; after every step the lanes have to agree. Two lanes share the places for
active runs.
"""

from attrs import define, field
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from crush_trio.runtime import Active, CancelledOnEntry, Folded, Lane, LaneDecision
from crush_trio.runtime.lane import Capacity
from crush_trio.wire.ids import RunId
from crush_trio.wire.runs import RunState


@define(eq=False)
class FakeRun:
    """A run without a task; `hit` is what the model says about `cancel_requested`.

    `policy` is None for a run that waits for a turn of its own; others fold into runs of their policy,
    as prompts that steer do.
    """

    id: RunId
    policy: int | None
    counted: bool = True
    state: RunState = RunState.ACCEPTED
    entry: LaneDecision | None = None
    cancel_requested: bool = False
    stopped: bool = False
    hit: bool = False

    def folds_into(self, active: "FakeRun") -> bool:
        return self.policy is not None and self.policy == (active.policy or 0)

    def move(self, state: RunState) -> None:
        self.state = state

    def decide(self, entry: LaneDecision) -> None:
        assert self.entry is None, "a run is told once"
        self.entry = entry

    def request_cancel(self) -> None:
        self.cancel_requested = True

    def cancel_scope(self) -> None:
        self.stopped = True


@define(eq=False)
class Model:
    """Where the runs of one lane must be."""

    lane: Lane[FakeRun, str]
    turn: FakeRun | None = None
    queue: list[FakeRun] = field(factory=list)
    folding: list[FakeRun] = field(factory=list)
    withdrawn: list[FakeRun] = field(factory=list)
    left: list[FakeRun] = field(factory=list)
    admitted: int = 0

    @property
    def present(self) -> list[FakeRun]:
        turn = [] if self.turn is None or self.turn in self.withdrawn else [self.turn]
        return [*turn, *self.queue, *self.folding, *self.withdrawn]

    @property
    def waits_for_a_place(self) -> bool:
        return self.turn is None and not self.withdrawn and bool(self.queue)


POLICIES = st.sampled_from([None, 0, 0, 1])


class LaneMachine(RuleBasedStateMachine):
    """Runs are accepted, enter, wait, are active, folded or withdrawn, and leave."""

    def __init__(self) -> None:
        super().__init__()
        self.capacity = Capacity()
        self.models: list[Model] = []
        self.line: list[Model] = []

    @initialize(limit=st.sampled_from([1, 2]))
    def open(self, limit: int) -> None:
        self.capacity.limit = limit
        self.models = [Model(Lane(self.capacity)) for _ in range(2)]

    def some(self, data: st.DataObject, runs: list[FakeRun]) -> FakeRun:
        return data.draw(st.sampled_from(runs))

    # ── What can happen ─────────────────────────────────────────────────────────────────────────

    @rule(which=st.integers(0, 1), policy=POLICIES)
    def admit(self, which: int, policy: int | None) -> None:
        self.new_run(self.models[which], policy)

    @rule(which=st.integers(0, 1), policies=st.lists(POLICIES, min_size=2, max_size=4))
    def line_up(self, which: int, policies: list[int | None]) -> None:
        """Several runs at once: single steps alone seldom make a queue long enough to matter."""
        for each in policies:
            self.let_in(self.models[which], self.new_run(self.models[which], each))

    def new_run(self, model: Model, policy: int | None) -> FakeRun:
        model.admitted += 1
        run = FakeRun(RunId(f"run-{model.admitted}"), policy)
        has_turn = model.lane.admit(run)
        model.queue.append(run)
        self.promote(model)
        assert has_turn == (model.turn is run)
        return run

    @rule(which=st.integers(0, 1), data=st.data())
    def enter(self, which: int, data: st.DataObject) -> None:
        model = self.models[which]
        runs = [r for r in model.present if r.state is RunState.ACCEPTED and r.entry is None]
        if runs:
            self.let_in(model, self.some(data, runs))

    def let_in(self, model: Model, run: FakeRun) -> None:
        entry = model.lane.enter(run)
        if model.turn is run:
            assert entry == Active()
            assert run.state is RunState.ACTIVE
        else:
            assert entry is None
            assert run.state is RunState.QUEUED

    @rule(which=st.integers(0, 1), data=st.data())
    def cancel(self, which: int, data: st.DataObject) -> None:
        model = self.models[which]
        runs = (
            data.draw(st.lists(st.sampled_from(model.present), unique=True))
            if model.present
            else []
        )
        if data.draw(st.booleans()):
            runs = list(model.lane.runs)
        not_begun = [model.turn, *model.queue]
        expected = [
            run
            for run in not_begun
            if run in runs and run not in model.withdrawn and run.state in _NOT_BEGUN
        ]
        assert list(model.lane.cancel(runs)) == expected
        for run in runs:
            run.hit = True
        self.withdraw(model, expected)

    def withdraw(self, model: Model, runs: list[FakeRun]) -> None:
        for run in runs:
            assert run.entry == CancelledOnEntry()
            model.lane.begin_ending(run)
        model.withdrawn += runs
        model.queue = [run for run in model.queue if run not in runs]

    @rule(which=st.integers(0, 1))
    def fold(self, which: int) -> None:
        model = self.models[which]
        active = model.lane.active
        if active is not None:
            policy = active.policy or 0
            queued = [run for run in model.queue if run.state is RunState.QUEUED]
            expected = [run for run in queued if run.policy == policy and not active.hit]
            assert list(model.lane.fold(active)) == expected
            model.folding += expected
            model.queue = [run for run in model.queue if run not in expected]

    @rule(which=st.integers(0, 1), stored=st.booleans())
    def end_folding(self, which: int, stored: bool) -> None:
        model = self.models[which]
        runs, model.folding = model.folding, []
        if stored:
            for run in runs:
                run.decide(Folded(into=RunId("host")))
                self.leave(model, run)
        elif runs:
            withdrawn = model.lane.unfold(runs)
            assert list(withdrawn) == [run for run in runs if run.hit]
            model.queue = [*runs, *model.queue]
            self.withdraw(model, list(withdrawn))
            self.promote(model)  # nothing is promoted while the host is active

    @rule(which=st.integers(0, 1), data=st.data())
    def end_some_run(self, which: int, data: st.DataObject) -> None:
        """The active run ends, a withdrawn one, or one whose acceptance was refused."""
        model = self.models[which]
        refused = [run for run in model.present if run.state is RunState.ACCEPTED]
        turn = [model.turn] if model.turn is not None and not model.folding else []
        runs = [*turn, *model.withdrawn, *refused]
        if runs:
            self.leave(model, self.some(data, runs))

    @precondition(lambda self: any(len(model.queue) > 1 for model in self.models))
    @rule(data=st.data(), index=st.integers(0, 4))
    def reorder(self, data: st.DataObject, index: int) -> None:
        model = next(model for model in self.models if len(model.queue) > 1)
        run = self.some(data, model.queue)
        model.lane.reorder(run, index)
        model.queue.remove(run)
        model.queue.insert(index, run)

    def leave(self, model: Model, run: FakeRun) -> None:
        model.lane.leave(run)
        for place in (model.queue, model.withdrawn):
            if run in place:
                place.remove(run)
        model.left.append(run)
        freed = model.turn is run
        if freed:
            model.turn = None
            line, self.line = self.line, []
            for other in line:
                self.promote(other)
        self.promote(model)
        if not model.queue and model in self.line:
            self.line.remove(model)

    def promote(self, model: Model) -> None:
        taken = sum(each.turn is not None for each in self.models)
        if not model.waits_for_a_place:
            return
        if taken >= self.capacity.limit:
            if model not in self.line:
                self.line.append(model)
            return
        model.turn = model.queue.pop(0)

    # ── What always holds ───────────────────────────────────────────────────────────────────────

    @invariant()
    def a_run_waits_only_while_something_is_in_its_way(self) -> None:
        full = self.capacity.taken >= self.capacity.limit
        for model in self.models:
            assert not model.waits_for_a_place or full

    @invariant()
    def no_more_runs_have_the_turn_than_there_are_places(self) -> None:
        assert self.capacity.taken == sum(model.turn is not None for model in self.models)
        assert self.capacity.taken <= self.capacity.limit

    @invariant()
    def no_run_is_forgotten_and_none_stays_behind(self) -> None:
        for model in self.models:
            assert len(model.present) == len(set(model.present))
            assert set(model.lane.runs) == set(model.present)
            assert len(model.present) + len(model.left) == model.admitted
            assert model.lane.empty == (not model.present)

    @invariant()
    def runs_are_listed_in_the_order_of_acceptance(self) -> None:
        for model in self.models:
            numbers = [int(run.id.removeprefix("run-")) for run in model.lane.runs]
            assert numbers == sorted(numbers)

    @invariant()
    def the_queue_is_as_the_model_has_it(self) -> None:
        for model in self.models:
            queued = [run for run in model.queue if run.state is RunState.QUEUED]
            assert list(model.lane.waiting) == queued
            assert model.lane.length == len(model.queue)

    @invariant()
    def the_active_run_is_the_one_whose_turn_it_is(self) -> None:
        for model in self.models:
            active = model.lane.active
            begun = model.turn is not None and model.turn.state is RunState.ACTIVE
            assert active is (model.turn if begun else None)
            assert model.lane.busy == begun

    @invariant()
    def a_cancel_hits_the_runs_of_its_instant_and_no_other(self) -> None:
        for model in self.models:
            for run in [*model.present, *model.left]:
                assert run.cancel_requested == run.hit
                assert not run.stopped or run.hit

    @invariant()
    def a_withdrawn_run_is_never_active(self) -> None:
        for model in self.models:
            assert all(run.state in _NOT_BEGUN for run in model.withdrawn)


_NOT_BEGUN = {RunState.ACCEPTED, RunState.QUEUED}

TestLaneModel = LaneMachine.TestCase
TestLaneModel.settings = settings(
    derandomize=True, max_examples=150, stateful_step_count=40, deadline=None
)
