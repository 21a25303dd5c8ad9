"""The data directory: its lock, and the check that the open files are still in place.

Two servers on one directory would each end the other's runs as interrupted, so a server takes an
exclusive lock of the operating system and holds it as long as it runs (J3). The kernel releases it
even after `kill -9`. The lock file names its owner, for the error message of the next server. It is
never removed: if one process deleted it, two others could lock two different files of the same
name.

A checkout can contain a data directory with anything in it. So the files of a store are opened
without following links, and a link, a pipe or a file of another user in their place is refused
before anything is written (`StoreFileForeign`).

A file that is removed while it is open can still be written, but the data is lost when it is
closed. So in each transaction, before its writes, the writer checks that the paths of the store
still lead to its open files. `git clean -fdx`, `rm -rf`, a renamed directory and a replaced file
all show as another inode or none; the inode number of an open file is not reused.

Usually this is one system call. Removing, renaming or adding a file changes the modification time
of its directory; as long as that time is the same, the files are in place. A time that was first
seen just now proves nothing, because the clocks of file systems are coarse: until it has been the
same for `SETTLE_SECONDS`, every file is checked.
"""

import errno
import fcntl
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from socket import gethostname
from typing import Final

from attrs import asdict, define, field, frozen

from crush_trio.nofollow import kind_of
from crush_trio.store.errors import StoreFileForeign, StoreLocked, StoreLost
from crush_trio.store.sqlite.faults import translated

LOCK_NAME: Final = "crush-trio.lock"
SKIP_VARIABLE: Final = "CRUSH_SKIP_DATADIR_LOCK"

_UNKNOWN: Final = "an unknown process"

Release = Callable[[], None]

SETTLE_SECONDS: Final = 3.0
"""Seconds after which a change of a directory shows in its modification time, on any file system."""

ORPHAN_SECONDS: Final = 5.0
"""Seconds to wait for a lock whose owner was killed."""

OWNER_LIMIT: Final = 4096
"""Bytes that are read of a lock file."""

_Identity = tuple[int, ...]


@frozen(kw_only=True)
class Owner:
    """The process that holds a data directory; `started` is in unix seconds."""

    pid: int
    version: str
    started: int

    def describe(self) -> str:
        """Return one line about the process, for people."""
        since = datetime.fromtimestamp(self.started, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        return f"process {self.pid}, version {self.version}, started {since}"

    def row(self) -> str:
        """Return what is stored of it, in the form of every store."""
        return json.dumps({"host": gethostname(), **asdict(self)})


def locking_enabled(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether data directories are locked; not if `CRUSH_SKIP_DATADIR_LOCK` is set."""
    return not environ.get(SKIP_VARIABLE)


def take_lock(directory: Path, owner: Owner, *, environ: Mapping[str, str] = os.environ) -> Release:
    """Lock *directory* for *owner*; return a function that unlocks it, to be called once.

    Raises `StoreLocked` with the present owner if the directory is locked, also by this process. If the
    owner was killed while it started a command, the new process still has the lock until its `exec`: then
    this waits for a moment. Blocks; call it in a thread.

    `CRUSH_SKIP_DATADIR_LOCK`, set to anything, turns locking off for file systems that cannot lock:
    then the user must not start two servers on one directory.
    """
    if not locking_enabled(environ):
        return ExitStack().close
    path = directory / LOCK_NAME
    with translated(path), ExitStack() as undo:
        handle = open_own(path, os.O_RDWR | os.O_CREAT)
        undo.callback(os.close, handle)
        if not _lock(handle):
            raise StoreLocked(f"{directory} belongs to {_read_owner(handle)}")
        _must_be_lock(path, handle)
        undo.callback(_write_owner, handle, b"")
        _write_owner(handle, json.dumps(asdict(owner)).encode())
        return undo.pop_all().close


def _lock(handle: int) -> bool:
    """Lock a file; return False if another process has it, and is not just about to lose it."""
    deadline = time.monotonic() + ORPHAN_SECONDS
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not _is_orphaned(handle) or time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        else:
            return True


def _is_orphaned(handle: int) -> bool:
    """Whether the process that the lock file names does not exist any more."""
    owner = _owner(handle)
    return owner is not None and not Path(f"/proc/{owner.pid}").exists()


def open_own(path: Path, flags: int) -> int:
    """Open a file of a store, with mode 0600 if it is created; return its descriptor.

    Raises `StoreFileForeign` if it is not a regular file, or of a user other than ours and other
    than the directory's. A pipe does not block.
    """
    try:
        handle = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENXIO, errno.EISDIR}:
            must_be_own(path)
        raise
    with ExitStack() as undo:
        undo.callback(os.close, handle)
        _must_be_own(path, os.fstat(handle))
        undo.pop_all()
        return handle


def must_be_own(*paths: Path) -> None:
    """Raise `StoreFileForeign` for the first that exists and that `open_own` would refuse."""
    for path in paths:
        try:
            found = path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            continue
        _must_be_own(path, found)


def _must_be_own(path: Path, found: os.stat_result) -> None:
    """Raise unless the file is regular, and belongs to us or to the owner of its directory.

    The latter is for file systems that show one owner for everything, and for a server run by root.
    """
    if kind := kind_of(found.st_mode):
        raise StoreFileForeign(f"{path} is {kind}")
    if found.st_uid not in {os.geteuid(), path.parent.stat().st_uid}:
        raise StoreFileForeign(f"{path} belongs to the user {found.st_uid}")


def _must_be_lock(path: Path, handle: int) -> None:
    """Raise if the lock file is a hard link to a file with another content, which would be lost."""
    about = os.fstat(handle)
    if about.st_nlink > 1 and about.st_size and _read_owner(handle) == _UNKNOWN:
        raise StoreFileForeign(f"{path} is a hard link to another file")


def _write_owner(handle: int, content: bytes) -> None:
    """Replace the content of the lock file."""
    os.ftruncate(handle, 0)
    os.pwrite(handle, content, 0)


def _read_owner(handle: int) -> str:
    """Return one line about the owner in the lock file, which is empty just after locking."""
    try:
        owner = _owner(handle)
        return _UNKNOWN if owner is None else owner.describe()
    except (OSError, ValueError, TypeError):
        return _UNKNOWN


def _owner(handle: int) -> Owner | None:
    """Return the owner that the lock file names; None if it names none."""
    try:
        owner = Owner(**json.loads(os.pread(handle, OWNER_LIMIT, 0)))
        return owner if owner.pid > 0 else None
    except (OSError, ValueError, TypeError):
        return None


@define(eq=False)
class FilesInPlace:
    """Checks that the open files of a store in *directory* are in place. Used by one thread at a time.

    Once lost, the store stays lost: a file that comes back may be older than what was written
    meanwhile.
    """

    directory: Path
    lost: str = field(default="", init=False)
    """The path that no longer leads to its file; empty while all of them do."""
    _files: Sequence[tuple[str, _Identity]] = field(factory=list, init=False, repr=False)
    _place: str = field(init=False, repr=False)
    _seen: _Identity = field(default=(), init=False, repr=False)
    """The directory's identity and modification time when the files were last checked."""
    _since: float = field(default=0.0, init=False, repr=False)
    _settled: bool = field(default=False, init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self._place = str(self.directory)

    def remember(self, *files: Path) -> None:
        """Remember the identities of *files*, which are open. Raises OSError."""
        self._files = [(str(path), _identity(str(path))) for path in files]

    def check(self) -> None:
        """Raise `StoreLost` if a file is no longer in place, OSError if that cannot be checked."""
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
        settled = time.monotonic() - self._since > SETTLE_SECONDS
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
