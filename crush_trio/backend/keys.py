"""What makes two paths the same workspace, and which paths can be one.

A directory has one key, however it is spelt and whichever links lead to it (E2). Links are followed
as far as the path exists and the rest is cleaned, so a directory keeps its key when it comes into
being: resolving all or nothing would give it another one as soon as its workspace has created it,
and the next client a second workspace on the same database.

Whether a path is absolute can be seen from its text. Whether there is a directory is looked at when a
workspace is opened on the disk, and not before: one that is open already can still be joined.
"""

import os
from pathlib import Path
from typing import NewType, Protocol

import trio

from crush_trio.errors import PathInvalid

WorkspaceKey = NewType("WorkspaceKey", str)
"""An absolute path without links, `.`, `..` or doubled slashes."""


class Resolve(Protocol):
    """Finds the key of a path; may wait, and must checkpoint."""

    async def __call__(self, path: str, /) -> WorkspaceKey:
        """Return the key of *path*."""
        ...


def check_path(path: str) -> None:
    """Raise `PathInvalid` for a path whose meaning would depend on where or as whom the server runs."""
    if path.startswith("~"):
        raise PathInvalid(f"{path} is not expanded by the server; send an absolute path")
    if not path.startswith("/"):
        raise PathInvalid(f"{path} is relative; send an absolute path")


def key_of(path: str) -> WorkspaceKey:
    """Return the key of *path*; reads the file system. A relative path starts at our directory.

    Raises `PathInvalid` for text that cannot be a path on this system, or that cannot be followed.
    """
    try:
        return WorkspaceKey(os.path.realpath(path))
    except ValueError as exc:  # a NUL, or a character the file system's encoding lacks
        raise PathInvalid("it has a character that no path of this system can have") from exc
    except OSError as exc:
        raise PathInvalid(f"{path} cannot be followed: {exc.strerror}") from exc


async def resolve_key(path: str) -> WorkspaceKey:
    """Return the key of *path* without holding up the program.

    A file system that does not answer holds up this caller only, and not even that one if it is
    cancelled: nothing was changed, so the thread may be left behind.
    """
    return await trio.to_thread.run_sync(key_of, path, abandon_on_cancel=True)


def use_directory(path: Path, *, create: bool = False) -> None:
    """Make sure that *path* is a directory that this process can work in; reads the file system.

    One that does not exist is made if *create* says so. Raises `PathInvalid`.
    """
    try:
        if create:
            path.mkdir(parents=True, exist_ok=True)
        path.stat()
    except FileNotFoundError:
        raise PathInvalid(f'{path} does not exist; make it, or send "create": true') from None
    except FileExistsError:
        pass  # and is no directory
    except OSError as exc:
        reason = exc.strerror or "it cannot be looked at"
        raise PathInvalid(f"{path}: {reason}; send the path of a directory") from exc
    if not path.is_dir():
        raise PathInvalid(f"{path} is not a directory; send the path of one")
    if not os.access(path, os.R_OK | os.X_OK):
        raise PathInvalid(f"{path} cannot be read; allow the user of the server to")
