"""A connection can always be ended, and a bad client harms itself alone, whichever server has it.

Where the stack as it is shipped fails, a second test shows that it does: when one of those goes red
after an upgrade, the remedy beside it may no longer be needed.
"""

import socket
import struct
from pathlib import Path

import h11
import pytest
import trio
import trio.testing

from crush_trio.server.http.outgoing import LINGER
from tests.server.raw_client import SMALL, header, open_client
from tests.server.tiny_app import (
    FRAME,
    LAST,
    TinyApp,
    live,
    open_own_server,
    open_safe_hypercorn,
    open_stock_server,
)

pytestmark = [pytest.mark.slow, pytest.mark.real_clock]

SOON = 2.0
"""Long enough for anything that should happen at once, on a busy machine."""

LARGE = bytes(8_000_000)

A_WHILE = 0.25
"""Long enough to see that something does not happen."""


async def happens(event, within=SOON):
    with trio.move_on_after(within):
        await event.wait()
    return event.is_set()


@pytest.fixture
def app():
    return TinyApp()


@pytest.fixture(params=[open_own_server, open_safe_hypercorn], ids=["own", "hypercorn"])
def open_server(request):
    """What serves an application safely: our own server, or Hypercorn made safe."""
    return request.param


async def stall(client, app, path="/flood"):
    """Ask for more than the client will ever read, and wait until no more is produced."""
    await client.request(path)
    await app.opened.wait()
    await trio.testing.wait_all_tasks_blocked(0.03)


# ── Clients that stop reading ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("how", ["stop", "cancel"])
async def test_a_stalled_client_cannot_keep_the_server_from_ending(app, how, open_server):
    async with open_server(app.quart, grace=0.1) as server:
        async with open_client(server.address, receive_buffer=SMALL) as client:
            await stall(client, app)
            server.stop.set() if how == "stop" else server.cancel()
            assert await happens(server.stopped)
            assert app.ended.is_set()


@pytest.mark.parametrize("how", ["stop", "cancel"])
async def test_as_shipped_a_stalled_client_keeps_the_server_from_ending(app, how):
    async with open_stock_server(app.quart, graceful_timeout=0.1) as server:
        async with open_client(server.address, receive_buffer=SMALL) as client:
            await stall(client, app)
            server.stop.set() if how == "stop" else server.cancel()
            assert not await happens(server.stopped, within=A_WHILE)
        assert await happens(server.stopped)


async def test_a_stalled_client_is_dropped_and_others_are_served_meanwhile(app):
    async with open_own_server(app.quart, send_limit=0.3) as server:
        async with open_client(server.address, receive_buffer=SMALL) as client:
            await stall(client, app)
            async with open_client(server.address) as other:
                assert await other.get("/hello") == (200, b"hello")
                assert not app.ended.is_set()
            assert await happens(app.ended)
            with trio.fail_after(SOON):
                assert FRAME in await client.wait_closed()


async def test_a_stalled_client_holds_no_more_than_the_buffers_of_the_kernel(app, open_server):
    async with open_server(app.quart, grace=0) as server:
        async with open_client(server.address, receive_buffer=SMALL) as client:
            await stall(client, app)
            assert app.produced < 2_000
            stalled_at = app.produced
            await trio.sleep(A_WHILE)
            assert app.produced == stalled_at
            server.stop.set()


@pytest.mark.parametrize("begin", [True, False], ids=["unframed", "chunked"])
async def test_a_slow_reader_gets_every_byte_in_order(app, begin):
    app.begin = begin
    frames = 1_500
    async with open_own_server(app.quart, send_limit=0.3) as server:
        async with open_client(server.address, receive_buffer=SMALL) as client:
            await stall(client, app, f"/flood?frames={frames}")
            assert app.produced < frames, "the client was not slow at all"
            head, body = await client.answer()
            assert (header(head, "Transfer-Encoding") == "chunked") is not begin
            assert body == FRAME * frames


async def test_a_client_may_take_longer_than_the_limit_if_it_goes_on_reading(app):
    async with open_own_server(app.quart, send_limit=0.2) as server:
        async with open_client(server.address, receive_buffer=SMALL) as client:
            await client.request("/one-large")
            started = trio.current_time()
            while trio.current_time() < started + 0.6:
                assert await client.stream.receive_some(SMALL), "it was dropped while reading"
                await trio.sleep(0.01)
            assert b"x" in await client.stream.receive_some(SMALL)


