"""A whole server in one call: a backend, its application, its sockets, and the order of their end.

`run_server` is what the command line runs and what a program embeds. The order in which it ends is
its reason to exist, for clients are to see how their runs end:

1. the streams are told that the server goes away, the sockets close, nobody new gets in;
2. the backend closes: creates and prompts are refused, runs are cancelled and end as always;
3. each workspace closes its log, and its streams send what is left in it and a last event;
4. after half of the grace, endings that a store has not taken are given up: their runs end as
   interrupted, which is what the next start will find;
5. after three quarters of it, streams of a workspace that still has not closed end anyway;
6. after the grace whatever is left is cut off. What a run's ending needs is shielded from that.

Opening workspaces with code that is imported when the server already answers.

The agent of a workspace, with its tools, its models and its store, is two fifths of the modules of this
program. Nobody needs them before the first workspace, and whoever starts a server waits for its first
answer. So they are imported in a thread: ahead of time, once the first requests have had their turn,
or for the first workspace, if that comes earlier. That it happens once, whoever is first, is Python's
own promise about modules; so there is nothing here to be set, to be locked or to be waited for.
"""

import gc
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from math import inf
from pathlib import Path
from typing import Final, Generic, Self

import trio
from attrs import evolve, field, frozen

from crush_trio import __version__
from crush_trio.agent.asks.asks import DEFAULT_PATIENCE
from crush_trio.backend.backend import Backend, open_backend
from crush_trio.backend.settings import (
    IDLE_VARIABLE,
    BackendSettings,
    OpenWorkspace,
    W,
    WorkspacePlan,
    whole_seconds,
)
from crush_trio.backend.workspace import HostedWorkspace, keeps_open
from crush_trio.config.load import chosen_limits
from crush_trio.limits import DEFAULTS, Limits, SizeLimits
from crush_trio.net.address import Address
from crush_trio.nursery import open_hidden_nursery
from crush_trio.runtime.lane import Capacity
from crush_trio.server.app import create_app
from crush_trio.server.guard import (
    TOKEN_FILE_VARIABLE,
    TOKEN_VARIABLE,
    GuardSettings,
    load_token,
)
from crush_trio.server.http.serve import GRACE, serve
from crush_trio.server.server import Meters, Site, metered
from crush_trio.tools.info import RecentLogs, keep_recent_logs

HEAD_START: Final = 0.1
"""Seconds for those who waited for the server: what they ask and the import share one interpreter."""


@frozen
class LateOpener(Generic[W]):
    """Opens workspaces with an opener that is made when it is needed.

    *make* imports what it needs and makes the opener, in a thread. It is called for each workspace:
    with everything imported, it costs nothing.
    """

    make: Callable[[], OpenWorkspace[W]]

    @asynccontextmanager
    async def open(self, plan: WorkspacePlan) -> AsyncIterator[W]:
        """Open the workspace of *plan*; if it is the first, this may have to wait for the import."""
        opener = await trio.to_thread.run_sync(self.make)
        async with opener(plan) as opened:
            yield opened

    async def import_ahead(self) -> None:
        """Import what the first workspace will need, before there is one. Run it beside the server.

        Cancelling waits for the import, which cannot be stopped halfway and takes a moment.
        """
        await trio.sleep(HEAD_START)
        await trio.to_thread.run_sync(self.make)


PATIENCE_VARIABLE: Final = "CRUSH_TRIO_PATIENCE"

_OWN_SECRETS: Final = frozenset({TOKEN_VARIABLE, TOKEN_FILE_VARIABLE})
"""Variables that are for the server alone: no command of a workspace sees them."""

_ENDINGS_SHARE: Final = 0.5
_STREAMS_SHARE: Final = 0.75
_CLOSE_MARGIN: Final = 0.5
"""Seconds past the grace that the closing may take: it begins when the connections have ended."""

log = logging.getLogger(__name__)


@frozen(kw_only=True)
class HostSettings:
    """How a server treats its workspaces and its clients."""

    backend: BackendSettings = field(factory=lambda: BackendSettings(idle_linger=inf))
    guard: GuardSettings = field(factory=GuardSettings)
    sizes: SizeLimits = DEFAULTS
    """How much the server takes, keeps and does at once."""
    environment: Mapping[str, str] = field(factory=dict, repr=False)
    """What workspaces are configured by whose clients send no environment of their own."""
    patience: float = DEFAULT_PATIENCE
    """Seconds that an ask waits while nobody is there to answer it."""

    @property
    def home(self) -> Path:
        """The user's home directory, in which the user's own configuration is."""
        return Path(self.environment.get("HOME") or "/")

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Self:
        """Take the settings from *environ*; reads the file of the token, if it names one.

        Workspaces get all of *environ* but the server's token, which is no business of theirs. A
        server that somebody started stays until somebody stops it. Only where the variable for the
        idle time is set does it end by itself, as one does that a client started for itself.
        Raises `TokenUnusable`, `LimitInvalid`, and `ConfigInvalid` for limits in the user's files.
        """
        backend = BackendSettings.from_environment(environ)
        if not environ.get(IDLE_VARIABLE):
            backend = evolve(backend, idle_linger=inf)
        guard = GuardSettings(token=load_token(environ))
        return cls(
            backend=backend,
            guard=guard,
            environment={k: v for k, v in environ.items() if k not in _OWN_SECRETS},
            patience=whole_seconds(environ, PATIENCE_VARIABLE, DEFAULT_PATIENCE),
            sizes=chosen_limits(environ),
        )


