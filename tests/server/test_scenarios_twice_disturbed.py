"""The two tightest scenarios once more, in every order that two deviations from the default make.

Two deviations make thousands of orders. So the table is set in one order only: what clients do
before the scenario begins is the same for all of them. `test_scenarios_in_every_order.py` has the
same scenarios with one deviation, there included.
"""

from contextlib import asynccontextmanager
from functools import partial

import pytest

from crush_trio.testing.explore import explore
from crush_trio.testing.explore.schedule import controlled
from crush_trio.testing.server.server import Served, ServedWorkspace, open_test_server
from tests.server.scenarios import cancelled_right_after_the_answer, hung_up_during_the_post

PARTS = 8
ORDERS = 250
"""Fewer orders than that, and a part has not seen what two deviations can do."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.parametrize("part", range(PARTS)),
]


def in_one_order():
    """Let nothing be decided in this block: tasks take their steps first come, first served."""
    return controlled(lambda runnable: runnable[:1])


class LaidServer(Served):
    async def create(self, client):
        with in_one_order():
            place = await Served.create(self, client)
        return LaidWorkspace(place.driver, place.id, place.view)


class LaidWorkspace(ServedWorkspace):
    async def create_session(self):
        with in_one_order():
            return await ServedWorkspace.create_session(self)


@asynccontextmanager
async def open_laid_server(turns):
    async with open_test_server(turns) as server:
        yield LaidServer(server.backend, server.server, server.driver, server.stores)


@pytest.mark.item("A9", "A21")
def test_a_cancel_right_after_the_answer_is_not_lost_in_any_order(part, report_exploration):
    scenario = partial(cancelled_right_after_the_answer, open_laid_server)
    found = explore(scenario, deviations=2, part=(part, PARTS))
    report_exploration(found)
    assert found.exhaustive
    assert found.schedules > ORDERS


@pytest.mark.item("A3", "A4")
def test_hanging_up_during_the_post_takes_nothing_back_in_any_order(part, report_exploration):
    scenario = partial(hung_up_during_the_post, open_laid_server)
    found = explore(scenario, deviations=2, part=(part, PARTS))
    report_exploration(found)
    assert found.exhaustive
    assert found.schedules > ORDERS
