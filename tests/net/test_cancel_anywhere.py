"""A cancel at every wait of a request: no connection is left open, and the next request works."""

import gzip

import pytest
import trio
from attrs import define, field
from trio.testing import memory_stream_pair

from crush_trio.net.address import Origin
from crush_trio.net.client import Request, open_http_client
from crush_trio.net.dial import Proxy, ViaProxy, open_tunnel
from crush_trio.net.errors import ConnectionLost
from crush_trio.testing.explore.checkpoints import Call, CheckpointFaults, Fault

ORIGIN = Origin("h", 80, secure=False)
PACKED = gzip.compress(b"hello" * 50_000)
PLAIN = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"
ZIPPED = (
    b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(PACKED)
) + PACKED


@define(eq=False)
class Server:
    """Answers every request with *answer*, in pieces; closes a used connection if it is *stale*."""

    nursery: trio.Nursery
    answer: bytes
    stale: bool = False
    open: int = 0
    dialed: int = 0
    requests: list = field(factory=list)

    async def dial(self, origin):
        await trio.lowlevel.checkpoint()
        ours, theirs = memory_stream_pair()
        self.dialed += 1
        self.nursery.start_soon(self.serve, theirs)
        return ours

    async def serve(self, stream):
        self.open += 1
        try:
            async with stream:
                answered, heard = False, b""
                while data := await stream.receive_some():
                    heard += data
                    if not heard.endswith((b"\r\n\r\nx", b"0\r\n\r\n")):
                        continue
                    self.requests.append(heard)
                    heard = b""
                    if answered and self.stale:
                        return
                    for start in range(0, len(self.answer), 600):
                        await trio.sleep(0.01)
                        await stream.send_all(self.answer[start : start + 600])
                    answered = True
        except trio.BrokenResourceError:
            pass
        finally:
            self.open -= 1


@define
class Pieces:
    """A body that comes in two pieces."""

    left: int = 2

    def __aiter__(self):
        return self

    async def __anext__(self):
        await trio.sleep(0.01)
        if not self.left:
            raise StopAsyncIteration
        self.left -= 1
        return b"piece"


async def fetch(http, body=b"x"):
    request = Request(method="GET", origin=ORIGIN, target="/", body=body)
    async with http.open(request) as response:
        return await response.read(10**6)


@pytest.mark.parametrize("warm", [False, True], ids=["new connection", "used connection"])
@pytest.mark.parametrize("kind", ["plain", "zipped", "stale", "pieces"])
async def test_a_request_can_be_cancelled_anywhere(warm, kind):
    number, cancelled = 0, True
    while cancelled:
        async with trio.open_nursery() as nursery:
            answer = ZIPPED if kind == "zipped" else PLAIN
            server = Server(nursery, answer, stale=kind == "stale")
            async with open_http_client(server.dial) as http:
                if warm:
                    await fetch(http)
                with trio.CancelScope() as scope:
                    fault = Fault(number, Call(scope.cancel))
                    body = Pieces() if kind == "pieces" else b"x"
                    await CheckpointFaults([fault]).drive(fetch(http, body))
                cancelled, number = scope.cancel_called, number + 1
                await trio.sleep(10)
                assert server.open == http.idle
                assert len(await fetch(http)) > 1
            await trio.sleep(10)
            assert server.open == 0
    assert number > 5


async def test_a_tunnel_that_the_proxy_ends_is_a_lost_connection():
    ours, theirs = memory_stream_pair()
    proxy = Proxy(Origin("proxy", 3128, secure=False))
    await theirs.send_eof()
    with pytest.raises(ConnectionLost):
        await open_tunnel(ours, ORIGIN, proxy)


async def test_connections_through_a_proxy_are_used_again():
    proxy = Proxy(Origin("proxy", 3128, secure=False))
    async with trio.open_nursery() as nursery:
        server = Server(nursery, PLAIN)

        async def dial(origin):
            return ViaProxy(await server.dial(origin), proxy)

        async with open_http_client(dial) as http:
            for _ in range(2):
                assert await fetch(http) == b"ok"
    assert server.dialed == 1
    assert all(data.startswith(b"GET http://h/ HTTP/1.1\r\n") for data in server.requests)
