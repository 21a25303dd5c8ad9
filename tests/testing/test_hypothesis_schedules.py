"""Schedules that Hypothesis chooses, and explorations inside of its tests."""

import sys
from functools import partial

import pytest
import trio
from hypothesis import HealthCheck, find, given, settings
from hypothesis import strategies as st

from crush_trio.testing import DrawnSchedule, replay, schedules
from crush_trio.testing.explore import explore

few = settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])


class Tank:
    def __init__(self) -> None:
        self.level = 0

    async def fill(self, amount: int) -> None:
        level = self.level
        await trio.lowlevel.checkpoint()
        self.level = level + amount


async def fill(amounts: list[int]) -> int:
    tank = Tank()
    async with trio.open_nursery() as nursery:
        for amount in amounts:
            nursery.start_soon(tank.fill, amount)
    assert tank.level == sum(amounts), "an amount is lost"
    return tank.level


def is_lost(drawn: tuple[DrawnSchedule, list[int]]) -> bool:
    schedule, amounts = drawn
    try:
        schedule.run(partial(fill, amounts))
    except AssertionError as exc:
        token = exc.__notes__[0].partition('"')[2].rstrip('")')
        with pytest.raises(AssertionError):
            replay(partial(fill, amounts), token)
        return True
    return False


@pytest.mark.heavy
def test_data_and_schedule_are_made_as_simple_as_they_can_be():
    amounts = st.lists(st.integers(0, 9), max_size=4)
    schedule, least = find(
        st.tuples(schedules(), amounts), is_lost, settings=settings(database=None, deadline=None)
    )
    assert sorted(least) in ([0, 1], [1, 1])
    assert len(schedule.deviations) == 1


@given(schedule=schedules(2), amounts=st.lists(st.integers(1, 9), max_size=1))
@few
def test_a_drawn_schedule_runs_any_scenario(schedule, amounts):
    assert schedule.run(partial(fill, amounts)) == sum(amounts)


@given(amounts=st.lists(st.integers(1, 9), max_size=1))
@few
def test_every_example_can_be_explored(amounts):
    assert explore(partial(fill, amounts)).outcomes.keys() == {sum(amounts)}


def test_no_deviations_are_the_usual_order():
    assert find(schedules(0), lambda _: True).run(partial(fill, [1, 2])) == 3


def test_missing_hypothesis_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    with pytest.raises(ImportError, match="pip install hypothesis"):
        schedules()
