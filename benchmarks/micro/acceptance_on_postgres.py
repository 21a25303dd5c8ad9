"""The cost of an acceptance that is stored on PostgreSQL, against SQLite with `synchronous=FULL`.

An acceptance is a run and its prompt in one commit, whose result is the session; both databases wait
for the disk at every commit. Tasks that write to sessions of their own accept one after the other: 1,
16 and 64 at once. Both stores are measured in alternation in one run, in wall-clock time, because the
work is done in other processes. `CRUSH_TRIO_TEST_POSTGRES` names a server; else the packaged one of the
tests is started. Run it with `python -m benchmarks.micro.acceptance_on_postgres`.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Final

import trio

from benchmarks.micro.timing import Ratio, report
from crush_trio.store.base import Store
from crush_trio.store.changes import MessageCreated, RunAccepted, SessionCreated
from crush_trio.store.postgres.opening import open_postgres_store
from crush_trio.store.sqlite.store import open_sqlite_store
from crush_trio.wire.ids import MessageId, RunId, SessionId
from crush_trio.wire.messages import FinishPart, FinishReason, Message, Role, TextPart
from crush_trio.wire.runs import RunState, RunView
from crush_trio.wire.views import Session

AT_ONCE: Final = (1, 16, 64)
ACCEPTANCES: Final = {1: 200, 16: 40, 64: 15}
"""How many each task makes in a round."""
ROUNDS: Final = 5
PROMPT: Final = "x" * 400
_numbers: Final = count(1)


def session_of(task: int) -> SessionId:
    """Return the id of the session of a task."""
    return SessionId(f"s{task}")


async def accept(store: Store, session_id: SessionId) -> None:
    """Store one acceptance and wait until it is durable."""
    number = next(_numbers)
    run = RunView(
        id=RunId(f"r{number}"),
        session_id=session_id,
        state=RunState.ACCEPTED,
        seq=number,
        accepted_at=100,
    )
    parts = (TextPart(text=PROMPT), FinishPart(reason=FinishReason.STOP, time=0))
    message = Message(
        id=MessageId(run.id),
        role=Role.USER,
        session_id=session_id,
        parts=parts,
        created_at=100,
        updated_at=100,
    )
    await store.submit(
        RunAccepted(run=run, prompt=PROMPT),
        MessageCreated(message=message, run_id=run.id, if_there=True),
        session=session_id,
    ).wait()


async def seconds_each(store: Store, tasks: int) -> float:
    """Return the seconds per acceptance with so many tasks at once."""

    async def task(number: int) -> None:
        for _ in range(ACCEPTANCES[tasks]):
            await accept(store, session_of(number))

    began = time.perf_counter()
    async with trio.open_nursery() as nursery:
        for number in range(tasks):
            nursery.start_soon(task, number)
    return (time.perf_counter() - began) / (tasks * ACCEPTANCES[tasks])


async def measure(url: str, directory: Path) -> dict[int, tuple[list[float], list[float]]]:
    """Return the times on SQLite and on PostgreSQL, round by round."""
    found: dict[int, tuple[list[float], list[float]]] = {tasks: ([], []) for tasks in AT_ONCE}
    async with (
        open_sqlite_store(directory, synchronous="FULL") as sqlite,
        open_postgres_store(url, directory, site="benchmark") as postgres,
    ):
        for store in (sqlite, postgres):
            for task in range(max(AT_ONCE)):
                session = Session(id=session_of(task), created_at=100, updated_at=100)
                await store.commit(SessionCreated(session=session))
        for _ in range(ROUNDS):
            for tasks, (theirs, ours) in found.items():
                theirs.append(await seconds_each(sqlite, tasks))
                ours.append(await seconds_each(postgres, tasks))
    return found


@contextmanager
def server() -> Iterator[str]:
    """Yield the URL of a database that can be written."""
    if url := os.environ.get("CRUSH_TRIO_TEST_POSTGRES"):
        yield url
        return
    command = [sys.executable, "-m", "tests.store.postgres.server"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()


def main() -> int:
    """Print the times per acceptance and their ratios, which have no target."""
    with tempfile.TemporaryDirectory() as directory, server() as url:
        found = trio.run(measure, url, Path(directory))
    ratios = [
        Ratio(name=f"{tasks} at once", small=sqlite, large=postgres)
        for tasks, (sqlite, postgres) in found.items()
    ]
    return report(
        "an acceptance stored in SQLite (FULL) and in PostgreSQL, per acceptance:", ratios
    )


if __name__ == "__main__":
    sys.exit(main())
