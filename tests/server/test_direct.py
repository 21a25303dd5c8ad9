"""A prompt is answered the same whether the framework was asked or not."""

import logging
from contextlib import asynccontextmanager

import h11
import orjson
import pytest
import trio
import trio.testing

from crush_trio.limits import SizeLimits
from crush_trio.server import direct
from crush_trio.server.app import create_app, routed
from crush_trio.server.routes import agent as routes_agent
from crush_trio.testing import Gate
from crush_trio.testing.server.server import WrittenTurns, client_id, open_test_server
from crush_trio.testing.server.turns import Pause
from tests.server.raw_client import open_client
from tests.server.tiny_app import open_own_server

pytestmark = [pytest.mark.slow, pytest.mark.real_clock]

A = client_id(1)


@asynccontextmanager
async def open_place(turns=None):
    """Open a workspace with a session on a server in memory, and that server on a socket."""
    async with open_test_server(turns, sizes=SizeLimits(prompt=1000, queue=1)) as served:
        place = await served.create(A)
        session = await place.create_session()
        with await place.watch(A):
            async with open_own_server(create_app(served.site), grace=0) as server:
                yield server.address, place, session


async def post(address, path, body, *, whole):
    """Send a prompt, whole or in two pieces; return the status, the headers and the body."""
    async with open_client(address) as client:
        head = b"POST %b HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Length: %d\r\n\r\n"
        data = head % (path.encode(), address.port, len(body)) + body
        cut = len(data) if whole else len(data) - 1
        client.parser.send(h11.Request(method="POST", target=path, headers=[("Host", "t")]))
        await client.stream.send_all(data[:cut])
        if not whole:
            await trio.testing.wait_all_tasks_blocked(0.02)
            await client.stream.send_all(data[cut:])
        answer, text = await client.answer()
    headers = {key: value for key, value in answer.headers if key != b"date"}
    return answer.status_code, headers, text


def prompt(session, **more):
    return orjson.dumps({"session_id": session, "prompt": "hello", **more})


REQUESTS = {
    "a prompt": (202, lambda session: prompt(session)),
    "one that was sent before": (202, lambda session: prompt(session, run_id="same")),
    "a prompt that says nothing": (400, lambda session: prompt(session, prompt="")),
    "a prompt that is too long": (413, lambda session: prompt(session, prompt="x" * 2000)),
    "no JSON": (400, lambda _: b"{"),
    "too deep": (400, lambda _: b"[" * 200 + b"]" * 200),
    "a wrong type": (400, lambda _: b'{"session_id":1}'),
    "a session that no one has": (None, lambda _: prompt("no-such-session")),
}


@pytest.mark.parametrize("name", REQUESTS)
async def test_a_prompt_is_answered_as_its_route_would(name):
    status, body = REQUESTS[name]
    async with open_place() as (address, place, session):
        path = f"{place.path}/agent"
        if "before" in name:
            await post(address, path, body(session), whole=True)
        answers = [await post(address, path, body(session), whole=whole) for whole in (True, False)]
    assert answers[0] == answers[1]
    assert status is None or answers[0][0] == status


async def test_a_full_queue_is_told_as_its_route_would_and_when_to_try_again():
    gate = Gate()
    async with open_place(WrittenTurns({"wait": [Pause(gate)]})) as (address, place, session):
        path = f"{place.path}/agent"
        await post(address, path, prompt(session, prompt="wait", run_id="1"), whole=True)
        await gate.reached()
        await post(address, path, prompt(session, run_id="2"), whole=True)
        over = prompt(session, run_id="3")
        answers = [await post(address, path, over, whole=whole) for whole in (True, False)]
    (status, headers, text), other = answers
    assert other == answers[0]
    assert (status, headers[b"retry-after"], orjson.loads(text)["code"]) == (
        429,
        b"1",
        "queue_full",
    )


@pytest.mark.parametrize("wid", ["nobody", "x" * 300, "a%00b"])
async def test_a_prompt_for_a_workspace_that_cannot_be_is_refused_as_its_route_would(wid):
    async with open_place() as (address, _place, session):
        path = f"/v1/workspaces/{wid}/agent"
        answers = [
            await post(address, path, prompt(session), whole=whole) for whole in (True, False)
        ]
    assert answers[0] == answers[1]
    assert answers[0][0] in {400, 404}


