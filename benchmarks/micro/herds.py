"""The time for thousands of endings at once: of cancelled prompts, and of runs after a crash.

A session has so many waiting prompts, on SQLite, and is cancelled; then as many runs that a killed
program left without an ending are recovered. Both have to grow with their number and not much
faster, and meanwhile another session has to be usable. Run it with `python -m
benchmarks.micro.herds`.
"""

import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import trio
from attrs import frozen

from benchmarks.micro.timing import MET, MISSED
from crush_trio.agent.record.journal import open_recorded_runs
from crush_trio.agent.record.transcript import Transcript
from crush_trio.runtime.outcome import Submission
from crush_trio.runtime.run import Run, Turn
from crush_trio.store.changes import RunAccepted, SessionCreated
from crush_trio.store.sqlite.store import open_sqlite_store
from crush_trio.wire.ids import RunId, SessionId
from crush_trio.wire.runs import RunState, RunView
from crush_trio.wire.views import Session

FEW: Final = 1_000
MANY: Final = 10_000
TARGET: Final = 3.0
"""The most that one of many may cost compared with one of few; quadratic cost would give ten."""

HERD: Final = SessionId("herd")
OTHER: Final = SessionId("other")


@frozen
class Took:
    """Seconds until all had ended, and until a prompt of another session had."""

    all: float
    other: float


def turns(gate: trio.Event) -> Turn:
    """Return a turn that waits in the herd's session and returns at once in others."""

    async def turn(run: Run) -> None:
        if run.session_id == HERD:
            await gate.wait()
        await trio.lowlevel.checkpoint()

    return turn


async def cancelled(folder: Path, count: int) -> Took:
    """Cancel a session with *count* prompts."""
    gate = trio.Event()

    def make_turn(_transcript: Transcript) -> Turn:
        return turns(gate)

    async with (
        open_sqlite_store(folder) as store,
        open_recorded_runs(store, make_turn) as workspace,
    ):
        for session_id in (HERD, OTHER):
            await store.commit(SessionCreated(session=Session(id=session_id)))
        runs = [
            workspace.runs.accept(Submission(session_id=HERD, prompt=str(number)))
            for number in range(count)
        ]
        for run in runs:
            await run.journaled()
        began = time.perf_counter()
        receipt = workspace.runs.cancel(HERD)
        await workspace.runs.accept(Submission(session_id=OTHER, prompt="hello")).wait()
        other = time.perf_counter() - began
        await receipt.settled()
        took = Took(time.perf_counter() - began, other)
        stored = await store.runs(HERD, limit=count + 1)
        assert [run.state for run in stored] == [RunState.CANCELLED] * count, "one is missing"
        return took


async def recovered(folder: Path, count: int) -> Took:
    """Open a workspace in which *count* runs have no ending."""
    async with open_sqlite_store(folder) as store:
        for session_id in (HERD, OTHER):
            await store.commit(SessionCreated(session=Session(id=session_id)))
        await store.commit(*(RunAccepted(run=_accepted(n), prompt=str(n)) for n in range(count)))

    def make_turn(_transcript: Transcript) -> Turn:
        return turns(trio.Event())

    began = time.perf_counter()
    async with (
        open_sqlite_store(folder) as store,
        open_recorded_runs(store, make_turn) as workspace,
    ):
        await workspace.runs.accept(Submission(session_id=OTHER, prompt="hello")).wait()
        other = time.perf_counter() - began
        await workspace.recovery.done.wait()
        assert len(workspace.recovery.ended) == count, "one is missing"
        return Took(time.perf_counter() - began, other)


def _accepted(number: int) -> RunView:
    return RunView(
        id=RunId(f"run-{number}"),
        session_id=HERD,
        state=RunState.ACCEPTED,
        seq=number,
        accepted_at=1,
    )


def main() -> int:
    """Print both times; return whether they grow linearly."""
    missed = False
    for name, measure in (("cancelled prompts", cancelled), ("runs after a crash", recovered)):
        took = []
        for count in (FEW, MANY):
            with tempfile.TemporaryDirectory() as folder:
                took.append(trio.run(measure, Path(folder), count))
                print(
                    f"{count:>6,} {name}: {took[-1].all:5.2f} s;"
                    f" another session's prompt meanwhile: {took[-1].other:.2f} s"
                )
        growth = (took[1].all / MANY) / (took[0].all / FEW)
        print(f"one of {MANY:,} costs {growth:.2f} times one of {FEW:,}; target {TARGET} or less")
        missed = missed or growth > TARGET
    return MISSED if missed else MET


if __name__ == "__main__":
    sys.exit(main())
