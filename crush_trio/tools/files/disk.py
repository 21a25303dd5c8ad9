"""Resolves paths, and reads and replaces files on disk.

A path is resolved before it is classified, because `..` and symbolic links may lead anywhere.
Permission for a path inside the workspace is asked for the whole workspace, so that one grant covers it
(F1). Permission for private and outside paths is asked for each directory.

Between that decision and the opening, another process can put a link in place of a directory. So a
resolved path is opened without following any link (`crush_trio.nofollow`), and a file is replaced by
descriptor: the temporary file, the check and the renaming all happen in the one directory that was
opened.

Reading and replacing is synchronous and runs in threads that are not abandoned on cancel. So a cancel
takes effect before a file is replaced or after it, and the caller knows which. A file is replaced by
renaming, so readers see the old content or the new, never a part.

Only regular files are opened: a pipe would block its thread for ever, and a device may have no end.
"""

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from io import BufferedReader, BufferedWriter
from itertools import islice
from pathlib import Path
from secrets import token_hex
from typing import Final

import trio
from attrs import field, frozen

from crush_trio import nofollow
from crush_trio.nofollow import NotRegular, opened_directory
from crush_trio.tools.base import ToolError
from crush_trio.tools.workbench import Workbench

SUGGESTIONS: Final = 3
_LOOKED_AT: Final = 2000
_REPLACED: Final = "a symbolic link was put in its path meanwhile; try again"


async def locate(bench: Workbench, path: str) -> Path:
    """Return *path* absolute and resolved (H4); raise `ToolError` if it is not usable."""
    return await trio.to_thread.run_sync(_resolved, bench, path)


def _resolved(bench: Workbench, path: str) -> Path:
    if not path:
        raise ToolError("file_path is required")
    try:
        return bench.resolve(path)
    except (OSError, RuntimeError, ValueError) as exc:
        raise ToolError(f"not a usable path: {path!r}: {exc}") from exc


def permission_path(bench: Workbench, path: Path) -> Path:
    """Return the directory for which permission is asked before the file *path* is used."""
    return bench.directory if bench.shared(path) else path.parent


def reason_to_ask(bench: Workbench, path: Path) -> str:
    """Return why *path* needs permission, for the text of the permission request."""
    return "private" if bench.inside(path) else "outside the workspace"


def display_path(bench: Workbench, path: Path) -> str:
    """Return *path* relative to the workspace if it lies inside, else absolute."""
    return str(path.relative_to(bench.directory)) if bench.inside(path) else str(path)


def missing_file_error(path: Path) -> ToolError:
    """Return the error for a file that does not exist; it suggests similar names."""
    similar = similar_names(path)
    if not similar:
        return ToolError(f"{path} does not exist")
    listed = "\n".join(str(path.with_name(name)) for name in similar)
    return ToolError(f"{path} does not exist. Did you mean one of these?\n{listed}")


def similar_names(path: Path) -> list[str]:
    """Return up to three names in the directory of *path* that look like its name."""
    try:
        with opened_directory(path.parent, os.O_RDONLY) as folder, os.scandir(folder) as entries:
            names = [entry.name for entry in islice(entries, _LOOKED_AT)]
    except OSError:
        return []
    return _most_similar(path.name, names)


def _most_similar(wanted: str, names: Iterable[str]) -> list[str]:
    """Return similar names, close matches first, then names that contain *wanted* or its stem."""
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
    """The content of a file when it was read; `modified` is its modification time (H5)."""

    data: bytes = field(repr=False)
    modified: int


@contextmanager
def os_errors_reported(verb: str, path: Path) -> Iterator[None]:
    """Turn an `OSError` about *path* into a `ToolError`."""
    try:
        yield
    except OSError as exc:
        why = _REPLACED if exc.errno == errno.ELOOP else exc.strerror or exc
        raise ToolError(f"cannot {verb} {path}: {why}") from exc


def open_regular(path: Path, *, at: int | None = None) -> BufferedReader:
    """Open a regular file to read its bytes; raise `ToolError` for a device, `OSError` for a link.

    *path* is resolved, or a name in the directory descriptor *at*.
    """
    try:
        return os.fdopen(nofollow.open_regular(path, at=at), "rb")
    except NotRegular as exc:
        raise ToolError(f"{path} is {exc.kind}, not a file") from exc


def modified_at(file: BufferedReader) -> int:
    """Return the modification time of an open file, in seconds."""
    return os.fstat(file.fileno()).st_mtime_ns // _SECOND


def read_file(path: Path, limit: int) -> Snapshot | None:
    """Return the content of a file, None if it does not exist; refuse more than *limit* bytes.

    The modification time is taken before reading, so a change during the read counts as a later one.
    """
    with os_errors_reported("read", path):
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
    """Atomically make *data* the content of *path*; return its modification time.

    Raises `ToolError` and changes nothing if the content is not what was *expected*; None means that
    the file must not exist. The mode is kept, and the owner if that is allowed. Missing directories are
    created.
    """
    with os_errors_reported("write", path):
        folder = nofollow.make_directories(path.parent, [])
        try:
            return _replace_in(folder, path, data, expected)
        finally:
            os.close(folder)


def _replace_in(folder: int, path: Path, data: bytes, expected: Snapshot | None) -> int:
    temporary = f".crush-{token_hex(8)}.tmp"
    try:
        modified = _write_beside(folder, temporary, data, path.name)
        _must_still_be(folder, path, expected)
        os.replace(temporary, path.name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=folder)
        raise
    return modified


def create_beside(folder: int, name: str) -> BufferedWriter:
    """Create a file in the directory descriptor *folder* and open it for writing."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    return os.fdopen(nofollow.open_path(name, flags, at=folder), "wb")


def _write_beside(folder: int, temporary: str, data: bytes, name: str) -> int:
    """Write the temporary file, with mode and owner of the file that it will replace."""
    with create_beside(folder, temporary) as file:
        with suppress(FileNotFoundError):
            _look_like(folder, name, file.fileno())
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
        return os.fstat(file.fileno()).st_mtime_ns // _SECOND


def _look_like(folder: int, name: str, descriptor: int) -> None:
    """Give an open file the mode and, if that is allowed, the owner of the file *name*."""
    found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    own = os.fstat(descriptor)
    if (found.st_uid, found.st_gid) != (own.st_uid, own.st_gid):
        with suppress(PermissionError):
            os.fchown(descriptor, found.st_uid, found.st_gid)
    os.fchmod(descriptor, stat.S_IMODE(found.st_mode))


def _must_still_be(folder: int, path: Path, expected: Snapshot | None) -> None:
    """Raise unless the file has the *expected* content and is writable.

    Renaming needs no write permission for the file itself, so that is checked here.
    """
    if not _holds(folder, path.name, expected):
        raise ToolError(
            f"{path} was changed by another program in the meantime, so it was not written. "
            "View it again and repeat the change."
        )
    if expected is not None and not os.access(path.name, os.W_OK, dir_fd=folder):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))


def _holds(folder: int, name: str, expected: Snapshot | None) -> bool:
    try:
        file = open_regular(Path(name), at=folder)
    except FileNotFoundError:
        return expected is None
    with file:
        return expected is not None and file.read(len(expected.data) + 1) == expected.data
