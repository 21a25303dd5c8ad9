"""One process per data directory.

Two servers on one directory would each end the other's runs as interrupted, so the first to come
takes an exclusive lock of the operating system's and holds it while it lives (J3). The kernel
releases it even after `kill -9`. The lock file says who the owner is, for the one who finds the
directory taken, and is never removed: a lock on a file that somebody else deletes protects nothing.

Whether the files of an open store are still where they were opened.

A file that is removed while it is open can still be written, and what is written is gone when it is
closed. So in each transaction, before its writes, the writer looks whether the paths of the store
still lead to its files. `git clean -fdx`, `rm -rf`, a directory that was renamed and a file that was
replaced all show as another inode or none; the number of ours cannot be given to another file while
it is open.

In the ordinary case this is one system call. Removing, renaming or adding a file changes the time
of its directory; as long as that time stands still, the files are in place. A time that was first
seen a moment ago proves nothing yet, because clocks of file systems are coarse: until it has stood for
`SETTLED` seconds, every file is looked at.
"""

import fcntl
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from attrs import asdict, define, field, frozen

from crush_trio.store.errors import StoreLocked, StoreLost
from crush_trio.store.sqlite.faults import translated

SETTLED: Final = 3.0
"""Seconds after which a change of a directory shows in its time, on any file system."""

_Identity = tuple[int, ...]


@define(eq=False)
class InPlace:
    """The files of a store that has been opened in *directory*. Used by one thread at a time.

    What was lost once stays lost: a file that comes back may be older than what was written meanwhile.
    """

    directory: Path
    lost: str = field(default="", init=False)
    """Which path does not lead to its file any more; empty while all of them do."""
    _files: Sequence[tuple[str, _Identity]] = field(factory=list, init=False, repr=False)
    _place: str = field(init=False, repr=False)
    _seen: _Identity = field(default=(), init=False, repr=False)
    """The directory and its time when the files were last looked at."""
    _since: float = field(default=0.0, init=False, repr=False)
    _settled: bool = field(default=False, init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self._place = str(self.directory)

    def remember(self, *files: Path) -> None:
        """Take *files*, which are open, for those of the store. Raises OSError."""
        self._files = [(str(path), _identity(str(path))) for path in files]

    def check(self) -> None:
        """Raise `StoreLost` if a file is no longer in its place; OSError if that cannot be seen."""
        if self.lost:
            raise StoreLost(self.lost)
        try:
            found = os.stat(self._place)  # noqa: PTH116 - a Path would cost as much as the call
            self._check(_identity_of(found, found.st_mtime_ns))
        except (FileNotFoundError, NotADirectoryError) as error:
            self._lose(str(error.filename))

    def _check(self, seen: _Identity) -> None:
        if seen != self._seen:
            self._seen, self._since, self._settled = seen, time.monotonic(), False
        if self._settled:
            return
        settled = time.monotonic() - self._since > SETTLED
        for path, identity in self._files:
            if _identity(path) != identity:
                self._lose(path)
        self._settled = settled

    def _lose(self, path: str) -> None:
        self.lost = path
        raise StoreLost(path)


def _identity(path: str) -> _Identity:
    return _identity_of(os.stat(path))  # noqa: PTH116 - as above


def _identity_of(found: os.stat_result, *more: int) -> _Identity:
    return (found.st_dev, found.st_ino, *more)


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
