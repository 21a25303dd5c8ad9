"""Ends a background job."""

from typing import Annotated, ClassVar

from attrs import define, frozen

from crush_trio.tools.arguments import About, read_arguments, schema_of
from crush_trio.tools.base import ToolCall, ToolResult, described
from crush_trio.tools.jobs import Jobs
from crush_trio.wire.fields import JsonObject


@frozen(kw_only=True)
class JobKillArguments:
    """Which job."""

    shell_id: Annotated[str, About("The id of the job, as `bash` gave it.")]


@define(eq=False)
class JobKillTool:
    """The tool `job_kill`."""

    name: ClassVar[str] = "job_kill"
    parallel: ClassVar[bool] = False

    jobs: Jobs

    @property
    def description(self) -> str:
        """What the model is told."""
        return described(self.name)

    @property
    def parameters(self) -> JsonObject:
        """The schema of the arguments."""
        return schema_of(JobKillArguments)

    async def run(self, call: ToolCall) -> ToolResult:
        """End the job and everything it started, and forget it."""
        arguments = read_arguments(call.input, JobKillArguments)
        running = self.jobs.get(arguments.shell_id).running
        job = await self.jobs.kill(arguments.shell_id)
        how = "was ended" if running else "had ended already and was removed"
        return ToolResult(
            content=f"Background job {job.id} {how}.",
            metadata={
                "shell_id": job.id,
                "command": job.script,
                "description": job.description,
            },
        )
