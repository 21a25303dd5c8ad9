"""A person configures an MCP server, a model uses it, another person allows that; all of it over sockets."""

import sys

import pytest
import trio

from crush_trio.testing.model.script import CallTool, Say
from tests.e2e.test_agent_over_sockets import KEYS, open_place
from tests.integrations.mcp_real import DESK

pytestmark = [pytest.mark.slow, pytest.mark.real_clock, pytest.mark.item("I.4", "H mcp_*")]

ENTRY = {"type": "stdio", "command": sys.executable, "args": [str(DESK)]}


async def configure(place, value):
    await place.post("/config/set", {"scope": 0, "key": "mcp.desk", "value": value})


async def until_state(events, state):
    """Read on until a server is in a state."""
    async for event in events:
        if event["type"] == "mcp_event" and event["payload"]["payload"]["state"] == state:
            return event["payload"]["payload"]
    raise AssertionError("the stream ended")


@pytest.mark.parametrize("kind", KEYS)
async def test_a_model_uses_the_tool_of_a_server_that_was_just_configured(tmp_path, kind):
    script = [[CallTool("mcp_desk_add", {"a": 40, "b": 2})], [Say("It is 42.")]]
    asked = []

    async def approve(place, events):
        async for event in events:
            if event["type"] == "permission_request":
                request = event["payload"]["payload"]
                asked.append((request["tool_name"], request["action"], request["params"]))
                await place.post("/permissions/grant", {"permission": request, "action": "allow"})

    async with open_place(tmp_path, kind, script) as place:
        async with (
            place.watching(1) as mine,
            place.watching(2) as theirs,
            trio.open_nursery() as nursery,
        ):
            await configure(place, ENTRY)
            connected = await until_state(mine, "connected")
            assert (connected["name"], connected["tool_count"]) == ("desk", 7)
            nursery.start_soon(approve, place, theirs)
            await place.submit("what is 40 + 2?")
            ending = await place.ending(mine)
            nursery.cancel_scope.cancel()
        messages = await place.messages()
        [request, _] = [heard for heard in place.model.requests if heard.body.get("tools")]
        states = await place.get("/mcp/states")
    assert ending["text"] == "It is 42."
    assert asked == [("mcp_desk_add", "execute", {"a": 40, "b": 2})]
    assert [each["role"] for each in messages] == ["user", "assistant", "tool", "assistant"]
    [result] = [part for part in messages[2]["parts"] if part["type"] == "tool_result"]
    assert (result["data"]["name"], result["data"]["content"]) == ("mcp_desk_add", "42")
    assert "Count with add." in str(request.body)
    assert states["desk"]["state"] == "connected"


async def test_a_server_that_fails_does_not_keep_the_clients_busy(tmp_path):
    """They update the agent when they hear of it, and that reads the configuration again."""
    async with open_place(tmp_path, "openai", []) as place:
        async with place.watching(1) as events:
            await configure(place, {"type": "stdio", "command": "/no/such/program"})
            failed = await until_state(events, "error")
            assert "No such file" in failed["error"]
            for _ in range(3):
                await place.post("/agent/update")
            await configure(place, ENTRY)
            heard = []
            async for event in events:
                if event["type"] == "mcp_event":
                    heard.append(event["payload"]["payload"]["state"])
                    if heard[-1] == "connected":
                        break
            assert heard == ["starting", "connected"]
