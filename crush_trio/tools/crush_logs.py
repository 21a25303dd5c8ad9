"""Shows what the server logged last, as far as it concerns this workspace."""

from collections.abc import Callable, Collection
from functools import partial
from typing import Annotated, Final

import trio
from attrs import define, field, frozen

from crush_trio.tools.arguments import About, read_arguments
from crush_trio.tools.base import ToolCall, ToolResult
from crush_trio.tools.built_in import BuiltIn
from crush_trio.tools.recent_logs import RecentLogs

LINES: Final = 50
MOST_LINES: Final = 100


@frozen(kw_only=True)
class CrushLogsArguments:
    """How much to show."""

    lines: Annotated[int, About("How many lines; 50 if left out, 100 at most.")] = 0


@define(eq=False)
class CrushLogsTool(BuiltIn):
    """The tool `crush_logs`. `secrets` are those that the configuration holds at the moment."""

    name = "crush_logs"
    parallel = True
    arguments = CrushLogsArguments

    logs: RecentLogs
    workspace_id: str
    secrets: Callable[[], Collection[str]] = field(default=tuple, kw_only=True)

    async def run(self, call: ToolCall) -> ToolResult:
        """Show the last lines."""
        arguments = read_arguments(call.input, CrushLogsArguments)
        count = min(arguments.lines, MOST_LINES) if arguments.lines > 0 else LINES
        tail = partial(
            self.logs.tail, count, workspace_id=self.workspace_id, secrets=self.secrets()
        )
        lines = await trio.to_thread.run_sync(tail)
        return ToolResult(content="\n".join(lines) or "Nothing has been logged.")
