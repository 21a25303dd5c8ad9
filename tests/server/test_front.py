"""What is answered between the moment in which a server listens and the one in which it is ready."""

import json
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from crush_trio.server.guard import tokens_of
from crush_trio.server.hosting.front import Front, NotReady
from crush_trio.server.run import open_server
from crush_trio.server.settings import ClusterSettings, GuardSettings, ServerSettings
from crush_trio.server.status import error_body
from crush_trio.store.errors import StoreTooNew
from tests.server.tiny_app import HERE

pytestmark = [pytest.mark.slow, pytest.mark.real_clock]

TOKEN = "0123456789abcdef"
OPEN = GuardSettings()
GUARDED = GuardSettings(token=TOKEN)
BEARER = f"Authorization: Bearer {TOKEN}"
PAGE = "Origin: https://pages.example"
FOREIGN = "Host: pages.example"

WAITS = (200, b"greeting")
"""What the application answers that is opened after the request."""

HEALTHY = (200, b"")
NOT_READY = (503, error_body(NotReady()))


async def greet(_scope, _receive, send):
    headers = [(b"content-length", b"8")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"greeting", "more_body": False})


@asynccontextmanager
async def listening(guard):
    """Have a front listen for the length of the block, and end."""
    front = Front(guard, tokens_of(guard))
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            [bound] = await nursery.start(front.listen, [HERE], ServerSettings(guard=guard), 1.0)
            yield front, bound
            front.close()
            await front.ended.wait()


async def send(bound, method, path, *headers):
    """Send a request on a connection of its own, and return that."""
    stream = await trio.open_tcp_stream(bound.host, bound.port)
    named = () if FOREIGN in headers else (f"Host: {bound.host}:{bound.port}",)
    lines = [f"{method} {path} HTTP/1.1", "Connection: close", *named, *headers, "", ""]
    await stream.send_all("\r\n".join(lines).encode())
    return stream


async def answer_on(stream):
    """Return the status, the headers but for the date, and the body."""
    async with stream:
        data = b"".join([piece async for piece in stream])
    head, _, body = data.partition(b"\r\n\r\n")
    first, *headers = head.decode().lower().split("\r\n")
    kept = sorted(each for each in headers if not each.startswith("date:"))
    return int(first.split()[1]), kept, body


@pytest.mark.parametrize(
    ("guard", "method", "path", "headers", "expected"),
    [
        (OPEN, "GET", "/v1/health", [], HEALTHY),
        (OPEN, "GET", "/v1/ready", [], NOT_READY),
        (OPEN, "GET", "/v1/workspaces", [], WAITS),
        (OPEN, "HEAD", "/v1/nothing", [], (200, b"")),
        (OPEN, "POST", "/v1/health", [], WAITS),
        (OPEN, "GET", "//v1/health", [], WAITS),
        # A probe may ask for any host, a page may not; and who asks for the version is no probe.
        (OPEN, "GET", "/v1/health", [FOREIGN], HEALTHY),
        (OPEN, "GET", "/v1/health", [FOREIGN, PAGE], WAITS),
        (OPEN, "GET", "/v1/health", [PAGE], WAITS),
        (OPEN, "GET", "/v1/version", [FOREIGN], WAITS),
        (OPEN, "GET", "/v1/version", ["Sec-Fetch-Site: cross-site"], WAITS),
        (OPEN, "GET", "/v1/health", ["X-Crush-Trio-Forwarded: node"], WAITS),
        (GUARDED, "GET", "/v1/health", [], HEALTHY),
        (GUARDED, "GET", "/v1/ready", [], NOT_READY),
        (GUARDED, "GET", "/v1/version", [], WAITS),
        (GUARDED, "GET", "/v1/version", ["Authorization: Bearer wrong"], WAITS),
    ],
)
async def test_a_probe_is_answered_early_and_what_the_guard_may_refuse_waits(
    guard, method, path, headers, expected
):
    async with listening(guard) as (front, bound):
        stream = await send(bound, method, path, *headers)
        await wait_all_tasks_blocked()
        front.open(greet, lambda: None)
        status, _, body = await answer_on(stream)
        assert (status, body) == expected


@pytest.mark.parametrize("path", ["/v1/health", "/v1/version"])
async def test_an_early_answer_is_that_of_the_server(path):
    async with listening(GUARDED) as (_, bound):
        early = await answer_on(await send(bound, "GET", path, BEARER))
    async with open_server(HERE, settings=ServerSettings(guard=GUARDED)) as [bound]:
        late = await answer_on(await send(bound, "GET", path, BEARER))
    assert early == late
    if path == "/v1/version":
        assert json.loads(early[2])["build_id"].startswith("crush_trio-")


async def test_a_start_that_fails_after_it_has_listened_ends_with_its_error(tmp_path):
    """Nothing says that the server listens, and its socket is gone."""

    def newer(_card, _ttl):
        assert (tmp_path / "s.sock").is_socket()
        raise StoreTooNew("schema 99")

    settings = ServerSettings(cluster=ClusterSettings(open_store=newer))
    with pytest.raises(StoreTooNew, match="schema 99"):
        async with open_server(f"unix://{tmp_path}/s.sock", settings=settings):
            pytest.fail("it has started")
    assert not (tmp_path / "s.sock").exists()
