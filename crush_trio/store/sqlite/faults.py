"""Translation of SQLite's and the operating system's errors to store errors; the store's health.

This is the only module that reads SQLite's result codes. A fault of the disk, the file or another
program becomes a `StoreUnavailable`. An error of the statement itself (a constraint, a misspelt
column) is a bug and is not translated.
"""

import errno
import logging
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

from attrs import define, field

from crush_trio.store.errors import (
    DiskFailed,
    DiskFull,
    StoreBusy,
    StoreCorrupt,
    StoreLost,
    StoreReadOnly,
    StoreUnavailable,
)

log = logging.getLogger(__name__)

WorkKind = Literal["write", "post", "read"]

_PRIMARY: Final = 0xFF  # an extended result code carries its primary code in the low byte

_RESULTS: Final[dict[int, type[StoreUnavailable]]] = {
    sqlite3.SQLITE_FULL: DiskFull,
    sqlite3.SQLITE_READONLY: StoreReadOnly,
    sqlite3.SQLITE_PERM: StoreReadOnly,
    sqlite3.SQLITE_CORRUPT: StoreCorrupt,
    sqlite3.SQLITE_NOTADB: StoreCorrupt,
    sqlite3.SQLITE_BUSY: StoreBusy,
    sqlite3.SQLITE_PROTOCOL: StoreBusy,
    sqlite3.SQLITE_IOERR: DiskFailed,
    sqlite3.SQLITE_CANTOPEN: DiskFailed,
}

_ERRNOS: Final[dict[int | None, type[StoreUnavailable]]] = {
    errno.ENOSPC: DiskFull,
    errno.EDQUOT: DiskFull,
    errno.EROFS: StoreReadOnly,
    errno.EACCES: StoreReadOnly,
    errno.EPERM: StoreReadOnly,
}


def translate(exc: Exception, path: Path) -> Exception:
    """Return the store error for *exc*, about *path*; *exc* itself if it is not such a fault.

    Each call makes a new error, because an exception that is raised in two tasks would collect the
    tracebacks of both.
    """
    match exc:
        case sqlite3.Error():
            kind = _RESULTS.get(getattr(exc, "sqlite_errorcode", 0) & _PRIMARY)
        case OSError():
            kind = _ERRNOS.get(exc.errno, DiskFailed)
        case _:
            kind = None
    if kind is None:
        return exc
    fault = kind(f"{path} ({exc})")
    fault.__cause__ = exc
    return fault


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Raise faults of SQLite and of the operating system as store errors about *path*."""
    try:
        yield
    except (sqlite3.Error, OSError) as exc:
        if (fault := translate(exc, path)) is exc:
            raise
        raise fault from exc


@define(eq=False)
class Health:
    """The failures that a store has now. Used by Trio's thread only, so it has no lock.

    A failure is kept per kind of work and ends with the next success of that kind: a read that
    works says nothing about a full disk. A damaged or lost file is kept until the store is
    reopened: it does not repair itself, and most statements would still succeed. A change is logged
    once, however many writes a full disk refuses.
    """

    _failures: dict[str, str] = field(factory=dict, init=False)

    @property
    def degraded(self) -> str | None:
        """One sentence about the oldest failure, or None if there is none."""
        return next(iter(self._failures.values()), None)

    def failed(self, kind: WorkKind, exc: BaseException) -> None:
        """Note that work of this *kind* has failed."""
        key = "file" if isinstance(exc, StoreCorrupt | StoreLost) else kind
        reason = str(exc) or type(exc).__name__
        if self._failures.get(key) != reason:
            log.error("store.degraded", extra={"kind": key, "reason": reason})
        self._failures[key] = reason

    def succeeded(self, kind: WorkKind) -> None:
        """Note that work of this *kind* has succeeded."""
        if self._failures.pop(kind, None) is not None:
            log.info("store.recovered", extra={"kind": kind})
