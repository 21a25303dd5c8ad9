"""(b) Time until a client gets the 202 for its prompt.

One prompt after the other, and then waves of one prompt in each of 64 sessions at once. Each wave
is answered completely before the next; only the acceptances are timed.
"""

from typing import Final

import trio

from benchmarks.bench import Bench
from benchmarks.driver.http import Caller
from benchmarks.driver.stage import Stage
from benchmarks.figures import MS, Figure, percentile, ratio_at_most

LETTER: Final = "b"
TITLE: Final = "Time to accept a prompt"

SESSIONS: Final = 64
SHARES: Final = ((0.5, "p50"), (0.99, "p99"))
ALONE: Final = "one at a time"
TOGETHER: Final = f"{SESSIONS} sessions at once"


async def measure(bench: Bench) -> list[Figure]:
    """Time single prompts and waves, alternating between servers."""
    notes = bench.notes(LETTER)
    async with bench.stages() as stages:
        halls = [await warm_sessions(stage, bench.size(SESSIONS, 8)) for stage in stages]
        for _ in range(bench.rounds):
            for stage, sessions in zip(stages, halls, strict=True):
                times = await one_by_one(stage, sessions[0], bench.size(100, 20))
                waves = await waves_of(stage, sessions, bench.size(4, 2))
                for name, taken in ((ALONE, times), (TOGETHER, waves)):
                    for share, label in SHARES:
                        notes.add(f"{name}, {label}", stage.name, percentile(taken, share) * 1e3)
    promises = {f"{ALONE}, p50": ratio_at_most(1.4), f"{TOGETHER}, p50": ratio_at_most(2)}
    return [f for name in notes.names() for f in notes.figure(name, MS, promises.get(name))]


async def warm_sessions(stage: Stage, count: int) -> list[str]:
    """Create *count* sessions and complete the first run of each."""
    sessions = [await stage.new_session() for _ in range(count)]
    for session in sessions:
        await stage.play(session, "say 1")  # warm up: the title, and what is done once
    return sessions


async def one_by_one(stage: Stage, session: str, count: int) -> list[float]:
    """Send *count* prompts to a session, each after the ending of the last; return the seconds of each."""
    return [(await stage.play(session, "say 1")).seconds for _ in range(count)]


async def waves_of(stage: Stage, sessions: list[str], count: int) -> list[float]:
    """Send a prompt to every session at once, *count* times; return the seconds of each."""
    callers = [Caller(stage.served.place) for _ in sessions]
    times: list[float] = []

    async def prompt(session: str, caller: Caller) -> None:
        times.append((await stage.play(session, "say 1", caller)).seconds)

    for _ in range(count):
        for caller in callers:
            await caller.connect()
        async with trio.open_nursery() as nursery:
            for session, caller in zip(sessions, callers, strict=True):
                nursery.start_soon(prompt, session, caller)
    for caller in callers:
        await caller.aclose()
    return times
