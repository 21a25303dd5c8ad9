"""Statements about messages, their parts, and the text that is appended to them.

While a message grows, new text is added as rows of `chunks`, and existing rows are neither read nor
written: n pieces cost n rows. When the message is finished, its chunks are merged into its parts,
once.
"""

import sqlite3
from collections.abc import Sequence
from itertools import groupby
from typing import Final, TypeAlias, assert_never

from crush_trio.errors import MessageNotFound, SessionNotFound
from crush_trio.store.base import StoredMessage
from crush_trio.store.changes import (
    MessageCreated,
    MessageDeleted,
    MessageFinished,
    PartPut,
    PartsCut,
    TextAppended,
    grown,
    is_complete,
)
from crush_trio.store.columns import Row, part_columns, read_part, read_word
from crush_trio.wire.ids import MessageId, RunId, SessionId
from crush_trio.wire.messages import Message, Part, Role

MessageChange: TypeAlias = (
    MessageCreated | PartPut | TextAppended | PartsCut | MessageFinished | MessageDeleted
)
"""The changes that `apply` takes."""

_CREATE: Final = """
    INSERT INTO messages (
        id, session_id, seq, role, model, provider, is_summary_message,
        created_at, updated_at, finished_at, run_id
    )
    SELECT :id, id, last_seq + 1, :role, :model, :provider, :is_summary_message,
        :created_at, :updated_at, :finished_at, :run_id
    FROM sessions WHERE id = :session_id AND (
        :run_id IS NULL OR NOT :if_there OR EXISTS (SELECT 1 FROM runs WHERE runs.id = :run_id)
    )
    ON CONFLICT (id) DO NOTHING
"""

_PUT: Final = """
    INSERT INTO parts (message_id, idx, type, data)
    SELECT id, :idx, :type, :data FROM messages WHERE id = :id
    ON CONFLICT DO UPDATE SET type = excluded.type, data = excluded.data
"""

_APPEND: Final = """
    INSERT INTO chunks (message_id, idx, n, text)
    SELECT message_id, idx, (
        SELECT coalesce(max(n) + 1, 0) FROM chunks
        WHERE message_id = parts.message_id AND idx = parts.idx
    ), :text
    FROM parts WHERE message_id = :id AND idx = :idx AND type IN ('text', 'reasoning')
"""


def apply(connection: sqlite3.Connection, change: MessageChange) -> None:
    """Apply *change*; raise `MessageNotFound` if the message does not exist.

    Creating a message that exists already changes nothing.
    """
    match change:
        case MessageCreated():
            _create(connection, change)
        case PartPut():
            _put(connection, change)
        case TextAppended():
            _append(connection, change)
        case PartsCut():
            _cut(connection, change)
        case MessageFinished():
            _finish(connection, change)
        case MessageDeleted():
            if not connection.execute("DELETE FROM messages WHERE id = ?", (change.id,)).rowcount:
                raise MessageNotFound(change.id)
        case _:
            assert_never(change)


def _create(connection: sqlite3.Connection, change: MessageCreated) -> None:
    message = change.message
    created = connection.execute(
        _CREATE,
        {
            "id": message.id,
            "session_id": message.session_id,
            "role": message.role.value,
            "model": message.model,
            "provider": message.provider,
            "is_summary_message": message.is_summary_message,
            "created_at": message.created_at,
            "updated_at": message.updated_at,
            "finished_at": message.updated_at if is_complete(message) else None,
            "run_id": change.run_id,
            "if_there": change.if_there,
        },
    ).rowcount
    if created:
        connection.executemany(
            "INSERT INTO parts (message_id, idx, type, data) VALUES (?, ?, ?, ?)",
            [(message.id, idx, *part_columns(part)) for idx, part in enumerate(message.parts)],
        )
    elif not change.if_there and not _exists(connection, message.id):
        raise SessionNotFound(message.session_id)


