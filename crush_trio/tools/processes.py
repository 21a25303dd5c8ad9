"""External commands, each owned by the task that started it, with everything it starts in turn.

`open_process_group` is the only place that starts a process. Leaving its block, by success, error or
cancel, runs one shielded and bounded routine: SIGTERM to all the command's processes, a short wait,
SIGKILL, reap. When the block has been left, none of them is there (see `guard.py` for how), and
`ProcessGroup.ended` says what had to be done. Nobody ever waits for the end of a pipe: a process
that does not belong to the command may hold it open.

The environment and the directory of a command are always given; nothing comes from the process.
"""

import errno
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import trio
from attrs import define, field, frozen

from crush_trio.clock import Clock
from crush_trio.nursery import open_hidden_nursery
from crush_trio.tools import guard
from crush_trio.tools.output import BoundedOutput

log = logging.getLogger(__name__)

GRACE: Final = 1.5
"""Seconds a command has to end by itself after SIGTERM."""

SLACK: Final = 0.5
"""Seconds its guard may take beyond that and the kill, before it is killed too."""

CHUNK: Final = 64 * 1024
"""Bytes read at once."""

DRAINED: Final = 1024 * 1024
"""Bytes read from a pipe after the last writer should have ended. A pipe holds no more."""

GUARD: Final = (sys.executable, "-I", "-S", guard.__file__)


# ── What to run, and how it ended ───────────────────────────────────────────────────────────────


@frozen(kw_only=True)
class Command:
    """A program with its arguments, where it runs, and its whole environment."""

    argv: tuple[str, ...]
    working_dir: Path
    env: Mapping[str, str] = field(repr=False)

    def __attrs_post_init__(self) -> None:
        if any("\0" in word for word in self.argv):
            raise ValueError("an argument contains a null character")


@frozen(kw_only=True)
class Ended:
    """How a command ended. Times are milliseconds since the epoch.

    `stopped` means that it did not end by itself. `reaped` are the processes that had to be stopped,
    those included that a command left behind when it ended; `left` are those that could not be,
    and there should never be any.
    """

    exit_code: int | None
    signal: int | None = None
    stopped: bool = False
    reaped: tuple[int, ...] = ()
    left: tuple[int, ...] = ()
    started_at: int
    ended_at: int

    @property
    def status(self) -> int:
        """The exit code as a shell tells it: a signal is 128 and its number."""
        if self.exit_code is not None:
            return self.exit_code
        return 128 + (self.signal or signal.SIGKILL)


@frozen(kw_only=True)
class Finished:
    """A command that was run to its end, and what it wrote."""

    ended: Ended
    stdout: BoundedOutput
    stderr: BoundedOutput


async def run_command(
    command: Command, *, clock: Clock, grace: float = GRACE, keep: int | None = None
) -> Finished:
    """Run a command to its end and return what it wrote, *keep* bytes of each stream.

    A cancel stops the command first, in the time that `open_process_group` takes for it. Raises
    `OSError` if it cannot be started.
    """
    stdout, stderr = _outputs(keep)
    async with open_process_group(
        command, clock=clock, stdout=stdout, stderr=stderr, grace=grace
    ) as group:
        await group.wait()
    assert group.ended is not None
    return Finished(ended=group.ended, stdout=stdout, stderr=stderr)


def _outputs(keep: int | None) -> tuple[BoundedOutput, BoundedOutput]:
    if keep is None:
        return BoundedOutput(), BoundedOutput()
    return BoundedOutput(keep), BoundedOutput(keep)


# ── A command and everything below it ───────────────────────────────────────────────────────────


@asynccontextmanager
async def open_process_group(
    command: Command,
    *,
    clock: Clock,
    stdin: int = subprocess.DEVNULL,
    stdout: BoundedOutput | int = subprocess.DEVNULL,
    stderr: BoundedOutput | int = subprocess.DEVNULL,
    grace: float = GRACE,
) -> "AsyncIterator[ProcessGroup]":
    """Start a command; on leaving the block, stop it and everything it started.

    What it writes goes into a `BoundedOutput`, which fills while the block runs, or to the caller,
    who asks for a stream with `subprocess.PIPE`. Raises `OSError` if the command cannot be started.
    """
    group = await _spawn(command, clock, stdin, stdout, stderr, grace)
    try:
        await group.begin()
        async with open_hidden_nursery() as pumps:
            pumps.start_soon(group.pump)
            yield group
            pumps.cancel_scope.cancel()
    finally:
        with trio.move_on_after(group.limit + 2 * SLACK, shield=True):
            await group.end()


async def _spawn(
    command: Command,
    clock: Clock,
    stdin: int,
    stdout: BoundedOutput | int,
    stderr: BoundedOutput | int,
    grace: float,
) -> "ProcessGroup":
    """Start a guard that waits for its command. Cannot be cancelled once it has begun."""
    ours, theirs = socket.socketpair()
    with ExitStack() as on_failure, theirs:
        on_failure.enter_context(ours)
        process = await trio.lowlevel.open_process(
            [*GUARD, str(theirs.fileno()), str(grace)],
            stdin=stdin,
            stdout=subprocess.PIPE if isinstance(stdout, BoundedOutput) else stdout,
            stderr=subprocess.PIPE if isinstance(stderr, BoundedOutput) else stderr,
            cwd=command.working_dir,
            env=command.env,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
        )
        on_failure.pop_all()
    sinks = tuple(
        (stream, sink)
        for stream, sink in ((process.stdout, stdout), (process.stderr, stderr))
        if isinstance(stream, trio.lowlevel.FdStream) and isinstance(sink, BoundedOutput)
    )
    channel = trio.SocketStream(trio.socket.from_stdlib_socket(ours))
    return ProcessGroup(command, process, channel, sinks, clock, grace + guard.KILL_LIMIT + SLACK)


