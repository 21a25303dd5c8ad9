"""Statements about sessions, the history of their files, and their read marks.

Every update is one statement that names its columns and computes from their present values. No row
is read, changed and written back, so two writers cannot undo each other (L25).
"""

import sqlite3
from typing import Final, TypeAlias, assert_never

from crush_trio.errors import SessionNotFound
from crush_trio.store.base import Totals
from crush_trio.store.changes import (
    FileRead,
    SessionCreated,
    SessionDeleted,
    SessionEdited,
    SessionPruned,
    UsageAdded,
)
from crush_trio.store.columns import Row, json_column, read_json
from crush_trio.wire.ids import NO_MESSAGE, NO_SESSION, SessionId
from crush_trio.wire.views import DAY, File, Session, Todo, UsageDay, day_of

SessionChange: TypeAlias = (
    SessionCreated | SessionEdited | UsageAdded | SessionDeleted | SessionPruned
)
"""The changes that `apply` takes."""

COLUMNS: Final = (
    "id, parent_session_id, title, message_count, prompt_tokens, completion_tokens,"
    " summary_message_id, cost, todos, created_at, updated_at"
)
"""The columns that `session_of` takes."""

_EDIT: Final = """
    UPDATE sessions SET
        title = coalesce(:title, title),
        prompt_tokens = coalesce(:prompt_tokens, prompt_tokens),
        completion_tokens = coalesce(:completion_tokens, completion_tokens),
        summary_message_id = coalesce(:summary_message_id, summary_message_id),
        cost = coalesce(:cost, cost),
        todos = coalesce(:todos, todos),
        updated_at = max(updated_at, :at)
    WHERE id = :id
"""

_ADD_USAGE: Final = """
    UPDATE sessions SET
        prompt_tokens = coalesce(:prompt_tokens, prompt_tokens),
        completion_tokens = coalesce(:completion_tokens, completion_tokens),
        total_prompt_tokens = total_prompt_tokens + :spent_prompt_tokens,
        total_completion_tokens = total_completion_tokens + :spent_completion_tokens,
        cost = cost + :cost,
        updated_at = max(updated_at, :at)
    WHERE id = :id
"""

_COUNT_USAGE: Final = """
    INSERT INTO usage (day, prompt_tokens, completion_tokens, cost)
    VALUES (:at / 86400, :spent_prompt_tokens, :spent_completion_tokens, :cost)
    ON CONFLICT (day) DO UPDATE SET
        prompt_tokens = prompt_tokens + excluded.prompt_tokens,
        completion_tokens = completion_tokens + excluded.completion_tokens,
        cost = cost + excluded.cost
"""

# Runs that never began (folded, or cancelled in the queue) and the tasks of other runs do not count.
_USAGE: Final = """
    SELECT day, sum(runs), sum(prompt_tokens), sum(completion_tokens), sum(cost) FROM (
        SELECT day, 0 AS runs, prompt_tokens, completion_tokens, cost FROM usage
        UNION ALL
        SELECT ended_at / 86400, 1, 0, 0, 0 FROM runs
        WHERE ended_at >= :since AND started_at IS NOT NULL AND kind <> 'task'
    )
    WHERE day >= :since / 86400 GROUP BY day ORDER BY day
"""

_FAMILY: Final = """
    WITH RECURSIVE family (id, updated_at) AS (
        SELECT id, updated_at FROM sessions WHERE id = ?
        UNION
        SELECT child.id, child.updated_at
        FROM sessions AS child JOIN family ON child.parent_session_id = family.id
    )
    SELECT family.id, family.updated_at, EXISTS (
        SELECT 1 FROM runs WHERE runs.session_id = family.id AND runs.ended_at IS NULL
    ) FROM family
"""

_FORGET_TEXT: Final = (
    "UPDATE runs SET prompt = '', attachments = NULL, text = '', error = '', notices = NULL"
    " WHERE session_id = ?",
    "UPDATE asks SET payload = '' WHERE session_id = ?",
    "DELETE FROM sessions WHERE id = ?",
)

_FILE_COLUMNS: Final = "id, session_id, path, content, version, created_at, updated_at"

# Versions of a path are counted over all sessions (J5). Reading the highest number and writing the next
# is one statement in the only writer, so there is no conflict and no retry.
_ADD_FILE: Final = f"""
    INSERT INTO files ({_FILE_COLUMNS})
    SELECT :id, id, :path, :content, (
        SELECT coalesce(max(version) + 1, 0) FROM files WHERE path = :path
    ), :created_at, :updated_at
    FROM sessions WHERE id = :session_id
    ON CONFLICT (id) DO NOTHING
"""

_MARK_READ: Final = """
    INSERT INTO read_files (session_id, path, read_at)
    SELECT id, :path, :at FROM sessions WHERE id = :session_id
    ON CONFLICT DO UPDATE SET read_at = max(read_at, excluded.read_at)
"""


def apply(connection: sqlite3.Connection, change: SessionChange) -> None:
    """Apply *change*; raise `SessionNotFound` if the session does not exist.

    Creating a session that exists already changes nothing.
    """
    match change:
        case SessionCreated():
            _create(connection, change.session)
            return
        case SessionPruned():
            _prune(connection, change)
            return
        case SessionEdited():
            done = connection.execute(_EDIT, _edited_columns(connection, change))
        case UsageAdded():
            done = connection.execute(_ADD_USAGE, _usage_columns(change))
            if done.rowcount and not change.counted:
                connection.execute(_COUNT_USAGE, _usage_columns(change))
        case SessionDeleted():  # the schema deletes what belongs to it (J4)
            done = connection.execute("DELETE FROM sessions WHERE id = ?", (change.id,))
        case _:
            assert_never(change)
    if done.rowcount == 0:
        raise SessionNotFound(change.id)


