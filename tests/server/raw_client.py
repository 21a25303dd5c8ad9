"""A client that is as slow, rude or careless as a test wants it to be.

It writes the bytes it is given and reads with h11, so that broken framing shows. It speaks over
plain Trio sockets and never reads unless it is told to.
"""

import socket
from contextlib import asynccontextmanager

import h11
import trio
from attrs import define, field

from crush_trio.server import TcpAddress

SMALL = 4096
"""A receive buffer so small that a client which does not read is full after a few frames."""


@asynccontextmanager
async def open_client(address, *, receive_buffer=None):
    """Connect to *address* and close the connection when the block ends."""
    family = socket.AF_INET if isinstance(address, TcpAddress) else socket.AF_UNIX
    sock = trio.socket.socket(family, socket.SOCK_STREAM)
    if receive_buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    with sock:
        target = (address.host, address.port) if family == socket.AF_INET else str(address.path)
        await sock.connect(target)
        yield RawClient(trio.SocketStream(sock))


@define(eq=False)
class RawClient:
    stream: trio.SocketStream
    parser: h11.Connection = field(factory=lambda: h11.Connection(h11.CLIENT))
    server: object = None
    """Who is at the other end, if a test wants to keep that here."""

    async def request(self, path, *, method="GET", headers=(), body=b"", after=b""):
        """Send a request and do not wait for the answer; *after* follows it in the same packet."""
        head = h11.Request(
            method=method,
            target=path,
            headers=[("Host", "test"), ("Content-Length", str(len(body))), *headers],
        )
        await self.stream.send_all(
            self.parser.send(head)
            + self.parser.send(h11.Data(data=body))
            + self.parser.send(h11.EndOfMessage())
            + after
        )

    async def next_event(self):
        """Return the next h11 event, reading as much as it takes."""
        while True:
            event = self.parser.next_event()
            if event is not h11.NEED_DATA:
                return event
            self.parser.receive_data(await self.stream.receive_some())

    async def answer(self):
        """Read one whole response; return its head and its body."""
        head = await self.next_event()
        body = b"".join([data async for data in self.body()])
        return head, body

    async def body(self):
        """Yield the body piece by piece, until its proper end."""
        while not isinstance(event := await self.next_event(), h11.EndOfMessage):
            yield bytes(event.data)

    async def get(self, path):
        """Ask for *path*, return the status and the body, and be ready for the next request."""
        await self.request(path)
        head, body = await self.answer()
        if self.parser.our_state is h11.DONE and self.parser.their_state is h11.DONE:
            self.parser.start_next_cycle()
        return head.status_code, body

    async def wait_closed(self):
        """Return what the server still sends until it closes, gracefully or not."""
        rest = b""
        try:
            while data := await self.stream.receive_some():
                rest += data
        except trio.BrokenResourceError:
            pass
        return rest


def header(head, name):
    """Return the values of one header, joined, or None."""
    values = [value.decode() for key, value in head.headers if key == name.lower().encode()]
    return ", ".join(values) or None
