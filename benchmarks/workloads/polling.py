"""(i) Response time for polling clients while runs are active.

Not every client reads a stream: scripts and dashboards poll the sessions, the messages of one
session and the state of the agent. Here 64 clients do, each on its own connection and without a
pause, while the model streams answers in some of the sessions.
"""

from collections.abc import Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import trio

from benchmarks.bench import Bench
from benchmarks.driver.http import Caller
from benchmarks.driver.stage import Stage, run_name
from benchmarks.figures import MS, Figure, percentile, ratio_at_most

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

LETTER: Final = "i"
TITLE: Final = "Polling clients"

CLIENTS: Final = 64
SESSIONS: Final = 16
STREAMING: Final = 8
"""How many of the sessions have an active run."""

HISTORY: Final = 5
"""Completed runs of each session."""

ROUTES: Final = ("sessions", "messages", "agent")
SHARES: Final = ((0.5, "p50"), (0.99, "p99"))
RATIO: Final = 1.5

Times = dict[str, list[float]]


async def measure(bench: Bench) -> list[Figure]:
    """Poll both servers, alternating in each round."""
    notes = bench.notes(LETTER)
    clients = bench.size(CLIENTS, 8)
    async with bench.stages() as stages:
        halls = [await _sessions(stage, bench.size(SESSIONS, 4)) for stage in stages]
        for _ in range(bench.rounds):
            for stage, sessions in zip(stages, halls, strict=True):
                times = await polled(stage, sessions, clients, bench.size(10, 3))
                everything = [each for taken in times.values() for each in taken]
                for name, taken in {"all routes": everything, **times}.items():
                    for share, label in SHARES:
                        what = f"{clients} clients, {name}, {label}"
                        notes.add(what, stage.name, percentile(taken, share) * 1e3)
    promises = {f"{clients} clients, all routes, p50": ratio_at_most(RATIO)}
    return [f for name in notes.names() for f in notes.figure(name, MS, promises.get(name))]


async def _sessions(stage: Stage, count: int) -> list[str]:
    sessions = [await stage.new_session() for _ in range(count)]
    for session in sessions:
        for _ in range(HISTORY):
            await stage.play(session, "say 20")
    return sessions


async def polled(stage: Stage, sessions: Sequence[str], clients: int, rounds: int) -> Times:
    """Poll all routes *rounds* times with *clients* clients; return the seconds by route."""
    times: Times = {name: [] for name in ROUTES}
    callers = [Caller(stage.served.place) for _ in range(clients)]

    async def poll(number: int, caller: Caller) -> None:
        session = sessions[number % len(sessions)]
        targets = {
            "sessions": f"{stage.base}/sessions",
            "messages": f"{stage.base}/sessions/{session}/messages",
            "agent": f"{stage.base}/agent",
        }
        for _ in range(rounds):
            for name, target in targets.items():
                times[name].append((await caller.ask("GET", target)).seconds)

    async with _speaking(stage, sessions[: max(1, len(sessions) * STREAMING // SESSIONS)]):
        for caller in callers:
            await caller.connect()
        async with trio.open_nursery() as nursery:
            for number, caller in enumerate(callers):
                nursery.start_soon(poll, number, caller)
    for caller in callers:
        await caller.aclose()
    return times


@asynccontextmanager
async def _speaking(stage: Stage, sessions: Sequence[str]) -> "AsyncIterator[None]":
    """Stream an answer in each of *sessions* during the block, a word every 20 ms."""
    names = {session: run_name() for session in sessions}
    for session, name in names.items():
        stage.witness.expect_text(session)
        await stage.submit(session, "drip 100000 20", name)
    for session in sessions:
        await stage.witness.first_text(session)
    yield
    for session, name in names.items():
        await stage.cancel(session)
        await stage.witness.ended(name)
