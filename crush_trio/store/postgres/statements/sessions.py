"""Statements about sessions, the history of their files, and their read marks.

Every update is one statement that names its columns and computes from their present values. No row
is read, changed and written back, so two writers cannot undo each other (L25).
"""

from collections.abc import Callable
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
from crush_trio.store.postgres.transaction import Finish, Transaction
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

_CREATE: Final = """
    INSERT INTO sessions (workspace, n, id, parent_session_id, title, created_at, updated_at)
    VALUES (%(w)s, %(n)s, %(id)s, %(parent)s, %(title)s, %(created_at)s, %(updated_at)s)
    ON CONFLICT (workspace, id) DO NOTHING
"""

_EDIT: Final = """
    UPDATE sessions SET
        title = CASE
            WHEN NOT %(conditional)s OR title = ANY(%(title_over)s::text[])
            THEN coalesce(%(title)s, title) ELSE title
        END,
        prompt_tokens = coalesce(%(prompt_tokens)s, prompt_tokens),
        completion_tokens = coalesce(%(completion_tokens)s, completion_tokens),
        summary_message_id = coalesce(%(summary_message_id)s, summary_message_id),
        cost = coalesce(%(cost)s, cost),
        todos = coalesce(%(todos)s, todos),
        updated_at = greatest(updated_at, %(at)s)
    WHERE workspace = %(w)s AND id = %(id)s
"""

_ADD_USAGE: Final = """
    UPDATE sessions SET
        prompt_tokens = coalesce(%(prompt_tokens)s, prompt_tokens),
        completion_tokens = coalesce(%(completion_tokens)s, completion_tokens),
        total_prompt_tokens = total_prompt_tokens + %(spent_prompt_tokens)s,
        total_completion_tokens = total_completion_tokens + %(spent_completion_tokens)s,
        cost = cost + %(cost)s,
        updated_at = greatest(updated_at, %(at)s)
    WHERE workspace = %(w)s AND id = %(id)s
"""

_COUNT_USAGE: Final = """
    INSERT INTO usage AS used (workspace, day, prompt_tokens, completion_tokens, cost)
    SELECT %(w)s, %(at)s / 86400, %(spent_prompt_tokens)s, %(spent_completion_tokens)s, %(cost)s
    FROM sessions WHERE workspace = %(w)s AND id = %(id)s
    ON CONFLICT (workspace, day) DO UPDATE SET
        prompt_tokens = used.prompt_tokens + excluded.prompt_tokens,
        completion_tokens = used.completion_tokens + excluded.completion_tokens,
        cost = used.cost + excluded.cost
"""

# Runs that never began (folded, or cancelled in the queue) and the tasks of other runs do not count.
_USAGE: Final = """
    SELECT day, sum(runs)::bigint, sum(prompt_tokens)::bigint, sum(completion_tokens)::bigint,
        sum(cost)
    FROM (
        SELECT day, 0 AS runs, prompt_tokens, completion_tokens, cost
        FROM usage WHERE workspace = %(w)s
        UNION ALL
        SELECT ended_at / 86400, 1, 0, 0, 0 FROM runs
        WHERE workspace = %(w)s AND ended_at >= %(since)s AND started_at IS NOT NULL
        AND kind <> 'task'
    ) AS days
    WHERE day >= %(since)s / 86400 GROUP BY day ORDER BY day
"""

_FAMILY: Final = """
    WITH RECURSIVE family (id, updated_at) AS (
        SELECT id, updated_at FROM sessions WHERE workspace = %(w)s AND id = %(id)s
        UNION
        SELECT child.id, child.updated_at
        FROM sessions AS child JOIN family ON child.parent_session_id = family.id
        WHERE child.workspace = %(w)s
    )
    SELECT family.id, family.updated_at, EXISTS (
        SELECT 1 FROM runs
        WHERE workspace = %(w)s AND runs.session_id = family.id AND runs.ended_at IS NULL
    ) FROM family
"""

