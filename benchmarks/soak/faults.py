"""Faults of a soak: a full disk, a database locked by another program, kills, restarts.

A full disk is a limit on the size of the server's files, set from outside: at 0 every write fails;
a little above the size of the write-ahead log, later writes fail. Neither needs privileges or
mounts.
"""

import random
import sqlite3
import sys
import time
from pathlib import Path
from typing import Final

import trio
from attrs import define

from benchmarks.soak.ledger import Ledger, Stop
from benchmarks.soak.server import Site

DATABASE: Final = Path(".crush", "crush-trio.db")
KINDS: Final = (
    "full",
    "full",
    "stall",
    "stall",
    "kill",
    "kill",
    "restart",
    "full+kill",
    "stall+kill",
    "stall+restart",
)


@define(eq=False)
class Faults:
    """Injects faults into the server's environment."""

    site: Site
    ledger: Ledger
    random: random.Random
    pause: tuple[float, float]
    """The range of seconds between two faults."""
    longest: float
    """The most seconds of a disk fault."""

    async def run(self, lives: trio.Nursery) -> None:
        """Inject one fault after the other until cancelled; each kind once before any is repeated."""
        while True:
            for kind in self.random.sample(KINDS, len(KINDS)):
                await trio.sleep(self.random.uniform(*self.pause))
                await self._fault(kind, lives)

    async def _fault(self, kind: str, lives: trio.Nursery) -> None:
        first, _, then = kind.partition("+")
        seconds = self.random.uniform(self.longest / 5, self.longest)
        self.site.note(f"fault: {kind}, {seconds:.1f} s")
        if not then:
            await self._one(first, seconds, lives)
            return
        self.site.disturbed = time.monotonic() + seconds
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._one, first, seconds, lives)
            await trio.sleep(self.random.uniform(0, seconds))
            await self._one(then, 0.0, lives)

    async def _one(self, kind: str, seconds: float, lives: trio.Nursery) -> None:
        match kind:
            case "full":
                await self._fill(seconds)
            case "stall":
                await self._stall(seconds)
            case "kill":
                await self.site.kill()
                self.site.counts.add("kills")
                self.ledger.restarted(time.monotonic())
                await self.site.start(lives)
            case "restart":
                await self.restart(lives)

    def _trouble(self, what: str, seconds: float) -> Stop:
        """Note that the disk does not work from now on."""
        trouble = Stop(what, time.monotonic())
        self.ledger.troubles.append(trouble)
        self.site.disturbed = trouble.sent + seconds + 1
        return trouble

    async def _fill(self, seconds: float) -> None:
        """Limit the size of the server's files, or forbid writing, for some seconds."""
        site = self.site
        trouble = self._trouble("full disk", seconds)
        site.counts.add("disk faults")
        log = site.workspaces[0] / f"{DATABASE}-wal"
        room = self.random.choice((0, 0, 4096, 100_000))
        size = log.stat().st_size + room if room and log.exists() else 0
        process = site.process
        site.limit_files(size)
        try:
            await trio.sleep(seconds)
        finally:
            site.disturbed = trouble.answered = time.monotonic()
            if site.process is process:
                site.limit_files(-1)

    async def _stall(self, seconds: float) -> None:
        """Let another program lock the database of a workspace for some seconds."""
        site = self.site
        trouble = self._trouble("stall", seconds)
        site.counts.add("stalls")
        database = self.random.choice(site.workspaces) / DATABASE
        argv = (sys.executable, "-m", "benchmarks.soak.faults", str(database), str(seconds))
        try:
            await trio.run_process(argv)
        finally:
            site.disturbed = trouble.answered = time.monotonic()

    async def restart(self, lives: trio.Nursery) -> None:
        """Stop the server with SIGTERM, and start it again."""
        stop = Stop("shutdown", time.monotonic())
        self.ledger.shutdowns.append(stop)
        await self.site.stop()
        stop.answered = time.monotonic()
        self.site.counts.add("restarts")
        self.ledger.restarted(stop.answered)
        await self.site.start(lives)


def hold(database: str, seconds: float) -> None:
    """Hold the write lock of *database*."""
    connection = sqlite3.connect(database, timeout=30, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    time.sleep(seconds)
    connection.execute("ROLLBACK")
    connection.close()


if __name__ == "__main__":
    hold(sys.argv[1], float(sys.argv[2]))
