"""The HTTP client: requests over a pool of connections.

A connection in use belongs to the block that `HttpClient.open` runs. Leaving the block keeps the connection
if request and response are complete, and closes it in every other case: an error, a cancel, a reader that
stopped early. Nothing else holds a connection, so a cancel at any point leaves none behind. Nothing is read
through generators, so a reader may stop between any two pieces.

Deadlines are the caller's cancel scopes. Redirects are not followed, cookies and logins are not kept.

Why there is no HTTP library here: docs/decisions/006-providers.md.
"""

from collections.abc import AsyncIterable, AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from math import inf
from typing import Final, Protocol, TypeAlias

import trio
from attrs import define, field, frozen

from crush_trio.net.address import Origin
from crush_trio.net.dial import Dial, Dialer, Proxy, ViaProxy
from crush_trio.net.errors import ConnectionLost, NetworkError, ResponseTooLarge
from crush_trio.net.http1 import Head, Headers, Http1, Inflater, inflater_for

IDLE_LIMIT: Final = 45.0
"""Seconds after which an unused connection is not used again."""

IDLE_MOST: Final = 4
"""How many unused connections to an origin are kept."""

SETTLE_LIMIT: Final = 0.1
"""Seconds that the end of a body may take after its reader has all it needs."""

READ_MOST: Final = 16384
"""Bytes that are received at once. They are parsed in one step, and other tasks wait meanwhile."""

CLOSE_LIMIT: Final = 1.0
"""Seconds that closing a client may take; it does not wait for the servers."""

SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_BODY_METHODS: Final = frozenset({"POST", "PUT", "PATCH"})

Content: TypeAlias = bytes | AsyncIterable[bytes]
"""The body of a request: whole, or in pieces, which are sent chunked."""


@frozen(kw_only=True)
class Request:
    """A request. The client adds `Host` and the headers that frame the body.

    *repeatable* says that sending it twice is harmless; requests with a safe method always are.
    """

    method: str
    origin: Origin
    target: str
    """Path and query, quoted."""
    headers: Mapping[str, str] = field(factory=dict, repr=False)
    body: Content = field(default=b"", repr=False)
    repeatable: bool = False

    @property
    def path(self) -> str:
        """The target without its query."""
        return self.target.partition("?")[0]

    def framing(self) -> list[tuple[str, str]]:
        """Return the headers that the client adds."""
        host = ("host", self.origin.name)
        if not isinstance(self.body, bytes):
            return [host, ("transfer-encoding", "chunked")]
        if self.body or self.method in _BODY_METHODS:
            return [host, ("content-length", str(len(self.body)))]
        return [host]

    def may_repeat(self) -> bool:
        """Whether the request may be sent again although a server may have acted on it."""
        return isinstance(self.body, bytes) and (self.repeatable or self.method in SAFE_METHODS)


class Body(Protocol):
    """Where the bytes of a response's body come from."""

    async def receive(self) -> bytes:
        """Return more of the body; no bytes at its end."""
        ...


@frozen(eq=False)
class Response:
    """A response; its body is to be received while the block that opened it lasts."""

    status: int
    headers: Mapping[str, str] = field(repr=False)
    _body: Body = field(repr=False)

    async def receive(self) -> bytes:
        """Return more of the body, as it comes; no bytes at its end."""
        return await self._body.receive()

    async def read(self, most: int) -> bytes:
        """Return the whole body; raises `ResponseTooLarge` if it has more than *most* bytes."""
        data, more = await self.read_first(most)
        if more:
            raise ResponseTooLarge(f"it has more than {most} bytes")
        return data

    async def read_first(self, most: int) -> tuple[bytes, bool]:
        """Return the first *most* bytes of the body, and whether there are more."""
        data = bytearray()
        while len(data) <= most and (piece := await self.receive()):
            data += piece
        return bytes(data[:most]), len(data) > most  # noqa: ASYNC910  # received at least once

    async def settle(self) -> None:  # noqa: ASYNC910  # receiving is what waits
        """Receive the end of a body that is of no interest any more, so that the connection is kept.

        Call it when the rest is known to be short. It takes `SETTLE_LIMIT` seconds at most; errors
        do not matter here.
        """
        with trio.move_on_after(SETTLE_LIMIT), suppress(NetworkError):
            while await self.receive():
                pass


