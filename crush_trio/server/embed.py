"""`open_server`: a server inside another program, for the length of a block."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import trio

from crush_trio.backend.settings import WorkspaceSettings
from crush_trio.net.address import Address, parse_address
from crush_trio.nursery import open_hidden_nursery
from crush_trio.server.http.serve import GRACE
from crush_trio.server.run import run_server
from crush_trio.server.settings import ServerSettings


@asynccontextmanager
async def open_server(
    *addresses: str | Address,
    settings: ServerSettings | None = None,
    workspaces: WorkspaceSettings | None = None,
    grace: float = GRACE,
) -> AsyncIterator[tuple[Address, ...]]:
    """Serve on *addresses*, `unix:///path` or `tcp://host:port`, while the block lasts.

    *workspaces* says what the workspaces have; by default what *settings* say.

    The block gets the addresses once clients are answered; an address with port 0 then has its real
    port. Leaving the block ends the server as a signal would: runs are cancelled and write their
    endings, and clients see them, within *grace*. A server that fails cancels the block and raises.
    If a client asks the server to end, it ends, and the block goes on.
    """
    places = [parse_address(each) if isinstance(each, str) else each for each in addresses]
    left = trio.Event()
    server = partial(
        run_server,
        places,
        settings=settings,
        workspaces=workspaces,
        shutdown=left.wait,
        grace=grace,
    )
    async with open_hidden_nursery() as nursery:
        bound: tuple[Address, ...] = await nursery.start(server)
        try:
            yield bound
        finally:
            left.set()