def _put(connection: sqlite3.Connection, change: PartPut) -> None:
    kind, data = part_columns(change.part)
    columns = {"id": change.message_id, "idx": change.index, "type": kind, "data": data}
    if not connection.execute(_PUT, columns).rowcount:
        raise MessageNotFound(change.message_id)
    _touch(connection, change.message_id, change.at)


def _append(connection: sqlite3.Connection, change: TextAppended) -> None:
    columns = {"id": change.message_id, "idx": change.index, "text": change.text}
    if not connection.execute(_APPEND, columns).rowcount:
        _require(connection, change.message_id)
        raise MessageNotFound(f"{change.message_id} has no text at part {change.index}")
    _touch(connection, change.message_id, change.at)


def _cut(connection: sqlite3.Connection, change: PartsCut) -> None:
    _require(connection, change.message_id)
    connection.execute(
        "DELETE FROM parts WHERE message_id = ? AND idx >= ?", (change.message_id, change.length)
    )
    _touch(connection, change.message_id, change.at)


def _finish(connection: sqlite3.Connection, change: MessageFinished) -> None:
    finished = connection.execute(
        "UPDATE messages SET finished_at = coalesce(finished_at, :at) WHERE id = :id",
        {"id": change.message_id, "at": change.at},
    ).rowcount
    if not finished:
        raise MessageNotFound(change.message_id)
    _touch(connection, change.message_id, change.at)
    _merge_chunks(connection, change.message_id)


def _merge_chunks(connection: sqlite3.Connection, message_id: MessageId) -> None:
    """Move the text of a message from its chunks into its parts."""
    rows = connection.execute(
        "SELECT idx, text FROM chunks WHERE message_id = ? ORDER BY idx, n", (message_id,)
    ).fetchall()
    for idx, chunks in groupby(rows, key=lambda row: row[0]):
        kind, data = connection.execute(
            "SELECT type, data FROM parts WHERE message_id = ? AND idx = ?", (message_id, idx)
        ).fetchone()
        part = read_part(kind, data, f"part {idx} of message {message_id}")
        whole = grown(part, "".join(text for _, text in chunks))
        connection.execute(
            "UPDATE parts SET data = ? WHERE message_id = ? AND idx = ?",
            (part_columns(whole)[1], message_id, idx),
        )
    connection.execute("DELETE FROM chunks WHERE message_id = ?", (message_id,))


def _touch(connection: sqlite3.Connection, message_id: MessageId, at: int) -> None:
    """Set the time of the last change, unless it is the same second."""
    connection.execute(
        "UPDATE messages SET updated_at = :at WHERE id = :id AND updated_at < :at",
        {"id": message_id, "at": at},
    )


def _exists(connection: sqlite3.Connection, message_id: MessageId) -> bool:
    found = connection.execute("SELECT 1 FROM messages WHERE id = ?", (message_id,))
    return found.fetchone() is not None


def _require(connection: sqlite3.Connection, message_id: MessageId) -> None:
    if not _exists(connection, message_id):
        raise MessageNotFound(message_id)


# ── Reading ─────────────────────────────────────────────────────────────────────────────────────


def read_message(connection: sqlite3.Connection, message_id: MessageId) -> StoredMessage:
    """Return a message, or raise `MessageNotFound`."""
    found = _read(connection, "id = ?", (message_id,))
    if not found:
        raise MessageNotFound(message_id)
    return found[0]


def read_messages(connection: sqlite3.Connection, session_id: SessionId) -> list[Message]:
    """Return a session's messages in their order."""
    return _plain(_read(connection, "session_id = ?", (session_id,)))


