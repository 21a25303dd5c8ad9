"""Bytes out, bytes in: the one module that knows of an HTTP library, loaded when a link is opened.

The library reads and writes bodies through generators of its own, and one that is left while it waits
for its consumer is left to the garbage collector. So that no cancel can do that, a request's body is an
object that holds nothing, and the pieces of a stream are taken by a function that does not wait.

Wire values out, wire values in.

A `Link` is the way to one server. Whatever goes wrong on it comes out as a `CrushError`: what the
server refused as the error it raised, what the network did as a `NoAnswer`.
"""

import ssl
from collections.abc import AsyncIterator, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final, Self, TypeAlias, TypeVar
from urllib.parse import quote

import httpx
import trio
from attrs import define, field, frozen
from typing_extensions import override

from crush_trio.client.errors import AnswerGarbled, AnswerLost, ServerUnreachable, refusal
from crush_trio.errors import DecodeError
from crush_trio.net.address import Address, UnixAddress
from crush_trio.wire.codec import decode, encode

T = TypeVar("T")

Query: TypeAlias = Mapping[str, str]
"""What stands after the question mark of a request."""

Take: TypeAlias = Callable[[bytes], float | None]
"""Takes a piece of a stream; returns how long to wait for the next, or None to hear no more."""


@define(eq=False)
class Link:
    """Made by `open_link` only."""

    address: Address
    _exchanges: "Exchanges" = field(repr=False)

    async def ask(
        self,
        method: str,
        path: str,
        answer: type[T],
        *,
        body: object = None,
        query: Query | None = None,
    ) -> T:
        """Send a request and return its answer as an *answer*."""
        data = await self.tell(method, path, body=body, query=query)
        with _sensible(method, path):
            return decode(data, answer)

    async def tell(
        self, method: str, path: str, *, body: object = None, query: Query | None = None
    ) -> bytes:
        """Send a request; return what came besides success, which most of the time is nothing."""
        content = None if body is None else encode(body)
        reply = await self._exchanges.request(method, path, content, query)
        if not reply.good:
            raise refusal(reply.status, reply.body)
        return reply.body

    async def listen(self, path: str, take: Take, *, query: Query, place: str) -> None:
        """Give *take* the pieces of an event stream from *place* on, as `Exchanges.stream` does."""
        reply = await self._exchanges.stream(path, take, query, {"Last-Event-ID": place})
        if reply is not None:
            raise refusal(reply.status, reply.body)


@contextmanager
def _sensible(method: str, path: str) -> Generator[None]:
    try:
        yield
    except DecodeError as error:
        raise AnswerGarbled(f"{method} {path}: {error.detail}") from error


def segment(text: str) -> str:
    """Return an id as a segment of a path; the `$$` in the id of a sub-agent's session stays."""
    return quote(text, safe="$")


@asynccontextmanager
async def open_link(
    address: Address,
    *,
    advice: str = "",
    token: str | None = None,
    transport: "httpx.AsyncBaseTransport | None" = None,
) -> AsyncIterator[Link]:
    """Open the way to the server at *address*; *advice* says what to do if nothing answers there."""
    # Loading the HTTP library takes longer than everything else here; only who connects pays for it.

    async with open_exchanges(address, advice=advice, token=token, transport=transport) as opened:
        yield Link(address, opened)


CONNECT_LIMIT: Final = 10.0
"""Seconds within which a server begins to answer a request for its events."""

_KEEP_ALIVE: Final = 3.0
"""Seconds after which an unused connection is not used again; servers close theirs a little later."""

_UNIX_HOST: Final = "api.crush.localhost"
"""The name under which clients ask for a server behind a Unix socket."""


@frozen
class Reply:
    """An answer, whole."""

    status: int
    body: bytes = field(repr=False)

    @property
    def good(self) -> bool:
        """Whether the server did what it was asked for."""
        return 200 <= self.status < 300


