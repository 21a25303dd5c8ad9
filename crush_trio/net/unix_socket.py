"""Unix sockets: the process at the other end, and the private directory of a user's default socket.

The kernel keeps the credentials of both ends of a connection: for a server those of the process that
connected, for a client those of the process that listened. No process can forge them.
"""

import os
import socket
import stat
import struct
from pathlib import Path, PurePosixPath
from pwd import getpwuid
from typing import Final, Protocol

import trio
from attrs import frozen
from typing_extensions import override

from crush_trio.net.errors import ForeignSocket

ROOT: Final = 0

_CREDENTIALS: Final = struct.Struct("iii")
_RETRY: Final = 0.02
_FIND_LIMIT: Final = 1.0
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


class _Socket(Protocol):
    def getsockopt(self, level: int, optname: int, buflen: int, /) -> bytes: ...


@frozen
class Credentials:
    """A process and its user, as they were when it connected or listened."""

    pid: int
    """0 if the process is outside of our PID namespace."""
    uid: int

    @override
    def __str__(self) -> str:
        """Return the program and its user, in words."""
        return f"{self._program}, run by {name_of_user(self.uid)}"

    @property
    def stopped(self) -> bool:
        """Whether the process was stopped by a signal, and does nothing until it is continued."""
        try:
            state = Path(f"/proc/{self.pid}/stat").read_text(errors="replace").rpartition(")")[2]
        except OSError:
            return False
        return state.split()[0] in {"T", "t"}

    @property
    def _program(self) -> str:
        try:
            name = Path(f"/proc/{self.pid}/comm").read_text(errors="replace").strip()
        except OSError:
            return "a program that cannot be named"
        return f"process {self.pid} ({name})"


def credentials_of(sock: _Socket) -> Credentials:
    """Return who is at the other end of a connected Unix socket; raises `OSError` if it is not connected."""
    data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(data)
    return Credentials(pid, uid)


def name_of_user(uid: int) -> str:
    """Return a user by name and number."""
    try:
        return f"user {getpwuid(uid).pw_name} ({uid})"
    except KeyError:
        return f"user {uid}"


async def open_unix_stream(path: str) -> trio.SocketStream:
    """Connect to the socket at *path*; waits while too many clients wait there already.

    The system answers "try again" then. Trio takes that for a connection under way, and returns a stream
    that is not connected.
    """
    while True:
        stream = await trio.open_unix_socket(path)
        try:
            stream.socket.getpeername()
        except OSError:
            await stream.aclose()
            await trio.sleep(_RETRY)
        else:
            return stream


async def find_listener(path: PurePosixPath) -> Credentials | None:
    """Return who listens at *path*; None if no process does, or the system does not tell in time."""
    with trio.move_on_after(_FIND_LIMIT):
        try:
            async with await open_unix_stream(str(path)) as stream:
                return credentials_of(stream.socket)
        except OSError:
            return None  # noqa: ASYNC910 - the refusal may come at once
    return None


def check_listener(path: PurePosixPath, listener: Credentials, owner: int) -> None:
    """Raise `ForeignSocket` unless *listener* is a process of *owner* or root."""
    if listener.uid not in {owner, ROOT}:
        raise ForeignSocket(
            f"{path} belongs to {listener}, not to you; nothing was sent. "
            "Name your server with --host, or have the socket removed"
        )


# ── Private directories ─────────────────────────────────────────────────────────────────────────


def make_private(folder: PurePosixPath, owner: int) -> None:
    """Make *folder* for *owner* alone, unless it exists; raises `ForeignSocket` as `check_private` does."""
    path = Path(folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=stat.S_IRWXU, exist_ok=True)
    check_private(folder, owner)


def check_private(folder: PurePosixPath, owner: int) -> None:
    """Raise `ForeignSocket` unless *folder* is a directory that only *owner* can look into.

    Links are not followed. A directory that does not exist is no danger: there is no socket in it.
    """
    try:
        found = os.lstat(folder)
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(found.st_mode):
        raise ForeignSocket(f"{folder} is not a directory; remove it, or set XDG_RUNTIME_DIR")
    if found.st_uid != owner:
        raise ForeignSocket(
            f"{folder} belongs to {name_of_user(found.st_uid)}; set XDG_RUNTIME_DIR to a directory "
            "of your own"
        )
    if found.st_mode & _OTHERS:
        raise ForeignSocket(f"{folder} is open to other users; chmod 700 it")
