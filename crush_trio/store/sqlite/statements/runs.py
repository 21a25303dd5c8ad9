"""Statements about runs, their recordings, and asks.

A run that has ended is not changed again, so an ending that is written twice, or a move that comes
late, has no effect.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias, assert_never

from attrs import asdict

from crush_trio.errors import RunIdTaken, RunNotFound
from crush_trio.store.base import UNPLACED, Orphan, PendingAsk, StoredEnding, StoredRun
from crush_trio.store.changes import (
    AskOpened,
    AskResolved,
    RunAccepted,
    RunEdited,
    RunEnded,
    RunMoved,
    RunRecorded,
    RunRetracted,
)
from crush_trio.store.columns import Row, json_column, read_json, read_word
from crush_trio.wire.codec import encode
from crush_trio.wire.ids import RunId, SessionId
from crush_trio.wire.requests import Attachment
from crush_trio.wire.runs import RunKind, RunState, RunView

RunChange: TypeAlias = RunAccepted | RunRetracted | RunMoved | RunEdited | RunEnded
"""The changes that `apply` takes."""

_ACCEPT: Final = """
    INSERT INTO runs (
        id, run_id, session_id, kind, state, seq, boot_id, prompt, attachments,
        accepted_at, started_at
    )
    VALUES (
        :id, :run_id, :session_id, :kind, :state, :seq, :boot_id, :prompt, :attachments,
        :accepted_at, :started_at
    )
    ON CONFLICT DO NOTHING
"""

_MOVE: Final = """
    UPDATE runs SET
        state = :state,
        started_at = CASE WHEN :state = 'active' THEN coalesce(started_at, :at) ELSE started_at END
    WHERE id = :id AND ended_at IS NULL
"""

_EDIT: Final = "UPDATE runs SET prompt = :prompt WHERE id = :id AND ended_at IS NULL"

_END: Final = """
    UPDATE runs SET
        state = :state,
        started_at = coalesce(started_at, :started_at),
        ended_at = :ended_at,
        message_id = :message_id,
        text = :text,
        error = :error,
        folded_into = :folded_into,
        notices = :notices,
        attachments = NULL,
        ending_seq = CASE WHEN ending_boot = :boot_id THEN ending_seq END,
        ending_boot = :boot_id
    WHERE id = :id AND ended_at IS NULL
"""

_VIEW: Final = (
    "id", "run_id", "session_id", "kind", "state", "seq", "accepted_at", "started_at", "ended_at",
    "message_id", "text", "error", "folded_into", "notices",
)  # fmt: skip
_VIEW_COLUMNS: Final = ", ".join(f"runs.{name}" for name in _VIEW)
_COLUMNS: Final = (
    f"{_VIEW_COLUMNS}, boot_id, prompt, attachments,"
    " (SELECT messages.id FROM messages WHERE messages.id = runs.id)"
)

_SHORT_COLUMNS: Final = _VIEW_COLUMNS.replace(
    "runs.text", "CASE WHEN length(runs.text) <= :most THEN runs.text ELSE '' END"
)
_ENDINGS: Final = f"""
    SELECT length(runs.text) > :most, coalesce(ending_seq, {UNPLACED} + n), {_SHORT_COLUMNS}
    FROM runs WHERE ending_boot = :boot AND ended_at IS NOT NULL
"""
_PLACED: Final = "AND ending_seq > :after AND ending_seq <= :upto ORDER BY ending_seq"
_UNPLACED: Final = f"""
    AND ending_seq IS NULL AND n > :after - {UNPLACED} AND n <= :upto - {UNPLACED} ORDER BY n
