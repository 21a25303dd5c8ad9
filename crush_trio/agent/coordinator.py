"""The agent of a workspace: turns accepted runs into turns.

The runtime decides when a run executes, whether it does, and how it ends. `AgentTurn` decides what it
does meanwhile: answer a prompt, do a task for another run, or summarise the session. What an agent
needs for that, the connections to models, the tools and the background jobs, lives as long as its
workspace; `open_coordinator` opens it.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from attrs import define, evolve, field

from crush_trio import __version__
from crush_trio.agent.asks.asks import Asks
from crush_trio.agent.asks.questions import Questions, QuestionTool
from crush_trio.agent.asks.trust import TrustQuestion
from crush_trio.agent.part_checks import check_provider, check_tool
from crush_trio.agent.record.capsule import Entry
from crush_trio.agent.record.recorded import RecordedHooks
from crush_trio.agent.record.recording import Recordings, described_config, note
from crush_trio.agent.record.redactor import Redactor
from crush_trio.agent.record.transcript import Transcript
from crush_trio.agent.spans import RunSpan
from crush_trio.agent.turn.model import ConfiguredModels
from crush_trio.agent.turn.plan import Desk, EarlyRead, Planner, StandIn, Tools, no_stand_in
from crush_trio.agent.turn.planner import ConfiguredPlanner
from crush_trio.agent.turn.prompt_hooks import SessionStarts
from crush_trio.agent.turn.steps import Steps
from crush_trio.agent.turn.subagent import AgentTool
from crush_trio.agent.turn.summary import Summarizer
from crush_trio.agent.turn.title import Titles
from crush_trio.agent.turn.tool_calls import ToolHooks
from crush_trio.clock import Clock, IdSource
from crush_trio.config.live import Configuration
from crush_trio.config.secrets.known import config_secrets, environment_secrets
from crush_trio.config.snapshot import private_paths, told_config
from crush_trio.events.log import EventLog
from crush_trio.integrations.base import (
    NO_INTEGRATIONS,
    Integrations,
    LanguageServers,
    McpServers,
    Skills,
)
from crush_trio.integrations.hooks import ConfiguredHooks
from crush_trio.limits import DEFAULTS, SizeLimits
from crush_trio.nursery import open_hidden_nursery
from crush_trio.providers.base import Provider
from crush_trio.providers.registry import Providers, open_providers
from crush_trio.runtime.outcome import Completion
from crush_trio.runtime.run import Run
from crush_trio.store.base import Store
from crush_trio.tools.base import Tool
from crush_trio.tools.files.changes import FileChanges
from crush_trio.tools.files.edit import EditTool, MultiEditTool, WriteTool
from crush_trio.tools.files.view import ViewTool
from crush_trio.tools.info import (
    CrushInfoTool,
    CrushLogsTool,
    InfoReport,
)
from crush_trio.tools.recent_logs import RecentLogs
from crush_trio.tools.sandbox.machine import MachineSandbox, no_sandbox
from crush_trio.tools.sandbox.settings import CommandSandbox
from crush_trio.tools.search.grep import GrepTool
from crush_trio.tools.search.listing import GlobTool, LsTool
from crush_trio.tools.shell.bash import BashTool, JobKillTool, JobOutputTool
from crush_trio.tools.shell.jobs import Jobs, OpenCommand
from crush_trio.tools.shell.process import open_process_group
from crush_trio.tools.todos import TodosTool
from crush_trio.tools.web.download import DownloadTool
from crush_trio.tools.web.fetch import FetchTool
from crush_trio.tools.workbench import History, Workbench
from crush_trio.wire.config import ToolsConfig
from crush_trio.wire.ids import WorkspaceId
from crush_trio.wire.runs import RunKind

ExtraTools = Callable[[Workbench], Iterable[Tool]]
"""Makes the tools that a program adds to the built-in ones, for the workspace that it is given."""


def no_tools(_bench: Workbench) -> Iterable[Tool]:
    """Add no tools."""
    return ()


def secrets_now(live: Configuration) -> frozenset[str]:
    """Return the secrets that a workspace is configured with: templates, and what they stand for."""
    config = live.current
    return config_secrets(config.config) | environment_secrets(config.environment)


@define(eq=False, kw_only=True)
class Toolbox:
    """Makes the tools of one workspace.

    What has a state of its own (jobs, the file history) is made once and shared by all runs; the
    tools themselves are cheap and follow the configuration. Extra tools may have a state, so they
    are made once too. One that has the name of a built-in tool replaces it.
    """

    bench: Workbench
    live: Configuration = field(repr=False)
    jobs: Jobs = field(repr=False)
    questions: Questions = field(repr=False)
    logs: RecentLogs = field(repr=False)
    workspace_id: WorkspaceId
    report: Callable[[], InfoReport] = field(repr=False)
    restricted: Callable[[str, Path], bool] = field(repr=False)
    skills: Skills = field(repr=False)
    mcp: McpServers = field(repr=False)
    lsp: LanguageServers = field(repr=False)
    extra: ExtraTools = field(default=no_tools, repr=False)
    _history: History = field(init=False, repr=False)
    _changes: FileChanges = field(init=False, repr=False)
    _extra: tuple[Tool, ...] = field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self._history = History(self.bench)
        hide = self.live.current.secrets.redact
        self._changes = FileChanges(self.bench, self._history, self.lsp.changed, hide)
        self._extra = tuple(map(check_tool, self.extra(self.bench)))

    def tools(self) -> Tools:
        """Return every tool, by name, as it is configured now."""
        config = self.live.current
        bench = evolve(self.bench, env=config.environment)
        commands = evolve(self.bench, env=config.command_environment())
        limits = config.config.tools or ToolsConfig()
        return _by_name(
            BashTool(commands, self.jobs, self.restricted),
            JobOutputTool(self.jobs),
            JobKillTool(self.jobs),
            self._view(),
            EditTool(self._changes),
            MultiEditTool(self._changes),
            WriteTool(self._changes),
            GlobTool(commands, limits=limits.glob),
            GrepTool(commands, limits=limits.grep),
            LsTool(bench, limits=limits.ls),
            FetchTool(bench),
            DownloadTool(bench),
            TodosTool(self.bench),
            QuestionTool(self.questions),
            CrushInfoTool(self.report, bench.sandbox.ready),
            CrushLogsTool(self.logs, self.workspace_id, secrets=lambda: secrets_now(self.live)),
            *self.mcp.tools(),
            *self.lsp.code_tools(self._changes),
            *self._extra,
        )

    def _view(self) -> ViewTool:
        """Return the tool that reads files, those of skills among them.

        The directory of a skill may be read like the workspace itself, unless something private lies
        in it.
        """
        skills = self.skills.for_agents()
        directories = {skill.file.parent for skill in skills}
        private = self.bench.private
        return ViewTool(
            self.bench,
            self._history,
            readable=tuple(
                each
                for each in sorted(directories)
                if not any(path.is_relative_to(each) for path in private)
            ),
            skills={skill.file: skill.info for skill in skills},
            diagnose=self.lsp.viewed,
        )


def _by_name(*tools: Tool) -> Tools:
    return {tool.name: tool for tool in tools}


@define(eq=False)
class AgentTurn:
    """Plays the turns of a workspace's agent; satisfies the runtime's `Turn`.

    Without *titles*, sessions keep the names they were given. *trust* is asked before anything of the
    project's configuration is used.
    """

    desk: Desk
    planner: Planner = field(repr=False)
    titles: Titles | None = field(default=None, repr=False)
    trust: TrustQuestion | None = field(default=None, repr=False)
    recordings: Recordings | None = field(default=None, repr=False)
    _starts: SessionStarts = field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self._starts = SessionStarts(self.desk)

    async def __call__(self, run: Run) -> Completion:
        """Play one turn."""
        with self.desk.spans.run(run) as span:
            if self.recordings is None or not self.recordings.wants(run):
                return await self._play(run, span)
            with self.recordings.playing(await self.recordings.begin(run), run):
                return await self._play(run, span)

    async def _play(self, run: Run, span: RunSpan) -> Completion:
        """Do what the kind of the run asks for."""
        if self.trust is not None and self.trust.concerns(run):
            await self.trust.settle(run)
        if run.kind is RunKind.SUMMARIZE:
            plan = await self.planner.plan(run)
            span.planned(plan.model)
            return await Summarizer(run, plan, self.desk).summarize()
        context = await self._starts.context(run)
        early = EarlyRead()
        async with open_hidden_nursery() as beside:
            beside.start_soon(early.read, self.desk, run)
            plan = await self.planner.plan(run)
        span.planned(plan.model)
        note("planned", session=run.session_id)
        steps = Steps(run, plan, self.desk, early=early, hooks_said=[context])
        if self.titles is not None and run.kind is RunKind.PROMPT:
            steps.opening = partial(self.titles.begin, run)
        with self.desk.permissions.granting(run.id):
            return await steps.play()


@define(eq=False, kw_only=True)
class Coordinator:
    """The agent of a workspace: its models, tools, jobs and hooks. Made by `open_coordinator`."""

    workspace_id: WorkspaceId
    directory: Path
    config: Configuration = field(repr=False)
    store: Store = field(repr=False)
    events: EventLog = field(repr=False)
    integrations: Integrations = field(repr=False)
    providers: Providers = field(repr=False)
    jobs: Jobs = field(repr=False)
    hooks: ToolHooks = field(repr=False)
    logs: RecentLogs = field(repr=False)
    clock: Clock = field(repr=False)
    ids: IdSource = field(repr=False)
    sandbox: CommandSandbox = field(factory=CommandSandbox, repr=False)
    extra_tools: ExtraTools = field(default=no_tools, repr=False)
    own_providers: Mapping[str, Provider] = field(factory=dict, repr=False)
    sizes: SizeLimits = field(default=DEFAULTS, repr=False)
    stand_in: StandIn = field(default=no_stand_in, repr=False)
    recordings: Recordings | None = field(default=None, init=False, repr=False)
    """The recordings of the workspace's runs; None if the program has a turn function of its own."""

    def turn(self, transcript: Transcript, asks: Asks) -> AgentTurn:
        """Return the agent as the turn function of runs that write to *transcript*."""
        models = ConfiguredModels(self.config, self.providers, self.own_providers)
        toolbox = self._toolbox(asks)
        desk = Desk(
            transcript,
            self.events,
            self.store,
            self.clock,
            self.ids,
            asks.permissions,
            hooks=RecordedHooks(self.hooks),
            questions=asks.questions,
            sizes=self.sizes,
            secrets=self.config.current.secrets,
        )
        planner = ConfiguredPlanner(
            self.config,
            models,
            desk,
            lambda: self.stand_in(toolbox.tools()),
            self.integrations.skills,
            self.integrations.mcp,
            self.sandbox,
        )
        self.recordings = Recordings(
            self.store,
            self.events,
            lambda: Redactor(self.config.current.secrets, lambda: self.config.current.environment),
            partial(self._header, asks),
            lambda: self.config.current.record,
            self.sizes,
        )
        return AgentTurn(desk, planner, Titles(desk, models), asks.trust, self.recordings)

    def _header(self, asks: Asks, run: Run) -> Entry:
        """Return what the recording of a run says about its workspace: no secrets."""
        config = described_config(self.config.current)
        return {"directory": str(self.directory), **config, **asks.described(run)}

    def bench(self) -> Workbench:
        """Return the workspace as tools see it now."""
        return Workbench(
            self.directory,
            self.store,
            self.events.publish,
            self.clock,
            self.ids,
            self.config.current.environment,
            private_paths(self.config.current),
            self.sandbox,
        )

    def _toolbox(self, asks: Asks) -> Toolbox:
        toolbox = Toolbox(
            bench=self.bench(),
            live=self.config,
            jobs=self.jobs,
            questions=asks.questions,
            logs=self.logs,
            workspace_id=self.workspace_id,
            report=lambda: self._report(asks, toolbox),
            restricted=asks.permissions.restricts,
            skills=self.integrations.skills,
            mcp=self.integrations.mcp,
            lsp=self.integrations.lsp,
            extra=self.extra_tools,
        )
        return toolbox

    def _report(self, asks: Asks, toolbox: Toolbox) -> InfoReport:
        config = self.config.current
        disabled = config.config.options.disabled_tools
        return InfoReport(
            version=__version__,
            directory=str(self.directory),
            config=told_config(config),
            config_files=tuple(str(source.path) for source in config.sources),
            notices=tuple(map(str, config.warnings)),
            tools=tuple(sorted({*toolbox.tools(), AgentTool.name}.difference(disabled))),
            skip_permissions=asks.permissions.skip,
            mcp=tuple(self.integrations.mcp.states().values()),
            lsp=tuple(self.integrations.lsp.states().values()),
            skills=self.integrations.skills.states(),
            sandbox=self.sandbox.settings,
            sandbox_kind=self.sandbox.kind.value,
            secrets=secrets_now(self.config),
        )


