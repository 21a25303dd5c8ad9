"""What an active run of a workspace does: the agent, as one turn function.

The workspace decides when a run executes, whether, and how it ends. This decides what it does
meanwhile: answer a prompt, do a task for another run, or summarise the session.

The tools of a workspace: made from what they work on and from the configuration of the moment.
"""

from collections.abc import Callable, Iterable
from functools import partial

from attrs import define, evolve, field

from crush_trio.agent.asks.questions import Questions, QuestionTool
from crush_trio.agent.spans import RunSpan
from crush_trio.agent.turn.plan import Desk, Planner, Tools
from crush_trio.agent.turn.steps import Steps
from crush_trio.agent.turn.summary import Summarizer
from crush_trio.agent.turn.title import Titles
from crush_trio.config.live import Configuration
from crush_trio.integrations.base import LanguageServers, McpServers, Skills
from crush_trio.runtime.outcome import Completion
from crush_trio.runtime.run import Run
from crush_trio.tools.base import Tool
from crush_trio.tools.files.changes import FileChanges
from crush_trio.tools.files.edit import EditTool, MultiEditTool, WriteTool
from crush_trio.tools.files.view import ViewTool
from crush_trio.tools.info import (
    CrushInfoTool,
    CrushLogsTool,
    InfoReport,
    RecentLogs,
    config_secrets,
    environment_secrets,
)
from crush_trio.tools.search.grep import GrepTool
from crush_trio.tools.search.listing import GlobTool, LsTool
from crush_trio.tools.shell.bash import BashTool, JobKillTool, JobOutputTool
from crush_trio.tools.shell.jobs import Jobs
from crush_trio.tools.todos import TodosTool
from crush_trio.tools.web.download import DownloadTool
from crush_trio.tools.web.fetch import FetchTool
from crush_trio.tools.workbench import History, Workbench
from crush_trio.wire.config import ToolsConfig
from crush_trio.wire.ids import WorkspaceId
from crush_trio.wire.runs import RunKind

ExtraTools = Callable[[Workbench], Iterable[Tool]]
"""Makes the tools that a program brings along, for the workspace that it is given."""


def no_tools(_bench: Workbench) -> Iterable[Tool]:
    """Bring nothing along."""
    return ()


def secrets_now(live: Configuration) -> frozenset[str]:
    """Return the secrets that a workspace is configured with: templates, and what they stand for."""
    config = live.current
    return config_secrets(config.config) | environment_secrets(config.environment)


@define(eq=False, kw_only=True)
class Toolbox:
    """Makes the tools of one workspace.

    What has a state of its own (jobs, the door to the disk) is made once and shared by all runs;
    the tools themselves are cheap and follow the configuration. Extra tools may have a state, so
    they are made once too. One that has the name of a built-in tool takes its place.
    """

    bench: Workbench
    live: Configuration = field(repr=False)
    jobs: Jobs = field(repr=False)
    questions: Questions = field(repr=False)
    logs: RecentLogs = field(repr=False)
    workspace_id: WorkspaceId
    report: Callable[[], InfoReport] = field(repr=False)
    skills: Skills = field(repr=False)
    mcp: McpServers = field(repr=False)
    lsp: LanguageServers = field(repr=False)
    extra: ExtraTools = field(default=no_tools, repr=False)
    _history: History = field(init=False, repr=False)
    _changes: FileChanges = field(init=False, repr=False)
    _extra: tuple[Tool, ...] = field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self._history = History(self.bench)
        self._changes = FileChanges(self.bench, self._history, self.lsp.changed)
        self._extra = tuple(self.extra(self.bench))

    def tools(self) -> Tools:
        """Return every tool, by name, as it is configured now."""
        config = self.live.current
        bench = evolve(self.bench, env=config.environment)
        limits = config.config.tools or ToolsConfig()
        return _by_name(
            BashTool(bench, self.jobs),
            JobOutputTool(self.jobs),
            JobKillTool(self.jobs),
            self._view(),
            EditTool(self._changes),
            MultiEditTool(self._changes),
            WriteTool(self._changes),
            GlobTool(bench, limits=limits.glob),
            GrepTool(bench, limits=limits.grep),
            LsTool(bench, limits=limits.ls),
            FetchTool(bench),
            DownloadTool(bench),
            TodosTool(self.bench),
            QuestionTool(self.questions),
            CrushInfoTool(self.report),
            CrushLogsTool(self.logs, self.workspace_id, secrets=lambda: secrets_now(self.live)),
            *self.mcp.tools(),
            *self.lsp.code_tools(self._changes),
            *self._extra,
        )

    def _view(self) -> ViewTool:
        """Return the tool that reads files, those of skills among them.

        The directory of a skill may be read like the workspace itself. One in which something private
        lies is no such directory, whoever put a skill there.
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
class Coordinator:
    """Satisfies the runtime's `Turn`. Without *titles*, sessions keep the names they were given."""

    desk: Desk
    planner: Planner = field(repr=False)
    titles: Titles | None = field(default=None, repr=False)

    async def __call__(self, run: Run) -> Completion:
        """Play one turn."""
        with self.desk.spans.run(run) as span:
            return await self._play(run, span)

    async def _play(self, run: Run, span: RunSpan) -> Completion:
        """Do what the kind of the run asks for."""
        if run.kind is RunKind.SUMMARIZE:
            plan = await self.planner.plan(run)
            span.planned(plan.model)
            return await Summarizer(run, plan, self.desk).summarize()
        plan = await self.planner.plan(run)
        span.planned(plan.model)
        steps = Steps(run, plan, self.desk)
        if self.titles is not None and run.kind is RunKind.PROMPT:
            steps.opening = partial(self.titles.begin, run)
        with self.desk.permissions.granting(run.id):
            return await steps.play()
