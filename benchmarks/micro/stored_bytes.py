"""The bytes that are written to store an answer while it grows.

An answer of n tokens arrives in small flushes, each committed on its own. If every flush wrote the
whole message again, ten times the tokens would cost a hundred times the bytes; here they should
cost about ten times. Three things are counted: what SQLite is given (statements with their values),
what it writes to its log (whole pages), and by how much the database has grown in the end. Run it
with `python -m benchmarks.micro.stored_bytes`.
"""

import sqlite3
import sys
import tempfile
from pathlib import Path
from typing import Final

import trio
from attrs import frozen

from benchmarks.micro.timing import MET, MISSED
from crush_trio.store.changes import (
    MessageCreated,
    MessageFinished,
    PartPut,
    SessionCreated,
    TextAppended,
)
from crush_trio.store.sqlite.database import Database, open_database
from crush_trio.store.sqlite.store import SqliteStore
from crush_trio.wire.ids import MessageId, SessionId
from crush_trio.wire.messages import FinishPart, FinishReason, Message, Role, TextPart
from crush_trio.wire.views import Session

SMALL: Final = 1_000
LARGE: Final = 10_000
TOKENS_PER_FLUSH: Final = 12
FLUSHES_PER_SECOND: Final = 30
TOKEN: Final = "word "
LIMIT: Final = 12.0

SESSION: Final = SessionId("session")
MESSAGE: Final = MessageId("message")


@frozen
class Bytes:
    """The counts for storing one answer."""

    given: int
    logged: int
    grown: int

    def ratios(self, other: "Bytes") -> dict[str, float]:
        """Return the ratios to *other*, by kind of count."""
        return {
            "given to SQLite": self.given / other.given,
            "written to the log": self.logged / other.logged,
            "growth of the file": self.grown / other.grown,
        }


async def store_answer(store: SqliteStore, tokens: int) -> None:
    """Store an answer of so many tokens, flush by flush."""
    await store.commit(
        MessageCreated(
            message=Message(
                id=MESSAGE, role=Role.ASSISTANT, session_id=SESSION, parts=(TextPart(text=""),)
            )
        )
    )
    at = 0
    for flush, left in enumerate(range(tokens, 0, -TOKENS_PER_FLUSH)):
        at = flush // FLUSHES_PER_SECOND
        text = TOKEN * min(left, TOKENS_PER_FLUSH)
        await store.commit(TextAppended(message_id=MESSAGE, index=0, text=text, at=at))
    finish = FinishPart(reason=FinishReason.END_TURN, time=at)
    await store.commit(
        PartPut(message_id=MESSAGE, index=1, part=finish, at=at),
        MessageFinished(message_id=MESSAGE, at=at),
    )


async def count_given(database: Database) -> list[int]:
    """Return a list that collects the size of every statement from now on, values included."""
    sizes: list[int] = []

    def begin(connection: sqlite3.Connection) -> None:
        connection.set_trace_callback(lambda statement: sizes.append(len(statement.encode())))

    await database.transact(begin)
    return sizes


async def keep_log(database: Database) -> None:
    """Turn checkpoints off, so that the size of the log is the sum of all writes."""
    await database.transact(lambda connection: connection.execute("PRAGMA wal_autocheckpoint = 0"))


def size(path: Path) -> int:
    """Return the size of a file."""
    return path.stat().st_size


async def measure(tokens: int) -> Bytes:
    """Count the bytes of one answer in a fresh database."""
    with tempfile.TemporaryDirectory() as directory:
        async with open_database(Path(directory)) as database:
            store = SqliteStore(database)
            await store.commit(SessionCreated(session=Session(id=SESSION)))
        before = size(database.path)
        async with open_database(Path(directory)) as database:
            store = SqliteStore(database)
            await keep_log(database)
            log = Path(f"{database.path}-wal")
            already = size(log)
            sizes = await count_given(database)
            await store_answer(store, tokens)
            given, logged = sum(sizes), size(log) - already
        return Bytes(given, logged, size(database.path) - before)


def main() -> int:
    """Print the counts and their ratios; return `MISSED` if one is above the limit."""
    small, large = trio.run(measure, SMALL), trio.run(measure, LARGE)
    ratios = large.ratios(small)
    print(
        f"answers of {SMALL:,} and {LARGE:,} tokens, {TOKENS_PER_FLUSH} tokens per flush, in bytes:"
    )
    for name, ratio, few, many in zip(
        ratios,
        ratios.values(),
        (small.given, small.logged, small.grown),
        (large.given, large.logged, large.grown),
        strict=True,
    ):
        print(f"  {name:<20} {few:>11,} {many:>13,}   ratio {ratio:>5.1f}")
    print(f"  (target: {LIMIT:.0f} or less)")
    return MISSED if max(ratios.values()) > LIMIT else MET


if __name__ == "__main__":
    sys.exit(main())
