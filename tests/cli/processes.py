"""The command as a process of its own, in a home, a directory and a runtime directory of the test's.

Nothing of the user's is read or written. Every wait has a limit, and every process is ended by the
test that started it.
"""

import os
import re
import signal
import subprocess
import sys
import termios
import time
from contextlib import contextmanager
from pathlib import Path

import pexpect
from attrs import define, field

from tests.cli.screen import Screen

LIMIT = 30
"""Seconds that anything may take; on a quiet machine it takes one."""

COMMAND = [sys.executable, "-m", "crush_trio"]
KEPT = {"PATH", "LANG", "LC_ALL", "PYTHONPATH", "VIRTUAL_ENV", "COVERAGE_PROCESS_START"}


def with_demo(arguments):
    """Return the arguments; `run` lets the demo answer, unless they say otherwise."""
    first, *others = arguments
    return ["run", "--demo", *others] if first == "run" else arguments


@define(eq=False)
class Home:
    """Where a test lives."""

    root: Path
    extra: dict = field(factory=dict)

    def __attrs_post_init__(self):
        for name in ("home", "run", "work"):
            (self.root / name).mkdir(exist_ok=True)

    @property
    def work(self):
        return self.root / "work"

    @property
    def environ(self):
        kept = {name: value for name, value in os.environ.items() if name in KEPT}
        return {
            **kept,
            "HOME": str(self.root / "home"),
            "XDG_RUNTIME_DIR": str(self.root / "run"),
            "TMPDIR": str(self.root / "run"),
            "TERM": "xterm-256color",
            "CRUSH_TRIO_BACKGROUND": "0",
            **self.extra,
        }

    def call(self, *arguments, stdin=subprocess.DEVNULL, text=None, cwd=None):
        """Run a command to its end; return its code and what it said."""
        done = subprocess.run(
            [*COMMAND, *with_demo(arguments)],
            cwd=cwd or self.work,
            env=self.environ,
            stdin=None if text is not None else stdin,
            input=text,
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    @contextmanager
    def started(self, *arguments):
        """Start a command that goes on; it is ended with the block, if it has not ended before."""
        process = subprocess.Popen(
            [*COMMAND, *with_demo(arguments)],
            cwd=self.work,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate(timeout=LIMIT)

    @contextmanager
    def server(self):
        """Serve where commands look for a server, for the length of the block."""
        with self.started("serve") as process:
            assert process.stdout.readline().startswith("Listening on ")
            yield process
            process.send_signal(signal.SIGTERM)
            assert process.wait(LIMIT) == 0

    @contextmanager
    def terminal(self, *arguments, width=80, height=24):
        """Start a command at a terminal."""
        child = pexpect.spawn(
            COMMAND[0],
            [*COMMAND[1:], *with_demo(arguments)],
            cwd=str(self.work),
            env=self.environ,
            dimensions=(height, width),
            encoding="utf-8",
            timeout=LIMIT,
        )
        terminal = Terminal(child, Screen(width, height), termios.tcgetattr(child.child_fd))
        try:
            yield terminal
        finally:
            child.close(force=True)


@define(eq=False)
class Terminal:
    """A command at a terminal, and what a person sees of it."""

    child: pexpect.spawn
    screen: Screen
    modes: list = field(repr=False)
    raw: str = field(default="", init=False, repr=False)

    @property
    def text(self):
        return self.screen.text

    def until(self, wanted):
        """Read until the screen shows *wanted*, a text or a condition on the screen."""
        shows = (lambda: wanted in self.text) if isinstance(wanted, str) else wanted
        limit = time.monotonic() + LIMIT
        while not shows():
            try:
                self._read(limit - time.monotonic())
            except (pexpect.TIMEOUT, pexpect.EOF) as error:
                raise AssertionError(f"no {wanted!r} on the screen:\n{self.text}") from error

    def _read(self, timeout):
        data = self.child.read_nonblocking(65536, timeout)
        self.raw += data
        self.screen.feed(data)

    def type(self, text):
        self.child.send(text)

    def answer(self, key, result):
        """Press *key* until it has shown its result: a question takes no answer at once."""
        for _ in range(100):
            self.type(key)
            limit = time.monotonic() + 0.3
            while time.monotonic() < limit:
                try:
                    self._read(0.1)
                except pexpect.TIMEOUT:
                    continue
                if result in self.text:
                    return
        raise AssertionError(f"{key!r} did not lead to {result!r}:\n{self.text}")

    def resize(self, width, height):
        self.screen.resize(width, height)
        self.child.setwinsize(height, width)

    def wait(self):
        """Read to the end of the command; return its exit code, or its signal as a negative number."""
        limit = time.monotonic() + LIMIT
        try:
            while True:
                self._read(limit - time.monotonic())
        except pexpect.EOF:
            self.child.wait()
        return -self.child.signalstatus if self.child.signalstatus else self.child.exitstatus

    def assert_restored(self):
        """Check that the terminal is as it was: its modes, its cursor, its pasting."""
        assert termios.tcgetattr(self.child.child_fd) == self.modes
        assert self.screen.cursor_shown
        assert not self.screen.modes.get("?2004", False)


def wait_for_process(text):
    """Return once a process with exactly the words of *text* as its arguments is there."""
    limit = time.monotonic() + LIMIT
    while not processes_with("\0".join(text.split())):
        assert time.monotonic() < limit, f"no process with {text}"
        time.sleep(0.02)


def processes_with(text):
    """Return the processes whose command line contains *text*."""
    found = []
    for entry in Path("/proc").iterdir():
        if re.fullmatch(r"\d+", entry.name):
            try:
                line = (entry / "cmdline").read_bytes().decode(errors="replace")
            except OSError:
                continue
            if text in line and int(entry.name) != os.getpid():
                found.append(line)
    return found
