"""One process per data directory.

Two servers on one directory would each end the other's runs as interrupted, so the first to come
takes an exclusive lock of the operating system's and holds it while it lives (J3). The kernel
releases it even after `kill -9`. The lock file says who the owner is, for the one who finds the
directory taken, and is never removed: a lock on a file that somebody else deletes protects nothing.
"""

import fcntl
import json
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from attrs import asdict, frozen

from crush_trio.store.errors import StoreLocked
from crush_trio.store.sqlite.faults import translated

LOCK_NAME: Final = "crush-trio.lock"
SKIP_VARIABLE: Final = "CRUSH_SKIP_DATADIR_LOCK"

Release = Callable[[], None]


@frozen(kw_only=True)
class Owner:
    """The process that holds a data directory; `started` is in unix seconds."""

    pid: int
    version: str
    started: int

    def describe(self) -> str:
        """Return who this is, for the person who has to find it."""
        since = datetime.fromtimestamp(self.started, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        return f"process {self.pid}, version {self.version}, started {since}"


def locks(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether data directories are locked; not if `CRUSH_SKIP_DATADIR_LOCK` is set."""
    return not environ.get(SKIP_VARIABLE)


def take_lock(directory: Path, owner: Owner, *, environ: Mapping[str, str] = os.environ) -> Release:
    """Lock *directory* in the name of *owner*; call what is returned to give it up, once.

    Raises `StoreLocked`, naming the owner there is, if the directory is taken; also by this very
    process. `CRUSH_SKIP_DATADIR_LOCK`, set to anything, turns the lock off for file systems that
    cannot lock: then it is up to the user that no two servers meet.
    """
    if not locks(environ):
        return ExitStack().close
    path = directory / LOCK_NAME
    with translated(path), ExitStack() as undo:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        undo.callback(os.close, handle)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreLocked(f"{directory} belongs to {_read_owner(path)}") from None
        undo.callback(_sign, handle, b"")
        _sign(handle, json.dumps(asdict(owner)).encode())
        return undo.pop_all().close


def _sign(handle: int, content: bytes) -> None:
    """Replace the content of the lock file."""
    os.ftruncate(handle, 0)
    os.pwrite(handle, content, 0)


def _read_owner(path: Path) -> str:
    """Describe who signed the lock file, which is blank for an instant after it was taken."""
    try:
        return Owner(**json.loads(path.read_bytes())).describe()
    except (OSError, ValueError, TypeError):
        return "a process that has not signed yet"
