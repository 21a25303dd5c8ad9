"""(a) Time from the start of a server to its first answer, and its memory then."""

import tempfile
from pathlib import Path
from typing import Final

import trio

from benchmarks.bench import Bench
from benchmarks.figures import BYTES, MS, Figure, ratio_at_most

LETTER: Final = "a"
TITLE: Final = "Start"

START: Final = "start to first answer"
WEIGHT: Final = "memory when idle"


async def measure(bench: Bench) -> list[Figure]:
    """Start each server a few times, alternating."""
    notes = bench.notes(LETTER)
    for _ in range(bench.size(5, 1)):
        for target in bench.servers:
            with tempfile.TemporaryDirectory(prefix="crush-bench-") as folder:
                async with target.serve(Path(folder)) as served:
                    await trio.sleep(0.2)
                    took = served.started_in
                    notes.add(START, target.name, None if took is None else took * 1e3)
                    weight = None if served.gauge is None else served.gauge.rss()
                    notes.add(WEIGHT, target.name, weight)
    return [*notes.figure(START, MS, ratio_at_most(1.3)), *notes.figure(WEIGHT, BYTES)]
