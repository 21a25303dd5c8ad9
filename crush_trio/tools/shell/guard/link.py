"""The server's end of a guard: starts it, hears what it reports, and does its work if it was killed."""

import logging
import os
import signal
import socket
import sys
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from secrets import token_hex
from typing import Final

import trio
from attrs import define, evolve, field

from crush_trio.tools.shell.guard.orphans import Traces, kill_orphans, with_mark
from crush_trio.tools.shell.guard.pair import stop_limit
from crush_trio.tools.shell.guard.process_table import ProcessId
from crush_trio.tools.shell.guard.report import GuardEnd, GuardOutcome, GuardReport

log = logging.getLogger(__name__)

GUARD: Final = (sys.executable, "-I", "-S", str(Path(__file__).with_name("__main__.py")))

SLACK: Final = 0.5
"""Seconds a guard may take beyond its own limits, and a guard that has ended to be reaped."""

ORPHANS_LIMIT: Final = 1.0
"""Seconds to find and kill what is left by a guard that failed."""

CHUNK: Final = 64 * 1024


def longest_stop(grace: float) -> float:
    """Return the seconds in which a command is stopped, or known to be left, whatever happens."""
    return stop_limit(grace) + SLACK + ORPHANS_LIMIT + SLACK + ORPHANS_LIMIT


@define(eq=False)
class GuardLink:
    """A running guard. Made by `start_guard` only.

    The socket ends when both processes of the guard are gone: nothing else has its other end.
    """

    process: trio.Process
    _channel: trio.SocketStream
    _mark: str = field(repr=False)
    _grace: float
    report: GuardReport = field(factory=GuardReport, init=False)

    async def hand_over(self, argv: Iterable[str]) -> None:
        """Give the guard its command, and wait until it has started, or cannot be."""
        await trio.lowlevel.checkpoint()
        request = b"\0".join(os.fsencode(word) for word in argv)
        with suppress(trio.BrokenResourceError):  # it was killed
            await self._channel.send_all(len(request).to_bytes(4, "big") + request)
        while not (self.report.started or self.report.over) and await self._hear():
            pass

    async def wait_over(self) -> None:
        """Wait until the guard has done its work. If it was killed, do it in its place."""
        await self._hear_out()
        if not self.report.over:
            await self._kill_orphans()

    async def stop(self) -> None:
        """Have the command stopped, and see to it that nothing is left, of the guard neither.

        Called in a shield. Takes no longer than `longest_stop`.
        """
        self._channel.socket.shutdown(socket.SHUT_WR)
        self.process.send_signal(signal.SIGCONT)  # the command may have stopped it
        with trio.move_on_after(stop_limit(self._grace) + SLACK):
            await self._hear_out()
        self._hear_available()  # after a busy moment of this server the limit is reached too early
        if not self.report.over:
            await self._kill_orphans()
        with trio.move_on_after(SLACK):
            await self.process.wait()
        if self.process.returncode is None:
            await self._kill_orphans()
            await self.process.wait()

    def how_it_ended(self) -> GuardEnd:
        """Return how the command ended. What has not been seen to end is left."""
        guard = {self.process.pid} if self.process.returncode is None else set()
        if self.report.end is not None:
            return evolve(self.report.end, left=_sorted({*self.report.end.left} | guard))
        if self.report.failure is not None:
            return GuardEnd(GuardOutcome.ENDED, left=_sorted(guard))
        return GuardEnd(GuardOutcome.KILLED, left=_sorted(guard | {self.report.leader}))

    def close(self) -> None:
        """Close the socket."""
        self._channel.socket.close()

    async def _hear_out(self) -> None:
        """Wait for the guard's last line, or for its end."""
        await trio.lowlevel.checkpoint()
        while not self.report.over and await self._hear():
            pass

    async def _hear(self) -> bool:
        """Take what the guard reports next; return False if there is nothing more to come."""
        try:
            data = await self._channel.receive_some(CHUNK)
        except trio.BrokenResourceError:
            return False  # noqa: ASYNC910  # it ended without having read all; trying was one
        self.report.feed(data)
        return bool(data)

    def _hear_available(self) -> None:
        """Take what the guard has reported already, and wait for nothing."""
        try:
            self.report.feed(os.read(self._channel.socket.fileno(), CHUNK))
        except (BlockingIOError, ConnectionResetError):
            return

    async def _kill_orphans(self) -> None:
        """Kill what is there of the command and of the guard, and add it to the guard's report."""
        watcher = ProcessId(self.process.pid) if self.process.returncode is None else None
        traces = Traces(watcher, self.report.leader, self._mark)
        try:
            killed, left = await trio.to_thread.run_sync(
                kill_orphans, traces, ORPHANS_LIMIT, abandon_on_cancel=True
            )
        except (OSError, RuntimeError):  # no descriptor or no thread to be had
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
    """Start a guard that waits for its command. Cannot be cancelled once it has begun."""
    mark = token_hex(16)
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
    channel = trio.SocketStream(trio.socket.from_stdlib_socket(ours))
    return GuardLink(process, channel, mark, grace)


def _sorted(pids: Iterable[int | None]) -> tuple[int, ...]:
    return tuple(sorted(pid for pid in pids if pid is not None))
