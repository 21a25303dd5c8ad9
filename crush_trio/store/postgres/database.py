"""`PostgresDatabase`: what all workspaces of a process share of one database.

One writer thread for all workspaces, and a few connections for reads. The first store of a URL opens it
and migrates the schema, the last one closes it. It has no task of its own.
"""

import math
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from importlib.metadata import version
from queue import Empty, LifoQueue
from socket import gethostname
from typing import Final, TypeVar

import psycopg
import trio
from attrs import define, field, frozen

from crush_trio.clock import Clock
from crush_trio.store.errors import StoreFailed, StoreUnavailable
from crush_trio.store.health import Health
from crush_trio.store.postgres.connection import (
    BEGIN_READ,
    LEASE_SECONDS,
    Connection,
    Reconnector,
    connect,
    suitable,
)
from crush_trio.store.postgres.faults import broken, ends_connection, translate
from crush_trio.store.postgres.lease import Holder
from crush_trio.store.postgres.migrations import known_migrations, migrate
from crush_trio.store.postgres.place import Place
from crush_trio.store.postgres.transaction import ReadWork, Transaction
from crush_trio.store.postgres.writer import PostgresWriter, open_writer

T = TypeVar("T")

MEASURE_SECONDS: Final = 1.0
"""Seconds that a look at the size of the database may take."""

MEASURE_PAUSE: Final = 60.0
"""Seconds for which a size counts as known."""

READERS: Final = 4
"""How many connections for reads there are at most; each is opened when it is first needed."""

IDLE_LIMIT: Final = 60.0
"""Seconds after which a connection for reads that was not used is replaced by a new one: routers and
proxies forget silent connections."""


@define(eq=False)
class Readers:
    """A few connections for reads, each used by one thread at a time."""

    _place: Place
    _reconnector: Reconnector
    _limiter: trio.CapacityLimiter
    _pool: LifoQueue[tuple[Connection, float]] = field(factory=LifoQueue, init=False)
    _turn: trio.CapacityLimiter = field(factory=lambda: trio.CapacityLimiter(1), init=False)
    _closed: bool = field(default=False, init=False)

    async def read(self, workspace: int, work: ReadWork[T], health: Health) -> T:
        """Run *work* at one moment of the workspace and return its result.

        It sees every write that was answered. Cancelling waits for a read that has begun.
        """
        return await self.call(lambda c: _read(c, workspace, work), health)

    async def read_in_turn(self, workspace: int, work: ReadWork[T], health: Health) -> T:
        """Read when no other call of this method is under way: for long lists and searches."""
        async with self._turn:
            return await self.read(workspace, work, health)

    async def call(
        self,
        work: Callable[[Connection], T],
        health: Health | None = None,
        *,
        abandon: bool = False,
    ) -> T:
        """Run *work*, which begins and ends its own transactions, with a connection.

        If a connection that was used before turns out to be broken, *work* is run again on a new
        one: it must not mind. Cancelling waits for it, unless it may be *abandoned*.
        """
        try:
            result = await trio.to_thread.run_sync(
                self._attempt, work, limiter=self._limiter, abandon_on_cancel=abandon
            )
        except StoreUnavailable as exc:
            if health is not None:
                health.failed("read", exc)
            raise
        if health is not None:
            health.succeeded("read")
        return result

    def _attempt(self, work: Callable[[Connection], T]) -> T:
        while True:
            connection, used = self._take()
            try:
                return work(connection)
            except psycopg.OperationalError as exc:
                if used and (connection.closed or ends_connection(exc)):
                    continue
                fault = broken(exc, self._place)
                raise fault from fault.__cause__
            except psycopg.Error as exc:
                fault_or_bug = translate(exc, self._place)
                if fault_or_bug is exc:
                    raise
                raise fault_or_bug from fault_or_bug.__cause__
            finally:
                self._put(connection)

    def _take(self) -> tuple[Connection, bool]:
        """Return a connection, and whether it was used before."""
        if self._closed:
            raise StoreFailed(f"{self._place.label} is closed")
        with suppress(Empty):
            while True:
                connection, since = self._pool.get_nowait()
                if time.monotonic() - since < IDLE_LIMIT:
                    return connection, True
                connection.close()
        return self._reconnector.connect(), False

    def _put(self, connection: Connection) -> None:
        if not connection.closed and not self._closed:
            with suppress(psycopg.Error):
                if connection.info.transaction_status is not psycopg.pq.TransactionStatus.IDLE:
                    connection.execute(b"ROLLBACK")
                self._pool.put((connection, time.monotonic()))
                return
        connection.close()

    def close(self) -> None:
        """Close all connections; one that is in use is closed when it comes back."""
        self._closed = True
        with suppress(Empty):
            while True:
                self._pool.get_nowait()[0].close()


