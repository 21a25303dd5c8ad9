"""However the tasks around a language server take turns, it has one life, nobody is left waiting, and none stays."""

from functools import partial

import pytest
import trio

from crush_trio.integrations.lsp.connection import LspFailure
from crush_trio.testing.explore.explorer import explore
from crush_trio.wire.integrations import LspState
from tests.integrations.lsp_bench import open_server

pytestmark = pytest.mark.item("I.4", "T13")


async def use(server):
    """Return what came of queries a server something."""
    try:
        session = await server.get_ready()
        await session.request("shutdown", None)
    except LspFailure as failure:
        return type(failure).__name__
    return "answered"


async def together(*tasks):
    """Return what each task came to, in order."""
    outcomes = {}

    async def keep(index, task):
        outcomes[index] = await task()

    async with trio.open_nursery() as nursery:
        for index, task in enumerate(tasks):
            nursery.start_soon(keep, index, task)
    return tuple(outcomes[index] for index in range(len(tasks)))


async def stop_beside_start(steps):
    """A client stops a server that somebody needs, after so many steps."""
    async with open_server() as (server, host):

        async def stop():
            for _ in range(steps):
                await trio.lowlevel.checkpoint()
            life = server.stop()
            if life is not None:
                await life.ended.wait()

        used, _ = await together(partial(use, server), stop)
        assert (server.state, host.programs.running) == (LspState.STOPPED, 0)
    return used


async def stop_and_start_beside_use():
    """It is stopped and started again; there is never more than one that counts."""
    async with open_server() as (server, host):
        await server.get_ready()

        async def again():
            server.stop()
            await trio.lowlevel.checkpoint()
            server.ensure_started(asked=True)

        used, _ = await together(partial(use, server), again)
        await server.get_ready()
        assert server.state is LspState.READY
        await host.programs.news.until(lambda: host.programs.running == 1)
    assert host.programs.running == 0
    return used


async def crash_beside_use():
    """It ends by itself while it is asked something."""
    async with open_server() as (server, host):
        await server.get_ready()
        toy = host.programs.toy

        async def crash():
            await trio.lowlevel.checkpoint()
            toy.handle = lambda _: setattr(toy, "ended", True) or []
            server.session.connection.notify("the last straw")

        used, _ = await together(partial(use, server), crash)
        await host.programs.news.until(lambda: server.state is LspState.ERROR)
        assert host.programs.running == 0
    return used


async def two_restarts():
    """Two models restart it beside each other."""
    async with open_server() as (server, host):
        await together(server.restart, server.restart)
        assert server.state is LspState.READY
        assert host.programs.running == 1
    assert host.programs.running == 0
    return len(host.programs.toys)


async def closing_beside_a_restart(steps):
    """The workspace closes while a model restarts a server, after so many steps."""
    async with open_server() as (server, host):
        await server.get_ready()

        async def close():
            for _ in range(steps):
                await trio.lowlevel.checkpoint()
            server.close()

        await together(server.restart, close)
        assert server.state is LspState.DISABLED
    assert host.programs.running == 0
    return len(host.programs.toys)


DONE, LOST, OFF = "answered", "ConnectionLost", "ServerUnavailable"


@pytest.mark.parametrize(
    ("scenario", "outcomes"),
    [
        (stop_and_start_beside_use, {DONE, OFF}),
        (crash_beside_use, {DONE, LOST}),
        (two_restarts, {1, 2}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_every_schedule_leaves_one_server_or_none(scenario, outcomes, report_exploration):
    found = explore(scenario, deviations=1)
    report_exploration(found)
    assert found.exhaustive
    assert set(found.outcomes) == outcomes


@pytest.mark.parametrize(
    ("scenario", "outcomes"),
    [(stop_beside_start, {DONE, OFF}), (closing_beside_a_restart, {1, 2})],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_nobody_is_left_waiting_whenever_the_end_comes(scenario, outcomes, report_exploration):
    """The end comes after ever more steps, from the first on until all is over."""
    found = set()
    for steps in (0, 30, 66, 180):
        report = explore(partial(scenario, steps), deviations=1)
        report_exploration(report)
        found |= set(report.outcomes)
    assert found == outcomes
