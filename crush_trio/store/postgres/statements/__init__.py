"""The SQL statements, by table, and `apply`, which dispatches each change to its module.

`sessions` (with files and read marks), `messages`, `runs`, `asks`, `event_tail`; `pages` reads long
lists; `store.columns` converts columns to values. They are those of the SQLite store in the other
dialect, with the workspace in every condition; the conformance tests compare the two.
"""

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
from crush_trio.store.postgres.statements import asks, event_tail, messages, runs, sessions
from crush_trio.store.postgres.transaction import Transaction


def apply(transaction: Transaction, changes: Sequence[Change]) -> None:
    """Apply *changes*. Raises `SessionNotFound` and the like; the caller then rolls back.

    In a pipeline it may raise nothing: then the transaction is doubtful.
    """
    for keep, group in groupby(map(storable, changes), key=_events_to_keep):
        if keep is not None:
            event_tail.keep(transaction, cast("list[TailKept]", list(group)))
        else:
            for change in group:
                _apply(transaction, change)


def _events_to_keep(change: Change) -> int | None:
    """Return how many events to keep with this one; None for changes that are not `TailKept`."""
    return change.keep if isinstance(change, TailKept) else None


def _apply(transaction: Transaction, change: Change) -> None:
    match change:
        case SessionCreated() | SessionEdited() | UsageAdded() | SessionDeleted() | SessionPruned():
            sessions.apply(transaction, change)
        case MessageCreated() | PartPut() | TextAppended() | PartsCut():
            messages.apply(transaction, change)
        case MessageFinished() | MessageDeleted():
            messages.apply(transaction, change)
        case RunAccepted() | RunRetracted() | RunMoved() | RunEdited() | RunEnded():
            runs.apply(transaction, change)
        case RunRecorded():
            runs.record(transaction, change)
        case AskOpened() | AskResolved():
            asks.apply(transaction, change)
        case FileRead():
            sessions.apply_read(transaction, change)
        case BootClosed():
            event_tail.close(transaction, change)
        case TailKept():
            event_tail.keep(transaction, (change,))
        case _:
            assert_never(change)
