"""Schedule exploration: what it finds, what it says about it, and that it never fools itself."""

from collections import Counter
from contextlib import nullcontext
from functools import partial
from importlib import import_module

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from crush_trio.testing import ExplorerBroken, ScheduleFailure, find_violation, replay
from crush_trio.testing.explore import Random, cancel_everywhere, explore
from tests.testing.explore.lost_update import lost_update


async def channel_and_cancel() -> tuple[int, int]:
    """A consumer is cancelled some time while it receives; how many items were sent and received?"""
    sender, receiver = trio.open_memory_channel[int](0)
    scope = trio.CancelScope()
    sent = received = 0

    async def produce() -> None:
        nonlocal sent
        async with sender:
            for item in range(2):
                await sender.send(item)
                sent += 1

    async def consume() -> None:
        nonlocal received
        async with receiver:
            with scope:
                async for _ in receiver:
                    received += 1

    async def cancel() -> None:
        await trio.lowlevel.checkpoint()
        scope.cancel()

    try:
        async with trio.open_nursery() as nursery:
            for task in (produce, consume, cancel):
                nursery.start_soon(task)
    except* trio.BrokenResourceError:
        pass
    return sent, received


async def queue_drain_race() -> None:
    """A worker goes home a step after it found the queue empty; what is put there meanwhile is lost."""
    queue = []
    done = []
    working = False

    async def work() -> None:
        nonlocal working
        while queue:
            done.append(queue.pop(0))
            await trio.lowlevel.checkpoint()
        await trio.lowlevel.checkpoint()
        working = False

    async def submit(nursery: trio.Nursery, item: int) -> None:
        nonlocal working
        await trio.lowlevel.checkpoint()
        queue.append(item)
        if not working:
            working = True
            nursery.start_soon(work)

    async with trio.open_nursery() as nursery:
        for item in range(3):
            nursery.start_soon(submit, nursery, item)
    assert sorted(done) == [0, 1, 2]


@pytest.mark.explored
@pytest.mark.parametrize(
    ("scenario", "outcomes"),
    [
        (lost_update(2, 1), {1, 2}),
        (lost_update(3, 1), {1, 2, 3}),
        (lost_update(3, 2), {2, 3, 4, 5, 6}),
        (channel_and_cancel, {(0, 0), (1, 1), (2, 2)}),
    ],
    ids=["lost update 2x1", "lost update 3x1", "lost update 3x2", "channel and cancel"],
)
def test_two_deviations_find_every_outcome_that_there_is(scenario, outcomes):
    bounded = explore(scenario)
    everything = explore(scenario, deviations=None)
    assert set(bounded.outcomes) == set(everything.outcomes) == outcomes
    assert bounded.exhaustive
    assert everything.exhaustive
    assert bounded.schedules < everything.schedules
    assert sum(bounded.outcomes.values()) == bounded.schedules


def test_exploring_without_a_bound_runs_every_interleaving_once():
    # two tasks of two steps, and the main task is waiting: 4! / (2! * 2!) orders
    result = explore(lost_update(2, 1), deviations=None)
    assert result.schedules == 6
    assert result.outcomes == {1: 4, 2: 2}
    assert result.decision_points == 3


def test_no_deviations_means_one_schedule():
    result = explore(lost_update(3, 2), deviations=0)
    assert result.outcomes == {6: 1}
    assert str(result) == "1 schedule, exhaustive at 0 deviations, 1 outcome"


def test_the_summary_says_what_was_covered():
    scenario = lost_update(3, 2)
    assert str(explore(scenario)) == "58 schedules, exhaustive at 2 deviations, 5 outcomes"
    assert (
        str(explore(scenario, limit=7))
        == "7 schedules, stopped by the limit at 2 deviations, 2 outcomes"
    )
    assert str(explore(lost_update(2, 1), deviations=None)) == "6 schedules, exhaustive, 2 outcomes"


def test_a_limit_that_is_just_enough_is_exhaustive():
    assert explore(lost_update(2, 1), deviations=None, limit=6).exhaustive
    assert not explore(lost_update(2, 1), deviations=None, limit=5).exhaustive


@pytest.mark.parametrize("deviations", [0, 1, 2, None])
def test_the_parts_together_are_the_whole(deviations):
    scenario, count = lost_update(3, 1), 4
    whole = explore(scenario, deviations=deviations)
    parts = [explore(scenario, deviations=deviations, part=(n, count)) for n in range(count)]
    assert all(part.exhaustive for part in parts)
    outcomes = Counter()
    for part in parts:
        outcomes.update(part.outcomes)
    outcomes[3] -= count - 1  # the default schedule is in every part
    assert outcomes == whole.outcomes


@pytest.mark.parametrize("part", [(4, 4), (-1, 4), (0, 0)])
def test_a_part_that_there_is_not_is_refused(part):
    with pytest.raises(ValueError, match="not a part"):
        explore(lost_update(2, 1), part=part)


def test_a_scenario_of_one_task_has_one_schedule():
    async def scenario() -> None:
        await trio.sleep(3600)
        await wait_all_tasks_blocked()

    result = explore(scenario, deviations=None)
    assert (result.schedules, result.decision_points) == (1, 0)


def test_a_race_is_found_and_its_token_replays_it():
    with pytest.raises(ScheduleFailure) as caught:
        explore(queue_drain_race)
    failure = caught.value
    assert isinstance(failure.__cause__, AssertionError)
    assert f'replay(scenario, "{failure.token}")' in str(failure)
    assert f"number {failure.schedules} tried" in str(failure)
    for _ in range(3):
        with pytest.raises(AssertionError):
            replay(queue_drain_race, failure.token)


