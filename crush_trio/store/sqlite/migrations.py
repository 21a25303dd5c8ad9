"""Bringing a file to the schema this program knows.

The schema grows by numbered files, `schema/NNNN_name.sql`, and a file once released is never edited.
SQLite's `user_version` says how far a database has come; it is part of the transaction that applies
a file, so a database is always exactly at one version, also after a crash in the middle.
"""

import re
import sqlite3
from collections.abc import Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Final

from attrs import frozen

from crush_trio.store.errors import MigrationFailed, StoreTooNew
from crush_trio.store.sqlite.faults import translated

_NAME: Final = re.compile(r"(\d{4})_[a-z0-9_]+\.sql")


@frozen(kw_only=True)
class Migration:
    """One step of the schema: what leads from version `number - 1` to `number`."""

    number: int
    name: str
    sql: str


def known_migrations() -> tuple[Migration, ...]:
    """Return the migrations that come with this program, oldest first."""
    found = []
    for file in files("crush_trio.store.sqlite").joinpath("schema").iterdir():
        if match := _NAME.fullmatch(file.name):
            number = int(match[1])
            found.append(Migration(number=number, name=file.name, sql=file.read_text("utf-8")))
    return tuple(sorted(found, key=lambda migration: migration.number))


def migrate(connection: sqlite3.Connection, path: Path, migrations: Sequence[Migration]) -> None:
    """Apply the *migrations* that the database at *path* lacks, each in a transaction of its own.

    The connection must be in autocommit mode (`isolation_level=None`), with foreign keys off: a step
    that rebuilds a table has to drop the old one without its cascades.

    Raises `StoreTooNew` for a file from a newer program, before anything is written, and
    `MigrationFailed` if a step does not work out; the file is then at the version before it.
    """
    newest = migrations[-1].number if migrations else 0
    with translated(path):
        found = _version(connection)
    if found > newest:
        raise StoreTooNew(f"{path} has schema {found}, this program knows up to {newest}")
    for migration in migrations:
        if migration.number > found:
            _apply(connection, path, migration)


def _apply(connection: sqlite3.Connection, path: Path, migration: Migration) -> None:
    """Apply one step, and say which one if it fails."""
    try:
        with translated(path):
            _step(connection, migration)
    except sqlite3.Error as exc:  # no fault of the disk: the step does not suit the file
        raise MigrationFailed(f"{path} at {migration.name} ({exc})") from exc


def _step(connection: sqlite3.Connection, migration: Migration) -> None:
    connection.execute("BEGIN IMMEDIATE")
    with connection:  # commits, or rolls back if anything raises
        if _version(connection) >= migration.number:
            return  # another process was faster, while we waited for the file
        for statement in _statements(migration.sql):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {migration.number}")


def _version(connection: sqlite3.Connection) -> int:
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return version


def _statements(sql: str) -> Iterator[str]:
    """Split a script into statements; a trigger, with its inner semicolons, is one."""
    statement = ""
    for line in sql.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
    if statement.strip():
        yield statement
