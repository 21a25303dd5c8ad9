"""Files on disk: read within limits, replaced whole or not at all.

Everything here is synchronous and belongs in a thread that is not abandoned. Then a cancel comes
before a file is replaced or after it, never in between, and whoever waited knows which.

Only regular files are opened. A pipe would block a thread for ever, a device has no end.

Where a path leads, and whose business it is.

A path is resolved before anybody judges it: `..` and links may lead anywhere. What lies inside the
workspace is judged as the workspace, so that one permission covers it all (F1), except for what is
private there: that is asked for by itself, like what lies outside.
"""

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from io import BufferedReader
from itertools import islice
from pathlib import Path
from secrets import token_hex
from typing import Final

import trio
from attrs import field, frozen

from crush_trio.tools.base import ToolError
from crush_trio.tools.workbench import Workbench

SUGGESTIONS: Final = 3
_LOOKED_AT: Final = 2000


async def locate(bench: Workbench, path: str) -> Path:
    """Return where *path* leads, absolute and resolved (H4), or tell the model what is wrong."""
    return await trio.to_thread.run_sync(_resolved, bench, path)


def _resolved(bench: Workbench, path: str) -> Path:
    if not path:
        raise ToolError("file_path is required")
    try:
        return bench.resolve(path)
    except (OSError, RuntimeError, ValueError) as exc:
        raise ToolError(f"not a usable path: {path!r}: {exc}") from exc


def judged(bench: Workbench, path: Path) -> Path:
    """Return the directory for which permission to touch the file *path* is asked."""
    return bench.directory if bench.shared(path) else path.parent


def outside(bench: Workbench, path: Path) -> str:
    """Return why there is something to ask about *path*, for the person who is asked."""
    return "private" if bench.inside(path) else "outside the workspace"


def named(bench: Workbench, path: Path) -> str:
    """Return *path* as it is called inside the workspace."""
    return str(path.relative_to(bench.directory)) if bench.inside(path) else str(path)


def missing(path: Path) -> ToolError:
    """Say that there is no such file, and what else is there that the model may have meant."""
    similar = similar_names(path)
    if not similar:
        return ToolError(f"{path} does not exist")
    listed = "\n".join(str(path.with_name(name)) for name in similar)
    return ToolError(f"{path} does not exist. Did you mean one of these?\n{listed}")


def similar_names(path: Path) -> list[str]:
    """Return up to three names in the directory of *path* that look like its name."""
    try:
        with os.scandir(path.parent) as entries:
            names = [entry.name for entry in islice(entries, _LOOKED_AT)]
    except OSError:
        return []
    return _most_similar(path.name, names)


def _most_similar(wanted: str, names: Iterable[str]) -> list[str]:
    """Names that contain the wanted one, or are contained in it, come first; case is no matter."""
    by_folded = {name.casefold(): name for name in sorted(names)}
    folded = wanted.casefold()
    stem = folded.partition(".")[0] or folded
    related = [each for each in by_folded if stem in each or each in folded]
    close = get_close_matches(folded, by_folded, n=SUGGESTIONS, cutoff=0.6)
    found = dict.fromkeys([*close, *related])
    return [by_folded[each] for each in islice(found, SUGGESTIONS)]


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
