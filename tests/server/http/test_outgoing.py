"""What the system takes for a client that does not read, on real sockets."""

import socket
from contextlib import contextmanager

import pytest
import trio

from crush_trio.server.http.outgoing import BACKLOG, Outgoing

pytestmark = [pytest.mark.slow, pytest.mark.real_clock]

WINDOW = 16384


@contextmanager
def connected(family, folder):
    """Give both ends of a connection, the second of which reads nothing and has little room."""
    address = str(folder / "socket") if family == socket.AF_UNIX else ("127.0.0.1", 0)
    with socket.socket(family) as listener, socket.socket(family) as client:
        listener.bind(address)
        listener.listen()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, WINDOW)
        client.connect(listener.getsockname())
        with listener.accept()[0] as server:
            server.setblocking(False)
            yield trio.SocketStream(trio.socket.from_stdlib_socket(server)), client


def taken(outgoing):
    """Return how many bytes can be sent before anything is read."""
    total = 0
    while sent := outgoing.send_now(bytes(16384)):
        total += sent
    return total


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_UNIX], ids=["tcp", "unix"])
async def test_the_system_holds_little_of_a_stream_that_is_not_read(family, tmp_path):
    with connected(family, tmp_path) as (stream, _client):
        outgoing = Outgoing(stream, trio.CancelScope())
        outgoing.limit_backlog()
        assert 0 < taken(outgoing) <= 8 * BACKLOG


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_UNIX], ids=["tcp", "unix"])
async def test_all_of_it_arrives_when_the_client_reads_on(family, tmp_path):
    data = bytes(range(256)) * 4000
    with connected(family, tmp_path) as (stream, client):
        outgoing = Outgoing(stream, trio.CancelScope())
        outgoing.limit_backlog()
        received = bytearray()

        def read():
            while len(received) < len(data):
                received.extend(client.recv(65536))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, read)
            await outgoing.send(data)
        assert received == data
