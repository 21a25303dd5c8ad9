"""The requests of the real clients, in the order in which they come (wire.md §2.3, §2.4, §7)."""

import pytest
import trio

from crush_trio.testing.explore.checkpoints import Gate
from crush_trio.testing.server.server import WrittenTurns, client_id, open_test_server
from crush_trio.testing.server.turns import Pause, Say
from tests.server.scenarios import ending_of, entity, turn

U = client_id(7)
NEW_SESSION = {
    "id": "",
    "parent_session_id": "",
    "message_count": 0,
    "prompt_tokens": 0,
    "completion_tokens": 0,
    "summary_message_id": "",
    "cost": 0,
    "created_at": 0,
    "updated_at": 0,
    "is_busy": False,
    "attached_clients": 0,
}
SESSION_KEYS = {*NEW_SESSION, "title"}


async def create(server, **more):
    """Create a workspace as the client does, and check what it cannot do without."""
    body = {"id": "", "path": "/p", "version": "v0.90.0", "client_id": U, "env": ["K=V"], **more}
    place = await server.create(U, init=False, **body)
    view = place.view
    assert view["id"] == place.id != ""
    assert view["path"] == "/p"
    config = view["config"]
    assert config["options"]["tui"]["completions"] == {"max_depth": 0, "max_items": 1000}
    assert config["models"]["large"]["max_tokens"] > 0
    assert config["options"]["disable_metrics"] is True
    enabled = [name for name, p in config["providers"].items() if not p.get("disable")]
    assert enabled
    assert config["models"]["large"]["provider"] in enabled
    assert config["models"]["large"]["model"]
    assert "env" not in view
    return place


async def good(place, method, target="", body=b""):
    """Send a request that must be answered with 200, the only good status the client knows."""
    answer = await place.request(method, target, body)
    assert answer.status == 200, (method, target, answer)
    return answer.json() if answer.body else None


async def ready(place):
    info = await good(place, "GET", "/agent")
    assert info["is_ready"] is True
    assert info["model"]["id"] == info["model_cfg"]["model"] != ""
    assert info["model_cfg"]["provider"]
    assert isinstance(info["model"]["context_window"], int)
    return info


@pytest.mark.item("G13")
async def test_the_transcript_of_a_run():
    turns = WrittenTurns({"hi": [Say("Hel"), Say("lo!")]})
    async with open_test_server(turns) as server:
        place = await create(server)
        assert await good(place, "POST", "/agent/init", {"interactive": False}) is None
        assert (await ready(place))["is_busy"] is False
        assert await good(place, "POST", "/agent/update") is None
        session = await good(
            place, "POST", "/sessions", {**NEW_SESSION, "title": "non-interactive"}
        )
        assert session.keys() >= SESSION_KEYS
        assert (session["title"], session["parent_session_id"]) == ("non-interactive", "")
        with await place.watch(U) as events:
            headers = events.exchange.headers
            assert headers["content-type"].startswith("text/event-stream")
            assert headers["cache-control"] == "no-cache"
            accepted = await place.submit(session["id"], "hi", "R")
            assert (accepted.status, accepted.body) == (202, b"")
            ending = await events.until(ending_of("R"))
        assert ending["payload"]["type"] == "updated"
        told = entity(ending)
        assert told.pop("message_id")
        assert told == {"session_id": session["id"], "run_id": "R", "text": "Hello!"}
        assert (await server.request("DELETE", f"/v1/clients/{U}")).status == 200
        assert (await place.request("GET")).status == 404


@pytest.mark.item("E18")
async def test_an_interrupted_run_retires_its_client_which_cancels_the_run():
    """On Ctrl-C the client calls no cancel: it only says goodbye."""
    gate = Gate("working")
    async with open_test_server(WrittenTurns({"hi": [Pause(gate)]})) as server:
        place = await create(server)
        await good(place, "POST", "/agent/init", {"interactive": False})
        session = await place.create_session("non-interactive")
        with await place.watch(U) as events:
            await place.submit(session, "hi", "R")
            await gate.reached()
            assert (await server.request("DELETE", f"/v1/clients/{U}")).status == 200
            await events.rest()
        assert entity(next(filter(ending_of("R"), events.seen)))["cancelled"] is True


@pytest.mark.item("G15")
async def test_the_transcript_of_a_run_that_continues_a_session_with_another_model():
    async with open_test_server() as server:
        place = await create(server)
        await good(place, "POST", "/agent/init", {"interactive": False})
        first, second = await place.create_session("old"), await place.create_session("new")
        assert (await good(place, "GET", f"/sessions/{first}"))["id"] == first
        assert (await place.request("GET", "/sessions/abc123")).status == 404
        listed = await good(place, "GET", "/sessions")
        assert {session["id"] for session in listed} == {first, second}
        config = await good(place, "GET", "/config")
        model = config["models"]["large"]
        choice = {"scope": 1, "model_type": "large", "model": model}
        await good(place, "POST", "/config/model", choice)
        small = await good(
            place, "GET", f"/agent/default-small-model?provider_id={model['provider']}"
        )
        await good(
            place, "POST", "/config/model", {"scope": 1, "model_type": "small", "model": small}
        )
        await good(place, "POST", "/agent/update")
        await ready(place)
        assert await good(place, "GET", f"/sessions/{first}/messages") == []
        with await place.watch(U) as events:
            assert (await place.submit(first, "hi", "R")).status == 202
            await events.until(ending_of("R"))
        listed = await good(place, "GET", "/sessions")
        assert {session["id"]: session["message_count"] for session in listed} == {
            first: 2,
            second: 0,
        }


