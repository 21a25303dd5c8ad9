"""The guard of one command: a small process that owns every process the command starts.

The server does not start a command itself. It starts this file as a program, and the guard starts
the command, in a session of its own. The guard is a *subreaper*: when a process below it loses its
parent, the guard becomes the parent. So whatever a command started is below its guard at all times;
forking twice or leaving the session leads nowhere. A guard without children has left nothing.

There is one way to stop a command: the server's end of the guard's socket ends. The server does that
on purpose, by closing its half, and a server that dies does it too, even by SIGKILL. A parent-death
signal on the guard would be no substitute: Linux sends it when the *thread* that forked ends, and
the server forks in worker threads. The command does have that signal, should its guard be killed:
the guard has one thread only.

The server sends the argument vector and gets lines back: `forked <pid>`, then `started` or `failed
<errno>`, and at the end `ended` or `stopped`, the leader's wait status, the processes that had to
be stopped, and those that could not be. Linux only. This file imports little, because every command waits for it.
"""

import ctypes
import os
import select
import signal
import sys
from time import monotonic

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import NoReturn

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

KILL_LIMIT = 0.5
"""Seconds to wait for killed processes to be gone. Only one stuck in the kernel takes longer."""

ROUND = 0.05
"""Seconds between two looks at what is left to kill, if no child ends before."""

IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""What does not end a guard: its command may well send signals to its parent."""

RESTORED = (*IGNORED, signal.SIGQUIT, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ)
"""Signals that Python, the guard or whoever started the server treats in its own way.

