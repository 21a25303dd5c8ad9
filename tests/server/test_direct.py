"""A direct row is answered the same whether Quart was asked or not.

A request that arrives whole is answered directly; one whose last byte comes later goes through Quart.
"""

import logging
import re
from contextlib import asynccontextmanager

import h11
import orjson
import pytest
import trio.testing
from attrs import evolve

from crush_trio.limits import SizeLimits
from crush_trio.server import app as server_app
from crush_trio.server.app import create_app
from crush_trio.server.bodies import BodyLimits
from crush_trio.server.routes import ROUTES
from crush_trio.server.routing import EVENTS, Matcher, quart_views
from crush_trio.server.routing.quart_views import quart_app
from crush_trio.testing import Gate
from crush_trio.testing.server.server import WrittenTurns, client_id, open_test_server
from crush_trio.testing.server.turns import Pause
from tests.server.raw_client import open_client
from tests.server.tiny_app import open_own_server

pytestmark = [pytest.mark.slow, pytest.mark.real_clock]

A = client_id(1)
SIZES = SizeLimits(prompt=1000, queue=1)
LIMIT = BodyLimits.of(SIZES).size
_NEW = re.compile(rb'id-[0-9]+|(?<="(?:cre|upd)ated_at":)[0-9]+')
DIRECT = [route for route in ROUTES if route.direct and route.media != EVENTS]


@asynccontextmanager
async def open_place(turns=None):
    """Open a workspace with a session on a server in memory, and that server on a socket."""
    async with open_test_server(turns, sizes=SIZES) as served:
        place = await served.create(A)
        session = await place.create_session()
        with await place.watch(A):
            async with open_own_server(create_app(served.server), grace=0) as server:
                yield server.address, place, session


async def send(address, method, target, body=b"x", *, whole):
    """Send a request, whole or in two pieces; return the status, the headers and the body."""
    async with open_client(address) as client:
        head = b"%b %b HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Length: %d\r\n\r\n"
        data = head % (method.encode(), target.encode(), address.port, len(body)) + body
        cut = len(data) if whole else len(data) - 1
        client.parser.send(h11.Request(method=method, target=target, headers=[("Host", "t")]))
        await client.stream.send_all(data[:cut])
        if not whole:
            await trio.testing.wait_all_tasks_blocked(0.02)
            await client.stream.send_all(data[cut:])
        answer, text = await client.answer()
    headers = {key: value for key, value in answer.headers if key != b"date"}
    return answer.status_code, headers, text


async def both(address, method, target, body=b"x"):
    """Send the same request both ways; return its answer, which must be the same but for new ids and the time."""
    answers = [await send(address, method, target, body, whole=whole) for whole in (True, False)]
    shown = [
        (status, headers, _NEW.sub(b"new", text) if method == "POST" else text)
        for status, headers, text in answers
    ]
    assert shown[0] == shown[1]
    return answers[0]


def prompt(session, **more):
    return orjson.dumps({"session_id": session, "prompt": "hello", **more})


# ── All direct rows ─────────────────────────────────────────────────────────────────────────────


def row_id(route):
    return f"{route.method} {route.path}"


def target_of(route, place, session, **values):
    path = route.path.replace("/v1/workspaces/{wid}", place.path)
    return path.format(**{"sid": session, "rid": "run", **values})


def body_for(route, session):
    if route.body is None:
        return b"x"
    return prompt(session) if route.path.endswith("/agent") else b"{}"


@pytest.mark.parametrize("route", DIRECT, ids=row_id)
async def test_a_row_is_answered_directly_as_through_quart(route, monkeypatch):
    handled = []
    async with open_place() as (address, place, session):
        await send(
            address, "POST", f"{place.path}/agent", prompt(session, run_id="run"), whole=True
        )
        quart = quart_app(LIMIT)
        handle = quart.handle_request

        async def noting(request):
            handled.append(request.path)
            return await handle(request)

        monkeypatch.setattr(quart, "handle_request", noting)
        target = target_of(route, place, session)
        answer = await both(address, route.method, target, body_for(route, session))
    assert answer[0] == route.status or route.body is not None
    assert handled == [target], "asked once, by the request that came in two pieces"


@pytest.mark.parametrize("route", [row for row in DIRECT if row.parameters], ids=row_id)
@pytest.mark.parametrize("wid", ["nobody", "x" * 300, "a%00b"])
async def test_an_unknown_workspace_is_refused_directly_as_through_quart(route, wid):
    async with open_place() as (address, _place, session):
        target = route.path.format(wid=wid, sid=session, rid="run")
        status, _, _ = await both(address, route.method, target, body_for(route, session))
    assert status in {400, 404}


