"""Shows what a background job has written."""

from typing import Annotated

import trio
from attrs import define, frozen

from crush_trio.tools.arguments import About, read_arguments
from crush_trio.tools.base import ToolCall, ToolResult
from crush_trio.tools.built_in import BuiltIn
from crush_trio.tools.jobs import Jobs
from crush_trio.tools.telling import COLUMNS, NO_OUTPUT, told


@frozen(kw_only=True)
class JobOutputArguments:
    """Which job, and whether to wait for its end."""

    shell_id: Annotated[str, About("The id of the job, as `bash` gave it.")]
    wait: Annotated[bool, About("Whether to wait until the job has ended.")] = False


@define(eq=False)
class JobOutputTool(BuiltIn):
    """The tool `job_output`."""

    name = "job_output"
    arguments = JobOutputArguments

    jobs: Jobs

    async def run(self, call: ToolCall) -> ToolResult:
        """Return what the job has written. A cancel ends the waiting, not the job."""
        arguments = read_arguments(call.input, JobOutputArguments)
        job = self.jobs.get(arguments.shell_id)
        if arguments.wait:
            await job.wait()
        else:
            await trio.lowlevel.checkpoint()
        status = "running" if job.running else "completed"
        return ToolResult(
            content=f"Status: {status}\n\n{told(job.output(COLUMNS)) or NO_OUTPUT}",
            metadata={
                "shell_id": job.id,
                "command": job.script,
                "description": job.description,
                "done": not job.running,
                "working_directory": str(job.working_dir),
            },
        )