async def crash(*_args):
    await trio.lowlevel.checkpoint()
    raise RuntimeError("secret")


async def test_what_goes_wrong_in_here_is_told_and_logged_as_its_route_would(monkeypatch, caplog):
    monkeypatch.setattr(direct, "accept", crash)
    monkeypatch.setattr(routes_agent, "accept", crash)
    async with open_place() as (address, place, session):
        path = f"{place.path}/agent"
        answers = [
            await post(address, path, prompt(session), whole=whole) for whole in (True, False)
        ]
    assert answers[0] == answers[1]
    assert answers[0][0] == 500
    assert b"secret" not in answers[0][2]
    logged = [each.message for each in caplog.records if each.levelno >= logging.ERROR]
    assert logged == ["request.crashed"] * 2


async def test_only_whole_prompts_are_kept_from_the_framework(monkeypatch):
    seen = []
    handle = routed().handle_request

    async def noting(request):
        if request.path.endswith("/agent"):
            seen.append(request.path)
        return await handle(request)

    monkeypatch.setattr(routed(), "handle_request", noting)
    async with open_place() as (address, place, session):
        path = f"{place.path}/agent"
        await post(address, path, prompt(session), whole=True)
        assert seen == []
        await post(address, path, prompt(session), whole=False)
        await post(address, f"{path}?x=1", prompt(session), whole=True)
        assert seen == [path, path]


def test_the_rules_are_those_of_routes():
    rules = routed().url_map.iter_rules()
    known = {(method, rule.rule) for rule in rules for method in rule.methods}
    assert ("POST", direct.PROMPT) in known
    assert {("GET", each.rule) for each in direct.READS} <= known


# ── What is read ────────────────────────────────────────────────────────────────────────────────


async def get(address, target, *, whole):
    """Send a request that reads, whole or with the end of its body later, and return the answer."""
    async with open_client(address) as client:
        head = b"GET %b HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Length: 1\r\n\r\n"
        client.parser.send(h11.Request(method="GET", target=target, headers=[("Host", "t")]))
        await client.stream.send_all(head % (target.encode(), address.port) + b"x" * whole)
        if not whole:
            await trio.testing.wait_all_tasks_blocked(0.02)
            await client.stream.send_all(b"x")
        answer, text = await client.answer()
    headers = {key: value for key, value in answer.headers if key != b"date"}
    return answer.status_code, headers, text


READS = [
    ("/v1/health", 200),
    ("W", 200),
    ("W/agent", 200),
    ("W/agent/sessions/S", 200),
    ("W/agent/sessions/none", 404),
    ("W/sessions", 200),
    ("W/sessions/S", 200),
    ("W/sessions/none", 404),
    ("W/sessions/S/messages", 200),
    ("W/sessions/none/messages", 200),
    ("W/sessions/S/messages?limit=1", 200),
    ("W/sessions/S/messages?limit=1&limit=x", 200),
    ("W/sessions/S/messages?limit=0", 400),
    ("W/sessions/S/messages?limit=%E9", 400),
    ("W/sessions/S/messages?before=none", 400),
    ("/v1/workspaces/none/sessions", 404),
    (f"/v1/workspaces/{'x' * 300}/sessions", 400),
    ("W/sessions/a%00b/messages", 400),
    ("W/sessions/a%2Fb/messages", 404),
]


@pytest.mark.parametrize(("target", "status"), READS)
async def test_what_is_read_is_answered_as_its_route_would(target, status):
    async with open_place() as (address, place, session):
        assert (await place.submit(session, "hello")).status == 202
        path = target.replace("W", place.path).replace("/S", f"/{session}")
        answers = [await get(address, path, whole=whole) for whole in (True, False)]
    assert answers[0] == answers[1]
    assert answers[0][0] == status


async def test_what_clients_poll_is_kept_from_the_framework(monkeypatch):
    seen = []
    handle = routed().handle_request

    async def noting(request):
        seen.append(request.path)
        return await handle(request)

    async with open_place() as (address, place, session):
        monkeypatch.setattr(routed(), "handle_request", noting)
        for rest in ("/agent", "/sessions", f"/sessions/{session}/messages"):
            assert (await get(address, place.path + rest, whole=True))[0] == 200
        assert seen == []
        await get(address, f"{place.path}/agent", whole=False)
        assert seen == [f"{place.path}/agent"]
