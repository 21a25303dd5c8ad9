"""`Database`: one SQLite file in one data directory.

`open_database` takes the directory's lock, migrates the file, and opens a writer and a few readers.
The readers close before the writer, because the last connection to close merges the write-ahead log
into the file, and only the writer can do that. The file is `crush-trio.db`. A `crush.db` in the
same directory belongs to the Go program and is never touched.
"""

import logging
import os
import sqlite3
from collections.abc import AsyncIterator, Hashable, Iterator
from contextlib import ExitStack, asynccontextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Final, Literal, TypeVar

import trio
from attrs import define, evolve, frozen

from crush_trio.clock import Clock, IdSource, RandomIds, SystemClock
from crush_trio.store.base import StoreLoad, StoreWarning
from crush_trio.store.errors import (
    StoreCorrupt,
    StoreFileForeign,
    StoreLost,
)
from crush_trio.store.group_commit import CLOSE_LIMIT, WriteRequest
from crush_trio.store.health import Health
from crush_trio.store.sqlite.directory import (
    LOCK_NAME,
    FilesInPlace,
    Owner,
    Release,
    locking_enabled,
    must_be_own,
    take_lock,
)
from crush_trio.store.sqlite.faults import translated
from crush_trio.store.sqlite.migrations import known_migrations, migrate
from crush_trio.store.sqlite.reader import READERS, Reader, open_reader
from crush_trio.store.sqlite.writer import Work, Writer, open_writer

T = TypeVar("T")

DATABASE_NAME: Final = "crush-trio.db"
COMPANIONS: Final = ("-wal", "-shm", "-journal")
"""What SQLite appends to the name of a database for the files beside it."""

BUSY_TIMEOUT: Final = 30.0

CACHE_KIB: Final = 512
"""SQLite's page cache of the writer, in KiB.

It writes at the ends of its tables, so little is enough.
"""

_CLOCK: Final = SystemClock()
_IDS: Final = RandomIds()

_lost: Final[set[Path]] = set()
"""Data directories that were lost while this process had them open, and were not opened since."""

log = logging.getLogger(__name__)


@define(eq=False)
class Database:
    """An open database: `transact`, `post` and `read` for the modules with the SQL, and its health.

    `boot_id` is the id of this opening of the file; its row in `boots` is the first write. A run
    with another boot id and no ending was interrupted by a crash.
    """

    path: Path
    boot_id: str
    _writer: Writer
    _reader: Reader
    _health: Health
    warning: StoreWarning | None = None
    """Set if this process had a store in the same directory open before and lost it."""

    async def transact(self, work: Work[T]) -> T:
        """Run *work* in a transaction and return its result once committed; see `Writer`."""
        return await self._writer.transact(work)

    def submit(self, work: Work[T]) -> WriteRequest[T]:
        """Hand *work* over to be run in a transaction; see `Writer`."""
        return self._writer.submit(work)

    def post(self, work: Work[object]) -> int:
        """Submit *work* without waiting, in order with everything else; see `Writer`."""
        return self._writer.post(work)

    def abandon(self) -> None:
        """Give up on a disk that does not answer; see `Writer`."""
        self._writer.abandon()

    @property
    def answered(self) -> int:
        """The number of the newest work that the writer has answered."""
        return self._writer.answered

    async def read(self, work: Work[T]) -> T:
        """Run *work* on a read-only connection, at one moment of the store; see `Reader`."""
        return await self._reader.read(work)

    async def read_in_turn(self, work: Work[T]) -> T:
        """Run *work* when no other call of this method is under way; see `Reader`."""
        return await self._reader.read_in_turn(work)

    async def read_soon(self, key: Hashable, work: Work[T]) -> T:
        """Run a short *work* in a group with others; *key* identifies what it reads; see `Reader`."""
        return await self._reader.read_soon(key, work)

    @property
    def degraded(self) -> str | None:
        """What is wrong with the store, or None. Ends with the next success of the same kind."""
        return self._health.degraded

    @property
    def load(self) -> StoreLoad:
        """How much the writer has to do, and the size of the files. Looks at the disk."""
        size = 0
        for ending in ("", *COMPANIONS):
            with suppress(OSError):
                size += os.stat(f"{self.path}{ending}").st_size  # noqa: PTH116 - asked for by every scrape
        return evolve(self._writer.load, size=size)

    async def check(self) -> None:
        """Read the whole file and raise `StoreCorrupt` if anything in it is wrong.

        Takes time in proportion to the file and cannot be cancelled once it runs: it is meant for a
        user's request, not for every start.
        """
        await self.read(self._check)

    def _check(self, connection: sqlite3.Connection) -> None:
        findings = [row[0] for row in connection.execute("PRAGMA integrity_check(10)")]
        if findings != ["ok"]:
            raise StoreCorrupt(f"{self.path} ({'; '.join(findings)})")


