"""Looks for processes, for tests that claim none are left."""

import os
import signal
from contextlib import suppress
from itertools import count
from pathlib import Path

import trio

from crush_trio.clock import SystemClock
from crush_trio.tools.shell.environment import shell_argv, tool_environment
from crush_trio.tools.shell.output import BoundedOutput
from crush_trio.tools.shell.process import Command, open_process_group

_numbers = count(1)


class Probe:
    """A number that no other process has in its arguments, and who has it now.

    `sleep` sleeps for that number of seconds, which is longer than anybody waits. Children that this
    process had before, of other tests, do not count.
    """

    def __init__(self, directory):
        self.directory = directory
        self.token = f"9{os.getpid():07d}{next(_numbers):04d}"
        self.sleep = f"sleep {self.token}"
        self._before = {pid for pid in _pids() if _parent_and_state(pid)[0] == os.getpid()}

    def command(self, script, **env):
        env = tool_environment({"PATH": os.environ["PATH"]}, env)
        return Command(argv=shell_argv(script), working_dir=self.directory, env=env)

    def left(self, *, guards=True):
        """Return the processes of the probe, and our own guards and zombies."""
        return [pid for pid in _pids() if self._is_ours(pid, guards=guards)]

    def kill_all(self):
        """End what a failed test has left."""
        for pid in self.left():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _is_ours(self, pid, *, guards):
        try:
            arguments = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return False
        parent, state = _parent_and_state(pid)
        if self.token.encode() in arguments:
            return state != "Z"
        child = parent == os.getpid() and pid not in self._before
        return guards and child and (state == "Z" or b"tools/guard/" in arguments)


def _parent_and_state(pid):
    try:
        state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    except OSError:
        return 0, "Z"
    return int(parent), state


def _pids():
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]  # noqa: PTH208


class Mailbox:
    """A named pipe through which a command can say how far it is: `echo ready > {mailbox}`."""

    def __init__(self, directory):
        self._path = directory / "mailbox"
        os.mkfifo(self._path)
        # Open for writing as well: so the pipe does not end when a writer does.
        self._stream = trio.lowlevel.FdStream(os.open(self._path, os.O_RDWR))

    def __str__(self):
        return str(self._path)

    async def line(self):
        """Wait for a line."""
        text = b""
        while not text.endswith(b"\n"):
            text += await self._stream.receive_some(1)
        return text.decode().strip()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._stream.close()


async def ended(pid):
    """Wait until a process that need not be our child has ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        await trio.lowlevel.wait_readable(descriptor)
    finally:
        os.close(descriptor)


class Reaped:
    """Satisfies `Reaped` of a tool call, and remembers."""

    def __init__(self):
        self.stopped, self.left = [], []

    def __call__(self, stopped, left=()):
        self.stopped.extend(stopped)
        self.left.extend(left)


class Watched(BoundedOutput):
    """Output that one can wait for."""

    def __init__(self):
        super().__init__()
        self._grown = trio.lowlevel.ParkingLot()

    def append(self, data):
        super().append(data)
        self._grown.unpark_all()

    async def shows(self, text):
        """Wait until *text* has been written."""
        while text not in self.text():
            await self._grown.park()


class Cancelled:
    """A command that was cancelled when it had written `ready`, and how long its end took."""

    def __init__(self, command, grace=1.5):
        self.command, self.grace = command, grace
        self.stdout = Watched()

    async def run(self):
        with trio.fail_after(5), trio.CancelScope() as scope:
            async with open_process_group(
                self.command, clock=SystemClock(), stdout=self.stdout, grace=self.grace
            ) as group:
                await self.stdout.shows("ready")
                began = trio.current_time()
                scope.cancel()
                await group.wait()
        self.took = trio.current_time() - began
        self.ended = group.ended
        return self
