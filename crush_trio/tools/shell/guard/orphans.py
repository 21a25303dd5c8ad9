"""`kill_orphans`: finds and kills the processes of a command whose guard failed, through /proc.

This is the last resort, if the processes of a guard were killed or hang. While the watcher lives, all
processes are below it. Otherwise this searches for processes in the leader's session, and for those
with the command's mark in their environment. A process started with an empty environment in another
session, by a command that also killed both processes of its guard, is not found.

It reads /proc and sleeps, so it must run in a thread.
"""

import os
import signal
from collections.abc import Callable, Container, Iterable, Mapping
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from typing import Final

from attrs import define, field, frozen

from crush_trio.tools.shell.guard.process_table import (
    NOT_THERE,
    Process,
    ProcessId,
    below,
    children,
    process_ids,
    read_process,
)

MARK: Final = "CRUSH_TRIO_COMMAND"
"""The variable with the marks of a command and of the commands that contain it, joined by colons."""

PAUSE: Final = 0.002
"""Seconds between killing processes and searching for them again."""

LOOKS: Final = 20
QUIET: Final = 0.05
"""How many searches, and for how many seconds, must find nothing before the search ends."""


def with_mark(env: Mapping[str, str], mark: str) -> dict[str, str]:
    """Return *env* with *mark* added. A server may itself run in a command of another server."""
    return {**env, MARK: ":".join(filter(None, (env.get(MARK), mark)))}


@frozen
class Traces:
    """How the processes of one command are recognised.

    *watcher* must not have been reaped, because its id could be reused; None if it has. *leader* is
    None if the command never had a process.
    """

    watcher: ProcessId | None
    leader: ProcessId | None
    mark: str

    def are_of(self, process: Process) -> bool:
        """Whether a process is alive and belongs to the command."""
        if not process.lives or process.pid == os.getpid():
            return False
        return process.session == self.leader or self.mark in _environment(process.pid)


def kill_orphans(traces: Traces, seconds: float) -> tuple[set[int], set[int]]:
    """Kill all processes with these traces; return the killed ones, and those that are left."""
    search = _Search(traces, monotonic() + seconds)
    left: set[int] = set()
    if traces.watcher is not None:
        left |= search.kill_below(traces.watcher)
    if traces.leader is not None:
        left |= search.kill_recognised()
    return search.killed - left, left


@define(eq=False)
class _Search:
    traces: Traces
    deadline: float
    killed: set[int] = field(factory=set, init=False)

    def kill_below(self, watcher: ProcessId) -> set[ProcessId]:
        """Kill everything below a watcher, the watcher last; return what is left."""
        while _lives(watcher):
            found = _living_below(watcher)
            if monotonic() >= self.deadline:
                return found or {watcher}
            family = {watcher, *found}
            for pid in found or {watcher}:
                signal_process(pid, signal.SIGKILL, partial(_is_of, family, watcher))
            self.killed |= found
            sleep(PAUSE)
        return set()

    def kill_recognised(self) -> set[ProcessId]:
        """Kill the processes recognised by session or mark; return those that are left.

        One scan may miss a process that forks and exits all the time. So this scans repeatedly for
        new processes, the newest first, and kills each as it is found. The last scan checks all
        processes again, because a process shows no environment during exec.
        """
        others: set[ProcessId] = set()
        looks, quiet = 0, monotonic() + QUIET
        while True:
            last = looks >= LOOKS and monotonic() >= quiet
            everything = process_ids()
            found = self._kill_among(everything if last else everything - others)
            if found and monotonic() >= self.deadline:
                return found
            if last and not found:
                return set()
            if found:
                looks, quiet = 0, monotonic() + QUIET
            looks += 1
            others = everything - found

    def _kill_among(self, pids: Iterable[ProcessId]) -> set[ProcessId]:
        newest_first = sorted(pids, reverse=True)
        is_ours = self.traces.are_of
        found = {pid for pid in newest_first if signal_process(pid, signal.SIGKILL, is_ours)}
        self.killed |= found
        return found


def _lives(pid: ProcessId) -> bool:
    process = read_process(pid)
    return process is not None and process.lives


def _is_of(family: Container[int], watcher: ProcessId, process: Process) -> bool:
    return process.pid == watcher or process.parent in family


def _living_below(root: ProcessId) -> set[ProcessId]:
    """Return the living processes below *root*, a subreaper. An empty result is reliable.

    If all its children are dead, and the list of children did not change meanwhile, nothing is below:
    a process that loses its parent becomes a child of *root*, at the end of the list. The exception is
    a *root* that is itself ending and has lost its children.
    """
    while True:
        before = children(root)
        living = {process.pid for process in below(root) if process.lives}
        if living or children(root) == before:
            return living


def signal_process(pid: ProcessId, number: int, is_meant: Callable[[Process], bool]) -> bool:
    """Send a signal to a process if *is_meant* accepts it; return whether it did.

    The pidfd is opened before the process is read, so the signal cannot reach another process that
    gets the same id in between.
    """
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        process = read_process(pid)
        if process is None or not is_meant(process):
            return False
        signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    finally:
        os.close(descriptor)
    return True


def name_of(pid: int) -> str:
    """Return the id of a process, with the name of its program if it still exists."""
    try:
        return f"{pid} ({Path(f'/proc/{pid}/comm').read_text(errors='replace').strip()})"
    except NOT_THERE:
        return str(pid)


def _environment(pid: ProcessId) -> str:
    """Return the initial environment of a process; empty if it may not be read."""
    try:
        return os.fsdecode(Path(f"/proc/{pid}/environ").read_bytes())
    except NOT_THERE:
        return ""
