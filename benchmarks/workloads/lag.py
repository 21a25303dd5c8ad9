"""(c) How long after the model's first word does a client have it?

The model has answered and pauses; then it says a word, and the clock runs until the witness has read
it. The same process says it and hears it, so there is one clock.
"""

from typing import Final

from benchmarks.bench import Bench
from benchmarks.driver.stage import Stage, run_name
from benchmarks.figures import MS, Figure, at_most, percentile

LETTER: Final = "c"
TITLE: Final = "First word"

P50: Final = "model's first word to client, p50"
P99: Final = "model's first word to client, p99"


async def measure(bench: Bench) -> list[Figure]:
    """Time first words, by turns."""
    notes = bench.notes(LETTER)
    async with bench.stages() as stages:
        for _ in range(bench.rounds):
            for stage in stages:
                lags = await first_words(stage, await stage.warm_session(), bench.size(100, 20))
                notes.add(P50, stage.name, percentile(lags, 0.5) * 1e3)
                notes.add(P99, stage.name, percentile(lags, 0.99) * 1e3)
    return [*notes.figure(P50, MS, at_most(3)), *notes.figure(P99, MS, at_most(12))]


async def first_words(stage: Stage, session: str, count: int) -> list[float]:
    """Have *count* short answers, and return how late the first word of each was."""
    lags = []
    for _ in range(count):
        tag = run_name()
        call = stage.provider.call(tag)
        await stage.play(session, f"drip 2 12 #{tag}")
        assert call.spoke is not None
        lags.append(await stage.witness.first_text(session) - call.spoke)
        del stage.provider.calls[tag]
    return lags
