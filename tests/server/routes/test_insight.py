"""The routes that tell what runs did and used."""

import trio
from trio.testing import wait_all_tasks_blocked

from crush_trio.testing import Gate
from crush_trio.testing.server.server import WrittenTurns, client_id, open_test_server
from crush_trio.testing.server.turns import Pause, Say, Sleep

A = client_id(1)
EPOCH = 1_767_225_600


async def get(place, target):
    answer = await place.request("GET", target)
    assert answer.status == 200, answer
    return answer.json()


async def test_the_timeline_of_a_run_is_live_while_it_lasts():
    gate = Gate()
    turns = WrittenTurns({"one": [Sleep(1.5), Pause(gate)], "two": [Say("done")]})
    async with open_test_server(turns) as server:
        place = await server.create(A)
        session = await place.create_session()
        await place.submit(session, "one", "r1")
        await place.submit(session, "two", "r2")
        await gate.reached()
        waiting = await get(place, "/runs/r2/timeline")
        assert [span["kind"] for span in waiting["spans"]] == ["accepted", "queued"]
        assert waiting["spans"][1] == {
            "kind": "queued",
            "name": "",
            "begin": EPOCH,
            "end": None,
            "detail": "",
        }
        assert (waiting["run"]["state"], waiting["coarse"]) == ("queued", False)
        gate.open()
        await wait_all_tasks_blocked()
        ended = await get(place, "/runs/r2/timeline")
        assert ended["spans"][1]["end"] == EPOCH + 1.5
        assert ended["spans"][-1]["kind"] == "ending"
        unknown = await place.request("GET", "/runs/nobody/timeline")
        assert (unknown.status, unknown.json()["code"]) == (404, "run_not_found")


async def test_the_timeline_of_a_run_before_a_restart_is_coarse():
    turns = WrittenTurns({"one": [Say("so"), Sleep(3.5)], "two": [Say("done"), Sleep(2)]})
    async with open_test_server(turns) as server:
        place = await server.create(A)
        session = await place.create_session()
        await place.submit(session, "one", "r1")
        await place.submit(session, "two", "r2")
        await trio.sleep(6)
        run = await get(place, "/runs/r2")
        await place.request("DELETE", f"?client_id={A}")
        await wait_all_tasks_blocked()
        place = await server.create(A)
        told = await get(place, "/runs/r2/timeline")
        assert told["coarse"]
        assert told["run"] == run
        assert [(s["kind"], s["begin"], s["end"]) for s in told["spans"]] == [
            ("queued", EPOCH, EPOCH + 3),
            ("model", EPOCH + 3, EPOCH + 5),
        ]
