"""A server for as long as a block lasts, for programs that have other things to do as well."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import trio

from crush_trio.backend.settings import WorkspaceSettings
from crush_trio.net.address import Address, parse_address
from crush_trio.nursery import open_hidden_nursery
from crush_trio.server.http.serve import GRACE
from crush_trio.server.run import HostSettings, run_server


@asynccontextmanager
async def open_server(
    *addresses: str | Address,
    settings: HostSettings | None = None,
    workspaces: WorkspaceSettings | None = None,
    grace: float = GRACE,
) -> AsyncIterator[tuple[Address, ...]]:
    """Serve on *addresses*, `unix:///path` or `tcp://host:port`, while the block lasts.

    *workspaces* says what the workspaces have; by default it is what *settings* say, and no more.

    The block is given the addresses once clients are answered; one that asked for any free port has
    its port then. Leaving the block ends the server as a signal would: runs are cancelled and write
    their endings, clients see them, within *grace*. A server that fails cancels the block and raises.
    One that a client has asked to end is gone, and the block goes on.
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
