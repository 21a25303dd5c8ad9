"""Connections under asyncio, through anyio: what `net/dial.py` is under Trio, for our own server only.

Servers are connected to directly, so there are no proxies here. HTTP on these streams is that of `net/client.py`.

Sockets are opened here and not by anyio's `connect_tcp` and `connect_unix`: before version 4.16 a cancel that
comes as the connection is made leaves the socket open, and at a Unix socket whose queue is full they use all of the
processor until they are accepted.
"""

import os
import select
import ssl
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from socket import (
    AF_UNIX,
    IPPROTO_TCP,
    SHUT_WR,
    SO_ERROR,
    SOCK_STREAM,
    SOL_SOCKET,
    TCP_NODELAY,
    AddressFamily,
    socket,
)
from typing import Final, TypeAlias

import anyio
import anyio.abc
import anyio.lowlevel
import trio
from anyio.streams.tls import TLSStream
from attrs import define, field
from typing_extensions import override

from crush_trio.net.address import Address, Origin, UnixAddress
from crush_trio.net.dial import NEXT_ADDRESS, Dial, dialing, tls_context
from crush_trio.net.streams import ForeignStream
from crush_trio.net.unix_socket import check_listener, check_private, credentials_of

_READ: Final = 65536
_RETRY: Final = 0.02

_Place: TypeAlias = str | tuple[str, int] | tuple[str, int, int, int]


# ── Streams ─────────────────────────────────────────────────────────────────────────────────────


@define(eq=False)
class SocketStream(anyio.abc.ByteStream):
    """A connected socket as a stream of anyio, on which TLS can be put."""

    socket: socket

    @override
    async def send(self, item: bytes) -> None:
        await anyio.lowlevel.checkpoint()
        left = memoryview(item)
        while left:
            try:
                left = left[self.socket.send(left) :]
            except BlockingIOError:
                await anyio.wait_writable(self.socket)
            except OSError as exc:
                raise anyio.BrokenResourceError from exc

    @override
    async def receive(self, max_bytes: int = _READ) -> bytes:
        await anyio.lowlevel.checkpoint()
        while True:
            try:
                data = self.socket.recv(max_bytes)
            except BlockingIOError:
                await anyio.wait_readable(self.socket)
            except OSError as exc:
                raise anyio.BrokenResourceError from exc
            else:
                if not data:
                    raise anyio.EndOfStream
                return data

    @override
    async def send_eof(self) -> None:
        await anyio.lowlevel.checkpoint()
        self.socket.shutdown(SHUT_WR)

    @override
    async def aclose(self) -> None:
        self.socket.close()
        await anyio.lowlevel.checkpoint()


@define(eq=False)
class AsyncioStream(ForeignStream):
    """A socket, perhaps with TLS on it, as the HTTP client wants it."""

    socket: socket
    _stream: anyio.abc.ByteStream

    @override
    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        with _as_trio():
            await self._stream.send(bytes(data))

    @override
    async def wait_send_all_might_not_block(self) -> None:
        await anyio.lowlevel.checkpoint()

    @override
    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        with _as_trio():
            try:
                return await self._stream.receive(max_bytes or _READ)
            except anyio.EndOfStream:
                return b""  # noqa: ASYNC910  # receiving has waited

    @override
    async def aclose(self) -> None:
        self.socket.close()
        await anyio.lowlevel.checkpoint()

    @override
    def has_input(self) -> bool:
        """Whether the socket has something to read. Nothing reads it between two requests."""
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        return bool(poll.poll(0))


@contextmanager
def _as_trio() -> Generator[None]:
    """Raise what a broken stream raises as Trio does; `dialing` and the HTTP client expect that."""
    try:
        yield
    except (anyio.BrokenResourceError, anyio.EndOfStream, ssl.SSLError) as exc:
        cause = exc if isinstance(exc, ssl.SSLError) else exc.__cause__
        raise trio.BrokenResourceError("the connection broke") from cause


# ── Dialers ─────────────────────────────────────────────────────────────────────────────────────


@define(eq=False)
class AsyncioDialer:
    """Connects over TCP, with TLS if the origin wants it. *environment* names the certificates to trust."""

    environment: Mapping[str, str] = field(repr=False)
    _trust: ssl.SSLContext | None = field(default=None, init=False, repr=False)

    async def __call__(self, origin: Origin) -> AsyncioStream:
        """Return a new stream to *origin*."""
        with dialing(origin.authority), _as_trio():
            if origin.secure and self._trust is None:
                self._trust = await anyio.to_thread.run_sync(tls_context, self.environment)
            sock = await _open_tcp(origin)
            if not origin.secure:
                return AsyncioStream(sock, SocketStream(sock))
            try:
                tls = await TLSStream.wrap(
                    SocketStream(sock),
                    hostname=origin.host,
                    ssl_context=self._trust,
                    standard_compatible=False,  # servers close without a TLS farewell
                )
            except BaseException:
                sock.close()
                raise
            return AsyncioStream(sock, tls)


@define(eq=False)
class AsyncioUnixDialer:
    """Connects to a Unix socket, whatever the origin; raises `ForeignSocket` if it is not its owner's."""

    address: UnixAddress

    async def __call__(self, origin: Origin) -> AsyncioStream:
        """Return a new stream to the socket."""
        path, owner = self.address.path, self.address.owner
        with dialing(str(path)):
            if owner is not None and self.address.private:
                check_private(path.parent, owner)
            sock = await _open_socket(AF_UNIX, str(path))
            try:
                if owner is not None:
                    check_listener(path, credentials_of(sock), owner)
            except BaseException:
                sock.close()
                raise
            return AsyncioStream(sock, SocketStream(sock))


async def _open_tcp(origin: Origin) -> socket:
    """Connect to the first address of *origin* that answers; they are tried one after the other."""
    found = await anyio.getaddrinfo(origin.host, origin.port, type=SOCK_STREAM)
    failure: OSError | None = None
    for number, (family, _, _, _, where) in enumerate(found, 1):
        patience = NEXT_ADDRESS if number < len(found) else float("inf")
        try:
            with anyio.move_on_after(patience):
                sock = await _open_socket(family, where)
                sock.setsockopt(IPPROTO_TCP, TCP_NODELAY, True)
                return sock
        except OSError as exc:
            failure = exc
    raise failure or TimeoutError("no address answers")


async def _open_socket(family: AddressFamily, where: _Place) -> socket:
    """Connect a socket; it is closed if that fails or is cancelled."""
    await anyio.lowlevel.checkpoint()
    sock = socket(family, SOCK_STREAM)
    try:
        sock.setblocking(False)
        while True:
            try:
                sock.connect(where)
                return sock
            except BlockingIOError:
                if family == AF_UNIX:  # too many clients wait there already
                    await anyio.sleep(_RETRY)
                    continue
            await anyio.wait_writable(sock)
            if error := sock.getsockopt(SOL_SOCKET, SO_ERROR):
                raise OSError(error, os.strerror(error))
            return sock
    except BaseException:
        sock.close()
        raise


def asyncio_dial(address: Address, certificates: Mapping[str, str]) -> Dial:
    """Return how to connect to *address* under asyncio."""
    if isinstance(address, UnixAddress):
        return AsyncioUnixDialer(address)
    return AsyncioDialer(certificates)
