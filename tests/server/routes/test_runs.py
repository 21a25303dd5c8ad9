"""The routes that the Go program does not have, over the whole server in memory."""

from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from crush_trio.backend.backend import open_backend
from crush_trio.backend.open import open_hosted_workspace
from crush_trio.backend.settings import BackendSettings, WorkspaceSettings
from crush_trio.backend.workspace import keeps_open
from crush_trio.clock import CountingIds, TrioClock
from crush_trio.server.app import create_app
from crush_trio.server.server import Server
from crush_trio.testing import Gate
from crush_trio.testing.server.asgi import AsgiDriver
from crush_trio.testing.server.config import no_commands, open_fixed_config
from crush_trio.testing.server.server import (
    MemoryStores,
    Served,
    WrittenTurns,
    client_id,
    open_test_server,
)
from crush_trio.testing.server.turns import Do, Fold, Pause, Say
from crush_trio.wire.ids import WorkspaceId

A = client_id(1)


@asynccontextmanager
async def busy(*more, **scripts):
    """Open a server whose workspace has one run, "one", standing at a gate."""
    gate = Gate()
    async with open_test_server(
        WrittenTurns({"one": [Say("so"), Pause(gate)], **scripts})
    ) as server:
        place = await server.create(A)
        session = await place.create_session()
        assert (await place.submit(session, "one", "r1")).status == 202
        await gate.reached()
        for text in more:
            assert (await place.submit(session, text, text)).status == 202
            await wait_all_tasks_blocked()
        yield place, session, gate


async def send(place, session, text, **more):
    body = {"session_id": session, "prompt": text, **more}
    return await place.request("POST", "/agent", body)


async def get(place, target):
    answer = await place.request("GET", target)
    assert answer.status == 200, answer
    return answer.json()


async def queue(place, session):
    items = await get(place, f"/agent/sessions/{session}/queue")
    return [item["prompt"] for item in items]


def refused(answer, status, code):
    assert (answer.status, answer.json()["code"]) == (status, code)


# ── Runs ────────────────────────────────────────────────────────────────────────────────────────


async def test_runs_are_listed_newest_first_and_found_by_either_id():
    async with busy("two") as (place, session, gate):
        other = await place.create_session()
        await send(place, other, "elsewhere", run_id="r3")
        await wait_all_tasks_blocked()
        listed = await get(place, "/runs")
        assert {run["run_id"]: run["state"] for run in listed} == {
            "r1": "active",
            "two": "queued",
            "r3": "completed",
        }
        assert [r["run_id"] for r in await get(place, f"/runs?session_id={session}")] == [
            "two",
            "r1",
        ]
        assert len(await get(place, "/runs?limit=2")) == 2
        for run in listed:
            assert await get(place, f"/runs/{run['id']}") == run
            assert await get(place, f"/runs/{run['run_id']}") == run
        gate.open()


@pytest.mark.parametrize("limit", ["0", "x", "-1", "1001", "", "9" * 30, "²"])
async def test_a_limit_that_is_none_is_refused(limit):
    async with open_test_server() as server:
        place = await server.create(A)
        refused(await place.request("GET", f"/runs?limit={limit}"), 400, "bad_request")


async def test_a_run_of_before_a_restart_is_still_found_and_has_nothing_to_cancel():
    async with open_test_server() as server:
        place = await server.create(A)
        session = await place.create_session()
        await send(place, session, "hello", run_id="r1")
        await wait_all_tasks_blocked()
        before = await get(place, "/runs/r1")
        await place.request("DELETE", f"?client_id={A}")
        await wait_all_tasks_blocked()
        place = await server.create(A)
        assert await get(place, "/runs/r1") == before
        answer = await place.request("POST", "/runs/r1/cancel?receipt=1")
        assert answer.json() == {"complete": True, "hits": []}
        again = await send(place, session, "hello", run_id="r1")
        assert (again.status, again.json()) == (
            200,
            {"id": before["id"], "run_id": "r1", "repeated": True},
        )
        refused(await send(place, session, "other", run_id="r1"), 409, "run_id_taken")


