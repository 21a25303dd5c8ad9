"""`Jobs`: the shell commands of one workspace, in the foreground and in the background.

Every command runs from the start in a task of the workspace's services nursery. A command started with
`foreground` is stopped when its block is left, also by a cancel, so a run ends only after its processes
have (A20). `keep` turns a foreground command into a background job without restarting it: it then ends
by itself, by `kill`, or with its own workspace (H12, H14, L20).

Ended jobs stay readable for a while. They expire when the jobs are next used; there is no timer task.
`describe_output` formats the output of a command for the model (H13).
"""

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from itertools import count
from pathlib import Path
from subprocess import DEVNULL
from typing import Final, Protocol

import trio
from attrs import define, field, frozen

from crush_trio.clock import Clock
from crush_trio.tools.base import ReportProcesses, ToolError
from crush_trio.tools.sandbox.confinement import SandboxKind
from crush_trio.tools.shell.guard.link import longest_stop
from crush_trio.tools.shell.output import BoundedOutput, Excerpt
from crush_trio.tools.shell.process import (
    GRACE,
    NOT_STARTED,
    Command,
    CommandEnd,
    open_process_group,
)

log = logging.getLogger(__name__)

MOST_JOBS: Final = 50
"""Maximum jobs of a workspace, ended ones that are still readable included."""

REMEMBERED: Final = 8 * 3600
"""Seconds for which the output of an ended job stays readable."""

STOP_LIMIT: Final = longest_stop(GRACE) + 1.0
"""Seconds to wait for a job's task after its cancel; the task itself needs less."""


class RunningCommand(Protocol):
    """A running command, as `Job` uses it."""

    @property
    def pid(self) -> int | None:
        """Its first process, None before the fork."""
        ...

    @property
    def stdin(self) -> trio.abc.SendStream | None:
        """Its standard input, if that is a pipe."""
        ...

    async def wait(self) -> None:
        """Wait until it has ended by itself."""
        ...


class OpenCommand(Protocol):
    """Opens a command as an async context manager, as `open_process_group` does."""

    def __call__(
        self,
        command: Command,
        /,
        *,
        clock: Clock,
        stdin: int = DEVNULL,
        stdout: BoundedOutput,
        stderr: BoundedOutput | int,
        grace: float = GRACE,
        on_ended: Callable[[CommandEnd], None] = ...,
    ) -> AbstractAsyncContextManager[RunningCommand]:
        """Return the context manager; leaving it stops the command and calls *on_ended*."""
        ...


# ── One job ─────────────────────────────────────────────────────────────────────────────────────


@frozen(kw_only=True)
class JobOutput:
    """The output of a job so far, and how it ended if it has."""

    stdout: str
    stderr: str
    ended: CommandEnd | None


@define(eq=False)
class Job:
    """A shell command of a workspace. Made by `Jobs` only."""

    id: str
    script: str
    description: str
    working_dir: Path
    started_at: int
    sandbox: SandboxKind = SandboxKind.NONE
    """The sandbox that holds the command."""
    _hide: Callable[[str], str] = field(default=str, repr=False)
    ended: CommandEnd | None = field(default=None, init=False)
    ended_time: float | None = field(default=None, init=False)
    kept: bool = field(default=False, init=False)
    _group: RunningCommand | None = field(default=None, init=False, repr=False)
    _stdout: BoundedOutput = field(factory=BoundedOutput, init=False, repr=False)
    _stderr: BoundedOutput = field(factory=BoundedOutput, init=False, repr=False)
    _scope: trio.CancelScope = field(factory=trio.CancelScope, init=False, repr=False)
    _over: trio.Event = field(factory=trio.Event, init=False, repr=False)

    @property
    def running(self) -> bool:
        """Whether the command, or a process it started, still runs."""
        return not self._over.is_set()

    @property
    def reaped(self) -> tuple[int, ...]:
        """The processes that were stopped, if the command did not end by itself."""
        return self.ended.reaped if self.ended is not None and self.ended.stopped else ()

    @property
    def left(self) -> tuple[int, ...]:
        """The processes that are not known to have ended."""
        if self.ended is not None:
            return self.ended.left
        pid = None if self._group is None else self._group.pid
        return () if pid is None else (pid,)

    def output(self, columns: int | None = None) -> JobOutput:
        """Return the current output, at most *columns* display columns per stream."""
        stdout, stderr = (each.text(columns, self._hide) for each in (self._stdout, self._stderr))
        return JobOutput(stdout=stdout, stderr=stderr, ended=self.ended)

    async def wait(self) -> None:
        """Wait until the command has ended. A cancel ends the wait, not the command."""
        await self._over.wait()

    async def stop(self) -> None:
        """Stop the command and everything it started; waits for that even if cancelled."""
        self._scope.cancel("stopped")
        with trio.move_on_after(STOP_LIMIT, shield=True):
            await self._over.wait()
        if self.running:
            log.error("job.stop_incomplete", extra={"job_id": self.id})

    async def run(  # noqa: ASYNC910  # opening the command is a checkpoint
        self, command: Command, clock: Clock, opens: OpenCommand
    ) -> None:
        """Run the command to its end: the job's task. Errors become part of the output."""
        failure = ""
        try:
            with self._scope:
                async with opens(
                    command,
                    clock=clock,
                    stdout=self._stdout,
                    stderr=self._stderr,
                    on_ended=self._note_end,
                ) as self._group:
                    await self._group.wait()
        except OSError as exc:
            failure = str(exc)
        except Exception as exc:  # a barrier: one bad job must not cancel its siblings
            log.exception("job.failed", extra={"job_id": self.id})
            failure = str(exc) or type(exc).__name__
        finally:
            self._settle(failure, clock)

    def _note_end(self, ended: CommandEnd) -> None:
        self.ended = ended

    def _settle(self, failure: str, clock: Clock) -> None:
        if failure:
            self._stderr.append(f"{failure}\n".encode())
        if self.ended is None:
            self.ended = CommandEnd(
                exit_code=NOT_STARTED if failure else None,
                stopped=not failure,
                started_at=self.started_at,
                ended_at=self.started_at,
            )
        self.ended_time = clock.monotonic()
        self._over.set()