class Transport(Protocol):
    """Sends requests. `HttpClient` does; a test passes one that leads to a server in memory."""

    def open(self, request: Request) -> AbstractAsyncContextManager[Response]:
        """Send *request*, and have its response for as long as the block lasts."""
        ...


# ── Connections ─────────────────────────────────────────────────────────────────────────────────


@define(eq=False)
class Connection:
    """A stream and the state of HTTP on it."""

    _stream: trio.abc.Stream
    _proxy: Proxy | None = None
    _read_most: int = READ_MOST
    used: bool = field(default=False, init=False)
    """Whether it has carried a request before the current one."""
    idle_since: float = field(default=inf, init=False)
    _sent: bool = field(default=True, init=False)
    """Whether all of the current request was sent, as far as is known."""
    _http: Http1 = field(factory=Http1, init=False)

    async def ask(self, request: Request) -> Head:
        """Send a request and return the head of the response; its body is to be received."""
        try:
            await self._send(request)
        except trio.BrokenResourceError:
            self._sent = False  # the server may have refused before it had read everything
        while (head := self._http.head()) is None:
            await self._receive()
        return head  # noqa: ASYNC910  # a head comes only after bytes were waited for

    async def receive(self) -> bytes:
        """Return all of the body that has come, or what comes next; no bytes at its end."""
        if (data := self._http.body()) is not None:
            await trio.lowlevel.checkpoint()
            return data
        while data is None:
            await self._receive()
            data = self._http.body()
        return data  # noqa: ASYNC910  # where there was nothing, something was waited for

    def was_stale(self, request: Request) -> bool:
        """Whether a lost connection was probably closed before it was used, and *request* may go again.

        It was an idle connection and no byte of a response has come. A request that was not sent
        completely has not been carried out; one that was may have been.
        """
        whole = isinstance(request.body, bytes)  # pieces are gone once they have been sent
        repeatable = request.may_repeat() or (whole and not self._sent)
        return self.used and not self._http.heard and repeatable

    @property
    def reusable(self) -> bool:
        """Whether another request can be sent."""
        return self._sent and self._http.reusable

    def rest(self) -> None:
        """Prepare for another request."""
        self._http.next_cycle()
        self.used = True
        self.idle_since = trio.current_time()

    def is_stale(self, limit: float) -> bool:
        """Whether an unused connection is older than *limit*, or has something to read.

        No response is due on it, so this is the end of the connection or a response to no request. It may
        wait in the socket or, already received, in a TLS stream.
        """
        if trio.current_time() - self.idle_since > limit:
            return True
        stream = self._stream
        while isinstance(stream, trio.SSLStream):
            if _has_received(stream):
                return True
            stream = stream.transport_stream
        return isinstance(stream, trio.SocketStream) and stream.socket.is_readable()

    async def aclose(self) -> None:
        """Close at once, without a TLS farewell: the socket is closed even if this is cancelled."""
        await trio.aclose_forcefully(self._stream)

    async def _send(self, request: Request) -> None:
        target, headers = self._addressed(request)
        if isinstance(request.body, bytes):
            sent = self._http.request(request.method, target, headers, request.body)
            await self._stream.send_all(sent)
            return
        await self._stream.send_all(self._http.begin(request.method, target, headers))
        async for piece in request.body:
            await self._stream.send_all(self._http.data(piece))
        await self._stream.send_all(self._http.end())

    def _addressed(self, request: Request) -> tuple[str, Headers]:
        """Return target and headers as the other end wants them: the server, or a proxy."""
        headers = [*request.framing(), *request.headers.items()]
        if self._proxy is None:
            return request.target, headers
        whole = f"{request.origin.scheme}://{request.origin.name}{request.target}"
        return whole, [*headers, *self._proxy.headers()]

    async def _receive(self) -> None:
        try:
            data = bytes(await self._stream.receive_some(self._read_most))
        except trio.BrokenResourceError as exc:
            raise ConnectionLost("the connection broke") from exc
        self._http.feed(data)


def _has_received(stream: "trio.SSLStream[trio.abc.Stream]") -> bool:
    """Whether a TLS stream holds received bytes that were not read from it, decrypted or not.

    `pending()` counts only the rest of a record that was decrypted. Later records of the same segment wait
    undecrypted in a buffer of Trio's, an `ssl.MemoryBIO`.
    """
    # Trio has no public name for the buffer. If a later version renames it, those records are not seen.
    incoming = getattr(stream, "_incoming", None)
    return bool(stream.pending() or getattr(incoming, "pending", 0))


