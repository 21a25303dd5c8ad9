"""Clients and runs, end to end in memory, under several task orders.

The scenarios themselves are in `scenarios.py`; they run over real sockets, and in every task order,
elsewhere.
"""

import pytest
import trio
import trio.testing

from crush_trio.store.changes import RunAccepted
from crush_trio.testing import Gate
from crush_trio.testing.server.faulty_store import StoreFault
from crush_trio.testing.server.server import WrittenTurns, open_test_server
from crush_trio.testing.server.turns import Pause, Say
from tests.server.scenarios import SCENARIOS, A, B, ending_of, entity, set_the_table, turn

STUCK = StoreFault(of=(RunAccepted,))
"""The acceptance of a run does not get stored until the store is healed."""


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "scenario",
    [
        pytest.param(scenario, id=scenario.__name__, marks=pytest.mark.item(*items))
        for scenario, items in SCENARIOS.items()
    ],
)
async def test_scenario(scenario, seed):
    await scenario(open_test_server)


# ── The window between accepting and running ────────────────────────────────────────────────────


@pytest.mark.item("A9", "A21")
async def test_a_cancel_that_lands_while_the_acceptance_is_being_stored_is_not_lost():
    turns = WrittenTurns()
    async with open_test_server(turns, faults=[STUCK]) as server:
        place, session = await set_the_table(server, A)
        body = {"session_id": session, "run_id": "r1", "prompt": "hi"}
        with await place.watch(A) as a:
            with place.driver.open("POST", f"{place.path}/agent", body) as post:
                await trio.testing.wait_all_tasks_blocked()
                assert post.status == 0
                assert (await place.cancel(session)).status == 200
                server.stores.of().heal()
                assert await post.head() == 202
            assert entity(await a.until(ending_of("r1")))["cancelled"] is True
        assert turns.started == []
        expected = [("user", "hi", "stop"), ("assistant", "", "canceled")]
        assert turn(await place.messages(session)) == expected


@pytest.mark.item("A4")
async def test_a_client_that_hangs_up_while_its_prompt_is_being_stored_takes_nothing_back():
    async with open_test_server(faults=[STUCK]) as server:
        place, session = await set_the_table(server, A, B)
        body = {"session_id": session, "run_id": "r1", "prompt": "hi"}
        with await place.watch(B) as b:
            with place.driver.open("POST", f"{place.path}/agent", body) as post:
                await trio.testing.wait_all_tasks_blocked()
            await post.ended()
            server.stores.of().heal()
            assert entity(await b.until(ending_of("r1")))["text"] == "done"


@pytest.mark.item("A3")
async def test_a_prompt_whose_body_never_arrives_is_no_run():
    turns = WrittenTurns()
    async with open_test_server(turns) as server:
        place, session = await set_the_table(server, A)
        half = b'{"session_id": "'
        with place.driver.open("POST", f"{place.path}/agent", half, complete=False) as post:
            await trio.testing.wait_all_tasks_blocked()
        await post.ended()
        assert await server.stores.of().runs() == []
        assert (await place.submit(session, "hi")).status == 202


# ── How long a client is waited for ─────────────────────────────────────────────────────────────


@pytest.mark.item("E10", "E11", "E12")
async def test_a_workspace_outlives_its_last_stream_by_the_detach_grace_and_its_runs_end_with_it():
    gate = Gate("working")
    async with open_test_server(WrittenTurns({"work": [Say("half"), Pause(gate)]})) as server:
        place, session = await set_the_table(server, A)
        with await place.watch(A):
            await place.submit(session, "work", "r1")
            await gate.reached()
        await trio.sleep(9.5)
        assert (await place.request("GET")).status == 200
        await trio.sleep(1)
        assert (await place.request("GET")).status == 404
        again = await server.create(A)
        assert again.id == place.id
        expected = [("user", "work", "stop"), ("assistant", "half", "canceled")]
        assert turn(await again.messages(session)) == expected


@pytest.mark.item("E24", "G12")
async def test_streams_end_cleanly_when_their_workspace_closes():
    async with open_test_server() as server:
        place, _ = await set_the_table(server, A)
        with await place.watch(B) as b, await place.watch(A):
            for client in (A, B):
                await server.request("DELETE", f"/v1/clients/{client}")
            await b.rest()
            await b.exchange.ended()
        lost = place.driver.open("GET", f"{place.path}/events?client_id={A}")
        with lost:
            assert await lost.head() == 404


@pytest.mark.item("B18")
async def test_a_turn_that_fails_is_an_error_event_and_the_server_goes_on():
    async def fail(_run):
        raise RuntimeError("the model is gone")

    def broken(_transcript):
        return fail

    async with open_test_server(broken) as server:
        place, session = await set_the_table(server, A)
        with await place.watch(A) as a:
            assert (await place.submit(session, "hi", "r1")).status == 202
            ending = entity(await a.until(ending_of("r1")))
            assert "the model is gone" in ending["error"]
            assert "cancelled" not in ending
            assert (await place.submit(session, "hi", "r2")).status == 202
            await a.until(ending_of("r2"))