@pytest.mark.parametrize("route", [row for row in DIRECT if row.body is not None], ids=row_id)
@pytest.mark.parametrize("body", [b"{", b"[" * 200 + b"]" * 200, b'{"session_id":1,"id":1}', b"[]"])
async def test_a_body_that_cannot_be_read_is_refused_directly_as_through_quart(route, body):
    async with open_place() as (address, place, session):
        await both(address, route.method, target_of(route, place, session), body)


@pytest.mark.parametrize("route", DIRECT, ids=row_id)
async def test_a_crash_is_answered_and_logged_directly_as_through_quart(route, monkeypatch, caplog):
    def crash(_call):
        raise RuntimeError("secret")

    broken = evolve(route, handler=crash, needs_workspace=False, body=None, query=())
    rows = [broken if row is route else row for row in ROUTES]
    async with open_place() as (address, place, session):
        monkeypatch.setattr(server_app, "MATCHER", Matcher.of(rows))
        monkeypatch.setattr(quart_views, "ROUTES", rows)
        quart_app.cache_clear()
        try:
            target = target_of(route, place, session)
            caplog.clear()
            status, _, text = await both(address, route.method, target)
        finally:
            quart_app.cache_clear()
    assert status == 500
    assert b"secret" not in text
    logged = [each.message for each in caplog.records if each.levelno >= logging.ERROR]
    assert logged == ["request.crashed"] * 2


# ── Prompts ─────────────────────────────────────────────────────────────────────────────────────

PROMPTS = {
    "a prompt": (202, lambda session: prompt(session)),
    "one that was sent before": (200, lambda session: prompt(session, run_id="same")),
    "a prompt that says nothing": (400, lambda session: prompt(session, prompt="")),
    "a prompt that is too long": (413, lambda session: prompt(session, prompt="x" * 2000)),
    "a wrong type": (400, lambda _: b'{"session_id":1}'),
    "a session that no one has": (202, lambda _: prompt("no-such-session")),
}


@pytest.mark.parametrize("name", PROMPTS)
async def test_a_prompt_is_answered_directly_as_through_quart(name):
    status, body = PROMPTS[name]
    async with open_place() as (address, place, session):
        path = f"{place.path}/agent"
        if "before" in name:
            await send(address, "POST", path, body(session), whole=True)
        assert (await both(address, "POST", path, body(session)))[0] == status


async def test_a_full_queue_is_refused_with_the_time_to_try_again():
    gate = Gate()
    async with open_place(WrittenTurns({"wait": [Pause(gate)]})) as (address, place, session):
        path = f"{place.path}/agent"
        first = prompt(session, prompt="wait", run_id="1")
        await send(address, "POST", path, first, whole=True)
        await gate.reached()
        await send(address, "POST", path, prompt(session, run_id="2"), whole=True)
        status, headers, text = await both(address, "POST", path, prompt(session, run_id="3"))
    code = orjson.loads(text)["code"]
    assert (status, headers[b"retry-after"], code) == (429, b"1", "queue_full")


# ── Queries ─────────────────────────────────────────────────────────────────────────────────────

READS = [
    ("GET W/agent/sessions/none", 404),
    ("GET W/sessions/none", 404),
    ("GET W/sessions/none/messages", 200),
    ("GET W/sessions/S/messages?limit=1", 200),
    ("GET W/sessions/S/messages?limit=1&limit=x", 200),
    ("GET W/sessions/S/messages?limit=0", 400),
    ("GET W/sessions/S/messages?limit=%E9", 400),
    ("GET W/sessions/S/messages?before=none", 400),
    ("GET W/sessions/a%00b/messages", 400),
    ("GET W/sessions/a%2Fb/messages", 404),
    ("GET W/runs?session_id=S&limit=1", 200),
    ("GET W/runs?limit=x", 400),
    ("GET W/runs/none", 404),
    ("POST W/agent/sessions/S/cancel?receipt=1", 200),
    ("POST W/agent/sessions/S/cancel?receipt=2", 400),
    ("POST W/agent/sessions/S/cancel?queue=some", 400),
    ("POST W/runs/none/cancel?receipt=2", 404),
]


@pytest.mark.parametrize(("request_line", "status"), READS)
async def test_a_query_is_read_directly_as_through_quart(request_line, status):
    async with open_place() as (address, place, session):
        assert (await place.submit(session, "hello")).status == 202
        await trio.testing.wait_all_tasks_blocked(0.05)
        method, target = request_line.split()
        target = target.replace("W", place.path).replace("/S", f"/{session}")
        assert (await both(address, method, target))[0] == status


async def test_a_head_is_left_to_quart():
    async with open_place() as (address, place, _session):
        async with open_client(address) as client:
            client.parser.send(h11.Request(method="HEAD", target="/", headers=[("Host", "t")]))
            head = b"HEAD %b/sessions HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n"
            await client.stream.send_all(head % (place.path.encode(), address.port))
            answer, text = await client.answer()
    assert (answer.status_code, text) == (200, b"")
