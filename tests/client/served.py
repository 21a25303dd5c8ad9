"""A real server in a thread of its own, for clients that run under another library or under none."""

import os
import socket
from contextlib import contextmanager

import anyio.lowlevel
import trio
from anyio.from_thread import start_blocking_portal

from crush_trio import ServerSettings, WorkspaceSettings, open_server
from crush_trio.client.asyncio_streams import asyncio_dial
from crush_trio.net.dial import Dialer, UnixDialer
from crush_trio.net.errors import ConnectFailed

LIMIT = 30
"""Seconds that anything may take on a busy machine."""


@contextmanager
def serving(folder, turns=None):
    """Serve over a Unix socket and over TCP; gives both addresses. Without *turns*, with the offline agent."""
    environment = {"HOME": str(folder), "PATH": os.environ["PATH"]}
    if turns is None:
        options = {"settings": ServerSettings(environment=environment)}
    else:
        options = {"workspaces": WorkspaceSettings(make_turn=turns)}
    server = open_server(f"unix://{folder}/s", "tcp://127.0.0.1:0", grace=1.0, **options)
    with start_blocking_portal("trio") as portal:
        with portal.wrap_async_context_manager(server) as addresses:
            yield addresses


class Wires:
    """Connects as the client does, under any library; remembers the sockets, and can cut them."""

    def __init__(self, address):
        self.address, self.away, self.sockets = address, False, []

    async def __call__(self, origin):
        if self.away:
            await anyio.lowlevel.checkpoint()
            raise ConnectFailed("the server is away")
        unix = hasattr(self.address, "path")
        if not trio.lowlevel.in_trio_run():
            dial = asyncio_dial(self.address, {})
        else:
            dial = UnixDialer(self.address) if unix else Dialer({})
        stream = await dial(origin)
        self.sockets.append(stream.socket)
        return stream

    @property
    def open(self):
        return [each for each in self.sockets if each.fileno() >= 0]

    def cut(self):
        for each in self.open:
            with socket.socket(fileno=os.dup(each.fileno())) as twin:
                twin.shutdown(socket.SHUT_RDWR)