def test_schedules_with_fewer_deviations_come_first():
    scenario = lost_update(3, 2)
    two = explore(scenario, deviations=2)
    assert explore(scenario, deviations=3, limit=two.schedules).outcomes == two.outcomes


def test_the_first_failure_needs_as_few_deviations_as_possible():
    assert find_violation(queue_drain_race, deviations=1) is None
    failure = find_violation(queue_drain_race, deviations=4)
    assert failure is not None
    assert failure.token.count("-") == 2


def test_replaying_a_schedule_that_passes_returns_its_value():
    assert replay(lost_update(2, 1), "x1") == 2
    assert replay(lost_update(2, 1), "x1-1.1") == 1


def test_the_token_of_each_outcome_leads_back_to_it():
    tokens = {}

    def failing_when(wanted):
        async def scenario() -> None:
            assert await lost_update(3, 2)() != wanted

        return scenario

    for wanted in range(2, 7):
        tokens[wanted] = find_violation(failing_when(wanted)).token
    assert {replay(lost_update(3, 2), token) for token in tokens.values()} == set(tokens)


def test_an_exception_group_from_a_nursery_is_a_failure():
    async def scenario() -> None:
        async def fail() -> None:
            raise OSError("disk full")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail)

    failure = find_violation(scenario)
    assert isinstance(failure.__cause__, ExceptionGroup)
    with pytest.RaisesGroup(OSError):
        replay(scenario, failure.token)


def test_nothing_to_find_returns_none():
    assert find_violation(lost_update(2, 1)) is None


@pytest.mark.parametrize("token", ["x1-99.1", "x1-0.7"])
def test_a_token_of_another_scenario_is_refused(token):
    with pytest.raises(ExplorerBroken, match="does not fit"):
        replay(lost_update(2, 1), token)


def test_a_scenario_that_is_not_deterministic_breaks_the_explorer():
    runs = 0

    async def scenario() -> int:
        nonlocal runs
        runs += 1
        return await lost_update(2 + runs % 2, 1)()

    with pytest.raises(ExplorerBroken, match="2 tasks at decision 0, 3 in the run before"):
        explore(scenario)


def test_a_scenario_that_ends_before_its_prefix_breaks_the_explorer():
    runs = 0

    async def scenario() -> int:
        nonlocal runs
        runs += 1
        return await lost_update(2 if runs == 1 else 1, 1)()

    with pytest.raises(ExplorerBroken, match="does not fit"):
        explore(scenario)


def test_a_failure_on_the_way_to_a_deviation_is_no_schedule_failure():
    runs = 0

    async def scenario() -> None:
        nonlocal runs
        runs += 1
        assert runs == 1
        await lost_update(2, 1)()

    with pytest.raises(ExplorerBroken, match="does not fit") as caught:
        explore(scenario)
    assert isinstance(caught.value.__cause__, AssertionError)


def test_a_coroutine_is_no_scenario():
    for use in (explore, find_violation, cancel_everywhere, partial(replay, token="x1")):
        with pytest.raises(
            TypeError, match=r"a coroutine, not a function: .* `explore\(scenario\)`"
        ):
            use(lost_update(2, 1)())


def test_an_explorer_that_trio_ignores_does_not_claim_success(monkeypatch):
    # Not by a dotted name: the attribute `explore` of `crush_trio.testing` is the function.
    walk = import_module("crush_trio.testing.explore.walk")
    monkeypatch.setattr(walk, "controlled", lambda *_: nullcontext())
    with pytest.raises(ExplorerBroken, match="ignored the walk"):
        explore(lost_update(2, 1))


def test_what_is_no_ordinary_exception_passes_through_with_a_note():
    async def scenario() -> None:
        if await lost_update(2, 1)() == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        explore(scenario)
    assert caught.value.__notes__ == ["under schedule x1-1.1"]


def test_a_negative_bound_is_refused():
    with pytest.raises(ValueError, match="0 or more"):
        explore(lost_update(2, 1), deviations=-1)


def test_an_outcome_must_be_hashable():
    async def scenario() -> list[int]:
        return []

    with pytest.raises(TypeError, match=r"must be hashable, and this one is not: \[\]"):
        explore(scenario)


async def test_exploring_inside_trio_is_refused():
    with pytest.raises(RuntimeError, match="sync test"):
        explore(lost_update(2, 1))
    with pytest.raises(RuntimeError, match="sync test"):
        replay(lost_update(2, 1), "x1")


@settings(max_examples=10, deadline=None)
@given(tasks=st.integers(1, 3), times=st.integers(1, 2))
def test_it_works_inside_hypothesis(tasks, times):
    result = explore(lost_update(tasks, times), deviations=1)
    assert max(result.outcomes) == tasks * times
    assert min(result.outcomes) >= times


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"deviations": "3"}, "deviations must be a whole number"),
        ({"limit": -1}, "limit must be 0 or more"),
        ({"max_steps": 0}, "max_steps must be 1 or more"),
        ({"max_steps": None}, "limit and max_steps are whole numbers"),
        ({"limit": "5"}, "limit and max_steps are whole numbers"),
        ({"strategy": "random"}, "not a strategy: 'random'"),
        ({"strategy": Random}, "not a strategy: <class"),
    ],
)
def test_a_wrong_argument_is_told(wrong, told):
    with pytest.raises((TypeError, ValueError), match=told):
        explore(trio.lowlevel.checkpoint, **wrong)


def test_an_interrupt_that_hits_a_child_task_is_an_interrupt():
    async def child() -> None:
        raise KeyboardInterrupt

    async def scenario() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(child)

    with pytest.raises(KeyboardInterrupt):
        explore(scenario)
