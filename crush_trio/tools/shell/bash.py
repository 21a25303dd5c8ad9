"""The tools `bash`, which runs a shell command, and `job_output` and `job_kill` for background jobs.

`bash` waits for its command inside the run's cancel scope. If the run is cancelled, the command and
everything it started has ended before the cancellation leaves this tool (A20). A command that takes
longer than the call waits becomes a background job, which `job_output` and `job_kill` find (H9 to H14).
"""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final

import trio
from attrs import define, evolve, field, frozen

from crush_trio.tools.base import (
    LEAVE_SANDBOX,
    About,
    BuiltIn,
    Metadata,
    ToolCall,
    ToolError,
    ToolResult,
    Wanted,
    read_arguments,
)
from crush_trio.tools.sandbox.confinement import SandboxKind
from crush_trio.tools.sandbox.machine import Approval
from crush_trio.tools.shell.environment import shell_argv, unattended_env
from crush_trio.tools.shell.guard.placeholder import REMOVED
from crush_trio.tools.shell.jobs import COLUMNS, NO_OUTPUT, Job, Jobs, describe_output
from crush_trio.tools.shell.judge import Blocked, NeedsPermission, Verdict, judge
from crush_trio.tools.shell.process import Command
from crush_trio.tools.shell.unasked import unasked_env
from crush_trio.tools.workbench import Workbench

FOREGROUND_WAIT: Final = 60
"""Seconds that a call waits for its command by default."""

BACKGROUND_WAIT: Final = 1
"""Seconds that a call waits for a command started in the background: it may fail at once."""


NO_REASON: Final = "outside_reason is required with outside_sandbox: say why the command needs it"

SANDBOX_SIGNS: Final = (
    *("Read-only file system", "Permission denied", "Operation not permitted"),
    *("Device or resource busy", "Could not resolve host", "Network is unreachable"),
    *("Temporary failure in name resolution", "Name or service not known"),
)
"""Texts in the output of a command that failed because of its sandbox."""

SANDBOX_HINT: Final = (
    "This command ran in a sandbox, which may be why it failed: it can change only the "
    "workspace, temporary files and package caches, not the configuration or hooks of git, and private "
    "files are hidden. If the task needs more, call bash again with outside_sandbox and "
    "outside_reason; the user is asked."
)


MADE: Final = (
    "<sandbox>This command made {paths}. Such files decide which programs run later, outside the sandbox. "
    "Tell the user.</sandbox>"
)
MADE_AND_REMOVED: Final = (
    "<sandbox>This command made {paths}, which lets git run programs from another place. If it was a "
    "file, it has been removed.</sandbox>"
)


@frozen(kw_only=True)
class BashArguments:
    """The arguments of `bash`."""

    command: Annotated[str, About("The command, as one would type it into a shell.")]
    description: Annotated[str, About("What the command does, in a few words for the user.")]
    working_dir: Annotated[
        str, About("Where to run it; the workspace if left out. Relative to the workspace.")
    ] = ""
    run_in_background: Annotated[
        bool, About("Whether to return at once and let the command run on.")
    ] = False
    auto_background_after: Annotated[
        int, About("Seconds to wait before the command goes on in the background; 60 if left out.")
    ] = 0
    outside_sandbox: Annotated[
        bool, About("Whether to run it without the sandbox. The user is always asked.")
    ] = False
    outside_reason: Annotated[
        str, About("Why it cannot run in the sandbox, for the user; required with outside_sandbox.")
    ] = ""

    @property
    def wait_seconds(self) -> int:
        """How many seconds the call waits."""
        if self.run_in_background:
            return BACKGROUND_WAIT
        return self.auto_background_after if self.auto_background_after > 0 else FOREGROUND_WAIT


def no_rules(_command: str, _directory: Path) -> bool:
    """Restrict no command."""
    return False


