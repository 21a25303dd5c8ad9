"""`Subreaper`: makes this process the parent of every orphan below it, and stops them all.

Part of the guard program: the package docstring says what it may import.
"""

import ctypes
import os
import select
import signal
from time import monotonic

from crush_trio.tools.shell.guard.process_table import (
    Process,
    ProcessId,
    below,
    children,
    read_process,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Container

PR_SET_CHILD_SUBREAPER = 36
WALL = 0x40000000
"""The `waitpid` option `__WALL`: children of every kind. Python has no constant for it."""

KILL_LIMIT = 1.0
"""Seconds to wait for killed processes to end. Only one stuck in the kernel takes longer."""

ROUND = 0.05
"""Seconds between two searches for processes to kill."""


class Subreaper:
    """The processes below this one, which is a subreaper.

    When a process below loses its parent, the nearest subreaper above becomes its parent. So every
    process started below stays below, even if it forks twice or leaves the session. When nothing is
    left, `waitpid` fails with ECHILD, which is exact.

    *note* is called with the wait status of every child that ended or was stopped by a signal.
    `stopped` are the processes that this object stopped.
    """

    def __init__(self, note: "Callable[[int, int], None]") -> None:
        self._note = note
        self._ended_children = _wakened_by_children()
        self.stopped: set[int] = set()

    def reap(self) -> bool:
        """Reap the children that have ended; return whether there are others."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED | WALL)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            self._note(pid, status)

    def pause(self, seconds: float | None, *descriptors: int) -> list[int]:
        """Wait for a child, a readable descriptor or the timeout; return the readable descriptors."""
        watched = [self._ended_children, *descriptors]
        ready, _, _ = select.select(watched, [], [], None if seconds is None else max(0.0, seconds))
        if self._ended_children in ready:
            ready.remove(self._ended_children)
            os.read(self._ended_children, 4096)
        return ready

    def stop(self, grace: float) -> set[int]:
        """Send SIGTERM to everything below, SIGKILL after *grace*; return what is left even so."""
        if grace and self.reap():
            self._signal_all(signal.SIGTERM, signal.SIGCONT)
        deadline = monotonic() + grace
        while self.reap() and monotonic() < deadline:
            self.pause(deadline - monotonic())
        deadline, search = monotonic() + KILL_LIMIT, 0.0
        while self.reap():
            if monotonic() >= deadline:
                return _left()
            if monotonic() >= search:
                self._signal_all(signal.SIGKILL)
                search = monotonic() + ROUND
            self._kill_children()
            self.pause(ROUND)
        return set()

    def end_namespace(self, monitor: ProcessId, grace: float) -> None:
        """Send SIGTERM to everything in the PID namespace of a sandbox; wait for it at most *grace*.

        *monitor* is the leader, bubblewrap. It would end with the first process of the command, and the
        kernel would then kill the others before they had their time. So it is halted meanwhile. Its
        child, the init of the namespace, takes no SIGTERM and ends when all others have.
        """
        signal_child(monitor, signal.SIGSTOP)
        deadline = monotonic() + grace
        for init in children(monitor):
            if not children(init):
                continue  # the sandbox is not complete yet, or is ending
            ended = os.pidfd_open(init)
            self._signal_all(signal.SIGTERM, signal.SIGCONT, spared=monitor)
            while monotonic() < deadline and not self.pause(deadline - monotonic(), ended):
                pass
            os.close(ended)
        signal_child(monitor, signal.SIGCONT)
        self.await_kernel(ROUND)

    def await_kernel(self, seconds: float = KILL_LIMIT) -> None:
        """Wait until the kernel has killed a PID namespace whose sandbox has ended."""
        deadline = monotonic() + seconds
        while self.reap() and monotonic() < deadline:
            self.pause(deadline - monotonic())

    def _signal_all(self, *numbers: int, spared: int = 0) -> None:
        """Signal the groups of everything below, parents first, except the group *spared*.

        Each group is signalled only after one of its members was checked to exist: the id of a group
        that has ended may be reused by another.
        """
        found = {process.pid: process for process in below(os.getpid()) if process.lives}
        self.stopped.update(found)
        for number in numbers:
            signalled = {0, 1, spared}
            for process in found.values():
                if process.group not in signalled and _is_still(process, found):
                    signalled.add(process.group)
                    signal_group(ProcessId(process.group), number)

    def _kill_children(self) -> None:
        """Kill the children of this process.

        Every process below becomes a child when its parent ends, and the parent's end wakes this
        process. So a process that forks, leaves its group and exits over and over is caught here,
        while a search of the tree would find it gone.
        """
        for pid in children(os.getpid()):
            self.stopped.add(pid)
            signal_child(pid, signal.SIGKILL)


def become_subreaper() -> None:
    """Make this process a subreaper: the parent of orphans below it. Not inherited by children."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)


def prctl(option: int, value: int) -> None:
    """Call prctl(2), for which Python has no function."""
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def signal_child(pid: ProcessId, number: int) -> None:
    """Signal a child that is not reaped yet, so that its id cannot have been reused."""
    try:
        os.kill(pid, number)
    except PermissionError:
        return  # it runs as another user by now


def signal_group(group: ProcessId, number: int) -> None:
    """Send a signal to all processes of a group at once, unless the group is the caller's own.

    Groups rather than processes: the kernel signals all members in one step. Otherwise a shell could
    start its next command because the one it waited for was signalled first.
    """
    try:
        if group != os.getpgrp():
            os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return


def _is_still(process: Process, found: "Container[int]") -> bool:
    """Whether a process found below still exists, in the same group."""
    now = read_process(process.pid)
    if now is None or now.group != process.group:
        return False
    return now.parent in found or now.parent == os.getpid()


def _left() -> set[int]:
    """Return the living processes below; never empty, because this process has children."""
    living = {process.pid for process in below(os.getpid()) if process.lives}
    return {*(living or children(os.getpid()))}


def _wakened_by_children() -> int:
    """Return a descriptor that becomes readable whenever a child ends."""
    readable, writable = os.pipe()
    os.set_blocking(readable, False)
    os.set_blocking(writable, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    return readable
