"""Stores: the durable tables of a workspace.

`base` has the protocols, one per consumer. `changes` are the values that can be written, `commit` is a
write under way, `pages` are long lists, `errors` are the errors of every store. `memory` keeps everything
in memory; `sqlite` is the embedded database; `open` chooses between them by a URL. `go_import` reads the
Go program's database.
"""

from typing import Final

from crush_trio._exports import Homes, lazy, names_of

_HOMES: Final[Homes] = {
    "crush_trio.store.base": (
        "AskReads",
        "Changes",
        "FileHistory",
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
    ),
    "crush_trio.store.changes": ("SessionCreated",),
    "crush_trio.store.memory.store": ("MemoryStore",),
    "crush_trio.store.open": (
        "StoreSettings",
        "open_store",
    ),
}

__all__ = names_of(_HOMES)
__getattr__, __dir__ = lazy(__name__, _HOMES)
