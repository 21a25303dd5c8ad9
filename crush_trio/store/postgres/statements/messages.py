"""Statements about messages, their parts, and the text that is appended to them.

While a message grows, new text is added as rows of `chunks`, and existing rows are neither read nor
written: n pieces cost n rows. When the message is finished, its chunks are merged into its parts,
once.
"""

from collections.abc import Sequence
from functools import partial
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
from crush_trio.store.postgres.transaction import Transaction
from crush_trio.wire.ids import MessageId, RunId, SessionId
from crush_trio.wire.messages import Message, Part, Role

MessageChange: TypeAlias = (
    MessageCreated | PartPut | TextAppended | PartsCut | MessageFinished | MessageDeleted
)
"""The changes that `apply` takes."""

_CREATE: Final = """
    WITH created AS (
        INSERT INTO messages (
            workspace, n, id, session_id, seq, role, model, provider, is_summary_message,
            created_at, updated_at, finished_at, run_id
        )
        SELECT workspace, %(n)s, %(id)s, id, last_seq + 1, %(role)s, %(model)s, %(provider)s,
            %(is_summary_message)s, %(created_at)s, %(updated_at)s, %(finished_at)s, %(run_id)s
        FROM sessions WHERE workspace = %(w)s AND id = %(session_id)s AND (
            %(unconditional)s
            OR EXISTS (SELECT 1 FROM runs WHERE workspace = %(w)s AND id = %(run_id)s::text)
        )
        ON CONFLICT (workspace, id) DO NOTHING
        RETURNING workspace, id
    ), filled AS (
        INSERT INTO parts (workspace, message_id, idx, type, data)
        SELECT created.workspace, created.id, part.idx - 1, part.type, part.data
        FROM created, unnest(%(types)s::text[], %(data)s::text[])
            WITH ORDINALITY AS part (type, data, idx)
    )
    SELECT 1 FROM created
"""

_PUT: Final = """
    INSERT INTO parts (workspace, message_id, idx, type, data)
    SELECT workspace, id, %(idx)s, %(type)s, %(data)s
    FROM messages WHERE workspace = %(w)s AND id = %(id)s
    ON CONFLICT (workspace, message_id, idx)
    DO UPDATE SET type = excluded.type, data = excluded.data
"""

_APPEND: Final = """
    INSERT INTO chunks (workspace, message_id, idx, n, text)
    SELECT workspace, message_id, idx, (
        SELECT coalesce(max(n) + 1, 0) FROM chunks
        WHERE workspace = %(w)s AND message_id = %(id)s AND idx = %(idx)s
    ), %(text)s
    FROM parts
    WHERE workspace = %(w)s AND message_id = %(id)s AND idx = %(idx)s
    AND type IN ('text', 'reasoning')
"""

_TOUCH: Final = """
    UPDATE messages SET updated_at = %(at)s
    WHERE workspace = %(w)s AND id = %(id)s AND updated_at < %(at)s
"""

_FINISH: Final = """
    UPDATE messages SET finished_at = coalesce(finished_at, %(at)s)
    WHERE workspace = %(w)s AND id = %(id)s
"""


def apply(transaction: Transaction, change: MessageChange) -> None:
    """Apply *change*; raise `MessageNotFound` if the message does not exist.

    Creating a message that exists already changes nothing.
    """
    match change:
        case MessageCreated():
            _create(transaction, change)
        case PartPut():
            kind, data = part_columns(change.part)
            missing = partial(_missing, change.message_id)
            transaction.require(
                missing, _PUT, id=change.message_id, idx=change.index, type=kind, data=data
            )
            transaction.run(_TOUCH, id=change.message_id, at=change.at)
        case TextAppended():
            _append(transaction, change)
        case PartsCut():
            _cut(transaction, change)
        case MessageFinished():
            missing = partial(_missing, change.message_id)
            transaction.require(missing, _FINISH, id=change.message_id, at=change.at)
            transaction.run(_TOUCH, id=change.message_id, at=change.at)
            _merge_chunks(transaction, change.message_id)
        case MessageDeleted():
            transaction.require(
                partial(_missing, change.id),
                "DELETE FROM messages WHERE workspace = %(w)s AND id = %(id)s",
                id=change.id,
            )
        case _:
            assert_never(change)


