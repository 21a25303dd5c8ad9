"""The whole soak: start, run clients and faults, settle, stop, and check the database."""

import random
import signal
import time
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Final

import trio
from attrs import define, field

from benchmarks.driver.pulse import open_pulse
from benchmarks.driver.targets import trust_workspaces, write_config
from benchmarks.figures import percentile
from benchmarks.soak.clients import Canceller, Editor, Herd, Talker
from benchmarks.soak.counts import Counts
from benchmarks.soak.desk import Desk
from benchmarks.soak.disk import Audit, read_disk
from benchmarks.soak.faults import Faults
from benchmarks.soak.ledger import Ledger, Stop, Violation
from benchmarks.soak.model import open_model
from benchmarks.soak.readers import HABITS, Reader
from benchmarks.soak.server import Line, Site

WORKSPACES: Final = 2
TALKERS: Final = 6
SETTLE_LIMIT: Final = 90.0
"""Seconds in which everything must settle at the end."""

SETTLED: Final = 5.0
"""Seconds after its first position from which on a reader must know what others know."""

LAST_WORD_LIMIT: Final = 10.0
"""Seconds in which readers must read to the end of the last stream."""

HEALTH_P99: Final = 1.0
"""Seconds; on a machine that the soak shares with its own load, and with others."""

MEMORY: Final = 700 * 2**20


