"""The migrations of a database file. SQLite's `user_version` is the number of the last one that was applied."""

import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path

from crush_trio.store.errors import MigrationFailed
from crush_trio.store.migrations import Migration, migrations_of, missing
from crush_trio.store.sqlite.faults import translated


def known_migrations() -> tuple[Migration, ...]:
    """Return the migrations that come with this program, oldest first."""
    return migrations_of("crush_trio.store.sqlite")


def migrate(connection: sqlite3.Connection, path: Path, migrations: Sequence[Migration]) -> None:
    """Apply the *migrations* that the database at *path* lacks, each in its own transaction.

    The connection must be in autocommit mode (`isolation_level=None`), with foreign keys off: a
    step that rebuilds a table has to drop the old one without its cascades.

    Raises `StoreTooNew` for a file of a newer program, before anything is written, and
    `MigrationFailed` if a step fails; the file is then at the version before that step.
    """
    with translated(path):
        found = version(connection)
    for migration in missing(migrations, found, path):
        _apply(connection, path, migration)


def _apply(connection: sqlite3.Connection, path: Path, migration: Migration) -> None:
    """Apply one step; raise `MigrationFailed` with its name if it fails."""
    try:
        with translated(path):
            _step(connection, migration)
    except sqlite3.Error as exc:  # not a fault of the disk: the step does not fit the file
        raise MigrationFailed(f"{path} at {migration.name} ({exc})") from exc


def _step(connection: sqlite3.Connection, migration: Migration) -> None:
    connection.execute("BEGIN IMMEDIATE")
    with connection:  # commits, or rolls back if anything raises
        if version(connection) >= migration.number:
            return  # another process has applied it while we waited for the lock
        for statement in _statements(migration.sql):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {migration.number}")


def version(connection: sqlite3.Connection) -> int:
    """Return the number of the newest step that was applied; 0 if there was none."""
    found: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return found


def _statements(sql: str) -> Iterator[str]:
    """Split a script into statements; a trigger with its inner semicolons is one statement."""
    statement = ""
    for line in sql.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
    if statement.strip():
        yield statement
