"""A process that becomes the parent of every orphan below it, and so can leave nothing behind.

Part of the guard's program: see the package for what it may import.
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
"""The option of `waitpid` for children of every kind, for which Python has no name."""

KILL_LIMIT = 1.0
"""Seconds to wait for killed processes to be gone. Only one stuck in the kernel takes longer."""

ROUND = 0.05
"""Seconds between two searches for what is left to kill."""


class Subreaper:
    """The processes below this one, which is a subreaper.

    When a process below loses its parent, the nearest subreaper above becomes its parent. So
    whatever is started below stays below: forking twice or leaving the session leads nowhere. A
    subreaper without children has left nothing, and the kernel tells it so exactly: `waitpid` fails
    with ECHILD.

    *note* is called with the wait status of every child that has ended, or that a signal stopped.
    `stopped` are the processes that had to be stopped.
    """

    def __init__(self, note: "Callable[[int, int], None]") -> None:
        self._note = note
        self._ended_children = _wakened_by_children()
        self.stopped: set[int] = set()

    def reap(self) -> bool:
        """Take note of the children that have ended; return whether there are others."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED | WALL)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            self._note(pid, status)

    def pause(self, seconds: float | None, *descriptors: int) -> list[int]:
        """Wait for a child, a readable descriptor or the end of the time; return the readable."""
        watched = [self._ended_children, *descriptors]
        ready, _, _ = select.select(watched, [], [], None if seconds is None else max(0.0, seconds))
        if self._ended_children in ready:
            ready.remove(self._ended_children)
            os.read(self._ended_children, 4096)
        return ready

    def stop(self, grace: float) -> set[int]:
        """Ask what is below to end, then make it. Return what is left even so."""
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

    def _signal_all(self, *numbers: int) -> None:
        """Signal the groups of everything below, parents first.

        Each group is signalled while one of its members is known to be there: the id of a group
        that is gone may come to belong to others.
        """
        found = {process.pid: process for process in below(os.getpid()) if process.lives}
        self.stopped.update(found)
        for number in numbers:
            signalled = {0, 1}
            for process in found.values():
                if process.group not in signalled and _is_still(process, found):
                    signalled.add(process.group)
                    signal_group(ProcessId(process.group), number)

    def _kill_children(self) -> None:
        """Kill the children of this process.

        Every process below becomes a child when its parent ends, and that wakes this one up. So a
        process that forks, leaves its group and exits over and over is met here, when a search of
        everything would find it gone.
        """
        for pid in children(os.getpid()):
            self.stopped.add(pid)
            signal_child(pid, signal.SIGKILL)


def become_subreaper() -> None:
    """Make this process the parent of orphans below it. Its own children do not inherit that."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)


def prctl(option: int, value: int) -> None:
    """Set an option of this process, for which Python has no function."""
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def signal_child(pid: ProcessId, number: int) -> None:
    """Signal a child that is not reaped yet, so that its id belongs to no other process."""
    try:
        os.kill(pid, number)
    except PermissionError:
        return  # it runs as another user by now


def signal_group(group: ProcessId, number: int) -> None:
    """Send a signal to all processes of a group at once, unless the group is the caller's own.

    Groups rather than processes: the kernel reaches all members in one step, so that a shell does
    not go on to its next command because the one it waited for was hit first.
    """
    try:
        if group != os.getpgrp():
            os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return


def _is_still(process: Process, found: "Container[int]") -> bool:
    """Whether a process that was found below is there, and in the same group."""
    now = read_process(process.pid)
    if now is None or now.group != process.group:
        return False
    return now.parent in found or now.parent == os.getpid()


def _left() -> set[int]:
    """Return the processes below that live. There are children, so there is something to return."""
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