# ── The jobs of a workspace ─────────────────────────────────────────────────────────────────────


@define(eq=False)
class Jobs:
    """The jobs of a workspace; starts commands as tasks of the *services* nursery."""

    _services: trio.Nursery = field(repr=False)
    _clock: Clock = field(repr=False)
    _opens: OpenCommand = field(default=open_process_group, repr=False)
    _hide: Callable[[str], str] = field(default=str, repr=False)
    """Removes secrets from the output of commands."""
    _jobs: dict[str, Job] = field(factory=dict, init=False, repr=False)
    _numbers: "count[int]" = field(factory=lambda: count(1), init=False, repr=False)

    def start(self, script: str, command: Command, *, description: str = "") -> Job:
        """Start *command* as a background job.

        *script* is the text of the command. Raises `ToolError` if there are too many jobs.
        """
        job = self._start(script, command, description)
        self.keep(job)
        return job

    @asynccontextmanager
    async def foreground(
        self,
        script: str,
        command: Command,
        *,
        description: str = "",
        reaped: ReportProcesses = lambda stopped, left=(): None,
    ) -> AsyncIterator[Job]:
        """Start *command*; leaving the block stops it, unless `keep` was called.

        *reaped* is called with the processes that were stopped because the block was left early, and
        those that could not be.
        """
        job = self._start(script, command, description)
        try:
            yield job
        finally:
            if not job.kept:
                del self._jobs[job.id]
                await job.stop()  # noqa: ASYNC102  # shielded and bounded there
                reaped(job.reaped, job.left)

    def keep(self, job: Job) -> None:
        """Turn a foreground command into a background job: leaving its block does not stop it."""
        job.kept = True

    def get(self, job_id: str) -> Job:
        """Return a background job, running or ended; raise `ToolError` if there is none."""
        self._expire()
        job = self._jobs.get(job_id)
        if job is None or not job.kept:
            raise ToolError(f"no background job has the id {job_id}")
        return job

    def list(self) -> tuple[Job, ...]:
        """Return the background jobs, running or ended, in the order of their start."""
        self._expire()
        return tuple(job for job in self._jobs.values() if job.kept)

    async def kill(self, job_id: str) -> Job:
        """Stop a background job and remove it. It has ended when this returns."""
        job = self.get(job_id)
        del self._jobs[job_id]
        await job.stop()
        return job

    def _start(self, script: str, command: Command, description: str) -> Job:
        self._make_room()
        now = self._clock.unix() * 1000
        name = f"{next(self._numbers):03X}"
        job = Job(
            name,
            script,
            description,
            command.working_dir,
            now,
            command.held_by,
            hide=self._hide,
        )
        work = partial(job.run, command, self._clock, self._opens)
        self._services.start_soon(work, name=f"job {job.id}")
        self._jobs[job.id] = job
        return job

    def _make_room(self) -> None:
        """Remove the oldest ended job if there are too many; running jobs are not stopped."""
        self._expire()
        if len(self._jobs) < MOST_JOBS:
            return
        ended = next((job for job in self._jobs.values() if job.kept and not job.running), None)
        if ended is None:
            raise ToolError(f"{MOST_JOBS} commands are running already; wait for one, or kill one")
        del self._jobs[ended.id]

    def _expire(self) -> None:
        oldest = self._clock.monotonic() - REMEMBERED
        for job in tuple(self._jobs.values()):
            if job.kept and job.ended_time is not None and job.ended_time < oldest:
                del self._jobs[job.id]


COLUMNS: Final = 30_000
"""Maximum display columns of each stream in a tool result."""

NO_OUTPUT: Final = "no output"
ABORTED: Final = "Command was aborted before completion"


def describe_output(output: JobOutput) -> str:
    """Return standard output, a blank line, standard error, and the exit code if it is not 0."""
    streams = (output.stdout.rstrip("\n"), output.stderr.rstrip("\n"))
    text = "\n\n".join(stream for stream in streams if stream)
    return "\n".join(part for part in (text, _ending(output)) if part)


def clipped(text: str) -> str:
    """Return *text* limited to COLUMNS: its beginning and its end."""
    return str(Excerpt(head=text).clipped(COLUMNS))


def _ending(output: JobOutput) -> str:
    if output.ended is None or (not output.ended.stopped and output.ended.status == 0):
        return ""
    return ABORTED if output.ended.stopped else f"Exit code {output.ended.status}"