async def test_after_a_restart_a_repetition_does_not_interrupt_anybody():
    gate = Gate()
    async with open_test_server(WrittenTurns({"one": [Pause(gate)]})) as server:
        place = await server.create(A)
        session = await place.create_session()
        await send(place, session, "now", run_id="r1", when_busy="interrupt")
        await wait_all_tasks_blocked()
        await place.request("DELETE", f"?client_id={A}")
        await wait_all_tasks_blocked()
        place = await server.create(A)
        await send(place, session, "one", run_id="r2")
        await gate.reached()
        for policy in ("interrupt", "reject", "enqueue", "steer"):
            again = await send(place, session, "now", run_id="r1", when_busy=policy)
            assert again.json()["repeated"]
        assert (await get(place, "/runs/r2"))["state"] == "active"


async def test_an_unknown_run_is_404_everywhere():
    async with open_test_server() as server:
        place = await server.create(A)
        session = await place.create_session()
        line = f"/agent/sessions/{session}/queue/nobody"
        for method, target in [
            ("GET", "/runs/nobody"),
            ("POST", "/runs/nobody/cancel"),
            ("DELETE", line),
            ("PATCH", line),
        ]:
            refused(await place.request(method, target, {}), 404, "run_not_found")


# ── Cancelling ──────────────────────────────────────────────────────────────────────────────────


async def test_one_run_can_be_cancelled_and_the_receipt_says_how_it_ended():
    async with busy("two") as (place, _, _):
        answer = await place.request("POST", "/runs/r1/cancel?receipt=1")
        receipt = answer.json()
        [hit] = receipt["hits"]
        assert receipt["complete"]
        assert (hit["run_id"], hit["state"], hit["ended"]) == ("r1", "active", "cancelled")
        assert hit["error"] == "run cancelled"
        assert hit["seconds"] >= 0
        await wait_all_tasks_blocked()
        assert (await get(place, "/runs/two"))["state"] == "completed"
        answer = await place.request("POST", "/runs/two/cancel?receipt=1")
        assert answer.json() == {"complete": True, "hits": []}


async def test_a_receipt_can_be_had_at_once():
    async with busy("two") as (place, session, _):
        target = f"/agent/sessions/{session}/cancel"
        receipt = (await place.request("POST", f"{target}?receipt=False")).json()
        assert not receipt["complete"]
        assert [(hit["run_id"], hit.get("ended")) for hit in receipt["hits"]] == [
            ("r1", None),
            ("two", None),
        ]


async def test_a_session_is_cancelled_with_a_receipt_or_without():
    async with busy("two") as (place, session, _):
        target = f"/agent/sessions/{session}/cancel"
        refused(await place.request("POST", f"{target}?receipt=maybe"), 400, "bad_request")
        receipt = (await place.request("POST", f"{target}?receipt=1")).json()
        assert [(h["run_id"], h["state"], h["ended"]) for h in receipt["hits"]] == [
            ("r1", "active", "cancelled"),
            ("two", "queued", "cancelled"),
        ]
        plain = await place.request("POST", target)
        assert (plain.status, plain.body) == (200, b"")


async def test_a_cancel_can_leave_the_queue_alone():
    async with busy("two", "three") as (place, session, _):
        target = f"/agent/sessions/{session}/cancel"
        refused(await place.request("POST", f"{target}?queue=all"), 400, "bad_request")
        receipt = (await place.request("POST", f"{target}?receipt=1&queue=keep")).json()
        assert [(h["run_id"], h["ended"]) for h in receipt["hits"]] == [("r1", "cancelled")]
        await wait_all_tasks_blocked()
        states = [(await get(place, f"/runs/{name}"))["state"] for name in ("r1", "two", "three")]
        assert states == ["cancelled", "completed", "completed"]


async def test_a_turn_that_will_not_end_does_not_hold_the_receipt():
    stuck = trio.Event()

    async def stubborn(_run):
        with trio.CancelScope(shield=True):
            await stuck.wait()

    async with open_test_server(WrittenTurns({"one": [Do(stubborn)]})) as server:
        place = await server.create(A)
        session = await place.create_session()
        await send(place, session, "one")
        await wait_all_tasks_blocked()
        target = f"/agent/sessions/{session}/cancel?receipt=1"
        receipt = (await place.request("POST", target)).json()
        stuck.set()
        assert not receipt["complete"]
        [hit] = receipt["hits"]
        assert "ended" not in hit


