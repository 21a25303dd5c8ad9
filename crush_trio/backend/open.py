"""Opens a directory as a workspace that clients can use.

Opened from the outside in: the configuration, which says where the data is; the store; the event log; the
integrations; the agent; and innermost the runs. Closed in the reverse order, so that the run that ends
last still finds everything it needs. Only the event log closes early, right after the runs: the streams
of clients end then, and do not wait for language servers, MCP servers and background jobs to stop.
"""

import logging
from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path

import trio

from crush_trio.agent.asks.asks import make_asks, withdraw_orphans
from crush_trio.agent.coordinator import no_tools, open_coordinator
from crush_trio.agent.record.journal import open_recorded_runs
from crush_trio.agent.turn.plan import no_stand_in
from crush_trio.backend.notify import open_notifier
from crush_trio.backend.retention import keep_retention
from crush_trio.backend.settings import WorkspacePlan, WorkspaceSettings, use_directory
from crush_trio.backend.workspace import HostedWorkspace
from crush_trio.config.errors import ConfigWarning, ConfigWarningKind
from crush_trio.config.live import Configuration, open_live_config
from crush_trio.config.secrets.known import KnownSecrets
from crush_trio.config.sources import Places
from crush_trio.errors import WorkspaceClosing
from crush_trio.events.log import open_event_log
from crush_trio.integrations.base import Integrations, Surroundings, open_no_integrations
from crush_trio.integrations.lsp.servers import open_language_servers
from crush_trio.integrations.mcp.servers import open_mcp_servers
from crush_trio.integrations.skills import open_skills
from crush_trio.log_context import logged_for
from crush_trio.providers.catalog import catalog_providers
from crush_trio.store.base import Store
from crush_trio.store.open import open_store
from crush_trio.tools.sandbox.paths import reserved_paths
from crush_trio.tools.sandbox.settings import CommandSandbox
from crush_trio.tools.shell.environment import config_commands
from crush_trio.tools.shell.guard.placeholder import remove_left
from crush_trio.tools.shell.process import open_process_group
from crush_trio.wire.config import CatalogProvider

log = logging.getLogger(__name__)


@asynccontextmanager
async def open_hosted_workspace(
    plan: WorkspacePlan, settings: WorkspaceSettings
) -> AsyncIterator[HostedWorkspace]:
    """Open the workspace of *plan* for the length of the block. Leaving closes it in bounded time.

    With its *settings* bound, it is the `OpenWorkspace` that `open_backend` takes. Everything logged
    meanwhile, here or by tasks that are started here, belongs to the workspace. Raises `PathInvalid` for
    a directory that cannot be used, and what the configuration and the store raise.
    """
    clock, ids, directory = settings.clock, settings.ids, Path(plan.key)
    secrets = KnownSecrets()
    secrets.learn(settings.secrets)
    with logged_for(plan.id, secrets.redact):
        await _prepare(plan, settings)
        async with (
            _open_config(plan, settings, secrets) as config,
            _open_store(config, plan, settings) as store,
            open_event_log(store.boot_id) as events,
            _open_integrations(
                Surroundings(
                    workspace_id=plan.id,
                    directory=directory,
                    live=config,
                    publish=events.publish,
                    clock=clock,
                    sandbox=CommandSandbox(live=config, machine=settings.sandbox),
                ),
                settings,
            ) as integrations,
            open_coordinator(
                config,
                store,
                events,
                workspace_id=plan.id,
                directory=directory,
                clock=clock,
                ids=ids,
                integrations=integrations,
                logs=settings.logs,
                opens=settings.opens or open_process_group,
                machine=settings.sandbox,
                extra_tools=settings.extra_tools or no_tools,
                own_providers=settings.providers,
                sizes=settings.sizes,
                hooks=settings.hooks,
                stand_in=settings.stand_in or no_stand_in,
            ) as agent,
            open_notifier(
                workspace_id=plan.id,
                directory=directory,
                live=config,
                store=store,
                clock=clock,
                opens=settings.opens or open_process_group,
                page=settings.page,
            ) as notifier,
        ):
            asks = make_asks(
                directory=directory,
                config=config,
                store=store,
                publish=notifier.watched(events.publish, lambda: recorded.runs),
                clock=clock,
                ids=ids,
                skip=plan.terms.yolo,
                patience=settings.patience,
            )
            async with open_recorded_runs(
                store,
                settings.make_turn or partial(agent.turn, asks=asks),
                events=events,
                clock=clock,
                ids=ids,
                limits=settings.limits,
                sizes=settings.sizes,
                capacity=settings.capacity,
                leased=plan.lease is not None,
            ) as recorded:
                await withdraw_orphans(store, events.publish, clock)
                workspace = HostedWorkspace(
                    plan=plan,
                    directory=directory,
                    config=config,
                    store=store,
                    events=events,
                    runs=recorded.runs,
                    transcript=recorded.transcript,
                    recovery=recorded.recovery,
                    asks=asks,
                    agent=agent,
                    integrations=integrations,
                    notifier=notifier,
                    clock=clock,
                    ids=ids,
                    sizes=settings.sizes,
                )
                _log_warnings(config.current.warnings)
                recorded.runs.services.start_soon(_publish_changes, workspace, name="configuration")
                recorded.runs.services.start_soon(keep_retention, workspace, name="retention")
                yield workspace


