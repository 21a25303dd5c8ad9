"""The two processes that guard a command: the guard, and the watcher of the guard.

The server starts the *watcher*. The watcher forks the *guard*, and the guard starts the command, in a
session of its own. Both are subreapers: everything that the command starts is below the guard, and
if the guard is killed, perhaps by its command, it is below the watcher, which stops it. If the watcher
is killed, a pipe to the guard ends, and the guard stops the command. Only if both are killed at once
must the server search for the processes they left (`orphans.py`).

There is one way to stop a command: the server's end of the socket ends. The server does that by closing
its half, and the kernel does it if the server dies, even by SIGKILL. A parent-death signal on the guard
would not work: Linux sends it when the *thread* that forked ends, and the server forks in worker
threads. The guard has one thread, so its command gets that signal.

The server sends the argument vector with the orders for a sandbox, and gets lines back: `forked <pid>`,
then `started`; at the end `made` with the watched names that exist now, if any, and `ended`, `stopped` or
`killed` (the guard was), with the leader's wait status, the processes that were stopped, and those that
could not be. Instead it gets `failed <errno>` if the command cannot be executed, or `withdrawn` if the server
closed its half before. Linux only.

Part of the guard program: the package docstring says what it may import.
"""

import marshal
import os
import select
import signal
from time import monotonic

