"""(f) Memory of an idle session, of an idle stream and of a long message.

Each server is started for this. The figures are differences of resident memory over many of a kind,
after a few of the same kind have been made as a warm-up.
"""

from collections.abc import Awaitable, Callable
from typing import Final

import trio

from benchmarks.bench import Bench
from benchmarks.driver.stage import Stage
from benchmarks.figures import BYTES, Figure, at_most, ratio_at_most

LETTER: Final = "f"
TITLE: Final = "Memory"

SESSION: Final = "per idle session"
STREAM: Final = "per idle stream"
MESSAGE: Final = "per message of 10,000 tokens"
KILOBYTE: Final = 1024

_REST: Final = 0.2


async def measure(bench: Bench) -> list[Figure]:
    """Measure each kind in a new process, alternating between servers."""
    notes = bench.notes(LETTER)
    for _ in range(bench.rounds):
        async with bench.stages() as stages:
            for stage in stages:
                sessions = bench.size(500, 100)
                notes.add(SESSION, stage.name, await _per_session(stage, sessions))
                notes.add(STREAM, stage.name, await _per_stream(stage, bench.size(100, 20)))
                notes.add(MESSAGE, stage.name, await _per_message(stage, bench.size(3, 1)))
    return [
        *notes.figure(SESSION, BYTES, at_most(4 * KILOBYTE)),
        *notes.figure(STREAM, BYTES, ratio_at_most(1.3)),
        *notes.figure(MESSAGE, BYTES),
    ]


async def _grown(stage: Stage, count: int, make: Callable[[], Awaitable[object]]) -> float | None:
    """Call *make* *count* times; return by how many bytes the server grew for each."""
    await make()
    await trio.sleep(_REST)
    before = stage.rss()
    for _ in range(count):
        await make()
    await trio.sleep(_REST)
    after = stage.rss()
    return None if before is None or after is None else (after - before) / count


async def _per_session(stage: Stage, count: int) -> float | None:
    for _ in range(count // 10):
        await stage.new_session()
    return await _grown(stage, count, stage.new_session)


async def _per_stream(stage: Stage, count: int) -> float | None:
    async with stage.crowd(count // 10, stage.witness.form):
        await trio.sleep(_REST)
        before = stage.rss()
        async with stage.crowd(count, stage.witness.form):
            await trio.sleep(_REST)
            after = stage.rss()
    return None if before is None or after is None else (after - before) / count


async def _per_message(stage: Stage, count: int) -> float | None:
    async def long_answer() -> None:
        await stage.play(await stage.new_session(), "say 10000")

    await long_answer()
    return await _grown(stage, count, long_answer)