# ── What is opened, unless the settings say otherwise ───────────────────────────────────────────


async def _prepare(plan: WorkspacePlan, settings: WorkspaceSettings) -> None:
    """Raise `PathInvalid` if the directory of *plan* cannot be used; create it if that is wanted.

    What the guards of killed commands left in it is removed. A file system that does not answer holds up
    this workspace only. A program with a store of its own may use any path: then nothing is looked at.
    """
    if settings.open_store is not None:
        await trio.lowlevel.checkpoint()
        return

    def use() -> None:
        directory = Path(plan.key)
        use_directory(directory, create=plan.terms.create)
        remove_left(reserved_paths(directory))

    await trio.to_thread.run_sync(use, abandon_on_cancel=True)


def _open_config(
    plan: WorkspacePlan, settings: WorkspaceSettings, secrets: KnownSecrets
) -> AbstractAsyncContextManager[Configuration]:
    """Open the configuration; by default from files, with commands that really run.

    The providers that the program reaches itself are known: they need no address.
    """
    places = _places(plan, settings)
    if settings.open_config is not None:
        return settings.open_config(places)
    known = catalog_providers() if settings.catalogue is None else settings.catalogue
    own = (CatalogProvider(id=name, name=name) for name in settings.providers)
    return open_live_config(
        places,
        catalogue=(*known, *own),
        run_command=config_commands(settings.clock),
        secrets=secrets,
    )


def _places(plan: WorkspacePlan, settings: WorkspaceSettings) -> Places:
    """Return where to look for configuration: the client's environment wins over the server's."""
    environment = plan.terms.environment or settings.environment
    home = Path(environment.get("HOME", ""))
    return Places(
        directory=Path(plan.key),
        home=home if home.is_absolute() else settings.home,
        environment=environment,
        data_dir=plan.terms.data_dir,
    )


def _open_store(
    config: Configuration, plan: WorkspacePlan, settings: WorkspaceSettings
) -> AbstractAsyncContextManager[Store]:
    if plan.lease is not None:
        return plan.lease.open_store()
    data_dir = config.current.data_dir
    if settings.open_store is not None:
        return settings.open_store(settings.store, data_dir)
    return open_store(settings.store, data_dir, Path(plan.key))


def _open_integrations(
    surroundings: Surroundings, settings: WorkspaceSettings
) -> AbstractAsyncContextManager[Integrations]:
    if settings.open_integrations is not None:
        return settings.open_integrations(surroundings)
    if settings.open_config is not None:  # nothing of the workspace is on the disk
        return open_no_integrations(surroundings)
    return open_usual_integrations(surroundings)


@asynccontextmanager
async def open_usual_integrations(surroundings: Surroundings) -> AsyncIterator[Integrations]:
    """Open the default integrations: those of the workspace's configuration and its disk."""
    async with (
        open_skills(surroundings) as skills,
        open_mcp_servers(surroundings) as mcp,
        open_language_servers(surroundings) as lsp,
    ):
        yield Integrations(lsp=lsp, mcp=mcp, skills=skills)


# ── Changes of the configuration ────────────────────────────────────────────────────────────────


async def _publish_changes(workspace: HostedWorkspace) -> None:
    """Tell the clients whenever the configuration has changed, by whatever cause (G7)."""
    known = workspace.config.current
    while True:
        try:
            newer = await workspace.config.newer_than(known.revision)
        except WorkspaceClosing:
            return  # noqa: ASYNC910  # waiting for a newer one is a checkpoint, also when it raises
        _log_warnings(warning for warning in newer.warnings if warning not in known.warnings)
        known = newer
        workspace.config_changed()
        workspace.asks.permissions.apply_rules()


def _log_warnings(warnings: Iterable[ConfigWarning]) -> None:
    """Log what was noticed while the configuration was loaded; an empty one is no reason to warn."""
    for warning in warnings:
        level = logging.INFO if warning.kind is ConfigWarningKind.DEMO else logging.WARNING
        extra = {
            "kind": warning.kind.value,
            "file": "" if warning.file is None else str(warning.file),
            "key": warning.key,
            "text": warning.text,
        }
        log.log(level, "config.notice: %s", warning, extra=extra)