from crush_trio.tools.shell.guard.placeholder import Placeholders, look_for_made
from crush_trio.tools.shell.guard.process_table import ProcessId
from crush_trio.tools.shell.guard.subreaper import (
    KILL_LIMIT,
    ROUND,
    Subreaper,
    become_subreaper,
    prctl,
    signal_child,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, NoReturn

    Orders = dict[str, Any]

PR_SET_PDEATHSIG = 1

SLACK = 0.5
"""Seconds that a guard may exceed its own limits before its watcher kills it."""

MOST_NAMED = 1000
"""Maximum processes in a report, which must fit into the socket's buffer."""

IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals that a guard ignores: a command may send them to its parent."""

RESTORED = (*IGNORED, signal.SIGQUIT, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ)
"""Signals reset to their default action for the command.

Python, the guard or the parent of the server may have changed them: for example, a server that a
script started in the background ignores SIGQUIT.
"""


def stop_limit(grace: float) -> float:
    """Return the maximum seconds until the watcher has stopped what the guard did not."""
    return grace + KILL_LIMIT + SLACK + KILL_LIMIT


def report(channel: int, *words: object) -> None:
    """Write a line to the server."""
    try:
        os.write(channel, " ".join(map(str, words)).encode() + b"\n")
    except OSError:
        return  # the server is gone


def report_end(channel: int, how: str, status: int, stopped: set[int], left: set[int]) -> None:
    """Report how the command ended, which processes were stopped, and which are left."""
    report(channel, how, status, _csv(stopped - left), _csv(left))


def report_made(channel: int, orders: "Orders") -> None:
    """Report which of the watched names exist now: the command has made them."""
    made = look_for_made(orders.get("watched", ()))
    if made:
        report(channel, "made", _csv(made))


def _csv(pids: "Iterable[int]") -> str:
    return ",".join(map(str, sorted(pids)[:MOST_NAMED])) or "-"


def packed(argv: "list[bytes]", orders: "Orders") -> bytes:
    """Return a request: a command, and what its sandbox needs from the guard.

    Orders are `placeholders` (names to reserve), `watched` (names to report if the command made them),
    `namespace` (the leader is bubblewrap), and those of `restriction.py`. The guard is the same Python as
    the server, so `marshal` suits, and costs no import.
    """
    request = marshal.dumps((argv, orders))
    return len(request).to_bytes(4, "big") + request


# ── The guard ───────────────────────────────────────────────────────────────────────────────────


class Guard:
    """The parent of the command. *watcher* is a descriptor that ends with the watcher."""

    def __init__(self, channel: int, watcher: int, reserved: Placeholders) -> None:
        self._channel = channel
        self._watcher = watcher
        self._reserved = reserved
        self._below = Subreaper(self._note)
        self._leader = 0
        self._status: int | None = None

    def guard(self, argv: list[bytes], orders: "Orders", grace: float) -> None:
        """Start the command, wait for its end or for the server, and stop everything below."""
        if self._below.pause(0, self._channel, self._watcher):
            self._reserved.remove()
            report(self._channel, "withdrawn")
            return
        try:
            self._leader = start(argv, orders, lambda pid: report(self._channel, "forked", pid))
        except OSError as exc:
            self._reserved.remove()
            report(self._channel, "failed", exc.errno)
            return
        report(self._channel, "started")
        _let_go()
        how = self._watch()
        if "namespace" in orders and how == "stopped":
            self._below.end_namespace(ProcessId(self._leader), grace)
            grace = 0
        elif "namespace" in orders:
            self._below.await_kernel()
        left = self._below.stop(grace)
        self._reserved.remove()
        report_made(self._channel, orders)
        status = signal.SIGKILL.value if self._status is None else self._status
        report_end(self._channel, how, status, self._below.stopped, left)

    def _watch(self) -> str:
        """Wait for the end of the leader, the socket or the watcher; return the word to report."""
        while True:
            self._below.reap()
            if self._status is not None:
                return "ended"
            order = self._below.pause(None, self._channel, self._watcher)
            if order and self._below.reap() and self._status is None:
                return "stopped"

    def _note(self, pid: int, status: int) -> None:
        if pid == self._leader and not os.WIFSTOPPED(status):
            self._status = status


def start(argv: list[bytes], orders: "Orders", announce: "Callable[[int], None]") -> int:
    """Start a command and return its process id; raise `OSError` if it cannot be executed.

    The id is announced before the command runs, because the command may kill its guard at once.
    """
    guard = os.getpid()
    held, go = os.pipe()
    failures, failure = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(go)
        os.read(held, 1)
        _become(argv, orders, guard, failure)
    announce(pid)
    for descriptor in (held, go, failure):
        os.close(descriptor)
    error = os.read(failures, 16)
    os.close(failures)
    if error:
        os.waitpid(pid, 0)
        raise OSError(int(error), os.strerror(int(error)))
    return pid


def _become(argv: list[bytes], orders: "Orders", guard: int, failure: int) -> "NoReturn":
    """Exec the command in this process. A successful exec closes the pipe *failure*."""
    try:
        os.setsid()
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == guard:  # else the guard died before the line above
            for number in RESTORED:
                signal.signal(number, signal.SIG_DFL)
            if "restrict" in orders:
                from crush_trio.tools.shell.guard.restriction import restrict

                restrict(orders["restrict"])
            os.execvp(argv[0], argv)
    except OSError as exc:
        os.write(failure, str(exc.errno).encode())
    finally:
        os._exit(127)


def _let_go() -> None:
    """Release the command's three streams and its directory.

    Otherwise the guard would keep the pipes open and the directory busy after the command's end.
    """
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nowhere, stream)
    os.chdir("/")


# ── The watcher ─────────────────────────────────────────────────────────────────────────────────


class GuardWatcher:
    """The parent of the guard, which stops the command if the guard fails."""

    def __init__(self, channel: int, guard: ProcessId) -> None:
        self._channel = channel
        self._guard = guard
        self._below = Subreaper(self._note)
        self._status: int | None = None

    def watch(self, orders: "Orders", grace: float) -> None:
        """Wait for the end of the guard; kill it if it is late. If it failed, stop everything."""
        deadline: float | None = None
        while self._below.reap() and self._status is None:
            if deadline is None:
                if self._below.pause(None, self._channel):
                    deadline = monotonic() + grace + KILL_LIMIT + SLACK
            elif monotonic() < deadline:
                self._below.pause(deadline - monotonic())
            else:
                signal_child(self._guard, signal.SIGKILL)
                self._below.pause(ROUND)
        if self._status != 0:
            left = self._below.stop(grace=0)
            report_made(self._channel, orders)
            report_end(self._channel, "killed", signal.SIGKILL.value, self._below.stopped, left)

    def _note(self, pid: int, status: int) -> None:
        if pid != self._guard:
            self._below.stopped.add(
                pid
            )  # an orphan of the guard; it died of that or was killed here
        elif os.WIFSTOPPED(status):
            signal_child(self._guard, signal.SIGCONT)
        else:
            self._status = status


def main(channel: int, grace: float) -> None:
    """Watch the guard of the command that the server asks for through *channel*."""
    os.set_inheritable(channel, False)
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    request = _request(channel)
    if request is None:
        report(channel, "withdrawn")
        return
    become_subreaper()
    _, orders = marshal.loads(request)
    watched, watching = os.pipe()
    reserved: Placeholders | None = None
    try:
        reserved = Placeholders(orders.get("placeholders", ()))
        guard = os.fork()
    except OSError as exc:
        if reserved is not None:
            reserved.remove()
        report(channel, "failed", exc.errno)
        return
    if guard == 0:
        os.close(watching)
        _be_guard(channel, watched, reserved, request, grace)
    os.close(watched)
    _let_go()
    GuardWatcher(channel, ProcessId(guard)).watch(orders, grace)
    reserved.remove()


def _request(channel: int) -> bytes | None:
    """Return the server's request, sent after its length in four bytes; None if it was withdrawn."""
    data = b""
    while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
        more = os.read(channel, 65536)
        if not more:
            return None
        data += more
    ended, _, _ = select.select([channel], [], [], 0)  # only the end of the socket can follow
    return None if ended else data[4:]


def _be_guard(
    channel: int, watcher: int, reserved: Placeholders, request: bytes, grace: float
) -> "NoReturn":
    """Run as the guard. The exit code tells the watcher whether it finished its work."""
    try:
        os.setsid()  # a signal to one process group must not kill guard and watcher
        become_subreaper()
        argv, orders = marshal.loads(request)
        Guard(channel, watcher, reserved).guard(argv, orders, grace)
        os._exit(0)
    finally:
        os._exit(1)
