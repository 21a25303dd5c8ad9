"""What SQLite and the operating system report, in the words of `crush_trio.store.errors`.

This is the one place that reads SQLite's result codes. A fault of the surroundings (disk, file,
other programs) becomes a `StoreUnavailable`. A fault of the statement itself (a constraint, a
misspelt column) is the business of whoever wrote the statement and is left as it is.
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

Kind = Literal["write", "post", "read"]

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
    """Return what to raise for *exc*: a new error about *path*, or *exc* itself if it is no fault.

    Each call makes a new error, because an exception raised in two tasks would collect the
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
    """Why the store is in trouble, if it is. Touched by Trio's thread only, so it has no lock.

    Trouble is kept per kind of work and ends with the next success of that kind: a read that works
    says nothing about a full disk. Damage of the file and its loss are exceptions: they do not heal by
    themselves, and most statements will still find their pages, so they are reported until the store is
    reopened.
    A change is logged once, however many writes a full disk refuses.
    """

    _troubles: dict[str, str] = field(factory=dict, init=False)

    @property
    def degraded(self) -> str | None:
        """One sentence about the oldest trouble there is, or None when all is well."""
        return next(iter(self._troubles.values()), None)

    def trouble(self, kind: Kind, exc: BaseException) -> None:
        """Note that work of this *kind* has failed."""
        key = "file" if isinstance(exc, StoreCorrupt | StoreLost) else kind
        reason = str(exc) or type(exc).__name__
        if self._troubles.get(key) != reason:
            log.error("store.degraded", extra={"kind": key, "reason": reason})
        self._troubles[key] = reason

    def well(self, kind: Kind) -> None:
        """Note that work of this *kind* has succeeded."""
        if self._troubles.pop(kind, None) is not None:
            log.info("store.recovered", extra={"kind": kind})