def _prune(connection: sqlite3.Connection, change: SessionPruned) -> None:
    """Remove a session that was not used for long, with the sessions of its tasks and the text of its runs."""
    family = connection.execute(_FAMILY, (change.id,)).fetchall()
    if any(updated_at >= change.before or live for _, updated_at, live in family):
        return
    for statement in _FORGET_TEXT:
        connection.executemany(statement, [(session_id,) for session_id, _, _ in family])


def _create(connection: sqlite3.Connection, session: Session) -> None:
    connection.execute(
        "INSERT INTO sessions (id, parent_session_id, title, created_at, updated_at)"
        " VALUES (?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING",
        (
            session.id,
            session.parent_session_id or None,
            session.title,
            session.created_at,
            session.updated_at,
        ),
    )


def _edited_columns(connection: sqlite3.Connection, change: SessionEdited) -> dict[str, object]:
    keeps = False
    if change.title_over:
        present = connection.execute("SELECT title FROM sessions WHERE id = ?", (change.id,))
        keeps = (present.fetchone() or ("",))[0] not in change.title_over
    return {
        "id": change.id,
        "at": change.at,
        "title": None if keeps else change.title,
        "prompt_tokens": change.prompt_tokens,
        "completion_tokens": change.completion_tokens,
        "summary_message_id": change.summary_message_id,
        "cost": change.cost,
        "todos": None if change.todos is None else json_column(change.todos),
    }


def _usage_columns(change: UsageAdded) -> dict[str, object]:
    return {
        "id": change.id,
        "at": change.at,
        "prompt_tokens": change.prompt_tokens,
        "completion_tokens": change.completion_tokens,
        "spent_prompt_tokens": change.spent_prompt_tokens,
        "spent_completion_tokens": change.spent_completion_tokens,
        "cost": change.cost,
    }


def read_session(connection: sqlite3.Connection, session_id: SessionId) -> Session:
    """Return a session, or raise `SessionNotFound`."""
    row = connection.execute(
        f"SELECT {COLUMNS} FROM sessions WHERE id = ?", (session_id,)
    ).fetchone()
    if row is None:
        raise SessionNotFound(session_id)
    return session_of(row)


def read_sessions(connection: sqlite3.Connection) -> list[Session]:
    """Return the sessions without a parent, the most recently updated first."""
    rows = connection.execute(
        f"SELECT {COLUMNS} FROM sessions WHERE parent_session_id IS NULL"
        " ORDER BY updated_at DESC, n DESC"
    )
    return [session_of(row) for row in rows]


def read_totals(connection: sqlite3.Connection, session_id: SessionId) -> Totals:
    """Return the tokens that a session has used in total, or raise `SessionNotFound`."""
    row = connection.execute(
        "SELECT total_prompt_tokens, total_completion_tokens FROM sessions WHERE id = ?",
        (session_id,),
    ).fetchone()
    if row is None:
        raise SessionNotFound(session_id)
    return Totals(prompt_tokens=row[0], completion_tokens=row[1])


def read_usage(connection: sqlite3.Connection, since: int) -> list[UsageDay]:
    """Return what the days from *since* on used, in order."""
    return [
        UsageDay(day=day_of(day * DAY), runs=runs, tokens_in=read, tokens_out=written, cost=cost)
        for day, runs, read, written, cost in connection.execute(_USAGE, {"since": since})
        if runs or read or written or cost
    ]


def session_of(row: Row) -> Session:
    """Return the session of a row with `COLUMNS`."""
    (id_, parent, title, count, prompt, completion, summary, cost, todos, created, updated) = row
    return Session(
        id=id_,
        parent_session_id=parent or NO_SESSION,
        title=title,
        message_count=count,
        prompt_tokens=prompt,
        completion_tokens=completion,
        summary_message_id=summary or NO_MESSAGE,
        cost=cost,
        todos=read_json(todos, tuple[Todo, ...], f"the todos of session {id_}"),
        created_at=created,
        updated_at=updated,
    )


# ── Files and read marks ────────────────────────────────────────────────────────────────────────


def apply_read(connection: sqlite3.Connection, change: FileRead) -> None:
    """Note that a session has read a file; raise `SessionNotFound` if there is no such session."""
    columns = {"session_id": change.session_id, "path": change.path, "at": change.at}
    if not connection.execute(_MARK_READ, columns).rowcount:
        raise SessionNotFound(change.session_id)


def add_file(connection: sqlite3.Connection, file: File) -> File:
    """Store a new version of a file and return it with its number; *file*'s own is ignored.

    A file whose id exists already is returned as it is.
    """
    connection.execute(
        _ADD_FILE,
        {
            "id": file.id,
            "session_id": file.session_id,
            "path": file.path,
            "content": file.content,
            "created_at": file.created_at,
            "updated_at": file.updated_at,
        },
    )
    stored = _read_files(connection, "id = ?", file.id)
    if not stored:
        raise SessionNotFound(file.session_id)
    return stored[0]


def read_files(connection: sqlite3.Connection, session_id: SessionId) -> list[File]:
    """Return every version of every file of a session, by path and version."""
    return _read_files(connection, "session_id = ? ORDER BY path, version", session_id)


def read_latest(connection: sqlite3.Connection, session_id: SessionId, path: str) -> File | None:
    """Return the newest version of a path in a session, if there is one."""
    found = _read_files(
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


def _read_files(connection: sqlite3.Connection, where: str, *values: str) -> list[File]:
    rows = connection.execute(f"SELECT {_FILE_COLUMNS} FROM files WHERE {where}", values)
    names = _FILE_COLUMNS.split(", ")
    return [File(**dict(zip(names, row, strict=True))) for row in rows]
