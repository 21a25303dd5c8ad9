"""(h) Does a server that has run five hundred times answer as a new one does?

First words, an answer to a hundred clients, and cancels, on the same process after all those runs. What
they are compared with is a twin that was started just now, by turns: the driver grows old as
well, and the machine is not the same half a minute later, so figures of the same process from before
would be of another afternoon. Each round has a new twin. A server that was running already has none,
and is compared with what it was at the beginning.

Everything is measured in sessions of their own, so that what differs is the age of the process and
not the length of a conversation.
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
TITLE: Final = "Age"

RUNS: Final = 500
EARLY: Final = 50
YOUTH: Final = 20
"""Runs after which what is made once has been made."""

RUNS_PER_SESSION: Final = 10
SLICES: Final = 4
"""How often servers that take turns have theirs."""

AGED_LIMIT: Final = 1.15
WEIGHT_LIMIT: Final = 1.1

WEIGHT: Final = f"memory after {RUNS} runs / after {EARLY}"
LOST: Final = "cancels without an ending, or with two"


async def measure(bench: Bench) -> list[Figure]:
    """Let a server run, and measure it beside a new one."""
    notes = bench.notes(LETTER)
    async with bench.alone() as stage:
        if bench.is_started:
            await _grow_old(stage, bench, notes)
            for _ in range(bench.rounds):
                async with bench.alone() as twin:
                    await _live(twin, bench.size(YOUTH, 2))
                    aged, fresh = await _by_turns((stage, twin), bench)
                _compare(stage.name, aged, fresh, notes)
        else:
            [fresh] = await _by_turns((stage,), bench)
            await _grow_old(stage, bench, notes)
            [aged] = await _by_turns((stage,), bench)
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


async def _grow_old(stage: Stage, bench: Bench, notes: Notes) -> None:
    """Have all the runs, and note what they leave behind."""
    runs, early = bench.size(RUNS, 40), bench.size(EARLY, 10)
    await _live(stage, early)
    light = stage.rss()
    await _live(stage, runs - early)
    heavy = stage.rss()
    if light is not None and heavy is not None:
        notes.add(WEIGHT, stage.name, heavy / light)


async def _live(stage: Stage, runs: int) -> None:
    """Have so many runs, in sessions that do not grow long."""
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
        notes.add(f"{what}, aged / fresh", name, aged[what] / value)


@define(eq=False)
class _Seen:
    """What was measured of one server so far."""

    words: list[float] = field(factory=list, init=False)
    turns: list[Turn] = field(factory=list, init=False)
    let_go: list[float] = field(factory=list, init=False)
    told: list[float] = field(factory=list, init=False)

    def medians(self) -> dict[str, float]:
        """Return what is compared."""
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


async def _by_turns(stages: Sequence[Stage], bench: Bench) -> list[dict[str, float]]:
    """Measure what is compared on each server, a few at a time; return the medians of each."""
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
    """Play an answer to a crowd of each server, by turns; a crowd that waits costs nothing."""
    cell = Cell(bench.size(MANY, 5), form, BURST, bench.size(2000, 200))
    async with AsyncExitStack() as stack:
        crowds = [await stack.enter_async_context(s.crowd(cell.clients, form)) for s in stages]
        for _ in range(bench.size(SLICES, 1)):
            for stage, crowd, its in zip(stages, crowds, seen, strict=True):
                its.turns.append(await play_to(crowd, stage, cell))
