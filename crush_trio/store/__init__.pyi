# The names of `__init__.py`, for type checkers and editors.

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
from crush_trio.store.changes import SessionCreated
from crush_trio.store.memory.store import MemoryStore
from crush_trio.store.open import StoreSettings, open_store

__all__ = [
    "AskReads",
    "Changes",
    "FileHistory",
    "MemoryStore",
    "MessageReads",
    "PendingAsk",
    "RunReads",
    "SessionCreated",
    "SessionReads",
    "Store",
    "StoreSettings",
    "StoredMessage",
    "StoredRun",
    "TailEvent",
    "TailReads",
    "Totals",
    "open_store",
]
