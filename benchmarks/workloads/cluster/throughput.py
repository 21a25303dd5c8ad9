"""(r) Short runs per second and core: prompt, model call, an answer of one word, ending.

Sessions at once, each of which sends its next prompt when the last run has ended. Runs divided by the
processor time of the server: what a core of a node carries. One client reads all events. The model answers
at once; a real one takes seconds, in which a run costs nothing.
"""

from contextlib import AsyncExitStack
from typing import Final

import trio

from benchmarks.bench import Bench
from benchmarks.driver.http import Caller
from benchmarks.driver.postgres import open_postgres
from benchmarks.driver.stage import Stage, open_stage
from benchmarks.driver.targets import own_server
from benchmarks.figures import RATE, Figure, at_least
from benchmarks.workloads.accept import warm_sessions

LETTER: Final = "r"
TITLE: Final = "Short runs per second and core"

SESSIONS: Final = 32
EACH: Final = 8
LEAST: Final = 100
SQLITE, POSTGRES = "on SQLite", "on PostgreSQL"


async def measure(bench: Bench) -> list[Figure]:
    """Measure the server on both stores and the baseline, in alternation."""
    notes = bench.notes(LETTER)
    count, each = bench.size(SESSIONS, 8), bench.size(EACH, 2)
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(open_postgres())
        targets = {SQLITE: own_server(), POSTGRES: own_server(database.url)}
        stages = {
            where: await stack.enter_async_context(open_stage(target, bench.provider))
            for where, target in targets.items()
        }
        rival = None
        if bench.baseline is not None:
            rival = await stack.enter_async_context(open_stage(bench.baseline, bench.provider))
        servers = [*stages.values(), *([rival] if rival is not None else [])]
        halls = {stage: await warm_sessions(stage, count) for stage in servers}
        for _ in range(bench.rounds):
            found = {stage: await runs_per_core(stage, halls[stage], each) for stage in servers}
            for where, stage in stages.items():
                notes.add(where, notes.own, found[stage])
                if rival is not None:
                    notes.add(where, rival.name, found[rival])
    return [f for name in notes.names() for f in notes.figure(name, RATE, at_least(LEAST))]


async def runs_per_core(stage: Stage, sessions: list[str], each: int) -> float:
    """Play *each* runs in all *sessions* at once; return how many a second of processor time carries."""
    callers = [Caller(stage.served.place) for _ in sessions]

    async def play(session: str, caller: Caller) -> None:
        for _ in range(each):
            await stage.play(session, "say 1", caller)

    before = stage.cpu()
    async with trio.open_nursery() as nursery:
        for session, caller in zip(sessions, callers, strict=True):
            nursery.start_soon(play, session, caller)
    after = stage.cpu()
    for caller in callers:
        await caller.aclose()
    assert before is not None
    assert after is not None
    return len(sessions) * each / (after - before)
