"""One session's lane, step by step. No task runs here: a lane only decides."""

from inspect import iscoroutinefunction

import pytest
import trio
from attrs import define, field

from crush_trio.runtime import Active, CancelledOnEntry, Entry, Folded, Lane
from crush_trio.wire.ids import RunId
from crush_trio.wire.native import RunState


@define(eq=False)
class FakeRun:
    """A run that does nothing but write down what it is told."""

    id: RunId
    foldable: bool = False
    scope: trio.CancelScope = field(factory=trio.CancelScope, repr=False)
    told: list[RunState | Entry] = field(factory=list)

    def move(self, state: RunState) -> None:
        self.told.append(state)

    def decide(self, entry: Entry) -> None:
        self.told.append(entry)

    def cancel(self) -> None:
        self.scope.cancel()

    @property
    def cancelled(self) -> bool:
        return self.scope.cancel_called


def admitted(lane: "Lane[FakeRun]", names: str, *, foldable: str = "") -> list[FakeRun]:
    """Admit one run per letter of *names*."""
    runs = [FakeRun(RunId(name), name in foldable) for name in names]
    for run in runs:
        lane.admit(run)
    return runs


def entered(lane: "Lane[FakeRun]", names: str, *, foldable: str = "") -> list[FakeRun]:
    """Admit one run per letter of *names*, and let each enter."""
    runs = admitted(lane, names, foldable=foldable)
    for run in runs:
        lane.enter(run)
    return runs


async def test_a_new_lane_is_empty_and_idle():
    lane = Lane[FakeRun]()
    assert lane.empty
    assert not lane.busy
    assert (lane.runs, lane.waiting) == ((), ())


@pytest.mark.item("A11")
async def test_an_admitted_run_does_not_make_the_lane_busy():
    lane = Lane[FakeRun]()
    (a,) = admitted(lane, "a")
    assert lane.runs == (a,)
    assert not lane.empty
    assert not lane.busy


@pytest.mark.item("A9")
async def test_the_first_run_to_enter_is_active_whoever_was_admitted_first():
    lane = Lane[FakeRun]()
    a, b = admitted(lane, "ab")
    assert lane.enter(b) == Active()
    assert lane.active is b
    assert b.told == [RunState.ACTIVE]
    assert a.told == []


@pytest.mark.item("A9", "C1")
async def test_runs_that_enter_a_busy_lane_wait_in_the_order_of_entering():
    lane = Lane[FakeRun]()
    entered(lane, "x")
    a, b = admitted(lane, "ab")
    assert lane.enter(b) is None
    assert lane.enter(a) is None
    assert lane.waiting == (b, a)
    assert a.told == b.told == [RunState.QUEUED]


@pytest.mark.item("A9")
async def test_being_cancelled_comes_before_being_busy():
    lane = Lane[FakeRun]()
    (x,) = entered(lane, "x")
    (a,) = admitted(lane, "a")
    lane.cancel_run(a)
    assert lane.enter(a) == CancelledOnEntry()
    assert lane.waiting == ()
    assert a.told == []
    lane.leave(x)
    assert not lane.busy


@pytest.mark.item("A9")
async def test_a_cancelled_run_does_not_become_active_in_an_idle_lane():
    lane = Lane[FakeRun]()
    (a,) = admitted(lane, "a")
    lane.cancel()
    assert lane.enter(a) == CancelledOnEntry()
    assert not lane.busy


@pytest.mark.item("A25")
async def test_leaving_makes_the_next_run_active_in_the_same_step():
    lane = Lane[FakeRun]()
    a, b, c = entered(lane, "abc")
    lane.leave(a)
    assert lane.active is b
    assert lane.waiting == (c,)
    assert b.told == [RunState.QUEUED, RunState.ACTIVE, Active()]


@pytest.mark.item("A25")
async def test_a_waiting_run_whose_scope_was_cancelled_is_passed_over():
    lane = Lane[FakeRun]()
    a, b, c = entered(lane, "abc")
    b.cancel()  # by way of its token: the lane has not been told
    lane.leave(a)
    assert lane.active is c
    lane.leave(b)
    assert lane.active is c


