"""Statements about what waits for a person's answer."""

import sqlite3
from typing import TypeAlias, assert_never

from crush_trio.store.base import PendingAsk
from crush_trio.store.changes import AskOpened, AskResolved

AskChange: TypeAlias = AskOpened | AskResolved
"""The changes that are made here."""


def apply(connection: sqlite3.Connection, change: AskChange) -> None:
    """Make *change* true. The first resolution counts; opening an ask again changes nothing."""
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
    """Return the asks that wait, the oldest first."""
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
