"""Listening sockets: bind, probe, remove.

A socket file is readable by its owner only, before the first client can connect. A file left by a dead
server is replaced; one behind which a server answers, or might, is never touched (G14). At the end only
the file we made is removed, not one that has replaced it. We listen on addresses that other machines
can reach only if every request must carry a token.
"""

import fcntl
import logging
import os
import socket
import stat
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from errno import EADDRINUSE
from pathlib import Path, PurePosixPath
from typing import Final

import trio
from attrs import define, field, frozen

from crush_trio.errors import CrushError
from crush_trio.net.address import Address, TcpAddress, UnixAddress, is_loopback
from crush_trio.net.errors import ForeignSocket
from crush_trio.net.unix_socket import credentials_of, make_private

PROBE_LIMIT: Final = 0.2
"""Seconds that a server behind a socket file may take to accept a probe."""

_BACKLOG: Final = 128
_TURN_LIMIT: Final = 2.0
_TURN_PAUSE: Final = 0.01

_FileId = tuple[int, int]

log = logging.getLogger(__name__)


class AddressInUse(CrushError):
    """Another server listens there already, or may: an unclear probe counts as a server."""

    code = "address_in_use"
    message = "the address is in use; stop the other server or choose another address"


class CannotListen(CrushError):
    """The operating system, or a file at that path, prevents us from listening."""

    code = "cannot_listen"
    message = "cannot listen"


class AddressExposed(CrushError):
    """A client of an agent can run commands, so an address that other machines can reach needs a token."""

    code = "address_exposed"
    message = "will not listen beyond this machine without a token; set one, or use 127.0.0.1"


class SocketExposed(CrushError):
    """A socket file would let in every user of the machine, and the server requires no token."""

    code = "socket_exposed"
    message = (
        "will not open a socket to every user of this machine without a token; set one, or give the "
        "socket to a group with --socket-group and --socket-mode 0660"
    )


@frozen
class SocketAccess:
    """Who may open the socket files of a server: their mode, and their group if it is not the default.

    Every user who may open the socket can do what the server allows without a token. By default that is the owner
    alone, and then other users are refused even if they could open the file (`server.http.peer`).
    """

    mode: int = 0o600
    group: int | None = None

    def apply(self, path: Path) -> None:
        """Give our socket at *path* its group and mode; raises OSError.

        The file is opened first and without following links: in a directory that others can write to, it
        may have been replaced by a link to another file of ours.
        """
        handle = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if not stat.S_ISSOCK(os.fstat(handle).st_mode):
                raise CannotListen(f"{path} was replaced while the socket was opened")
            opened = f"/proc/self/fd/{handle}"
            if self.group is not None:
                os.chown(opened, -1, self.group)
            Path(opened).chmod(self.mode)
        finally:
            os.close(handle)


OWNER_ONLY: Final = SocketAccess()
"""The default access: the owner alone."""


@define(eq=False)
class Listening:
    """Sockets that clients can connect to, and their addresses.

    `addresses` holds the real ones, in the order asked for: a port 0 has become a port.
    """

    addresses: tuple[Address, ...]
    _sockets: tuple[socket.socket, ...]
    _undo: ExitStack = field(repr=False)
    _access: SocketAccess = OWNER_ONLY

    def listeners(self) -> list[trio.SocketListener]:
        """Return a listener per socket, for `trio.serve_listeners` to accept from and to close.

        They share their sockets with this object. So a socket listens until `close`, even if its
        listener is closed earlier, and its file is removed while the socket still listens: no other
        server can take it for a dead one.
        """
        return [
            trio.SocketListener(trio.socket.from_stdlib_socket(sock.dup()))
            for sock in self._sockets
        ]

    async def restored(self, pause: float) -> trio.SocketListener:
        """Wait until a socket file of ours is missing, listen there again, and return the new listener.

        Looks every *pause* seconds. A file that is not ours is another server's, and left alone.
        """
        while True:
            await trio.sleep(pause)
            for address in self.addresses:
                if isinstance(address, UnixAddress) and _mode_of(Path(address.path)) is None:
                    with suppress(CrushError), ExitStack() as undo:  # its directory may be missing
                        sock = await _listen(address, undo, self._access, require_token=False)
                        self._undo.enter_context(undo.pop_all())
                        log.warning("socket_file.restored", extra={"path": str(address.path)})
                        return trio.SocketListener(trio.socket.from_stdlib_socket(sock.dup()))

    def close(self) -> None:
        """Remove our socket files, then stop listening. Closing twice does nothing."""
        self._undo.close()


@asynccontextmanager
async def open_listeners(
    addresses: Sequence[Address],
    *,
    require_token: bool = False,
    access: SocketAccess = OWNER_ONLY,
) -> AsyncIterator[Listening]:
    """Listen on all of *addresses*, or on none, until the block ends or `close` is called.

    *require_token* says that the application refuses requests without a token; only then may an
    address be reachable from other machines, or a socket file by every user (*access*). Raises
    `AddressInUse`, `AddressExposed`, `SocketExposed` or `CannotListen`, each naming the address.
    """
    if access.mode & stat.S_IRWXO and not require_token:
        raise SocketExposed
    with ExitStack() as undo:
        sockets = [
            await _listen(address, undo, access, require_token=require_token)
            for address in addresses
        ]
        yield Listening(tuple(map(_address_of, sockets)), tuple(sockets), undo, access)


