"""As many active runs as may be, over the sessions of one workspace and over several workspaces."""

from contextlib import AsyncExitStack

import pytest
import trio
import trio.testing

from crush_trio.errors import PromptTooLong, QueueFull
from crush_trio.limits import SizeLimits
from crush_trio.runtime.lane import Capacity
from crush_trio.testing import Gate
from crush_trio.testing.explore import explore
from crush_trio.testing.server.turns import Pause, ScriptedTurns
from crush_trio.testing.server.workspace import check_promises, open_test_workspace
from crush_trio.wire.runs import RunState

ACTIVE, QUEUED = RunState.ACTIVE, RunState.QUEUED
COMPLETED, CANCELLED = RunState.COMPLETED, RunState.CANCELLED


async def quiet():
    await trio.testing.wait_all_tasks_blocked()


def paused(*names):
    """Return turns that wait at a gate each, and the gates."""
    gates = {name: Gate(name) for name in names}
    return ScriptedTurns({name: [Pause(gate)] for name, gate in gates.items()}, default=()), gates


async def test_further_runs_are_queued_and_begin_in_the_order_in_which_they_came():
    turns, gates = paused("a", "b", "c", "d")
    async with open_test_workspace(turns, capacity=Capacity(2)) as bench:
        runs = [bench.accept(name, session=name) for name in "abcd"]
        await quiet()
        assert [run.state for run in runs] == [ACTIVE, ACTIVE, QUEUED, QUEUED]
        gates["b"].open()
        await quiet()
        assert [run.state for run in runs] == [ACTIVE, COMPLETED, ACTIVE, QUEUED]
        gates["a"].open()
        await quiet()
        assert [run.state for run in runs] == [COMPLETED, COMPLETED, ACTIVE, ACTIVE]
        gates["c"].open()
        gates["d"].open()
        await runs[3].wait()


async def test_a_session_with_a_long_queue_does_not_keep_the_others_out():
    async with open_test_workspace(ScriptedTurns(default=()), capacity=Capacity(1)) as bench:
        many = [bench.accept("x", session="many", run_id=f"m{n}") for n in range(5)]
        other = bench.accept("y", session="other", run_id="o")
        await other.wait()
        assert [run.ended for run in many] == [True, False, False, False, False]
        await many[-1].wait()


async def test_a_run_that_waits_for_a_place_can_be_cancelled_and_the_next_one_gets_it():
    turns, gates = paused("a")
    capacity = Capacity(1)
    async with open_test_workspace(turns, capacity=capacity) as bench:
        a, b, c = (bench.accept(name, session=name) for name in "abc")
        await quiet()
        await bench.workspace.cancel("b").settled()
        assert (b.state, a.state, c.state) == (CANCELLED, ACTIVE, QUEUED)
        gates["a"].open()
        assert (await c.wait()).state is COMPLETED
        check_promises(bench, [a, b, c])
    assert capacity.taken == 0


async def test_sessions_that_wait_no_more_are_not_remembered():
    turns, _ = paused("a")
    capacity = Capacity(1)
    async with open_test_workspace(turns, capacity=capacity) as bench:
        bench.accept("a", session="a")
        for number in range(20):
            run = bench.accept("x", session=f"s{number}")
            await quiet()
            bench.workspace.cancel(f"s{number}")
            await run.wait()
        assert len(capacity._waiting) == 0


async def test_workspaces_share_their_places_and_a_closing_one_gives_its_own_back():
    turns, gates = paused("a", "b")
    capacity = Capacity(1)
    async with open_test_workspace(turns, capacity=capacity) as one:
        a = one.accept("a")
        async with open_test_workspace(turns, capacity=capacity) as two:
            b = two.accept("b")
            await quiet()
            assert (a.state, b.state) == (ACTIVE, QUEUED)
            gates["a"].open()
            await quiet()
            assert b.state is ACTIVE
            c = one.accept("x", session="c")
            await quiet()
            assert c.state is QUEUED
        assert b.state is CANCELLED
        assert (await c.wait()).state is COMPLETED
    assert capacity.taken == 0


