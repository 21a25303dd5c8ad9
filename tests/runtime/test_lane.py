"""One session's lane, step by step. No task runs here: a lane only decides."""

from inspect import iscoroutinefunction

import pytest
from attrs import define, field

from crush_trio.runtime import Active, CancelledOnEntry, Folded, Lane, LaneDecision
from crush_trio.runtime.lane import Capacity
from crush_trio.wire.ids import RunId
from crush_trio.wire.runs import RunState

ACTIVE, QUEUED = RunState.ACTIVE, RunState.QUEUED


@define(eq=False)
class FakeRun:
    """A run that does nothing but write down what it is told."""

    id: RunId
    foldable: bool = False
    counted: bool = True
    state: RunState = RunState.ACCEPTED
    told: list[RunState | LaneDecision] = field(factory=list)
    cancel_requested: bool = False
    stopped: bool = False

    def folds_into(self, active: "FakeRun") -> bool:
        return self.foldable

    def move(self, state: RunState) -> None:
        self.state = state
        self.told.append(state)

    def decide(self, entry: LaneDecision) -> None:
        self.told.append(entry)

    def request_cancel(self) -> None:
        self.cancel_requested = True

    def cancel_scope(self) -> None:
        self.stopped = True


def admitted(lane: "Lane[FakeRun, str]", names: str, *, foldable: str = "") -> list[FakeRun]:
    """Admit one run per letter of *names*."""
    runs = [FakeRun(RunId(name), name in foldable) for name in names]
    for run in runs:
        lane.admit(run)
    return runs


def entered(lane: "Lane[FakeRun, str]", names: str, *, foldable: str = "") -> list[FakeRun]:
    """Admit one run per letter of *names*, and let each enter."""
    runs = admitted(lane, names, foldable=foldable)
    for run in runs:
        lane.enter(run)
    return runs


async def test_a_new_lane_is_empty_and_idle():
    lane = Lane[FakeRun, str]()
    assert lane.empty
    assert not lane.busy
    assert (lane.runs, lane.waiting, lane.active) == ((), (), None)


@pytest.mark.item("A11")
async def test_an_admitted_run_does_not_make_the_lane_busy():
    lane = Lane[FakeRun, str]()
    a = FakeRun(RunId("a"))
    assert lane.admit(a), "it has the turn, and is not active before it enters"
    assert lane.runs == (a,)
    assert not lane.empty
    assert not lane.busy


@pytest.mark.item("A9", "C1")
async def test_the_order_of_acceptance_is_the_order_of_turns_whoever_enters_first():
    lane = Lane[FakeRun, str]()
    a, b, c = admitted(lane, "abc")
    assert lane.enter(c) is None
    assert lane.enter(b) is None
    assert not lane.busy
    assert lane.waiting == (b, c)
    assert lane.enter(a) == Active()
    assert lane.active is a
    assert (a.told, b.told, c.told) == ([ACTIVE], [QUEUED], [QUEUED])


async def test_a_run_is_in_the_queue_from_the_moment_it_enters():
    lane = Lane[FakeRun, str]()
    entered(lane, "x")
    (a,) = admitted(lane, "a")
    assert (lane.waiting, lane.length) == ((), 1)
    lane.enter(a)
    assert (lane.waiting, lane.length) == ((a,), 1)


@pytest.mark.item("A9")
async def test_being_cancelled_comes_before_being_busy():
    lane = Lane[FakeRun, str]()
    (x,) = entered(lane, "x")
    (a,) = admitted(lane, "a")
    assert lane.cancel([a]) == (a,)
    assert lane.waiting == ()
    assert a.told == [CancelledOnEntry()]
    lane.leave(x)
    assert not lane.busy


@pytest.mark.item("A9")
async def test_a_cancelled_run_does_not_become_active_in_an_idle_lane():
    lane = Lane[FakeRun, str]()
    (a,) = admitted(lane, "a")
    assert lane.cancel([a]) == (a,)
    assert a.told == [CancelledOnEntry()]
    assert not lane.busy


@pytest.mark.item("A25")
async def test_leaving_makes_the_next_run_active_in_the_same_step():
    lane = Lane[FakeRun, str]()
    a, b, c = entered(lane, "abc")
    lane.leave(a)
    assert lane.active is b
    assert lane.waiting == (c,)
    assert b.told == [QUEUED, ACTIVE, Active()]


async def test_the_turn_may_come_before_the_acceptance_is_stored():
    lane = Lane[FakeRun, str]()
    (a,) = entered(lane, "a")
    (b,) = admitted(lane, "b")
    lane.leave(a)
    assert (lane.active, b.told) == (None, [])
    assert lane.enter(b) == Active()