@asynccontextmanager
async def open_coordinator(
    config: Configuration,
    store: Store,
    events: EventLog,
    *,
    workspace_id: WorkspaceId,
    directory: Path,
    clock: Clock,
    ids: IdSource,
    integrations: Integrations = NO_INTEGRATIONS,
    logs: RecentLogs | None = None,
    opens: OpenCommand = open_process_group,
    machine: MachineSandbox | None = None,
    extra_tools: ExtraTools = no_tools,
    own_providers: Mapping[str, Provider] | None = None,
    sizes: SizeLimits = DEFAULTS,
    hooks: ToolHooks | None = None,
    stand_in: StandIn = no_stand_in,
) -> AsyncIterator[Coordinator]:
    """Open the agent of a workspace. Leave the block after the workspace's runs have ended.

    Leaving stops the background jobs, then closes the connections to models. *opens* starts the
    commands of tools and hooks, in the sandbox of the *machine*. *own_providers* are models that the
    program reaches itself, by the id under which a configuration names them. *hooks* replaces the
    configured ones, *stand_in* the tools. *sizes* limits answers and the output of tools.
    """
    for name, provider in (own_providers or {}).items():
        check_provider(name, provider)
    sandbox = CommandSandbox(live=config, machine=machine or no_sandbox())
    async with (
        open_providers(environment=config.current.environment) as providers,
        open_hidden_nursery() as jobs,
    ):
        yield Coordinator(
            workspace_id=workspace_id,
            directory=directory,
            config=config,
            store=store,
            events=events,
            integrations=integrations,
            providers=providers,
            jobs=Jobs(jobs, clock, opens, hide=config.current.secrets.redact),
            hooks=hooks
            or ConfiguredHooks(
                live=config, directory=directory, clock=clock, opens=opens, sandbox=sandbox
            ),
            logs=RecentLogs() if logs is None else logs,
            clock=clock,
            ids=ids,
            sandbox=sandbox,
            extra_tools=extra_tools,
            own_providers={} if own_providers is None else own_providers,
            sizes=sizes,
            stand_in=stand_in,
        )
        jobs.cancel_scope.cancel()
