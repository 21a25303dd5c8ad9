"""(h) Whether a server that has completed 500 runs is as fast as a new one.

Measured are first words, an answer to a hundred clients, and cancels. The old process is compared
with a new one, in alternation: figures of the same process from half a minute before are not
comparable, because the driver ages as well and the machine's speed changes. Each round starts a new
process for the comparison.

Everything is measured in new sessions, so that the age of the process differs and not the length of
a conversation.
"""

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Final

import trio
from attrs import define, field

from benchmarks.bench import Bench
from benchmarks.driver.stage import Stage, Turn
from benchmarks.figures import COUNT, TIMES, Figure, Notes, at_most, percentile
from benchmarks.workloads.cancel import singles, storm
from benchmarks.workloads.fanout import BURST, MANY, Cell, play_to
from benchmarks.workloads.lag import first_words

LETTER: Final = "h"
TITLE: Final = "A server after 500 runs"

RUNS: Final = 500
EARLY: Final = 50
YOUTH: Final = 20
"""Runs that warm up a new server."""

RUNS_PER_SESSION: Final = 10
SLICES: Final = 4
"""How often the measurement alternates between the servers."""

AGED_LIMIT: Final = 1.15
WEIGHT_LIMIT: Final = 1.1

WEIGHT: Final = f"memory after {RUNS} runs / after {EARLY}"
LOST: Final = "storm: cancels without exactly one ending"


async def measure(bench: Bench) -> list[Figure]:
    """Let a server complete its runs, and measure it against a new one."""
    notes = bench.notes(LETTER)
    async with bench.alone() as stage:
        await _complete_runs(stage, bench, notes)
        for _ in range(bench.rounds):
            async with bench.alone() as twin:
                await _run_many(twin, bench.size(YOUTH, 2))
                aged, fresh = await _alternating((stage, twin), bench)
            _compare(stage.name, aged, fresh, notes)
        result = await storm(stage, bench.size(300, 20))
        notes.add(LOST, stage.name, result.lost + result.wrong)
    rows = [
        figure
        for name in notes.names()
        if name not in {WEIGHT, LOST}
        for figure in notes.figure(name, TIMES, at_most(AGED_LIMIT))
    ]
    weight = notes.figure(WEIGHT, TIMES, at_most(WEIGHT_LIMIT))
    return [*rows, *weight, *notes.figure(LOST, COUNT, at_most(0))]


async def _complete_runs(stage: Stage, bench: Bench, notes: Notes) -> None:
    """Complete all runs, and note how much memory they leave behind."""
    runs, early = bench.size(RUNS, 40), bench.size(EARLY, 10)
    await _run_many(stage, early)
    light = stage.rss()
    await _run_many(stage, runs - early)
    heavy = stage.rss()
    if light is not None and heavy is not None:
        notes.add(WEIGHT, stage.name, heavy / light)


async def _run_many(stage: Stage, runs: int) -> None:
    """Complete *runs* runs, in sessions that stay short."""
    session = ""
    for number in range(runs):
        if number % RUNS_PER_SESSION == 0:
            session = await stage.new_session()
        await stage.play(session, "say 40")
    await trio.sleep(0.2)


def _compare(
    name: str, aged: Mapping[str, float], fresh: Mapping[str, float], notes: Notes
) -> None:
    for what, value in fresh.items():
        notes.add(f"{what}, old / new server", name, aged[what] / value)


@define(eq=False)
class _Seen:
    """The measurements of one server."""

    words: list[float] = field(factory=list, init=False)
    turns: list[Turn] = field(factory=list, init=False)
    let_go: list[float] = field(factory=list, init=False)
    told: list[float] = field(factory=list, init=False)

    def medians(self) -> dict[str, float]:
        """Return the median of each measurement."""
        found = {
            "first word to client, p50": self.words,
            f"{MANY} clients, burst: wall": [turn.wall for turn in self.turns],
            f"{MANY} clients, burst: server CPU": [
                turn.cpu for turn in self.turns if turn.cpu is not None
            ],
            "cancel to model's connection closed, p50": self.let_go,
            "cancel to last event at client, p50": self.told,
        }
        return {name: percentile(values, 0.5) for name, values in found.items() if values}


async def _alternating(stages: Sequence[Stage], bench: Bench) -> list[dict[str, float]]:
    """Measure each server, a few samples at a time; return the medians of each."""
    seen = [_Seen() for _ in stages]
    for _ in range(bench.size(SLICES, 1)):
        for stage, its in zip(stages, seen, strict=True):
            session = await stage.warm_session()
            its.words += await first_words(stage, session, bench.size(20, 15))
            let_go, told = await singles(stage, session, bench.size(20, 10))
            its.let_go += let_go
            its.told += told
    for form in stages[0].forms:
        await _crowds(stages, form, seen, bench)
    return [its.medians() for its in seen]


async def _crowds(stages: Sequence[Stage], form: str, seen: Sequence[_Seen], bench: Bench) -> None:
    """Stream an answer to a crowd of each server, alternating; an idle crowd costs nothing."""
    cell = Cell(bench.size(MANY, 5), form, BURST, bench.size(2000, 200))
    async with AsyncExitStack() as stack:
        crowds = [await stack.enter_async_context(s.crowd(cell.clients, form)) for s in stages]
        for _ in range(bench.size(SLICES, 1)):
            for stage, crowd, its in zip(stages, crowds, seen, strict=True):
                its.turns.append(await play_to(crowd, stage, cell))