def read_for_model(
    connection: sqlite3.Connection,
    session_id: SessionId,
    summary: MessageId,
    run_id: RunId | None,
) -> list[Message]:
    """Return the messages that a model gets: from the summary on, the messages of a run last."""
    where = (
        "session_id = ? AND NOT withdrawn"
        " AND seq >= coalesce((SELECT m.seq FROM messages m WHERE m.id = ?), 0)"
    )
    found = _read(connection, where, (session_id, summary))
    own = set()
    if run_id is not None:
        rows = connection.execute("SELECT id FROM messages WHERE run_id = ?", (run_id,))
        own = {row[0] for row in rows}
    return sorted(_plain(found), key=lambda message: message.id in own)


def read_run_messages(
    connection: sqlite3.Connection, run_ids: Sequence[RunId]
) -> dict[RunId, list[StoredMessage]]:
    """Return the messages of some runs, each run's in their order."""
    found: dict[RunId, list[StoredMessage]] = {run_id: [] for run_id in run_ids}
    where = f"run_id IN ({', '.join('?' * len(run_ids))})"
    owners = dict(connection.execute(f"SELECT id, run_id FROM messages WHERE {where}", run_ids))
    for stored in _read(connection, where, run_ids):
        found[owners[stored.message.id]].append(stored)
    return found


def read_user_messages(
    connection: sqlite3.Connection, session_id: SessionId | None
) -> list[Message]:
    """Return the user's messages of a session, or of all, the newest first."""
    if session_id is None:
        return _plain(_read(connection, "role = 'user'", (), "created_at DESC, n DESC"))
    return _plain(_read(connection, "session_id = ? AND role = 'user'", (session_id,), "seq DESC"))


def read_unfinished(connection: sqlite3.Connection, session_id: SessionId) -> list[Message]:
    """Return a session's unfinished messages in their order."""
    return _plain(_read(connection, "session_id = ? AND finished_at IS NULL", (session_id,)))


def _plain(found: Sequence[StoredMessage]) -> list[Message]:
    return [each.message for each in found]


def _read(
    connection: sqlite3.Connection, where: str, values: Sequence[str], order: str = "seq"
) -> list[StoredMessage]:
    """Return the messages that a condition on the table selects, with their parts."""
    rows = connection.execute(
        "SELECT id, session_id, role, model, provider, is_summary_message, created_at, updated_at,"
        f" finished_at FROM messages WHERE {where} ORDER BY {order}",
        values,
    ).fetchall()
    parts = _read_parts(connection, where, values)
    return [_message(row, parts.get(row[0], [])) for row in rows]


def _read_parts(
    connection: sqlite3.Connection, where: str, values: Sequence[str]
) -> dict[MessageId, list[Part]]:
    """Return the parts of the selected messages, each with the text of its chunks."""
    appended: dict[tuple[MessageId, int], str] = {}
    chunks = connection.execute(
        "SELECT message_id, idx, text FROM messages JOIN chunks ON message_id = id"
        f" WHERE {where} ORDER BY message_id, idx, chunks.n",
        values,
    )
    for place, rows in groupby(chunks, key=lambda row: (row[0], row[1])):
        appended[place] = "".join(row[2] for row in rows)
    parts: dict[MessageId, list[Part]] = {}
    for message_id, idx, kind, data in connection.execute(
        "SELECT message_id, idx, type, data FROM messages JOIN parts ON message_id = id"
        f" WHERE {where} ORDER BY message_id, idx",
        values,
    ):
        part = read_part(kind, data, f"part {idx} of message {message_id}")
        text = appended.get((message_id, idx))
        parts.setdefault(message_id, []).append(grown(part, text) if text else part)
    return parts


def _message(row: Row, parts: Sequence[Part]) -> StoredMessage:
    (id_, session, role, model, provider, is_summary, created, updated, finished) = row
    message = Message(
        id=id_,
        session_id=session,
        role=read_word(role, Role, f"the role of message {id_}"),
        parts=tuple(parts),
        model=model,
        provider=provider,
        is_summary_message=bool(is_summary),
        created_at=created,
        updated_at=updated,
    )
    return StoredMessage(message=message, finished=finished is not None)