_FORGET_TEXT: Final = (
    "UPDATE runs SET prompt = '', attachments = NULL, text = '', error = '', notices = NULL"
    " WHERE workspace = %(w)s AND session_id = ANY(%(ids)s)",
    "UPDATE asks SET payload = '' WHERE workspace = %(w)s AND session_id = ANY(%(ids)s)",
    "DELETE FROM sessions WHERE workspace = %(w)s AND id = ANY(%(ids)s)",
)

FILE_COLUMNS: Final = "id, session_id, path, content, version, created_at, updated_at"

# Versions of a path are counted over all sessions (J5). Reading the highest number and writing the next
# is one statement of the only writer, so there is no conflict and no retry.
_ADD_FILE: Final = f"""
    INSERT INTO files (workspace, {FILE_COLUMNS})
    SELECT workspace, %(id)s, id, %(path)s, %(content)s, (
        SELECT coalesce(max(version) + 1, 0) FROM files
        WHERE workspace = %(w)s AND path = %(path)s
    ), %(created_at)s, %(updated_at)s
    FROM sessions WHERE workspace = %(w)s AND id = %(session_id)s
    ON CONFLICT (workspace, id) DO NOTHING
"""

_MARK_READ: Final = """
    INSERT INTO read_files AS mark (workspace, session_id, path, read_at)
    SELECT workspace, id, %(path)s, %(at)s
    FROM sessions WHERE workspace = %(w)s AND id = %(session_id)s
    ON CONFLICT (workspace, session_id, path)
    DO UPDATE SET read_at = greatest(mark.read_at, excluded.read_at)
"""


def apply(transaction: Transaction, change: SessionChange) -> None:
    """Apply *change*; raise `SessionNotFound` if the session does not exist.

    Creating a session that exists already changes nothing.
    """
    match change:
        case SessionCreated(session=session):
            transaction.run(
                _CREATE,
                n=transaction.next_n(),
                id=session.id,
                parent=session.parent_session_id or None,
                title=session.title,
                created_at=session.created_at,
                updated_at=session.updated_at,
            )
        case SessionEdited():
            transaction.require(_missing(change.id), _EDIT, **_edited_columns(change))
        case UsageAdded():
            columns = _usage_columns(change)
            transaction.require(_missing(change.id), _ADD_USAGE, **columns)
            if not change.counted:
                transaction.run(_COUNT_USAGE, **columns)
        case SessionDeleted():  # the schema deletes what belongs to it (J4)
            transaction.require(
                _missing(change.id),
                "DELETE FROM sessions WHERE workspace = %(w)s AND id = %(id)s",
                id=change.id,
            )
        case SessionPruned():
            _prune(transaction, change)
        case _:
            assert_never(change)


def _prune(transaction: Transaction, change: SessionPruned) -> None:
    """Remove a session that was not used for long, with the sessions of its tasks and the text of its runs."""
    family = transaction.run(_FAMILY, id=change.id).fetchall()
    if any(updated_at >= change.before or live for _, updated_at, live in family):
        return
    for statement in _FORGET_TEXT:
        transaction.run(statement, ids=[session_id for session_id, _, _ in family])


def _missing(session_id: SessionId) -> Callable[[], None]:
    def missing() -> None:
        raise SessionNotFound(session_id)

    return missing


