"""The tools of a workspace: made from what they work on and from the configuration of the moment."""

from collections.abc import Callable, Iterable

from attrs import define, evolve, field

from crush_trio.agent.plan import Tools
from crush_trio.agent.question_tool import QuestionTool
from crush_trio.agent.questions import Questions
from crush_trio.config.live import Configuration
from crush_trio.integrations.base import LanguageServers, McpServers, Skills
from crush_trio.tools.base import Tool
from crush_trio.tools.bash import BashTool
from crush_trio.tools.changing import FileChanges
from crush_trio.tools.crush_info import CrushInfoTool, InfoReport, known_secrets, secret_variables
from crush_trio.tools.crush_logs import CrushLogsTool
from crush_trio.tools.download import DownloadTool
from crush_trio.tools.edit import EditTool
from crush_trio.tools.fetch import FetchTool
from crush_trio.tools.glob import GlobTool
from crush_trio.tools.grep import GrepTool
from crush_trio.tools.history import History
from crush_trio.tools.job_kill import JobKillTool
from crush_trio.tools.job_output import JobOutputTool
from crush_trio.tools.jobs import Jobs
from crush_trio.tools.ls import LsTool
from crush_trio.tools.multiedit import MultiEditTool
from crush_trio.tools.recent_logs import RecentLogs
from crush_trio.tools.todos import TodosTool
from crush_trio.tools.view import ViewTool
from crush_trio.tools.workbench import Workbench
from crush_trio.tools.write import WriteTool
from crush_trio.wire.config import ToolsConfig
from crush_trio.wire.ids import WorkspaceId

ExtraTools = Callable[[Workbench], Iterable[Tool]]
"""Makes the tools that a program brings along, for the workspace that it is given."""


def no_tools(_bench: Workbench) -> Iterable[Tool]:
    """Bring nothing along."""
    return ()


def secrets_now(live: Configuration) -> frozenset[str]:
    """Return the secrets that a workspace is configured with: templates, and what they stand for."""
    config = live.current
    return known_secrets(config.config) | secret_variables(config.environment)


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