def _missing(message_id: MessageId) -> None:
    raise MessageNotFound(message_id)


def _create(transaction: Transaction, change: MessageCreated) -> None:
    message = change.message
    parts = [part_columns(part) for part in message.parts]
    columns = {
        "n": transaction.next_n(),
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
        "unconditional": change.run_id is None or not change.if_there,
        "types": [kind for kind, _ in parts],
        "data": [data for _, data in parts],
    }

    def missing() -> None:
        if not transaction.exists("messages", message.id):
            raise SessionNotFound(message.session_id)

    if change.if_there:
        transaction.run(_CREATE, **columns)
    else:
        transaction.require(missing, _CREATE, **columns)


def _append(transaction: Transaction, change: TextAppended) -> None:
    def missing() -> None:
        _require(transaction, change.message_id)
        raise MessageNotFound(f"{change.message_id} has no text at part {change.index}")

    transaction.require(missing, _APPEND, id=change.message_id, idx=change.index, text=change.text)
    transaction.run(_TOUCH, id=change.message_id, at=change.at)


def _cut(transaction: Transaction, change: PartsCut) -> None:
    _require(transaction, change.message_id)
    transaction.run(
        "DELETE FROM parts WHERE workspace = %(w)s AND message_id = %(id)s AND idx >= %(length)s",
        id=change.message_id,
        length=change.length,
    )
    transaction.run(_TOUCH, id=change.message_id, at=change.at)


def _merge_chunks(transaction: Transaction, message_id: MessageId) -> None:
    """Move the text of a message from its chunks into its parts."""
    rows = transaction.run(
        "SELECT idx, text FROM chunks WHERE workspace = %(w)s AND message_id = %(id)s"
        " ORDER BY idx, n",
        id=message_id,
    ).fetchall()
    for idx, texts in groupby(rows, key=lambda row: row[0]):
        row = transaction.one(
            "SELECT type, data FROM parts"
            " WHERE workspace = %(w)s AND message_id = %(id)s AND idx = %(idx)s",
            id=message_id,
            idx=idx,
        )
        assert row is not None, "a chunk belongs to a part"
        part = read_part(row[0], row[1], f"part {idx} of message {message_id}")
        whole = grown(part, "".join(text for _, text in texts))
        transaction.run(
            "UPDATE parts SET data = %(data)s"
            " WHERE workspace = %(w)s AND message_id = %(id)s AND idx = %(idx)s",
            id=message_id,
            idx=idx,
            data=part_columns(whole)[1],
        )
    if rows:
        transaction.run(
            "DELETE FROM chunks WHERE workspace = %(w)s AND message_id = %(id)s", id=message_id
        )


def _require(transaction: Transaction, message_id: MessageId) -> None:
    if not transaction.exists("messages", message_id):
        raise MessageNotFound(message_id)


# ── Reading ─────────────────────────────────────────────────────────────────────────────────────


def read_message(transaction: Transaction, message_id: MessageId) -> StoredMessage:
    """Return a message, or raise `MessageNotFound`."""
    found = _read(transaction, "id = %(id)s", {"id": message_id})
    if not found:
        raise MessageNotFound(message_id)
    return found[0]


def read_messages(transaction: Transaction, session_id: SessionId) -> list[Message]:
    """Return a session's messages in their order."""
    return _plain(_read(transaction, "session_id = %(session)s", {"session": session_id}))


