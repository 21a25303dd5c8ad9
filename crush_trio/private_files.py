"""Files of the user alone: reading, replacing and locking them.

Reading needs no lock: a file is replaced atomically, so a reader sees either the old or the new
content. The lock is for a process that reads in order to write. It is held during one synchronous
call, and the kernel releases it if the process dies.
"""

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from crush_trio.nofollow import open_regular

FILE_MODE: Final = 0o600
DIRECTORY_MODE: Final = 0o700

_LOCK: Final = os.O_RDWR | os.O_CREAT


class LockHeld(Exception):
    """Another process holds the lock of the file."""


def read_file(path: Path, limit: int) -> bytes | None:
    """Return the first *limit* bytes of a regular file, or None if it does not exist.

    Links are followed, once: what is read is the file to which they led at that moment.
    """
    return read_plain_file(Path(os.path.realpath(path)), limit)


def read_plain_file(path: Path, limit: int) -> bytes | None:
    """Do the same for a resolved path: a link in it, put there meanwhile, is an error."""
    try:
        handle = open_regular(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    with os.fdopen(handle, "rb") as file:
        return file.read(limit)


def replace_file(path: Path, content: bytes) -> None:
    """Replace *path* with *content*, durably and atomically; readable by the user only.

    A symbolic link is replaced, not followed: its target may belong to something else.
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
    """Hold the lock of *path*, or raise `LockHeld` at once.

    The lock file is never deleted: two processes could then lock two files of the same name.
    """
    _make_private(path.parent)
    beside = path.with_name(f"{path.name}.lock")
    handle = open_regular(Path(os.path.realpath(beside.parent)) / beside.name, _LOCK, FILE_MODE)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LockHeld from None
        yield
    finally:
        os.close(handle)


def _make_private(directory: Path) -> None:
    """Create *directory* and those above it that do not exist, each for the user only."""
    if not directory.exists():
        _make_private(directory.parent)
        directory.mkdir(mode=DIRECTORY_MODE, exist_ok=True)


def _sync_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
