"""(a) Time from the start of a server to its first answer and to its first workspace; its memory when idle."""

import tempfile
from pathlib import Path
from typing import Final

import trio

from benchmarks.bench import Bench
from benchmarks.driver.http import Caller
from benchmarks.driver.stage import client_id
from benchmarks.driver.targets import write_config
from benchmarks.figures import BYTES, MS, Figure, ratio_at_most

LETTER: Final = "a"
TITLE: Final = "Start"

START: Final = "start to first answer"
WORKSPACE: Final = "start to first workspace"
WEIGHT: Final = "memory when idle"

SETTLED: Final = 2.0
"""Seconds after which a server has imported all that it imports without a request."""


async def measure(bench: Bench) -> list[Figure]:
    """Start each server a few times, alternating: for its answers, and for its memory."""
    notes = bench.notes(LETTER)
    for _ in range(bench.size(5, 1)):
        for target in bench.servers:
            with tempfile.TemporaryDirectory(prefix="crush-bench-") as folder:
                write_config(Path(folder), bench.provider.base_url)
                async with target.serve(Path(folder)) as served:
                    took, caller = served.started_in, Caller(served.place)
                    body = {"path": folder, "client_id": client_id()}
                    reply = await caller.ask("POST", "/v1/workspaces", body)
                    await caller.aclose()
                    notes.add(START, target.name, None if took is None else took * 1e3)
                    whole = None if took is None else (took + reply.seconds) * 1e3
                    notes.add(WORKSPACE, target.name, whole)
            with tempfile.TemporaryDirectory(prefix="crush-bench-") as folder:
                async with target.serve(Path(folder)) as served:
                    await trio.sleep(SETTLED)
                    weight = None if served.gauge is None else served.gauge.rss()
                    notes.add(WEIGHT, target.name, weight)
    return [
        *notes.figure(START, MS, ratio_at_most(0.5)),
        *notes.figure(WORKSPACE, MS),
        *notes.figure(WEIGHT, BYTES),
    ]
