"""The decision to end: when it is taken, and that it stays taken."""

from contextlib import asynccontextmanager
from math import inf

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from crush_trio.backend.backend import open_backend
from crush_trio.backend.claims import Linger
from crush_trio.backend.settings import BackendSettings
from crush_trio.clock import TrioClock
from crush_trio.testing.explore import explore

pytestmark = pytest.mark.item("E19", "E20")


@asynccontextmanager
async def watched(seconds):
    linger = Linger(seconds, TrioClock())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(linger.watch)
        await wait_all_tasks_blocked()
        yield linger
        nursery.cancel_scope.cancel()


async def test_it_is_decided_when_the_time_is_over_and_not_before():
    async with watched(60.0) as linger:
        linger.begin()
        await trio.sleep(59.9)
        assert not linger.over
        await linger.decided.wait()
        assert trio.current_time() == pytest.approx(60.0)


async def test_work_puts_it_off_and_the_next_wait_is_a_full_one():
    async with watched(60.0) as linger:
        linger.begin()
        await trio.sleep(50.0)
        linger.interrupt()
        await trio.sleep(1000.0)
        assert not linger.over
        linger.begin()
        await linger.decided.wait()
        assert trio.current_time() == pytest.approx(1110.0)


def test_work_in_the_last_moment_counts_although_the_alarm_has_rung():
    async def interrupt_in_the_last_moment():
        async with watched(60.0) as linger:
            linger.begin()
            await trio.sleep_until(60.0)
            in_time = not linger.over
            linger.interrupt()
            await trio.sleep(1000.0)
            assert linger.over is not in_time
        return in_time

    exploration = explore(interrupt_in_the_last_moment)
    assert exploration.exhaustive
    assert exploration.outcomes.keys() == {True, False}


async def test_without_a_linger_it_is_decided_at_once():
    async with watched(0.0) as linger:
        linger.begin()
        assert linger.over


async def test_an_endless_linger_never_ends():
    async with watched(inf) as linger:
        linger.begin()
        await trio.sleep(80_000.0)
        assert not linger.over


async def test_once_decided_nothing_takes_it_back():
    async with watched(60.0) as linger:
        linger.decide()
        linger.interrupt()
        linger.decide()
        assert linger.over


async def test_the_watch_ends_with_the_decision():
    linger = Linger(60.0, TrioClock())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(linger.watch)
        await wait_all_tasks_blocked()
        linger.decide()
    assert trio.current_time() == pytest.approx(0.0)


@pytest.mark.parametrize(("from_start", "over"), [(True, True), (False, False)])
async def test_a_server_that_a_command_started_ends_also_if_no_client_ever_comes(from_start, over):
    settings = BackendSettings(idle_from_start=from_start)
    async with open_backend(None, settings=settings, clock=TrioClock()) as backend:
        await trio.sleep(60.1)
        assert backend.shutting_down is over
