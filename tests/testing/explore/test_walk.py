"""One walk through a scenario: fair by default, ended when it must be, and named by its token."""

import re

import pytest
import trio

from crush_trio.testing import Deadlock, ExplorerBroken, StepLimit, find_violation, replay
from crush_trio.testing.explore import explore


@pytest.mark.parametrize(
    "token", ["", "x1-", "x2-1.1", "x1-1", "x1-a.b", "x1-1.0", "x1-3.1-2.1", "x1-1.1.1", "1.1"]
)
def test_a_malformed_token_is_refused(token):
    with pytest.raises(ValueError, match=re.escape(f"not a schedule token: {token!r}")):
        replay(trio.lowlevel.checkpoint, token)


@pytest.mark.parametrize("pollers", [1, 3])
def test_a_polling_loop_does_not_starve_the_task_it_polls_for(pollers):
    async def scenario() -> int:
        done = False
        polls = 0

        async def poll() -> None:
            nonlocal polls
            while not done:
                polls += 1
                await trio.lowlevel.checkpoint()

        async def work() -> None:
            nonlocal done
            await trio.lowlevel.checkpoint()
            done = True

        async with trio.open_nursery() as nursery:
            for _ in range(pollers):
                nursery.start_soon(poll)
            nursery.start_soon(work)
        return polls

    result = explore(scenario, deviations=1, max_steps=200)
    assert result.exhaustive
    assert 0 in result.outcomes
    assert max(result.outcomes) > 1


def test_trios_own_tasks_are_served_but_are_no_decisions():
    async def scenario() -> str:
        done = trio.Event()
        trio.lowlevel.current_trio_token().run_sync_soon(done.set)
        await done.wait()
        return "done"

    result = explore(scenario, deviations=None)
    assert (result.decision_points, result.outcomes) == (0, {"done": 1})


@pytest.mark.parametrize(
    "checkpoint", [trio.lowlevel.checkpoint, trio.lowlevel.cancel_shielded_checkpoint]
)
def test_a_scenario_that_does_not_end_fails_with_its_token(checkpoint):
    async def scenario() -> None:
        while True:
            await checkpoint()

    failure = find_violation(scenario, max_steps=50)
    assert failure.token == "x1"
    with pytest.raises(StepLimit, match="not finished after 50 task steps"):
        replay(scenario, failure.token, max_steps=50)


@pytest.mark.parametrize("shield", [False, True])
def test_a_deadlock_is_a_failure_that_says_who_waits_where(shield):
    async def scenario() -> None:
        first, second = trio.Lock(), trio.Lock()

        async def take(one: trio.Lock, other: trio.Lock) -> None:
            with trio.CancelScope(shield=shield):
                async with one:
                    await trio.lowlevel.checkpoint()
                    async with other:
                        pass

        async with trio.open_nursery() as nursery:
            nursery.start_soon(take, first, second)
            nursery.start_soon(take, second, first)

    assert find_violation(scenario, deviations=0) is None
    failure = find_violation(scenario)
    assert isinstance(failure.__cause__, Deadlock)
    assert str(failure).count(".take: ") == 2
    assert __file__ in str(failure)


def test_waiting_for_a_deadline_is_not_a_deadlock():
    async def scenario() -> bool:
        with trio.move_on_after(5) as scope:
            await trio.sleep_forever()
        return scope.cancelled_caught

    assert explore(scenario).outcomes == {True: 1}


def test_an_internal_error_of_trio_breaks_the_explorer():
    async def scenario() -> None:
        raise trio.TrioInternalError("as if Trio had failed")

    with pytest.raises(ExplorerBroken, match="Trio failed"):
        explore(scenario)
