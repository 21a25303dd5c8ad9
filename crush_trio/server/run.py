"""Runs a server: `open_server` for the length of a block, `run_server` as a task or a whole program.

Both listen first and answer probes. Then they import what takes longer (`hosting.host`, with Quart, the
codec and the routes), in a thread, and open the backend and the application. So this module imports only what
listening needs.
"""

import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

import trio
from attrs import define, field

from crush_trio.net.address import Address, parse_address
from crush_trio.nursery import check_trio, open_hidden_nursery
from crush_trio.server.guard import tokens_of
from crush_trio.server.hosting.front import Front
from crush_trio.server.http.serve import GRACE
from crush_trio.server.logging import keep_logs
from crush_trio.server.service_manager import ServiceManager
from crush_trio.server.settings import ServerSettings

if TYPE_CHECKING:
    from crush_trio.backend.settings import WorkspaceSettings

log = logging.getLogger(__name__)


@define(eq=False)
class Orders:
    """What the operator of a running server asks of it; each is given once, but `reload` any number of times."""

    stop: trio.Event = field(factory=trio.Event)
    """Set to end the server: its drain begins, if it has one."""
    hurry: trio.Event = field(factory=trio.Event)
    """Set to end the drain."""
    drained: trio.Event = field(factory=trio.Event)
    """Set by the server when the drain is over, and it ends within its grace."""
    _reload: trio.Event = field(factory=trio.Event)

    def reload(self) -> None:
        """Have the configuration of every workspace read again."""
        self._reload.set()

    async def wait_reload(self) -> None:
        """Wait for the next order to reload."""
        await self._reload.wait()
        self._reload = trio.Event()


@asynccontextmanager
async def open_server(
    *addresses: str | Address,
    settings: ServerSettings | None = None,
    workspaces: "WorkspaceSettings | None" = None,
    grace: float = GRACE,
) -> AsyncIterator[tuple[Address, ...]]:
    """Serve on *addresses*, `unix:///path` or `tcp://host:port`, while the block lasts.

    *workspaces* says what the workspaces have; by default what *settings* say.

    The block gets the addresses once clients are answered; an address with port 0 then has its real
    port. Leaving the block ends the server as a signal would: runs are cancelled and write their
    endings, and clients see them, within *grace*. A server that fails cancels the block and raises.
    If a client asks the server to end, it ends, and the block goes on.
    """
    check_trio("open_server")
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


async def run_server(
    addresses: Sequence[Address],
    *,
    settings: ServerSettings | None = None,
    workspaces: "WorkspaceSettings | None" = None,
    shutdown: Callable[[], Awaitable[object]] = trio.sleep_forever,
    grace: float = GRACE,
    drain: float = 0.0,
    orders: Orders | None = None,
    manager: ServiceManager | None = None,
    whole_process: bool = False,
    task_status: trio.TaskStatus[tuple[Address, ...]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve workspaces on *addresses* until *shutdown* returns or the backend decides to end.

    The backend decides to end when a client asks for it, or when it was idle for too long. Either way
    this returns within *grace* and a second. `await nursery.start(...)` returns the addresses once
    clients are answered. *workspaces* says what the workspaces have; by default they keep their
    data in SQLite and have the agent that is configured. *whole_process* says that the process does nothing else,
    see `settle_in`.

    With a *drain*, runs have so many seconds to end by themselves before that, see `drain_runs`. *orders* are
    the operator's, beside *shutdown*; the *manager* is told when the server stops or reads its configuration
    again. It is the caller who tells that the server is ready.

    From the moment it listens, `/v1/health` and `/v1/version` are answered (`hosting.front`). Other requests
    are when everything is open. What keeps the server from that is raised, and ends it.
    """
    settings = ServerSettings() if settings is None else settings
    front = Front(settings.guard, tokens_of(settings.guard))
    with trio.CancelScope() as life, keep_logs(settings.secrets) as logs:
        async with open_hidden_nursery() as nursery:
            bound = await nursery.start(front.listen, addresses, settings, grace)

            def started() -> None:
                log.info("server.started", extra={"addresses": list(map(str, bound))})
                task_status.started(bound)

            await import_beside("crush_trio.server.hosting.host")
            from crush_trio.server.hosting.host import default_workspaces, host_workspaces

            await host_workspaces(
                front,
                settings,
                default_workspaces(settings, logs) if workspaces is None else workspaces,
                started=started,
                shutdown=shutdown,
                grace=grace,
                drain=drain,
                orders=Orders() if orders is None else orders,
                manager=ServiceManager() if manager is None else manager,
                whole_process=whole_process,
                life=life,
            )
    if life.cancelled_caught:
        log.error("server.close_forced")


async def import_beside(name: str) -> None:
    """Import a module in a thread, so that requests are answered meanwhile.

    Cancelling waits for the import, which cannot be stopped halfway and takes a moment.
    """
    if name in sys.modules:  # a virtual clock would not see the thread
        await trio.lowlevel.checkpoint()
    else:
        await trio.to_thread.run_sync(import_module, name)
