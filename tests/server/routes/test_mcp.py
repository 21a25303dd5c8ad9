"""The routes about MCP servers, with servers behind them, and what their clients hear (wire §3.10)."""

from contextlib import asynccontextmanager

import pytest
import trio
from attrs import evolve

from crush_trio.integrations.base import Integrations
from crush_trio.integrations.mcp.servers import open_mcp_servers
from crush_trio.integrations.mcp.session import McpFailure, OfferedTool
from crush_trio.testing.server.config import open_fixed_config
from crush_trio.testing.server.server import client_id
from tests.integrations.mcp_fakes import Desks, command
from tests.server.brought import open_server_with
from tests.server.scenarios import entity

A = client_id(1)

pytestmark = pytest.mark.item("I.4")


@asynccontextmanager
async def open_place(desks, **entries):
    """Open a server, and a workspace in it that is configured with MCP servers."""

    @asynccontextmanager
    async def open_config(places):
        async with open_fixed_config(places) as live:
            live.current = evolve(live.current, config=evolve(live.current.config, mcp=entries))
            yield live

    @asynccontextmanager
    async def open_integrations(surroundings):
        async with open_mcp_servers(surroundings, desks) as mcp:
            yield Integrations(mcp=mcp)

    async with open_server_with(
        open_config=open_config, open_integrations=open_integrations
    ) as server:
        place = await server.create(A)
        await trio.testing.wait_all_tasks_blocked()
        yield place


async def get(place, target):
    answer = await place.request("GET", target)
    assert answer.status == 200
    return answer.json()


async def test_how_the_servers_do_is_told():
    desks = Desks()
    desks["bad"].refusals = [McpFailure("dial refused")]
    async with open_place(desks, gh=command(), bad=command()) as place:
        states = await get(place, "/mcp/states")
        assert states["bad"] == {
            "error": "dial refused",
            "name": "bad",
            "state": "error",
            "connected_at": "0001-01-01T00:00:00Z",
        }
        assert states["gh"].pop("connected_at").endswith("Z")
        assert states["gh"] == {
            "name": "gh",
            "state": "connected",
            "tool_count": 2,
            "prompt_count": 1,
        }
        assert await get(place, "/mcp/pending-auth") == []
        assert await get(place, "/mcp/auth-url?name=gh") == {}


async def test_prompts_and_resources_come_from_the_servers():
    async with open_place(Desks(), gh=command()) as place:
        assert await get(place, "/mcp/prompts") == [
            {"id": "gh:hi", "prompt_id": "hi", "client_id": "gh"}
        ]
        body = {"client_id": "gh", "prompt_id": "hi", "args": {"a": "b"}}
        filled = await place.request("POST", "/mcp/get-prompt", body)
        assert filled.json() == {"prompt": "hi {'a': 'b'}"}
        read = await place.request("POST", "/mcp/read-resource", {"name": "gh", "uri": "u"})
        assert read.json() == [{"uri": "u", "text": "hello"}]


@pytest.mark.parametrize(
    ("target", "body", "message"),
    [
        ("/mcp/read-resource", {"name": "gh", "uri": "none"}, "gh: there is no token=[redacted]"),
    ],
)
async def test_what_a_server_cannot_do_is_said(target, body, message):
    async with open_place(Desks(), gh=command()) as place:
        answer = await place.request("POST", target, body)
        assert answer.status >= 500
        assert answer.json()["code"] == "mcp_failed"
        assert message in answer.json()["message"]


@pytest.mark.parametrize(
    ("target", "body", "text"),
    [
        ("/mcp/auth", {"name": "x"}, "mcp 'x' not found in configuration"),
        (
            "/mcp/get-prompt",
            {"client_id": "x", "prompt_id": "p", "args": None},
            "mcp 'x' not available",
        ),
        ("/mcp/read-resource", {"name": "x", "uri": "u"}, "mcp 'x' not available"),
    ],
)
async def test_a_server_that_is_not_configured_is_not_found(target, body, text):
    async with open_place(Desks(), gh=command()) as place:
        answer = await place.request("POST", target, body)
        assert answer.status == 404
        assert answer.json() == {"message": text, "code": "mcp_not_found"}


async def test_clients_hear_of_every_state_and_of_lists_that_change():
    desks = Desks()
    async with open_place(desks, gh=command()) as place:
        with await place.watch(A) as events:
            desks["gh"].tools = [OfferedTool(name="mul")]
            desks["gh"].change()
            changed = await events.next()
            assert (changed["type"], changed["payload"]["type"]) == ("mcp_event", "updated")
            assert entity(changed) == {
                "type": "tools_list_changed",
                "name": "gh",
                "state": "connected",
                "tool_count": 1,
                "prompt_count": 1,
            }
            desks["gh"].hang_up()
            assert entity(await events.next()) == {
                "error": "it has hung up",
                "type": "state_changed",
                "name": "gh",
                "state": "error",
                "tool_count": 1,
                "prompt_count": 1,
            }
            await place.request("POST", "/mcp/read-resource", {"name": "gh", "uri": "u"})
            assert entity(await events.next())["state"] == "starting"
            assert entity(await events.next())["state"] == "connected"


@pytest.mark.parametrize("what", ["tools", "prompts", "resources"])
async def test_refreshing_does_not_tell_the_clients_what_made_them_ask(what):
    desks = Desks()
    async with open_place(desks, gh=command()) as place:
        with await place.watch(A) as events:
            desks["gh"].tools = []
            answer = await place.request("POST", f"/mcp/refresh-{what}", {"name": "gh"})
            assert (answer.status, answer.body) == (200, b"")
            await place.create_session("next")
            assert (await events.next())["type"] == "session"
        states = await get(place, "/mcp/states")
        assert states["gh"].get("tool_count", 0) == (0 if what == "tools" else 2)


async def test_updating_the_agent_because_a_server_has_failed_comes_to_rest():
    """Clients do so whenever a state changes; if that changed a state, it would never end."""
    desks = Desks()
    async with open_place(desks, gh=command()) as place:
        with await place.watch(A) as events:
            desks["gh"].hang_up()
            assert entity(await events.next())["state"] == "error"
            await place.request("POST", "/agent/update")
            await trio.testing.wait_all_tasks_blocked()
            await place.create_session("next")
            assert (await events.next())["type"] == "session"
        assert desks["gh"].log == ["open", "close"]


async def test_a_login_that_cannot_be_done_says_what_to_do_instead():
    async with open_place(Desks(), gh=command()) as place:
        assert (await place.request("POST", "/mcp/auth", {"name": "gh"})).json() == {}