def _read(connection: Connection, workspace: int, work: ReadWork[T]) -> T:
    connection.execute(BEGIN_READ.encode())
    result = work(Transaction(connection, workspace))
    connection.execute(b"COMMIT")
    return result


def _size(connection: Connection) -> int:
    connection.execute(BEGIN_READ.encode())
    row = connection.execute(b"SELECT pg_database_size(current_database())").fetchone()
    connection.execute(b"COMMIT")
    return 0 if row is None else int(row[0])


@define
class _Measured:
    """The size of the database when it was last looked up, and until when that is good enough."""

    size: int = 0
    until: float = 0.0


@frozen(kw_only=True, eq=False)
class PostgresDatabase:
    """An open database, shared by the stores of this process. Made by `open_database`."""

    place: Place
    node_id: str
    """The id of this opening; leases name it."""
    holder: Holder
    writer: PostgresWriter
    readers: Readers
    keeper: Readers
    """One connection for leases, so that a renewal never waits for a long read."""
    _measured: _Measured = field(factory=_Measured, init=False)

    @property
    def size(self) -> int:
        """The bytes of the database as last measured; 0 before."""
        return self._measured.size

    async def measure(self) -> None:
        """Look up the size of the database, unless that was done a short time ago.

        A database that does not answer keeps the size that it had: who asks for metrics does not wait for it.
        """
        await trio.lowlevel.checkpoint()
        now = trio.current_time()
        if now < self._measured.until:
            return
        self._measured.until = now + MEASURE_PAUSE
        with trio.move_on_after(MEASURE_SECONDS), suppress(StoreUnavailable):
            self._measured.size = await self.readers.call(_size, abandon=True)


@asynccontextmanager
async def open_database(
    place: Place, *, node_id: str, clock: Clock
) -> AsyncIterator[PostgresDatabase]:
    """Connect, migrate the schema, and start the writer.

    Raises a `StoreUnavailable` that says what to do. Leaving the block writes all posted work before
    it closes the connections; it waits for a thread that hangs no longer than `CLOSE_LIMIT` seconds.
    """
    holder = Holder(
        host=gethostname(), pid=os.getpid(), version=version("crush-trio"), started=clock.unix()
    )
    readers = Readers(place, Reconnector(place), trio.CapacityLimiter(READERS))
    connect_keeper = partial(connect, limit=LEASE_SECONDS)
    keeper = Readers(place, Reconnector(place, connect_keeper), trio.CapacityLimiter(1))
    connection = await trio.to_thread.run_sync(_prepare, place)
    try:
        async with open_writer(
            connection, place, writer_id=node_id, reconnector=Reconnector(place)
        ) as writer:
            yield PostgresDatabase(
                place=place,
                node_id=node_id,
                holder=holder,
                writer=writer,
                readers=readers,
                keeper=keeper,
            )
    finally:
        readers.close()
        keeper.close()


def _prepare(place: Place) -> Connection:
    """Return a connection to a database that has this program's schema; called in a thread."""
    connection = connect(place)
    try:
        suitable(connection, place)
        silence, connection.silence = connection.silence, math.inf
        migrate(connection, place, known_migrations())  # a step may take long
        connection.silence = silence
    except BaseException:
        connection.close()
        raise
    return connection


# ── One for all stores of a process ─────────────────────────────────────────────────────────────


@define(eq=False)
class _Shared:
    """A database in use, and by how many stores."""

    lock: trio.Lock = field(factory=trio.Lock)
    users: int = 0
    database: PostgresDatabase | None = None
    stack: AsyncExitStack = field(factory=AsyncExitStack)


_shared: "trio.lowlevel.RunVar[dict[str, _Shared]]" = trio.lowlevel.RunVar("crush-trio-databases")


@asynccontextmanager
async def shared_database(
    place: Place, *, make_id: Callable[[], str], clock: Clock
) -> AsyncIterator[PostgresDatabase]:
    """Open the database of *place*, or use the one that another store of this Trio run has open."""
    try:
        all_shared = _shared.get()
    except LookupError:
        all_shared = {}
        _shared.set(all_shared)
    shared = all_shared.setdefault(place.url, _Shared())
    shared.users += 1
    try:
        async with shared.lock:
            if shared.database is None:
                opening = open_database(place, node_id=make_id(), clock=clock)
                shared.database = await shared.stack.enter_async_context(opening)
        yield shared.database
    finally:
        shared.users -= 1
        if not shared.users:
            if all_shared.get(place.url) is shared:
                del all_shared[place.url]
            with trio.CancelScope(shield=True):  # bounded by the limits of the parts
                await shared.stack.aclose()