def _edited_columns(change: SessionEdited) -> dict[str, object]:
    return {
        "id": change.id,
        "at": change.at,
        "title": change.title,
        "conditional": bool(change.title_over),
        "title_over": list(change.title_over),
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


# ── Reading ─────────────────────────────────────────────────────────────────────────────────────

_SESSION: Final = f"SELECT {COLUMNS} FROM sessions WHERE workspace = %(w)s AND id = %(id)s"


def read_session(transaction: Transaction, session_id: SessionId) -> Session:
    """Return a session, or raise `SessionNotFound`."""
    row = transaction.one(_SESSION, id=session_id)
    if row is None:
        raise SessionNotFound(session_id)
    return session_of(row)


def find_session(transaction: Transaction, session_id: SessionId) -> Finish[Session | None]:
    """Read a session as part of a work; its result is None if there is none."""
    cursor = transaction.run(_SESSION, id=session_id)

    def finish() -> Session | None:
        row = cursor.fetchone()
        return None if row is None else session_of(row)

    return finish


def read_sessions(transaction: Transaction) -> list[Session]:
    """Return the sessions without a parent, the most recently updated first."""
    rows = transaction.run(
        f"SELECT {COLUMNS} FROM sessions WHERE workspace = %(w)s AND parent_session_id IS NULL"
        " ORDER BY updated_at DESC, n DESC"
    )
    return [session_of(row) for row in rows]


def read_totals(transaction: Transaction, session_id: SessionId) -> Totals:
    """Return the tokens that a session has used in total, or raise `SessionNotFound`."""
    row = transaction.one(
        "SELECT total_prompt_tokens, total_completion_tokens FROM sessions"
        " WHERE workspace = %(w)s AND id = %(id)s",
        id=session_id,
    )
    if row is None:
        raise SessionNotFound(session_id)
    return Totals(prompt_tokens=row[0], completion_tokens=row[1])


def read_usage(transaction: Transaction, since: int) -> list[UsageDay]:
    """Return what the days from *since* on used, in order."""
    return [
        UsageDay(day=day_of(day * DAY), runs=runs, tokens_in=read, tokens_out=written, cost=cost)
        for day, runs, read, written, cost in transaction.run(_USAGE, since=since)
        if runs or read or written or cost
    ]


def session_of(row: Row) -> Session:
    """Return a session from its `COLUMNS`."""
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


def apply_read(transaction: Transaction, change: FileRead) -> None:
    """Note that a session has read a file; raise `SessionNotFound` if there is no such session."""
    transaction.require(
        _missing(change.session_id),
        _MARK_READ,
        session_id=change.session_id,
        path=change.path,
        at=change.at,
    )


def add_file(transaction: Transaction, file: File) -> Finish[File]:
    """Store a new version of a file; its result has the number, whatever *file*'s own is.

    A file whose id exists already is returned as it is.
    """
    transaction.run(
        _ADD_FILE,
        id=file.id,
        session_id=file.session_id,
        path=file.path,
        content=file.content,
        created_at=file.created_at,
        updated_at=file.updated_at,
    )
    cursor = transaction.run(
        f"SELECT {FILE_COLUMNS} FROM files WHERE workspace = %(w)s AND id = %(id)s", id=file.id
    )

    def finish() -> File:
        row = cursor.fetchone()
        if row is None:
            raise SessionNotFound(file.session_id)
        return file_of(row)

    return finish


def read_files(transaction: Transaction, session_id: SessionId) -> list[File]:
    """Return every version of every file of a session, by path and version."""
    return _read_files(
        transaction, "session_id = %(session)s ORDER BY path, version", session=session_id
    )


def read_latest(transaction: Transaction, session_id: SessionId, path: str) -> File | None:
    """Return the newest version of a path in a session, if there is one."""
    found = _read_files(
        transaction,
        "session_id = %(session)s AND path = %(path)s ORDER BY version DESC LIMIT 1",
        session=session_id,
        path=path,
    )
    return found[0] if found else None


def read_paths(transaction: Transaction, session_id: SessionId) -> list[str]:
    """Return the files that a session has read, by path."""
    rows = transaction.run(
        "SELECT path FROM read_files WHERE workspace = %(w)s AND session_id = %(id)s ORDER BY path",
        id=session_id,
    )
    return [row[0] for row in rows]


def read_mark(transaction: Transaction, session_id: SessionId, path: str) -> int | None:
    """Return when a session last read a file."""
    row = transaction.one(
        "SELECT read_at FROM read_files"
        " WHERE workspace = %(w)s AND path = %(path)s AND session_id = %(id)s",
        path=path,
        id=session_id,
    )
    return None if row is None else row[0]


def _read_files(transaction: Transaction, where: str, **values: object) -> list[File]:
    rows = transaction.run(
        f"SELECT {FILE_COLUMNS} FROM files WHERE workspace = %(w)s AND {where}", **values
    )
    return [file_of(row) for row in rows]


def file_of(row: Row) -> File:
    """Return a file from its columns."""
    return File(**dict(zip(FILE_COLUMNS.split(", "), row, strict=True)))
