"""MCP servers at an address that answer late, too much, or something else than they were asked."""

import httpx2
import orjson
import pytest
import trio
from attrs import define, field

from crush_trio.integrations.mcp import bodies
from crush_trio.integrations.mcp.bodies import BoundedEvents
from crush_trio.integrations.mcp.session import McpFailure
from tests.config.homes import Home
from tests.integrations.mcp.test_http import served
from tests.integrations.mcp_real import open_real, script, use

TOOL = {"name": "odd", "inputSchema": {"type": "object"}}
GREETING = {
    "protocolVersion": "2025-06-18",
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "odd", "version": "1"},
}
RESULTS = {"initialize": GREETING, "tools/list": {"tools": [TOOL]}, "ping": {}}


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path)


def answer(asked, answer_to_call):
    """Return the answer to a request; None to a notification."""
    if "id" not in asked:
        return None
    if asked["method"] == "tools/call":
        return answer_to_call(asked["id"])
    return {"jsonrpc": "2.0", "id": asked["id"], "result": RESULTS[asked["method"]]}


def texts(request_id, text):
    """Return the answer to a call, with one text."""
    content = [{"type": "text", "text": text}]
    return {"jsonrpc": "2.0", "id": request_id, "result": {"content": content}}


async def body_of(receive):
    body, more = b"", True
    while more:
        event = await receive()
        body, more = body + event.get("body", b""), event.get("more_body", False)
    return body