"""


def apply(connection: sqlite3.Connection, change: RunChange, boot_id: str) -> None:
    """Apply *change* for the start *boot_id*.

    Raises `RunIdTaken`, or `RunNotFound` if the run does not exist. Accepting the same run again
    changes nothing, and neither does retracting one that does not exist.
    """
    match change:
        case RunAccepted():
            _accept(connection, change, boot_id)
        case RunRetracted():
            connection.execute("DELETE FROM runs WHERE id = ?", (change.id,))
            connection.execute("DELETE FROM messages WHERE run_id = ?", (change.id,))
        case RunMoved():
            columns = {"id": change.id, "state": change.state.value, "at": change.at}
            if not connection.execute(_MOVE, columns).rowcount:
                _require(connection, change.id)
        case RunEdited():
            columns = {"id": change.id, "prompt": change.prompt}
            if not connection.execute(_EDIT, columns).rowcount:
                _require(connection, change.id)
        case RunEnded():
            _end(connection, change, boot_id)
        case _:
            assert_never(change)


def _accept(connection: sqlite3.Connection, change: RunAccepted, boot_id: str) -> None:
    run = change.run
    accepted = connection.execute(
        _ACCEPT,
        {
            "id": run.id,
            "run_id": run.run_id,
            "session_id": run.session_id,
            "kind": run.kind.value,
            "state": run.state.value,
            "seq": run.seq,
            "boot_id": boot_id,
            "prompt": change.prompt,
            "attachments": encode(change.attachments) if change.attachments else None,
            "accepted_at": run.accepted_at,
            "started_at": run.started_at or None,
        },
    ).rowcount
    if not accepted and not _exists(connection, run.id):
        raise RunIdTaken(run.run_id or "")


def _end(connection: sqlite3.Connection, change: RunEnded, boot_id: str) -> None:
    run_id = change.run.id
    if not connection.execute(_END, _ending_columns(change.run, boot_id)).rowcount:
        if not change.if_there:
            _require(connection, run_id)
    elif change.withdrawn:
        connection.execute("UPDATE messages SET withdrawn = 1 WHERE run_id = ?", (run_id,))


def _ending_columns(run: RunView, boot_id: str) -> dict[str, object]:
    return {
        "id": run.id,
        "boot_id": boot_id,
        "state": run.state.value,
        "started_at": run.started_at or None,
        "ended_at": run.ended_at,
        "message_id": run.message_id,
        "text": run.text,
        "error": run.error,
        "folded_into": run.folded_into,
        "notices": json_column(run.notices) if run.notices else None,
    }


def _exists(connection: sqlite3.Connection, run_id: RunId) -> bool:
    return connection.execute("SELECT 1 FROM runs WHERE id = ?", (run_id,)).fetchone() is not None


def _require(connection: sqlite3.Connection, run_id: RunId) -> None:
    if not _exists(connection, run_id):
        raise RunNotFound(run_id)


# ── Reading ─────────────────────────────────────────────────────────────────────────────────────


def read_run(connection: sqlite3.Connection, run_id: RunId) -> StoredRun:
    """Return a run, by our id or else by its caller's, or raise `RunNotFound`."""
    row = connection.execute(
        f"SELECT {_COLUMNS} FROM runs WHERE id = :id OR run_id = :id ORDER BY id = :id DESC",
        {"id": run_id},
    ).fetchone()
    if row is None:
        raise RunNotFound(run_id)
    return _stored_run(row)


def read_runs(
    connection: sqlite3.Connection, session_id: SessionId | None, limit: int
) -> list[RunView]:
    """Return the newest runs, of one session or of all, the newest first."""
    where = "" if session_id is None else "WHERE session_id = :session_id"
    rows = connection.execute(
        f"SELECT {_VIEW_COLUMNS} FROM runs {where}"
        " ORDER BY accepted_at DESC, seq DESC, n DESC LIMIT :limit",
        {"session_id": session_id, "limit": limit},
    )
    return [_view(row) for row in rows]


def read_orphans(connection: sqlite3.Connection, boot_id: str) -> list[Orphan]:
    """Return the runs without an ending from other starts than *boot_id*, as they were accepted."""
    rows = connection.execute(
        "SELECT runs.id, session_id, EXISTS (SELECT 1 FROM sessions WHERE sessions.id = session_id)"
        " FROM runs JOIN boots ON boots.id = boot_id"
        " WHERE state IN ('accepted', 'queued', 'active') AND boot_id <> ?"
        " ORDER BY boots.n, seq",
        (boot_id,),
    )
    return [Orphan(run_id, session_id, bool(there)) for run_id, session_id, there in rows]


