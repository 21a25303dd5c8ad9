"""What the connection does besides HTTP/1.1: other versions, nonsense, and other servers."""

import base64
import inspect
import logging
import traceback

import h2.config
import h2.connection
import h2.events
import h11
import hypercorn.trio.run as hypercorn_worker
import pytest
import trio
import trio.testing
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.protocol import ProtocolWrapper
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.utils import LifespanFailureError

from crush_trio.server import StreamNeedsHttp1, begin_stream, safe_app
from crush_trio.server.http.hypercorn import Connection
from tests.server.raw_client import SMALL, open_client
from tests.server.tiny_app import (
    FRAME,
    TinyApp,
    open_own_server,
    open_safe_hypercorn,
    open_stock_server,
)

SOON = 2.0
A_WHILE = 0.25


@pytest.fixture
def app():
    return TinyApp()


# ── HTTP/2 ──────────────────────────────────────────────────────────────────────────────────────


async def ask_over_http2(client, path, *, then=None):
    """Ask for *path* with prior knowledge of HTTP/2; yield what comes back. *then* follows it."""
    peer = h2.connection.H2Connection(h2.config.H2Configuration(validate_outbound_headers=False))
    peer.initiate_connection()
    method = "GET" if then is None else "POST"
    fields = [(":method", method), (":scheme", "http"), (":authority", "x"), (":path", path)]
    peer.send_headers(1, fields, end_stream=then is None)
    await client.stream.send_all(peer.data_to_send())
    events = []
    while not any(isinstance(event, h2.events.StreamEnded) for event in events):
        data = await client.stream.receive_some()
        if not data:
            return events
        events += peer.receive_data(data)
        await client.stream.send_all(peer.data_to_send())
    if then is not None:
        peer.send_data(1, then, end_stream=True)
        await client.stream.send_all(peer.data_to_send())
    return events


def status_in(events):
    [head] = [event for event in events if isinstance(event, h2.events.ResponseReceived)]
    return dict(head.headers)[b":status"]


@pytest.mark.parametrize(("path", "status"), [("/hello", b"200"), ("/flood", b"505")])
@pytest.mark.slow
@pytest.mark.real_clock
async def test_http2_is_for_everything_but_streams(app, path, status):
    async with open_safe_hypercorn(app.quart, grace=0) as server:
        async with open_client(server.address) as client:
            with trio.fail_after(SOON):
                assert status_in(await ask_over_http2(client, path)) == status
    assert app.produced == 0


@pytest.mark.slow
@pytest.mark.real_clock
async def test_as_shipped_a_stream_over_http2_is_buffered_without_end(app):
    app.begin = False
    async with open_stock_server(app.quart, graceful_timeout=0) as server:
        async with open_client(server.address, receive_buffer=SMALL) as client:
            window, own_buffer = 65_535, 32_768
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask_over_http2, client, "/flood")
                with trio.fail_after(SOON):
                    await app.has_produced(10 * (window + own_buffer) // len(FRAME))
                nursery.cancel_scope.cancel()


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_a_stream_may_begin_over_http1_on_a_server_that_is_not_ours(version):
    begin_stream({"http_version": version})
    begin_stream({"http_version": version, "state": {}})


@pytest.mark.parametrize("version", ["2", "3"])
def test_a_stream_may_not_begin_over_a_later_version(version):
    with pytest.raises(StreamNeedsHttp1, match=f"HTTP/1.1 only: .*HTTP/{version}"):
        begin_stream({"http_version": version})


# ── Nonsense ────────────────────────────────────────────────────────────────────────────────────


async def send_an_undecodable_path(client):
    await ask_over_http2(client, b"/\xff\xfe")


async def send_a_body_after_the_answer(client):
    await ask_over_http2(client, "/too-large", then=b"late")
    await client.wait_closed()


async def ask_for_an_upgrade_with_broken_settings(client):
    settings = base64.urlsafe_b64encode(b"odd")
    await client.stream.send_all(
        b"GET /hello HTTP/1.1\r\nHost: test\r\nConnection: Upgrade, HTTP2-Settings\r\n"
        b"Upgrade: h2c\r\nHTTP2-Settings: " + settings + b"\r\n\r\n"
    )
    await client.wait_closed()


NONSENSE = [
    send_an_undecodable_path,
    send_a_body_after_the_answer,
    ask_for_an_upgrade_with_broken_settings,
]


@pytest.mark.parametrize("nonsense", NONSENSE)
@pytest.mark.slow
@pytest.mark.real_clock
async def test_a_client_that_sends_nonsense_ends_its_own_connection_only(app, nonsense, caplog):
    async with open_safe_hypercorn(app.quart) as server:
        with trio.fail_after(SOON):
            async with open_client(server.address) as client:
                await nonsense(client)
            async with open_client(server.address) as client:
                assert await client.get("/hello") == (200, b"hello")
    [record] = [entry for entry in caplog.records if entry.message == "connection.failed"]
    assert record.levelno == logging.ERROR
    assert all("Error at " in failure for failure in record.failures)
    assert record.exc_info is None, "what the client sent does not belong in the log"


@pytest.mark.parametrize("nonsense", NONSENSE)
@pytest.mark.slow
@pytest.mark.real_clock
async def test_as_shipped_a_client_that_sends_nonsense_ends_the_server(app, nonsense):
    async def provoke():
        async with open_stock_server(app.quart) as server:
            async with open_client(server.address) as client:
                await nonsense(client)
            await server.stopped.wait()

    with trio.fail_after(SOON), pytest.raises(ExceptionGroup):
        await provoke()


@pytest.mark.parametrize(
    "garbage", [b"\x16\x03\x01\x02\x00\x01", b"HELO\r\n\r\n", b"GET / HTTP/1.1\r\n", b"\r\n" * 9]
)
@pytest.mark.parametrize("open_server", [open_own_server, open_safe_hypercorn])
@pytest.mark.slow
@pytest.mark.real_clock
async def test_garbage_and_a_hang_up_leave_no_trace(app, open_server, garbage, caplog):
    async with open_server(app.quart, keep_alive=0.1) as server:
        with trio.fail_after(SOON):
            async with open_client(server.address) as client:
                await client.stream.send_all(garbage)
                await client.wait_closed()
            async with open_client(server.address) as client:
                await client.stream.send_all(garbage)
            async with open_client(server.address) as client:
                assert await client.get("/hello") == (200, b"hello")
    assert "connection.failed" not in caplog.messages


# ── Streams that are not sockets ────────────────────────────────────────────────────────────────


class NoSocket:
    """As much of a socket as the server asks about."""

    family = None

    def getpeername(self):
        return None

    getsockname = getpeername


async def test_in_memory_a_client_that_takes_nothing_is_dropped_after_the_limit(app):
    client, stream = trio.testing.lockstep_stream_pair()
    stream.socket = NoSocket()
    context = WorkerContext(None)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.send_all, b"GET /flood HTTP/1.1\r\nHost: test\r\n\r\n")
        started = trio.current_time()
        await Connection(ASGIWrapper(app.quart), Config(), context, {}, stream, send_limit=30)
    assert trio.current_time() == pytest.approx(started + 30)
    assert app.produced == 0
    with pytest.raises(trio.ClosedResourceError):
        await stream.send_all(b"more")