async def test_nothing_follows_a_write_that_was_cut_short(open_server):
    """Half a piece is out; what came after it would be read as its other half."""
    cut_short, read_on = trio.Event(), trio.Event()

    async def application(scope, receive, send):
        if scope["type"] == "lifespan":
            await live(receive, send)
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        try:
            with trio.move_on_after(0.1):
                await send({"type": "http.response.body", "body": LARGE, "more_body": True})
        finally:
            with trio.CancelScope(shield=True):
                cut_short.set()
                await read_on.wait()
                await send({"type": "http.response.body", "body": b"tail"})

    async with open_server(application) as server:
        async with open_client(server.address, receive_buffer=SMALL) as client:
            await client.request("/")
            with trio.fail_after(SOON):
                await cut_short.wait()
                received = await client.stream.receive_some(1_000_000)
                read_on.set()
                received += await client.wait_closed()
    assert received.startswith(b"HTTP/1.1 200")
    assert b"tail" not in received


# ── Clients that leave ──────────────────────────────────────────────────────────────────────────


async def open_quiet_stream(client, app):
    await client.request("/quiet")
    head = await client.next_event()
    assert head.status_code == 200
    await app.opened.wait()
    return head


async def test_a_client_that_leaves_a_silent_stream_is_noticed_at_once(app, open_server):
    async with open_server(app.quart) as server:
        async with open_client(server.address) as client:
            await open_quiet_stream(client, app)
            assert not app.ended.is_set()
        assert await happens(app.ended)


async def test_a_client_that_closes_its_side_only_counts_as_gone(app, open_server):
    async with open_server(app.quart) as server:
        async with open_client(server.address) as client:
            await open_quiet_stream(client, app)
            await client.stream.send_eof()
            assert await happens(app.ended)


async def test_a_client_that_has_left_before_it_was_met_harms_nobody(app, open_server, caplog):
    at_once = struct.pack("ii", 1, 0)
    async with open_server(app.quart) as server:
        for _ in range(3):
            async with open_client(server.address) as client:
                client.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
        async with open_client(server.address) as client:
            assert await client.get("/hello") == (200, b"hello")
    assert "connection.failed" not in caplog.messages


async def leave_with_a_second_request(server, app, when):
    async with open_client(server.address) as client:
        more = b"GET /hello HTTP/1.1\r\nHost: test\r\n\r\n"
        await client.request("/quiet", after=more if when == "at once" else b"")
        await client.next_event()
        if when == "later":
            await client.stream.send_all(more)
            await trio.sleep(0.05)


@pytest.mark.parametrize("when", ["at once", "later"])
async def test_a_client_that_spoke_out_of_turn_is_still_seen_to_leave(app, when, open_server):
    async with open_server(app.quart) as server:
        await leave_with_a_second_request(server, app, when)
        assert await happens(app.ended)


@pytest.mark.parametrize("when", ["at once", "later"])
async def test_a_client_that_speaks_out_of_turn_does_not_end_its_stream(app, when, open_server):
    async with open_server(app.quart) as server:
        async with open_client(server.address) as client:
            more = b"GET /hello HTTP/1.1\r\nHost: test\r\n\r\n"
            await client.request("/quiet", after=more if when == "at once" else b"")
            await client.next_event()
            if when == "later":
                await client.stream.send_all(more)
            await trio.testing.wait_all_tasks_blocked(0.03)
            app.draining.set()
            with trio.fail_after(SOON):
                assert b"".join([data async for data in client.body()]) == FRAME + LAST


@pytest.mark.parametrize("when", ["at once", "later"])
async def test_as_shipped_a_client_that_spoke_out_of_turn_seems_to_stay_for_ever(app, when):
    async with open_stock_server(app.quart, graceful_timeout=0) as server:
        await leave_with_a_second_request(server, app, when)
        assert not await happens(app.ended, within=A_WHILE)


async def test_requests_sent_ahead_are_answered_in_turn(app, open_server):
    async with open_server(app.quart) as server:
        async with open_client(server.address) as client:
            request = b"GET /hello HTTP/1.1\r\nHost: test\r\n\r\n"
            last = b"GET /hello HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n"
            await client.stream.send_all(request + request + last)
            with trio.fail_after(SOON):
                assert (await client.wait_closed()).count(b"hello") == 3


# ── Streams ─────────────────────────────────────────────────────────────────────────────────────


async def test_a_stream_has_no_chunks_and_ends_with_the_connection(app, open_server):
    async with open_server(app.quart) as server:
        async with open_client(server.address) as client:
            head = await open_quiet_stream(client, app)
            assert header(head, "Transfer-Encoding") is None
            assert header(head, "Content-Length") is None
            assert header(head, "Connection") == "close"
            app.draining.set()
            with trio.fail_after(SOON):
                assert b"".join([data async for data in client.body()]) == FRAME + LAST


