"""Files on disk: read within limits, replaced whole or not at all.

Everything here is synchronous and belongs in a thread that is not abandoned. Then a cancel comes
before a file is replaced or after it, never in between, and whoever waited knows which.

Only regular files are opened. A pipe would block a thread for ever, a device has no end.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from secrets import token_hex
from typing import Final

from attrs import field, frozen

from crush_trio.tools.base import ToolError

_SECOND: Final = 10**9


@frozen(kw_only=True)
class Snapshot:
    """What a file held when it was read; `modified` is when it had last been changed (H5)."""

    data: bytes = field(repr=False)
    modified: int


@contextmanager
def told(verb: str, path: Path) -> Iterator[None]:
    """Turn what the system says about *path* into something to tell the model."""
    try:
        yield
    except OSError as exc:
        raise ToolError(f"cannot {verb} {path}: {exc.strerror or exc}") from exc


def open_regular(path: Path) -> BufferedReader:
    """Open a file to read its bytes; refuse what is no file."""
    return open(path, "rb", opener=_open_regular)


def _open_regular(path: str, flags: int) -> int:
    """Open without waiting for a pipe's other end, nor following a link that was not there before."""
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    kind = "a directory" if stat.S_ISDIR(mode) else "a device or pipe"
    raise ToolError(f"{path} is {kind}, not a file")


def modified_at(file: BufferedReader) -> int:
    """Return the second in which an open file was last changed."""
    return os.fstat(file.fileno()).st_mtime_ns // _SECOND


def read_file(path: Path, limit: int) -> Snapshot | None:
    """Return what a file holds, None if there is no such file; refuse more than *limit* bytes.

    Its time is taken first: a change while it is being read shows as one that came later.
    """
    with told("read", path):
        try:
            file = open_regular(path)
        except FileNotFoundError:
            return None
        with file:
            modified = modified_at(file)
            data = file.read(limit + 1)
    if len(data) > limit:
        raise ToolError(f"{path} is too large for this: more than {limit // 1024} KB")
    return Snapshot(data=data, modified=modified)


def replace_file(path: Path, data: bytes, expected: Snapshot | None) -> int:
    """Make *data* the content of *path* in one step; return when that was.

    Nothing happens if the file is no longer what was *expected*: None is a file that is not there
    yet. Its mode stays, and its owner where that is allowed; its directories are made if needed.
    """
    temporary = path.with_name(f".crush-{token_hex(8)}.tmp")
    with told("write", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            modified = _write_beside(temporary, data, path)
            _must_still_be(path, expected)
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    return modified


def _write_beside(temporary: Path, data: bytes, path: Path) -> int:
    """Write a new file that looks like the one it is going to replace."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with open(os.open(temporary, flags, 0o666), "wb") as file:  # noqa: PTH123  # a descriptor
        with suppress(FileNotFoundError):
            _look_like(path, file.fileno())
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
        return os.fstat(file.fileno()).st_mtime_ns // _SECOND


def _look_like(path: Path, descriptor: int) -> None:
    """Give an open file the mode and, where that is allowed, the owner of *path*."""
    found, own = path.stat(), os.fstat(descriptor)
    if (found.st_uid, found.st_gid) != (own.st_uid, own.st_gid):
        with suppress(PermissionError):
            os.fchown(descriptor, found.st_uid, found.st_gid)
    os.fchmod(descriptor, stat.S_IMODE(found.st_mode))


def _must_still_be(path: Path, expected: Snapshot | None) -> None:
    """Raise unless the file is what its reader saw, and may be written to.

    A rename asks for no right to write the file itself, so this asks.
    """
    if not _holds(path, expected):
        raise ToolError(
            f"{path} was changed by somebody else in the meantime, so it was not written. "
            "View it again and repeat the change."
        )
    if expected is not None and not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))


def _holds(path: Path, expected: Snapshot | None) -> bool:
    try:
        file = open_regular(path)
    except FileNotFoundError:
        return expected is None
    with file:
        return expected is not None and file.read(len(expected.data) + 1) == expected.data
