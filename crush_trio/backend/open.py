"""How a directory becomes a workspace that clients can use.

Opened from the outside in: the configuration, which says where the data is; what comes from outside;
the store; what the agent works with; the durable workspace itself. Closed the other way round, so
that a run that ends last still finds everything it needs.

What a workspace has from outside if nobody brings anything else along.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

import trio
from attrs import define, field

from crush_trio.agent.asks.asks import DEFAULT_PATIENCE, withdraw_orphans
from crush_trio.agent.coordinator import ExtraTools, no_tools
from crush_trio.agent.record.transcript import Transcript
from crush_trio.backend.agency import Agency, Asks, Extras, config_commands, make_asks, open_agency
from crush_trio.backend.assemble import open_durable_workspace
from crush_trio.backend.settings import OpenWorkspace, WorkspacePlan, use_directory
from crush_trio.backend.workspace import HostedWorkspace
from crush_trio.clock import Clock, IdSource, RandomIds, SystemClock
from crush_trio.config.errors import Notice, NoticeKind
from crush_trio.config.live import Configuration, open_live_config
from crush_trio.config.sources import Places
from crush_trio.errors import WorkspaceClosing
from crush_trio.events.facts import Fact
from crush_trio.events.log import EventLog
from crush_trio.integrations.base import (
    Integrations,
    OpenIntegrations,
    Surroundings,
    open_no_integrations,
)
from crush_trio.integrations.lsp.servers import open_language_servers
from crush_trio.integrations.mcp.servers import open_mcp_servers
from crush_trio.integrations.skills import open_skills
from crush_trio.limits import DEFAULTS, Limits, SizeLimits
from crush_trio.log_context import logged_for
from crush_trio.providers.base import Provider
from crush_trio.providers.catalog import catalog_providers
from crush_trio.runtime.lane import Capacity
from crush_trio.runtime.run import Turn
from crush_trio.store.base import Store
from crush_trio.store.sqlite.store import open_sqlite_store
from crush_trio.tools.info import RecentLogs
from crush_trio.tools.shell.jobs import OpenCommand
from crush_trio.tools.shell.process import open_process_group
from crush_trio.wire.config import CatalogProvider


@asynccontextmanager
async def open_usual_integrations(surroundings: Surroundings) -> AsyncIterator[Integrations]:
    """Open the integrations that the configuration of a workspace and its disk speak of."""
    async with (
        open_skills(surroundings) as skills,
        open_mcp_servers(surroundings) as mcp,
        open_language_servers(surroundings) as lsp,
    ):
        yield Integrations(lsp=lsp, mcp=mcp, skills=skills)


log = logging.getLogger(__name__)

_TOKEN: Final = "CRUSH_TRIO_TOKEN"

MakeTurn = Callable[[Transcript], Turn]
"""What makes a workspace's turn function, given the transcript it writes to."""

OpenStore = Callable[[Path], AbstractAsyncContextManager[Store]]
"""What opens the store of a data directory."""

Prepare = Callable[[WorkspacePlan], Awaitable[None]]
"""What makes sure that the directory of a workspace can be used."""

OpenConfig = Callable[[Places], AbstractAsyncContextManager[Configuration]]
"""What opens the configuration of a directory."""


