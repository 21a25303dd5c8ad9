"""The files of the audit: appending, rotation and reading.

`audit.jsonl` is the newest file, `audit.jsonl.1` the one before it, and so on. Every append holds the
lock file, so the servers of a user can share the files: lines do not mix, numbers do not repeat, and a
rotation happens once. Each line is one write to a file that is opened for appending. Nothing here is
cached between two appends except the last number: a file that was deleted or moved is made again.

Everything blocks; call it in a thread.
"""

import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import orjson
from attrs import define, evolve, field

from crush_trio.audit.record import AuditRecord
from crush_trio.errors import DecodeError
from crush_trio.wire.codec import decode, encode

FILE_SIZE: Final = 10 * 1000 * 1000
"""Bytes after which a file is rotated."""

FILES: Final = 10
"""How many files are kept, the newest included."""

LOCK_LIMIT: Final = 1.0
"""Seconds that another process may hold the lock, which it needs for a moment only."""

_LOCK_PAUSE: Final = 0.005
_TAIL: Final = 1 << 14
"""Bytes at the end of a file in which its last record is looked for; a line has a fraction of that."""
_BLOCK: Final = 1 << 16
_FILE_MODE: Final = 0o600
_APPEND: Final = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_READ: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_LOCK: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


@define(eq=False)
class AuditFile:
    """The audit of one user at *path*."""

    path: Path
    size: int = FILE_SIZE
    files: int = FILES
    _last: int = field(default=0, init=False)
    """The highest number this object has seen, in case all files are deleted meanwhile."""
    _end: tuple[int, int] | None = field(default=None, init=False)
    """The file and the size that it had after our last append: if it still has, no other has written."""

    def append(self, records: Sequence[AuditRecord]) -> int:
        """Write *records* with their numbers; return how many of them were written.

        Fewer than all means that the disk is full. Raises `OSError` if none could be.
        """
        with self._locked(), ExitStack() as opened:
            handle = self._opened(opened)
            last = self._last_number(handle)
            for done, record in enumerate(records):
                last += 1
                line = encode(evolve(record, seq=last)) + b"\n"
                if os.fstat(handle).st_size + len(line) > self.size:
                    self._rotate()
                    handle = self._opened(opened)
                try:
                    _write_line(handle, line)
                except OSError:
                    if not done:
                        raise
                    return done
                self._last = last
            about = os.fstat(handle)
            self._end = about.st_ino, about.st_size
        return len(records)

    def check(self) -> None:
        """Raise `OSError` if nothing could be appended; makes and changes nothing."""
        if os.path.lexists(self.path):
            with ExitStack() as opened:
                self._opened(opened)
            return
        place = self.path.parent
        while not place.exists() and place != place.parent:
            place = place.parent
        if not os.access(place, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(place))

    def _opened(self, opened: ExitStack) -> int:
        """Open the newest file; a link, or a file of another user, is refused."""
        handle = os.open(self.path, _APPEND, _FILE_MODE)
        opened.callback(os.close, handle)
        about = os.fstat(handle)
        if not stat.S_ISREG(about.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(self.path))
        if about.st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "the file belongs to another user", str(self.path))
        if stat.S_IMODE(about.st_mode) != _FILE_MODE:
            os.fchmod(handle, _FILE_MODE)
        return handle

    @contextmanager
    def _locked(self) -> Iterator[None]:
        place = f"{self.path}.lock"
        try:
            handle = os.open(place, _LOCK, _FILE_MODE)
        except FileNotFoundError:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle = os.open(place, _LOCK, _FILE_MODE)
        try:
            deadline = time.monotonic() + LOCK_LIMIT
            while True:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        reason = "another process holds the lock"
                        raise TimeoutError(errno.ETIMEDOUT, reason) from None
                    time.sleep(_LOCK_PAUSE)
            yield
        finally:
            os.close(handle)

    def _numbered(self, number: int) -> Path:
        """Return the path of a file: 0 is the newest."""
        return self.path if not number else self.path.with_name(f"{self.path.name}.{number}")

    def _rotate(self) -> None:
        """Rename every file to the next number; the oldest is replaced by the one before it."""
        for number in reversed(range(self.files - 1)):
            older = self._numbered(number)
            if older.exists():
                older.replace(self._numbered(number + 1))

    def _last_number(self, handle: int) -> int:
        """Return the number of the last record in the files."""
        about = os.fstat(handle)
        if (about.st_ino, about.st_size) == self._end:
            return self._last
        found = _last_in(handle)
        if not found:
            with ExitStack() as opened:
                for each in reversed(self._open_all(opened)):
                    if found := _last_in(each):
                        break
        return max(found, self._last)

    # ── Reading ─────────────────────────────────────────────────────────────────────────────────

    def read(self, after: int | None = None, limit: int = 100) -> list[AuditRecord]:
        """Return the oldest *limit* records with a number above *after*; without it, the newest.

        Lines that are no records, as a full disk may leave, are skipped.
        """
        if not self.path.parent.is_dir():
            return []
        with ExitStack() as opened:
            handles = self._open_together(opened)
            if after is None:
                last = next(filter(None, map(_last_in, reversed(handles))), 0)
                after = max(0, last - limit)
            found: list[AuditRecord] = []
            for handle in handles:
                if len(found) < limit and _last_in(handle) > after:
                    found += _records(handle, after, limit - len(found))
            return found

    def _open_together(self, opened: ExitStack) -> list[int]:
        """Open the files while the lock is held, so that a rotation cannot come between."""
        try:
            with self._locked():
                return self._open_all(opened)
        except OSError:  # a file system that is read-only: nothing is rotated there
            return self._open_all(opened)

    def _open_all(self, opened: ExitStack) -> list[int]:
        """Open the files that exist, the oldest first."""
        handles = []
        for number in reversed(range(self.files)):
            try:
                handle = os.open(self._numbered(number), _READ)
            except FileNotFoundError:
                continue
            opened.callback(os.close, handle)
            if stat.S_ISREG(os.fstat(handle).st_mode):
                handles.append(handle)
        return handles


