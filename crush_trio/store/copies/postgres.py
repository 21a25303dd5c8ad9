"""Copying from and into a workspace of a PostgreSQL database.

One transaction reads or writes the whole workspace. It locks the row of the lease, so that no server can
begin to use the workspace meanwhile; a backup reads one moment and locks nothing.
"""

import math
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from typing import Final

import psycopg
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
from crush_trio.store.copies.tables import FIRST, STARTS, Table, workspace_tables
from crush_trio.store.errors import StoreLocked, StoreUnsuitable
from crush_trio.store.migrations import missing
from crush_trio.store.postgres.connection import WRITE_SECONDS, Connection, connect, suitable
from crush_trio.store.postgres.faults import translated
from crush_trio.store.postgres.lease import describe
from crush_trio.store.postgres.migrations import known_migrations, migrate, version
from crush_trio.store.postgres.place import Place
from crush_trio.store.postgres.workspaces import WorkspaceKey, register

ROWS_AT_A_TIME: Final = 20
"""Rows that are in memory at a time; one may be as large as a file."""

_LIMITS: Final = (
    "; SET LOCAL statement_timeout = 0; SET LOCAL idle_in_transaction_session_timeout = 0"
    f"; SET LOCAL lock_timeout = {WRITE_SECONDS}000"
)
_BEGIN_LIVE: Final = f"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY{_LIMITS}".encode()
_BEGIN_READ: Final = f"BEGIN ISOLATION LEVEL REPEATABLE READ READ WRITE{_LIMITS}".encode()
_BEGIN_WRITE: Final = f"BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE{_LIMITS}".encode()

_FIND: Final = b"SELECT number FROM workspaces WHERE site = %(site)s AND path = %(path)s"
_LOCK: Final = b"""
    SELECT expires_at > clock_timestamp(), holder FROM leases WHERE workspace = %(w)s FOR NO KEY UPDATE
"""
_FENCE: Final = b"UPDATE leases SET epoch = epoch + 1 WHERE workspace = %(w)s"
"""Nothing more is written by a server that had the workspace and was suspended until its lease expired."""


@frozen
class PostgresRows(Rows):
    """The rows of a workspace, in an open transaction of *connection*."""

    label: str
    _place: Place
    _connection: Connection
    _workspace: int

    @override
    def read(self, table: Table) -> Generator[Row, None, None]:
        query = (
            f"SELECT {', '.join(table.columns)} FROM {table.name} WHERE workspace = %(w)s"
            f" ORDER BY {', '.join(table.key)}"
        )
        with translated(self._place), self._connection.cursor(f"rows_of_{table.name}") as found:
            found.itersize = ROWS_AT_A_TIME
            found.execute(query.encode(), {"w": self._workspace})
            for row in found:
                yield tuple(int(value) if type(value) is bool else value for value in row)

    @override
    def write(self, table: Table, rows: Iterable[Row]) -> None:
        statement = f"COPY {table.name} (workspace, {', '.join(table.columns)}) FROM STDIN"
        try:
            with translated(self._place), self._connection.cursor() as cursor:
                try:
                    with cursor.copy(statement.encode()) as copy:
                        for row in rows:
                            copy.write_row((self._workspace, *row))
                except (
                    psycopg.errors.ProgramLimitExceeded
                ) as exc:  # a value is too long for an index
                    raise self._refused(table.name, exc) from exc
        except psycopg.Error as exc:
            raise self._refused(table.name, exc) from exc

    def check_references(self) -> None:
        """Raise `RowRefused` if a row refers to one that is not there."""
        try:
            with translated(self._place):
                self._connection.execute(b"SET CONSTRAINTS ALL IMMEDIATE")
        except psycopg.Error as exc:
            raise self._refused(FIRST, exc) from exc

    def _refused(self, table: str, exc: psycopg.Error) -> RowRefused:
        return RowRefused(f"{table} in {self.label} ({' '.join(str(exc).split())})")


