"""What makes two paths the same workspace.

A directory has one key, however it is spelt and whichever links lead to it (E2). Links are followed
as far as the path exists and the rest is cleaned, so a directory keeps its key when it comes into
being: resolving all or nothing would give it another one as soon as its workspace has created it,
and the next client a second workspace on the same database.
"""

import os
from typing import NewType, Protocol

import trio

from crush_trio.errors import DecodeError

WorkspaceKey = NewType("WorkspaceKey", str)
"""An absolute path without links, `.`, `..` or doubled slashes."""


class Resolve(Protocol):
    """Finds the key of a path; may wait, and must checkpoint."""

    async def __call__(self, path: str, /) -> WorkspaceKey:
        """Return the key of *path*."""
        ...


def key_of(path: str) -> WorkspaceKey:
    """Return the key of *path*; reads the file system. A relative path starts at our directory.

    Raises `DecodeError` for text that cannot be a path on this system.
    """
    try:
        return WorkspaceKey(os.path.realpath(path))
    except ValueError as exc:  # a NUL, or a character the file system's encoding lacks
        raise DecodeError("path: not a path on this system") from exc


async def resolve_key(path: str) -> WorkspaceKey:
    """Return the key of *path* without holding up the program.

    A file system that does not answer holds up this caller only, and not even that one if it is
    cancelled: nothing was changed, so the thread may be left behind.
    """
    return await trio.to_thread.run_sync(key_of, path, abandon_on_cancel=True)
