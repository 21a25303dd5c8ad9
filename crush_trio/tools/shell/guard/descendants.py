"""`GUARDS`: the guards of this process, and whether a process is below one of them.

A server refuses changes that its own commands ask for, so it must recognise their processes. Guards are
subreapers: whatever a command starts stays below the command's guard until the guard has ended. If both
processes of a guard were killed, or processes are left, the mark in their environment tells them apart.

`Family` reads /proc, so its methods must run in a thread.
"""

import os
from collections.abc import Callable
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

        If the processes change while they are looked at, or one cannot be looked at, the socket must
        be found with another process; otherwise the answer is yes.
        """
        for _ in range(ROUNDS):
            members = self._members()
            found = [has_socket(pid, inode) for pid in members]
            if True in found:
                return True
            if None in found:
                break
            if members == self._members():
                return self.escaped and self._held_by_marked(inode)
        others = process_ids() - self._members()
        return not any(has_socket(pid, inode) and not self.has(pid) for pid in others)

    def _members(self) -> frozenset[ProcessId]:
        return frozenset(each.pid for watcher in self.watchers for each in below(watcher))

    def _held_by_marked(self, inode: int) -> bool:
        return any(_is_marked(pid) and has_socket(pid, inode) for pid in process_ids())


def has_socket(pid: int, inode: int) -> bool | None:
    """Whether a process has the socket *inode* open; None if the system does not tell."""
    folder, name = f"/proc/{pid}/fd", f"socket:[{inode}]"
    try:
        descriptors = os.listdir(folder)  # noqa: PTH208 - one readlink per entry is all that is wanted
    except (FileNotFoundError, ProcessLookupError):
        return False
    except PermissionError:
        return None
    for descriptor in descriptors:
        try:
            if os.readlink(f"{folder}/{descriptor}") == name:  # noqa: PTH115 - as above
                return True
        except NOT_THERE:
            continue
    return False


def _is_marked(pid: int) -> bool:
    """Whether a process has the mark of a command of this server, as far as its environment can be read."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123 - as above
            return _SERVER.encode() in file.read()
    except NOT_THERE:
        return False
