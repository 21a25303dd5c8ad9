"""`Reader`: a pool of read-only connections, used by worker threads.

In WAL mode a reader sees the last commit before it began, and neither waits for the writer nor
makes it wait. So reads have a few connections of their own, each used by one thread at a time: a
connection is either in the pool or used by a thread.
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
from crush_trio.store.group_commit import CLOSE_LIMIT
from crush_trio.store.health import Health
from crush_trio.store.sqlite.faults import translated
from crush_trio.store.sqlite.writer import Work

log = logging.getLogger(__name__)

T = TypeVar("T")

READERS: Final = 4

SHORT_READ_TASKS: Final = 2
"""How many groups of short reads run at a time; the other connections are left for long reads."""

GROUP_LIMIT: Final = 16
"""The most short reads in a group."""

CACHE_KIB: Final = 256
"""SQLite's page cache per reader, in KiB. More would not help: SQLite drops it after every write by
another connection, and the operating system caches the file, too."""


@define(eq=False)
class _ShortRead:
    """A short read that is queued or under way; several callers may wait for its result."""

    work: Work[Any]
    ended: trio.Event = field(factory=trio.Event, init=False)
    results: list[Any] = field(factory=list, init=False)
    """The returned value; empty if the read failed: then each caller reads on its own."""


@define(eq=False)
class Reader:
    """Runs reads in worker threads, one per connection. Made by `open_reader`."""

    _path: Path
    _health: Health
    _limiter: trio.CapacityLimiter
    _close_limit: float = CLOSE_LIMIT
    _pool: LifoQueue[sqlite3.Connection] = field(factory=LifoQueue, init=False)
    """Last in, first out: connections that are not needed keep an empty cache."""
    _open: int = field(default=0, init=False)
    _wanted: dict[Hashable, _ShortRead] = field(factory=dict, init=False)
    """Short reads that have not begun, by key."""
    _turn: trio.CapacityLimiter = field(factory=lambda: trio.CapacityLimiter(1), init=False)
    _servers: trio.Nursery = field(init=False)
    _asked: trio.lowlevel.ParkingLot = field(factory=trio.lowlevel.ParkingLot, init=False)

    async def read_soon(self, key: Hashable, work: Work[T]) -> T:
        """Run a short *work* in one group with others that are requested at the same time.

        Switching to a thread and back costs as much as a short read itself. So reads that come
        while the readers are busy run together, in one transaction, and two requests with the same
        *key* share one read. The result is as fresh as that of `read`: only reads that have not
        begun are shared.
        """
        if self._servers.cancel_scope.cancel_called:
            return await self.read(work)  # raises that the store is closed
        wanted = self._wanted.get(key)
        if wanted is None:
            wanted = self._wanted[key] = _ShortRead(work)
            self._asked.unpark()
        await wanted.ended.wait()
        for result in wanted.results:
            return cast("T", result)
        return await self.read(work)

    async def read_in_turn(self, work: Work[T]) -> T:
        """Run *work* when no other call of this method is under way.

        For pages of long lists, which can keep any number of processors busy. One at a time leaves
        the other connections for short requests.
        """
        async with self._turn:
            return await self.read(work)

    async def _serve(self) -> None:
        """Run queued short reads in groups. The body of a task of the reader."""
        try:
            while True:
                while not self._wanted:
                    await self._asked.park()
                await self._serve_group()
        finally:
            while self._wanted:
                self._wanted.popitem()[1].ended.set()

    async def _serve_group(self) -> None:  # noqa: ASYNC910 - a failure was waited for, too
        keys = list(islice(self._wanted, GROUP_LIMIT))
        group = [self._wanted.pop(key) for key in keys]
        try:
            with suppress(Exception):  # each caller then reads on its own and gets its own error
                await self.read(partial(_run_all, group))
        finally:
            for wanted in group:
                wanted.ended.set()

    async def read(self, work: Work[T]) -> T:
        """Run *work* on a read-only connection and return its result.

        All statements of one work see the same snapshot, which includes every write whose
        `transact` has returned. Work must return values, not cursors: the connection goes back to
        the pool.

        Cancelling does not interrupt a read that has begun. Reads are short, and a connection whose
        thread was abandoned in the middle of a statement could not be used again.
        """
        try:
            result = await trio.to_thread.run_sync(self._attempt, work, limiter=self._limiter)
        except StoreUnavailable as exc:
            self._health.failed("read", exc)
            raise
        self._health.succeeded("read")
        return result

    def _attempt(self, work: Work[T]) -> T:
        """Run *work* in its own transaction; called in a worker thread."""
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
        """Close every connection, waiting a limited time for those in use; return whether all are."""
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

    Leaving the block waits for running reads, but no longer than *close_limit* seconds.
    """
    reader = Reader(path, health, trio.CapacityLimiter(count), close_limit)
    try:
        await trio.to_thread.run_sync(reader._fill)
        async with open_hidden_nursery() as servers:
            reader._servers = servers
            for _ in range(min(count, SHORT_READ_TASKS)):
                servers.start_soon(reader._serve)
            try:
                yield reader
            finally:
                servers.cancel_scope.cancel()
    finally:
        with trio.move_on_after(close_limit, shield=True):
            if not await trio.to_thread.run_sync(reader._drain, limiter=trio.CapacityLimiter(1)):
                log.error("store.reader_stuck", extra={"path": str(path)})


def _run_all(group: Iterable[_ShortRead], connection: sqlite3.Connection) -> None:
    """Run a group of reads; called in a worker thread."""
    for wanted in group:
        with suppress(Exception):  # without a result its callers read on their own
            wanted.results.append(wanted.work(connection))


def _connect(path: Path) -> sqlite3.Connection:
    """Open a read-only connection."""
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=ro",
        uri=True,
        isolation_level=None,
        check_same_thread=False,
    )
    connection.execute("PRAGMA query_only = ON")
    connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
    # Opens the write-ahead log, too. Otherwise the first read would, when there may be no file
    # descriptor left, or when the path may be gone.
    connection.execute("PRAGMA user_version").fetchone()
    return connection
