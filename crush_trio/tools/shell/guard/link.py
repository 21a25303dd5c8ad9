"""`GuardLink`: the server's end of a guard. Starts it, reads its reports, replaces it if it was killed."""

import logging
import os
import signal
import socket
import sys
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from enum import Enum
from pathlib import Path
from typing import Any, Final

import trio
from attrs import define, evolve, field, frozen

from crush_trio.tools.shell.guard.descendants import GUARDS, new_mark
from crush_trio.tools.shell.guard.orphans import Traces, kill_orphans, with_mark
from crush_trio.tools.shell.guard.pair import packed, stop_limit
from crush_trio.tools.shell.guard.process_table import ProcessId

log = logging.getLogger(__name__)

GUARD: Final = (sys.executable, "-I", "-S", str(Path(__file__).with_name("__main__.py")))

SLACK: Final = 0.5
"""Seconds that a guard may take beyond its own limits, and until an ended guard is reaped."""

ORPHANS_LIMIT: Final = 1.0
"""Seconds to find and kill the processes left by a guard that failed."""

CHUNK: Final = 64 * 1024

NOTHING: Final = "-"


# ── What a guard reports ────────────────────────────────────────────────────────────────────────


class GuardOutcome(Enum):
    """How a guarded command ended."""

    ENDED = "ended"
    """The command ended by itself."""
    STOPPED = "stopped"
    """The server stopped it."""
    KILLED = "killed"
    """Its guard was killed, and the command with it."""


@frozen
class GuardEnd:
    """The last line of a report: wait status of the leader, processes stopped, processes left."""

    how: GuardOutcome
    status: int = signal.SIGKILL
    reaped: tuple[int, ...] = ()
    left: tuple[int, ...] = ()


