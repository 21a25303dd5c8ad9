"""The agent of one workspace, put together.

What an agent needs lives as long as its workspace, no longer and no shorter: the connections to
models, the background jobs, the asks that wait. `open_agency` opens all of it; leaving closes it, in
the reverse order, after the runs that used it have ended.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from attrs import define, evolve, field, frozen

from crush_trio import __version__
from crush_trio.agent.asks.asks import Attendance
from crush_trio.agent.asks.permissions import Permissions
from crush_trio.agent.asks.questions import Questions
from crush_trio.agent.coordinator import Coordinator, ExtraTools, Toolbox, no_tools, secrets_now
from crush_trio.agent.record.transcript import Transcript
from crush_trio.agent.turn.model import ConfiguredModels
from crush_trio.agent.turn.plan import Desk
from crush_trio.agent.turn.planner import ConfiguredPlanner
from crush_trio.agent.turn.subagent import AgentTool
from crush_trio.agent.turn.title import Titles
from crush_trio.agent.turn.tool_calls import ToolHooks
from crush_trio.clock import Clock, IdSource
from crush_trio.config.live import Configuration
from crush_trio.config.redaction import REDACTED
from crush_trio.config.snapshot import LoadedConfig, shown_config
from crush_trio.config.sources import CONFIG_NAME
from crush_trio.config.template import CommandFailed, RunCommand
from crush_trio.integrations.base import Integrations
from crush_trio.integrations.hooks import ConfiguredHooks
from crush_trio.limits import DEFAULTS, SizeLimits
from crush_trio.nursery import open_hidden_nursery
from crush_trio.providers.base import Provider
from crush_trio.providers.registry import Providers, open_providers
from crush_trio.runtime.run import Turn
from crush_trio.store.base import Store
from crush_trio.tools.info import InfoReport, RecentLogs
from crush_trio.tools.shell.environment import shell_argv, unattended
from crush_trio.tools.shell.jobs import Jobs, Opens
from crush_trio.tools.shell.process import Command, open_process_group, run_command
from crush_trio.tools.workbench import Workbench
from crush_trio.wire.config import Config
from crush_trio.wire.ids import WorkspaceId


@define(eq=False, kw_only=True)
class Asks:
    """What a workspace asks of people."""

    permissions: Permissions
    questions: Questions
    attendance: Attendance = field(repr=False)


def make_asks(
    *,
    directory: Path,
    live: Configuration,
    transcript: Transcript,
    store: Store,
    ids: IdSource,
    skip: bool,
    patience: float,
) -> Asks:
    """Return the asks of a workspace; the permissions follow its configuration."""
    attendance = Attendance(patience)
    publish, clock = transcript.events.publish, transcript.clock
    permissions = Permissions(
        directory=directory,
        store=store,
        publish=publish,
        clock=clock,
        ids=ids,
        attendance=attendance,
        allowed_tools=lambda: _allowed_tools(live),
        skip=skip,
    )
    questions = Questions(store=store, publish=publish, clock=clock, ids=ids, attendance=attendance)
    return Asks(permissions=permissions, questions=questions, attendance=attendance)


def _allowed_tools(live: Configuration) -> tuple[str, ...]:
    configured = live.current.config.permissions
    return () if configured is None else configured.allowed_tools


@frozen(kw_only=True)
class Extras:
    """What a program brings along for the agents of its workspaces."""

    tools: ExtraTools = no_tools
    providers: Mapping[str, Provider] = field(factory=dict, repr=False)


@define(eq=False, kw_only=True)
class Agency:
    """What the agent of a workspace works with besides the workspace itself."""

    live: Configuration
    providers: Providers = field(repr=False)
    jobs: Jobs = field(repr=False)
    hooks: ToolHooks = field(repr=False)
    logs: RecentLogs = field(repr=False)
    store: Store = field(repr=False)
    clock: Clock = field(repr=False)
    ids: IdSource = field(repr=False)
    workspace_id: WorkspaceId
    directory: Path
    integrations: Integrations = field(repr=False)
    extras: Extras = field(factory=Extras, repr=False)
    sizes: SizeLimits = field(default=DEFAULTS, repr=False)

    def make_turn(self, transcript: Transcript, asks: Asks) -> Turn:
        """Return the agent as a turn function."""
        models = ConfiguredModels(self.live, self.providers, self.extras.providers)
        desk = Desk(
            transcript,
            transcript.events,
            self.store,
            self.clock,
            self.ids,
            asks.permissions,
            hooks=self.hooks,
            sizes=self.sizes,
        )
        toolbox = Toolbox(
            bench=self.bench(transcript),
            live=self.live,
            jobs=self.jobs,
            questions=asks.questions,
            logs=self.logs,
            workspace_id=self.workspace_id,
            report=lambda: self._report(asks, toolbox),
            skills=self.integrations.skills,
            mcp=self.integrations.mcp,
            lsp=self.integrations.lsp,
            extra=self.extras.tools,
        )
        planner = ConfiguredPlanner(
            self.live,
            models,
            desk,
            toolbox.tools,
            self.integrations.skills,
            self.integrations.mcp,
        )
        return Coordinator(desk, planner, Titles(desk, models))

    def bench(self, transcript: Transcript) -> Workbench:
        """Return the workspace as tools see it now."""
        return Workbench(
            self.directory,
            self.store,
            transcript.events.publish,
            self.clock,
            self.ids,
            self.live.current.environment,
            private_paths(self.live.current),
        )

    def _report(self, asks: Asks, toolbox: Toolbox) -> InfoReport:
        config = self.live.current
        disabled = config.config.options.disabled_tools
        return InfoReport(
            version=__version__,
            directory=str(self.directory),
            config=told_config(config),
            config_files=tuple(str(source.path) for source in config.sources),
            notices=tuple(map(str, config.notices)),
            tools=tuple(sorted({*toolbox.tools(), AgentTool.name}.difference(disabled))),
            skip_permissions=asks.permissions.skip,
            mcp=tuple(self.integrations.mcp.states().values()),
            lsp=tuple(self.integrations.lsp.states().values()),
            skills=self.integrations.skills.states(),
            secrets=secrets_now(self.live),
        )


def private_paths(config: LoadedConfig) -> tuple[Path, ...]:
    """Return where the program and the user keep what is none of a model's business, resolved.

    These are directories: the data, and the user's own configuration. Where one of them holds the
    workspace itself only the file with the keys is private, or there would be nothing to work with.
    """
    workspace = config.project.directory.resolve()
    places = config.places
    kept = (config.data_dir, places.user_directory, places.data_file.parent)
    directories = dict.fromkeys(each.resolve() for each in kept)
    return tuple(
        each / CONFIG_NAME if workspace.is_relative_to(each) else each for each in directories
    )


def told_config(loaded: LoadedConfig) -> Config:
    """Return what clients are shown, and besides which keys and variables there are; no values."""
    shown, config = shown_config(loaded), loaded.config
    keyed = {name for name, each in config.providers.items() if each.api_key or each.oauth}
    return evolve(
        shown,
        env=dict.fromkeys(loaded.env, REDACTED),
        providers={
            name: evolve(each, api_key=REDACTED) if name in keyed else each
            for name, each in shown.providers.items()
        },
    )


@asynccontextmanager
async def open_agency(
    live: Configuration,
    store: Store,
    *,
    workspace_id: WorkspaceId,
    directory: Path,
    clock: Clock,
    ids: IdSource,
    logs: RecentLogs,
    integrations: Integrations,
    opens: Opens = open_process_group,
    extras: Extras | None = None,
    sizes: SizeLimits = DEFAULTS,
) -> AsyncIterator[Agency]:
    """Open what the agent of a workspace needs. Leave it after the workspace's runs have ended.

    *opens* is what starts the commands of its tools and its hooks, *extras* what it has besides the usual,
    *sizes* what limits answers and the output of tools.
    """
    environment = live.current.environment
    async with (
        open_providers(environment=environment) as providers,
        open_hidden_nursery() as jobs,
    ):
        yield Agency(
            live=live,
            providers=providers,
            jobs=Jobs(jobs, clock, opens),
            hooks=ConfiguredHooks(live=live, directory=directory, clock=clock, opens=opens),
            logs=logs,
            store=store,
            clock=clock,
            ids=ids,
            workspace_id=workspace_id,
            directory=directory,
            integrations=integrations,
            extras=Extras() if extras is None else extras,
            sizes=sizes,
        )
        jobs.cancel_scope.cancel()


def config_commands(clock: Clock) -> RunCommand:
    """Return what runs the commands that a configuration takes values from."""

    async def run(script: str, environment: Mapping[str, str], directory: Path) -> str:
        command = Command(
            argv=shell_argv(script), working_dir=directory, env=unattended(environment)
        )
        try:
            finished = await run_command(command, clock=clock)
        except OSError as error:
            raise CommandFailed(f"it could not be started: {error.strerror}") from error
        if finished.ended.status:
            raise CommandFailed(f"it ended with exit code {finished.ended.status}")
        return finished.stdout.text()

    return run
