"""The client and the server together, in every order of their tasks.

In every order means: with one deviation from the default, at whatever decision (see `explore`).
"""

import pytest
import trio

from crush_trio.testing.explore import explore
from crush_trio.testing.server.server import WrittenTurns
from crush_trio.testing.server.turns import Say
from tests.client.acting import told, without_states
from tests.client.places import open_place

pytestmark = pytest.mark.long

TURNS = {"hello": [Say("Hel"), Say("lo")]}
TOLD = ["text:Hello", "finish:end_turn", "ended:completed:Hello"]


async def followed(handle, pieces):
    async with handle.stream() as stream:
        async for piece in stream:
            pieces.append(piece)


async def a_run_is_followed_while_the_connection_is_cut():
    """Whenever the cut comes, the run is told from its beginning to its end, and once."""
    async with open_place(WrittenTurns(TURNS)) as place:
        handle = await place.submit("hello")
        pieces = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(followed, handle, pieces)
            await trio.lowlevel.checkpoint()
            place.network.cut()
        assert without_states(told(pieces)) == TOLD


async def a_run_is_followed_by_one_who_has_lost_its_place():
    async with open_place(WrittenTurns(TURNS)) as place:
        handle = await place.submit("hello")
        pieces = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(followed, handle, pieces)
            await trio.lowlevel.checkpoint()
            place.workspace._calls.keeper.picture.mislay()
            place.network.cut()
        assert without_states(told(pieces)) == TOLD


async def a_run_is_cancelled_beside_its_wait():
    """Either the cancel hits it or it has completed; whoever waits hears the same as the receipt."""
    async with open_place(WrittenTurns(TURNS)) as place:
        handle = await place.submit("hello")
        receipts, runs = [], []

        async def cancel():
            receipts.append(await handle.cancel())

        async def wait():
            runs.append(await handle.wait())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(cancel)
            nursery.start_soon(wait)
        [receipt], [run] = receipts, runs
        assert receipt.complete
        assert [hit.ended for hit in receipt.hits] in ([], [run.state])


async def the_workspace_is_left_while_a_run_is_followed():
    pieces = []
    async with trio.open_nursery() as nursery:
        async with open_place(WrittenTurns(TURNS)) as place:
            nursery.start_soon(followed, await place.submit("hello"), pieces)
            await trio.lowlevel.checkpoint()
    assert place.network._open == set()


@pytest.mark.parametrize(
    "scenario",
    [
        a_run_is_followed_while_the_connection_is_cut,
        a_run_is_followed_by_one_who_has_lost_its_place,
        a_run_is_cancelled_beside_its_wait,
        the_workspace_is_left_while_a_run_is_followed,
    ],
    ids=lambda scenario: scenario.__name__,
)
def test_scenario_in_every_order(scenario, report_exploration):
    found = explore(scenario, deviations=1)
    report_exploration(found)
    assert found.exhaustive
    assert found.schedules > 50
