"""HTTP/1.1 for one client, on Trio and h11 alone.

Two tasks serve a connection. One listens: it hands on what the client says, and ends the connection
when the client leaves, whatever is going on in it. The other reads requests and has them answered,
one after the other. So a request needs no task of its own, neither to be handled nor to be
cancelled when nobody waits for its answer any more; and an ordinary answer is one write.

Nothing here lasts for ever on a client's account: a request has to be there within the time that a
connection may be idle, sending has its limit (`server.outgoing`), and what a client sends ahead is
read when its turn has come, and so is its leaving after that. Whatever fails stays in its connection.

`server.transport` does the same for connections that Hypercorn accepts, and which may speak HTTP/2.
"""

import logging
import re
from collections.abc import Iterable
from contextlib import suppress
from email.utils import formatdate
from functools import lru_cache
from typing import Any, Final, cast
from urllib.parse import unquote

import h11
import trio
from attrs import define, field, frozen
from hypercorn.typing import (
    ASGIFramework,
    ASGIReceiveEvent,
    ASGISendEvent,
    LifespanState,
    Scope,
)
from hypercorn.utils import parse_socket_addr
from typing_extensions import override

from crush_trio.clock import SystemClock
from crush_trio.server.failures import places
from crush_trio.server.interrupt import Interrupt
from crush_trio.server.outgoing import SEND_LIMIT, Outgoing
from crush_trio.server.streaming import CARRIER, Carrier, SendNow

_RECEIVE_SIZE: Final = 2**16
_HEAD_SIZE: Final = 2**14
_ASGI: Final = {"version": "3.0", "spec_version": "2.1"}
_BODILESS: Final = {204, 304}
_ADDRESS: Final = re.compile(rb"(?i:https?)://[^/?]+/?(.*)")
"""A target as proxies are told it, with who is asked before what is asked for."""
_AT_ONCE: Final = 8
"""Pieces of a body that are taken in one step. A body that is here has few, unless it is meant to."""
_CLOCK: Final = SystemClock()

log = logging.getLogger(__name__)


@frozen(kw_only=True)
class Terms:
    """What the connections of a server have in common."""

    app: ASGIFramework
    state: LifespanState
    """What the application's lifespan has set up."""
    stopping: Interrupt
    """Called when the server stops: idle connections close then, busy ones after their answer."""
    keep_alive: float
    """Seconds a connection may be idle, or take to say what it wants."""
    send_limit: float = SEND_LIMIT


async def serve_connection(terms: Terms, stream: trio.SocketStream) -> None:
    """Serve one client until it leaves, is idle for too long, or the server stops."""
    try:
        connection = Connection(terms, stream)
        with connection.life:
            await connection.serve()
    except* Exception as failures:  # noqa: BLE001 - the barrier between clients
        log.error("connection.failed", extra={"failures": sorted(places(failures))})  # noqa: TRY400
    finally:
        await trio.aclose_forcefully(stream)


@define(eq=False)
class Connection:
    """A client's connection; its *life* is cancelled when there is nobody left to serve."""

    terms: Terms
    stream: trio.SocketStream
    life: trio.CancelScope = field(factory=trio.CancelScope, init=False)
    outgoing: Outgoing = field(init=False)
    http: h11.Connection = field(init=False)
    client: tuple[str, int] | None = field(default=None, init=False)
    server: tuple[str, int] | None = field(init=False)
    _deaf: bool = field(default=False, init=False)
    _heard: trio.MemoryReceiveChannel[bytes] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.outgoing = Outgoing(self.stream, self.life, self.terms.send_limit)
        self.http = h11.Connection(h11.SERVER, max_incomplete_event_size=_HEAD_SIZE)
        socket = self.stream.socket
        self.server = parse_socket_addr(socket.family, socket.getsockname())
        with suppress(OSError):  # it has left already, which will be noticed in a moment
            self.client = parse_socket_addr(socket.family, socket.getpeername())

    async def serve(self) -> None:
        """Answer requests until there are to be no more, then close."""
        async with trio.open_nursery() as nursery:
            hear, self._heard = trio.open_memory_channel[bytes](1)
            nursery.start_soon(self._listen, hear)
            while await self._serve_one():
                self.http.start_next_cycle()
            await self.close()

    # ASYNC910: there is no way around receiving.
    async def _listen(self, hear: trio.MemorySendChannel[bytes]) -> None:  # noqa: ASYNC910
        """Hand on what the client says while anybody wants to know; end the life when it leaves."""
        try:
            while data := await self.stream.receive_some(_RECEIVE_SIZE):
                try:
                    await hear.send(bytes(data))
                except trio.BrokenResourceError:
                    continue  # nobody wants to know
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        self.life.cancel()

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

    async def _next_request(self) -> h11.Request | None:
        """Wait for a request; return None when there is none in time, or the server stops."""
        until = trio.current_time() + self.terms.keep_alive
        with trio.CancelScope(deadline=until) as idle, self.terms.stopping.ends(idle):
            event = await self.next_event()
            return event if isinstance(event, h11.Request) else None
        return None

    async def next_event(self) -> object:
        """Return what the client says next; raise `h11.RemoteProtocolError` if it makes no sense.

        What was heard before is not lost by cancelling, and others have their turn before it.
        """
        event = self.http.next_event()
        if event is not h11.NEED_DATA:
            await trio.lowlevel.cancel_shielded_checkpoint()
        while event is h11.NEED_DATA:
            self.http.receive_data(await self._heard.receive())
            event = self.http.next_event()
        return event  # noqa: ASYNC910 - see above

    async def refuse(self, status: int) -> None:
        """Answer what is no request, or was none in the end, unless an answer has begun."""
        await trio.lowlevel.checkpoint()
        if self.http.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            headers = [(b"content-length", b"0"), (b"connection", b"close")]
            head = self.http.send(h11.Response(status_code=status, headers=headers))
            self.http.send(h11.EndOfMessage())
            await self.outgoing.send(head or b"")

    async def close(self) -> None:
        """Say that no more will come; the life then ends soon, at the latest when the client leaves."""
        self.be_deaf()
        await self.outgoing.hang_up()

    def be_deaf(self) -> None:
        """Throw away what the client still says, and notice only that it leaves."""
        self._deaf = True
        self._heard.close()

    @property
    def last(self) -> bool:
        """Whether there is to be no request after the one that is being answered."""
        return self._deaf or self.terms.stopping.called