async def respond(send, status, kind, *chunks):
    headers = [(b"content-type", kind)]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    for chunk in chunks:
        await send({"type": "http.response.body", "body": chunk, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


@define(eq=False)
class Odd:
    """A server with one tool; *answer_to_call* makes what it answers, by the id of the request."""

    answer_to_call: object
    kind: bytes = b"application/json"
    url: str = ""

    async def __call__(self, scope, receive, send):
        assert scope["type"] == "http"
        if scope["method"] != "POST":
            return await respond(send, 405, b"text/plain")
        said = answer(orjson.loads(await body_of(receive)), self.answer_to_call)
        if said is None:
            return await respond(send, 202, b"text/plain")
        data = orjson.dumps(said)
        event = b"event: message\ndata: %b\n\n" % data
        return await respond(send, 200, self.kind, event if b"event" in self.kind else data)


@define(eq=False)
class OddSse(Odd):
    """The same over the older transport: answers come on the stream that the client has opened."""

    refused: bool = False
    _answers: tuple = field(factory=lambda: trio.open_memory_channel(9), init=False)

    async def __call__(self, scope, receive, send):
        assert scope["type"] == "http"
        if scope["method"] == "POST":
            asked = orjson.loads(await body_of(receive))
            if self.refused and asked["method"] == "tools/call":
                return await respond(send, 500, b"text/plain")
            said = answer(asked, self.answer_to_call)
            if said is not None:
                self._answers[0].send_nowait(orjson.dumps(said))
            return await respond(send, 202, b"text/plain", b"Accepted")
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        event = b"event: endpoint\r\ndata: /mcp?id=1\r\n\r\n"
        while True:
            await send({"type": "http.response.body", "body": event, "more_body": True})
            event = b"event: message\r\ndata: %b\r\n\r\n" % await self._answers[1].receive()


OTHER_ID = {
    "number": lambda request_id: texts(request_id + 1000, "x"),
    "text": lambda _: texts("abc", "x"),
    "null": lambda _: {
        "jsonrpc": "2.0",
        "id": None,
        "error": {"code": -32700, "message": "what?"},
    },
}


def at(site, kind):
    return {"type": kind, "url": site.url}


async def failure_of(home, entry):
    """Return how a call of the server's tool fails, in bounded time, and the server's error then."""
    home.write(home.user_file, {"mcp": {"desk": entry}})
    async with open_real(home) as place:
        with trio.fail_after(20), pytest.raises(McpFailure) as caught:
            await use(place, "odd")
        return str(caught.value), place.servers.states()["desk"].error


pytestmark = [
    pytest.mark.real_clock,
    pytest.mark.item("I.4"),
    pytest.mark.filterwarnings("ignore:Async generator:ResourceWarning"),
]


@pytest.mark.slow
@pytest.mark.parametrize("oddity", OTHER_ID)
async def test_an_http_answer_with_another_id_ends_the_call_with_an_error(home, oddity):
    async with served(Odd(OTHER_ID[oddity])) as site:
        told, state = await failure_of(home, at(site, "http"))
    assert "its answer is not to this request: it has another id" in told
    assert state == ""  # other requests go on


@pytest.mark.slow
@pytest.mark.parametrize("oddity", OTHER_ID)
async def test_an_sse_answer_with_another_id_ends_the_connection(home, oddity):
    async with served(OddSse(OTHER_ID[oddity])) as site:
        told, _ = await failure_of(home, at(site, "sse"))
    assert ("with another id" in told) or ("could not read a request: what?" in told)


@pytest.mark.slow
async def test_an_sse_server_that_refuses_a_request_ends_the_call(home):
    async with served(OddSse(lambda _: None, refused=True)) as site:
        told, _ = await failure_of(home, at(site, "sse"))
    assert told == "it answered a request with HTTP status 500"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["json", "event-stream", "sse"])
async def test_an_answer_that_is_too_long_is_told_as_such_on_every_transport(
    home, kind, monkeypatch
):
    monkeypatch.setattr(bodies, "LONGEST_MESSAGE", 10_000)
    long = lambda request_id: texts(request_id, "x" * 50_000)  # noqa: E731
    app = OddSse(long) if kind == "sse" else Odd(long, b"application/json")
    if kind == "event-stream":
        app = Odd(long, b"text/event-stream")
    async with served(app) as site:
        told, state = await failure_of(home, at(site, "sse" if kind == "sse" else "http"))
    assert "which is too long; ask for less" in told
    assert state == ""


@pytest.mark.slow
async def test_a_command_that_answers_with_another_id_ends_the_connection(home):
    tools = orjson.dumps({"jsonrpc": "2.0", "id": 2, "result": {"tools": [TOOL]}}).decode()
    greeting = orjson.dumps({"jsonrpc": "2.0", "id": 1, "result": GREETING}).decode()
    wrong = orjson.dumps(texts(4000, "x")).decode()
    said = f"read a; echo '{greeting}'; read a; read a; echo '{tools}'; read a; echo '{wrong}'; cat"
    told, _ = await failure_of(home, script(said))
    assert "with another id (4000)" in told


FLAWED = [
    {"name": "none"},
    {"name": "empty", "inputSchema": {}},
    {"name": "null", "inputSchema": {"type": ["object", "null"], "properties": None}},
    {"name": "odd", "inputSchema": {"type": "object"}},
    {"inputSchema": {"type": "object"}},
    "no tool",
]


@pytest.mark.slow
async def test_one_flawed_tool_does_not_cost_the_others(home, monkeypatch):
    monkeypatch.setitem(RESULTS, "tools/list", {"tools": FLAWED})
    async with served(Odd(lambda request_id: texts(request_id, "fine"))) as site:
        home.write(home.user_file, {"mcp": {"desk": at(site, "http")}})
        async with open_real(home) as place:
            assert (await use(place, "odd")).text == "fine"
            assert place.servers.states()["desk"].tool_count == 4


# ── The limit on events ─────────────────────────────────────────────────────────────────────────


class Chunks(httpx2.AsyncByteStream):
    def __init__(self, data, size):
        self._left = [data[at : at + size] for at in range(0, len(data), size)]

    def __aiter__(self):
        return self

    async def __anext__(self):
        await trio.lowlevel.checkpoint()
        if not self._left:
            raise StopAsyncIteration
        return self._left.pop(0)


@pytest.mark.parametrize("size", [1, 7, 4096])
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
async def test_events_are_limited_one_by_one(size, end, monkeypatch):
    monkeypatch.setattr(bodies, "LONGEST_MESSAGE", 600)
    short = b": hello" + end * 2
    answered = b'data: {"jsonrpc": "2.0", "id": 7, "result": "%b"}' % (b"x" * 700) + end * 2
    notice = b'data: {"jsonrpc": "2.0", "method": "notice", "x": "%b"}' % (b"x" * 700) + end * 2
    data = short + answered + short + notice + b"data: rest"
    found = b"".join([each async for each in BoundedEvents(Chunks(data, size), None)])
    assert found.count(short) == 2
    assert b'"id":7' in found
    assert b"too long" in found
    assert b"xxx" not in found
    assert found.endswith(b"data: rest")


async def test_a_too_long_event_that_may_answer_any_request_ends_the_stream(monkeypatch):
    monkeypatch.setattr(bodies, "LONGEST_MESSAGE", 600)
    with pytest.raises(httpx2.StreamError, match="too long"):
        async for _ in BoundedEvents(Chunks(b"data: " + b"x" * 2000 + b"\n\n", 64), None):
            pass
