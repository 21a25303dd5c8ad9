"""(p) Prompts and answers on PostgreSQL, against SQLite and against the baseline.

Both stores wait for the disk at every commit. The three servers alternate within each round. The columns
compare PostgreSQL with the baseline, which stores nothing; rows of their own compare the two stores.
"""

from contextlib import AsyncExitStack
from typing import Final

from attrs import define

from benchmarks.bench import Bench
from benchmarks.driver.frames import NATIVE
from benchmarks.driver.postgres import open_postgres
from benchmarks.driver.stage import Stage, open_stage
from benchmarks.driver.targets import Target, own_server
from benchmarks.figures import MS, TIMES, Figure, Notes, at_most, percentile
from benchmarks.workloads.accept import (
    ALONE,
    SESSIONS,
    SHARES,
    TOGETHER,
    one_by_one,
    warm_sessions,
    waves_of,
)
from benchmarks.workloads.fanout import BURST, CPU, DRIP, MANY, WALL, Cell, play_to

LETTER: Final = "p"
TITLE: Final = "Prompts and answers on PostgreSQL"

FULL: Final = "sqlite:?synchronous=full"
STORES: Final = "PostgreSQL / SQLite"
LIMIT: Final = 2
COST: Final = "server CPU of the prompt and its short run"


@define(eq=False)
class _Servers:
    """The server on PostgreSQL, the one on SQLite, and the baseline if it is measured."""

    postgres: Stage
    sqlite: Stage
    baseline: Stage | None

    def all(self) -> tuple[Stage, ...]:
        """Return them in the order in which they are measured."""
        stages = (self.postgres, self.sqlite)
        return stages if self.baseline is None else (*stages, self.baseline)

    def note(self, notes: Notes, name: str, values: dict[Stage, float]) -> None:
        """Note one value of each server under *name*, and the ratio of the stores."""
        notes.add(name, notes.own, values[self.postgres])
        if self.baseline is not None:
            notes.add(name, self.baseline.name, values[self.baseline])
        ratio = values[self.postgres] / values[self.sqlite]
        notes.add(f"{name}: {STORES}", notes.own, ratio)


async def measure(bench: Bench) -> list[Figure]:
    """Measure acceptances and then a crowd, alternating between the three servers."""
    notes = bench.notes(LETTER)
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(open_postgres())
        targets: list[Target] = [own_server(database.url), own_server(FULL)]
        targets += [bench.baseline] if bench.baseline is not None else []
        stages = [
            await stack.enter_async_context(open_stage(each, bench.provider)) for each in targets
        ]
        servers = _Servers(stages[0], stages[1], stages[2] if len(stages) > 2 else None)
        await _acceptances(bench, servers, notes)
        await _crowds(bench, servers, notes)
    promises = {f"{TOGETHER}, p50: {STORES}": at_most(LIMIT)}
    return [
        figure
        for name in notes.names()
        for figure in notes.figure(name, TIMES if name.endswith(STORES) else MS, promises.get(name))
    ]


async def _acceptances(bench: Bench, servers: _Servers, notes: Notes) -> None:
    count, waves, alone = bench.size(SESSIONS, 8), bench.size(4, 2), bench.size(60, 10)
    halls = {stage: await warm_sessions(stage, count) for stage in servers.all()}
    for _ in range(bench.rounds):
        found: dict[str, dict[Stage, float]] = {}
        for stage, sessions in halls.items():
            single = await one_by_one(stage, sessions[0], alone)
            before = _cpu(stage)
            together = await waves_of(stage, sessions, waves)
            cost = (_cpu(stage) - before) / len(together)
            for name, taken in ((ALONE, single), (TOGETHER, together)):
                for share, label in SHARES:
                    values = found.setdefault(f"{name}, {label}", {})
                    values[stage] = percentile(taken, share) * 1e3
            found.setdefault(f"{TOGETHER}: {COST}", {})[stage] = cost * 1e3
        for name, values in found.items():
            servers.note(notes, name, values)


async def _crowds(bench: Bench, servers: _Servers, notes: Notes) -> None:
    clients = bench.size(MANY, 5)
    for cell in (Cell(clients, NATIVE, BURST, 2000), Cell(clients, NATIVE, DRIP, 400)):
        async with AsyncExitStack() as stack:
            crowds = {
                stage: await stack.enter_async_context(stage.crowd(clients, NATIVE))
                for stage in servers.all()
            }
            for _ in range(bench.rounds):
                turns = {stage: await play_to(crowds[stage], stage, cell) for stage in crowds}
                title = f"{cell.tokens:,} tokens, {cell.named('')}"
                walls = {stage: turn.wall * 1e3 for stage, turn in turns.items()}
                servers.note(notes, f"{title}{WALL}", walls)
                costs = {stage: (turn.cpu or 0) * 1e3 for stage, turn in turns.items()}
                servers.note(notes, f"{title}{CPU}", costs)


def _cpu(stage: Stage) -> float:
    seconds = stage.cpu()
    assert seconds is not None, "the benchmark has started it"
    return seconds