@asynccontextmanager
async def open_database(
    directory: Path,
    *,
    synchronous: Literal["NORMAL", "FULL"] = "NORMAL",
    busy_timeout: float = BUSY_TIMEOUT,
    readers: int = READERS,
    close_limit: float = CLOSE_LIMIT,
    clock: Clock = _CLOCK,
    ids: IdSource = _IDS,
) -> AsyncIterator[Database]:
    """Open the database in *directory*, which is created if needed, for this process alone.

    With *synchronous* `NORMAL` a commit survives the end of the process at any instant, but the
    last commits may be lost with a power failure; `FULL` waits for the disk at every commit.
    *busy_timeout* is the number of seconds to wait for another program that has locked the file.

    Opening reads the head of the file and its schema and writes one row, so a file that is damaged
    there, not writable, or too new is refused here. Damage elsewhere is found when it is read; see
    `Database.check`. Raises a `StoreUnavailable` that says what to do.

    Leaving the block writes all posted work before it closes the file and unlocks the directory; it
    waits for a thread that hangs no longer than *close_limit* seconds.
    """
    boot = _Boot(
        path=directory / DATABASE_NAME,
        id=ids.new(),
        owner=Owner(pid=os.getpid(), version=version("crush-trio"), started=clock.unix()),
        in_place=FilesInPlace(directory),
    )
    release, connection = await trio.to_thread.run_sync(boot.open, synchronous, busy_timeout)
    warning = _loss_of(directory) if directory in _lost else None
    health = Health()
    writer: Writer | None = None
    try:
        async with (
            open_writer(
                connection,
                path=boot.path,
                health=health,
                close_limit=close_limit,
                check=boot.in_place.check,
            ) as writer,
            open_reader(boot.path, health=health, count=readers, close_limit=close_limit) as reader,
        ):
            yield Database(boot.path, boot.id, writer, reader, health, warning)
    finally:
        if boot.in_place.lost:
            _lost.add(directory)
        # A writer that hangs may still write, so the directory stays locked until the process ends.
        if writer is None or writer.stopped:
            release()


def _loss_of(directory: Path) -> StoreWarning:
    """Return the warning that *directory* was lost before, once."""
    _lost.discard(directory)
    text = (
        f"the data directory {directory} was removed, moved or replaced while it was in use; this"
        " store has only what was found there when it was opened again"
    )
    log.warning("store.data_directory_lost", extra={"path": str(directory), "text": text})
    return StoreWarning(StoreLost.code, text)


@frozen(kw_only=True)
class _Boot:
    """One opening of a database file, until its connection is handed to the writer."""

    path: Path
    id: str
    owner: Owner
    in_place: FilesInPlace

    def open(self, synchronous: str, busy_timeout: float) -> tuple[Release, sqlite3.Connection]:
        """Lock the directory and return a connection that is ready to write; called in a thread."""
        _make_directory(self.path.parent)
        with ExitStack() as undo:
            release = take_lock(self.path.parent, self.owner)
            undo.callback(release)
            connection = _connect(self.path, busy_timeout)
            undo.callback(connection.close)
            with translated(self.path):
                self._prepare(connection, synchronous)
                self.in_place.remember(*self._files())
            undo.pop_all()
            return release, connection

    def _files(self) -> Iterator[Path]:
        yield self.path
        yield self.path.with_name(f"{DATABASE_NAME}-wal")
        if locking_enabled():
            yield self.path.with_name(LOCK_NAME)

    def _prepare(self, connection: sqlite3.Connection, synchronous: str) -> None:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA synchronous = {synchronous}")
        connection.execute("PRAGMA secure_delete = ON")
        connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        migrate(connection, self.path, known_migrations())
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute(
            "INSERT INTO boots (id, started_at, holder) VALUES (?, ?, ?)",
            (self.id, self.owner.started, self.owner.row()),
        )


def _make_directory(directory: Path) -> None:
    """Create the data directory, readable by its owner only and ignored by git."""
    with translated(directory):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        _create(directory / ".gitignore", b"*\n", mode=0o644)


def _create(path: Path, content: bytes = b"", *, mode: int = 0o600) -> None:
    """Create a file unless there is something of that name; follows no link, not even a dangling one.

    An existing file is not opened: closing it again would drop SQLite's locks on it.
    """
    with suppress(FileExistsError):
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        try:
            os.write(handle, content)
        finally:
            os.close(handle)


def _connect(path: Path, busy_timeout: float) -> sqlite3.Connection:
    """Open the write connection, which the writer's thread will own.

    SQLite resolves links in the path of the main file, and may wait for a pipe in place of the
    others. So all of them are checked first, and afterwards that the main file is still the same.
    """
    with translated(path):
        _create(path)
        before = path.lstat()
        must_be_own(path, *(path.with_name(path.name + ending) for ending in COMPANIONS))
        connection = sqlite3.connect(
            path, timeout=busy_timeout, isolation_level=None, check_same_thread=False
        )
        if not os.path.samestat(before, path.lstat()):
            connection.close()
            raise StoreFileForeign(f"{path} was replaced while it was opened")
        return connection
