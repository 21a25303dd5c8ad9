"""(c) Latency from the model's first word until a client has it.

The model starts its answer and pauses; then it sends a word, and the time runs until the witness
has read it. Model and witness are in the same process, so there is one clock.
"""

from typing import Final

from benchmarks.bench import Bench
from benchmarks.driver.stage import Stage, run_name
from benchmarks.figures import MS, Figure, at_most, percentile

LETTER: Final = "c"
TITLE: Final = "Latency of the first word"

P50: Final = "model's first word to client, p50"
P99: Final = "model's first word to client, p99"


async def measure(bench: Bench) -> list[Figure]:
    """Time first words, alternating between servers."""
    notes = bench.notes(LETTER)
    async with bench.stages() as stages:
        for _ in range(bench.rounds):
            for stage in stages:
                lags = await first_words(stage, await stage.warm_session(), bench.size(100, 20))
                notes.add(P50, stage.name, percentile(lags, 0.5) * 1e3)
                notes.add(P99, stage.name, percentile(lags, 0.99) * 1e3)
    return [*notes.figure(P50, MS, at_most(3)), *notes.figure(P99, MS, at_most(12))]


async def first_words(stage: Stage, session: str, count: int) -> list[float]:
    """Request *count* short answers; return the latency of the first word of each."""
    lags = []
    for _ in range(count):
        tag = run_name()
        call = stage.provider.call(tag)
        await stage.play(session, f"drip 2 12 #{tag}")
        assert call.spoke is not None
        lags.append(await stage.witness.first_text(session) - call.spoke)
        del stage.provider.calls[tag]
    return lags
