"""(d) The cost of streaming an answer of 2,000 tokens to 1, 10, 100 and 500 clients.

As a burst, which is the highest rate of the server, and at 5 ms per token, which is the rate of
models. In native form and in crush form; all clients are attached before.
"""

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from itertools import count, takewhile
from typing import Final

from attrs import frozen

from benchmarks.bench import Bench
from benchmarks.driver.frames import CRUSH, NATIVE
from benchmarks.driver.listeners import Crowd
from benchmarks.driver.provider import parse_prompt
from benchmarks.driver.stage import Stage, Turn, open_stage
from benchmarks.driver.targets import baseline
from benchmarks.figures import (
    BYTES,
    MS,
    TIMES,
    Figure,
    Notes,
    Promise,
    at_most,
    ratio_at_most,
)

LETTER: Final = "d"
TITLE: Final = "One answer to many clients"

TOKENS: Final = 2000
BURST: Final = "burst"
DRIP: Final = "5 ms per token"
CROWDS: Final = (1, 10, 100)
MANY: Final = 100
LARGEST: Final = 500
TEXT_SHARE: Final = 1.6
"""The most bytes that may be sent to a client per byte of text, without the frames around it."""

WALL, CPU, SIZE = "wall", "server CPU", "bytes per client"
DRIVER: Final = "CPU share of the driver"
SHARE: Final = "bytes per client / (1.6 x text + one frame per update)"
SECOND: Final = "server CPU / that of a paced baseline"

_SECONDS: Final = {
    (LARGEST, NATIVE): 15.0,
    (LARGEST, CRUSH): 60.0,
    (MANY, NATIVE): 24.0,
    (MANY, CRUSH): 28.0,
}
"""Seconds that a round of the slow cells takes, both servers together."""

_RESERVED: Final = 12.0
"""Seconds that are reserved for what comes after the slow cells."""


@frozen
class Cell:
    """One combination: the number of clients, the form, the pace and the length of the answer."""

    clients: int
    form: str
    pace: str
    tokens: int = TOKENS

    @property
    def prompt(self) -> str:
        """The prompt for the scripted model."""
        return f"say {self.tokens}" if self.pace == BURST else f"drip {self.tokens} 5"

    def named(self, what: str) -> str:
        """Return the name of a figure of this cell."""
        clients = "1 client" if self.clients == 1 else f"{self.clients} clients"
        return f"{self.form}, {clients}, {self.pace}: {what}"


async def measure(bench: Bench) -> list[Figure]:
    """Measure every cell, alternating between servers; slow cells as often as time allows."""
    notes, promises = bench.notes(LETTER), dict[str, Promise]()
    async with bench.stages() as stages:
        forms = stages[0].forms
        for cell in _quick_cells(bench, forms):
            await _measure_cell(stages, notes, cell, lambda number: number < bench.rounds)
        if not bench.quick:
            await _slow_cells(bench, stages, notes)
    if bench.baseline is not None and not bench.quick:
        await _paced_baseline(bench, notes, forms)
    for form in forms:
        promises |= _promises(form)
    return [
        f for name in notes.names() for f in notes.figure(name, _unit(name), promises.get(name))
    ]


def _quick_cells(bench: Bench, forms: Sequence[str]) -> list[Cell]:
    crowds, tokens = (CROWDS[:2], 300) if bench.quick else (CROWDS, TOKENS)
    return [Cell(clients, form, BURST, tokens) for form in forms for clients in crowds]


async def _slow_cells(bench: Bench, stages: Sequence[Stage], notes: Notes) -> None:
    """Measure the slow cells: at the pace of models always, with 500 clients if there is time."""
    forms = stages[0].forms
    for form in forms:
        drip = Cell(MANY, form, DRIP)
        await _measure_cell(stages, notes, drip, partial(_another, bench, drip))
    for form in forms:
        large = Cell(LARGEST, form, BURST)
        if _has_time(bench, large, 0):
            await _measure_cell(stages, notes, large, lambda number: number == 0)


def _another(bench: Bench, cell: Cell, number: int) -> bool:
    """Whether to measure *cell* again; the first round is always measured."""
    return number == 0 or (number < bench.rounds and _has_time(bench, cell, number))


def _has_time(bench: Bench, cell: Cell, number: int) -> bool:
    seconds = _SECONDS[cell.clients, cell.form] + _RESERVED
    return bench.has_time(seconds, f"(d) {cell.named(f'round {number + 1}')}")


async def _measure_cell(
    stages: Sequence[Stage], notes: Notes, cell: Cell, another: Callable[[int], bool]
) -> None:
    """Measure one cell, alternating between servers, while *another* returns True."""
    async with AsyncExitStack() as stack:
        crowds = [
            (stage, await stack.enter_async_context(stage.crowd(cell.clients, cell.form)))
            for stage in stages
            if cell.form in stage.forms
        ]
        for number in takewhile(another, count()):
            for stage, crowd in crowds:
                turn = await play_to(crowd, stage, cell)
                _note(notes, stage.name, cell, turn)
                if number == 0 and cell.form == NATIVE and stage is stages[0]:
                    notes.add(cell.named(SHARE), stage.name, _share(cell, turn))


def _note(notes: Notes, server: str, cell: Cell, turn: Turn) -> None:
    notes.add(cell.named(WALL), server, turn.wall * 1e3)
    notes.add(cell.named(CPU), server, None if turn.cpu is None else turn.cpu * 1e3)
    notes.add(cell.named(SIZE), server, turn.bytes)
    if cell.clients >= MANY:
        notes.add(cell.named(DRIVER), server, turn.driver)


async def play_to(crowd: Crowd, stage: Stage, cell: Cell) -> Turn:
    """Play a cell's prompt to its crowd, in a session of its own."""
    return await stage.measure_turn(await stage.warm_session(), cell.prompt, crowd)


def _share(cell: Cell, turn: Turn) -> float:
    """Return the bytes sent to a client as a share of the allowed bytes."""
    text = len(parse_prompt(cell.prompt).text.encode())
    return turn.bytes / (TEXT_SHARE * text + turn.updates * turn.overhead)


async def _paced_baseline(bench: Bench, notes: Notes, forms: Sequence[str]) -> None:
    """Measure against a baseline that paces its events, to show how much of the ratio is pacing."""
    async with bench.alone() as own, open_stage(baseline(paced=True), bench.provider) as other:
        for cell in (Cell(MANY, form, BURST) for form in forms):
            async with own.crowd(MANY, cell.form) as ours, other.crowd(MANY, cell.form) as theirs:
                for _ in range(bench.rounds):
                    here, there = await play_to(ours, own, cell), await play_to(theirs, other, cell)
                    if here.cpu is not None and there.cpu is not None:
                        notes.add(cell.named(SECOND), own.name, here.cpu / there.cpu)


def _promises(form: str) -> dict[str, Promise]:
    burst, drip = Cell(MANY, form, BURST), Cell(MANY, form, DRIP)
    return {
        burst.named(CPU): ratio_at_most(1 / 5),
        burst.named(WALL): ratio_at_most(1 / 3),
        drip.named(CPU): ratio_at_most(1 / 2),
        burst.named(SHARE): at_most(1),
        drip.named(SHARE): at_most(1),
    }


def _unit(name: str) -> str:
    if name.endswith((SHARE, SECOND, DRIVER)):
        return TIMES
    return BYTES if name.endswith(SIZE) else MS