async def test_a_workspace_that_closes_leaves_nothing_in_the_line():
    turns, gates = paused("a")
    capacity = Capacity(1)
    async with open_test_workspace(turns, capacity=capacity) as one:
        one.accept("a")
        async with open_test_workspace(turns, capacity=capacity) as two:
            waiting = two.accept("b")
            await quiet()
        assert waiting.state is CANCELLED
        assert len(capacity._waiting) == 0
        gates["a"].open()


# ── A herd, in every order ──────────────────────────────────────────────────────────────────────


async def herd():
    """Two workspaces, one place, two sessions in each; one run is cancelled, one workspace closes."""
    capacity, at_once = Capacity(1), []

    async def turn(_run):
        at_once.append(capacity.taken)
        await trio.lowlevel.checkpoint()

    async with AsyncExitStack() as stack:
        first, second = [
            await stack.enter_async_context(open_test_workspace(turn, capacity=capacity))
            for _ in range(2)
        ]
        runs = [first.accept("1", session="a"), second.accept("2", session="b")]
        runs += [first.accept("3", session="c", run_id="3")]

        async def cancel():
            await trio.lowlevel.checkpoint()
            first.workspace.cancel("c")

        async def close():
            await trio.lowlevel.checkpoint()
            await second.workspace.stop()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(cancel)
            nursery.start_soon(close)
        late = first.accept("4", session="c", run_id="4")
        result = tuple([(await run.wait()).state for run in (*runs, late)])
        check_promises(first, [runs[0], runs[2], late])
        check_promises(second, [runs[1]])
    assert result[0] is result[3] is COMPLETED, "a run was hit by another one's cancel"
    assert set(at_once) == {1}
    assert capacity.taken == len(capacity._waiting) == 0
    return result


@pytest.mark.parametrize(
    ("deviations", "part"),
    [
        pytest.param(1, (0, 1), id="once"),
        *(pytest.param(2, (n, 4), id=f"twice-{n}", marks=pytest.mark.long) for n in range(4)),
    ],
)
def test_no_place_is_lost_and_none_is_given_twice_whatever_the_order(
    deviations, part, report_exploration
):
    report = explore(herd, deviations=deviations, part=part)
    report_exploration(report)
    assert report.exhaustive
    assert {result[1] for result in report.outcomes} == {COMPLETED, CANCELLED}
    assert {result[2] for result in report.outcomes} == {COMPLETED, CANCELLED}


# ── Prompts and queues ──────────────────────────────────────────────────────────────────────────


async def test_a_prompt_that_is_too_long_is_refused_and_nothing_is_left_of_it():
    sizes = SizeLimits(prompt=10)
    async with open_test_workspace(sizes=sizes) as bench:
        with pytest.raises(PromptTooLong) as caught:
            bench.accept("\u20ac" * 4)
        assert (caught.value.code, bench.workspace.runs) == ("prompt_too_long", ())
        assert "it has 12 bytes, the limit is 10 bytes" in str(caught.value)
        assert (await bench.accept("\u20ac" * 3).wait()).state is COMPLETED


async def test_a_waiting_prompt_cannot_be_made_too_long():
    turns, gates = paused("a")
    async with open_test_workspace(turns, sizes=SizeLimits(prompt=10)) as bench:
        bench.accept("a")
        waiting = bench.accept("b", run_id="b")
        await quiet()
        with pytest.raises(PromptTooLong):
            bench.workspace.edit_queued(waiting.id, "x" * 11)
        assert waiting.submission.prompt == "b"
        gates["a"].open()


async def test_a_full_queue_refuses_and_takes_prompts_again_when_one_has_begun():
    turns, gates = paused("a")
    async with open_test_workspace(turns, sizes=SizeLimits(queue=2)) as bench:
        bench.accept("a", run_id="a")
        await gates["a"].reached()
        waiting = [bench.accept("x", run_id=f"r{n}") for n in range(2)]
        with pytest.raises(QueueFull, match="2 of 2"):
            bench.accept("x", run_id="r2")
        assert (await bench.accept("x", session="other").wait()).state is COMPLETED
        gates["a"].open()
        await waiting[0].wait()
        assert (await bench.accept("x", run_id="r2").wait()).state is COMPLETED
