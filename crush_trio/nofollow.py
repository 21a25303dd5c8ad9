"""Opens files without following symbolic links.

A path is resolved, then judged (inside the workspace, private, permitted), then opened. Between the
last two, another process can put a link in place of a directory on the path. So what is opened here
has no link in any component: the caller resolved the path before, so a link was put there since.

Linux does this in one call, `openat2`. Where it is missing or forbidden, the path is walked component
by component, each opened relative to the one before. Both refuse a link with `ELOOP`.

Only the standard library is used: the search worker imports this module in a bare interpreter.
"""

import errno
import os
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    StrPath = str | os.PathLike[str]

OPENAT2 = 437
"""The number of the system call, on every architecture that we know of."""

NO_MAGIC_LINKS, NO_SYMLINKS, BENEATH = 0x02, 0x04, 0x08

_ATTEMPTS = 8
"""How often `EAGAIN` is answered with another try: the kernel saw a rename while it walked."""

_UNUSABLE = (errno.ENOSYS, errno.EPERM, errno.EAGAIN)
"""The system call is missing, a filter forbids it, or renames never stop."""


class NotRegular(OSError):
    """The path leads to a directory, a pipe or a device; `kind` says which."""

    def __init__(self, path: "StrPath", kind: str) -> None:
        super().__init__(errno.EINVAL, f"it is {kind}, not a regular file", str(path))
        self.kind = kind


def open_path(path: "StrPath", flags: int, mode: int = 0o666, *, at: int | None = None) -> int:
    """Return a descriptor of *path*, in which no component may be a symbolic link.

    *path* is absolute, or relative to the directory descriptor *at*, beneath which it must stay.
    """
    text, flags = os.fspath(path), flags | os.O_CLOEXEC
    call = _openat2()
    if call is not None:
        number, handle = call(text, flags, mode if flags & os.O_CREAT else 0, at)
        if handle >= 0:
            return handle
        if number not in _UNUSABLE:
            raise OSError(number, os.strerror(number), text)
    return open_by_steps(text, flags, mode, at=at)


def open_by_steps(path: str, flags: int, mode: int = 0o666, *, at: int | None = None) -> int:
    """Do what `open_path` does with plain `openat` calls, one for each component."""
    parts = [part for part in path.split("/") if part not in {"", "."}]
    if ".." in parts:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
    if not parts:
        parts = ["."]
    base = at if at is not None and not path.startswith("/") else None
    current = os.open("/" if base is None else ".", _FOLDER, dir_fd=base)
    try:
        for part in parts[:-1]:
            deeper = _step(part, _FOLDER, 0, current, path)
            os.close(current)
            current = deeper
        return _step(parts[-1], flags | os.O_CLOEXEC, mode, current, path)
    finally:
        os.close(current)


_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


def _step(name: str, flags: int, mode: int, folder: int, path: str) -> int:
    try:
        found = os.open(name, flags | os.O_NOFOLLOW, mode, dir_fd=folder)
    except NotADirectoryError:
        if not stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path) from None
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path) from None
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None
    # With O_PATH alone, a link is not refused but opened itself.
    if flags & os.O_PATH and stat.S_ISLNK(os.fstat(found).st_mode):
        os.close(found)
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
    return found


@cache
def _openat2() -> "Callable[[str, int, int, int | None], tuple[int, int]] | None":
    """Return the system call as a function; None if it cannot be called at all."""
    try:
        import ctypes  # takes milliseconds, and the search worker does not need it

        syscall = ctypes.CDLL(None, use_errno=True).syscall
    except (ImportError, OSError, AttributeError):
        return None
    syscall.restype = ctypes.c_long
    number = ctypes.c_long(OPENAT2)
    nowhere = -100  # AT_FDCWD; only absolute paths are opened with it

    def call(path: str, flags: int, mode: int, at: int | None) -> tuple[int, int]:
        resolve = NO_SYMLINKS | NO_MAGIC_LINKS | (0 if path.startswith("/") else BENEATH)
        how = struct.pack("QQQ", flags, mode, resolve)
        folder = ctypes.c_int(nowhere if at is None else at)
        name, size, handle = os.fsencode(path), ctypes.c_size_t(len(how)), -1
        for _ in range(_ATTEMPTS):
            handle = syscall(number, folder, name, how, size)
            if handle >= 0 or ctypes.get_errno() != errno.EAGAIN:
                break
        return ctypes.get_errno(), handle

    return call


# ── Files ───────────────────────────────────────────────────────────────────────────────────────


def open_regular(
    path: "StrPath", flags: int = os.O_RDONLY, mode: int = 0o666, *, at: int | None = None
) -> int:
    """Open a regular file; raise `NotRegular` for anything else, and never wait for a pipe."""
    handle = open_path(path, flags | os.O_NONBLOCK | os.O_NOCTTY, mode, at=at)
    kind = kind_of(os.fstat(handle).st_mode)
    if kind:
        os.close(handle)
        raise NotRegular(path, kind)
    return handle


def kind_of(mode: int) -> str:
    """Return what a file is, if it is not a regular one; empty if it is."""
    if stat.S_ISREG(mode):
        return ""
    if stat.S_ISLNK(mode):
        return "a symbolic link"
    return "a directory" if stat.S_ISDIR(mode) else "a device or pipe"


def is_regular(path: "StrPath") -> bool:
    """Whether *path* leads to a regular file without following a link."""
    try:
        handle = open_path(path, os.O_PATH)
    except OSError:
        return False
    try:
        return stat.S_ISREG(os.fstat(handle).st_mode)
    finally:
        os.close(handle)


# ── Directories ─────────────────────────────────────────────────────────────────────────────────


@contextmanager
def opened_directory(path: "StrPath", flags: int = os.O_PATH) -> Iterator[int]:
    """Open a directory for the length of the block."""
    handle = open_path(path, flags | os.O_DIRECTORY)
    try:
        yield handle
    finally:
        os.close(handle)


def make_directories(path: "StrPath", made: "list[str]") -> int:
    """Return a descriptor of the directory *path*; create what is missing of it.

    The created ones are added to *made*, the uppermost first, also if a later one fails.
    """
    text = os.fspath(path)
    with suppress(FileNotFoundError):
        return open_path(text, os.O_PATH | os.O_DIRECTORY)
    current, way = os.open("/", _FOLDER), ""
    try:
        for part in filter(None, text.split("/")):
            way = f"{way}/{part}"
            try:
                deeper = _step(part, _FOLDER, 0, current, way)
            except FileNotFoundError:
                with suppress(FileExistsError):
                    os.mkdir(part, dir_fd=current)
                    made.append(way)
                deeper = _step(part, _FOLDER, 0, current, way)
            os.close(current)
            current = deeper
        return os.dup(current)
    finally:
        os.close(current)


def remove_directories(made: "list[str]") -> None:
    """Remove directories that `make_directories` created, unless something else is in them."""
    for path in reversed(made):
        above, _, name = path.rpartition("/")
        with suppress(OSError), opened_directory(above or "/") as folder:
            os.rmdir(name, dir_fd=folder)
