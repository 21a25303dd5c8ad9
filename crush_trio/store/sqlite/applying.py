"""Which module's business each change is."""

import sqlite3
from typing import assert_never

from crush_trio.store._rules import admitted
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
    RunRetracted,
    SessionCreated,
    SessionDeleted,
    SessionEdited,
    TailKept,
    TextAppended,
    UsageAdded,
)
from crush_trio.store.sqlite import asks, files, messages, runs, sessions, tail


def apply(connection: sqlite3.Connection, change: Change, boot_id: str) -> None:
    """Make *change* true, in the name of the start *boot_id*, inside the caller's transaction.

    Raises what is wrong with it (`SessionNotFound` and the like); the caller then rolls back.
    """
    change = admitted(change)
    match change:
        case SessionCreated() | SessionEdited() | UsageAdded() | SessionDeleted():
            sessions.apply(connection, change)
        case MessageCreated() | PartPut() | TextAppended() | PartsCut():
            messages.apply(connection, change)
        case MessageFinished() | MessageDeleted():
            messages.apply(connection, change)
        case RunAccepted() | RunRetracted() | RunMoved() | RunEdited() | RunEnded():
            runs.apply(connection, change, boot_id)
        case AskOpened() | AskResolved():
            asks.apply(connection, change)
        case FileRead():
            files.apply(connection, change)
        case TailKept() | BootClosed():
            tail.apply(connection, change, boot_id)
        case _:
            assert_never(change)
