"""One client's connection, served without a server around it: a pair of sockets, and time enough."""

from contextlib import asynccontextmanager

import trio
import trio.testing
from attrs import define, field

from crush_trio.limits import DEFAULTS
from crush_trio.nursery import Interrupt
from crush_trio.server.http.admission import Admission
from crush_trio.server.http.connection import Terms, serve_connection

PATIENCE = 20.0


@define(eq=False)
class Client:
    """The other end of the connection."""

    stream: trio.SocketStream
    stopping: Interrupt
    """Called by a server that stops."""
    ended: trio.Event = field(factory=trio.Event)
    """Set when the connection is no longer served."""

    async def say(self, data):
        """Say *data*, and wait until it has been heard and everybody waits for something."""
        await self.stream.send_all(data)
        await trio.testing.wait_all_tasks_blocked()

    async def rest(self):
        """Return what is said until the connection is closed, however that happens."""
        said = b""
        try:
            while data := await self.stream.receive_some():
                said += data
        except trio.BrokenResourceError:
            said += b"(reset)"
        return said


@asynccontextmanager
async def open_pair(app, serving=serve_connection, limits=DEFAULTS, **options):
    """Serve *app* to one client, which leaves when the block ends."""
    seat = Admission(limits).admit(0)
    stopping = Interrupt()
    terms = Terms(**{"app": app, "state": {}, "stopping": stopping, "keep_alive": 60.0, **options})
    ours, theirs = trio.socket.socketpair()
    client = Client(trio.SocketStream(theirs), stopping)

    async def serve():
        try:
            await serving(terms, trio.SocketStream(ours), seat)
        finally:
            client.ended.set()

    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve)
            async with client.stream:
                yield client
