"""Pages in a real browser against a real server process; `scenarios.mjs` has the browser's side.

Playwright runs in a Node process of its own. That process writes one line for each thing that it wants
from here, such as a restart of the server, and reads one line when it is done.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from attrs import define, field

HERE = Path(__file__).parent
LIMIT = 60.0
"""Seconds that a scenario may take on a busy machine."""

MARKS = [
    pytest.mark.slow,
    pytest.mark.real_clock,
    pytest.mark.needs("node", "chromium", "playwright-core"),
]


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@contextmanager
def limited(process):
    """End *process* and its children if the block takes too long."""
    timer = threading.Timer(LIMIT, os.killpg, (process.pid, signal.SIGKILL))
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@define(eq=False)
class PageServer:
    """A server process in a folder of its own, with a user of its own; it can be killed and started again."""

    folder: Path
    arguments: tuple[str, ...] = ()
    port: int = field(factory=free_port)
    process: subprocess.Popen | None = field(default=None, init=False)
    said: str = field(default="", init=False)

    @property
    def project(self):
        return self.folder / "project"

    @property
    def environment(self):
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("CRUSH_", "XDG_"))}
        return {**kept, "HOME": str(self.folder / "home")}

    def run(self, *arguments):
        """Run the command line as the user of the server; return what it printed."""
        command = [sys.executable, "-m", "crush_trio", *arguments]
        ran = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=LIMIT,
            env=self.environment,
            cwd=self.project,
            check=True,
        )
        return ran.stdout

    def start(self):
        host = f"tcp://127.0.0.1:{self.port}"
        with (self.folder / "stderr.txt").open("ab") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "crush_trio", "serve", "--host", host, *self.arguments],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=self.environment,
                cwd=self.project,
                start_new_session=True,
            )
        self.said = ""
        with limited(self.process):
            for line in self.process.stdout:
                self.said += line
                if line.startswith("The page"):
                    return
        raise AssertionError((self.folder / "stderr.txt").read_text("utf-8"))

    @property
    def link(self):
        """The address that the server printed for the page."""
        return next(word for word in self.said.split() if word.startswith("http://"))

    def kill(self):
        """End the server and its workers without a warning."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(LIMIT)
        self.process.stdout.close()


@contextmanager
def page_server(folder, *arguments):
    (folder / "home").mkdir()
    (folder / "project").mkdir(exist_ok=True)
    server = PageServer(folder, arguments)
    server.start()
    try:
        yield server
    finally:
        server.kill()


def about(server):
    """Return what a browser needs to know to use *server*."""
    library = Path(shutil.which("playwright-core")).resolve().parent
    return {
        "url": server.link,
        "library": str(library),
        "chromium": shutil.which("chromium"),
        "profile": str(server.folder / "profile"),
    }


def play(name, server, **more):
    """Play a scenario; a failure is its error and where it was raised."""
    what = json.dumps({**about(server), **more})
    command = [shutil.which("node"), str(HERE / "scenarios.mjs"), name, what]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as node:
        said = []
        with limited(node):
            for line in node.stdout:
                if line.startswith("WANT "):
                    getattr(server, line.split()[1])()
                    node.stdin.write("done\n")
                    node.stdin.flush()
                else:
                    said.append(line)
        with suppress(ProcessLookupError):
            os.killpg(node.pid, signal.SIGKILL)
    assert said[-1:] == ["passed\n"], "".join(said)
