"""However the tasks around MCP servers take turns, there is one of each, nobody is left waiting, and none stays."""

from functools import partial

import pytest
import trio
from attrs import frozen

from crush_trio.integrations.mcp.session import McpFailure
from crush_trio.testing.explore.explorer import explore
from tests.integrations.mcp_fakes import Desks, command, open_configured

NEW = command(args=("new",))


async def use(place, name="a"):
    """Return what came of using a server, if there is one of the name."""
    try:
        server = place.servers.server(name)
        answer = await server.use(lambda session: session.call("add", {}))
    except McpFailure as failure:
        return str(failure).partition(" ")[2]
    return answer.text


async def together(*tasks):
    """Return what each task came to, in order."""
    outcomes = {}

    async def keep(index, task):
        outcomes[index] = await task()

    async with trio.open_nursery() as nursery:
        for index, task in enumerate(tasks):
            nursery.start_soon(keep, index, task)
    return tuple(outcomes[index] for index in range(len(tasks)))


def gone(desks):
    return all(desk.open == 0 for desk in desks.desks.values())


async def change_beside_start():
    """A server is used and configured anew while it starts."""
    desks = Desks()
    async with open_configured(desks, a=command()) as place:

        async def change():
            await trio.lowlevel.checkpoint()
            place.configure(a=NEW)

        used, _ = await together(lambda: use(place), change)
        await trio.testing.wait_all_tasks_blocked()
        assert place.state("a") == "connected"
        assert desks.targets[-1].config.args == ("new",)
        assert len(place.tool_names()) == 4
    assert gone(desks)
    return used


async def removal_beside_use():
    """A server is taken away while it is used, and put back."""
    desks = Desks()
    async with open_configured(desks, a=command()) as place:
        await place.servers.settled()

        async def change():
            place.configure()
            await trio.lowlevel.checkpoint()
            place.configure(a=command())

        used, _ = await together(lambda: use(place), change)
        await trio.testing.wait_all_tasks_blocked()
        assert place.state("a") == "connected"
    assert gone(desks)
    return used


async def two_uses_of_a_dead_session():
    """Two find out beside each other that a server has hung up."""
    desks = Desks()
    async with open_configured(desks, a=command()) as place:
        await place.servers.settled()
        desks["a"].hang_up()
        outcomes = await together(lambda: use(place), lambda: use(place))
        assert outcomes == ("add did it", "add did it")
        assert place.state("a") == "connected"
        opened = desks["a"].log.count("open")
    assert gone(desks)
    return opened


async def hang_up_beside_use_and_refresh():
    """A server hangs up while somebody uses it and somebody else asks for its tools."""
    desks = Desks()
    async with open_configured(desks, a=command()) as place:
        await place.servers.settled()

        async def hang_up():
            await trio.lowlevel.checkpoint()
            desks["a"].hang_up()

        async def refresh():
            await place.servers.refresh_tools("a")

        used, _, _ = await together(lambda: use(place), hang_up, refresh)
        await trio.testing.wait_all_tasks_blocked()
        state = place.state("a")
        assert len(place.tool_names()) == 4, "they stay offered"
    assert gone(desks)
    return used, state


async def cancelled_use_of_a_failed_server(steps):
    """Whoever brought a server back goes away; another one waits for it, too."""
    desks = Desks()
    async with open_configured(desks, a=command()) as place:
        await place.servers.settled()
        desks["a"].hang_up()
        scope = trio.CancelScope()

        async def goes_away():
            with scope:
                return await use(place)
            return "went away"

        async def cancel():
            for _ in range(steps):
                await trio.lowlevel.checkpoint()
            scope.cancel()

        first, second, _ = await together(goes_away, lambda: use(place), cancel)
        assert second == "add did it"
    assert gone(desks)
    return first


async def closing_beside_start_and_use(steps):
    """The workspace closes while a server starts that somebody waits for."""
    desks = Desks()
    async with trio.open_nursery() as nursery:
        outcomes = []

        async def user(place):
            await trio.lowlevel.checkpoint()
            there = place.servers.states()
            outcomes.append(await use(place) if there else NOBODY)

        async with open_configured(desks, a=command(), b=command()) as place:
            nursery.start_soon(user, place)
            nursery.start_soon(place.servers.settled)
            for _ in range(steps):
                await trio.lowlevel.checkpoint()
        assert gone(desks)
    return outcomes[0]


@frozen
class Explored:
    scenario: object
    deviations: int
    outcomes: set


STOPPED, DONE, CLOSED = "was stopped", "add did it", "connection is closed"
NOBODY, UNKNOWN = "nobody", "server of this name is configured"

SCENARIOS = [
    Explored(change_beside_start, 2, {DONE, STOPPED}),
    Explored(removal_beside_use, 2, {DONE, STOPPED, UNKNOWN}),
    Explored(two_uses_of_a_dead_session, 2, {2}),
    Explored(
        hang_up_beside_use_and_refresh, 2, {(DONE, "connected"), (DONE, "error"), (CLOSED, "error")}
    ),
]


@pytest.mark.item("I.4")
@pytest.mark.parametrize("explored", SCENARIOS, ids=lambda each: each.scenario.__name__)
def test_every_schedule_leaves_the_servers_in_order(explored, report_exploration):
    found = explore(explored.scenario, deviations=explored.deviations)
    report_exploration(found)
    assert found.exhaustive
    assert set(found.outcomes) == explored.outcomes


@pytest.mark.item("I.4")
@pytest.mark.long
@pytest.mark.parametrize(
    ("scenario", "outcomes"),
    [
        (cancelled_use_of_a_failed_server, {DONE, "went away"}),
        (closing_beside_start_and_use, {DONE, STOPPED, NOBODY}),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_nobody_is_left_waiting_whenever_it_ends(scenario, outcomes, report_exploration):
    """The end comes after ever more steps, from the first on until all is over."""
    found = set()
    for steps in range(0, 36, 2):
        report = explore(partial(scenario, steps), deviations=1)
        report_exploration(report)
        found |= set(report.outcomes)
    assert found == outcomes
