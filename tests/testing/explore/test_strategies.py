"""Strategies: what each runs, that each replays, and what each finds that another misses."""

from itertools import pairwise

import pytest
import trio

from crush_trio.testing import find_violation, replay
from crush_trio.testing.explore import PCT, HoldBack, Random, explore
from tests.testing.explore.lost_update import lost_update


async def overtaken() -> None:
    """A slow task must be overtaken by all of a long one: unlikely if each step is left to chance."""
    steps = 0
    finished = False

    async def long() -> None:
        nonlocal finished, steps
        for _ in range(30):
            await trio.lowlevel.checkpoint()
            steps += 1
        finished = True

    async def short() -> None:
        await trio.lowlevel.checkpoint()
        assert not finished

    async with trio.open_nursery() as nursery:
        nursery.start_soon(short)
        nursery.start_soon(long)


async def many_turns() -> None:
    """Fails when two tasks take turns ten times: many deviations, and likely at random."""
    order = []

    async def work(name: str) -> None:
        for _ in range(9):
            await trio.lowlevel.checkpoint()
            order.append(name)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(work, "a")
        nursery.start_soon(work, "b")
    assert sum(one != other for one, other in pairwise(order)) < 10


SAMPLED = [Random(60, seed=3), PCT(60, depth=2, seed=3)]


@pytest.mark.parametrize("strategy", SAMPLED, ids=["random", "pct"])
def test_a_sample_is_the_same_each_time_and_says_that_it_is_one(strategy):
    first, second = (explore(lost_update(3, 2), strategy=strategy) for _ in range(2))
    assert first.outcomes == second.outcomes
    assert (first.schedules, first.exhaustive, first.strategy) == (60, False, strategy)
    assert f"60 schedules, sampled{strategy.bound}, " in str(first)


@pytest.mark.parametrize("strategy", SAMPLED, ids=["random", "pct"])
def test_another_seed_is_another_sample(strategy):
    kind = type(strategy)
    samples = [explore(lost_update(3, 2), strategy=kind(20, seed=seed)) for seed in range(3)]
    assert len({tuple(sorted(sample.outcomes.items())) for sample in samples}) > 1


@pytest.mark.parametrize(
    "strategy", [HoldBack(2), Random(seed=1), PCT(seed=1)], ids=["hold back", "random", "pct"]
)
def test_the_token_of_every_strategy_replays_the_failure(strategy):
    async def scenario() -> None:
        assert await lost_update(3, 2)() != 2

    failure = find_violation(scenario, strategy=strategy)
    for _ in range(2):
        with pytest.raises(AssertionError):
            replay(scenario, failure.token)
    assert replay(lost_update(3, 2), failure.token) == 2


@pytest.mark.parametrize("strategy", SAMPLED, ids=["random", "pct"])
def test_parts_of_a_sample_are_the_sample(strategy):
    whole = explore(lost_update(3, 2), strategy=strategy)
    parts = [explore(lost_update(3, 2), strategy=strategy, part=(n, 3)) for n in range(3)]
    defaults = 2 if isinstance(strategy, PCT) else 0  # its default schedule is in every part
    assert sum(part.schedules for part in parts) == whole.schedules + defaults


def test_pct_finds_an_overtaking_that_random_choices_miss():
    assert find_violation(overtaken, strategy=PCT(20, depth=1)) is not None
    assert find_violation(overtaken, strategy=Random(200)) is None


def test_random_choices_find_many_turns_that_few_deviations_miss():
    assert find_violation(many_turns, strategy=Random(20)) is not None
    assert find_violation(many_turns, strategy=HoldBack(2)) is None


def test_priorities_do_not_starve_the_task_that_another_polls_for():
    async def scenario() -> None:
        done = False

        async def work() -> None:
            nonlocal done
            await trio.lowlevel.checkpoint()
            done = True

        async with trio.open_nursery() as nursery:
            nursery.start_soon(work)
            while not done:
                await trio.lowlevel.checkpoint()

    assert explore(scenario, strategy=PCT(50), max_steps=500).schedules == 50


def test_fewest_deviations_first_makes_a_limit_an_increasing_bound():
    two = explore(lost_update(3, 2), strategy=HoldBack(2))
    deeper = explore(lost_update(3, 2), strategy=HoldBack(9), limit=two.schedules)
    assert deeper.outcomes == two.outcomes
    assert str(deeper) == "58 schedules, stopped by the limit at 9 deviations, 5 outcomes"


def test_schedules_per_second_are_shown_where_asked():
    result = explore(lost_update(2, 1))
    assert result.rate > 0
    assert result.summary(rate=True) == f"{result}, {result.rate:.0f} schedules/s"


def test_deviations_beside_a_strategy_are_refused():
    with pytest.raises(ValueError, match="not both"):
        explore(lost_update(2, 1), deviations=3, strategy=HoldBack(2))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: HoldBack(-1), "0 or more"),
        (lambda: Random(0), "schedules must be 1 or more"),
        (lambda: PCT(depth=0), "depth must be 1 or more"),
    ],
)
def test_a_strategy_without_schedules_is_refused(make, text):
    with pytest.raises(ValueError, match=text):
        make()