@define(eq=False)
class Exchange(Carrier):
    """One request and its answer, as ASGI has it."""

    connection: Connection
    request: h11.Request
    _target: bytes = field(init=False)
    """The path and the query that are asked for."""
    _body: list[bytes] = field(factory=list, init=False)
    """What is here of the request's body, and was not asked for yet."""
    _ended: bool = field(default=False, init=False)
    """Whether the request is here to its end."""
    _asked: bool = field(default=False, init=False)
    """Whether the application has been told of the end."""
    _head: h11.Response | None = field(default=None, init=False)
    """The head of the answer; it goes out with the first of the body."""
    _bodiless: bool = field(default=False, init=False)
    """Whether the answer ends with its head, whatever the application gives for a body."""

    def __attrs_post_init__(self) -> None:
        self._target = _checked(self.request)
        http = self.connection.http
        for _ in range(_AT_ONCE):
            if self._ended or http.they_are_waiting_for_100_continue:
                break
            event = http.next_event()
            if event is h11.NEED_DATA:
                break
            self._take(event)

    def _take(self, event: object) -> None:
        if isinstance(event, h11.Data):
            self._body.append(bytes(event.data))
        else:
            assert isinstance(event, h11.EndOfMessage)
            self._ended = True

    async def run(self) -> None:  # noqa: ASYNC910 - the application's answer is waited for
        """Have the application answer. An answer that it left unfinished ends the connection."""
        connection, http = self.connection, self.connection.http
        try:
            await connection.terms.app(self._scope(), self.receive, self.send)
        except Exception as error:  # noqa: BLE001 - the client shall hear of it, and its connection be of use
            log.error("request.crashed", extra={"failures": sorted(places(error))})  # noqa: TRY400
        if http.our_state is h11.SEND_RESPONSE:
            await connection.refuse(500)
        elif http.our_state is h11.SEND_BODY:
            connection.life.cancel()
            await trio.lowlevel.checkpoint()

    def _scope(self) -> Scope:
        request, connection = self.request, self.connection
        path, _, query = self._target.partition(b"?")
        scope: dict[str, Any] = {
            "type": "http",
            "asgi": _ASGI,
            "http_version": request.http_version.decode("ascii"),
            "method": request.method.decode("ascii").upper(),
            "scheme": "http",
            "path": unquote(path.decode("ascii")),
            "raw_path": path,
            "query_string": query,
            "root_path": "",
            "headers": list(request.headers),
            "client": connection.client,
            "server": connection.server,
            "state": {**connection.terms.state, CARRIER: self},
            "extensions": {},
        }
        return cast("Scope", scope)

    @override
    def begin_stream(self) -> SendNow:
        """Serve the answer until it ends, then close; listen for the hang-up only."""
        self.connection.http.their_http_version = b"1.0"  # h11 then leaves the body as it is
        self.connection.be_deaf()
        self.connection.outgoing.limit_backlog()
        return self.connection.outgoing.send_now

    # ── The request ─────────────────────────────────────────────────────────────────────────────

    def take_whole_body(self) -> bytes | None:
        """Return the body if all of it is here and none was asked for; None otherwise."""
        if not self._ended or self._asked:
            return None
        self._asked = True
        return b"".join(self._body)

    async def receive(self) -> ASGIReceiveEvent:
        """Return the next of the body; after its end wait, for the client's leaving cancels all."""
        if self._asked:
            await trio.sleep_forever()
        if self._body or self._ended:
            await trio.lowlevel.checkpoint()
        else:
            await self._hear_more()
        body = b"".join(self._body)
        self._body.clear()
        self._asked = self._ended
        return {"type": "http.request", "body": body, "more_body": not self._ended}

    async def _hear_more(self) -> None:
        """Wait for the next of the body. If it makes no sense, the connection ends here."""
        connection = self.connection
        if connection.http.they_are_waiting_for_100_continue:
            self._ask_for_body()
        try:
            self._take(await connection.next_event())
        except h11.RemoteProtocolError as error:
            await connection.refuse(error.error_status_hint)
            await connection.close()
            await trio.sleep_forever()
        except trio.ClosedResourceError:  # the answer is a stream, and nothing is heard any more
            await trio.sleep_forever()

    def _ask_for_body(self) -> None:
        """Say that the body may come, in a step: another task may be about to send the answer.

        A client with so much to read that this does not fit does not wait for it.
        """
        connection = self.connection
        go_on = connection.http.send(h11.InformationalResponse(status_code=100, headers=[])) or b""
        if 0 < connection.outgoing.send_now(go_on) < len(go_on):
            connection.life.cancel()

    # ── The answer ──────────────────────────────────────────────────────────────────────────────

    async def send(self, event: ASGISendEvent) -> None:  # noqa: ASYNC910 - what fits is not waited for
        """Send a part of the answer: its head with the first of its body, all in one write.

        An answer to what turned out to be no request is thrown away.
        """
        if self.connection.http.their_state is h11.ERROR:
            await trio.lowlevel.checkpoint()
            return
        if event["type"] == "http.response.start":
            status = event["status"]
            headers = self._headers(event.get("headers", ()))
            self._head = h11.Response(status_code=status, headers=headers)
            self._bodiless = self.request.method == b"HEAD" or status in _BODILESS
            return  # noqa: ASYNC910 - nothing is sent yet
        assert event["type"] == "http.response.body", event["type"]
        flowing, more = self._head is None, event.get("more_body", False)
        await self.connection.outgoing.send(self._framed(event.get("body", b""), more=more))
        if flowing and more:
            await trio.lowlevel.checkpoint()  # who has much to say must let others speak

    def _headers(self, given: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        headers = [*given, (b"date", _date(_CLOCK.unix()))]
        if self.connection.last:
            headers.append((b"connection", b"close"))
        return headers

    def _framed(self, body: bytes, *, more: bool) -> bytes:
        """Return the bytes of the next part of the answer."""
        http, pieces = self.connection.http, []
        if self._head is not None:
            pieces.append(http.send(self._head))
            self._head = None
        if body and not self._bodiless:
            pieces.append(http.send(h11.Data(data=body)))
        if not more:
            pieces.append(http.send(h11.EndOfMessage()))
        return b"".join(piece for piece in pieces if piece)


def _checked(request: h11.Request) -> bytes:
    """Return the path and query that *request* is for; raise what h11 would for what it lets pass.

    A body whose end is told in two ways could be understood in two ways, by us and by a proxy. And
    h11 minds the size of a head only if it does not come at once.
    """
    if request.http_version > b"1.1":
        raise h11.RemoteProtocolError("unknown version", error_status_hint=505)
    if {b"content-length", b"transfer-encoding"} <= {name for name, _ in request.headers}:
        raise h11.RemoteProtocolError("a length and an encoding")
    target: bytes = request.target
    if (
        len(target) + sum(len(name) + len(value) + 4 for name, value in request.headers)
        > _HEAD_SIZE
    ):
        raise h11.RemoteProtocolError("a large head", error_status_hint=431)
    if target.startswith(b"/") or target == b"*":
        return target
    address = _ADDRESS.fullmatch(target)
    if address is None:
        raise h11.RemoteProtocolError("no path")
    return b"/" + address[1]


def take_whole_body(scope: Scope) -> bytes | None:
    """Return the body of a request that has arrived whole, if its server also cancels it.

    Such a request can be handled in one task: there is nothing left to receive, and the handler need
    not watch for the client's leaving. None means that it takes two. To be asked once.
    """
    carrier = cast("dict[str, Any]", scope).get("state", {}).get(CARRIER)
    return carrier.take_whole_body() if isinstance(carrier, Exchange) else None


@lru_cache(maxsize=1)
def _date(second: int) -> bytes:
    """Return a second as answers have it; those of one second share it."""
    return formatdate(second, usegmt=True).encode()
