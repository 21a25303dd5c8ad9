"""Nodes of the cluster as processes: started, suspended, killed, told to end, and started again."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import orjson
import trio
from attrs import define, field

from benchmarks.driver.process import free_port, plain_environment
from benchmarks.soak.ledger import Violation
from crush_trio.net.address import Origin

START_LIMIT: Final = 30.0
"""Seconds that a node may take to listen, on a busy machine; a former start of it has to expire first."""

STOP_LIMIT: Final = 20.0
"""Seconds that a node may take to end after SIGTERM."""

TTL: Final = 1.0
GRACE: Final = 1.0
SITE: Final = "chaos"

GUARD: Final = """
import subprocess, sys, threading
node = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, start_new_session=True)
print("pid", node.pid, flush=True)
def watch():
    sys.stdin.read()
    node.kill()
threading.Thread(target=watch, daemon=True).start()
print("ended", node.wait(), flush=True)
"""
"""Runs a node, which is killed when the program that plays has ended, however it ended."""


@define(eq=False)
class Node:
    """One node: always at the same address, so each start has the same id."""

    number: int
    folder: Path
    """Its home directory; its logs are there, too."""
    store_url: str
    """The URL of the store; the name of each start is added to it."""
    token: str
    nursery: trio.Nursery
    port: int = field(factory=free_port, init=False)
    starts: int = field(default=0, init=False)
    pid: int | None = field(default=None, init=False)
    """None until its guard has told it: 0 would be this whole process group."""
    up: trio.Event = field(factory=trio.Event, init=False)
    """Set while it listens."""
    ended: trio.Event = field(factory=trio.Event, init=False)
    code: int = field(default=0, init=False)
    """What the last start ended with."""
    stopping: bool = field(default=False, init=False)
    """Whether it was told to end, or killed."""
    _guard: trio.Process | None = field(default=None, init=False)

    @property
    def address(self) -> str:
        """What it advertises, which is its id."""
        return f"tcp://127.0.0.1:{self.port}"

    @property
    def origin(self) -> Origin:
        """Where requests go."""
        return Origin("127.0.0.1", self.port, secure=False)

    @property
    def start_name(self) -> str:
        """The name of its last start, by which the database knows its connections."""
        return f"node-{self.number}.{self.starts}"

    def log(self, start: int | None = None) -> Path:
        """Return the file with the log of a start, by default the last one."""
        return self.folder / f"node-{self.number}.{start or self.starts}.log"

    async def start(self) -> None:
        """Start it; return when it listens. Raises `Violation` if it does not."""
        self.starts += 1
        sep = "&" if "?" in self.store_url else "?"
        environment = {
            **plain_environment(self.folder),
            "CRUSH_TRIO_TOKEN": self.token,
            "CRUSH_TRIO_STORE": f"{self.store_url}{sep}application_name={self.start_name}",
        }
        serve = (
            *(sys.executable, "-m", "crush_trio", "serve", "--host", self.address),
            *("--advertise", self.address, "--site", SITE, "--lease-ttl", f"{TTL:g}"),
            *("--grace", f"{GRACE:g}", "--log-format", "json"),
        )
        with self.log().open("wb") as log:
            guard = await trio.lowlevel.open_process(
                (sys.executable, "-I", "-S", "-c", GUARD, *serve),
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        self._guard, self.pid, self.stopping = guard, None, False
        self.up, self.ended = trio.Event(), trio.Event()
        self.nursery.start_soon(self._listen, guard)
        with trio.move_on_after(START_LIMIT) as scope:
            await self.up.wait()
        if scope.cancelled_caught or self.ended.is_set():
            raise Violation(f"{self.start_name} does not listen: {self.last_words()}")

    async def _listen(self, guard: trio.Process) -> None:
        """Read what the guard and the node print, until the node has ended."""
        assert guard.stdout is not None
        rest = b""
        async for data in guard.stdout:
            *lines, rest = (rest + bytes(data)).split(b"\n")
            for line in lines:
                word, _, value = line.partition(b" ")
                if word == b"pid":
                    self.pid = int(value)
                elif word == b"Listening":
                    self.up.set()
                elif word == b"ended":
                    self.code = int(value)
                    self.ended.set()
                    self.up.set()  # there is nothing more to wait for
        await guard.wait()
        if guard.stdin is not None:
            await guard.stdin.aclose()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to it."""
        if self.pid is not None and not self.ended.is_set():  # not reaped yet, so the id is its own
            os.kill(self.pid, number)

    async def kill(self) -> None:
        """Kill it, also if it is suspended or was never seen to start, and wait for its end."""
        self.stopping = True
        if self._guard is None:
            await trio.lowlevel.checkpoint()
            return
        self.signal(signal.SIGKILL)
        assert self._guard.stdin is not None
        await self._guard.stdin.aclose()  # the guard kills it too
        await self._guard.wait()
        self.ended.set()

    async def drain(self) -> None:
        """Tell it to end, and wait until it has. Raises `Violation` if it does not end in order."""
        self.stopping = True
        self.signal(signal.SIGTERM)
        with trio.move_on_after(STOP_LIMIT) as scope:
            await self.ended.wait()
        if scope.cancelled_caught:
            raise Violation(f"{self.start_name} did not end within {STOP_LIMIT:g} s of SIGTERM")
        if self.code:
            raise Violation(f"{self.start_name} ended with {self.code}: {self.last_words()}")

    def last_words(self) -> str:
        """Return the end of its log."""
        return self.log().read_text(encoding="utf-8", errors="replace")[-2000:]

    def logged(self, level: str) -> list[str]:
        """Return the events of a level in the logs of all its starts."""
        found = []
        for start in range(1, self.starts + 1):
            for line in self.log(start).read_bytes().splitlines():
                try:
                    said = orjson.loads(line)
                except orjson.JSONDecodeError:
                    continue
                if said.get("level") == level:
                    found.append(said["event"])
        return found


async def in_thread(work: Callable[[], None]) -> None:
    """Do something that blocks."""
    await trio.to_thread.run_sync(work)