@define(eq=False)
class BashTool(BuiltIn):
    """The tool `bash`.

    *restricted* says whether a rule of the user asks about a command in a directory, or denies it. Such a
    command needs permission, also if it only reads.
    """

    name = "bash"
    arguments = BashArguments

    bench: Workbench
    jobs: Jobs
    restricted: Callable[[str, Path], bool] = field(default=no_rules, repr=False)

    async def run(self, call: ToolCall) -> ToolResult:
        """Judge the command, ask for permission if needed, run it, and return its output."""
        arguments = read_arguments(call.input, BashArguments)
        if not arguments.command.strip():
            raise ToolError("command is required")
        if arguments.outside_sandbox and not arguments.outside_reason.strip():
            raise ToolError(NO_REASON)
        sandbox = self.bench.sandbox
        await sandbox.ready()
        if sandbox.refusal:
            raise ToolError(sandbox.refusal)
        directory, verdict = await trio.to_thread.run_sync(self._judged, arguments)
        if isinstance(verdict, Blocked):
            raise ToolError(f"command not allowed for security reasons: {verdict.reason}")
        approval = await self._approved(call, arguments, directory, verdict)
        command = await trio.to_thread.run_sync(self._command, arguments, directory, approval)
        sandbox.machine.commands[command.held_by, approval] += 1
        return await self._run(call, arguments, command, approval)

    async def _approved(
        self, call: ToolCall, arguments: BashArguments, directory: Path, verdict: Verdict
    ) -> Approval:
        """Ask for permission if it is needed; return why the command may run."""
        if arguments.outside_sandbox:
            await call.permit(_wanted_outside(arguments, directory))
            return Approval.OUTSIDE
        reads = not isinstance(verdict, NeedsPermission)
        if reads and not self.restricted(arguments.command, directory):
            return Approval.UNASKED  # noqa: ASYNC910  # `run` has checkpoints
        allowed = self.bench.sandbox.allows
        await call.permit(evolve(_wanted(arguments, directory), allowed=allowed))
        return Approval.ALLOWED if allowed else Approval.APPROVED

    async def _run(
        self, call: ToolCall, arguments: BashArguments, command: Command, approval: Approval
    ) -> ToolResult:
        async with self.jobs.foreground(
            arguments.command,
            command,
            description=arguments.description,
            reaped=call.reaped,
        ) as job:
            with trio.move_on_after(arguments.wait_seconds):
                await job.wait()
            if job.running:
                self.jobs.keep(job)
                return self._goes_on(job, approval)
        return _ended(job, approval)

    def _judged(self, arguments: BashArguments) -> tuple[Path, Verdict]:
        try:
            directory = self.bench.resolve(arguments.working_dir or ".")
        except (OSError, RuntimeError, ValueError) as exc:
            raise ToolError(f"not a usable directory: {arguments.working_dir!r}: {exc}") from exc
        if not directory.is_dir():
            raise ToolError(f"not a directory: {directory}")
        return directory, judge(
            arguments.command,
            workspace=self.bench.directory,
            working_dir=directory,
            private=self.bench.private,
            sandboxed=self.bench.sandbox.kind is not SandboxKind.NONE,
        )

    def _command(self, arguments: BashArguments, directory: Path, approval: Approval) -> Command:
        bench = self.bench
        unasked = approval is Approval.UNASKED
        try:
            return Command(
                argv=shell_argv(arguments.command),
                working_dir=directory,
                env=unasked_env(bench.env, bench.directory)
                if unasked
                else unattended_env(bench.env),
                confinement=bench.sandbox.confine(approval),
                sandbox=bench.sandbox.kind,
            )
        except ValueError as exc:
            raise ToolError(f"not a usable command: {exc}") from exc

    def _goes_on(self, job: Job, approval: Approval) -> ToolResult:
        """Return the result for a command that became a background job.

        Clients show it as it is, so it has no tags.
        """
        so_far = describe_output(job.output(COLUMNS))
        text = (
            f"The command is running in the background as job {job.id}.\n"
            f"See its output with job_output; end it with job_kill.\n\n{so_far or NO_OUTPUT}"
        )
        metadata = _metadata(job, so_far, self.bench.clock.unix() * 1000, approval)
        return ToolResult(
            content=text,
            metadata={**metadata, "background": True, "shell_id": job.id},
        )


def _wanted(arguments: BashArguments, directory: Path) -> Wanted:
    return Wanted(
        action="execute",
        description=f"Execute command: {arguments.command}",
        params={
            "description": arguments.description,
            "command": arguments.command,
            "working_dir": str(directory) if arguments.working_dir else "",
            "run_in_background": arguments.run_in_background,
            "auto_background_after": arguments.auto_background_after,
        },
        path=directory,
    )


