"""Reading, beside the writer and never in its way.

In WAL mode a reader sees the last commit that came before it began and neither waits for the writer
nor makes it wait. So reads go to a few read-only connections of their own, each used by one worker
thread at a time; a connection is in the pool or in a thread's hands, never both.
"""

import logging
import sqlite3
from collections.abc import AsyncIterator, Hashable, Iterable
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from queue import Empty, LifoQueue
from typing import Any, Final, TypeVar, cast

import trio
from attrs import define, field

from crush_trio.nursery import open_hidden_nursery
from crush_trio.store.errors import StoreFailed, StoreUnavailable
from crush_trio.store.sqlite.faults import Health, translated
from crush_trio.store.sqlite.writer import CLOSE_LIMIT, Work

log = logging.getLogger(__name__)

T = TypeVar("T")

READERS: Final = 4

SERVERS: Final = 2
"""How many groups of short reads are under way at a time; the other connections are for long ones."""

TOGETHER: Final = 16
"""Short reads in a group at most."""

PAGES: Final = 256
"""Kilobytes of the file that a reader keeps in memory. More would not serve it: whenever somebody has
written, SQLite drops all of them, and the operating system has the file in memory too."""


@define(eq=False)
class _Wanted:
    """A short read that waits for its turn, or is under way, and those who want its result."""

    work: Work[Any]
    ended: trio.Event = field(factory=trio.Event, init=False)
    results: list[Any] = field(factory=list, init=False)
    """What it returned; nothing if it failed: then each caller reads by itself."""


@define(eq=False)
class Reader:
    """Runs reads in worker threads, as many at a time as there are connections. See `open_reader`."""

    _path: Path
    _health: Health
    _limiter: trio.CapacityLimiter
    _close_limit: float = CLOSE_LIMIT
    _pool: LifoQueue[sqlite3.Connection] = field(factory=LifoQueue, init=False)
    """The one used last is used next, so that those nobody needs stay as small as they were opened."""
    _open: int = field(default=0, init=False)
    _wanted: dict[Hashable, _Wanted] = field(factory=dict, init=False)
    """Short reads that have not begun, by what they read."""
    _turn: trio.CapacityLimiter = field(factory=lambda: trio.CapacityLimiter(1), init=False)
    _servers: trio.Nursery = field(init=False)
    _asked: trio.lowlevel.ParkingLot = field(factory=trio.lowlevel.ParkingLot, init=False)

    async def read_soon(self, key: Hashable, work: Work[T]) -> T:
        """Run *work*, which is short, together with others that are wanted at the same time.

        Going to a thread and back costs as much as a short read itself. So those that come while the
        readers are busy go together, in one transaction, and what is wanted twice under the same
        *key* is read once. The result is as fresh as that of `read`: what is shared has not begun.
        """
        if self._servers.cancel_scope.cancel_called:
            return await self.read(work)  # which says that the store is closed
        wanted = self._wanted.get(key)
        if wanted is None:
            wanted = self._wanted[key] = _Wanted(work)
            self._asked.unpark()
        await wanted.ended.wait()
        for result in wanted.results:
            return cast("T", result)
        return await self.read(work)

    async def read_in_turn(self, work: Work[T]) -> T:
        """Run *work*, one of many of the same kind, when no other such work is under way.

        Reading long lists can keep any number of processors busy. One at a time leaves the others for
        short requests.
        """
        async with self._turn:
            return await self.read(work)

    async def _serve(self) -> None:
        """Do the short reads, as many together as have gathered. A task of the reader's own."""
        try:
            while True:
                while not self._wanted:
                    await self._asked.park()
                await self._serve_group()
        finally:
            while self._wanted:
                self._wanted.popitem()[1].ended.set()

    async def _serve_group(self) -> None:  # noqa: ASYNC910 - a failure was waited for, too
        keys = list(islice(self._wanted, TOGETHER))
        group = [self._wanted.pop(key) for key in keys]
        try:
            with suppress(Exception):  # each caller then reads by itself and meets it again
                await self.read(partial(_do_all, group))
        finally:
            for wanted in group:
                wanted.ended.set()

    async def read(self, work: Work[T]) -> T:
        """Run *work* on a read-only connection and return its result.

        All statements of one work see the same moment of the store, and every write whose `transact`
        has returned. Return values, not cursors: the connection goes to somebody else.

        Cancelling does not interrupt a read that has begun. Reads are short, and a connection whose
        thread was abandoned in mid-statement could not be handed on.
        """
        try:
            result = await trio.to_thread.run_sync(self._attempt, work, limiter=self._limiter)
        except StoreUnavailable as exc:
            self._health.trouble("read", exc)
            raise
        self._health.well("read")
        return result

    def _attempt(self, work: Work[T]) -> T:
        """Run *work* in a transaction of its own; called in a worker thread."""
        try:
            connection = self._pool.get_nowait()
        except Empty:  # the limiter admits no more threads than there were connections
            raise StoreFailed(f"{self._path} is closed") from None
        try:
            with translated(self._path), connection:
                connection.execute("BEGIN")
                return work(connection)
        finally:
            self._pool.put(connection)

    def _fill(self) -> None:
        with translated(self._path):
            while self._open < self._limiter.total_tokens:
                self._pool.put(_connect(self._path))
                self._open += 1

    def _drain(self) -> bool:
        """Close every connection; one that is still in use is waited for, within limits."""
        with suppress(Empty):
            while self._open:
                self._pool.get(timeout=self._close_limit).close()
                self._open -= 1
        return self._open == 0


@asynccontextmanager
async def open_reader(
    path: Path, *, health: Health, count: int = READERS, close_limit: float = CLOSE_LIMIT
) -> AsyncIterator[Reader]:
    """Open *count* read-only connections to the database at *path*, which must exist.

    On leaving, a read that is still running is waited for, but no longer than *close_limit* seconds.
    """
    reader = Reader(path, health, trio.CapacityLimiter(count), close_limit)
    try:
        await trio.to_thread.run_sync(reader._fill)
        async with open_hidden_nursery() as servers:
            reader._servers = servers
            for _ in range(min(count, SERVERS)):
                servers.start_soon(reader._serve)
            try:
                yield reader
            finally:
                servers.cancel_scope.cancel()
    finally:
        with trio.move_on_after(close_limit, shield=True):
            if not await trio.to_thread.run_sync(reader._drain, limiter=trio.CapacityLimiter(1)):
                log.error("store.reader_stuck", extra={"path": str(path)})


def _do_all(group: Iterable[_Wanted], connection: sqlite3.Connection) -> None:
    """Do a group of reads, each for itself; called in a worker thread."""
    for wanted in group:
        with suppress(Exception):  # it has no result then
            wanted.results.append(wanted.work(connection))


def _connect(path: Path) -> sqlite3.Connection:
    """Open a connection that cannot write, neither by its mode nor by its own decision."""
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=ro",
        uri=True,
        isolation_level=None,
        check_same_thread=False,
    )
    connection.execute("PRAGMA query_only = ON")
    connection.execute(f"PRAGMA cache_size = -{PAGES}")
    # Opens the write-ahead log too, which would otherwise be done by the first read: there may be no
    # descriptor left then, or no such path.
    connection.execute("PRAGMA user_version").fetchone()
    return connection
