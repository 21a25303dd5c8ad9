"""The migrations of a database. The number of each applied file is a row of `schema_versions`.

Servers that start at the same time take turns: a
step is applied under an advisory lock of its transaction, which is the only lock of this kind.
"""

from collections.abc import Sequence
from typing import Final

import psycopg

from crush_trio.store.errors import MigrationFailed
from crush_trio.store.migrations import Migration, migrations_of, missing
from crush_trio.store.postgres.connection import Connection
from crush_trio.store.postgres.faults import translated
from crush_trio.store.postgres.place import Place

_LOCK: Final = 0x6372757368
"""The key of the advisory lock: the letters "crush"."""

_LIMITS: Final = b"SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = 30000"
"""A step may take long, whatever the time limits of the user; a server that holds it up must not."""


def known_migrations() -> tuple[Migration, ...]:
    """Return the migrations that come with this program, oldest first."""
    return migrations_of("crush_trio.store.postgres")


def migrate(connection: Connection, place: Place, migrations: Sequence[Migration]) -> None:
    """Apply the *migrations* that the database lacks, each in its own transaction.

    Raises `StoreTooNew` for a database of a newer program, before anything is written, and
    `MigrationFailed` if a step fails; the database is then at the version before that step.
    """
    with translated(place):
        found = version(connection)
    for migration in missing(migrations, found, place.label):
        _apply(connection, place, migration)


def version(connection: Connection) -> int:
    """Return the number of the newest step that was applied; 0 if there was none."""
    there = connection.execute(b"SELECT to_regclass('schema_versions') IS NOT NULL").fetchone()
    if there is None or not there[0]:
        return 0
    return _newest(connection)


def _newest(connection: Connection) -> int:
    row = connection.execute(b"SELECT coalesce(max(number), 0) FROM schema_versions").fetchone()
    return 0 if row is None else int(row[0])


def _apply(connection: Connection, place: Place, migration: Migration) -> None:
    """Apply one step; raise `MigrationFailed` with its name if it fails."""
    try:
        with translated(place), connection.transaction():
            connection.execute(_LIMITS)
            connection.execute(b"SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
            # First this: it makes the server notice a table that was made while we waited for the
            # lock. Looking for its name would answer from a cache that does not have it yet.
            connection.execute(
                b"CREATE TABLE IF NOT EXISTS schema_versions (number int PRIMARY KEY, name text"
                b" NOT NULL, applied_at timestamptz NOT NULL DEFAULT now())"
            )
            if _newest(connection) >= migration.number:
                return  # another server has applied it while we waited for the lock
            connection.execute(migration.sql.encode())
            connection.execute(
                b"INSERT INTO schema_versions (number, name) VALUES (%s, %s)",
                (migration.number, migration.name),
            )
    except psycopg.Error as exc:  # not a fault of the server: the step does not fit the database
        raise MigrationFailed(f"{place.label} at {migration.name} ({exc})") from exc