@define(eq=False)
class GuardReport:
    """The reports of one guard so far, parsed line by line.

    `leader` is the command's first process, None before the fork. `failure` is the error number if
    the command could not be executed. `end` is set when the guard has finished.
    """

    leader: ProcessId | None = field(default=None, init=False)
    started: bool = field(default=False, init=False)
    failure: int | None = field(default=None, init=False)
    made: tuple[int, ...] = field(default=(), init=False)
    """The indexes of the watched names that the command has made."""
    end: GuardEnd | None = field(default=None, init=False)
    _rest: bytes = field(default=b"", init=False, repr=False)

    @property
    def over(self) -> bool:
        """Whether the last line has come: only the processes that `end` names are left."""
        return self.failure is not None or self.end is not None

    def feed(self, data: bytes) -> None:
        """Parse bytes from the guard, whole lines or parts. Unknown lines are ignored."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            with suppress(ValueError):
                self._take(line.decode().split())

    def _take(self, words: list[str]) -> None:
        match words:
            case ["forked", pid]:
                self.leader = ProcessId(int(pid))
            case ["started"]:
                self.started = True
            case ["failed", number]:
                self.leader, self.failure = None, int(number)
            case ["made", numbers]:
                self.made = _numbers(numbers)
            case ["withdrawn"]:
                self.end = GuardEnd(GuardOutcome.STOPPED)
            case [how, status, reaped, left]:
                self.end = GuardEnd(
                    GuardOutcome(how), int(status), _numbers(reaped), _numbers(left)
                )


def _numbers(text: str) -> tuple[int, ...]:
    return () if text == NOTHING else tuple(map(int, text.split(",")))


# ── A running guard ─────────────────────────────────────────────────────────────────────────────


def longest_stop(grace: float) -> float:
    """Return the maximum seconds until a command is stopped, or known to be left."""
    return stop_limit(grace) + SLACK + ORPHANS_LIMIT + SLACK + ORPHANS_LIMIT


@define(eq=False)
class GuardLink:
    """A running guard, made by `start_guard`.

    The socket ends when both processes of the guard have ended: no other process has its other end.
    """

    process: trio.Process
    _channel: trio.SocketStream
    _mark: str = field(repr=False)
    _grace: float
    report: GuardReport = field(factory=GuardReport, init=False)

    async def hand_over(self, argv: Iterable[str], orders: Mapping[str, Any]) -> None:
        """Send the guard its command, and wait until it has started or failed to."""
        await trio.lowlevel.checkpoint()
        request = packed([os.fsencode(word) for word in argv], dict(orders))
        with suppress(trio.BrokenResourceError):  # it was killed
            await self._channel.send_all(request)
        while not (self.report.started or self.report.over) and await self._hear():
            pass

    async def wait_over(self) -> None:
        """Wait until the guard has finished. If it was killed, kill the command's processes here."""
        await self._hear_out()
        if not self.report.over:
            await self._kill_orphans()

    async def stop(self) -> None:
        """Stop the command, and make sure that no process of it or of the guard is left.

        Called in a shield. Takes at most `longest_stop`.
        """
        self._channel.socket.shutdown(socket.SHUT_WR)
        self.process.send_signal(signal.SIGCONT)  # the command may have sent SIGSTOP to its guard
        with trio.move_on_after(stop_limit(self._grace) + SLACK):
            await self._hear_out()
        # If this server was busy, the time limit can expire with a report already in the socket.
        self._hear_available()
        if not self.report.over:
            await self._kill_orphans()
        with trio.move_on_after(SLACK):
            await self.process.wait()
        if self.process.returncode is None:
            await self._kill_orphans()
            await self.process.wait()

    def how_it_ended(self) -> GuardEnd:
        """Return how the command ended. A process not known to have ended counts as left."""
        guard = {self.process.pid} if self.process.returncode is None else set()
        if self.report.end is not None:
            return evolve(self.report.end, left=_sorted({*self.report.end.left} | guard))
        if self.report.failure is not None:
            return GuardEnd(GuardOutcome.ENDED, left=_sorted(guard))
        return GuardEnd(GuardOutcome.KILLED, left=_sorted(guard | {self.report.leader}))

    def close(self) -> None:
        """Close the socket. The guard no longer counts as running."""
        self._channel.socket.close()
        end = self.how_it_ended()
        clean = end.how is not GuardOutcome.KILLED and not end.left
        GUARDS.remove(self.process.pid, clean=clean)

    async def _hear_out(self) -> None:
        """Wait for the guard's last line, or for its end."""
        await trio.lowlevel.checkpoint()
        while not self.report.over and await self._hear():
            pass

    async def _hear(self) -> bool:
        """Read the next bytes from the guard; return False at the end of the socket."""
        try:
            data = await self._channel.receive_some(CHUNK)
        except trio.BrokenResourceError:
            return False  # noqa: ASYNC910  # it ended without having read all; trying was one
        self.report.feed(data)
        return bool(data)

    def _hear_available(self) -> None:
        """Read what the socket contains, without waiting."""
        try:
            self.report.feed(os.read(self._channel.socket.fileno(), CHUNK))
        except (BlockingIOError, ConnectionResetError):
            return

    async def _kill_orphans(self) -> None:
        """Kill the processes of the command and the guard, and add them to the report."""
        watcher = ProcessId(self.process.pid) if self.process.returncode is None else None
        traces = Traces(watcher, self.report.leader, self._mark)
        try:
            killed, left = await trio.to_thread.run_sync(
                kill_orphans, traces, ORPHANS_LIMIT, abandon_on_cancel=True
            )
        except (OSError, RuntimeError):  # no file descriptor or thread available
            log.exception("process.search_failed")
            return  # noqa: ASYNC910  # the attempt was a checkpoint
        end = self.report.end or GuardEnd(GuardOutcome.KILLED, reaped=_sorted({self.report.leader}))
        left |= {*end.left}
        self.report.end = evolve(
            end, reaped=_sorted((killed | {*end.reaped}) - left), left=_sorted(left)
        )


async def start_guard(
    working_dir: Path,
    env: Mapping[str, str],
    *,
    stdin: int,
    stdout: int,
    stderr: int,
    grace: float,
) -> GuardLink:
    """Start a guard, which waits for its command. Cannot be cancelled once it has begun."""
    mark = new_mark()
    ours, theirs = socket.socketpair()
    with ExitStack() as on_failure, theirs:
        on_failure.enter_context(ours)
        process = await trio.lowlevel.open_process(
            [*GUARD, str(theirs.fileno()), str(grace)],
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            cwd=working_dir,
            env=with_mark(env, mark),
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
        )
        on_failure.pop_all()
    GUARDS.add(process.pid)
    channel = trio.SocketStream(trio.socket.from_stdlib_socket(ours))
    return GuardLink(process, channel, mark, grace)


def _sorted(pids: Iterable[int | None]) -> tuple[int, ...]:
    return tuple(sorted(pid for pid in pids if pid is not None))
