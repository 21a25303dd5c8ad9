"""`host_workspaces`: what a server does behind its front, from its backend and its application to their end.

When a server stops, clients must still see how their runs end, so the order is:

0. with a drain, new creates and prompts are refused and runs have that time to end by themselves; clients
   are still answered;
1. the streams are told that the server shuts down, and the sockets close to new clients;
2. the backend closes: creates and prompts are refused, runs are cancelled and end as always;
3. each workspace closes its log; its streams send what is left in it and a last event;
4. after half of the grace, endings that a store has not taken are given up: their runs end as
   interrupted, which is what the next start will find;
5. after three quarters of it, streams of a workspace that has still not closed are ended;
6. after the grace everything else is cut off. What a run's ending needs is shielded from that.

The agent, its tools, its models and the store are two fifths of the modules of this program, and are
needed only when the first workspace opens. `LateOpener` imports them in a thread after the server's first
answers, or for the first workspace if that comes earlier. Python itself guarantees that a module is
imported once, so this needs no lock and no state.
"""

import gc
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, Generic

import trio
from attrs import frozen

from crush_trio.audit.log import open_audit
from crush_trio.backend.settings import OpenWorkspace, W, WorkspacePlan, WorkspaceSettings
from crush_trio.backend.workspace import HostedWorkspace
from crush_trio.errors import CrushError
from crush_trio.limits import Limits
from crush_trio.nursery import open_hidden_nursery
from crush_trio.server.app import create_app
from crush_trio.server.hosting.front import Front
from crush_trio.server.hosting.opening import open_hosting
from crush_trio.server.server import Server
from crush_trio.server.service_manager import ServiceManager
from crush_trio.server.settings import ServerSettings
from crush_trio.store.open import import_store
from crush_trio.tools.recent_logs import RecentLogs

if TYPE_CHECKING:
    from crush_trio.server.run import Orders

_ENDINGS_SHARE: Final = 0.5
_STREAMS_SHARE: Final = 0.75

_CLOSE_MARGIN: Final = 0.5
"""Seconds past the grace that closing may take: it begins when the connections have ended."""

HEAD_START: Final = 0.1
"""Seconds before the import ahead begins: the first requests and the import share one interpreter."""

log = logging.getLogger(__name__)


async def host_workspaces(
    front: Front,
    settings: ServerSettings,
    workspaces: WorkspaceSettings,
    *,
    started: Callable[[], None],
    shutdown: Callable[[], Awaitable[object]],
    grace: float,
    drain: float,
    orders: "Orders",
    manager: ServiceManager,
    whole_process: bool,
    life: trio.CancelScope,
) -> None:
    """Host *workspaces* behind *front* until *shutdown* returns, an order comes or the backend decides to end.

    Calls *started* once requests of all kinds are answered. The end of the *life* is what `run_server`
    promises. The rest is as there.
    """
    opener = late_opener(workspaces)
    async with (
        open_audit(settings.audit) as audit,
        open_hosting(settings, opener.open, audit) as server,
        open_hidden_nursery() as late,
    ):

        def end_all() -> None:
            closing = begin_drain(server)
            life.deadline = trio.current_time() + grace + _CLOSE_MARGIN
            late.start_soon(end_streams_late, server, closing, grace)

        late.start_soon(settle_in, opener, whole_process)
        late.start_soon(keep_reloading, server, orders, manager)
        front.open(create_app(server, settings.guard), on_draining=end_all)
        try:
            started()
            await _first_of(shutdown, orders.stop.wait, server.backend.wait_shutdown)
            manager.stopping(drain + grace)
            if drain and not server.backend.shutting_down:
                await drain_runs(server, drain, orders.hurry)
            orders.drained.set()
        finally:
            # Whatever ends this, the connections end before their workspaces do.
            front.close()
            with trio.move_on_after(grace + _CLOSE_MARGIN, shield=True):
                await front.ended.wait()
        late.cancel_scope.cancel()


def default_workspaces(settings: ServerSettings, logs: RecentLogs) -> WorkspaceSettings:
    """Return the default settings of workspaces: the store of the server, the agent as configured."""
    return WorkspaceSettings(
        # Prompts that arrive together are all answered before the first of their runs begins.
        limits=Limits(courtesy=2),
        environment=settings.environment,
        home=settings.home,
        secrets=settings.secrets,
        logs=logs,
        patience=settings.patience,
        sizes=settings.sizes,
        page=settings.guard.public_url or "",
        store=settings.store,
    )


