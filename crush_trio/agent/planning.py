"""From the configuration, as it is when a run begins, to what the run works with (L29, L40)."""

from collections.abc import Callable
from typing import Final

from attrs import define, field

from crush_trio.agent.git_state import git_state
from crush_trio.agent.instructions import MAIN, TASK, Place, instructions
from crush_trio.agent.models import ModelSource
from crush_trio.agent.plan import Desk, Tools, TurnPlan
from crush_trio.agent.subagents import AgentTool
from crush_trio.config.live import Configuration
from crush_trio.integrations.base import McpServers, ServerInstructions, Skills
from crush_trio.runtime.run import Run
from crush_trio.wire.integrations import SkillInfo
from crush_trio.wire.native import RunKind
from crush_trio.wire.requests import ModelType

TASK_TOOLS: Final = frozenset(
    {"glob", "grep", "ls", "lsp_call_hierarchy", "lsp_definition", "lsp_symbols", "view"}
)
"""What a task may use: it finds out and changes nothing (H3)."""

PERSONAL: Final = frozenset({"question"})
"""What is of use only where a person listens (F17)."""

MakeTools = Callable[[], Tools]
"""Returns the tools of a workspace as they are now."""


@define(eq=False)
class ConfiguredPlanner:
    """Satisfies `Planner`, for the agent of one workspace."""

    live: Configuration
    models: ModelSource = field(repr=False)
    desk: Desk = field(repr=False)
    make_tools: MakeTools = field(repr=False)
    skills: Skills = field(repr=False)
    mcp: McpServers = field(repr=False)

    async def plan(self, run: Run) -> TurnPlan:
        """Return the plan of *run*; raises a `CrushError` if the configuration does not allow one."""
        config = self.live.current
        chosen = await self.models.choose(ModelType.LARGE, run.submission.model)
        main = run.kind is not RunKind.TASK
        place = Place(
            directory=config.project.directory,
            at=self.desk.clock.unix(),
            git=await self._git_state(),
        )
        context = await config.context_files() if main else ()
        skills = await self._skills() if main else ()
        servers = await self._servers(run) if main else ()
        return TurnPlan(
            model=chosen,
            tools=lambda: self._tools(run),
            system=instructions(MAIN if main else TASK, place, context, skills, servers),
            remind=main,
            interactive=main and run.submission.interactive,
            auto_summarize=not config.config.options.disable_auto_summarize,
        )

    async def _skills(self) -> tuple[SkillInfo, ...]:
        """Return the skills that there are now and that a model is told of."""
        await self.skills.refresh()
        return tuple(each.info for each in self.skills.for_agents() if each.advertised)

    async def _servers(self, run: Run) -> tuple[ServerInstructions, ...]:
        """Return what the MCP servers say; where no person sits, once all have started or failed (A8)."""
        if run.kind is RunKind.PROMPT and not run.submission.interactive:
            await self.mcp.settled()
        return self.mcp.instructions()  # noqa: ASYNC910  # the other places of a plan wait

    async def _git_state(self) -> str:
        config = self.live.current
        if not (config.project.root / ".git").exists():
            return ""  # noqa: ASYNC910  # the other places of a plan wait
        return await git_state(config.project.directory, config.environment, self.desk.clock)

    def _tools(self, run: Run) -> Tools:
        """Return the tools that *run* may use now: those of the workspace, less what is disabled."""
        found = {**self.make_tools(), AgentTool.name: AgentTool(run, self.desk)}
        if run.kind is RunKind.TASK:
            return {name: tool for name, tool in found.items() if name in TASK_TOOLS}
        disabled = set(self.live.current.config.options.disabled_tools)
        if not run.submission.interactive:
            disabled |= PERSONAL
        return {name: tool for name, tool in found.items() if name not in disabled}
