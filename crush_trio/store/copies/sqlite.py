"""Copying from and into SQLite files: the file of a data directory, and a backup, which is in no use."""

import os
import sqlite3
import tempfile
from collections.abc import Generator, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from importlib.metadata import version as version_of
from pathlib import Path

from attrs import frozen
from typing_extensions import override

from crush_trio.clock import SystemClock
from crush_trio.store.copies.rows import (
    End,
    NothingToCopy,
    Row,
    RowRefused,
    Rows,
    WorkspaceInTheWay,
)
from crush_trio.store.copies.tables import STARTS, Table, workspace_tables
from crush_trio.store.errors import StoreCorrupt
from crush_trio.store.migrations import missing
from crush_trio.store.sqlite.copies import check_database, connect_to_read, new_file, put_in_place
from crush_trio.store.sqlite.database import DATABASE_NAME
from crush_trio.store.sqlite.directory import Owner, take_lock
from crush_trio.store.sqlite.faults import translated
from crush_trio.store.sqlite.migrations import known_migrations, migrate, version


@frozen
class SqliteRows(Rows):
    """The rows of a file, in an open transaction of *connection*."""

    _path: Path
    _connection: sqlite3.Connection

    @property
    @override
    def label(self) -> str:
        return str(self._path)

    @override
    def read(self, table: Table) -> Generator[Row, None, None]:
        query = (
            f"SELECT {', '.join(table.columns)} FROM {table.name} ORDER BY {', '.join(table.key)}"
        )
        try:
            with translated(self._path), closing(self._connection.execute(query)) as found:
                yield from found
        except sqlite3.OperationalError as exc:  # text that is not UTF-8
            raise StoreCorrupt(f"{table.name} in {self._path} ({exc})") from exc

    @override
    def write(self, table: Table, rows: Iterable[Row]) -> None:
        places = ", ".join("?" * len(table.columns))
        statement = f"INSERT INTO {table.name} ({', '.join(table.columns)}) VALUES ({places})"
        try:
            with translated(self._path):
                self._connection.executemany(statement, rows)
        except (sqlite3.IntegrityError, sqlite3.DataError, OverflowError) as exc:
            raise RowRefused(f"{table.name} in {self.label} ({exc})") from exc


@frozen
class BackupFile(End):
    """A backup: a file that no server uses. It is written to *path*, which must not exist."""

    path: Path

    @property
    @override
    def label(self) -> str:
        return str(self.path)

    @override
    @contextmanager
    def reading(self) -> Iterator[Rows]:
        check_database(self.path)
        with _opened(self.path) as rows:
            yield rows

    @override
    @contextmanager
    def writing(self) -> Iterator[Rows]:
        with new_file(self.path) as part:
            with _made(part) as rows:
                yield rows
            check_database(part)

    @override
    def check_free(self) -> None:
        if os.path.lexists(self.path):
            raise FileExistsError(str(self.path))


@frozen
class DataDirectory(End):
    """The file of a data directory, which is locked while it is copied."""

    path: Path

    @property
    @override
    def label(self) -> str:
        return str(self.path)

    @property
    def _file(self) -> Path:
        return self.path / DATABASE_NAME

    @override
    @contextmanager
    def reading(self) -> Iterator[Rows]:
        if not self._file.exists():
            raise NothingToCopy(str(self._file))
        with self._locked(), _opened(self._file) as rows:
            yield rows

    @override
    @contextmanager
    def writing(self) -> Iterator[Rows]:
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        part = self.path / f"{DATABASE_NAME}.copying"
        with self._locked():
            self._check_empty()
            part.unlink(missing_ok=True)
            try:
                with BackupFile(part).writing() as rows:
                    yield rows
                put_in_place(part, self._file)
            finally:
                part.unlink(missing_ok=True)

    @override
    def check_free(self) -> None:
        if self._file.exists():
            with self._locked():
                self._check_empty()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep servers from the directory; raises `StoreLocked` while one has it."""
        owner = Owner(
            pid=os.getpid(), version=version_of("crush-trio"), started=SystemClock().unix()
        )
        with ExitStack() as stack:
            stack.callback(take_lock(self.path, owner))
            yield

    def _check_empty(self) -> None:
        if not self._file.exists():
            return
        with _opened(self._file) as found:
            for table in workspace_tables():
                if table.name not in STARTS:
                    with closing(found.read(table)) as rows:
                        if next(rows, None) is not None:
                            raise WorkspaceInTheWay(str(self._file))


@contextmanager
def _opened(path: Path) -> Iterator[SqliteRows]:
    """Read a file, at one moment. One of an older version is upgraded in a copy: it stays as it is."""
    with ExitStack() as stack:
        with translated(path):
            found = stack.enter_context(closing(connect_to_read(path)))
            found.isolation_level = None
            if missing(known_migrations(), version(found), path):
                found = stack.enter_context(closing(_upgraded(found, path, stack)))
            found.execute("BEGIN")
        yield SqliteRows(path, found)


def _upgraded(found: sqlite3.Connection, path: Path, stack: ExitStack) -> sqlite3.Connection:
    """Return a copy of a database with the schema of this version; it is removed with *stack*."""
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="crush-trio-"))
    copy = sqlite3.connect(Path(folder) / DATABASE_NAME, isolation_level=None)
    found.backup(copy)
    migrate(copy, path, known_migrations())
    return copy


@contextmanager
def _made(path: Path) -> Iterator[SqliteRows]:
    """Write the new database file *path* in one transaction."""
    with closing(sqlite3.connect(path, isolation_level=None)) as made:
        with translated(path):
            made.execute("PRAGMA synchronous = OFF")  # the whole file is made durable at the end
            migrate(made, path, known_migrations())
            made.execute("BEGIN IMMEDIATE")
        yield SqliteRows(path, made)
        with translated(path):
            if dangling := made.execute("PRAGMA foreign_key_check").fetchone():
                raise RowRefused(f"{dangling[0]} in {path} (it refers to a row that is not there)")
            made.execute("COMMIT")