async def _listen(
    address: Address, undo: ExitStack, access: SocketAccess, *, require_token: bool
) -> socket.socket:
    with _translated(address):
        if isinstance(address, UnixAddress):
            return await _listen_unix(address, undo, access)
        return await _listen_tcp(address, undo, require_token=require_token)


def _address_of(sock: socket.socket) -> Address:
    """Return the address that *sock* is bound to."""
    name = sock.getsockname()
    if sock.family == socket.AF_UNIX:
        return UnixAddress(PurePosixPath(name))
    return TcpAddress(name[0], name[1])


# ── TCP ─────────────────────────────────────────────────────────────────────────────────────────


async def _listen_tcp(
    address: TcpAddress, undo: ExitStack, *, require_token: bool
) -> socket.socket:
    """Bind what *address* resolves to, after checking whether other machines can reach it."""
    found = await trio.socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    # Of a name with several addresses one is used: an IPv4 one, if there is one.
    family, *_, target = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    if not require_token and not is_loopback(TcpAddress(str(target[0]), address.port)):
        raise AddressExposed(str(address))
    sock = undo.enter_context(socket.socket(family, socket.SOCK_STREAM))
    # Connections of an earlier server that are in TIME_WAIT must not block its port.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(target)
    sock.listen(_BACKLOG)
    return sock


# ── Unix ────────────────────────────────────────────────────────────────────────────────────────


async def _listen_unix(
    address: UnixAddress, undo: ExitStack, access: SocketAccess
) -> socket.socket:
    path = Path(address.path)
    if address.private and address.owner is not None:
        make_private(address.path.parent, address.owner)
    async with _turn_in(path.parent):
        await _clear_stale(path)
        return _bind_unix(path, undo, access)


def _bind_unix(path: Path, undo: ExitStack, access: SocketAccess) -> socket.socket:
    """Bind, set who may open the file, and only then listen: before that no client can connect."""
    sock = undo.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
    sock.bind(str(path))
    undo.callback(_remove_ours, path, _file_id(path))
    access.apply(path)
    sock.listen(_BACKLOG)
    return sock


@asynccontextmanager
async def _turn_in(folder: Path) -> AsyncIterator[None]:
    """Take turns with other servers of ours that bind in *folder*.

    Two servers that find the same stale file would otherwise remove it twice, and the second would
    remove the file of the first. If another program holds the lock, we continue without it after a
    while.
    """
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with trio.move_on_after(_TURN_LIMIT):
            while not _lock(handle):  # noqa: ASYNC110 - a file lock sends no event
                await trio.sleep(_TURN_PAUSE)
        yield
    finally:
        os.close(handle)


def _lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


async def _clear_stale(path: Path) -> None:
    """Remove a socket file behind which no server listens; raise if the path is taken.

    The kernel refuses a connection to an ordinary file just as to a dead socket, hence the first
    check: an ordinary file must not be deleted.
    """
    await trio.lowlevel.checkpoint()
    found = _mode_of(path)
    if found is None:
        return
    if not stat.S_ISSOCK(found):
        raise CannotListen(f"{path} exists and is not a socket; move it or choose another path")
    if (answered := await _answers(path)) is not None:
        raise AddressInUse(f"{path}, by {answered}")
    _remove_stale(path)


async def _answers(path: Path) -> str | None:
    """Return which program listens at *path*; None if it refuses. A timeout does not mean that none does."""
    with trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            with trio.move_on_after(PROBE_LIMIT):
                await probe.connect(str(path))
                return str(credentials_of(probe))
        except (ConnectionRefusedError, FileNotFoundError):
            return None  # noqa: ASYNC910 - the refusal may come at once
    return "a program that does not answer"


def _mode_of(path: Path) -> int | None:
    """Return the mode of the file at *path*, without following links; None if there is none."""
    try:
        return path.lstat().st_mode
    except FileNotFoundError:
        return None


def _remove_stale(path: Path) -> None:
    path.unlink(missing_ok=True)


def _file_id(path: Path) -> _FileId:
    found = path.lstat()
    return found.st_dev, found.st_ino


def _remove_ours(path: Path, ours: _FileId) -> None:
    """Unlink *path* if it is still the file we made.

    The inode number cannot have been reused: our open socket keeps it.
    """
    try:
        if _file_id(path) == ours:
            path.unlink()
    except FileNotFoundError:
        return
    except OSError:
        # The next server finds it stale and removes it, so this is only a warning.
        log.warning("socket_file.left", extra={"path": str(path)}, exc_info=True)


@contextmanager
def _translated(address: Address) -> Iterator[None]:
    """Translate the system's errors about *address* into ours."""
    try:
        yield
    except ForeignSocket as error:
        raise CannotListen(error.detail) from error
    except OSError as error:
        if error.errno == EADDRINUSE:
            raise AddressInUse(str(address)) from error
        raise CannotListen(f"{address}: {error.strerror or error}") from error
