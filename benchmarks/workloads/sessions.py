"""(l) Time to create a session, one after the other."""

from typing import Final

from benchmarks.bench import Bench
from benchmarks.figures import MS, Figure, percentile, ratio_at_most

LETTER: Final = "l"
TITLE: Final = "Sessions"

CREATED: Final = "session created, p50"


async def measure(bench: Bench) -> list[Figure]:
    """Create sessions, alternating between servers."""
    notes = bench.notes(LETTER)
    async with bench.stages() as stages:
        for stage in stages:
            await stage.warm_session()
        for _ in range(bench.rounds):
            for stage in stages:
                body = {"title": "benchmark"}
                replies = [
                    await stage.caller.ask("POST", f"{stage.base}/sessions", body)
                    for _ in range(bench.size(100, 30))
                ]
                taken = percentile([reply.seconds for reply in replies], 0.5)
                notes.add(CREATED, stage.name, taken * 1e3)
    return notes.figure(CREATED, MS, ratio_at_most(1.5))