# ── The queue ───────────────────────────────────────────────────────────────────────────────────


async def test_queue_items_can_be_listed_edited_moved_and_deleted():
    async with busy("a", "b", "c") as (place, session, gate):
        line = f"/agent/sessions/{session}/queue"
        first, *_ = items = await get(place, line)
        assert [item["run_id"] for item in items] == ["a", "b", "c"]
        assert (first["prompt"], first["when_unclaimed"]) == ("a", "cancel")
        answer = await place.request("PATCH", f"{line}/c", {"prompt": "C!", "index": 0})
        assert [item["prompt"] for item in answer.json()] == ["C!", "a", "b"]
        deleted = await place.request("DELETE", f"{line}/{first['id']}")
        assert (deleted.status, deleted.body) == (200, b"")
        assert await queue(place, session) == ["C!", "b"]
        gate.open()
        await wait_all_tasks_blocked()
        said = [m["parts"][0]["data"].get("text") for m in await place.messages(session)]
        assert said.index("C!") < said.index("b")
        assert "c" not in said
        assert (await get(place, "/runs/a"))["state"] == "cancelled"


async def test_a_queued_run_can_be_sent_now_and_the_others_keep_waiting():
    async with busy("a", "b", "c") as (place, session, _):
        line = f"/agent/sessions/{session}/queue"
        body = {"prompt": "B!", "index": 0, "interrupt": True}
        answer = await place.request("PATCH", f"{line}/b", body)
        assert [item["prompt"] for item in answer.json()][1:] == ["a", "c"]
        await wait_all_tasks_blocked()
        assert (await get(place, "/runs/r1"))["state"] == "cancelled"
        runs = [await get(place, f"/runs/{name}") for name in "abc"]
        assert [run["state"] for run in runs] == ["completed"] * 3
        said = [m["parts"][0]["data"].get("text") for m in await place.messages(session)]
        assert [text for text in said if text in {"a", "B!", "c"}] == ["B!", "a", "c"]


async def test_an_edited_prompt_is_stored_before_the_edit_is_answered():
    gate = Gate()
    async with open_test_server(WrittenTurns({"one": [Pause(gate)]})) as server:
        place = await server.create(A)
        session = await place.create_session()
        for text in ("one", "two"):
            await place.submit(session, text, text)
            await wait_all_tasks_blocked()
        await place.request("PATCH", f"/agent/sessions/{session}/queue/two", {"prompt": "better"})
        assert (await server.stores.of().run("two")).prompt == "better"


async def test_what_does_not_wait_in_this_queue_cannot_be_changed_there():
    async with busy("two") as (place, session, _):
        line = f"/agent/sessions/{session}/queue"
        for method in ("PATCH", "DELETE"):
            refused(await place.request(method, f"{line}/r1", {}), 409, "run_not_queued")
        elsewhere = "/agent/sessions/other/queue/two"
        refused(await place.request("DELETE", elsewhere), 404, "run_not_found")
        two = f"{line}/two"
        refused(await place.request("PATCH", two, {"index": -1}), 400, "bad_request")
        later = {"index": 1, "interrupt": True}
        refused(await place.request("PATCH", two, later), 400, "bad_request")
        refused(await place.request("PATCH", two, {"prompt": ""}), 400, "prompt_empty")
        refused(await place.request("PATCH", two, {"index": "first"}), 400, "bad_request")
        assert await queue(place, session) == ["two"]


# ── Policies ────────────────────────────────────────────────────────────────────────────────────


async def test_a_submission_says_what_to_do_when_the_session_is_busy():
    async with busy("two") as (place, session, _):
        refused(await send(place, session, "no", when_busy="reject"), 409, "session_busy")
        refused(await send(place, session, "no", when_busy="later"), 400, "bad_request")
        assert (
            await send(place, session, "now", run_id="now", when_busy="interrupt")
        ).status == 202
        await wait_all_tasks_blocked()
        states = {run["run_id"]: run["state"] for run in await get(place, "/runs")}
        assert states == {"r1": "cancelled", "two": "cancelled", "now": "completed"}


