"""Statements about runs and their recordings.

A run that has ended is not changed again, so an ending that is written twice, or a move that comes
late, has no effect.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final, TypeAlias, assert_never

from crush_trio.errors import RunIdTaken, RunNotFound
from crush_trio.store.base import UNPLACED, Orphan, StoredEnding, StoredRun
from crush_trio.store.changes import (
    RunAccepted,
    RunEdited,
    RunEnded,
    RunMoved,
    RunRecorded,
    RunRetracted,
)
from crush_trio.store.columns import Row, json_column, read_json, read_word
from crush_trio.store.postgres.transaction import Transaction
from crush_trio.wire.codec import encode
from crush_trio.wire.ids import RunId, SessionId
from crush_trio.wire.requests import Attachment
from crush_trio.wire.runs import RunKind, RunState, RunView

RunChange: TypeAlias = RunAccepted | RunRetracted | RunMoved | RunEdited | RunEnded
"""The changes that `apply` takes."""

_ACCEPT: Final = """
    INSERT INTO runs (
        workspace, n, id, run_id, session_id, kind, state, seq, boot_id, prompt, attachments,
        accepted_at, started_at
    )
    VALUES (
        %(w)s, %(n)s, %(id)s, %(run_id)s, %(session_id)s, %(kind)s, %(state)s, %(seq)s,
        %(boot_id)s, %(prompt)s, %(attachments)s, %(accepted_at)s, %(started_at)s
    )
    ON CONFLICT DO NOTHING
"""

_MOVE: Final = """
    UPDATE runs SET
        state = %(state)s,
        started_at = CASE
            WHEN %(active)s THEN coalesce(started_at, %(at)s) ELSE started_at
        END
    WHERE workspace = %(w)s AND id = %(id)s AND ended_at IS NULL
"""

_EDIT: Final = """
    UPDATE runs SET prompt = %(prompt)s
    WHERE workspace = %(w)s AND id = %(id)s AND ended_at IS NULL
"""

_END: Final = """
    UPDATE runs SET
        state = %(state)s,
        started_at = coalesce(started_at, %(started_at)s),
        ended_at = %(ended_at)s,
        message_id = %(message_id)s,
        text = %(text)s,
        error = %(error)s,
        folded_into = %(folded_into)s,
        notices = %(notices)s,
        attachments = NULL,
        ending_seq = CASE WHEN ending_boot = %(boot_id)s THEN ending_seq END,
        ending_boot = %(boot_id)s
    WHERE workspace = %(w)s AND id = %(id)s AND ended_at IS NULL
"""

_WITHDRAW: Final = """
    UPDATE messages SET withdrawn = true WHERE workspace = %(w)s AND run_id = %(id)s
    AND EXISTS (
        SELECT 1 FROM runs WHERE workspace = %(w)s AND id = %(id)s AND ended_at IS NULL
    )
"""
"""Before the ending, so that it happens only if the ending does."""

_RECORD: Final = """
    INSERT INTO recordings (workspace, run_id, n, session_id, data)
    SELECT workspace, %(run_id)s, %(n)s, id, %(data)s
    FROM sessions WHERE workspace = %(w)s AND id = %(session_id)s
    ON CONFLICT DO NOTHING
"""

_VIEW: Final = (
    "id", "run_id", "session_id", "kind", "state", "seq", "accepted_at", "started_at", "ended_at",
    "message_id", "text", "error", "folded_into", "notices",
)  # fmt: skip
_VIEW_COLUMNS: Final = ", ".join(f"runs.{name}" for name in _VIEW)
_COLUMNS: Final = (
    f"{_VIEW_COLUMNS}, boot_id, prompt, attachments, ("
    " SELECT messages.id FROM messages"
    " WHERE messages.workspace = runs.workspace AND messages.id = runs.id)"
)

_SHORT_COLUMNS: Final = _VIEW_COLUMNS.replace(
    "runs.text", "CASE WHEN length(runs.text) <= %(most)s THEN runs.text ELSE '' END"
)
_ENDINGS: Final = f"""
    SELECT length(runs.text) > %(most)s, coalesce(ending_seq, {UNPLACED} + n), {_SHORT_COLUMNS}
    FROM runs WHERE workspace = %(w)s AND ending_boot = %(boot)s AND ended_at IS NOT NULL
"""
_PLACED: Final = "AND ending_seq > %(after)s AND ending_seq <= %(upto)s ORDER BY ending_seq"
_UNPLACED: Final = f"""
    AND ending_seq IS NULL AND n > %(after)s - {UNPLACED} AND n <= %(upto)s - {UNPLACED} ORDER BY n