def read_stored(connection: sqlite3.Connection, run_ids: Sequence[RunId]) -> list[StoredRun]:
    """Return runs by our ids, in the order of the ids."""
    rows = connection.execute(
        f"SELECT {_COLUMNS} FROM runs WHERE id IN ({', '.join('?' * len(run_ids))})", run_ids
    )
    found = {run.view.id: run for run in map(_stored_run, rows)}
    return [found[run_id] for run_id in run_ids if run_id in found]


_RECORD: Final = """
    INSERT INTO recordings (run_id, n, session_id, data)
    SELECT :run_id, :n, id, :data FROM sessions WHERE id = :session_id
    ON CONFLICT DO NOTHING
"""


def record(connection: sqlite3.Connection, change: RunRecorded) -> None:
    """Store a piece of a recording, if its session exists."""
    connection.execute(_RECORD, asdict(change))


def read_recording(connection: sqlite3.Connection, run_id: RunId) -> list[str]:
    """Return the pieces of a run's recording in order."""
    rows = connection.execute("SELECT data FROM recordings WHERE run_id = ? ORDER BY n", (run_id,))
    return [data for (data,) in rows]


def read_endings(
    connection: sqlite3.Connection, boot_id: str, after: int, upto: int, texts: int
) -> Iterator[StoredEnding]:
    """Yield the endings of one start in a range of its events; texts longer than *texts* are cut.

    Those without a seq come last, in the order of acceptance, with a seq of `UNPLACED` or more.
    """
    stretch = {"boot": boot_id, "after": after, "upto": upto, "most": texts}
    for condition in (_PLACED, _UNPLACED):
        for cut, seq, *view in connection.execute(_ENDINGS + condition, stretch):
            yield StoredEnding(boot_id=boot_id, seq=seq, run=_view(view), cut=bool(cut))


def _stored_run(row: Row) -> StoredRun:
    *view, boot_id, prompt, attachments, prompt_message_id = row
    where = f"the attachments of run {row[0]}"
    return StoredRun(
        view=_view(view),
        boot_id=boot_id,
        prompt=prompt,
        attachments=read_json(attachments, tuple[Attachment, ...], where) if attachments else (),
        prompt_message_id=prompt_message_id,
    )


def _view(row: Row) -> RunView:
    columns = dict(zip(_VIEW, row, strict=True))
    columns["kind"] = read_word(columns["kind"], RunKind, f"the kind of run {columns['id']}")
    columns["state"] = read_word(columns["state"], RunState, f"the state of run {columns['id']}")
    columns["started_at"] = columns["started_at"] or 0
    columns["ended_at"] = columns["ended_at"] or 0
    notices, where = columns["notices"], f"the notices of run {columns['id']}"
    columns["notices"] = read_json(notices, tuple[str, ...], where) if notices else ()
    return RunView(**columns)


# ── Asks ────────────────────────────────────────────────────────────────────────────────────────

AskChange: TypeAlias = AskOpened | AskResolved
"""The changes that `apply_ask` takes."""


def apply_ask(connection: sqlite3.Connection, change: AskChange) -> None:
    """Apply *change*. The first resolution counts; opening an ask again changes nothing."""
    match change:
        case AskOpened():
            connection.execute(
                "INSERT INTO asks (id, kind, session_id, run_id, tool_call_id, payload, created_at)"
                " VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING",
                (
                    change.id,
                    change.kind,
                    change.session_id,
                    change.run_id,
                    change.tool_call_id,
                    change.payload,
                    change.at,
                ),
            )
        case AskResolved():
            connection.execute(
                "UPDATE asks SET resolved_at = ?, resolution = ?"
                " WHERE id = ? AND resolved_at IS NULL",
                (change.at, change.resolution, change.id),
            )
        case _:
            assert_never(change)


def read_pending(connection: sqlite3.Connection) -> list[PendingAsk]:
    """Return the asks without an answer, the oldest first."""
    rows = connection.execute(
        "SELECT id, kind, session_id, run_id, tool_call_id, payload, created_at"
        " FROM asks WHERE resolved_at IS NULL ORDER BY created_at, n"
    )
    return [
        PendingAsk(
            id=id_,
            kind=kind,
            session_id=session_id,
            run_id=run_id,
            tool_call_id=tool_call_id,
            payload=payload,
            created_at=created_at,
        )
        for id_, kind, session_id, run_id, tool_call_id, payload, created_at in rows
    ]
