"""A server in memory whose workspaces are opened with whatever a test brings along."""

import posixpath
from contextlib import asynccontextmanager
from functools import partial

import trio

from crush_trio.backend.backend import open_backend
from crush_trio.backend.open import open_hosted_workspace
from crush_trio.backend.settings import WorkspaceSettings
from crush_trio.clock import CountingIds, TrioClock
from crush_trio.server.app import create_app
from crush_trio.server.server import Server
from crush_trio.testing.server.asgi import AsgiDriver
from crush_trio.testing.server.config import no_commands, open_fixed_config
from crush_trio.testing.server.server import MemoryStores, Served, WrittenTurns


@asynccontextmanager
async def open_server_with(**brought):
    """Open a server like `open_test_server` does, with *brought* for `WorkspaceSettings`.

    `open_config=None` reads configurations from files, which takes threads and so real time.
    """
    clock, stores = TrioClock(), MemoryStores()
    usual = {
        "make_turn": WrittenTurns(),
        "open_config": open_fixed_config,
        "open_store": stores.open,
        "opens": no_commands,
        "clock": clock,
        "ids": CountingIds("id"),
    }
    opener = partial(open_hosted_workspace, settings=WorkspaceSettings(**usual | brought))
    async with trio.open_nursery() as requests:
        async with open_backend(opener, version="test", resolve=_key, clock=clock) as backend:
            site = Server(backend)
            yield Served(backend, site, AsgiDriver(create_app(site), requests), stores)
        site.drain.end_streams()


async def _key(path):
    """Return the key of a path without asking the file system."""
    await trio.lowlevel.checkpoint()
    return posixpath.normpath(path)
