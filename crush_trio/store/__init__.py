"""Stores: the durable tables of a workspace.

`base` has the protocols, one per consumer. `changes` are the values that can be written, `commit`
is a write under way, `pages` are long lists, `errors` are the errors of every store. `memory` keeps
everything in memory; `sqlite` is the embedded database; `open` chooses between them by a URL. `go_import` reads the Go program's
database.
"""

from crush_trio.store.base import (
    AskReads,
    Changes,
    FileHistory,
    MessageReads,
    PendingAsk,
    RunReads,
    SessionReads,
    Store,
    StoredMessage,
    StoredRun,
    TailEvent,
    TailReads,
    Totals,
)
from crush_trio.store.memory.store import MemoryStore

__all__ = [
    "AskReads",
    "Changes",
    "FileHistory",
    "MemoryStore",
    "MessageReads",
    "PendingAsk",
    "RunReads",
    "SessionReads",
    "Store",
    "StoredMessage",
    "StoredRun",
    "TailEvent",
    "TailReads",
    "Totals",
]