@define(eq=False)
class ProcessGroup:
    """A running command. Made by `open_process_group` only.

    `pid` is the command itself, which leads a session of its own. `ended` is set when the block
    has been left. `limit` is how many seconds its guard may take to end it.
    """

    command: Command
    _process: trio.Process
    _channel: trio.SocketStream
    _sinks: "Sinks"
    _clock: Clock
    limit: float
    pid: int = field(default=0, init=False)
    ended: Ended | None = field(default=None, init=False)
    _report: bytes = field(default=b"", init=False)
    _started_at: int = field(init=False)
    _started_time: float = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._started_at = self._clock.unix() * 1000
        self._started_time = self._clock.monotonic()

    @property
    def stdin(self) -> trio.abc.SendStream | None:
        """What the command reads, if the caller writes it."""
        return self._process.stdin

    @property
    def stdout(self) -> trio.abc.ReceiveStream | None:
        """What the command writes, if the caller reads it."""
        return self._process.stdout

    @property
    def stderr(self) -> trio.abc.ReceiveStream | None:
        """What the command complains about, if the caller reads it."""
        return self._process.stderr

    async def wait(self) -> None:
        """Wait until the command has ended by itself, and what it left behind has been stopped."""
        await self._process.wait()

    # ── From `open_process_group` ───────────────────────────────────────────────────────────────

    async def begin(self) -> None:
        """Hand the command to its guard; raise `OSError` if that cannot execute it."""
        request = b"\0".join(os.fsencode(word) for word in self.command.argv)
        try:
            await self._channel.send_all(len(request).to_bytes(4, "big") + request)
            _, pid = await self._line()
        except trio.BrokenResourceError as exc:
            raise OSError(errno.ECHILD, "the command's guard did not start") from exc
        self.pid = int(pid)
        try:
            word, *numbers = await self._line()
        except trio.BrokenResourceError:
            return  # it was killed by now, perhaps by its command
        if word == b"failed":
            self.pid = 0
            raise OSError(int(numbers[0]), os.strerror(int(numbers[0])), self.command.argv[0])

    async def _line(self) -> list[bytes]:
        """Return the words of the guard's next line. More than that may have come along."""
        await trio.lowlevel.checkpoint()
        while b"\n" not in self._report:
            data = await self._channel.receive_some(CHUNK)
            if not data:
                raise trio.BrokenResourceError
            self._report += data
        line, _, self._report = self._report.partition(b"\n")
        return line.split()

    async def pump(self) -> None:
        """Read what the command writes into the caller's outputs, until its pipes have ended."""
        async with trio.open_nursery() as nursery:
            for stream, sink in self._sinks:
                nursery.start_soon(_pump, stream, sink)

    async def end(self) -> None:
        """Stop the command if it runs, take its last words, and close everything.

        Called in a shield, because a command must be stopped above all when its task is cancelled.
        """
        with trio.move_on_after(self.limit):
            await self._outlast()
        self._report += b"".join(_available(self._channel.socket.fileno()))
        if self._process.returncode is None or (self.pid and not self._last_words()):
            await self._finish_off()
        for stream, sink in self._sinks:
            _drain(stream, sink)
        self.ended = self._how_it_ended()
        await self._close()

    async def _outlast(self) -> None:
        """Have the guard end the command, and wait for that. It may still have something to say."""
        self._channel.socket.shutdown(socket.SHUT_WR)
        self._process.send_signal(signal.SIGCONT)  # its command may have stopped it
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.pump)
            await self._process.wait()
            nursery.cancel_scope.cancel()

    async def _finish_off(self) -> None:
        """Kill what a guard left that was killed, or that does not do its work; and the guard."""
        log.error("process.guard_failed", extra={"pid": self._process.pid, "leader": self.pid})
        victims = guard.descendants(self._process.pid) | guard.members(self.pid)
        guard.send(signal.SIGKILL, victims.values())
        self._process.kill()
        with trio.move_on_after(SLACK):
            await self._process.wait()
            for pid in victims:
                await _gone(pid)

    def _last_words(self) -> list[str]:
        """Return what the guard said about the end, or nothing if it did not get to that."""
        words = self._report.decode().rpartition("\n")[0].rpartition("\n")[2].split()
        return words if len(words) == 4 else []

    def _how_it_ended(self) -> Ended:
        took = round((self._clock.monotonic() - self._started_time) * 1000)
        killed = ["stopped", str(signal.SIGKILL.value), str(self.pid or "-"), "-"]
        how, status, reaped, left = self._last_words() or killed
        code = os.waitstatus_to_exitcode(int(status))
        return Ended(
            exit_code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            stopped=how == "stopped",
            reaped=_pids(reaped),
            left=_pids(left),
            started_at=self._started_at,
            ended_at=self._started_at + took,
        )

    async def _close(self) -> None:
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                await stream.aclose()
        await self._channel.aclose()


async def _gone(pid: int) -> None:
    """Wait until a process has ended that is not our child."""
    await trio.lowlevel.checkpoint()
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        await trio.lowlevel.wait_readable(descriptor)
    finally:
        os.close(descriptor)


# ── Pipes ───────────────────────────────────────────────────────────────────────────────────────


Sinks = tuple[tuple[trio.lowlevel.FdStream, BoundedOutput], ...]


async def _pump(stream: trio.lowlevel.FdStream, sink: BoundedOutput) -> None:
    async for data in stream:
        sink.append(data)


def _drain(stream: trio.lowlevel.FdStream, sink: BoundedOutput) -> None:
    """Take what is in a pipe already, and wait for nothing."""
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


def _pids(text: str) -> tuple[int, ...]:
    return () if text == "-" else tuple(map(int, text.split(",")))
