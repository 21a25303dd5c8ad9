"""The pool over real sockets: connections that servers close while they are idle."""

import socket
import struct

import pytest
import trio
from attrs import define, field

from crush_trio.net.address import Origin
from crush_trio.net.client import Request, open_http_client
from crush_trio.net.errors import ConnectionLost

pytestmark = [pytest.mark.slow, pytest.mark.real_clock]

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


@define(eq=False)
class Closing:
    """Answers the first request of each connection; closes it at once, or when the second comes."""

    at_once: bool
    reset: bool = False
    connections: int = 0
    closed: trio.Event = field(factory=trio.Event)

    async def serve(self, stream):
        self.connections += 1
        first = self.connections == 1
        async with stream:
            while await stream.receive_some():
                await stream.send_all(OK)
                if first and (self.at_once or await stream.receive_some()):
                    break
            if self.reset:
                linger = struct.pack("ii", 1, 0)
                stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.closed.set()


async def ask(http, port, method):
    origin = Origin("127.0.0.1", port, secure=False)
    async with http.open(Request(method=method, origin=origin, target="/")) as response:
        return await response.read(10)


@pytest.fixture
async def nursery_of_servers():
    async with trio.open_nursery() as nursery:
        yield nursery
        nursery.cancel_scope.cancel()


async def listening(nursery, server):
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    nursery.start_soon(trio.serve_listeners, server.serve, [listener])
    return listener.socket.getsockname()[1]


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_an_idle_connection_that_was_closed_is_not_used(nursery_of_servers, method, reset):
    server = Closing(at_once=True, reset=reset)
    port = await listening(nursery_of_servers, server)
    async with open_http_client() as http:
        assert await ask(http, port, method) == b"ok"
        await server.closed.wait()
        await trio.sleep(0.01)
        assert await ask(http, port, method) == b"ok"
        assert server.connections == 2


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
async def test_a_safe_request_that_met_a_closing_connection_is_repeated(nursery_of_servers, reset):
    server = Closing(at_once=False, reset=reset)
    port = await listening(nursery_of_servers, server)
    async with open_http_client() as http:
        assert [await ask(http, port, "GET") for _ in range(3)] == [b"ok"] * 3
        assert server.connections == 2
        assert http.idle == 1


async def test_any_other_request_is_not(nursery_of_servers):
    server = Closing(at_once=False)
    port = await listening(nursery_of_servers, server)
    async with open_http_client() as http:
        assert await ask(http, port, "POST") == b"ok"
        with pytest.raises(ConnectionLost):
            await ask(http, port, "POST")
        assert await ask(http, port, "POST") == b"ok"
