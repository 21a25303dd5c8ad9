"""The pump: bytes of many streams, passed on in one task."""

import random
import socket
import struct

import pytest
import trio

from crush_trio.net.errors import ConnectionLost
from crush_trio.server.cluster.pump import open_pump

pytestmark = pytest.mark.real_clock


def pair():
    """Return an owner's side, which sends, and the side that the pump reads, as a stream of Trio."""
    owner, node = socket.socketpair()
    return owner, trio.SocketStream(trio.socket.from_stdlib_socket(node))


def always():
    return True


class Client:
    """A client that takes at most so many bytes of each piece."""

    def __init__(self, most=2**20):
        self.got = b""
        self.most = most

    def send_now(self, data):
        self.got += data[: self.most]
        return min(len(data), self.most)


@pytest.mark.parametrize("seed", range(5))
async def test_every_client_gets_the_bytes_of_its_stream_in_order(seed):
    chance = random.Random(seed)
    streams = [(*pair(), Client(chance.choice([7, 2**20]))) for _ in range(20)]
    said = [b""] * len(streams)

    async def relay(source, client):
        while rest := await pump.carry(source, client.send_now, always):
            client.got += rest  # what a slow client takes later

    async with open_pump() as pump, trio.open_nursery() as nursery:
        for _, source, client in streams:
            nursery.start_soon(relay, source, client)
        for _ in range(500):
            number = chance.randrange(len(streams))
            piece = chance.randbytes(chance.randrange(1, 100))
            streams[number][0].sendall(piece)
            said[number] += piece
            if chance.random() < 0.1:
                await trio.lowlevel.checkpoint()
        for owner, _, _ in streams:
            owner.close()
    assert [client.got for _, _, client in streams] == said
    for _, source, _ in streams:
        await source.aclose()


async def test_what_a_client_does_not_take_is_returned_and_the_rest_stays_unread():
    owner, source = pair()
    client = Client(most=3)
    owner.sendall(b"x" * 20000)
    async with open_pump() as pump, source:
        rest = await pump.carry(source, client.send_now, always)
        assert client.got == b"xxx"
        assert len(rest) == 16384 - 3
        assert len(await source.receive_some()) == 20000 - 16384
    owner.close()


async def test_nothing_is_sent_to_a_client_whose_right_was_withdrawn():
    owner, source = pair()
    client = Client()
    owner.sendall(b"secret")
    async with open_pump() as pump, source:
        assert await pump.carry(source, client.send_now, lambda: False) == b"secret"
    assert client.got == b""
    owner.close()


async def test_a_broken_connection_is_an_error_of_its_own_stream_only():
    with socket.create_server(("127.0.0.1", 0)) as server:
        broken = await trio.open_tcp_stream(*server.getsockname())
        accepted, _ = server.accept()
    owner, source = pair()
    client = Client()
    accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    async with open_pump() as pump, source, broken, trio.open_nursery() as nursery:
        nursery.start_soon(pump.carry, source, client.send_now, always)
        accepted.close()
        with pytest.raises(ConnectionLost):
            await pump.carry(broken, Client().send_now, always)
        owner.sendall(b"still here")
        owner.close()
    assert client.got == b"still here"


async def test_a_cancelled_stream_can_be_read_by_others():
    owner, source = pair()
    async with open_pump() as pump, source:
        with trio.CancelScope() as scope:
            scope.cancel()
            await pump.carry(source, Client().send_now, always)
        owner.sendall(b"for others")
        await trio.lowlevel.checkpoint()
        assert await source.receive_some() == b"for others"
        owner.close()
        assert await pump.carry(source, Client().send_now, always) == b""
