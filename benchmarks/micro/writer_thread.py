"""The gain of the writer thread over one worker-thread call per write.

Ten Trio tasks write rows of 800 bytes, each waiting until its row is committed: once through
`Writer`, which commits in groups, and once with a transaction per row in
`trio.to_thread.run_sync`. Both use the same settings and the same disk in one run. Run it with
`python -m benchmarks.micro.writer_thread`.
"""

import sqlite3
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Final

import trio

from crush_trio.store.health import Health
from crush_trio.store.sqlite.writer import open_writer

TASKS: Final = 10
ROWS: Final = 1_500
ROUNDS: Final = 3
TARGET: Final = 3.0
ROW: Final = "x" * 800

Write = Callable[[], Awaitable[None]]


def insert(connection: sqlite3.Connection) -> None:
    """Write one row."""
    connection.execute("INSERT INTO rows (content) VALUES (?)", (ROW,))


def connect(path: Path) -> sqlite3.Connection:
    """Open a fresh database with the settings of the store."""
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA secure_delete = ON")
    connection.execute("CREATE TABLE rows (n INTEGER PRIMARY KEY, content TEXT NOT NULL) STRICT")
    return connection


async def rows_per_second(write: Write) -> float:
    """Let all tasks write all their rows; return the rows per second."""

    async def task() -> None:
        for _ in range(ROWS):
            await write()

    started = time.perf_counter()
    async with trio.open_nursery() as nursery:
        for _ in range(TASKS):
            nursery.start_soon(task)
    return TASKS * ROWS / (time.perf_counter() - started)


async def writer_thread(path: Path) -> float:
    """Write through the store's writer."""
    async with open_writer(connect(path), path=path, health=Health()) as writer:
        return await rows_per_second(lambda: writer.transact(insert))


async def call_per_row(path: Path) -> float:
    """Write with one worker-thread call and one transaction per row."""
    limiter = trio.CapacityLimiter(1)
    with closing(connect(path)) as connection:

        def transaction() -> None:
            connection.execute("BEGIN IMMEDIATE")
            with connection:
                insert(connection)

        return await rows_per_second(lambda: trio.to_thread.run_sync(transaction, limiter=limiter))


async def measure() -> tuple[float, float]:
    """Return the best rates of the writer thread and of the calls, measured in alternation."""
    ours, theirs = [], []
    with tempfile.TemporaryDirectory() as directory:
        for n in range(ROUNDS):
            ours.append(await writer_thread(Path(directory, f"writer-{n}.db")))
            theirs.append(await call_per_row(Path(directory, f"calls-{n}.db")))
    return max(ours), max(theirs)


def main() -> int:
    """Print both rates and their ratio; return 0 if the target is met, 1 if not."""
    ours, theirs = trio.run(measure)
    ratio = ours / theirs
    print(f"{TASKS} tasks, {len(ROW)}-byte rows, each awaited until committed, best of {ROUNDS}:")
    print(f"  writer thread       {ours:>9,.0f} rows/s")
    print(f"  to_thread per row   {theirs:>9,.0f} rows/s")
    print(f"  ratio               {ratio:>9.1f}  (target: {TARGET:.0f} or more)")
    return 0 if ratio >= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