A command gets the usual one: a server that a script started in the background ignores SIGQUIT.
"""


# ── What is below a process ─────────────────────────────────────────────────────────────────────


def descendants(root: int) -> "dict[int, int]":
    """Return every process below *root*, with its process group."""
    groups: dict[int, int] = {}
    below: dict[int, list[int]] = {}
    for pid, parent, group in _processes():
        groups[pid] = group
        below.setdefault(parent, []).append(pid)
    found: dict[int, int] = {}
    pending = [*below.get(root, ())]
    while pending:
        pid = pending.pop()
        found[pid] = groups[pid]
        pending.extend(below.get(pid, ()))
    return found


def members(group: int) -> "dict[int, int]":
    """Return every process of a process group, with that group."""
    return {pid: group for pid, _, its in _processes() if its == group}


def _processes() -> "Iterator[tuple[int, int, int]]":
    """Yield process, parent and group of everything that runs."""
    for name in filter(str.isdecimal, os.listdir("/proc")):  # noqa: PTH208  # no time for pathlib
        try:
            with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123  # as above
                # The program's name stands in parentheses, and may contain some.
                _, parent, group, *_ = file.read().rpartition(b")")[2].split()
        except OSError:
            continue  # it ended while we looked
        yield int(name), int(parent), int(group)


def send(number: int, groups: "Iterable[int]") -> None:
    """Send a signal to those of the process *groups* that are still there.

    To groups, not to processes: the kernel reaches all members at once, so that a shell does not go
    on to its next command because the one it waited for was hit first.
    """
    for group in set(groups):
        try:
            os.killpg(group, number)
        except (ProcessLookupError, PermissionError):
            continue


# ── Starting ────────────────────────────────────────────────────────────────────────────────────


def start(argv: list[bytes], announce: "Callable[[int], None]") -> int:
    """Start a command and return its process id; raise the error if it cannot be executed.

    The id is announced before the command begins, for it may kill its guard first thing.
    """
    guard = os.getpid()
    held, go = os.pipe()
    failures, failure = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(go)
        os.read(held, 1)
        _become(argv, guard, failure)
    announce(pid)
    for descriptor in (held, go, failure):
        os.close(descriptor)
    error = os.read(failures, 16)
    os.close(failures)
    if error:
        os.waitpid(pid, 0)
        raise OSError(int(error), os.strerror(int(error)))
    return pid


def _become(argv: list[bytes], guard: int, failure: int) -> "NoReturn":
    """Turn this process into the command. A success closes *failure*, because exec does."""
    try:
        os.setsid()
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == guard:  # else the guard died before the line above
            for number in RESTORED:
                signal.signal(number, signal.SIG_DFL)
            os.execvp(argv[0], argv)
    except OSError as exc:
        os.write(failure, str(exc.errno).encode())
    finally:
        os._exit(127)


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


# ── Guarding ────────────────────────────────────────────────────────────────────────────────────


class Guard:
    """One command and everything below it."""

    def __init__(self, channel: int) -> None:
        self._channel = channel
        self._ended_children = _wakened_by_children()
        self._leader = 0
        self._status: int | None = None
        self._stopped: set[int] = set()

    def guard(self, argv: list[bytes], grace: float) -> None:
        """Start the command, wait for its end or for the order to stop it, and leave nothing."""
        try:
            self._leader = start(argv, lambda pid: self._report(f"forked {pid}"))
        except OSError as exc:
            self._report(f"failed {exc.errno}")
            return
        self._report("started")
        _let_go()
        how = self._watch()
        left = self._stop(grace)
        status = signal.SIGKILL.value if self._status is None else self._status
        self._report(f"{how} {status} {_csv(self._stopped - left)} {_csv(left)}")

    def _watch(self) -> str:
        """Wait for the end of the leader or of the socket, whichever comes first; say which."""
        while True:
            self._reap()
            if self._status is not None:
                return "ended"
            ready, _, _ = select.select([self._channel, self._ended_children], [], [])
            self._drain()
            if self._channel in ready and self._reap() and self._status is None:
                return "stopped"

    def _stop(self, grace: float) -> set[int]:
        """Ask what is left to end, then make it. Return what is left even so."""
        if self._reap():
            self._send(signal.SIGTERM, signal.SIGCONT)
            self._wait(grace)
        deadline = monotonic() + KILL_LIMIT
        while self._reap() and monotonic() < deadline:
            self._send(signal.SIGKILL)
            self._wait(ROUND)
        return {*descendants(os.getpid())}

    def _send(self, *numbers: int) -> None:
        """Send signals to everything below, and take note of whom they were for."""
        below = descendants(os.getpid())
        self._stopped.update(below)
        for number in numbers:
            send(number, below.values())

    def _wait(self, seconds: float) -> None:
        """Wait until no child is left, but no longer than that."""
        deadline = monotonic() + seconds
        while self._reap() and monotonic() < deadline:
            select.select([self._ended_children], [], [], max(0.0, deadline - monotonic()))
            self._drain()

    def _reap(self) -> bool:
        """Take note of the children that have ended; return whether there are others."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self._leader:
                self._status = status

    def _drain(self) -> None:
        try:
            os.read(self._ended_children, 4096)
        except BlockingIOError:
            return

    def _report(self, line: str) -> None:
        try:
            os.write(self._channel, line.encode() + b"\n")
        except OSError:
            return  # the server is gone, and nobody wants to know


def _wakened_by_children() -> int:
    """Return a descriptor that becomes readable whenever a child ends."""
    readable, writable = os.pipe()
    os.set_blocking(readable, False)
    os.set_blocking(writable, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    return readable


def _let_go() -> None:
    """Close what belongs to the command alone: its three streams, and its directory."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nowhere, stream)
    os.chdir("/")


def _csv(pids: "Iterable[int]") -> str:
    return ",".join(map(str, sorted(pids))) or "-"


def _request(channel: int) -> bytes | None:
    """Return what the server sent: four bytes of length, then so many; None if it went away."""
    data = b""
    while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
        more = os.read(channel, 65536)
        if not more:
            return None
        data += more
    return data[4:]


def main() -> None:
    """Guard one command. The arguments are the socket's descriptor and the grace in seconds."""
    channel, grace = int(sys.argv[1]), float(sys.argv[2])
    os.set_inheritable(channel, False)
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    request = _request(channel)
    if request is not None:
        Guard(channel).guard(request.split(b"\0"), grace)


if __name__ == "__main__":
    main()
    os._exit(0)  # there is nothing to tidy up, and somebody waits for the end of this process
