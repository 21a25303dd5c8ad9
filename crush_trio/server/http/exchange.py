"""One request on a connection and its answer, as an ASGI call."""

import logging
from collections.abc import Iterable
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import unquote

import h11
import trio
from attrs import define, field
from typing_extensions import override

from crush_trio.clock import SystemClock
from crush_trio.server.http.admission import Stage
from crush_trio.server.http.framing import ADDRESS, HEAD_SIZE, Headers, PlainRequest
from crush_trio.server.http.outgoing import CARRIER, Carrier, SendNow
from crush_trio.server.http.peer import Peer
from crush_trio.server.logging import places

if TYPE_CHECKING:
    from hypercorn.typing import ASGIReceiveEvent, ASGISendEvent, Scope

    from crush_trio.server.http.connection import Connection

_ASGI: Final = {"version": "3.0", "spec_version": "2.1"}
_BODILESS: Final = {204, 304}
_AT_ONCE: Final = 8
"""Pieces of a body that are taken in one step. An ordinary body that has arrived has fewer."""
_CLOCK: Final = SystemClock()

log = logging.getLogger(__name__)


@define(eq=False)
class Exchange(Carrier):
    """One request and its answer, as an ASGI call."""

    connection: "Connection"
    request: h11.Request | PlainRequest
    _target: bytes = field(init=False)
    """The path and the query that are asked for."""
    _body: list[bytes] = field(factory=list, init=False)
    """The received part of the body that the application has not asked for yet."""
    _ended: bool = field(default=False, init=False)
    """Whether all of the request has arrived."""
    _asked: bool = field(default=False, init=False)
    """Whether the application has been told of the end."""
    _head: tuple[int, Headers] | None = field(default=None, init=False)
    """The status and the headers of the answer; they are sent with the first piece of the body."""
    _bodiless: bool = field(default=False, init=False)
    """Whether the answer ends with its head, whatever the application gives for a body."""

    def __attrs_post_init__(self) -> None:
        self._target = _checked(self.request)
        http = self.connection.http
        for _ in range(_AT_ONCE):
            if self._ended or http.they_wait_for_us:
                break
            event = http.next_event()
            if event is h11.NEED_DATA:
                break
            self._take(event)

    def _take(self, event: object) -> None:
        if isinstance(event, h11.EndOfMessage):
            self._ended = True
        else:
            assert isinstance(event, h11.Data)
            self._body.append(bytes(event.data))

    @property
    def peer(self) -> Peer:
        """The process at the other end of the connection."""
        return self.connection.peer

    async def run(self) -> None:  # noqa: ASYNC910 - the application's answer is waited for
        """Have the application answer. An answer that it left unfinished ends the connection."""
        connection, http = self.connection, self.connection.http
        try:
            await connection.terms.app(self._scope(), self.receive, self.send)
        except Exception as error:  # noqa: BLE001 - the client gets an answer and keeps its connection
            log.error("request.crashed", extra={"failures": sorted(places(error))})  # noqa: TRY400
        if http.our_state is h11.SEND_RESPONSE:
            await connection.refuse(500)
        elif http.our_state is h11.SEND_BODY:
            connection.life.cancel()
            await trio.lowlevel.checkpoint()

    def _scope(self) -> "Scope":
        request, connection = self.request, self.connection
        path, _, query = self._target.partition(b"?")
        scope: dict[str, Any] = {
            "type": "http",
            "asgi": _ASGI,
            "http_version": request.http_version.decode("ascii"),
            "method": request.method.decode("ascii"),
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
        """Serve the answer until it ends, then close; read only to notice a disconnect.

        A reader of a stream that closes its sending side counts as disconnected: while the stream is
        silent, the two cannot be told apart.
        """
        self.connection.http.end_with_connection()
        self.connection.incoming.ignore()
        self.connection.outgoing.limit_backlog()
        return self.connection.outgoing.send_now

    # ── The request ─────────────────────────────────────────────────────────────────────────────

    def take_whole_body(self) -> bytes | None:
        """Return the body if all of it has arrived and none was asked for; None otherwise."""
        if not self._ended or self._asked:
            return None
        self._asked = True
        return b"".join(self._body)

    async def receive(self) -> "ASGIReceiveEvent":
        """Return the next part of the body; after its end wait, because a disconnect cancels the request."""
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
        """Wait for the next part of the body. If it is malformed, the connection ends here."""
        connection = self.connection
        if connection.http.they_wait_for_us:
            connection.go_on()
        try:
            self._take(await self._next_part())
        except h11.RemoteProtocolError as error:
            await connection.refuse(error.error_status_hint)
            await connection.close()
            await trio.sleep_forever()
        except trio.ClosedResourceError:  # the answer is a stream, and nothing is read any more
            await trio.sleep_forever()

    async def _next_part(self) -> object:
        connection = self.connection
        connection.seat.move(Stage.BODY)
        with trio.move_on_after(connection.terms.keep_alive):
            event = await connection.next_event()
            connection.seat.move(Stage.BUSY)
            return event
        raise h11.RemoteProtocolError("slow", error_status_hint=HTTPStatus.REQUEST_TIMEOUT)

    # ── The answer ──────────────────────────────────────────────────────────────────────────────

    async def send(self, event: "ASGISendEvent") -> None:  # noqa: ASYNC910 - what fits is not waited for
        """Send a part of the answer: its head with the first part of its body, all in one write.

        An answer to a request that turned out to be malformed is dropped.
        """
        if self.connection.http.their_state is h11.ERROR:
            await trio.lowlevel.checkpoint()
            return
        if event["type"] == "http.response.start":
            status = event["status"]
            headers = self._headers(event.get("headers", ()))
            self._head = status, headers
            self._bodiless = self.request.method == b"HEAD" or status in _BODILESS
            return  # noqa: ASYNC910 - nothing is sent yet
        assert event["type"] == "http.response.body", event["type"]
        flowing, more = self._head is None, event.get("more_body", False)
        await self.connection.outgoing.send(self._framed(event.get("body", b""), more=more))
        if flowing and more:
            await trio.lowlevel.checkpoint()  # a long answer must let other tasks run

    def _headers(self, given: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        headers = [*given, (b"date", _date(_CLOCK.unix()))]
        if self.connection.last:
            headers.append((b"connection", b"close"))
        return headers

    def _framed(self, body: bytes, *, more: bool) -> bytes:
        """Return the bytes of the next part of the answer."""
        http, body = self.connection.http, b"" if self._bodiless else body
        if self._head is None:
            return http.go_on(body, more=more)
        (status, headers), self._head = self._head, None
        return http.begin(status, headers, body, more=more)


def _checked(request: h11.Request | PlainRequest) -> bytes:
    """Return the path and query of *request*; raise h11's error for what the parser does not check.

    h11 checks the size of a head only if it does not arrive at once.
    """
    if isinstance(request, PlainRequest):
        return request.target
    if request.http_version > b"1.1":
        raise h11.RemoteProtocolError("unknown version", error_status_hint=505)
    target: bytes = request.target
    if len(target) + sum(len(name) + len(value) + 4 for name, value in request.headers) > HEAD_SIZE:
        raise h11.RemoteProtocolError("a large head", error_status_hint=431)
    if target.startswith(b"/") or target == b"*":
        return target
    address = ADDRESS.fullmatch(target)
    if address is None:
        raise h11.RemoteProtocolError("no path")
    return b"/" + address[2]


def take_whole_body(scope: "Scope") -> bytes | None:
    """Return the body of a request that has arrived whole on our own server; None otherwise.

    Such a request can be handled in one task: there is nothing left to receive, and our server cancels
    it when the client disconnects. May be called once per request.
    """
    carrier = cast("dict[str, Any]", scope).get("state", {}).get(CARRIER)
    return carrier.take_whole_body() if isinstance(carrier, Exchange) else None


@lru_cache(maxsize=1)
def _date(second: int) -> bytes:
    """Return a second in the form of the `Date` header; all answers of one second share it."""
    return formatdate(second, usegmt=True).encode()
