"""Statements about sessions.

Every update is one statement that names the columns it is about and computes from what is there. No
row is read, changed and written back, so two writers cannot undo each other (L25).
"""

import sqlite3
from typing import Final, TypeAlias, assert_never

from crush_trio.errors import SessionNotFound
from crush_trio.store.base import Totals
from crush_trio.store.changes import SessionCreated, SessionDeleted, SessionEdited, UsageAdded
from crush_trio.store.sqlite.statements.columns import Row, json_column, read_json
from crush_trio.wire.ids import NO_MESSAGE, NO_SESSION, SessionId
from crush_trio.wire.views import Session, Todo

SessionChange: TypeAlias = SessionCreated | SessionEdited | UsageAdded | SessionDeleted
"""The changes that are made here."""

_COLUMNS: Final = (
    "id, parent_session_id, title, message_count, prompt_tokens, completion_tokens,"
    " summary_message_id, cost, todos, created_at, updated_at"
)

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


def apply(connection: sqlite3.Connection, change: SessionChange) -> None:
    """Make *change* true; raise `SessionNotFound` if there is nothing to change.

    Creating a session that is there already changes nothing.
    """
    match change:
        case SessionCreated():
            _create(connection, change.session)
            return
        case SessionEdited():
            done = connection.execute(_EDIT, _edited_columns(change))
        case UsageAdded():
            done = connection.execute(_ADD_USAGE, _usage_columns(change))
        case SessionDeleted():  # the schema takes along what belongs to it (J4)
            done = connection.execute("DELETE FROM sessions WHERE id = ?", (change.id,))
        case _:
            assert_never(change)
    if done.rowcount == 0:
        raise SessionNotFound(change.id)


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


def _edited_columns(change: SessionEdited) -> dict[str, object]:
    return {
        "id": change.id,
        "at": change.at,
        "title": change.title,
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
        f"SELECT {_COLUMNS} FROM sessions WHERE id = ?", (session_id,)
    ).fetchone()
    if row is None:
        raise SessionNotFound(session_id)
    return _session(row)


def read_sessions(connection: sqlite3.Connection) -> list[Session]:
    """Return the sessions without a parent, the most recently updated first."""
    rows = connection.execute(
        f"SELECT {_COLUMNS} FROM sessions WHERE parent_session_id IS NULL"
        " ORDER BY updated_at DESC, n DESC"
    )
    return [_session(row) for row in rows]


def read_totals(connection: sqlite3.Connection, session_id: SessionId) -> Totals:
    """Return what a session has used in all, or raise `SessionNotFound`."""
    row = connection.execute(
        "SELECT total_prompt_tokens, total_completion_tokens FROM sessions WHERE id = ?",
        (session_id,),
    ).fetchone()
    if row is None:
        raise SessionNotFound(session_id)
    return Totals(prompt_tokens=row[0], completion_tokens=row[1])


def _session(row: Row) -> Session:
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
