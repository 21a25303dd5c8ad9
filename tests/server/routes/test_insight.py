"""The routes that tell what runs did and used."""

import trio
from trio.testing import wait_all_tasks_blocked

from crush_trio.providers.base import Finished, Usage
from crush_trio.store.changes import UsageAdded
from crush_trio.testing import Gate
from crush_trio.testing.model.provider import ScriptedProvider
from crush_trio.testing.model.script import CallTool, by_text
from crush_trio.testing.server.agent import open_test_agent
from crush_trio.testing.server.server import WrittenTurns, client_id, open_test_server
from crush_trio.testing.server.turns import Pause, Say, Sleep
from crush_trio.wire.messages import FinishReason

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


# ── What was used ───────────────────────────────────────────────────────────────────────────────


async def test_usage_is_told_by_day_over_all_workspaces():
    async with open_test_server(WrittenTurns({})) as server:
        empty = await server.request("GET", "/v1/usage?days=2")
        assert [day["runs"] for day in empty.json()] == [0, 0]
        for path in ("/srv/a", "/srv/b"):
            place = await server.create(A, path)
            session = await place.create_session()
            await place.submit(session, "hello", "r1")
            await wait_all_tasks_blocked()
            spent = {"spent_prompt_tokens": 100, "spent_completion_tokens": 7, "cost": 0.5}
            store = server.server.workspace(place.id).store
            await store.commit(UsageAdded(id=session, at=EPOCH - 1, **spent))
        answer = await server.request("GET", "/v1/usage?days=3")
        nothing = {"runs": 0, "tokens_in": 0, "tokens_out": 0, "cost": 0}
        assert answer.json() == [
            {"day": "2025-12-30", **nothing},
            {"day": "2025-12-31", "runs": 0, "tokens_in": 200, "tokens_out": 14, "cost": 1},
            {"day": "2026-01-01", **nothing, "runs": 2},
        ]
        assert len((await server.request("GET", "/v1/usage")).json()) == 30
        for wrong in ("0", "367", "x"):
            refused = await server.request("GET", f"/v1/usage?days={wrong}")
            assert (refused.status, refused.json()["code"]) == (400, "bad_request")


async def test_the_cost_of_a_task_is_counted_once():
    ask = CallTool("agent", {"prompt": "find it"}, id="c1")
    found = [
        Say("here"),
        Finished(reason=FinishReason.END_TURN, usage=Usage(output_tokens=2, cost=0.5)),
    ]
    model = ScriptedProvider(by_text({"go": [[ask], [Say("done")]], "find it": [found]}))
    async with open_test_agent(model) as bench:
        await bench.accept("go").wait()
        assert (await bench.session()).cost == 0.5
        [day] = await bench.store.usage(0)
    assert (day.runs, day.tokens_out, day.cost) == (1, 2, 0.5)