def _write_line(handle: int, line: bytes) -> None:
    """Append a line with one write; the rest of one that a full disk cut off is ended first."""
    size = os.fstat(handle).st_size
    if size and os.pread(handle, 1, size - 1) != b"\n":
        line = b"\n" + line
    if os.write(handle, line) != len(line):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _number_of(line: bytes) -> int:
    """Return the number of the record in *line*; 0 if it has none."""
    try:
        number = orjson.loads(line)["seq"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return 0
    return number if isinstance(number, int) else 0


def _last_in(handle: int) -> int:
    """Return the number of the last record of a file; 0 if there is none near its end."""
    size = os.fstat(handle).st_size
    begin = max(0, size - _TAIL)
    lines = os.pread(handle, size - begin, begin).split(b"\n")
    return next(filter(None, map(_number_of, reversed(lines))), 0)


def _records(handle: int, after: int, limit: int) -> list[AuditRecord]:
    """Return up to *limit* records of a file with a number above *after*."""
    found: list[AuditRecord] = []
    for line in _lines(handle, _start(handle, after)):
        if _number_of(line) <= after:
            continue
        try:
            found.append(decode(line, AuditRecord))
        except DecodeError:  # an action that only a newer version knows
            continue
        if len(found) >= limit:
            break
    return found


def _start(handle: int, after: int) -> int:
    """Return an offset at or before the first record above *after*: numbers grow within a file."""
    low, high = 0, os.fstat(handle).st_size
    while high - low > _BLOCK:
        middle = (low + high) // 2
        number = next(filter(None, map(_number_of, _whole_lines(handle, middle))), 0)
        if number and number <= after:
            low = middle
        else:
            high = middle
    return low


def _whole_lines(handle: int, offset: int) -> list[bytes]:
    """Return the complete lines of the block at *offset*."""
    return os.pread(handle, _BLOCK, offset).split(b"\n")[1:-1]


def _lines(handle: int, offset: int) -> Iterator[bytes]:
    rest = b""
    while data := os.pread(handle, _BLOCK, offset):
        offset += len(data)
        *whole, rest = (rest + data).split(b"\n")
        yield from whole
    if rest:
        yield rest