# ── Under Hypercorn's own worker ────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.real_clock
async def test_hypercorns_own_worker_becomes_safe_while_it_serves_a_safe_app(app):
    assert hypercorn_worker.TCPServer is TCPServer
    async with open_stock_server(safe_app(app.quart), graceful_timeout=0.1) as server:
        async with open_client(server.address, receive_buffer=SMALL) as client:
            await client.request("/flood")
            await app.opened.wait()
            server.stop.set()
            with trio.fail_after(SOON):
                await server.stopped.wait()
    assert hypercorn_worker.TCPServer is TCPServer


@pytest.mark.parametrize(("wrap", "cut"), [(safe_app, False), (lambda app: app, True)])
@pytest.mark.slow
@pytest.mark.real_clock
async def test_a_read_timeout_does_not_cut_the_streams_of_a_safe_app(app, wrap, cut):
    settings = {"read_timeout": 0.1, "graceful_timeout": 0}
    async with open_stock_server(wrap(app.quart), **settings) as server:
        async with open_client(server.address) as client:
            await client.request("/quiet")
            await app.opened.wait()
            with trio.move_on_after(A_WHILE):
                await app.ended.wait()
            assert app.ended.is_set() is cut


@pytest.mark.parametrize(("wrap", "zombie"), [(safe_app, False), (lambda app: app, True)])
@pytest.mark.slow
@pytest.mark.real_clock
async def test_a_crash_in_a_task_of_a_safe_app_ends_the_worker(app, wrap, zombie):
    async def crash():
        async with open_stock_server(wrap(app.quart)) as server:
            async with open_client(server.address) as client:
                await client.get("/crash")
            with trio.move_on_after(A_WHILE):
                await server.stopped.wait()
            assert server.stopped.is_set() is not zombie

    if zombie:
        await crash()
    else:
        with pytest.raises(ExceptionGroup, check=lambda group: "crashed" in tell(group)):
            await crash()


def tell(group):
    return "".join(traceback.format_exception(group))


async def test_a_safe_app_that_cannot_start_says_why(app):
    @app.quart.before_serving
    async def fail():
        raise RuntimeError("no disk")

    async def start():
        async with open_stock_server(safe_app(app.quart)) as server:
            await server.stopped.wait()

    why = pytest.RaisesExc(LifespanFailureError, match="startup. 'no disk'")
    with pytest.RaisesGroup(why, flatten_subgroups=True):
        await start()
    assert hypercorn_worker.TCPServer is TCPServer


@pytest.mark.slow
@pytest.mark.real_clock
async def test_our_own_server_leaves_hypercorns_worker_as_it_is(app):
    async with open_own_server(app.quart) as server:
        async with open_client(server.address) as client:
            assert await client.get("/hello") == (200, b"hello")
            assert hypercorn_worker.TCPServer is TCPServer


# ── What we rely on ─────────────────────────────────────────────────────────────────────────────


def test_hypercorn_still_has_the_parts_that_are_replaced_here():
    """When this fails after an upgrade, read the new code before anything else."""
    assert list(inspect.signature(TCPServer).parameters) == [
        "app",
        "config",
        "context",
        "state",
        "stream",
    ]
    replaced = {
        name for name in vars(Connection) if inspect.iscoroutinefunction(vars(Connection)[name])
    }
    shipped = {
        name for name in vars(TCPServer) if inspect.iscoroutinefunction(vars(TCPServer)[name])
    }
    assert replaced & shipped == {"run", "protocol_send", "_read_data"}
    assert shipped - replaced == {"_close", "_idle_timeout", "_initiate_server_close"}
    assert "TCPServer" in hypercorn_worker.worker_serve.__code__.co_names


def test_the_parser_is_where_a_stream_looks_for_it():
    """The way from a connection to its parser, and what is asked and told there."""
    send = trio.testing.memory_stream_pair()[0].send_all
    wrapper = ProtocolWrapper(
        None, Config(), WorkerContext(None), None, {}, False, None, None, send
    )
    assert type(wrapper.protocol) is H11Protocol
    parser = wrapper.protocol.connection
    assert type(parser) is h11.Connection
    assert parser.their_http_version is None
    assert parser.trailing_data == (b"", False)