async def test_the_discovery_of_a_server_behind_a_unix_socket():
    async with open_test_server() as server:
        version = (await server.request("GET", "/v1/version")).json()
        assert version.keys() == {"version", "commit", "build_id", "go_version", "platform"}
        await create(server)
        control = {"command": "shutdown_if_idle"}
        refused = await server.driver.request(
            "POST", "/v1/control", control, headers=[("content-type", "text/plain")]
        )
        assert refused.status == 409
        health = await server.request("GET", "/v1/health")
        assert (health.status, health.body) == (200, b"")


async def before_the_first_frame(place):
    assert await good(place, "GET", "/permissions/skip") == {"skip": False}
    await ready(place)
    await ready(place)
    assert await good(place, "GET", "/project/needs-init") == {"needs_init": False}


async def beside_the_stream(place):
    """Send what the client sends in parallel once it has drawn itself."""
    empty = {
        "/skills": [],
        "/messages/user": [],
        "/lsps": {},
        "/mcp/states": {},
        "/mcp/pending-auth": [],
    }
    found = {}

    async def ask(target):
        found[target] = await good(place, "GET", target)

    async with trio.open_nursery() as nursery:
        for target in empty:
            nursery.start_soon(ask, target)
        for _ in range(3):
            nursery.start_soon(ready, place)
        nursery.start_soon(good, place, "GET", "/permissions/skip")
    assert found == empty


async def load(place, session):
    """Send what the client sends to show a session."""
    assert (await good(place, "GET", f"/sessions/{session}")).keys() >= SESSION_KEYS
    assert await good(place, "GET", f"/sessions/{session}/history") == []
    assert await good(place, "GET", f"/sessions/{session}/filetracker/files") == []
    select = {"session_id": session}
    assert await good(place, "POST", f"/current-session?client_id={U}", select) is None
    assert isinstance(await good(place, "GET", f"/sessions/{session}/messages"), list)
    assert isinstance(await good(place, "GET", f"/sessions/{session}/messages/user"), list)
    await good(place, "POST", "/lsps/start", {"path": "/p/a.go"})
    assert await good(place, "GET", f"/agent/sessions/{session}/prompts/list") in ([], None)


@pytest.mark.item("E15", "E16", "G8", "G9", "G13")
async def test_the_terminal_client_from_its_start_to_its_exit():
    gate = Gate("working")
    turns = WrittenTurns({"hi": [Say("Hel"), Pause(gate), Say("lo")]})
    async with open_test_server(turns) as server:
        place = await create(server, yolo=False, debug=True)
        await good(place, "POST", "/agent/init", {"interactive": True})
        await before_the_first_frame(place)
        with await place.watch(U) as events:
            await beside_the_stream(place)
            await ready(place)
            made = await good(place, "POST", "/sessions", {**NEW_SESSION, "title": "New Session"})
            session = made["id"]
            async with trio.open_nursery() as nursery:
                nursery.start_soon(load, place, session)
                assert (await place.submit(session, "hi")).status == 202
            await gate.reached()
            assert (await ready(place))["is_busy"] is True
            shown = await good(place, "GET", f"/sessions/{session}")
            assert (shown["is_busy"], shown["attached_clients"]) == (True, 1)
            gate.open()
            await events.until(finished_answer)
            assert await good(place, "GET", f"/agent/sessions/{session}/prompts/list") in ([], None)
        expected = [("user", "hi", "stop"), ("assistant", "Hello", "end_turn")]
        assert turn(await place.messages(session)) == expected
        assert (await server.request("DELETE", f"/v1/clients/{U}")).status == 200


def finished_answer(event):
    parts = entity(event).get("parts") or [{"type": ""}]
    return (
        event["type"] == "message"
        and entity(event)["role"] == "assistant"
        and (parts[-1]["type"] == "finish")
    )


@pytest.mark.item("E17", "G7")
async def test_the_other_calls_of_the_terminal_client():
    async with open_test_server() as server:
        place = await create(server)
        await good(place, "POST", "/agent/init", {"interactive": True})
        session = await place.create_session("New Session")
        with await place.watch(U) as events:
            stored = await good(place, "GET", f"/sessions/{session}")
            renamed = await good(place, "PUT", f"/sessions/{session}", {**stored, "title": "Mine"})
            assert renamed["title"] == "Mine"
            seen = entity(await events.until(lambda e: e["type"] == "session"))
            assert (seen["title"], seen["is_busy"], seen["attached_clients"]) == ("Mine", False, 0)
            await good(place, "POST", f"/agent/sessions/{session}/prompts/clear")
            ran = await good(
                place,
                "POST",
                f"/agent/sessions/{session}/shell",
                {"session_id": "", "command": "ls"},
            )
            assert ran.keys() == {"output", "exit_code"}
            await good(place, "POST", "/permissions/skip", {"skip": True})
            assert await good(place, "GET", "/permissions/skip") == {"skip": True}
            assert await good(place, "GET", "/sessions/m1$$call_1/messages") == []
            setting = {"scope": 0, "key": "options.tui.transparent", "value": True}
            await good(place, "POST", "/config/set", setting)
            changed = await events.until(lambda e: e["type"] == "config_changed")
            assert entity(changed) == {"workspace_id": place.id}
            await good(place, "GET")
            await good(place, "DELETE", f"/sessions/{session}")
            gone = await events.until(lambda e: e["payload"]["type"] == "deleted")
            assert entity(gone)["id"] == session
