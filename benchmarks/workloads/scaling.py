"""(g) How the cost grows with the length of an answer, and with the stored history of the session.

The server is compared with itself. An answer that is sixteen times as long may cost sixteen times
as much, plus a margin for noise. A long history must not make it more expensive to stream and store
a new answer; building the model request from the history does grow with it, and has rows of its
own.
"""

from pathlib import Path
from typing import Final

from benchmarks.bench import Bench
from benchmarks.driver.frames import NATIVE
from benchmarks.driver.stage import Stage, Turn
from benchmarks.figures import MS, TIMES, Figure, Notes, at_most
from benchmarks.workloads.fanout import BURST, MANY, Cell, play_to
from benchmarks.workloads.history import HISTORIES, seed

LETTER: Final = "g"
TITLE: Final = "Cost by length of answer and history"

LENGTHS: Final = (1000, 4000, 16000)
LENGTH_LIMIT: Final = 20
HISTORY_LIMIT: Final = 1.2


async def measure(bench: Bench) -> list[Figure]:
    """Measure answers of three lengths, then one answer after two histories."""
    notes = bench.notes(LETTER)
    lengths = (100, 400, 1600) if bench.quick else LENGTHS
    figures: list[Figure] = []
    async with bench.alone() as stage:
        for form, clients in _audiences(stage, many=bench.size(MANY, 5)):
            figures += await _lengths(bench, stage, notes, (form, clients), lengths)
    return figures + await _histories(bench, notes)


def _audiences(stage: Stage, many: int) -> list[tuple[str, int]]:
    """Return the crowds: one client, where storing is most of the cost, then many in each form."""
    return [(stage.forms[0], 1), *((form, many) for form in stage.forms)]


async def _lengths(
    bench: Bench, stage: Stage, notes: Notes, who: tuple[str, int], lengths: tuple[int, ...]
) -> list[Figure]:
    form, clients = who
    audience = f"{form}, 1 client" if clients == 1 else f"{form}, {clients} clients"
    names = [f"{audience}, {length:,} tokens: server CPU" for length in lengths]
    growth = f"{audience}: {lengths[-1]:,} tokens / {lengths[0]:,}"
    async with stage.crowd(clients, form) as crowd:
        for _ in range(bench.rounds):
            cells = [Cell(clients, form, BURST, length) for length in lengths]
            costs = [(await play_to(crowd, stage, cell)).cpu for cell in cells]
            for name, cost in zip(names, costs, strict=True):
                notes.add(name, stage.name, None if cost is None else cost * 1e3)
            short, long = costs[0], costs[-1]
            notes.add(growth, stage.name, None if short is None or long is None else long / short)
    # The crush form sends the whole message each time, so its cost grows faster; there is no promise.
    promise = at_most(LENGTH_LIMIT) if form == NATIVE else None
    rows = [figure for name in names for figure in notes.figure(name, MS)]
    return [*rows, *notes.figure(growth, TIMES, promise)]


async def _histories(bench: Bench, notes: Notes) -> list[Figure]:
    few, many = (50, 500) if bench.quick else HISTORIES
    clients = bench.size(MANY, 10)
    sessions = dict[int, str]()

    async def prepare(workspace: Path) -> None:
        for count in (few, many):
            sessions[count] = await seed(workspace, count)

    growth = f"{many:,} stored messages / {few:,}: streaming and storing"
    asking = {
        count: f"{count:,} stored messages: building the model request" for count in (few, many)
    }
    async with bench.alone(prepare) as stage:
        for _ in range(bench.rounds):
            turns = {count: await _after(stage, sessions[count], clients) for count in (few, many)}
            for count, turn in turns.items():
                notes.add(asking[count], stage.name, _before_streaming(turn))
            short, long = turns[few].streaming_cpu, turns[many].streaming_cpu
            notes.add(growth, stage.name, None if not short or long is None else long / short)
    rows = [figure for name in asking.values() for figure in notes.figure(name, MS)]
    return [*notes.figure(growth, TIMES, at_most(HISTORY_LIMIT)), *rows]


async def _after(stage: Stage, session: str, clients: int) -> Turn:
    """Stream an answer in a session with a history."""
    form = stage.witness.form
    async with stage.crowd(clients, form) as crowd:
        return await stage.measure_turn(session, "say 2000", crowd)


def _before_streaming(turn: Turn) -> float | None:
    if turn.cpu is None or turn.streaming_cpu is None:
        return None
    return (turn.cpu - turn.streaming_cpu) * 1e3
