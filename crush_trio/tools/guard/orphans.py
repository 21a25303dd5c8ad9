"""Processes of a command whose guard failed: found through /proc, and killed.

This is the last resort, for when both processes of a guard were killed at once or do not get on. It
looks for everything below the watcher, in the leader's session, and with the command's mark in its
environment. What was started with an empty environment in another session, by a command that also
killed both its guards, is not found; a guard needs no such search.

All of it reads /proc and waits, so it belongs in a thread.
"""

import os
import signal
from collections.abc import Callable, Container, Iterable, Mapping
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from typing import Final

from attrs import frozen

from crush_trio.tools.guard.process_table import (
    NOT_THERE,
    Process,
    ProcessId,
    below,
    look_at,
    process_ids,
)

MARK: Final = "CRUSH_TRIO_COMMAND"
"""The variable with the marks of a command and of the commands around it, separated by colons."""

PAUSE: Final = 0.002
"""Seconds in which killed processes may be gone, before they are looked for again."""

QUIET: Final = 0.05
"""Seconds without a process of the command, after which none is believed to be left."""


def marked(env: Mapping[str, str], mark: str) -> dict[str, str]:
    """Return *env* with one more mark. A command may be inside a command of another server."""
    return {**env, MARK: ":".join(filter(None, (env.get(MARK), mark)))}


@frozen
class Traces:
    """How the processes of one command are recognised.

    *watcher* must not have been reaped, or its id could be another's; None if it has. *leader* is
    None if the command never had a process.
    """

    watcher: ProcessId | None
    leader: ProcessId | None
    mark: str

    def living(self, among: Iterable[ProcessId]) -> dict[ProcessId, Process]:
        """Return those *among* some processes, and below the watcher, that are ours and live."""
        looked_at = filter(None, map(look_at, among))
        found = {each.pid: each for each in looked_at if each.lives and self._bears(each)}
        if self.watcher is not None:
            found |= {each.pid: each for each in below(self.watcher) if each.lives}
        found.pop(ProcessId(os.getpid()), None)
        return found

    def is_one(self, process: Process, *, others: Container[int]) -> bool:
        """Whether a process is of the command, of which *others* were found with it."""
        return process.parent in others or self._bears(process)

    def _bears(self, process: Process) -> bool:
        return (
            process.pid == self.watcher
            or process.session == self.leader
            or self.mark in _environment(process.pid)
        )


def kill_orphans(traces: Traces, seconds: float) -> tuple[set[int], set[int]]:
    """Kill all processes with these traces; return those that are gone, and those that are left.

    The watcher comes last: while it is there, what loses its parent stays below it.
    """
    deadline = monotonic() + seconds
    killed: set[int] = set()
    while found := _seen(traces):
        if monotonic() >= deadline:
            return killed - found, {*found}
        victims = found - {traces.watcher} or found
        for pid in victims:
            signal_process(pid, signal.SIGKILL, partial(traces.is_one, others=found))
        killed |= victims - {traces.watcher}
        sleep(PAUSE)
    return killed, set()


def _seen(traces: Traces) -> set[ProcessId]:
    """Return the processes with these traces. If it returns none, there has been none for a while.

    One look at everything may miss a process that forks and exits all the time. So this looks again
    and again, at the processes that are new, and in the end at everything once more: a process
    that is just becoming another program shows no environment.
    """
    quiet = monotonic() + QUIET
    others: set[ProcessId] = set()
    while monotonic() < quiet:
        everything = process_ids()
        found = traces.living(everything - others)
        if found:
            return {*found}
        others = everything
    return {*traces.living(process_ids())}


def signal_process(pid: ProcessId, number: int, is_meant: Callable[[Process], bool]) -> None:
    """Send a signal to the process with this id if it is the one that is meant.

    The process is held by a descriptor before it is looked at. So the signal cannot reach another
    one that gets the same id in between.
    """
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        process = look_at(pid)
        if process is not None and is_meant(process):
            signal.pidfd_send_signal(descriptor, number)
    except (ProcessLookupError, PermissionError):
        return
    finally:
        os.close(descriptor)


def name_of(pid: int) -> str:
    """Return the id of a process with the name of its program, if it is still there."""
    try:
        return f"{pid} ({Path(f'/proc/{pid}/comm').read_text(errors='replace').strip()})"
    except NOT_THERE:
        return str(pid)


def _environment(pid: ProcessId) -> str:
    """Return the environment that a process was started with; nothing if we may not see it."""
    try:
        return os.fsdecode(Path(f"/proc/{pid}/environ").read_bytes())
    except NOT_THERE:
        return ""
