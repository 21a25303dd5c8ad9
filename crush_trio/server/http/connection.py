"""One client's HTTP/1.1 connection, on Trio and h11.

Two tasks serve a connection. One receives (`Incoming`): it passes on what the client sends, and ends the
connection when the client disconnects, whatever is going on in it. The other reads requests and has them
answered, one after the other. So a request needs no task of its own, neither to be handled nor to be
cancelled when its client disconnects; and an ordinary answer is one write.

Everything that depends on the client has a limit: a request's head must arrive within its time, its body
without long pauses, and sending has its limit (`http.outgoing`). What a client sends ahead of its turn
stays unread until then, and a disconnect after it is noticed then. What fails stays in its connection. A
connection that waits for its client may be closed to make room for others (`http.admission`).

A client that closes its sending side may still read the answer (RFC 9112 §9.6). On TCP a client that has
disconnected looks the same: the two differ only in what happens to the bytes that are sent to it. So a
request that has arrived is answered, and meanwhile the client is probed now and then:

* on a Unix socket the kernel knows;
* over TCP an interim response is sent, which clients skip (RFC 9110 §15.2) and which the kernel of a
  client that has disconnected answers with a reset. Most answers are sent before the first probe.
* HTTP/1.0 has no interim responses; such a client counts as connected for a while.

`http.hypercorn` does the same for connections that Hypercorn accepts, and which may speak HTTP/2.
"""

import logging
import os
import select
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from math import inf
from socket import AF_UNIX
from typing import TYPE_CHECKING, Any, Final

import h11
import trio
from attrs import define, field, frozen

from crush_trio.errors import RequestTooSlow
from crush_trio.nursery import Interrupt
from crush_trio.server.http.admission import Seat, Stage
from crush_trio.server.http.exchange import Exchange
from crush_trio.server.http.framing import Framing, PlainRequest
from crush_trio.server.http.outgoing import SEND_LIMIT, Outgoing
from crush_trio.server.http.peer import Peer
from crush_trio.server.logging import places
from crush_trio.server.status import error_body

if TYPE_CHECKING:
    from hypercorn.typing import ASGIFramework, LifespanState

PROBE_PAUSE: Final = 2.0
"""Seconds between two probes of a client that has closed its side."""

PROBE_RETURN: Final = 0.1
"""Seconds that the kernel of a disconnected client has to answer a probe."""

BELIEVED: Final = 30.0
"""Seconds for which a client that cannot be probed counts as connected."""

_RECEIVE_SIZE: Final = 2**16

log = logging.getLogger(__name__)


@frozen(kw_only=True)
class Terms:
    """What the connections of a server have in common."""

    app: "ASGIFramework"
    state: "LifespanState"
    """The state that the application's lifespan has set up."""
    stopping: Interrupt
    """Called when the server stops: idle connections close then, busy ones after their answer."""
    keep_alive: float
    """Seconds a connection may be idle, or a client may pause within the body of a request."""
    send_limit: float = SEND_LIMIT


async def serve_connection(terms: Terms, stream: trio.SocketStream, seat: Seat) -> None:
    """Serve one client until it disconnects, is idle for too long or is closed to make room; or the server stops."""
    try:
        connection = Connection(terms, stream, seat)
        with connection.life:
            await connection.serve()
    except* Exception as failures:  # noqa: BLE001 - the barrier between clients
        log.error("connection.failed", extra={"failures": sorted(places(failures))})  # noqa: TRY400
    finally:
        await trio.aclose_forcefully(stream)
        seat.leave()


