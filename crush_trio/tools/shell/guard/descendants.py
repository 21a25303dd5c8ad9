"""`GUARDS`: the guards of this process, and whether a process is below one of them.

A server refuses changes that its own commands ask for, so it must recognise their processes. Guards are
subreapers: whatever a command starts stays below the command's guard until the guard has ended. If both
processes of a guard were killed, or processes are left, the mark in their environment tells them apart.

`Family` reads /proc, so its methods must run in a thread.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from math import inf
from secrets import token_hex
from time import monotonic
from typing import Final

from attrs import define, field, frozen

from crush_trio.tools.shell.guard.process_table import (
    NOT_THERE,
    ProcessId,
    below,
    process_ids,
    read_process,
)

RECENT: Final = 60.0
"""Seconds after the end of a guard in which a connection may still be one of its command.

What a command has sent before its end is read from the kernel soon after; this is far longer.
"""

ROUNDS: Final = 20
"""How often a process table that changes meanwhile is read again."""

_IO_URING: Final = "anon_inode:[io_uring]"

_SERVER: Final = token_hex(8)
"""The beginning of the marks of all commands of this process."""


def new_mark() -> str:
    """Return a mark for the environment of a new command."""
    return f"{_SERVER}-{token_hex(16)}"


@define(eq=False)
class LiveGuards:
    """The guards of this process that run, or have ended lately. Changed by `GuardLink` only."""

    _now: Callable[[], float] = field(default=monotonic, repr=False)
    _running: set[int] = field(factory=set, init=False)
    _ended_time: float = field(default=-inf, init=False)
    _escaped: bool = field(default=False, init=False)
    """Whether a guard was killed or left processes, which are then below no guard."""

    def add(self, watcher: int) -> None:
        """Add a guard by the id of its watcher, our child."""
        self._running.add(watcher)

    def remove(self, watcher: int, *, clean: bool) -> None:
        """Remove a guard that has ended; *clean* says that no process of its command can be left."""
        self._running.discard(watcher)
        self._ended_time = self._now()
        self._escaped = self._escaped or not clean

    @property
    def active(self) -> bool:
        """Whether a connection that is accepted now may come from a process of a command."""
        return bool(self._running) or self._escaped or self._now() < self._ended_time + RECENT

    def family(self) -> "Family":
        """Return the guards as they are now, for a thread to look at."""
        return Family(os.getpid(), frozenset(self._running), escaped=self._escaped)


GUARDS: Final = LiveGuards()
"""The guards of this process. There is one such object because a process has one set of children."""


@frozen
class Family:
    """The guards of a server at one moment."""

    server: int
    watchers: frozenset[int]
    escaped: bool = field(kw_only=True)

    def has(self, pid: int) -> bool:
        """Whether a process belongs to a command of this server. One that has ended counts as such.

        Its ancestors are read until two readings agree: a parent may end meanwhile, and its id may go
        to another process. A parent that is hidden belongs to another user, hence to no command.
        """
        last: tuple[int, ...] | None = None
        for _ in range(ROUNDS):
            line = self._line(pid)
            if line == ():
                return True
            if line is not None and line == last:
                return line[-1] in self.watchers or (self.escaped and any(map(_is_marked, line)))
            last = line
        return True

    def _line(self, pid: int) -> tuple[int, ...] | None:
        """Return a process and its ancestors up to a watcher, this server or init.

        Empty if there is no such process; None if one of them ended meanwhile.
        """
        line: list[int] = []
        while pid > 1 and pid != self.server:
            process = read_process(ProcessId(pid))
            if process is None:
                return () if not line else self._end_of(line, pid)
            if pid in line:
                return None
            line.append(pid)
            if pid in self.watchers and process.parent == self.server:
                break
            pid = process.parent
        return tuple(line) or (pid,)

    def _end_of(self, line: list[int], parent: int) -> tuple[int, ...] | None:
        """Return the *line* if its last process still has this *parent*, which is hidden then."""
        last = read_process(ProcessId(line[-1]))
        return tuple(line) if last is not None and last.parent == parent else None

    def holds(self, inode: int) -> bool:
        """Whether a process of a command has the socket *inode* open.

        A command can keep a socket where no list of open files shows it: on its way through another
        socket, in an io_uring, in a system call that outlives the descriptor. So the socket must be found
        with another process; otherwise the answer is yes. It is no if the socket may be with a process
        of another user, or one that hides, and no command changes or hides its processes or files.
        """
        in_plain_sight = False
        for _ in range(ROUNDS):
            members = self._members()
            found = [keeps_socket(pid, inode) for pid in members]
            if True in found or (self.escaped and self._held_by_marked(inode)):
                return True
            if None in found:
                break
            if members == self._members():
                in_plain_sight = True
                break
        unknown = False
        for pid in sorted(process_ids() - self._members(), reverse=True):  # the newest is likely
            held = has_socket(pid, inode)
            if held and not self.has(pid):
                return False
            unknown = unknown or held is None
        return not (in_plain_sight and unknown)

    def _members(self) -> frozenset[ProcessId]:
        return frozenset(each.pid for watcher in self.watchers for each in below(watcher))

    def _held_by_marked(self, inode: int) -> bool:
        return any(_is_marked(pid) and has_socket(pid, inode) for pid in process_ids())


def has_socket(pid: int, inode: int) -> bool | None:
    """Whether the descriptors of a process include the socket *inode*; None if the system does not tell."""
    links = _links(f"/proc/{pid}/fd")
    return None if links is None else f"socket:[{inode}]" in links.values()


def keeps_socket(pid: int, inode: int) -> bool | None:
    """Whether a process keeps the socket *inode* open in any way; None if that cannot be told.

    Threads may have descriptors of their own, and a mapping keeps a socket open without one.
    """
    name, unclear = f"socket:[{inode}]", False
    try:
        threads = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208 - as above
        with open(f"/proc/{pid}/maps", "rb") as file:  # noqa: PTH123 - a file of the kernel
            if name.encode() in file.read():
                return True
    except (FileNotFoundError, ProcessLookupError):
        return False
    except PermissionError:
        return None
    for thread in threads:
        links = _links(f"/proc/{pid}/task/{thread}/fd")
        if links is None:
            unclear = True
        elif name in links.values():
            return True
        else:
            unclear = unclear or any(
                link == _IO_URING
                or (link.startswith("socket:") and _carries(pid, thread, descriptor))
                for descriptor, link in links.items()
            )
    return None if unclear else False


def _links(folder: str) -> dict[str, str] | None:
    """Return what each descriptor in a folder of /proc is; None if the system does not tell."""
    found: dict[str, str] = {}
    try:
        descriptors = os.listdir(folder)  # noqa: PTH208 - one readlink per entry is all that is wanted
    except (FileNotFoundError, ProcessLookupError):
        return found
    except PermissionError:
        return None
    for descriptor in descriptors:
        with suppress(*NOT_THERE):
            found[descriptor] = os.readlink(f"{folder}/{descriptor}")  # noqa: PTH115 - as above
    return found


def _carries(pid: int, thread: str, descriptor: str) -> bool:
    """Whether descriptors were sent through a Unix socket that its process has not received yet."""
    with (
        suppress(*NOT_THERE),
        open(f"/proc/{pid}/task/{thread}/fdinfo/{descriptor}", "rb") as file,  # noqa: PTH123 - as above
    ):
        return any(
            line.startswith(b"scm_fds:") and line.split()[1] != b"0"
            for line in file.read().splitlines()
        )
    return False


def _is_marked(pid: int) -> bool:
    """Whether a process has the mark of a command of this server, as far as its environment can be read."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123 - as above
            return _SERVER.encode() in file.read()
    except NOT_THERE:
        return False
