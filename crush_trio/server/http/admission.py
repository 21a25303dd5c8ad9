"""Admits connections to a server: accepts each one, and refuses or closes one when there are too many.

A client that is over a limit hurts only itself. A new connection is refused only when all others are
busy with a request. Otherwise one that waits for its client is closed for it, in this order:

1. the oldest whose request has begun to arrive and is not complete;
2. the oldest that has sent nothing yet;
3. the one that was idle for longest;
4. the oldest whose request's body has not arrived.

Refusing new connections instead would let one client that holds all places lock out the others, while a
client that sends its request in one piece is never the oldest unfinished one for long. A connection is
not closed while it has unread data: then it waits for the server, as the connections of many clients do
that connect at the same moment.

Three limits lead to that: connections, request heads that have not arrived, and descriptors. Files of
a store, pipes of a command and connections to a model need descriptors too, and without one an
accepted run fails; so connections leave some of them alone. The number of a new descriptor says how many
are in use, because it is the lowest that was free. `Admission` decides all this, synchronously.

`Acceptor` accepts. A refused client gets an answer at once; otherwise its request would hang until another
client disconnects. If the process has no descriptor left at all, a spare one is closed for a moment, so
that even then a client gets an answer. That is logged at most once a minute, and does not spin.
"""

import errno
import fcntl
import logging
import os
import resource
import socket
import termios
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from enum import StrEnum
from http import HTTPStatus
from typing import Final

import trio
from attrs import define, field

from crush_trio.errors import TooManyConnections
from crush_trio.limits import DEFAULTS, SizeLimits
from crush_trio.server.status import RETRY_AFTER, error_body, status_of

_LOG_PAUSE: Final = 60.0
"""Seconds between two log lines about the same problem."""

_EXHAUSTED: Final = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_PAUSE: Final = 0.1
_UNREAD: Final = 2**16
_GONE: Final = object()

log = logging.getLogger(__name__)


class Stage(StrEnum):
    """What a connection waits for. All but the last may be closed to make room, in this order."""

    HEAD = "head"
    """The rest of a request's head, of which something has arrived."""
    FRESH = "fresh"
    """The first request."""
    IDLE = "idle"
    """The client may send another request."""
    BODY = "body"
    """The rest of a request."""
    BUSY = "busy"
    """The answer, which is being made, sent or read."""


@define(eq=False)
class Seat:
    """The place of one connection among those of its server."""

    life: trio.CancelScope = field(factory=trio.CancelScope, init=False)
    """Around everything that is done for the connection; cancelled to make room."""
    stage: Stage = field(default=Stage.FRESH, init=False)
    give_way: Callable[[], None] = field(init=False)
    """Called to close the connection; it may send a last answer first."""
    waits_for_us: Callable[[], bool] = field(init=False)
    """Whether data has arrived on it that was not read."""
    descriptor: int
    _admission: "Admission"

    def __attrs_post_init__(self) -> None:
        self.give_way, self.waits_for_us = self.life.cancel, self.readable

    @property
    def limits(self) -> SizeLimits:
        """The server's limits."""
        return self._admission.limits

    def readable(self) -> bool:
        """Whether the kernel has data from its client."""
        return self._admission.readable(self.descriptor)

    def move(self, stage: Stage) -> None:
        """Note what the connection waits for now; too many unfinished heads close the oldest of them."""
        self._admission.move(self, stage)

    def leave(self) -> None:
        """Give up the place, once the connection is closed. Leaving twice does nothing."""
        self._admission.leave(self)


@define(eq=False)
class Admission:
    """The connections of a server, by what they wait for, the longest waiting first."""

    limits: SizeLimits = DEFAULTS
    descriptors: float = field(factory=lambda: _descriptors())
    """How many the process may have open."""
    readable: Callable[[int], bool] = field(default=lambda descriptor: _readable(descriptor))
    _seats: dict[Stage, dict[Seat, None]] = field(init=False, repr=False)
    _gave_way: "Rarely" = field(factory=lambda: Rarely(), init=False)
    _refused: "Rarely" = field(factory=lambda: Rarely(), init=False)

    def __attrs_post_init__(self) -> None:
        self._seats = {stage: {} for stage in Stage}

    @property
    def most(self) -> float:
        """How many connections there may be."""
        return min(self.limits.connections, self.descriptors // 2)

    @property
    def count(self) -> int:
        """How many there are."""
        return sum(map(len, self._seats.values()))

    def waiting(self, stage: Stage) -> int:
        """Return how many of them wait for *stage*."""
        return len(self._seats[stage])

    def admit(self, descriptor: int) -> Seat | None:
        """Give a new connection its place; None if there is no room.

        *descriptor* is that of its socket.
        """
        reserve = min(self.limits.reserve, self.descriptors // 8)
        full = self.count >= self.most or descriptor >= self.descriptors - reserve
        if full and not self.make_room():
            if times := self._refused.due():
                extra = {"times": times, "connections": self.count}
                log.warning("connections.refused", extra=extra)
            return None
        seat = Seat(descriptor, self)
        self._seats[seat.stage][seat] = None
        return seat

    def make_room(self) -> bool:
        """Close one connection that waits for its client; return whether there was one."""
        return any(self._remove_first(stage) for stage in Stage if stage is not Stage.BUSY)

    def move(self, seat: Seat, stage: Stage) -> None:
        """Have *seat* wait for something else; one that was closed to make room stays as it is."""
        if stage is not seat.stage and self._seats[seat.stage].pop(seat, _GONE) is None:
            seat.stage = stage
            self._seats[stage][seat] = None
            self._bound_heads()

    def leave(self, seat: Seat) -> None:
        """Forget *seat*."""
        self._seats[seat.stage].pop(seat, None)

    def _bound_heads(self) -> None:
        while len(self._seats[Stage.HEAD]) > self.limits.heads and self._remove_first(Stage.HEAD):
            pass

    def _remove_first(self, stage: Stage) -> bool:
        """Close the first in a stage that waits for its client; return whether there was one."""
        for seat in self._seats[stage]:
            if not seat.waits_for_us():
                self._remove(seat)
                return True
        return False

    def _remove(self, seat: Seat) -> None:
        if times := self._gave_way.due():
            extra = {"times": times, "connections": self.count, "waited_for": seat.stage.value}
            log.warning("connections.gave_way", extra=extra)
        self.leave(seat)
        seat.give_way()


def _readable(descriptor: int) -> bool:
    """Whether the kernel has bytes for *descriptor*; an end of file does not count."""
    unread = bytearray(4)
    fcntl.ioctl(descriptor, termios.FIONREAD, unread)
    return any(unread)


def _descriptors() -> float:
    """Return how many descriptors this process may have open."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return float("inf") if most == resource.RLIM_INFINITY else most


@define(eq=False)
class Rarely:
    """Counts something that may happen often, to be logged at once and then once in a while."""

    _times: int = field(default=0, init=False)
    _next: float = field(default=0.0, init=False)

    def due(self) -> int:
        """Count once more; return the count since the last log line, 0 if it is too early for another."""
        self._times += 1
        now = trio.current_time()
        if now < self._next:
            return 0
        times, self._times, self._next = self._times, 0, now + _LOG_PAUSE
        return times


# ── Accepting ───────────────────────────────────────────────────────────────────────────────────


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