async def _first_of(*waits: Callable[[], Awaitable[object]]) -> None:
    """Wait until the first of *waits* returns."""
    async with open_hidden_nursery() as nursery:

        async def wait_for(wait: Callable[[], Awaitable[object]]) -> None:
            await wait()
            nursery.cancel_scope.cancel()

        for wait in waits:
            nursery.start_soon(wait_for, wait)


async def keep_reloading(server: Server, orders: "Orders", manager: ServiceManager) -> None:
    """Read the configuration of all workspaces again at each order, until cancelled."""
    while True:
        await orders.wait_reload()
        manager.reloading()
        await reload_all(server.workspaces())
        manager.ready("Configuration read again")


async def reload_all(workspaces: Sequence[HostedWorkspace]) -> None:
    """Read the configuration of *workspaces* again; one whose files are not valid keeps what it has."""
    await trio.lowlevel.checkpoint()
    for workspace in workspaces:
        extra = {"workspace_id": workspace.id, "path": str(workspace.directory)}
        try:
            await workspace.config.reload()
        except CrushError as error:
            log.error("config.not_reloaded", extra={**extra, "error": str(error)})  # noqa: TRY400
    log.info("config.reloaded", extra={"workspaces": len(workspaces)})


# ── Stopping ────────────────────────────────────────────────────────────────────────────────────


async def drain_runs(server: Server, seconds: float, hurry: trio.Event) -> None:
    """Refuse creates and new prompts, and wait until no run is left, for at most *seconds* or until *hurry*.

    Runs that were accepted go on, the waiting ones too. Everything else is answered as before, so that
    clients can follow them, answer their asks and cancel them.
    """
    server.backend.draining = True
    for workspace in server.workspaces():
        workspace.draining = True
    log.info("server.finishing", extra={"runs": server.meters.live_runs, "seconds": seconds})
    with trio.move_on_after(seconds):
        if server.cluster is not None:
            await server.cluster.node.tell_draining()
        await _first_of(server.meters.wait_no_runs, hurry.wait)


def begin_drain(server: Server) -> tuple[HostedWorkspace, ...]:
    """Refuse new work and end the runs; the streams of *server* send that, and end.

    Return the workspaces that are closing now.
    """
    closing = server.workspaces()
    server.drain.announce()
    server.backend.close()
    return closing


async def end_streams_late(
    server: Server, closing: Sequence[HostedWorkspace], grace: float
) -> None:
    """Make sure that streams end in time, and before that the runs that they show.

    After half of the *grace* endings that a store has not taken are given up; after three quarters of
    it, the streams of workspaces that have not closed end.
    """
    await trio.sleep(grace * _ENDINGS_SHARE)
    for workspace in closing:
        workspace.runs.hurry()
    await trio.sleep(grace * (_STREAMS_SHARE - _ENDINGS_SHARE))
    server.drain.end_streams()


# ── Imports after the start ─────────────────────────────────────────────────────────────────────


@frozen
class LateOpener(Generic[W]):
    """Opens workspaces with an opener that is made when it is needed.

    *make* imports what it needs and makes the opener, in a thread. It is called for each workspace; once
    everything is imported, that costs nothing.
    """

    make: Callable[[], OpenWorkspace[W]]

    @asynccontextmanager
    async def open(self, plan: WorkspacePlan) -> AsyncIterator[W]:
        """Open the workspace of *plan*; for the first one this may wait for the import."""
        opener = await trio.to_thread.run_sync(self.make)
        async with opener(plan) as opened:
            yield opened

    async def import_ahead(self) -> None:
        """Import what the first workspace will need. Run it as a task beside the server.

        Cancelling waits for the import, which cannot be stopped halfway and takes a moment.
        """
        await trio.sleep(HEAD_START)
        await trio.to_thread.run_sync(self.make)


def late_opener(workspaces: WorkspaceSettings) -> LateOpener[HostedWorkspace]:
    """Return an opener for *workspaces*, which imports their code when it is first needed."""

    def make() -> OpenWorkspace[HostedWorkspace]:
        from crush_trio.backend.open import open_hosted_workspace

        if workspaces.open_store is None:
            import_store(workspaces.store)
        return partial(open_hosted_workspace, settings=workspaces)

    return LateOpener(make)


async def settle_in(opener: LateOpener[HostedWorkspace], whole_process: bool) -> None:
    """Import what workspaces need, soon after the start. Run it as a task beside the server.

    If the *whole_process* is the server's, the objects that exist then will stay, and are hidden from
    the garbage collector (`gc.freeze`). Otherwise each full collection looks at all of them again and
    delays every answer, by about 60 ms instead of 10.
    """
    await opener.import_ahead()
    if whole_process:
        gc.collect()
        gc.freeze()
