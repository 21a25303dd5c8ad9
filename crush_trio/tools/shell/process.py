"""`open_process_group`: runs a command whose processes are owned by the task that started it.

This is the only place that starts a process. Leaving its block, by success, error or cancel, runs one
shielded and bounded routine: SIGTERM to all processes of the command, a short wait, SIGKILL, reap. The
command's guard does that (`guard/pair.py`) and reports which processes it stopped and which are left;
`CommandEnd` holds the report. The end of a pipe is never waited for, because a process that does not
belong to the command may hold it open.

The environment and the directory of a command are always given. Only a mark is added, by which the
command's processes are recognised if their guard was killed.
"""

import errno
import logging
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import trio
from attrs import define, field, frozen

from crush_trio.clock import Clock
from crush_trio.nursery import open_hidden_nursery
from crush_trio.tools.sandbox.confinement import Confinement, SandboxKind
from crush_trio.tools.sandbox.enforcement import PLAIN, Enforced, enforce
from crush_trio.tools.shell.guard.link import (
    GuardEnd,
    GuardLink,
    GuardOutcome,
    longest_stop,
    start_guard,
)
from crush_trio.tools.shell.guard.orphans import name_of
from crush_trio.tools.shell.guard.process_table import ProcessId
from crush_trio.tools.shell.output import BoundedOutput

log = logging.getLogger(__name__)

GRACE: Final = 1.5
"""Seconds between SIGTERM and SIGKILL."""

CHUNK: Final = 64 * 1024
"""Bytes read at once."""

DRAINED: Final = 1024 * 1024
"""Maximum bytes read from a pipe after the command has ended; the capacity of a pipe."""

NOT_STARTED: Final = 127
"""The exit code of a command that could not be executed, as in a shell."""


# ── Values ──────────────────────────────────────────────────────────────────────────────────────


@frozen(kw_only=True)
class Command:
    """A program with its arguments, its working directory and its whole environment.

    With a *confinement* and a *sandbox* other than none, it runs in that sandbox.
    """

    argv: tuple[str, ...]
    working_dir: Path
    env: Mapping[str, str] = field(repr=False)
    confinement: Confinement | None = None
    sandbox: SandboxKind = SandboxKind.NONE

    @property
    def held_by(self) -> SandboxKind:
        """The sandbox that it runs in."""
        return SandboxKind.NONE if self.confinement is None else self.sandbox

    def __attrs_post_init__(self) -> None:
        if any("\0" in word for word in self.argv):
            raise ValueError("an argument contains a null character")


@frozen(kw_only=True)
class CommandEnd:
    """How a command ended. Times are milliseconds since the epoch.

    `stopped` means that it did not end by itself. `reaped` are the processes that were stopped,
    including those that the command left behind when it ended. `left` are those that could not be
    stopped, because they run as another user or hang in the kernel. `made` are the watched names of its
    confinement that exist now.
    """

    exit_code: int | None
    signal: int | None = None
    stopped: bool = False
    reaped: tuple[int, ...] = ()
    left: tuple[int, ...] = ()
    made: tuple[Path, ...] = ()
    started_at: int
    ended_at: int

    @property
    def status(self) -> int:
        """The exit code as in a shell: 128 plus the number of the signal if one ended it."""
        if self.exit_code is not None:
            return self.exit_code
        return 128 + (self.signal or signal.SIGKILL)


@frozen(kw_only=True)
class FinishedCommand:
    """The end and the output of a command."""

    ended: CommandEnd
    stdout: BoundedOutput
    stderr: BoundedOutput


async def run_command(
    command: Command, *, clock: Clock, grace: float = GRACE, keep: int | None = None
) -> FinishedCommand:
    """Run a command to its end and return its output, *keep* bytes of each stream.

    A cancel stops the command first, as `open_process_group` does. Raises `OSError` if the command
    cannot be started.
    """
    stdout, stderr = _outputs(keep)
    async with open_process_group(
        command, clock=clock, stdout=stdout, stderr=stderr, grace=grace
    ) as group:
        await group.wait()
    assert group.ended is not None
    return FinishedCommand(ended=group.ended, stdout=stdout, stderr=stderr)


