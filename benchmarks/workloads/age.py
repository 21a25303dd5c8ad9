"""(h) Does a server that has run five hundred times answer as it did when it was new?

The target is compared with itself, in one process: first words, an answer to a hundred clients, and
cancels, before and after. Each time in sessions of their own, so that what differs is the age of the
process and not the length of a conversation.
"""

from typing import Final

import trio

from benchmarks.bench import Bench
from benchmarks.driver.stage import Stage, Turn
from benchmarks.figures import COUNT, TIMES, Figure, at_most, percentile
from benchmarks.workloads.cancel import singles, storm
from benchmarks.workloads.fanout import BURST, MANY, Cell, play_to
from benchmarks.workloads.lag import first_words

LETTER: Final = "h"
TITLE: Final = "Age"

RUNS: Final = 500
EARLY: Final = 50
RUNS_PER_SESSION: Final = 10
AGED_LIMIT: Final = 1.15
WEIGHT_LIMIT: Final = 1.1

WEIGHT: Final = f"memory after {RUNS} runs / after {EARLY}"
LOST: Final = "cancels without an ending, or with two"


async def measure(bench: Bench) -> list[Figure]:
    """Measure, let the server run, measure again."""
    notes = bench.notes(LETTER)
    runs, early = bench.size(RUNS, 40), bench.size(EARLY, 10)
    async with bench.alone() as stage:
        await _live(stage, bench.size(20, 2))  # what is made once has been made
        fresh = await _figures(stage, bench)
        await _live(stage, early)
        light = stage.rss()
        await _live(stage, runs - early)
        heavy = stage.rss()
        if light is not None and heavy is not None:
            notes.add(WEIGHT, stage.name, heavy / light)
        aged = await _figures(stage, bench)
        for name, value in fresh.items():
            notes.add(f"{name}, aged / fresh", stage.name, aged[name] / value)
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


async def _live(stage: Stage, runs: int) -> None:
    """Have so many runs, in sessions that do not grow long."""
    session = ""
    for number in range(runs):
        if number % RUNS_PER_SESSION == 0:
            session = await stage.new_session()
        await stage.play(session, "say 40")
    await trio.sleep(0.2)


async def _figures(stage: Stage, bench: Bench) -> dict[str, float]:
    """Measure what is compared: medians, of as many as it takes to be sure of a seventh."""
    words = await first_words(stage, await stage.warm_session(), bench.size(120, 15))
    turns = [turn for form in stage.forms for turn in await _turns(stage, form, bench)]
    let_go, told = await singles(stage, await stage.warm_session(), bench.size(80, 10))
    found = {
        "first word to client, p50": percentile(words, 0.5),
        f"{MANY} clients, burst: wall": percentile([turn.wall for turn in turns], 0.5),
        "cancel to model's connection closed, p50": percentile(let_go, 0.5),
        "cancel to last event at client, p50": percentile(told, 0.5),
    }
    costs = [turn.cpu for turn in turns if turn.cpu is not None]
    return (
        {**found, f"{MANY} clients, burst: server CPU": percentile(costs, 0.5)} if costs else found
    )


async def _turns(stage: Stage, form: str, bench: Bench) -> list[Turn]:
    """Play an answer to a crowd a few times."""
    cell = Cell(bench.size(MANY, 5), form, BURST, bench.size(2000, 200))
    async with stage.crowd(cell.clients, form) as crowd:
        return [await play_to(crowd, stage, cell) for _ in range(bench.size(5, 1))]