@define(eq=False)
class Soak:
    """One soak."""

    seed: int
    seconds: float
    folder: Path
    say: Callable[[str], None] = print
    counts: Counts = field(factory=Counts, init=False)
    ledger: Ledger = field(factory=Ledger, init=False)
    violations: list[Exception] = field(factory=list, init=False)
    readers: list[Reader] = field(factory=list, init=False)
    _began: float = field(factory=time.monotonic, init=False)
    _scope: trio.CancelScope = field(factory=trio.CancelScope, init=False)

    async def run(self) -> None:
        """Run the soak; `violations` has the result."""
        with self._scope:
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._end_early)
                    await self._run()
                    nursery.cancel_scope.cancel()
            except* Violation as group:
                for violation in _leaves(group):
                    self.report(violation)

    async def _end_early(self) -> None:
        """Clean up if the soak is told to end."""
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async for number in signals:
                self.report(Violation(f"ended early by {signal.Signals(number).name}"))

    def report(self, exc: Exception) -> None:
        """Note a violation, and end the soak."""
        self.note(f"violation: {exc}")
        self.violations.append(exc)
        self._scope.cancel()

    def note(self, text: str) -> None:
        """Record a line with the time."""
        with (self.folder / "soak.log").open("a", encoding="utf-8") as log:
            log.write(f"{time.monotonic() - self._began:8.3f}  {text}\n")

    def random(self, name: str) -> random.Random:
        """Return the random source of one task; it depends on the seed alone."""
        return random.Random(f"{self.seed}/{name}")

    # ── Parts ───────────────────────────────────────────────────────────────────────────────────

    async def _run(self) -> None:
        async with open_model(self.ledger, self.report) as model, trio.open_nursery() as lives:
            site = self._site(model.base_url)
            try:
                await site.start(lives)
                async with open_pulse(site.place) as pulse:
                    self.counts.health = pulse.seconds
                    await self._soak(site, lives)
            finally:
                await site.end()
            self.counts.add("requests to the model", model.asked)
            self.counts.add("titles", model.titles)
        self._check(site)

    def _site(self, model: str) -> Site:
        folders = tuple(self.folder / f"workspace-{number}" for number in range(WORKSPACES))
        for folder in folders:
            folder.mkdir()
            write_config(folder, model)
        trust_workspaces(self.folder)
        return Site(self.folder, folders, self.counts, self.report, self.note)

    async def _soak(self, site: Site, lives: trio.Nursery) -> None:
        desks = [Desk(site, self.ledger, number) for number in range(WORKSPACES)]
        async with trio.open_nursery() as watching:
            watching.start_soon(self._watch, site)
            self._attach(site, watching)
            async with trio.open_nursery() as mixing:
                self._start_clients(desks, mixing)
                pause = (1.0, 3.0) if self.seconds < 120 else (4.0, 14.0)
                longest = 3.0 if self.seconds < 120 else 8.0
                faults = Faults(site, self.ledger, self.random("faults"), pause, longest)
                mixing.start_soon(faults.run, lives)
                await trio.sleep(self.seconds)
                self.note("the mixing ends")
                mixing.cancel_scope.cancel()
            await self._settle(site, desks, lives)
            watching.cancel_scope.cancel()

    def _attach(self, site: Site, nursery: trio.Nursery) -> None:
        for number in range(WORKSPACES):
            for place, habit in enumerate(HABITS):
                chance = self.random(f"reader {number} {place}")
                reader = Reader(habit, number, site, self.ledger, chance)
                if place == 0:
                    reader.client = site.owners[number]
                self.readers.append(reader)
                self.counts.add(f"readers, {habit.name}")
                nursery.start_soon(reader.run, self.report)

    def _start_clients(self, desks: list[Desk], nursery: trio.Nursery) -> None:
        for desk in desks:
            name = f"{desk.workspace}"
            for number in range(TALKERS):
                nursery.start_soon(Talker(desk, self.random(f"talker {name} {number}"), 1.0).run)
            nursery.start_soon(Herd(desk, self.random(f"herd {name}"), 1.0, 400).run)
            nursery.start_soon(Canceller(desk, self.random(f"canceller {name}"), 1.0).run)
            nursery.start_soon(Editor(desk, self.random(f"editor {name}"), 1.0).run)

    async def _watch(self, site: Site) -> None:
        """Measure the server, check deadlines, and print progress."""
        said = 0.0
        while True:
            await trio.sleep(0.5)
            now = time.monotonic()
            self.ledger.check_due(now)
            try:
                rss = 0 if site.gauge is None else site.gauge.rss()
            except (OSError, ValueError):
                rss = 0  # the process has just ended
            self.counts.memory = max(self.counts.memory, rss)
            if rss > MEMORY:
                raise Violation(f"the server has {rss >> 20} MB in memory")
            if now > said + 10:
                said = now
                self.say(self.counts.line(now - self._began))

    # ── The end ─────────────────────────────────────────────────────────────────────────────────

    async def _settle(self, site: Site, desks: list[Desk], lives: trio.Nursery) -> None:
        """Cancel what is left, wait until every reader knows every ending, and stop the server."""
        site.limit_files(-1)
        if not site.up.is_set():
            if site.process is not None:
                await site.kill()
            await site.start(lives)
        for desk in desks:
            await self._cancel_rest(desk)
        for reader in self.readers:
            reader.finish()
        with trio.move_on_after(SETTLE_LIMIT) as scope:
            while not self._at_rest():  # noqa: ASYNC110 - many things make up the rest
                await trio.sleep(0.2)
        if scope.cancelled_caught:
            raise Violation(f"not at rest after {SETTLE_LIMIT} s: {self._unknown()}")
        self.note("all is at rest")
        self.ledger.shutdowns.append(Stop("shutdown", time.monotonic()))
        await site.stop()
        with trio.move_on_after(LAST_WORD_LIMIT):
            for reader in filter(_is_promised, self.readers):
                await reader.over.wait()

    async def _cancel_rest(self, desk: Desk) -> None:
        """Cancel the sessions in which something may still run."""
        line = Line(desk.site)
        for talk in [t for t in self.ledger.talks.values() if t.workspace == desk.workspace]:
            if any(prompt.accepted and not prompt.state for prompt in talk.prompts):
                while not await desk.cancel(line, talk):  # noqa: ASYNC110 - it was lost
                    await trio.sleep(0.1)
        await line.aclose()

    def _at_rest(self) -> bool:
        return not self.ledger.unsettled() and all(map(self._knows_all, self.readers))

    def _knows_all(self, reader: Reader) -> bool:
        """Whether a reader knows all endings that others got since it has had a position."""
        if not reader.promised or reader.since == inf:
            return not reader.promised
        since = reader.since + SETTLED
        peers = [r for r in self.readers if r.workspace == reader.workspace and r.promised]
        best = max(peers, key=lambda peer: len(peer.endings))
        told = best.endings.items()
        return all(key in reader.endings for key, ending in told if ending.at > since)

    def _unknown(self) -> str:
        waiting = [prompt.tag for prompt in self.ledger.unsettled()][:5]
        behind = [f"{r.habit.name}/{r.workspace}" for r in self.readers if not self._knows_all(r)]
        return f"prompts that have not ended: {waiting}; readers that do not know all: {behind}"

    def _check(self, site: Site) -> None:
        for reader in self.readers:
            reader.check_complete()
        for number, folder in enumerate(site.workspaces):
            readers = [reader for reader in self.readers if reader.workspace == number]
            Audit(self.ledger, read_disk(folder), number, self.counts.endings).check(readers)
        p99 = percentile(self.counts.health, 0.99)
        if p99 > HEALTH_P99:
            raise Violation(f"health took {p99:.2f} s (p99)")


def _leaves(group: BaseExceptionGroup[Violation]) -> list[Violation]:
    found: list[Violation] = []
    for exc in group.exceptions:
        found += _leaves(exc) if isinstance(exc, BaseExceptionGroup) else [exc]
    return found


def _is_promised(reader: Reader) -> bool:
    return reader.promised