@define(eq=False)
class _Inflated:
    """A compressed body, inflated while it is received."""

    _source: Body
    _inflater: Inflater

    async def receive(self) -> bytes:
        await trio.lowlevel.checkpoint()
        while not (piece := self._inflater.take()):
            data = await self._source.receive()
            if not data:
                self._inflater.end()
                return b""
            self._inflater.feed(data)
        return piece


# ── The client ──────────────────────────────────────────────────────────────────────────────────


@define(eq=False)
class HttpClient:
    """Sends requests, any number at a time. `open_http_client` makes one."""

    dial: Dial = field(repr=False)
    idle_most: int = IDLE_MOST
    idle_limit: float = IDLE_LIMIT
    read_most: int = READ_MOST
    _closed: bool = field(default=False, init=False)
    _idle: dict[Origin, list[Connection]] = field(factory=dict, init=False)

    @property
    def idle(self) -> int:
        """How many connections wait to be used again."""
        return sum(map(len, self._idle.values()))

    @asynccontextmanager
    async def open(self, request: Request) -> AsyncIterator[Response]:
        """Send *request*, and have its response for as long as the block lasts.

        Raises a `NetworkError`. A request on an idle connection that turns out to be closed is sent
        once more, on a new one, if it was not sent completely or may be repeated.
        """
        if self._closed:
            raise trio.ClosedResourceError("the client has been closed")
        connection, head = await self._ask(request)
        try:
            inflater = inflater_for(head.headers.get("content-encoding", ""))
            body = connection if inflater is None else _Inflated(connection, inflater)
            yield Response(head.status, head.headers, body)
        finally:
            if not self._kept(request.origin, connection):
                await connection.aclose()

    async def _ask(self, request: Request) -> tuple[Connection, Head]:
        connection = await self._take(request.origin)
        try:
            return connection, await connection.ask(request)
        except ConnectionLost:
            await connection.aclose()
            if not connection.was_stale(request):
                raise
        except BaseException:
            await connection.aclose()
            raise
        connection = await self._connect(request.origin)
        try:
            return connection, await connection.ask(request)
        except BaseException:
            await connection.aclose()
            raise

    async def _take(self, origin: Origin) -> Connection:
        """Return the connection that was used last, or a new one."""
        await trio.lowlevel.checkpoint()
        idle = self._idle.get(origin, [])
        while idle:
            connection = idle.pop()
            if not connection.is_stale(self.idle_limit):
                return connection
            await connection.aclose()
        return await self._connect(origin)

    async def _connect(self, origin: Origin) -> Connection:
        opened = await self.dial(origin)
        if isinstance(opened, ViaProxy):
            return Connection(opened.stream, opened.proxy, self.read_most)
        return Connection(opened, read_most=self.read_most)

    def _kept(self, origin: Origin, connection: Connection) -> bool:
        """Keep *connection* for another request; return False if it has to be closed."""
        idle = self._idle.setdefault(origin, [])
        if self._closed or not connection.reusable or len(idle) >= self.idle_most:
            return False
        connection.rest()
        idle.append(connection)
        return True

    async def aclose(self) -> None:
        """Close the unused connections, and keep none from now on. Those in use close with their users."""
        self._closed = True
        await trio.lowlevel.checkpoint()
        for idle in self._idle.values():
            while idle:
                await idle.pop().aclose()


@asynccontextmanager
async def open_http_client(
    dial: Dial | None = None,
    *,
    idle_most: int = IDLE_MOST,
    idle_limit: float = IDLE_LIMIT,
    read_most: int = READ_MOST,
) -> AsyncIterator[HttpClient]:
    """Open a client; leaving closes its unused connections, even under a cancel.

    *dial* opens connections, by default directly over TCP. *idle_most* is how many unused connections
    are kept for an origin, *idle_limit* for how many seconds.
    """
    client = HttpClient(dial or Dialer(), idle_most, idle_limit, read_most)
    try:
        yield client
    finally:
        with trio.move_on_after(CLOSE_LIMIT, shield=True):
            await client.aclose()