def read_for_model(
    transaction: Transaction,
    session_id: SessionId,
    summary: MessageId,
    run_id: RunId | None,
) -> list[Message]:
    """Return the messages that a model gets: from the summary on, the messages of a run last."""
    where = (
        "session_id = %(session)s AND NOT withdrawn AND seq >= coalesce(("
        " SELECT m.seq FROM messages m WHERE m.workspace = %(w)s AND m.id = %(summary)s), 0)"
    )
    found = _read(transaction, where, {"session": session_id, "summary": summary})
    own = set()
    if run_id is not None:
        rows = transaction.run(
            "SELECT id FROM messages WHERE workspace = %(w)s AND run_id = %(id)s", id=run_id
        )
        own = {row[0] for row in rows}
    return sorted(_plain(found), key=lambda message: message.id in own)


def read_run_messages(
    transaction: Transaction, run_ids: Sequence[RunId]
) -> dict[RunId, list[StoredMessage]]:
    """Return the messages of some runs, each run's in their order."""
    found: dict[RunId, list[StoredMessage]] = {run_id: [] for run_id in run_ids}
    where = "run_id = ANY(%(ids)s)"
    values: dict[str, object] = {"ids": list(run_ids)}
    rows = transaction.run(
        f"SELECT id, run_id FROM messages WHERE workspace = %(w)s AND {where}", **values
    )
    owners: dict[MessageId, RunId] = dict(rows.fetchall())
    for stored in _read(transaction, where, values):
        found[owners[stored.message.id]].append(stored)
    return found


def read_user_messages(transaction: Transaction, session_id: SessionId | None) -> list[Message]:
    """Return the user's messages of a session, or of all, the newest first."""
    if session_id is None:
        return _plain(_read(transaction, "role = 'user'", {}, "created_at DESC, n DESC"))
    where = "session_id = %(session)s AND role = 'user'"
    return _plain(_read(transaction, where, {"session": session_id}, "seq DESC"))


def read_unfinished(transaction: Transaction, session_id: SessionId) -> list[Message]:
    """Return a session's unfinished messages in their order."""
    where = "session_id = %(session)s AND finished_at IS NULL"
    return _plain(_read(transaction, where, {"session": session_id}))


def _plain(found: Sequence[StoredMessage]) -> list[Message]:
    return [each.message for each in found]


def _read(
    transaction: Transaction, where: str, values: dict[str, object], order: str = "seq"
) -> list[StoredMessage]:
    """Return the messages that a condition on the table selects, with their parts."""
    rows = transaction.run(
        "SELECT id, session_id, role, model, provider, is_summary_message, created_at, updated_at,"
        f" finished_at FROM messages WHERE workspace = %(w)s AND {where} ORDER BY {order}",
        **values,
    ).fetchall()
    parts = _read_parts(transaction, where, values)
    return [_message(row, parts.get(row[0], [])) for row in rows]


def _read_parts(
    transaction: Transaction, where: str, values: dict[str, object]
) -> dict[MessageId, list[Part]]:
    """Return the parts of the selected messages, each with the text of its chunks."""
    chosen = f"(SELECT id FROM messages WHERE workspace = %(w)s AND {where})"
    appended: dict[tuple[MessageId, int], str] = {}
    chunks = transaction.run(
        "SELECT message_id, idx, text FROM chunks"
        f" WHERE workspace = %(w)s AND message_id IN {chosen} ORDER BY message_id, idx, n",
        **values,
    )
    for place, rows in groupby(chunks, key=lambda row: (row[0], row[1])):
        appended[place] = "".join(row[2] for row in rows)
    parts: dict[MessageId, list[Part]] = {}
    for message_id, idx, kind, data in transaction.run(
        "SELECT message_id, idx, type, data FROM parts"
        f" WHERE workspace = %(w)s AND message_id IN {chosen} ORDER BY message_id, idx",
        **values,
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
        is_summary_message=is_summary,
        created_at=created,
        updated_at=updated,
    )
    return StoredMessage(message=message, finished=finished is not None)
