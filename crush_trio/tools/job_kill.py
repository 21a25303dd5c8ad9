"""Ends a background job."""

from typing import Annotated

from attrs import define, frozen

from crush_trio.tools.arguments import About, read_arguments
from crush_trio.tools.base import ToolCall, ToolResult
from crush_trio.tools.built_in import BuiltIn
from crush_trio.tools.jobs import Jobs


@frozen(kw_only=True)
class JobKillArguments:
    """Which job."""

    shell_id: Annotated[str, About("The id of the job, as `bash` gave it.")]


@define(eq=False)
class JobKillTool(BuiltIn):
    """The tool `job_kill`."""

    name = "job_kill"
    arguments = JobKillArguments

    jobs: Jobs

    async def run(self, call: ToolCall) -> ToolResult:
        """End the job and everything it started, and forget it."""
        arguments = read_arguments(call.input, JobKillArguments)
        running = self.jobs.get(arguments.shell_id).running
        job = await self.jobs.kill(arguments.shell_id)
        call.reaped((), job.left)
        how = "was ended" if running else "had ended already and was removed"
        but = (
            f" These processes could not be stopped: {', '.join(map(str, job.left))}."
            if job.left
            else ""
        )
        return ToolResult(
            content=f"Background job {job.id} {how}.{but}",
            metadata={
                "shell_id": job.id,
                "command": job.script,
                "description": job.description,
            },
        )
