"""What the tests of the client share: a server in memory, a client whose network can be broken."""

from contextlib import asynccontextmanager

import trio
from attrs import define

from crush_trio.client import Client, RemoteWorkspace
from crush_trio.testing.server.client import MemoryTransport, open_test_client
from crush_trio.testing.server.server import Served, open_test_server
from crush_trio.wire.ids import SessionId

FOLDER = "/srv/project"

LIMIT = 1000
"""Virtual seconds that a test may take: heartbeats would let one that hangs go on for ever."""


@define(eq=False)
class Place:
    """A client in a workspace, with one session."""

    server: Served
    network: MemoryTransport
    client: Client
    workspace: RemoteWorkspace
    session: SessionId

    async def submit(self, prompt, **more):
        return await self.workspace.submit(prompt, session=self.session, **more)

    async def cancelled_by_another(self):
        """Cancel the session without this client's network."""
        target = f"/v1/workspaces/{self.workspace.id}/agent/sessions/{self.session}/cancel"
        answer = await self.server.request("POST", f"{target}?receipt=1")
        assert answer.status == 200


@asynccontextmanager
async def open_place(turns=None, *, number=1, server=None, **options):
    """Open a server unless there is one, a client, a workspace and a session."""
    if server is None:
        async with open_test_server(turns) as server:
            async with open_place(number=number, server=server, **options) as place:
                yield place
        return
    network = MemoryTransport(server.driver)
    with trio.fail_after(LIMIT):
        async with open_test_client(server, number, transport=network) as client:
            async with client.open_workspace(FOLDER, **options) as workspace:
                session = (await workspace.sessions.create("a session")).id
                await trio.sleep(1)  # the stream tells of it too
                yield Place(server, network, client, workspace, session)


async def collected(reader, seen):
    """Read everything into *seen*, for ever."""
    async for event in reader:
        seen.append(event)
