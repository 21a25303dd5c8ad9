"""The scenarios of the clients, and the races between their requests, in every order of the tasks.

In every order means: with one deviation from the default, at whatever decision (see `explore`).
`test_e2e_scenarios.py` runs the same scenarios over a number of seeds.
"""

from functools import partial

import pytest
import trio

from crush_trio.testing.explore import explore
from crush_trio.testing.server.server import open_test_server
from tests.server.scenarios import SCENARIOS, A, ended_runs, ending_of, entity, set_the_table, turn

ORDERS = 100
"""Fewer orders than that, and an exploration has not seen the tasks of the server."""


@pytest.mark.long
@pytest.mark.parametrize(
    "scenario",
    [
        pytest.param(scenario, id=scenario.__name__, marks=pytest.mark.item(*items))
        for scenario, items in SCENARIOS.items()
    ],
)
def test_scenario_in_every_order(scenario, report_exploration):
    found = explore(partial(scenario, open_test_server), deviations=1)
    report_exploration(found)
    assert found.exhaustive
    assert found.schedules > ORDERS


# ── Races ───────────────────────────────────────────────────────────────────────────────────────


async def cancel_beside_submit():
    """Post a prompt and a cancel at once; return how the run ended."""
    async with open_test_server() as server:
        place, session = await set_the_table(server, A)
        with await place.watch(A) as a:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(place.submit, session, "hi", "r1")
                nursery.start_soon(place.cancel, session)
            ending = entity(await a.until(ending_of("r1")))
        state = "cancelled" if ending.get("cancelled") else "completed"
        (finish,) = [f for role, _, f in turn(await place.messages(session)) if role == "assistant"]
        assert finish == {"cancelled": "canceled", "completed": "end_turn"}[state]
        return state


async def hang_up_beside_submit():
    """Hang up on a prompt at any moment of its acceptance; return how many runs there are."""
    async with open_test_server() as server:
        place, session = await set_the_table(server, A)
        body = {"session_id": session, "run_id": "r1", "prompt": "hi"}
        with await place.watch(A) as a:
            post = place.driver.open("POST", f"{place.path}/agent", body)
            await trio.lowlevel.checkpoint()
            post.hang_up()
            await post.ended()
            assert (await place.submit(session, "hi", "r2")).status == 202
            await a.until(ending_of("r2"))
        runs = await server.stores.of().runs()
        assert all(run.state == "completed" for run in runs)
        assert ended_runs(a.seen) == {run.run_id for run in runs}
        return len(runs)


@pytest.mark.long
@pytest.mark.item("A9", "A14")
def test_a_cancel_beside_a_submit_either_hits_it_or_not_in_every_order(report_exploration):
    found = explore(cancel_beside_submit, deviations=1)
    report_exploration(found)
    assert set(found.outcomes) == {"cancelled", "completed"}


@pytest.mark.long
@pytest.mark.item("A4")
def test_hanging_up_leaves_either_a_whole_run_or_none_in_every_order(report_exploration):
    found = explore(hang_up_beside_submit, deviations=1)
    report_exploration(found)
    assert set(found.outcomes) == {1, 2}


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.item("A9", "A14")
async def test_a_cancel_beside_a_submit_leaves_a_complete_turn(seed):
    assert await cancel_beside_submit() in {"cancelled", "completed"}