def _wanted_outside(arguments: BashArguments, directory: Path) -> Wanted:
    """Return the request of a command that leaves the sandbox; no rule settles it."""
    inside = _wanted(arguments, directory)
    reason = " ".join(arguments.outside_reason.split())
    return evolve(
        inside,
        action=LEAVE_SANDBOX,
        description=f"Execute command OUTSIDE THE SANDBOX: {arguments.command}\nReason: {reason}",
        params={**(inside.params or {}), "outside_sandbox": True, "outside_reason": reason},
        always=True,
    )


def _ended(job: Job, approval: Approval) -> ToolResult:
    output = job.output(COLUMNS)
    text = describe_output(output)
    ended_at = job.started_at if output.ended is None else output.ended.ended_at
    content = f"{text}\n\n<cwd>{job.working_dir}</cwd>" if text else NO_OUTPUT
    return ToolResult(
        content=content + _hint(job) + _made_note(job),
        metadata=_metadata(job, text, ended_at, approval),
    )


def _hint(job: Job) -> str:
    """Return a note for the model if the sandbox may be why something failed; else nothing.

    Errors are looked for in the output of a command that failed, and on standard error in any case:
    a script may go on after a command of it has failed.
    """
    output = job.output(COLUMNS)
    if job.sandbox is SandboxKind.NONE or output.ended is None or output.ended.stopped:
        return ""
    said = output.stderr + (output.stdout if output.ended.status else "")
    return f"\n\n{SANDBOX_HINT}" if any(sign in said for sign in SANDBOX_SIGNS) else ""


def _made_note(job: Job) -> str:
    """Return a note about files that the command has made and that decide what runs later."""
    found = () if job.ended is None else job.ended.made
    removed = [str(path) for path in found if path.name == REMOVED]
    kept = [str(path) for path in found if path.name != REMOVED]
    notes = ((MADE, kept), (MADE_AND_REMOVED, removed))
    return "".join(f"\n\n{note.format(paths=', '.join(made))}" for note, made in notes if made)


def _metadata(job: Job, output: str, now: int, approval: Approval) -> Metadata:
    """Return what clients show, and what held the command, for the record of its run."""
    return {
        "start_time": job.started_at,
        "end_time": max(now, job.started_at),
        "output": output,
        "description": job.description,
        "working_directory": str(job.working_dir),
        "sandbox": job.sandbox.value,
        "approval": approval.value,
        **(
            {} if job.ended is None or not job.ended.made else {"made": [*map(str, job.ended.made)]}
        ),
    }


@frozen(kw_only=True)
class JobOutputArguments:
    """The arguments of `job_output`."""

    shell_id: Annotated[str, About("The id of the job, as `bash` gave it.")]
    wait: Annotated[bool, About("Whether to wait until the job has ended.")] = False


@define(eq=False)
class JobOutputTool(BuiltIn):
    """The tool `job_output`."""

    name = "job_output"
    arguments = JobOutputArguments

    jobs: Jobs

    async def run(self, call: ToolCall) -> ToolResult:
        """Return the output of the job. A cancel ends the wait, not the job."""
        arguments = read_arguments(call.input, JobOutputArguments)
        job = self.jobs.get(arguments.shell_id)
        if arguments.wait:
            await job.wait()
        else:
            await trio.lowlevel.checkpoint()
        status = "running" if job.running else "completed"
        return ToolResult(
            content=f"Status: {status}\n\n{describe_output(job.output(COLUMNS)) or NO_OUTPUT}"
            + _hint(job)
            + _made_note(job),
            metadata={
                "shell_id": job.id,
                "command": job.script,
                "description": job.description,
                "done": not job.running,
                "working_directory": str(job.working_dir),
            },
        )


@frozen(kw_only=True)
class JobKillArguments:
    """The arguments of `job_kill`."""

    shell_id: Annotated[str, About("The id of the job, as `bash` gave it.")]


@define(eq=False)
class JobKillTool(BuiltIn):
    """The tool `job_kill`."""

    name = "job_kill"
    arguments = JobKillArguments

    jobs: Jobs

    async def run(self, call: ToolCall) -> ToolResult:
        """Stop the job and everything it started, and remove it."""
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
