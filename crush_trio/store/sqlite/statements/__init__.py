"""The SQL statements, by table, and `apply`, which dispatches each change to its module.

`sessions` (with files and read marks), `messages`, `runs` (with asks), `event_tail`; `pages` reads
long lists; `store.columns` converts columns to values.
"""

import sqlite3
from collections.abc import Sequence
from itertools import groupby
from typing import assert_never, cast

from crush_trio.store.changes import (
    AskOpened,
    AskResolved,
    BootClosed,
    Change,
    FileRead,
    MessageCreated,
    MessageDeleted,
    MessageFinished,
    PartPut,
    PartsCut,
    RunAccepted,
    RunEdited,
    RunEnded,
    RunMoved,
    RunRecorded,
    RunRetracted,
    SessionCreated,
    SessionDeleted,
    SessionEdited,
    SessionPruned,
    TailKept,
    TextAppended,
    UsageAdded,
    storable,
)
from crush_trio.store.sqlite.statements import event_tail, messages, runs, sessions


def apply(connection: sqlite3.Connection, changes: Sequence[Change], boot_id: str) -> None:
    """Apply *changes* for the start *boot_id*, inside the caller's transaction.

    Raises `SessionNotFound` and the like; the caller then rolls back.
    """
    for keep, group in groupby(map(storable, changes), key=_events_to_keep):
        if keep is not None:
            event_tail.keep(connection, cast("list[TailKept]", list(group)), boot_id)
        else:
            for change in group:
                _apply(connection, change, boot_id)


def _events_to_keep(change: Change) -> int | None:
    """Return how many events to keep with this one; None for changes that are not `TailKept`."""
    return change.keep if isinstance(change, TailKept) else None


def _apply(connection: sqlite3.Connection, change: Change, boot_id: str) -> None:
    match change:
        case SessionCreated() | SessionEdited() | UsageAdded() | SessionDeleted() | SessionPruned():
            sessions.apply(connection, change)
        case MessageCreated() | PartPut() | TextAppended() | PartsCut():
            messages.apply(connection, change)
        case MessageFinished() | MessageDeleted():
            messages.apply(connection, change)
        case RunAccepted() | RunRetracted() | RunMoved() | RunEdited() | RunEnded():
            runs.apply(connection, change, boot_id)
        case RunRecorded():
            runs.record(connection, change)
        case AskOpened() | AskResolved():
            runs.apply_ask(connection, change)
        case FileRead():
            sessions.apply_read(connection, change)
        case BootClosed():
            event_tail.close(connection, change, boot_id)
        case TailKept():
            event_tail.keep(connection, (change,), boot_id)
        case _:
            assert_never(change)
