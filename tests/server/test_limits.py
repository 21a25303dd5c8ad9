"""Limits as clients meet them: a status, a code, a sentence, and nobody else is hurt."""

import pytest
import trio
import trio.testing

from crush_trio.limits import SizeLimits
from crush_trio.server.bodies import LIMITS, BodyLimits
from crush_trio.testing import Gate
from crush_trio.testing.server.server import WrittenTurns, client_id, open_test_server
from crush_trio.testing.server.turns import Pause
from crush_trio.wire.ids import SessionId

MIB = 1024 * 1024


def told(answer):
    return answer.status, answer.json()["code"]


# ── Titles ──────────────────────────────────────────────────────────────────────────────────────


async def test_a_title_that_is_too_long_is_refused_when_a_session_is_made_and_when_it_is_changed():
    """A title of 20 MB was stored."""
    async with open_test_server() as server:
        place = await server.create(client_id(1))
        refused = await place.request("POST", "/sessions", {"title": "x" * 1001})
        assert told(refused) == (400, "title_too_long")
        assert refused.json()["message"] == (
            "the title is too long; choose a shorter one: it has 1,001 characters, the limit is 1,000"
        )
        assert (await place.request("GET", "/sessions")).json() == []
        session = await place.create_session("\u20ac" * 1000)
        view = (await place.request("GET", f"/sessions/{session}")).json()
        renamed = await place.request("PUT", f"/sessions/{session}", {**view, "title": "y" * 1001})
        assert told(renamed) == (400, "title_too_long")
        assert (await place.request("GET", f"/sessions/{session}")).json() == view


async def test_a_session_with_a_long_title_of_before_can_still_be_changed():
    async with open_test_server(sizes=SizeLimits(title=2000)) as server:
        place = await server.create(client_id(1))
        session = await place.create_session("x" * 1500)
        opened = server.server.workspace(place.id)
        opened.sizes = SizeLimits()
        view = (await place.request("GET", f"/sessions/{session}")).json()
        changed = await place.request("PUT", f"/sessions/{session}", {**view, "prompt_tokens": 7})
        assert changed.status == 200
        assert (await opened.store.session(SessionId(session))).prompt_tokens == 7


# ── Prompts ─────────────────────────────────────────────────────────────────────────────────────


async def test_a_prompt_of_more_than_4_mib_is_refused():
    async with open_test_server() as server:
        place = await server.create(client_id(1))
        session = await place.create_session()
        refused = await place.submit(session, "x" * (4 * MIB + 1))
        assert told(refused) == (413, "prompt_too_long")
        assert "it has 4,194,305 bytes, the limit is 4 MiB" in refused.json()["message"]
        assert (await place.submit(session, "x" * 4 * MIB)).status == 202


@pytest.mark.heavy
async def test_a_larger_limit_makes_room_for_a_larger_body():
    sizes = SizeLimits(prompt=40 * MIB)
    assert BodyLimits.of(SizeLimits()).size == LIMITS.size
    assert BodyLimits.of(sizes).size > 60 * MIB
    async with open_test_server(sizes=sizes) as server:
        place = await server.create(client_id(1))
        session = await place.create_session()
        assert (await place.submit(session, "x" * 35 * MIB)).status == 202


async def test_attachments_are_limited_as_the_server_has_it():
    async with open_test_server(sizes=SizeLimits(attachment=3)) as server:
        place = await server.create(client_id(1))
        session = await place.create_session()
        body = {"session_id": session, "prompt": "look"}
        file = {"file_name": "a", "mime_type": "text/plain", "content": "YWJjZA=="}
        refused = await place.request("POST", "/agent", {**body, "attachments": [file]})
        assert told(refused) == (413, "attachment_too_large")
        assert "number 1 has 4 bytes, the limit is 3 bytes" in refused.json()["message"]


# ── Queues ──────────────────────────────────────────────────────────────────────────────────────