class _Body(httpx.AsyncByteStream):
    """The body of a request, given in one piece; each reader gets an iterator of its own."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    @override
    def __aiter__(self) -> AsyncIterator[bytes]:
        return _Once(self._data)


@define(eq=False)
class _Once:
    _left: bytes

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        await trio.lowlevel.checkpoint()
        data, self._left = self._left, b""
        if not data:
            raise StopAsyncIteration
        return data


@define(eq=False)
class Exchanges:
    """Requests to one server, any number at a time. Made by `open_exchanges` only."""

    _http: httpx.AsyncClient = field(repr=False)
    _unreachable: str
    """What to say if nothing answers."""

    async def request(
        self, method: str, path: str, content: bytes | None = None, query: Query | None = None
    ) -> Reply:
        """Send a request and return its answer, whatever it is."""
        if self._http.is_closed:
            raise trio.ClosedResourceError("the client has been closed")
        kind = {} if content is None else {"Content-Type": "application/json"}
        request = self._http.build_request(
            method, path, params=query, content=content, headers=kind
        )
        request.stream = _Body(content or b"")
        with self._translated():
            response = await self._http.send(request)
        return Reply(response.status_code, response.content)

    async def stream(
        self, path: str, take: Take, query: Query, headers: Mapping[str, str]
    ) -> Reply | None:
        """Give *take* the pieces of an answer until it ends or *take* wants no more.

        Returns what the server said if it was not an answer to stream. Raises `AnswerLost` if the
        connection breaks, or is silent for longer than *take* allowed.

        *take* does not wait and does not raise, and hearing no more is a matter of cancelling: the
        library's generators end in good order only while it is they who wait.
        """
        wanted = True
        with trio.CancelScope(deadline=trio.current_time() + CONNECT_LIMIT) as scope:
            with self._translated():
                async with self._http.stream("GET", path, params=query, headers=headers) as answer:
                    if answer.status_code != 200:
                        return Reply(answer.status_code, await answer.aread())
                    async for data in answer.aiter_raw():
                        patience = take(data) if wanted else None
                        if patience is None:
                            wanted = False
                            scope.cancel()
                        else:
                            scope.deadline = trio.current_time() + patience
        if scope.cancelled_caught and wanted:
            raise AnswerLost("nothing was heard from the server for too long")
        return None

    @contextmanager
    def _translated(self) -> Generator[None]:
        """Turn what the library says about the network into what we say about it."""
        try:
            yield
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            reason = f" ({error})" if str(error) else ""
            raise ServerUnreachable(self._unreachable.format(reason=reason)) from error
        except httpx.TransportError as error:
            raise AnswerLost(str(error) or type(error).__name__) from error


@asynccontextmanager
async def open_exchanges(
    address: Address,
    *,
    advice: str = "",
    token: str | None = None,
    transport: httpx.AsyncBaseTransport | None = None,
) -> AsyncIterator[Exchanges]:
    """Open the way to the server at *address*; nothing is sent yet. Leaving closes its connections.

    Deadlines are the caller's: a request waits for as long as its answer takes.
    """
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(
        base_url=_base_url(address),
        headers=headers,
        transport=transport or _transport(address),
        timeout=None,
        trust_env=False,
    ) as http:
        yield Exchanges(http, f"nothing answers at {address}{{reason}}; {advice}")


def _base_url(address: Address) -> str:
    if isinstance(address, UnixAddress):
        return f"http://{_UNIX_HOST}"
    return str(address).replace("tcp://", "http://", 1)


def _transport(address: Address) -> httpx.AsyncHTTPTransport:
    """Return what connects to *address*: any number of times at once, and never with TLS."""
    place: dict[str, Any] = {"uds": str(address.path)} if isinstance(address, UnixAddress) else {}
    return httpx.AsyncHTTPTransport(
        verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),  # trusts nobody, and costs nothing to make
        trust_env=False,
        limits=httpx.Limits(max_connections=None, keepalive_expiry=_KEEP_ALIVE),
        **place,
    )