async def test_a_run_whose_acceptance_was_refused_lets_the_next_one_have_the_turn():
    lane = Lane[FakeRun, str]()
    a, b = admitted(lane, "ab")
    lane.enter(b)
    lane.leave(a)
    assert lane.active is b


@pytest.mark.item("A28")
async def test_a_run_that_leaves_removes_only_itself():
    lane = Lane[FakeRun, str]()
    a, b, c = entered(lane, "abc")
    lane.leave(b)
    assert lane.active is a
    assert lane.waiting == (c,)
    assert lane.runs == (a, c)


@pytest.mark.item("A35")
async def test_a_lane_is_empty_when_the_last_run_has_left_and_not_before():
    lane = Lane[FakeRun, str]()
    a, b = entered(lane, "ab")
    lane.leave(a)
    assert not lane.empty
    lane.leave(b)
    assert lane.empty
    assert not lane.busy


async def test_a_run_leaves_once():
    lane = Lane[FakeRun, str]()
    a, _ = entered(lane, "ab")
    lane.leave(a)
    with pytest.raises(KeyError):
        lane.leave(a)


# ── Cancelling ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.item("A13", "A15")
async def test_cancel_reaches_every_run_and_withdraws_those_that_had_not_begun_in_their_order():
    lane = Lane[FakeRun, str]()
    a, b, c = entered(lane, "abc")
    d, e = admitted(lane, "de")
    lane.reorder(c, 0)
    assert lane.cancel(lane.runs) == (c, b, d, e)
    assert all(run.cancel_requested for run in (a, b, c, d, e))
    assert [run.stopped for run in (a, b, c)] == [True, False, False]
    assert lane.waiting == ()
    assert lane.active is a, "busy until the run has really ended"
    assert lane.runs == (a, b, c, d, e)


async def test_a_run_is_withdrawn_once():
    lane = Lane[FakeRun, str]()
    _, b = entered(lane, "ab")
    assert lane.cancel([b]) == (b,)
    assert lane.cancel(lane.runs) == ()
    assert b.told == [QUEUED, CancelledOnEntry()]


@pytest.mark.item("A16")
async def test_cancel_does_not_reach_a_run_that_comes_later():
    lane = Lane[FakeRun, str]()
    (a,) = admitted(lane, "a")
    lane.cancel(lane.runs)
    (b,) = admitted(lane, "b")
    assert lane.enter(b) is None, "it begins when the ending of the other is stored"
    lane.leave(a)
    assert (lane.active, b.cancel_requested) == (b, False)


async def test_no_run_begins_before_every_withdrawn_one_has_left():
    lane = Lane[FakeRun, str]()
    a, b, c, d = entered(lane, "abcd")
    lane.cancel([b, c])
    lane.leave(a)
    lane.leave(c)
    assert (lane.active, lane.waiting) == (None, (d,))
    lane.leave(b)
    assert lane.active is d


@pytest.mark.item("A14", "A36")
async def test_cancelling_an_idle_lane_leaves_nothing_behind():
    lane = Lane[FakeRun, str]()
    assert lane.cancel(lane.runs) == ()
    (a,) = admitted(lane, "a")
    assert lane.enter(a) == Active()
    assert not a.cancel_requested


@pytest.mark.item("A30")
async def test_cancelling_the_queue_leaves_the_active_run_alone():
    lane = Lane[FakeRun, str]()
    a, b, c = entered(lane, "abc")
    (d,) = admitted(lane, "d")
    assert lane.cancel(lane.waiting) == (b, c)
    assert [run.cancel_requested for run in (a, b, c, d)] == [False, True, True, False]
    assert lane.active is a


async def test_what_is_beyond_the_queue_can_be_cancelled_and_the_queue_kept():
    lane = Lane[FakeRun, str]()
    a, b, c = entered(lane, "abc")
    assert lane.beyond_queue == (a,)
    assert lane.cancel(lane.beyond_queue) == ()
    assert (a.stopped, lane.waiting) == (True, (b, c))
    lane.leave(a)
    assert lane.active is b


# ── Folding ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.item("C2")
async def test_folding_takes_the_runs_that_may_be_folded_and_keeps_the_rest_in_order():
    lane = Lane[FakeRun, str]()
    a, b, c, d, e = entered(lane, "abcde", foldable="ce")
    admitted(lane, "f", foldable="f")
    assert lane.fold(a) == (c, e), "one whose acceptance is not stored cannot be folded"
    assert lane.waiting == (b, d)
    assert lane.fold(a) == ()
    assert lane.runs[:5] == (a, b, c, d, e), "a folded run is in the lane until it leaves"


