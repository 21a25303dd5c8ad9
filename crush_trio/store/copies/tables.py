"""The tables of a workspace, read from the schema of SQLite.

PostgreSQL has the same tables with the same columns, and one column more, `workspace`; a test compares the two.
"""

import sqlite3
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Final

from attrs import frozen

from crush_trio.store.sqlite.migrations import known_migrations, migrate

STARTS: Final = frozenset({"boots", "event_tail"})
"""Tables that also have rows if a workspace was opened and nothing was done in it."""

FIRST: Final = "messages"
"""The table whose rows are added before those that they refer to, because a trigger would change these."""


@frozen
class Table:
    """A table: its columns, and those by which its rows can be ordered without a tie."""

    name: str
    columns: tuple[str, ...]
    key: tuple[str, ...]
    parents: frozenset[str]
    """The tables that its rows refer to."""


@cache
def workspace_tables() -> tuple[Table, ...]:
    """Return every table of a workspace: `FIRST`, and the others each after those that its rows refer to."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as empty:
        migrate(empty, Path(":memory:"), known_migrations())
        names = empty.execute("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY rowid")
        waiting = [_read(empty, name) for (name,) in names.fetchall()]
    ordered = [table for table in waiting if table.name == FIRST]
    waiting = [table for table in waiting if table.name != FIRST]
    while waiting:
        known = {table.name for table in ordered}
        ready = [table for table in waiting if table.parents <= known]
        waiting = [table for table in waiting if table not in ready]
        ordered += ready
    return tuple(ordered)


def _read(connection: sqlite3.Connection, name: str) -> Table:
    columns = connection.execute(f"PRAGMA table_info({name})").fetchall()
    keys = sorted((place, column) for _, column, _, _, _, place in columns if place)
    referred = connection.execute(f"PRAGMA foreign_key_list({name})").fetchall()
    return Table(
        name,
        tuple(column[1] for column in columns),
        tuple(column for _, column in keys),
        frozenset(row[2] for row in referred),
    )
