"""(m) Processor time of an answer at the rate of a model, to few clients and to very many.

Four hundred tokens, one every 5 ms. To ten clients next to the baseline: that is mostly storing,
pacing and waking. To a hundred and to a thousand, this server against itself: the cost of a client
must not grow with their number.
"""

from contextlib import AsyncExitStack
from typing import Final

from benchmarks.bench import Bench
from benchmarks.figures import MS, TIMES, Figure, Notes, at_most, ratio_at_most
from benchmarks.workloads.fanout import DRIP, MANY, Cell, play_to

LETTER: Final = "m"
TITLE: Final = "An answer at the rate of a model"

TOKENS: Final = 400
FEW: Final = 10
CROWD: Final = 1000
GROWTH_LIMIT: Final = 1.1

CPU: Final = f"{TOKENS} tokens at 5 ms to {{}} clients: server CPU"
GROWTH: Final = f"server CPU per client, {CROWD:,} clients / {MANY}"


async def measure(bench: Bench) -> list[Figure]:
    """Measure ten clients of every server, then large crowds of this one."""
    notes = bench.notes(LETTER)
    await _few(bench, notes)
    many, crowd = bench.size(MANY, 10), bench.size(CROWD, 50)
    await _crowds(bench, notes, many, crowd)
    return [
        *notes.figure(CPU.format(FEW), MS, ratio_at_most(0.5)),
        *notes.figure(CPU.format(MANY), MS),
        *notes.figure(CPU.format(f"{CROWD:,}"), MS),
        *notes.figure(GROWTH, TIMES, at_most(GROWTH_LIMIT)),
    ]


async def _few(bench: Bench, notes: Notes) -> None:
    async with AsyncExitStack() as stack:
        places = []
        for stage in await stack.enter_async_context(bench.stages()):
            form = stage.forms[0]
            crowd = await stack.enter_async_context(stage.crowd(FEW, form))
            places.append((stage, crowd, Cell(FEW, form, DRIP, bench.size(TOKENS, 200))))
        for _ in range(bench.rounds):
            for stage, crowd, cell in places:
                cpu = (await play_to(crowd, stage, cell)).cpu
                notes.add(CPU.format(FEW), stage.name, None if cpu is None else cpu * 1e3)


async def _crowds(bench: Bench, notes: Notes, many: int, crowd: int) -> None:
    """Measure two crowds, alternating."""
    async with bench.alone() as stage:
        for _ in range(bench.rounds):
            each = []
            for name, clients in ((f"{MANY}", many), (f"{CROWD:,}", crowd)):
                cell = Cell(clients, stage.forms[0], DRIP, bench.size(TOKENS, 100))
                async with stage.crowd(clients, cell.form) as readers:
                    cpu = (await play_to(readers, stage, cell)).cpu
                if cpu is not None:
                    notes.add(CPU.format(name), stage.name, cpu * 1e3)
                    each.append(cpu / clients)
            if len(each) == 2:
                notes.add(GROWTH, stage.name, each[1] / each[0])
