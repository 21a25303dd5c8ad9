"""The HTTP client: requests over a pool of connections.

A connection in use belongs to the block that `HttpClient.open` runs. Leaving the block keeps the connection
if request and response are complete, and closes it in every other case: an error, a cancel, a reader that
stopped early. Nothing else holds a connection, so a cancel at any point leaves none behind. Nothing is read
through generators, so a reader may stop between any two pieces.

Deadlines are the caller's cancel scopes, except that of connecting. Redirects are not followed, cookies
and logins are not kept.

Why there is no HTTP library here: docs/decisions/006-providers.md.
"""

from collections.abc import AsyncIterable, AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from math import inf
from typing import Final, Protocol, TypeAlias

import trio
from attrs import define, field, frozen

from crush_trio.net.address import Origin
from crush_trio.net.dial import Dial, Dialer, Proxy, ViaProxy
from crush_trio.net.errors import ConnectFailed, ConnectionLost, NetworkError, ResponseTooLarge
from crush_trio.net.http1 import Head, Headers, Http1, Inflater, inflater_for
from crush_trio.net.streams import Library, close_at_once, has_input

IDLE_LIMIT: Final = 45.0
"""Seconds after which an unused connection is not used again."""

IDLE_MOST: Final = 4
"""How many unused connections to an origin are kept."""

STALE_LIMIT: Final = 5.0
"""Seconds in which an idle connection that the server had closed breaks; later, it worked on the request."""

SETTLE_LIMIT: Final = 0.1
"""Seconds that the end of a body may take after its reader has all it needs."""

READ_MOST: Final = 16384
"""Bytes that are received at once. They are parsed in one step, and other tasks wait meanwhile."""

CLOSE_LIMIT: Final = 1.0
"""Seconds that closing a client may take; it does not wait for the servers."""

SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_FRAMING: Final = frozenset({"content-length", "transfer-encoding", "content-encoding"})
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
    connect_within: float = inf
    """Seconds that a new connection may take; the caller cannot see when it is there."""

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
    socket: trio.SocketStream | None = field(default=None, repr=False)
    """Brings the body as it is, after the first `receive`; None if the body is framed or compressed."""

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
    _library: Library = trio
    used: bool = field(default=False, init=False)
    """Whether it has carried a request before the current one."""
    idle_since: float = field(default=inf, init=False)
    _asked: float = field(default=inf, init=False)
    _sent: bool = field(default=True, init=False)
    """Whether all of the current request was sent, as far as is known."""
    _http: Http1 = field(factory=Http1, init=False)

    async def ask(self, request: Request) -> Head:
        """Send a request and return the head of the response; its body is to be received."""
        self._asked = self._library.current_time()
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
            await self._library.sleep(0)
            return data
        while data is None:
            await self._receive()
            data = self._http.body()
        return data  # noqa: ASYNC910  # where there was nothing, something was waited for

    def was_stale(self, request: Request) -> bool:
        """Whether a lost connection was probably closed before it was used, and *request* may go again.

        It was an idle connection, it broke soon, and no byte of a response has come. A request that was
        not sent completely has not been carried out; one that was may have been.
        """
        whole = isinstance(request.body, bytes)  # pieces are gone once they have been sent
        prompt = self._library.current_time() - self._asked <= STALE_LIMIT
        repeatable = (prompt and request.may_repeat()) or (whole and not self._sent)
        return self.used and not self._http.heard and repeatable

    def bare_socket(self, head: Head) -> trio.SocketStream | None:
        """Return the socket if all that it brings after *head* is the body."""
        framed = not _FRAMING.isdisjoint(head.headers)
        return self._stream if isinstance(self._stream, trio.SocketStream) and not framed else None

    @property
    def reusable(self) -> bool:
        """Whether another request can be sent."""
        return self._sent and self._http.reusable

    def rest(self) -> None:
        """Prepare for another request."""
        self._http.next_cycle()
        self.used = True
        self.idle_since = self._library.current_time()

    def is_stale(self, limit: float) -> bool:
        """Whether an unused connection is older than *limit*, or has something to read.

        No response is due on it, so this is the end of the connection or a response to no request. It may
        wait in the socket or, already received, in a TLS stream.
        """
        late = self._library.current_time() - self.idle_since > limit
        return late or has_input(self._stream)

    async def aclose(self) -> None:
        """Close at once, without a TLS farewell: the socket is closed even if this is cancelled."""
        await close_at_once(self._stream)

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


