"""A shell command that a person types, without a model in between (D34).

Nobody is asked and nothing is refused: the person at the client decides. The command is a task of the
workspace like any other, and the request waits for it. So it ends with whichever goes first: a client
that hangs up cancels the request and with it the command, and a workspace that closes ends it too.
"""

from attrs import frozen

from crush_trio.tools.environment import coloured, shell_argv, unattended
from crush_trio.tools.jobs import Jobs
from crush_trio.tools.processes import Command
from crush_trio.tools.telling import ABORTED, COLUMNS
from crush_trio.tools.workbench import Workbench


@frozen(kw_only=True)
class ShellAnswer:
    """What a command wrote, both streams in the order they came, and its exit code."""

    output: str
    exit_code: int


async def run_shell(bench: Workbench, jobs: Jobs, command: str, *, columns: int = 0) -> ShellAnswer:
    """Run *command* in the workspace and return what it wrote, with its colours.

    *columns* is how wide the person's terminal is. Cancelling ends the command first. Raises
    `ValueError` for a text that cannot be a command.
    """
    env = coloured(unattended(bench.env), columns)
    started = Command(argv=shell_argv(command), working_dir=bench.directory, env=env)
    async with jobs.foreground(command, started, merged=True) as job:
        await job.wait()
    output = job.output(COLUMNS)
    assert output.ended is not None
    text = output.stdout + output.stderr
    if output.ended.stopped:
        text += f"{ABORTED}\n"
    return ShellAnswer(output=text, exit_code=output.ended.status)