def workspace_opener(
    *,
    environment: Mapping[str, str] | None = None,
    home: Path | None = None,
    extra_tools: ExtraTools = no_tools,
    providers: Mapping[str, Provider] | None = None,
    open_integrations: OpenIntegrations | None = None,
    make_turn: MakeTurn | None = None,
    open_config: OpenConfig | None = None,
    open_store: OpenStore | None = None,
    catalogue: Sequence[CatalogProvider] | None = None,
    clock: Clock | None = None,
    ids: IdSource | None = None,
    logs: RecentLogs | None = None,
    patience: float = DEFAULT_PATIENCE,
    opens: OpenCommand = open_process_group,
    limits: Limits | None = None,
    sizes: SizeLimits = DEFAULTS,
    capacity: Capacity | None = None,
) -> OpenWorkspace[HostedWorkspace]:
    """Return what opens workspaces for a backend.

    *environment* and *home* are the user's; what a client sends along when it creates a workspace
    wins over them.

    *extra_tools* makes the tools that the agent of a workspace has besides the built-in ones; it is
    called once per workspace. *providers* are models that the program reaches itself, by the id under
    which a configuration names them. *open_integrations* opens the language servers, MCP servers and
    skills of a workspace; the usual ones are those of its disk and its configuration, and none where
    not even its configuration is from there. With *make_turn*, runs play that instead of the agent.

    *open_store* opens the store of a workspace; by default that is SQLite on the disk, and then the
    workspace's directory has to be there. A program with a store of its own may use any path.

    *patience* is how many seconds an ask waits while nobody is there to answer it, *opens* what
    starts commands, *limits* how long a run may take for what cannot be cancelled. *sizes* limits what
    the workspaces take and keep. All workspaces of the opener
    share the places for active runs; *capacity* is given to share them with other openers.
    """
    the_clock = SystemClock() if clock is None else clock
    own = {} if providers is None else providers
    usual = open_usual_integrations if open_config is None else open_no_integrations
    opener = _Opener(
        environment={} if environment is None else environment,
        home=Path("/") if home is None else home,
        extras=Extras(tools=extra_tools, providers=own),
        open_integrations=usual if open_integrations is None else open_integrations,
        make_turn=make_turn,
        open_config=_files(the_clock, catalogue, own) if open_config is None else open_config,
        prepare=_on_disk if open_store is None else _anywhere,
        open_store=open_sqlite_store if open_store is None else open_store,
        clock=the_clock,
        ids=RandomIds() if ids is None else ids,
        logs=RecentLogs() if logs is None else logs,
        patience=patience,
        opens=opens,
        limits=limits,
        sizes=sizes,
        capacity=Capacity(sizes.active_runs) if capacity is None else capacity,
    )
    return opener.open


def _files(
    clock: Clock, catalogue: Sequence[CatalogProvider] | None, own: Iterable[str]
) -> OpenConfig:
    """Return what reads configurations from files, with commands that really run.

    The providers that the program reaches itself, *own*, are known: they need no address.
    """
    ours = tuple(CatalogProvider(id=name, name=name) for name in own)

    def opened(places: Places) -> AbstractAsyncContextManager[Configuration]:
        return open_live_config(
            places,
            catalogue=(*(catalog_providers() if catalogue is None else catalogue), *ours),
            run_command=config_commands(clock),
        )

    return opened


async def _on_disk(plan: WorkspacePlan) -> None:
    """Raise `PathInvalid` if the directory of *plan* cannot be used; make it if that is wanted.

    A file system that does not answer holds up this workspace only.
    """
    use = partial(use_directory, Path(plan.key), create=plan.terms.create)
    await trio.to_thread.run_sync(use, abandon_on_cancel=True)


async def _anywhere(_plan: WorkspacePlan) -> None:
    await trio.lowlevel.checkpoint()


@define(eq=False)
class _Outlet:
    """Leads facts to the log of a workspace; before there is one, nobody could have read them."""

    log: EventLog | None = None

    def publish(self, fact: Fact) -> None:
        if self.log is not None:
            self.log.publish(fact)