@define(eq=False)
class _Inflated:
    """A body that may be compressed, inflated while it is received.

    An unknown encoding is an error when the body is read: the status counts also without it.
    """

    _source: Body
    _encoding: str
    _library: Library
    _inflater: Inflater | None = field(default=None, init=False)

    async def receive(self) -> bytes:
        await self._library.sleep(0)
        inflater = self._inflater = self._inflater or inflater_for(self._encoding)
        if inflater is None:
            return await self._source.receive()
        while not (piece := inflater.take()):
            data = await self._source.receive()
            if not data:
                inflater.end()
                return b""
            inflater.feed(data)
        return piece


# ── The client ──────────────────────────────────────────────────────────────────────────────────


@define(eq=False)
class HttpClient:
    """Sends requests, any number at a time. `open_http_client` makes one."""

    dial: Dial = field(repr=False)
    idle_most: int = IDLE_MOST
    idle_limit: float = IDLE_LIMIT
    read_most: int = READ_MOST
    library: Library = field(default=trio, repr=False)
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
            encoding = head.headers.get("content-encoding", "")
            body = _Inflated(connection, encoding, self.library) if encoding else connection
            yield Response(head.status, head.headers, body, connection.bare_socket(head))
        finally:
            if not self._kept(request.origin, connection):
                await connection.aclose()

    async def _ask(self, request: Request) -> tuple[Connection, Head]:
        connection = await self._take(request)
        try:
            return connection, await connection.ask(request)
        except ConnectionLost:
            await connection.aclose()
            if not connection.was_stale(request):
                raise
        except BaseException:
            await connection.aclose()
            raise
        connection = await self._connect(request)
        try:
            return connection, await connection.ask(request)
        except BaseException:
            await connection.aclose()
            raise

    async def _take(self, request: Request) -> Connection:
        """Return the connection that was used last, or a new one."""
        await self.library.sleep(0)
        idle = self._idle.get(request.origin, [])
        while idle:
            connection = idle.pop()
            if not connection.is_stale(self.idle_limit):
                return connection
            await connection.aclose()
        return await self._connect(request)

    async def _connect(self, request: Request) -> Connection:
        opened = None
        with self.library.move_on_after(request.connect_within):
            opened = await self.dial(request.origin)
        if opened is None:
            late = f"no connection to {request.origin.authority} in {request.connect_within:g} s"
            raise ConnectFailed(late, reason="it took too long")
        if isinstance(opened, ViaProxy):
            return Connection(opened.stream, opened.proxy, self.read_most, self.library)
        return Connection(opened, None, self.read_most, self.library)

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
        async with (
            AsyncExitStack() as closing
        ):  # all of them: a second cancel of asyncio passes a shield
            for idle in self._idle.values():
                while idle:
                    closing.push_async_callback(idle.pop().aclose)
            await self.library.sleep(0)


@asynccontextmanager
async def open_http_client(
    dial: Dial | None = None,
    *,
    idle_most: int = IDLE_MOST,
    idle_limit: float = IDLE_LIMIT,
    read_most: int = READ_MOST,
    library: Library = trio,
) -> AsyncIterator[HttpClient]:
    """Open a client; leaving closes its unused connections, even under a cancel.

    *dial* opens connections, by default directly over TCP. *idle_most* is how many unused connections
    are kept for an origin, *idle_limit* for how many seconds. A program that does not run under Trio
    passes its *library*, with a *dial* that opens streams of it.
    """
    client = HttpClient(dial or Dialer(), idle_most, idle_limit, read_most, library)
    try:
        yield client
    finally:
        with library.move_on_after(CLOSE_LIMIT, shield=True):
            await client.aclose()
