"""Files as this package touches them: read whole and bounded, replaced whole, locked between processes.

A reader needs no lock: a file is replaced in one step, so whoever opens it sees all of the old one or
all of the new one. The lock is for those who read in order to write. It is held within one synchronous
call and released by the kernel even if the process dies in it.
"""

import errno
import fcntl
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

FILE_MODE: Final = 0o600
DIRECTORY_MODE: Final = 0o700

_READ: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe must not keep us waiting
_LOCK: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


class LockHeld(Exception):
    """Somebody else is changing the file at this moment."""


def read_file(path: Path, limit: int) -> bytes | None:
    """Return the first *limit* bytes of a regular file, or None if there is nothing of this name."""
    try:
        handle = os.open(path, _READ)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        with os.fdopen(handle, "rb", closefd=False) as file:
            return file.read(limit)
    finally:
        os.close(handle)


def replace_file(path: Path, content: bytes) -> None:
    """Put *content* in the place of *path*, durably and in one step; only the user may read it.

    A link is replaced, not followed: what it leads to is none of ours to change.
    """
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            os.fchmod(handle, FILE_MODE)
            file.write(content)
            file.flush()
            os.fsync(handle)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    _sync_directory(path.parent)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock that goes with *path*, or raise `LockHeld` at once.

    The lock file stays: a lock on a file that somebody else deletes protects nothing.
    """
    path.parent.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
    handle = os.open(path.with_name(f"{path.name}.lock"), _LOCK, FILE_MODE)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LockHeld from None
        yield
    finally:
        os.close(handle)


def _sync_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