@define(eq=False, kw_only=True)
class _Opener:
    """OpenCommand workspaces. They share what is in here; of that only `capacity` changes."""

    environment: Mapping[str, str] = field(repr=False)
    home: Path
    extras: Extras = field(repr=False)
    open_integrations: OpenIntegrations = field(repr=False)
    make_turn: MakeTurn | None
    open_config: OpenConfig
    prepare: Prepare
    open_store: OpenStore
    clock: Clock
    ids: IdSource
    logs: RecentLogs
    patience: float
    opens: OpenCommand
    limits: Limits | None
    sizes: SizeLimits
    capacity: Capacity

    @asynccontextmanager
    async def open(self, plan: WorkspacePlan) -> AsyncIterator[HostedWorkspace]:
        """Open the workspace of *plan* for the length of the block.

        All that is logged meanwhile, here or by what is started here, belongs to the workspace.
        """
        with logged_for(plan.id):
            async with self._opened(plan) as opened:
                yield opened

    @asynccontextmanager
    async def _opened(self, plan: WorkspacePlan) -> AsyncIterator[HostedWorkspace]:
        outlet = _Outlet()
        await self.prepare(plan)
        async with (
            self.open_config(self._places(plan)) as live,
            self.open_integrations(self._surroundings(plan, live, outlet)) as integrations,
            self.open_store(live.current.data_dir) as store,
            open_agency(
                live,
                store,
                workspace_id=plan.id,
                directory=Path(plan.key),
                clock=self.clock,
                ids=self.ids,
                logs=self.logs,
                integrations=integrations,
                opens=self.opens,
                extras=self.extras,
                sizes=self.sizes,
            ) as agency,
        ):
            parts = _Parts(self, plan, agency)
            async with open_durable_workspace(
                store,
                parts.make_turn,
                clock=self.clock,
                ids=self.ids,
                limits=self.limits,
                sizes=self.sizes,
                capacity=self.capacity,
            ) as durable:
                outlet.log = durable.events
                await withdraw_orphans(store, durable.events.publish, self.clock)
                opened = HostedWorkspace(
                    id=plan.id,
                    directory=Path(plan.key),
                    config=live,
                    store=store,
                    events=durable.events,
                    runs=durable.runs,
                    transcript=durable.transcript,
                    recovery=durable.recovery,
                    recall=durable.recall,
                    agent=agency,
                    asks=parts.asks,
                    clock=self.clock,
                    ids=self.ids,
                    sizes=self.sizes,
                )
                _log_notices(live.current.notices)
                durable.runs.services.start_soon(_tell_changes, opened, name="configuration")
                yield opened

    def _places(self, plan: WorkspacePlan) -> Places:
        """Return where to look for configuration: the client's environment wins over the server's.

        Of what a client sends along, the token by which it reached us is not for commands to see.
        """
        sent = dict(entry.split("=", 1) for entry in plan.terms.env if "=" in entry)
        kept = {name: value for name, value in sent.items() if not name.startswith(_TOKEN)}
        environment = kept or self.environment
        home = Path(environment.get("HOME", ""))
        return Places(
            directory=Path(plan.key),
            home=home if home.is_absolute() else self.home,
            environment=environment,
            data_dir=plan.terms.data_dir,
        )

    def _surroundings(
        self, plan: WorkspacePlan, live: Configuration, outlet: _Outlet
    ) -> Surroundings:
        return Surroundings(
            workspace_id=plan.id,
            directory=Path(plan.key),
            live=live,
            publish=outlet.publish,
            clock=self.clock,
        )


@define(eq=False)
class _Parts:
    """What exists only once there is a transcript: the asks of a workspace, and its turns."""

    opener: _Opener
    plan: WorkspacePlan
    agency: Agency
    asks: Asks = field(init=False)

    def make_turn(self, transcript: Transcript) -> Turn:
        self.asks = make_asks(
            directory=self.agency.directory,
            live=self.agency.live,
            transcript=transcript,
            store=self.agency.store,
            ids=self.agency.ids,
            skip=self.plan.terms.yolo,
            patience=self.opener.patience,
        )
        if self.opener.make_turn is not None:
            return self.opener.make_turn(transcript)
        return self.agency.make_turn(transcript, self.asks)


async def _tell_changes(opened: HostedWorkspace) -> None:
    """Tell the clients whenever the configuration has changed, whoever changed it (G7)."""
    known = opened.config.current
    while True:
        try:
            newer = await opened.config.newer_than(known.revision)
        except WorkspaceClosing:
            return  # noqa: ASYNC910  # waiting for a newer one is a checkpoint, also when it raises
        _log_notices(notice for notice in newer.notices if notice not in known.notices)
        known = newer
        opened.config_changed()


def _log_notices(notices: Iterable[Notice]) -> None:
    """Log what loading the configuration had to say; that nothing is configured is no mistake."""
    for notice in notices:
        level = logging.INFO if notice.kind is NoticeKind.DEMO else logging.WARNING
        extra = {
            "kind": notice.kind.value,
            "file": "" if notice.file is None else str(notice.file),
            "key": notice.key,
            "text": notice.text,
        }
        log.log(level, "config.notice", extra=extra)
