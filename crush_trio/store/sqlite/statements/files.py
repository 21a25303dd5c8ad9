"""Statements about the history of files, and about which session has read which file when."""

import sqlite3
from typing import Final

from crush_trio.errors import SessionNotFound
from crush_trio.store.changes import FileRead
from crush_trio.wire.ids import SessionId
from crush_trio.wire.views import File

_COLUMNS: Final = "id, session_id, path, content, version, created_at, updated_at"

# The version of a path is counted over all sessions (J5). Read and write are one statement of the one
# writer, so there is no conflict to try again after.
_ADD: Final = f"""
    INSERT INTO files ({_COLUMNS})
    SELECT :id, id, :path, :content, (
        SELECT coalesce(max(version) + 1, 0) FROM files WHERE path = :path
    ), :created_at, :updated_at
    FROM sessions WHERE id = :session_id
    ON CONFLICT (id) DO NOTHING
"""

_MARK: Final = """
    INSERT INTO read_files (session_id, path, read_at)
    SELECT id, :path, :at FROM sessions WHERE id = :session_id
    ON CONFLICT DO UPDATE SET read_at = max(read_at, excluded.read_at)
"""


def apply(connection: sqlite3.Connection, change: FileRead) -> None:
    """Note that a session has read a file; raise `SessionNotFound` if there is no such session."""
    columns = {"session_id": change.session_id, "path": change.path, "at": change.at}
    if not connection.execute(_MARK, columns).rowcount:
        raise SessionNotFound(change.session_id)


def add_file(connection: sqlite3.Connection, file: File) -> File:
    """Store one more version of a file and return it with its number; *file*'s own is ignored.

    A file whose id is there already is returned as it is.
    """
    connection.execute(
        _ADD,
        {
            "id": file.id,
            "session_id": file.session_id,
            "path": file.path,
            "content": file.content,
            "created_at": file.created_at,
            "updated_at": file.updated_at,
        },
    )
    stored = _read(connection, "id = ?", file.id)
    if not stored:
        raise SessionNotFound(file.session_id)
    return stored[0]


def read_files(connection: sqlite3.Connection, session_id: SessionId) -> list[File]:
    """Return every version of every file of a session, by path and version."""
    return _read(connection, "session_id = ? ORDER BY path, version", session_id)


def read_latest(connection: sqlite3.Connection, session_id: SessionId, path: str) -> File | None:
    """Return the newest version of a path in a session, if there is one."""
    found = _read(
        connection, "session_id = ? AND path = ? ORDER BY version DESC LIMIT 1", session_id, path
    )
    return found[0] if found else None


def read_paths(connection: sqlite3.Connection, session_id: SessionId) -> list[str]:
    """Return the files that a session has read, by path."""
    rows = connection.execute(
        "SELECT path FROM read_files WHERE session_id = ? ORDER BY path", (session_id,)
    )
    return [row[0] for row in rows]


def read_mark(connection: sqlite3.Connection, session_id: SessionId, path: str) -> int | None:
    """Return when a session last read a file."""
    row = connection.execute(
        "SELECT read_at FROM read_files WHERE path = ? AND session_id = ?", (path, session_id)
    ).fetchone()
    return None if row is None else row[0]


def _read(connection: sqlite3.Connection, where: str, *values: str) -> list[File]:
    rows = connection.execute(f"SELECT {_COLUMNS} FROM files WHERE {where}", values)
    names = _COLUMNS.split(", ")
    return [File(**dict(zip(names, row, strict=True))) for row in rows]