async def run_server(
    addresses: Sequence[Address],
    *,
    settings: HostSettings | None = None,
    opener: OpenWorkspace[HostedWorkspace] | None = None,
    shutdown: Callable[[], Awaitable[object]] = trio.sleep_forever,
    grace: float = GRACE,
    whole_process: bool = False,
    task_status: trio.TaskStatus[tuple[Address, ...]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve workspaces on *addresses* until *shutdown* returns or the backend decides to end.

    The backend decides so when a client asks for it and when it was idle for too long. Either way
    this returns within *grace* and a second. `await nursery.start(...)` gives the addresses once
    clients are answered. *opener* opens the workspaces; by default they keep their data in SQLite
    and have the agent that is configured. *whole_process* says that the process does nothing else,
    see `settle_in`.
    """
    settings = HostSettings() if settings is None else settings
    meters = Meters()
    with trio.CancelScope() as life, keep_recent_logs() as logs:
        usual = usual_opener(settings, logs)
        async with (
            open_backend(
                metered(usual.open if opener is None else opener, meters),
                settings=settings.backend,
                sizes=settings.sizes,
                version=__version__,
                keeps_open=keeps_open,
            ) as backend,
            open_hidden_nursery() as late,
        ):
            site = Site(backend, meters=meters)
            if opener is None:
                late.start_soon(settle_in, usual, whole_process)

            def drain() -> None:
                closing = begin_drain(site)
                life.deadline = trio.current_time() + grace + _CLOSE_MARGIN
                late.start_soon(end_streams_late, site, closing, grace)

            await serve(
                create_app(site, settings.guard),
                addresses,
                shutdown=lambda: _first_of(shutdown, backend),
                on_draining=drain,
                grace=grace,
                sizes=settings.sizes,
                require_token=settings.guard.token is not None,
                task_status=task_status,
            )
            late.cancel_scope.cancel()
    if life.cancelled_caught:
        log.error("server.close_forced")


def usual_opener(settings: HostSettings, logs: RecentLogs) -> LateOpener[HostedWorkspace]:
    """Return what opens workspaces as *settings* have it: data in SQLite, the agent configured."""

    capacity = Capacity(settings.sizes.active_runs)

    def make() -> OpenWorkspace[HostedWorkspace]:
        from crush_trio.backend.open import workspace_opener

        # Prompts that come together are all answered before the first of their runs takes the stage.
        return workspace_opener(
            limits=Limits(courtesy=2),
            environment=settings.environment,
            home=settings.home,
            logs=logs,
            patience=settings.patience,
            sizes=settings.sizes,
            capacity=capacity,
        )

    return LateOpener(make)


async def settle_in(opener: LateOpener[HostedWorkspace], whole_process: bool) -> None:
    """Import what workspaces need, soon after the start. Run it beside the server.

    If the *whole_process* is the server's, what is there then will stay, and is put out of sight of the
    garbage collector. It would otherwise look at all of it again with every full collection, and
    nobody is answered meanwhile: some 60 ms each time, where 10 will do.
    """
    await opener.import_ahead()
    if whole_process:
        gc.collect()
        gc.freeze()


def begin_drain(site: Site) -> tuple[HostedWorkspace, ...]:
    """Refuse new work and end what there is; the streams of *site* see it happen, and end.

    Return the workspaces that are closing now.
    """
    closing = tuple(hosted.opened for hosted in site.backend.workspaces())
    site.drain.announce()
    site.backend.close()
    return closing


async def end_streams_late(site: Site, closing: Sequence[HostedWorkspace], grace: float) -> None:
    """See to it that streams end in time, and before that the runs that they show.

    After half of the *grace* no ending is waited for that a store has not taken; after three quarters
    of it, the streams of workspaces that have not closed end.
    """
    await trio.sleep(grace * _ENDINGS_SHARE)
    for opened in closing:
        opened.runs.hurry()
    await trio.sleep(grace * (_STREAMS_SHARE - _ENDINGS_SHARE))
    site.drain.end_streams()


async def _first_of(
    shutdown: Callable[[], Awaitable[object]], backend: Backend[HostedWorkspace]
) -> None:
    """Wait until the caller or the backend wants to end."""
    async with open_hidden_nursery() as nursery:

        async def asked() -> None:
            await shutdown()
            nursery.cancel_scope.cancel()

        nursery.start_soon(asked)
        await backend.wait_shutdown()
        nursery.cancel_scope.cancel()
