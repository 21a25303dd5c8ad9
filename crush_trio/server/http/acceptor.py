"""Accepts connections: each is served, or refused because there are too many.

A refused client gets an answer at once; otherwise its request would hang until another client
disconnects. If the process has no descriptor left at all, a spare one is closed for a moment, so that
even then a client gets an answer. That is logged once in a while, and does not spin.
"""

import errno
import logging
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from http import HTTPStatus
from typing import Final

import trio
from attrs import define, field

from crush_trio.errors import TooManyConnections
from crush_trio.server.http.admission import Admission, Rarely, Seat
from crush_trio.server.status import RETRY_AFTER, error_body, status_of

_EXHAUSTED: Final = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_PAUSE: Final = 0.1
_UNREAD: Final = 2**16

log = logging.getLogger(__name__)


@define(eq=False)
class Acceptor:
    """Accepts for a server; *serve* is run in *connections* for each connection that has a seat."""

    admission: Admission
    serve: Callable[[trio.SocketStream, Seat], Awaitable[None]]
    connections: trio.Nursery
    _spare: "_Spare" = field(repr=False)
    _exhausted: Rarely = field(factory=Rarely, init=False)

    async def accept_from(self, listener: trio.SocketListener) -> None:
        """Accept until cancelled, then close *listener*."""
        async with listener:
            while True:
                try:
                    self._admit(await listener.accept())
                except OSError as error:
                    if error.errno not in _EXHAUSTED:
                        raise
                    if times := self._exhausted.due():
                        extra = {"times": times, "error": str(error)}
                        log.warning("server.no_descriptors", extra=extra)
                    await self._accept_in_need(listener)

    def _admit(self, stream: trio.SocketStream) -> None:
        seat = self.admission.admit(stream.socket.fileno())
        if seat is None:
            refuse(stream)
        else:
            self.connections.start_soon(self.serve, stream, seat)

    async def _accept_in_need(self, listener: trio.SocketListener) -> None:
        """Refuse one client, with the spare descriptor, and close another connection to make room."""
        self.admission.make_room()
        with self._spare.lent(), trio.move_on_after(_PAUSE), suppress(OSError):
            refuse(await listener.accept())
            return
        await trio.sleep(_PAUSE)


@asynccontextmanager
async def open_acceptor(
    admission: Admission,
    serve: Callable[[trio.SocketStream, Seat], Awaitable[None]],
    connections: trio.Nursery,
) -> AsyncIterator[Acceptor]:
    """Open an acceptor with a spare descriptor, for the length of the block."""
    await trio.lowlevel.checkpoint()
    spare = _Spare()
    try:
        yield Acceptor(admission, serve, connections, spare)
    finally:
        spare.close()


@define(eq=False)
class _Spare:
    """A spare descriptor, for the moment in which there is no other."""

    _descriptor: int | None = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._open()

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Close it for the length of the block; another part of the process may take it first."""
        self.close()
        try:
            yield
        finally:
            self._open()

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = None

    def _open(self) -> None:
        self._descriptor = None
        with suppress(OSError):
            self._descriptor = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)


def refuse(stream: trio.SocketStream) -> None:
    """Send a client the refusal and close; what it does not take at once is dropped.

    What has arrived from it is read before closing: closing with unread data resets the connection,
    and the client might lose the answer.
    """
    sock = stream.socket
    with suppress(OSError):
        os.write(sock.fileno(), REFUSAL)
        sock.shutdown(socket.SHUT_WR)
        os.read(sock.fileno(), _UNREAD)
    sock.close()


def _refusal() -> bytes:
    error = TooManyConnections()
    status, body = HTTPStatus(status_of(error)), error_body(error)
    return (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nRetry-After: {RETRY_AFTER}\r\nConnection: close\r\n\r\n"
    ).encode() + body


REFUSAL: Final = _refusal()
"""The answer for a client for which there is no room."""
