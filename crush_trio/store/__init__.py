"""A workspace's durable tables, and what can go wrong with them.

`base` is the seam: what a store offers, one small Protocol per consumer. `changes` is what can be
written to one. `memory` keeps everything in memory; `sqlite` is the embedded store that needs no
server. `open` chooses between them by a URL and imports `sqlite` only for a store of that kind.
`errors` are the same for every store.
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