async def test_a_stream_that_was_begun_and_refused_is_answered_and_closed(app, open_server):
    async with open_server(app.quart, keep_alive=60) as server:
        async with open_client(server.address) as client:
            with trio.fail_after(SOON):
                assert await client.get("/regret") == (404, b"no stream here")
                assert await client.wait_closed() == b""


async def test_a_stream_outlives_the_keep_alive_time(app, open_server):
    async with open_server(app.quart, keep_alive=0.1) as server:
        async with open_client(server.address) as client:
            await open_quiet_stream(client, app)
            assert not await happens(app.ended, within=A_WHILE)


@pytest.mark.parametrize(("limit", "ends"), [(None, False), (0.1, True)])
async def test_a_stream_lives_for_ever_only_without_quarts_own_limit(app, limit, ends, open_server):
    app.quart.config["RESPONSE_TIMEOUT"] = limit
    async with open_server(app.quart) as server:
        async with open_client(server.address) as client:
            await open_quiet_stream(client, app)
            assert await happens(app.ended, within=A_WHILE) is ends


# ── Idle connections ────────────────────────────────────────────────────────────────────────────


async def test_idle_connections_are_closed_after_the_keep_alive_time(app, open_server):
    async with open_server(app.quart, keep_alive=0.2) as server:
        async with open_client(server.address) as client, open_client(server.address) as silent:
            assert await client.get("/hello") == (200, b"hello")
            assert await client.get("/hello") == (200, b"hello")
            with trio.fail_after(SOON):
                assert await client.wait_closed() == b""
                assert await silent.wait_closed() == b""


@pytest.mark.parametrize("used", [True, False])
async def test_a_client_that_leaves_is_not_kept_for_as_long_as_an_idle_one(app, used, open_server):
    async with open_server(app.quart, keep_alive=60) as server:
        before = open_files()
        async with open_client(server.address) as client:
            if used:
                await client.get("/hello")
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert open_files() == before


def open_files():
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_as_shipped_idle_connections_stay_for_ever(app):
    async with open_stock_server(app.quart, keep_alive_timeout=0.05, graceful_timeout=0) as server:
        async with open_client(server.address) as client:
            assert await client.get("/hello") == (200, b"hello")
            with trio.move_on_after(A_WHILE) as waiting:
                await client.wait_closed()
            assert waiting.cancelled_caught


async def test_an_idle_connection_does_not_hold_up_the_end(app, open_server):
    async with open_server(app.quart, grace=60) as server:
        async with open_client(server.address) as client:
            await client.get("/hello")
            server.stop.set()
            assert await happens(server.stopped)


async def test_as_shipped_an_idle_connection_holds_up_the_end(app):
    async with open_stock_server(app.quart, graceful_timeout=0.5) as server:
        async with open_client(server.address) as client:
            await client.get("/hello")
            server.stop.set()
            assert not await happens(server.stopped, within=A_WHILE)
            assert await happens(server.stopped)


@pytest.mark.parametrize("close", [True, False])
async def test_a_response_that_closes_is_followed_by_the_close(app, close, open_server):
    async with open_server(app.quart, keep_alive=60) as server:
        async with open_client(server.address) as client:
            await client.request("/hello", headers=[("Connection", "close")] if close else ())
            assert (await client.answer())[1] == b"hello"
            with trio.move_on_after(LINGER / 2 if close else A_WHILE) as waiting:
                await client.wait_closed()
            assert waiting.cancelled_caught is not close
            server.cancel()


# ── Answers that come before the end of the question ────────────────────────────────────────────


async def test_a_client_still_sending_gets_the_answer_that_refuses_it(app, open_server):
    size = 4_000_000
    async with open_server(app.quart) as server:
        async with open_client(server.address) as client, trio.open_nursery() as nursery:
            await client.stream.send_all(
                b"POST /too-large HTTP/1.1\r\nHost: test\r\nContent-Length: %d\r\n\r\n" % size
            )
            nursery.start_soon(client.stream.send_all, bytes(size))
            with trio.fail_after(SOON):
                answer = await client.wait_closed()
            assert answer.startswith(b"HTTP/1.1 413 ")
            assert answer.endswith(b"the body is too large")


async def test_a_client_that_never_closes_its_side_is_not_waited_for(app, open_server):
    async with open_server(app.quart, grace=60) as server:
        async with open_client(server.address) as client:
            await client.request("/hello", headers=[("Connection", "close")])
            assert (await client.answer())[1] == b"hello"
            assert await client.next_event() == h11.ConnectionClosed()
            server.stop.set()
            assert await happens(server.stopped, within=SOON + 1)