@define(eq=False)
class Connection:
    """A client's connection; its *life* is cancelled when the client has disconnected."""

    terms: Terms
    stream: trio.SocketStream
    seat: Seat
    life: trio.CancelScope = field(init=False)
    incoming: "Incoming" = field(init=False)
    outgoing: Outgoing = field(init=False)
    http: Framing = field(factory=Framing, init=False)
    client: tuple[str, int] | None = field(default=None, init=False)
    server: tuple[str, int] | None = field(init=False)
    peer: Peer = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.life, self.seat.give_way = self.seat.life, self.give_way
        self.seat.waits_for_us = self.waits_for_us
        self.incoming = Incoming(self.stream, self.life)
        self.outgoing = Outgoing(self.stream, self.life, self.terms.send_limit)
        socket = self.stream.socket
        self.peer = Peer(socket)
        self.server = _tcp_address(socket.getsockname())
        with suppress(OSError):  # the client has disconnected, which `Incoming` will notice
            self.client = _tcp_address(socket.getpeername())

    async def serve(self) -> None:
        """Answer requests until there will be no more, then close."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.incoming.listen, self.probe)
            while await self._serve_one():
                self.http.next_cycle()
            await self.close()

    async def _serve_one(self) -> bool:
        """Have the next request answered; return whether the client may send another one."""
        try:
            request = await self._next_request()
            if request is None:
                return False
            exchange = Exchange(self, request)
        except h11.RemoteProtocolError as error:
            await self.refuse(error.error_status_hint)
            return False
        await exchange.run()
        done = self.http.our_state is h11.DONE and self.http.their_state is h11.DONE
        return done and not self.last

    async def _next_request(self) -> h11.Request | PlainRequest | None:
        """Wait for a request; return None when there is none in time, or the server stops.

        Raises `h11.RemoteProtocolError` for one that does not arrive in time.
        """
        with trio.CancelScope() as waiting, self.terms.stopping.ends(waiting):
            if self.seat.stage is not Stage.FRESH:
                self.seat.move(Stage.IDLE)
                waiting.deadline = trio.current_time() + self.terms.keep_alive
            if self.seat.stage is Stage.FRESH or self.http.begun:
                self._expect_head(waiting)
            event = await self.next_event(partial(self._expect_head, waiting))
            self.seat.move(Stage.BUSY)
            return event if isinstance(event, PlainRequest | h11.Request) else None
        if self.http.begun and not self.terms.stopping.called:
            raise h11.RemoteProtocolError("slow", error_status_hint=HTTPStatus.REQUEST_TIMEOUT)
        return None

    def _expect_head(self, waiting: trio.CancelScope) -> None:
        """Set the deadline of a head, once: of the first from the beginning, of others when they begin to arrive."""
        if waiting.deadline == inf or self.seat.stage is Stage.IDLE:
            seconds = min(self.seat.limits.head_time, self.terms.keep_alive)
            waiting.deadline = trio.current_time() + seconds
        if self.http.begun:
            self.seat.move(Stage.HEAD)

    async def next_event(self, incomplete: Callable[[], None] = lambda: None) -> object:
        """Return the client's next event; raise `h11.RemoteProtocolError` if it is malformed.

        Cancelling loses nothing that was received. An event that is ready is returned after a
        checkpoint. *incomplete* is called for each received piece that does not complete an event.
        """
        event = self.http.next_event()
        if event is not h11.NEED_DATA:
            await trio.lowlevel.cancel_shielded_checkpoint()
        while event is h11.NEED_DATA:
            self.http.receive(await self.incoming.receive())
            event = self.http.next_event()
            if event is h11.NEED_DATA:
                incomplete()
        return event  # noqa: ASYNC910 - see above

    async def refuse(self, status: int) -> None:
        """Answer a malformed or unfinished request, unless an answer has begun."""
        await trio.lowlevel.checkpoint()
        await self.outgoing.send(self._refusal(status))

    def waits_for_us(self) -> bool:
        """Whether the client has sent something that was not read."""
        return self.incoming.unread or self.seat.readable()

    def give_way(self) -> None:
        """Close to make room for another connection; a client that is sending a request is told why."""
        if self.http.begun or self.seat.stage is Stage.BODY:
            self.outgoing.send_now(self._refusal(HTTPStatus.REQUEST_TIMEOUT))
        self.life.cancel()

    def _refusal(self, status: int) -> bytes:
        if self.http.our_state not in {h11.IDLE, h11.SEND_RESPONSE}:
            return b""
        slow = status == HTTPStatus.REQUEST_TIMEOUT
        body = error_body(RequestTooSlow()) if slow else b""
        headers = [(b"content-length", b"%d" % len(body)), (b"connection", b"close")]
        if body:
            headers.append((b"content-type", b"application/json"))
        return self.http.begin(status, headers, body, more=False)

    async def close(self) -> None:
        """Close our side; the life then ends soon, at the latest when the client disconnects."""
        self.seat.move(Stage.IDLE)
        self.incoming.ignore()
        await self.outgoing.hang_up()

    def go_on(self) -> None:
        """Send an interim response, in one step: another task may be about to send the answer.

        If none of it fits into the client's buffer it is skipped; if only a part fits, the connection
        ends.
        """
        interim = self.http.inform()
        if 0 < self.outgoing.send_now(interim) < len(interim):
            self.life.cancel()

    def probe(self) -> bool:
        """Send what only a client that is still connected accepts; see `Incoming.listen`."""
        if self.stream.socket.family == AF_UNIX:
            return True
        if self.http.our_state is h11.SEND_RESPONSE:
            if not self.http.interim:
                return False
            self.go_on()
        return True

    @property
    def last(self) -> bool:
        """Whether no request will be read after the current one."""
        return self.incoming.ignored or self.terms.stopping.called


# ── The receiving half ──────────────────────────────────────────────────────────────────────────


@define(eq=False)
class Incoming:
    """The receiving half of a connection. It shares the *life* of the connection with the sending half.

    One task listens; another one takes what it received, one piece at a time. At most one piece is read
    ahead: what follows stays in the kernel until it is wanted.
    """

    stream: trio.SocketStream
    life: trio.CancelScope
    ended: bool = field(default=False, init=False)
    """Whether the client has closed its side."""
    ignored: bool = field(default=False, init=False)
    """Whether what the client still sends is dropped."""
    _piece: bytes = field(default=b"", init=False)
    """What was read and not taken yet; nothing else is shared by the two tasks."""
    _heard: trio.lowlevel.ParkingLot = field(factory=trio.lowlevel.ParkingLot, init=False)
    _taken: trio.lowlevel.ParkingLot = field(factory=trio.lowlevel.ParkingLot, init=False)

    @property
    def unread(self) -> bool:
        """Whether a piece was read that was not taken yet."""
        return bool(self._piece)

    # ASYNC910: there is no way around listening.
    async def listen(self, probe: Callable[[], bool]) -> None:  # noqa: ASYNC910
        """Pass on what the client sends; cancel the life of the connection when it disconnects.

        *probe* sends an interim response if the state of the connection allows one. It returns whether
        the kernel will report a disconnect, now or when the answer is sent.
        """
        try:
            while data := await self._read():
                while self._piece and not self.ignored:
                    await self._taken.park()
                self._piece = b"" if self.ignored else data
                self._heard.unpark()
        except (OSError, trio.ClosedResourceError):
            pass
        else:
            self.ended = True
            self._heard.unpark()
            if not self.ignored:
                await self._wait_for_reset(probe)
        self.life.cancel()

    async def _read(self) -> bytes:
        """Return what the kernel has received; it is asked only when it has something."""
        socket = self.stream.socket
        while True:
            await trio.lowlevel.wait_readable(socket)
            with suppress(BlockingIOError):
                return os.read(socket.fileno(), _RECEIVE_SIZE)

    async def _wait_for_reset(self, probe: Callable[[], bool]) -> None:
        """Return when the client has disconnected; the end of the connection may cancel this earlier."""
        believed_until = trio.current_time() + BELIEVED
        while not _has_left(self.stream.socket.fileno()) and trio.current_time() < believed_until:
            await trio.sleep(PROBE_PAUSE)
            if probe():
                believed_until = trio.current_time() + BELIEVED
            await trio.sleep(PROBE_RETURN)
        await trio.lowlevel.checkpoint()

    async def receive(self) -> bytes:
        """Return the next piece; empty once the client has closed its side and all was taken.

        Raises `trio.ClosedResourceError` if what the client sends is ignored. Cancelling loses nothing.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        while not self._piece and not self.ended and not self.ignored:
            await self._heard.park()
        if self.ignored:
            await trio.lowlevel.checkpoint()
            raise trio.ClosedResourceError
        piece, self._piece = self._piece, b""
        self._taken.unpark()
        return piece  # noqa: ASYNC910 - one piece may be here; for a second one the listener has to run

    def ignore(self) -> None:
        """Drop what the client still sends; closing its side then counts as a disconnect."""
        self.ignored = True
        self._heard.unpark_all()
        self._taken.unpark_all()
        if self.ended:
            self.life.cancel()


def _has_left(fileno: int) -> bool:
    """Whether the kernel knows that nothing that is sent can arrive."""
    poll = select.poll()
    poll.register(fileno, 0)  # errors and hang-ups are reported in any case
    return bool(poll.poll(0))


def _tcp_address(address: Any) -> tuple[str, int] | None:  # noqa: ANN401 - the kernel's, of any family
    """Return host and port of a TCP address as ASGI has it; None for a Unix socket, whose address is text."""
    return (address[0], address[1]) if isinstance(address, tuple) else None