@frozen
class PostgresWorkspace(End):
    """A workspace of a database. A *live* one may be in use while it is read."""

    _place: Place
    _key: WorkspaceKey
    _live: bool = False

    @property
    @override
    def label(self) -> str:
        return f"{self._key.path} of site {self._key.site} in {self._place.label}"

    @override
    @contextmanager
    def reading(self) -> Iterator[Rows]:
        with self._connected() as connection:
            with translated(self._place):
                applied = version(connection)
                if not applied:
                    raise NothingToCopy(self.label)
                if missing(known_migrations(), applied, self._place.label):
                    raise StoreUnsuitable(
                        f"{self._place.label} has schema {applied} of an older version; start a server"
                        " of this version on it once, which upgrades it"
                    )
                connection.execute(_BEGIN_LIVE if self._live else _BEGIN_READ)
                number = self._find(connection)
                if number is None:
                    raise NothingToCopy(self.label)
                if not self._live:
                    self._keep(connection, number)
            yield self._rows(connection, number)

    @override
    @contextmanager
    def writing(self) -> Iterator[Rows]:
        with self._connected() as connection:
            suitable(connection, self._place)
            migrate(connection, self._place, known_migrations())
            with translated(self._place):
                # Before the transaction: a server that registers the same workspace does not wait for it.
                number = register(connection, self._key, SystemClock().unix())
                connection.execute(_BEGIN_WRITE)
                self._keep(connection, number)
                rows = self._rows(connection, number)
                self._check_empty(rows)
                connection.execute(_FENCE, {"w": number})
                connection.execute(b"SET CONSTRAINTS ALL DEFERRED")
                for table in STARTS:
                    connection.execute(
                        f"DELETE FROM {table} WHERE workspace = %(w)s".encode(), {"w": number}
                    )
            yield rows
            rows.check_references()
            with translated(self._place):
                connection.execute(b"COMMIT")

    @override
    def check_free(self) -> None:
        with self._connected() as connection, translated(self._place):
            if missing(known_migrations(), version(connection), self._place.label):
                return  # it will be upgraded; nothing can be said about its rows before
            connection.execute(_BEGIN_READ)
            number = self._find(connection)
            if number is not None:
                self._keep(connection, number)
                self._check_empty(self._rows(connection, number))

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        """Connect; closing without a commit takes everything back."""
        with closing(connect(self._place, math.inf)) as connection:
            yield connection

    def _rows(self, connection: Connection, number: int) -> PostgresRows:
        return PostgresRows(self.label, self._place, connection, number)

    def _find(self, connection: Connection) -> int | None:
        values = {"site": self._key.site, "path": self._key.path}
        row = connection.execute(_FIND, values).fetchone()
        return None if row is None else int(row[0])

    def _keep(self, connection: Connection, number: int) -> None:
        """Keep servers from the workspace until the transaction ends; raises `StoreLocked`."""
        row = connection.execute(_LOCK, {"w": number}).fetchone()
        if row is not None and row[0]:
            raise StoreLocked(f"{self.label} belongs to {describe(row[1])}")

    def _check_empty(self, rows: PostgresRows) -> None:
        for table in workspace_tables():
            if table.name not in STARTS:
                with closing(rows.read(table)) as found:
                    if next(found, None) is not None:
                        raise WorkspaceInTheWay(self.label)


def workspace_end(url: str, site: str, directory: str, *, live: bool) -> PostgresWorkspace:
    """Return the workspace of a directory; a *live* one may be in use while it is read."""
    return PostgresWorkspace(Place.of(url), WorkspaceKey(site=site, path=directory), live)


def stored_workspaces(url: str, site: str) -> list[str]:
    """Return the directories of the workspaces of a site that have data. Blocks."""
    place = Place.of(url)
    with closing(connect(place)) as connection, translated(place):
        if not version(connection):
            return []
        filled = " OR ".join(
            f"EXISTS (SELECT FROM {table.name} WHERE workspace = number)"
            for table in workspace_tables()
            if table.name not in STARTS
        )
        query = f"SELECT path FROM workspaces WHERE site = %s AND ({filled}) ORDER BY path"
        return [row[0] for row in connection.execute(query.encode(), (site,))]
