"""Translation of SQLite's and the operating system's errors to store errors.

This is the only module that reads SQLite's result codes. A fault of the disk, the file or another
program becomes a `StoreUnavailable`. An error of the statement itself (a constraint, a misspelt
column) is a bug and is not translated.
"""

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from crush_trio.store.errors import (
    DiskFailed,
    DiskFull,
    StoreBusy,
    StoreCorrupt,
    StoreReadOnly,
    StoreUnavailable,
)

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