async def test_a_folded_run_is_not_promoted():
    lane = Lane[FakeRun, str]()
    a, b = entered(lane, "ab", foldable="b")
    lane.fold(a)
    b.decide(Folded(into=a.id))
    lane.leave(a)
    assert not lane.busy
    lane.leave(b)
    assert lane.empty


async def test_nothing_is_folded_before_the_endings_of_withdrawn_runs_are_handed_over():
    lane = Lane[FakeRun, str]()
    a, b, c = entered(lane, "abc", foldable="c")
    lane.cancel([b])
    assert lane.fold(a) == ()
    lane.begin_ending(b)
    assert lane.fold(a) == (c,)


async def test_endings_are_announced_in_the_order_in_which_they_were_handed_over():
    lane = Lane[FakeRun, str]()
    a, b, c = entered(lane, "abc")
    for run in (a, b, c):
        lane.begin_ending(run)
    lane.end(c, "cancelled")
    assert lane.next_ended() is None, "those before it are not stored yet"
    lane.end(a, "completed")
    assert lane.next_ended() == (a, "completed")
    lane.leave(a)
    assert lane.next_ended() is None
    lane.leave(b)  # its acceptance was refused
    assert lane.next_ended() == (c, "cancelled")


async def test_a_run_that_is_not_active_folds_nothing():
    lane = Lane[FakeRun, str]()
    a, b, c = admitted(lane, "abc", foldable="bc")
    lane.enter(b)
    assert lane.fold(a) == (), "it is not active yet"
    lane.enter(a)
    lane.enter(c)
    assert lane.fold(b) == ()
    assert lane.fold(a) == (b, c)


async def test_a_cancel_does_not_withdraw_a_run_that_is_being_folded():
    lane = Lane[FakeRun, str]()
    a, b = entered(lane, "ab", foldable="b")
    lane.fold(a)
    assert lane.cancel(lane.runs) == ()
    assert (a.stopped, b.cancel_requested, b.told) == (True, True, [QUEUED])


async def test_runs_whose_folding_failed_are_first_in_line_again():
    lane = Lane[FakeRun, str]()
    a, b, c, d = entered(lane, "abcd", foldable="cd")
    folding = lane.fold(a)
    assert lane.unfold(folding) == ()
    assert lane.waiting == (c, d, b)


async def test_a_run_that_was_cancelled_while_its_folding_failed_is_withdrawn():
    lane = Lane[FakeRun, str]()
    a, b, c = entered(lane, "abc", foldable="bc")
    folding = lane.fold(a)
    lane.cancel([b])
    assert lane.unfold(folding) == (b,)
    assert lane.waiting == (c,)


# ── As many as may be active ────────────────────────────────────────────────────────────────────


async def test_a_lane_waits_for_a_free_place_and_gets_it_when_a_run_leaves():
    capacity = Capacity(1)
    one, two, three = (Lane[FakeRun, str](capacity) for _ in range(3))
    (a,) = entered(one, "a")
    (b,) = entered(two, "b")
    (c,) = entered(three, "c")
    assert (one.active, two.active, two.waiting) == (a, None, (b,))
    one.leave(a)
    assert (two.active, three.active) == (b, None)
    two.leave(b)
    assert three.active is c


async def test_a_place_goes_to_the_next_lane_if_the_first_has_no_use_for_it():
    capacity = Capacity(1)
    one, two, three = (Lane[FakeRun, str](capacity) for _ in range(3))
    (a,) = entered(one, "a")
    (b,) = entered(two, "b")
    (c,) = entered(three, "c")
    two.cancel([b])
    one.leave(a)
    assert (two.active, three.active, capacity.taken) == (None, c, 1)


async def test_a_run_that_does_not_count_needs_no_place():
    capacity = Capacity(1)
    one, two = Lane[FakeRun, str](capacity), Lane[FakeRun, str](capacity)
    (a,) = entered(one, "a")
    task = FakeRun(RunId("task"), counted=False)
    assert two.admit(task)
    assert two.enter(task) == Active()
    two.leave(task)
    assert capacity.taken == 1
    one.leave(a)
    assert capacity.taken == 0


@pytest.mark.item("A39", "T6")
def test_every_decision_of_a_lane_is_synchronous():
    waits = [name for name, value in vars(Lane).items() if iscoroutinefunction(value)]
    assert waits == []