def _outputs(keep: int | None) -> tuple[BoundedOutput, BoundedOutput]:
    if keep is None:
        return BoundedOutput(), BoundedOutput()
    return BoundedOutput(keep), BoundedOutput(keep)


# ── Process groups ──────────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def open_process_group(
    command: Command,
    *,
    clock: Clock,
    stdin: int = subprocess.DEVNULL,
    stdout: BoundedOutput | int = subprocess.DEVNULL,
    stderr: BoundedOutput | int = subprocess.DEVNULL,
    grace: float = GRACE,
    on_ended: Callable[[CommandEnd], None] = lambda _: None,
) -> "AsyncIterator[ProcessGroup]":
    """Start a command; leaving the block stops it and everything it started.

    Output goes into a `BoundedOutput`, which fills while the block runs, or to a stream that the
    caller requests with `subprocess.PIPE`. Raises `OSError` if the command cannot be started, and
    `NotConfined`, which is one, if its sandbox cannot enforce its confinement.
    *on_ended* is called once a guard was started, also if the block was not entered because of a
    cancel or because the command cannot be executed.
    """
    enforced = await _enforced(command)
    guard = await start_guard(
        command.working_dir,
        command.env,
        stdin=stdin,
        stdout=subprocess.PIPE if isinstance(stdout, BoundedOutput) else stdout,
        stderr=subprocess.PIPE if isinstance(stderr, BoundedOutput) else stderr,
        grace=grace,
    )
    sinks = tuple(
        (stream, sink)
        for stream, sink in ((guard.process.stdout, stdout), (guard.process.stderr, stderr))
        if isinstance(stream, trio.lowlevel.FdStream) and isinstance(sink, BoundedOutput)
    )
    group = ProcessGroup(command, enforced, guard, sinks, clock)
    try:
        await group.begin()
        async with open_hidden_nursery() as tasks:
            tasks.start_soon(group.pump)
            tasks.start_soon(group.listen)
            yield group
            tasks.cancel_scope.cancel()
    finally:
        try:
            with trio.move_on_after(longest_stop(grace), shield=True):
                await group.stop()
        finally:
            on_ended(group.settle())


async def _enforced(command: Command) -> Enforced:
    """Return how the confinement of a command is enforced."""
    if command.confinement is None or command.sandbox is SandboxKind.NONE:
        await trio.lowlevel.checkpoint()
        return PLAIN
    return await trio.to_thread.run_sync(
        enforce,
        command.argv[0],
        command.working_dir,
        command.env.get("PATH", os.defpath),
        command.confinement,
        command.sandbox,
    )


