"""The scenarios of the clients once more, each with real connections to a real server, in real time."""

import socket
from collections import defaultdict
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from pathlib import PurePosixPath

import h11
import orjson
import pytest
import trio
from attrs import define, field

from crush_trio.backend.backend import open_backend
from crush_trio.backend.open import open_hosted_workspace
from crush_trio.backend.settings import WorkspaceSettings
from crush_trio.server import TcpAddress, UnixAddress
from crush_trio.server.app import create_app
from crush_trio.server.http.serve import serve
from crush_trio.server.server import Server
from crush_trio.testing.server.asgi import AsgiResponse
from crush_trio.testing.server.server import MemoryStores, Served
from tests.server.scenarios import SCENARIOS, A, set_the_table

pytestmark = [pytest.mark.slow, pytest.mark.real_clock]

LIMIT = 20
"""Seconds that a scenario may take; each is over in a fraction of one."""


# ── A client ────────────────────────────────────────────────────────────────────────────────────


@define(eq=False)
class SocketExchange:
    """A connection with one request on it; does what `testing.asgi.Exchange` does."""

    sock: object
    parser: h11.Connection
    over: trio.Event
    sent: trio.Event = field(factory=trio.Event)
    status: int = 0
    headers: dict = field(factory=dict)

    async def head(self):
        await self.sent.wait()
        if not self.status:
            head = await self._next()
            self.status = head.status_code
            self.headers = {name.decode(): value.decode() for name, value in head.headers}
        return self.status

    async def receive(self):
        await self.head()
        event = await self._next()
        return b"" if isinstance(event, h11.EndOfMessage) else bytes(event.data)

    async def answer(self):
        body = b""
        while piece := await self.receive():
            body += piece
        return AsgiResponse(self.status, self.headers, body)

    async def ended(self):
        await self.over.wait()

    async def _next(self):
        while (event := self.parser.next_event()) is h11.NEED_DATA:
            self.parser.receive_data(await self.sock.recv(65536))
        return event

    def hang_up(self):
        self.sock.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.hang_up()


@define(eq=False)
class SocketDriver:
    """Does what `AsgiDriver` does, with a connection for every request."""

    address: object
    over: defaultdict
    nursery: trio.Nursery
    _numbers: object = field(factory=count, init=False)

    async def request(self, method, target, body=b"", *, headers=()):
        with self.open(method, target, body, headers=headers) as exchange:
            return await exchange.answer()

    def open(self, method, target, body=b"", *, headers=()):
        tcp = isinstance(self.address, TcpAddress)
        place = (self.address.host, self.address.port) if tcp else str(self.address.path)
        host = "{}:{}".format(*place) if tcp else "api.crush.localhost"
        data = body if isinstance(body, bytes) else orjson.dumps(body)
        number = str(next(self._numbers))
        own = [("Host", host), ("Content-Length", str(len(data))), ("X-Number", number)]
        parser = h11.Connection(h11.CLIENT)
        said = b"".join(
            parser.send(event)
            for event in (
                h11.Request(method=method, target=target, headers=[*own, *headers]),
                h11.Data(data=data),
                h11.EndOfMessage(),
            )
        )
        sock = trio.socket.socket(socket.AF_INET if tcp else socket.AF_UNIX)
        exchange = SocketExchange(sock, parser, self.over[number])
        self.nursery.start_soon(self._send, exchange, place, said)
        return exchange

    async def _send(self, exchange, place, said):
        await exchange.sock.connect(place)
        await trio.SocketStream(exchange.sock).send_all(said)
        exchange.sent.set()


# ── A server ────────────────────────────────────────────────────────────────────────────────────


def noting_ends(app, over):
    """Return *app* with a note of each request that it is done with, by its number."""

    async def wrapped(scope, receive, send):
        try:
            await app(scope, receive, send)
        finally:
            over[dict(scope.get("headers", ())).get(b"x-number", b"").decode()].set()

    return wrapped


@asynccontextmanager
async def open_socket_server(turns=None, *, address, settings=None):
    """Open a server as `open_test_server` does, behind a socket at *address*."""
    stores, stop, over = MemoryStores(), trio.Event(), defaultdict(trio.Event)
    workspaces = WorkspaceSettings(make_turn=turns, open_store=stores.open)
    opener = partial(open_hosted_workspace, settings=workspaces)
    async with open_backend(opener, settings=settings, version="test") as backend:
        site = Server(backend)
        async with trio.open_nursery() as nursery:
            run = partial(
                serve,
                noting_ends(create_app(site), over),
                [address],
                shutdown=stop.wait,
                on_draining=site.drain.end_streams,
            )
            (bound,) = await nursery.start(run)
            yield Served(backend, site, SocketDriver(bound, over, nursery), stores)
            stop.set()


@pytest.fixture(params=["tcp", "unix"])
def open_server(request, tmp_path):
    tcp = TcpAddress("127.0.0.1", 0)
    unix = UnixAddress(PurePosixPath(tmp_path / "s"))
    return partial(open_socket_server, address=tcp if request.param == "tcp" else unix)


@pytest.mark.parametrize(
    "scenario",
    [
        pytest.param(scenario, id=scenario.__name__, marks=pytest.mark.item(*items))
        for scenario, items in SCENARIOS.items()
    ],
)
async def test_scenario(scenario, open_server):
    with trio.fail_after(LIMIT):
        await scenario(open_server)


@pytest.mark.item("G9")
async def test_the_headers_of_a_silent_stream_come_at_once_and_its_end_is_clean(open_server):
    with trio.fail_after(LIMIT):
        async with open_server() as server:
            place, _ = await set_the_table(server, A)
            with await place.watch(A) as events:
                await server.request("DELETE", f"/v1/clients/{A}")
                assert await events.rest() == []


async def test_a_head_request_gets_no_body(open_server):
    with trio.fail_after(LIMIT):
        async with open_server() as server:
            with server.driver.open("HEAD", "/v1/version") as exchange:
                answer = await exchange.answer()
                assert (answer.status, answer.body) == (200, b"")
                assert int(answer.headers["content-length"]) > 0