"""


def apply(transaction: Transaction, change: RunChange) -> None:
    """Apply *change*.

    Raises `RunIdTaken`, or `RunNotFound` if the run does not exist. Accepting the same run again
    changes nothing, and neither does retracting one that does not exist.
    """
    match change:
        case RunAccepted():
            _accept(transaction, change)
        case RunRetracted():
            for table, column in (("runs", "id"), ("messages", "run_id")):
                transaction.run(
                    f"DELETE FROM {table} WHERE workspace = %(w)s AND {column} = %(id)s",
                    id=change.id,
                )
        case RunMoved():
            transaction.require(
                partial(_require, transaction, change.id),
                _MOVE,
                id=change.id,
                state=change.state.value,
                active=change.state is RunState.ACTIVE,
                at=change.at,
            )
        case RunEdited():
            missing = partial(_require, transaction, change.id)
            transaction.require(missing, _EDIT, id=change.id, prompt=change.prompt)
        case RunEnded():
            _end(transaction, change)
        case _:
            assert_never(change)


def _accept(transaction: Transaction, change: RunAccepted) -> None:
    run = change.run

    def missing() -> None:
        if not transaction.exists("runs", run.id):
            raise RunIdTaken(run.run_id or "")

    transaction.require(
        missing,
        _ACCEPT,
        n=transaction.next_n(),
        id=run.id,
        run_id=run.run_id,
        session_id=run.session_id,
        kind=run.kind.value,
        state=run.state.value,
        seq=run.seq,
        boot_id=transaction.boot_id,
        prompt=change.prompt,
        attachments=encode(change.attachments) if change.attachments else None,
        accepted_at=run.accepted_at,
        started_at=run.started_at or None,
    )


def _end(transaction: Transaction, change: RunEnded) -> None:
    if change.withdrawn:
        transaction.run(_WITHDRAW, id=change.run.id)
    columns = _ending_columns(change.run, transaction.boot_id)
    if change.if_there:
        transaction.run(_END, **columns)
    else:
        transaction.require(partial(_require, transaction, change.run.id), _END, **columns)


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


def _require(transaction: Transaction, run_id: RunId) -> None:
    if not transaction.exists("runs", run_id):
        raise RunNotFound(run_id)


def record(transaction: Transaction, change: RunRecorded) -> None:
    """Store a piece of a recording, if its session exists."""
    transaction.run(
        _RECORD,
        run_id=change.run_id,
        n=change.n,
        session_id=change.session_id,
        data=change.data,
    )


# ── Reading ─────────────────────────────────────────────────────────────────────────────────────


def read_run(transaction: Transaction, run_id: RunId) -> StoredRun:
    """Return a run, by our id or else by its caller's, or raise `RunNotFound`."""
    row = transaction.one(
        f"SELECT {_COLUMNS} FROM runs WHERE workspace = %(w)s AND (id = %(id)s OR run_id = %(id)s)"
        " ORDER BY id = %(id)s DESC",
        id=run_id,
    )
    if row is None:
        raise RunNotFound(run_id)
    return _stored_run(row)


def read_runs(transaction: Transaction, session_id: SessionId | None, limit: int) -> list[RunView]:
    """Return the newest runs, of one session or of all, the newest first."""
    where = "" if session_id is None else "AND session_id = %(session_id)s"
    rows = transaction.run(
        f"SELECT {_VIEW_COLUMNS} FROM runs WHERE workspace = %(w)s {where}"
        " ORDER BY accepted_at DESC, seq DESC, n DESC LIMIT %(limit)s",
        session_id=session_id,
        limit=limit,
    )
    return [_view(row) for row in rows]


def read_orphans(transaction: Transaction, boot_id: str) -> list[Orphan]:
    """Return the runs without an ending from other starts than *boot_id*, as they were accepted."""
    rows = transaction.run(
        "SELECT runs.id, session_id, EXISTS ("
        " SELECT 1 FROM sessions"
        " WHERE sessions.workspace = runs.workspace AND sessions.id = session_id)"
        " FROM runs JOIN boots ON boots.workspace = runs.workspace AND boots.id = boot_id"
        " WHERE runs.workspace = %(w)s AND state IN ('accepted', 'queued', 'active')"
        " AND boot_id <> %(boot)s ORDER BY boots.n, seq",
        boot=boot_id,
    )
    return [Orphan(run_id, session_id, there) for run_id, session_id, there in rows]


def read_stored(transaction: Transaction, run_ids: Sequence[RunId]) -> list[StoredRun]:
    """Return runs by our ids, in the order of the ids."""
    rows = transaction.run(
        f"SELECT {_COLUMNS} FROM runs WHERE workspace = %(w)s AND id = ANY(%(ids)s)",
        ids=list(run_ids),
    )
    found = {run.view.id: run for run in map(_stored_run, rows)}
    return [found[run_id] for run_id in run_ids if run_id in found]


def read_recording(transaction: Transaction, run_id: RunId) -> list[str]:
    """Return the pieces of a run's recording in order."""
    rows = transaction.run(
        "SELECT data FROM recordings WHERE workspace = %(w)s AND run_id = %(id)s ORDER BY n",
        id=run_id,
    )
    return [data for (data,) in rows]


def read_endings(
    transaction: Transaction, boot_id: str, after: int, upto: int, texts: int
) -> Iterator[StoredEnding]:
    """Yield the endings of one start in a range of its events; texts longer than *texts* are cut.

    Those without a seq come last, in the order of acceptance, with a seq of `UNPLACED` or more.
    """
    stretch = {"boot": boot_id, "after": after, "upto": upto, "most": texts}
    for condition in (_PLACED, _UNPLACED):
        for cut, seq, *view in transaction.stream(_ENDINGS + condition, **stretch):
            yield StoredEnding(boot_id=boot_id, seq=seq, run=_view(view), cut=cut)


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