@define(eq=False)
class ProcessGroup:
    """A running command, made by `open_process_group`. `ended` is set when its block is left."""

    command: Command
    _enforced: Enforced
    _guard: GuardLink
    _sinks: "Sinks"
    _clock: Clock
    ended: CommandEnd | None = field(default=None, init=False)
    _over: trio.Event = field(factory=trio.Event, init=False)
    _started_at: int = field(init=False)
    _started_time: float = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._started_at = self._clock.unix() * 1000
        self._started_time = self._clock.monotonic()

    @property
    def pid(self) -> ProcessId | None:
        """The process of the command, which leads its own session; None before the fork."""
        return self._guard.report.leader

    @property
    def stdin(self) -> trio.abc.SendStream | None:
        """The standard input of the command, if the caller requested a pipe."""
        return self._guard.process.stdin

    @property
    def stdout(self) -> trio.abc.ReceiveStream | None:
        """The standard output of the command, if it is a pipe."""
        return self._guard.process.stdout

    @property
    def stderr(self) -> trio.abc.ReceiveStream | None:
        """The standard error of the command, if it is a pipe."""
        return self._guard.process.stderr

    async def wait(self) -> None:
        """Wait until the command has ended by itself and the processes it left were stopped."""
        await self._over.wait()

    # ── For `open_process_group` ────────────────────────────────────────────────────────────────

    async def begin(self) -> None:
        """Send the command to its guard; raise `OSError` if it cannot be executed."""
        await self._guard.hand_over(self._enforced.argv(self.command.argv), self._enforced.orders)
        report = self._guard.report
        if report.failure is not None:
            raise OSError(report.failure, os.strerror(report.failure), self.command.argv[0])
        if report.leader is None:
            raise OSError(errno.ECHILD, "the command's guard did not start")

    async def listen(self) -> None:
        """Wait until the command has ended, also if its guard was killed."""
        await self._guard.wait_over()
        self._over.set()

    async def pump(self) -> None:
        """Read the command's output into the caller's `BoundedOutput`s until its pipes end."""
        async with trio.open_nursery() as nursery:
            for stream, sink in self._sinks:
                nursery.start_soon(_pump, stream, sink)

    async def stop(self) -> None:
        """Stop the command if it runs, and keep reading its output meanwhile.

        Called in a shield, because the command must be stopped when its task is cancelled. Without
        a reader, a command that writes a last message to a full pipe would block until SIGKILL.
        """
        async with open_hidden_nursery() as tasks:
            tasks.start_soon(self.pump)
            await self._guard.stop()
            tasks.cancel_scope.cancel()

    def settle(self) -> CommandEnd:
        """Read the rest of the output, close everything, and set `ended`."""
        for stream, sink in self._sinks:
            _drain(stream, sink)
        self._guard.close()
        for pipe in (self.stdin, self.stdout, self.stderr):
            if isinstance(pipe, trio.lowlevel.FdStream):
                pipe.close()
        self.ended = self._how_it_ended(self._guard.how_it_ended())
        return self.ended

    def _how_it_ended(self, end: GuardEnd) -> CommandEnd:
        failed = self._guard.report.failure is not None
        code = NOT_STARTED if failed else os.waitstatus_to_exitcode(end.status)
        took = round((self._clock.monotonic() - self._started_time) * 1000)
        extra = {"program": self.command.argv[0], "leader": self.pid}
        if end.how is GuardOutcome.KILLED or self._guard.process.returncode:
            log.error("process.guard_failed", extra=extra)
        if end.left:
            log.error("process.left", extra=extra | {"processes": [*map(name_of, end.left)]})
        return CommandEnd(
            exit_code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            stopped=end.how is not GuardOutcome.ENDED,
            reaped=end.reaped,
            left=end.left,
            made=self._made(extra),
            started_at=self._started_at,
            ended_at=self._started_at + took,
        )

    def _made(self, extra: Mapping[str, object]) -> tuple[Path, ...]:
        """Return the watched names that the command has made, and log them."""
        held = self.command.confinement
        watched = () if held is None else held.watched
        made = tuple(watched[at] for at in self._guard.report.made if at < len(watched))
        if made:
            log.warning("sandbox.made", extra={**extra, "paths": [*map(str, made)]})
        return made


# ── Pipes ───────────────────────────────────────────────────────────────────────────────────────


Sinks = tuple[tuple[trio.lowlevel.FdStream, BoundedOutput], ...]


async def _pump(stream: trio.lowlevel.FdStream, sink: BoundedOutput) -> None:
    async for data in stream:
        sink.append(data)


def _drain(stream: trio.lowlevel.FdStream, sink: BoundedOutput) -> None:
    """Read what a pipe contains, without waiting."""
    for data in _available(stream.fileno()):
        sink.append(data)


def _available(descriptor: int) -> Iterator[bytes]:
    for _ in range(DRAINED // CHUNK):
        try:
            data = os.read(descriptor, CHUNK)
        except BlockingIOError:
            return
        if not data:
            return
        yield data