async def test_the_second_answer_for_a_run_id_says_that_it_is_a_repetition():
    async with busy() as (place, session, _):
        first = await get(place, "/runs/r1")
        again = await place.submit(session, "one", "r1")
        assert (again.status, again.json()) == (
            200,
            {"id": first["id"], "run_id": "r1", "repeated": True},
        )
        assert len(await get(place, "/runs")) == 1
        refused(await place.submit(session, "another", "r1"), 409, "run_id_taken")
        fresh = await place.submit(session, "fresh", "r2")
        assert (fresh.status, fresh.body) == (202, b"")


@asynccontextmanager
async def open_holding_server(turn):
    """Open a server whose runs may hold their workspace open."""
    clock, stores = TrioClock(), MemoryStores()
    workspaces = WorkspaceSettings(
        make_turn=turn,
        open_config=open_fixed_config,
        opens=no_commands,
        open_store=stores.open,
        clock=clock,
        ids=CountingIds("id"),
    )
    async with trio.open_nursery() as requests:
        async with open_backend(
            partial(open_hosted_workspace, settings=workspaces),
            clock=clock,
            settings=BackendSettings(),
            keeps_open=keeps_open,
        ) as backend:
            site = Server(backend)
            yield Served(backend, site, AsgiDriver(create_app(site), requests), stores)


@pytest.mark.item("E12")
@pytest.mark.parametrize(("policy", "ending"), [("cancel", "cancelled"), ("continue", "completed")])
async def test_a_run_ends_with_the_last_client_unless_it_was_told_to_continue(
    tmp_path, policy, ending
):
    gate = Gate()
    async with open_holding_server(WrittenTurns({"one": [Pause(gate), Say("at last")]})) as server:
        place = await server.create(A, str(tmp_path))
        session = await place.create_session()
        await send(place, session, "one", run_id="r1", when_unclaimed=policy)
        await gate.reached()
        await place.request("DELETE", f"?client_id={A}")
        await wait_all_tasks_blocked()
        there = [hosted.id for hosted in server.backend.workspaces()]
        assert there == ([WorkspaceId(place.id)] if policy == "continue" else [])
        gate.open()
        await wait_all_tasks_blocked()
        assert server.backend.workspaces() == ()
        place = await server.create(A, str(tmp_path))
        assert (await get(place, "/runs/r1"))["state"] == ending


@pytest.mark.item("E12")
async def test_a_run_that_was_steered_by_a_prompt_that_continues_goes_on_without_clients(tmp_path):
    gate, last = Gate(), Gate()
    script = [Pause(gate), Fold(), Pause(last), Say("at last")]
    async with open_holding_server(WrittenTurns({"one": script})) as server:
        place = await server.create(A, str(tmp_path))
        session = await place.create_session()
        await send(place, session, "one", run_id="r1")
        await gate.reached()
        steers = {"when_busy": "steer", "when_unclaimed": "continue"}
        assert (await send(place, session, "left", run_id="r2", **steers)).status == 202
        await wait_all_tasks_blocked()
        gate.open()
        await last.reached()
        steered, run = await get(place, "/runs/r2"), await get(place, "/runs/r1")
        assert (steered["state"], steered["folded_into"]) == ("folded", run["id"])
        await place.request("DELETE", f"?client_id={A}")
        await wait_all_tasks_blocked()
        assert [hosted.id for hosted in server.backend.workspaces()] == [WorkspaceId(place.id)]
        last.open()
        await wait_all_tasks_blocked()
        assert server.backend.workspaces() == ()
        place = await server.create(A, str(tmp_path))
        assert (await get(place, "/runs/r1"))["state"] == "completed"


# ── Tasks ───────────────────────────────────────────────────────────────────────────────────────


async def test_the_tasks_route_shows_what_each_run_waits_on():
    async with busy("two") as (place, session, _):
        await trio.sleep(3)
        tree = await get(place, "/tasks")
        active, waiting = sorted(tree["runs"], key=lambda task: task["state"])
        assert (active["state"], waiting["state"]) == ("active", "queued")
        assert active["seconds"] == 3.0
        assert active["session_id"] == session
        assert active["name"] == f"run {active['run']}"
        assert active["waits_on"]["function"] == "Gate.wait"
        assert active["waits_on"]["line"] > 0