async def test_a_full_queue_is_a_429_that_says_when_to_try_again():
    gate = Gate()
    turns = WrittenTurns({"wait": [Pause(gate)]})
    async with open_test_server(turns, sizes=SizeLimits(queue=1)) as server:
        place = await server.create(client_id(1))
        session, other = await place.create_session(), await place.create_session()
        await place.submit(session, "wait", "r1")
        await gate.reached()
        assert (await place.submit(session, "next", "r2")).status == 202
        refused = await place.submit(session, "too many", "r3")
        assert told(refused) == (429, "queue_full")
        assert refused.headers["retry-after"] == "1"
        assert (await place.submit(other, "another session")).status == 202
        gate.open()


# ── Active runs ─────────────────────────────────────────────────────────────────────────────────


async def test_runs_of_all_workspaces_share_the_places_and_those_that_wait_are_shown_as_queued():
    gate = Gate()
    turns = WrittenTurns({"wait": [Pause(gate)]})
    async with open_test_server(turns, sizes=SizeLimits(active_runs=1)) as server:
        one = await server.create(client_id(1), "/srv/one")
        two = await server.create(client_id(1), "/srv/two")
        first, second = await one.create_session(), await two.create_session()
        await one.submit(first, "wait", "r1")
        await gate.reached()
        assert (await two.submit(second, "next", "r2")).status == 202
        await trio.testing.wait_all_tasks_blocked()
        assert (await two.request("GET", "/runs/r2")).json()["state"] == "queued"
        assert (await two.request("GET", f"/agent/sessions/{second}/queue")).json() != []
        gate.open()
        await trio.testing.wait_all_tasks_blocked()
        assert (await two.request("GET", "/runs/r2")).json()["state"] == "completed"


async def test_a_run_that_waits_for_a_place_in_another_workspace_can_be_cancelled():
    gate = Gate()
    turns = WrittenTurns({"wait": [Pause(gate)]})
    async with open_test_server(turns, sizes=SizeLimits(active_runs=1)) as server:
        one = await server.create(client_id(1), "/srv/one")
        two = await server.create(client_id(1), "/srv/two")
        first, second = await one.create_session(), await two.create_session()
        await one.submit(first, "wait", "r1")
        await gate.reached()
        await two.submit(second, "next", "r2")
        await two.cancel(second)
        await trio.testing.wait_all_tasks_blocked()
        assert (await two.request("GET", "/runs/r2")).json()["state"] == "cancelled"
        assert (await one.request("GET", "/runs/r1")).json()["state"] == "active"
        gate.open()


# ── Workspaces ──────────────────────────────────────────────────────────────────────────────────


async def test_one_workspace_too_many_is_a_429_and_never_a_503():
    async with open_test_server(sizes=SizeLimits(workspaces=2)) as server:
        one = await server.create(client_id(1), "/srv/one")
        await server.create(client_id(1), "/srv/two")
        body = {"path": "/srv/three", "client_id": client_id(1)}
        refused = await server.request("POST", "/v1/workspaces", body)
        assert told(refused) == (429, "too_many_workspaces")
        assert refused.headers["retry-after"] == "1"
        assert "leave some of them, or try again in a moment" in refused.json()["message"]
        joined = await server.create(client_id(2), "/srv/one")
        assert joined.id == one.id
        for client in (1, 2):
            left = await one.request("DELETE", f"?client_id={client_id(client)}")
            assert left.status == 200
        await trio.testing.wait_all_tasks_blocked()
        assert (await server.request("POST", "/v1/workspaces", body)).status == 200


async def test_creates_that_come_together_do_not_exceed_the_limit():
    async with open_test_server(sizes=SizeLimits(workspaces=2)) as server:
        answers = []

        async def create(number):
            body = {"path": f"/srv/{number}", "client_id": client_id(number)}
            answers.append((await server.request("POST", "/v1/workspaces", body)).status)

        async with trio.open_nursery() as nursery:
            for number in range(3):
                nursery.start_soon(create, number)
        assert sorted(answers) == [200, 200, 429]
        assert len(server.backend.workspaces()) == 2