@pytest.mark.item("A28")
async def test_a_run_that_leaves_removes_only_itself():
    lane = Lane[FakeRun]()
    a, b, c = entered(lane, "abc")
    lane.leave(b)
    assert lane.active is a
    assert lane.waiting == (c,)
    assert lane.runs == (a, c)


@pytest.mark.item("A35")
async def test_a_lane_is_empty_when_the_last_run_has_left_and_not_before():
    lane = Lane[FakeRun]()
    a, b = entered(lane, "ab")
    lane.leave(a)
    assert not lane.empty
    lane.leave(b)
    assert lane.empty
    assert not lane.busy


async def test_a_run_leaves_once():
    lane = Lane[FakeRun]()
    a, _ = entered(lane, "ab")
    lane.leave(a)
    with pytest.raises(KeyError):
        lane.leave(a)


@pytest.mark.item("A13", "A15")
async def test_cancel_reaches_every_run_in_the_lane_and_empties_the_queue():
    lane = Lane[FakeRun]()
    runs = [*entered(lane, "abc"), *admitted(lane, "de")]
    lane.cancel()
    assert all(run.cancelled for run in runs)
    assert lane.waiting == ()
    assert lane.active is runs[0], "busy until the run has really ended"
    assert lane.runs == tuple(runs)


@pytest.mark.item("A16")
async def test_cancel_does_not_reach_a_run_that_comes_later():
    lane = Lane[FakeRun]()
    (a,) = admitted(lane, "a")
    lane.cancel()
    (b,) = admitted(lane, "b")
    assert lane.enter(b) == Active()
    assert lane.enter(a) == CancelledOnEntry()
    assert not b.cancelled


@pytest.mark.item("A14", "A36")
async def test_cancelling_an_idle_lane_leaves_nothing_behind():
    lane = Lane[FakeRun]()
    lane.cancel()
    lane.clear_queue()
    (a,) = admitted(lane, "a")
    assert lane.enter(a) == Active()
    assert not a.cancelled


async def test_cancelling_one_run_leaves_the_others_in_their_order():
    lane = Lane[FakeRun]()
    a, b, c, d = entered(lane, "abcd")
    lane.cancel_run(c)
    assert c.cancelled
    assert not any(run.cancelled for run in (a, b, d))
    assert lane.waiting == (b, d)


@pytest.mark.item("A30")
async def test_clearing_the_queue_cancels_the_waiting_runs_only():
    lane = Lane[FakeRun]()
    a, b, c = entered(lane, "abc")
    (d,) = admitted(lane, "d")
    lane.clear_queue()
    assert [run.cancelled for run in (a, b, c, d)] == [False, True, True, False]
    assert lane.waiting == ()
    assert lane.active is a


@pytest.mark.item("C2")
async def test_folding_takes_the_first_run_that_may_be_folded_and_keeps_the_rest_in_order():
    lane = Lane[FakeRun]()
    a, b, c, d, e = entered(lane, "abcde", foldable="ce")
    assert lane.fold(lane.active) is c
    assert c.told == [RunState.QUEUED, Folded(into=a.id)]
    assert lane.waiting == (b, d, e)
    assert lane.fold(lane.active) is e
    assert lane.fold(lane.active) is None
    assert lane.waiting == (b, d)
    assert lane.runs == (a, b, c, d, e), "a folded run is in the lane until it leaves"


async def test_a_folded_run_is_not_folded_twice_nor_promoted():
    lane = Lane[FakeRun]()
    a, b = entered(lane, "ab", foldable="b")
    lane.fold(lane.active)
    assert lane.fold(lane.active) is None
    lane.leave(a)
    assert not lane.busy
    assert b.told == [RunState.QUEUED, Folded(into=a.id)]


async def test_a_run_that_is_not_active_folds_nothing():
    lane = Lane[FakeRun]()
    admitted(lane, "abc", foldable="bc")
    a, b, _ = lane.runs
    assert lane.fold(a) is None, "nobody is active yet"
    lane.enter(a)
    lane.enter(b)
    assert lane.fold(b) is None
    assert lane.waiting == (b,)
    assert lane.fold(a) is b


@pytest.mark.item("A39", "T6")
def test_every_decision_of_a_lane_is_synchronous():
    waits = [name for name, value in vars(Lane).items() if iscoroutinefunction(value)]
    assert waits == []
