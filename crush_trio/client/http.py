"""Wire values over HTTP: requests to one server, and its event streams.

A `Link` leads to one server. Whatever goes wrong on it is raised as a `CrushError`: a refusal as the error that
the server raised, a failure of the network as a `NoAnswer`.
"""

from collections.abc import AsyncIterator, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Final, TypeAlias, TypeVar
from urllib.parse import quote, urlencode

import trio
from attrs import define, field

from crush_trio.client.errors import AnswerGarbled, AnswerLost, refusal, translated
from crush_trio.errors import CrushError, DecodeError
from crush_trio.net.address import Address, Origin, UnixAddress
from crush_trio.net.client import Content, Request, Response, Transport, open_http_client
from crush_trio.net.dial import Dial, Dialer, UnixDialer
from crush_trio.wire.codec import decode, encode

T = TypeVar("T")

Query: TypeAlias = Mapping[str, str]
"""The query of a request."""

Take: TypeAlias = Callable[[bytes], float | None]
"""Takes a piece of a stream; returns how long to wait for the next, or None to end the stream."""

CONNECT_LIMIT: Final = 10.0
"""Seconds within which a server begins to answer a request for its events."""

ANSWER_MOST: Final = 1024**3
"""Bytes that an answer may have. Lists of messages are long; a limit only stops a broken server."""

REFUSAL_MOST: Final = 1024 * 1024
"""Bytes that are read of a refusal."""

KEEP_ALIVE: Final = 3.0
"""Seconds after which an unused connection is not used again; servers close theirs a little later."""

KEEP_MOST: Final = 100
"""How many unused connections are kept."""

_UNIX_HOST: Final = "api.crush.localhost"
"""The name under which clients ask for a server behind a Unix socket."""


@define(eq=False)
class Link:
    """Requests to one server, any number at a time. Made by `open_link` only.

    Deadlines are the caller's: a request waits for as long as its answer takes.
    """

    address: Address
    _transport: Transport = field(repr=False)
    _headers: Mapping[str, str] = field(repr=False)
    _advice: str = field(repr=False)
    """What the user can do if nothing answers."""
    _closed: bool = field(default=False, init=False)

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
        with _decoding(method, path):
            return decode(data, answer)

    async def tell(
        self, method: str, path: str, *, body: object = None, query: Query | None = None
    ) -> bytes:
        """Send a request and return the body of a successful answer, which is often empty."""
        kind = {} if body is None else {"content-type": "application/json"}
        content = b"" if body is None else encode(body)
        async with self._open(method, path, query, kind, content) as response:
            if 200 <= response.status < 300:
                return await response.read(ANSWER_MOST)
            raise await _refusal(response)

    async def listen(self, path: str, take: Take, *, query: Query, place: str) -> None:
        """Give *take* the pieces of an event stream from *place* on, until it ends or *take* has enough.

        Raises `AnswerLost` if the connection breaks, or is silent for longer than *take* allowed.
        *take* does not wait and does not raise.
        """
        with trio.CancelScope(deadline=trio.current_time() + CONNECT_LIMIT) as scope:
            async with self._open("GET", path, query, {"last-event-id": place}) as response:
                if response.status != 200:
                    raise await _refusal(response)
                while data := await response.receive():
                    patience = take(data)
                    if patience is None:
                        return
                    scope.deadline = trio.current_time() + patience
        if scope.cancelled_caught:
            raise AnswerLost("nothing was heard from the server for too long")

    @asynccontextmanager
    async def _open(
        self,
        method: str,
        path: str,
        query: Query | None,
        headers: Mapping[str, str],
        body: Content = b"",
    ) -> AsyncIterator[Response]:
        """Send a request; network errors in the block become errors of the client."""
        if self._closed:
            raise trio.ClosedResourceError("the client has been closed")
        request = Request(
            method=method,
            origin=_origin(self.address),
            target=f"{path}?{urlencode(query)}" if query else path,
            headers={**self._headers, **headers},
            body=body,
        )
        with translated(self.address, self._advice):
            async with self._transport.open(request) as response:
                yield response

    def close(self) -> None:
        """Refuse further requests."""
        self._closed = True


async def _refusal(response: Response) -> CrushError:
    body, _ = await response.read_first(REFUSAL_MOST)
    return refusal(response.status, body)


@contextmanager
def _decoding(method: str, path: str) -> Generator[None]:
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
    transport: Transport | None = None,
) -> AsyncIterator[Link]:
    """Open a link to the server at *address*; nothing is sent yet. Leaving closes its connections.

    *advice* tells the user what to do if nothing answers there. *transport* replaces the sockets.
    """
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    async with open_http_client(
        _dial(address), idle_most=KEEP_MOST, idle_limit=KEEP_ALIVE
    ) as sockets:
        link = Link(address, sockets if transport is None else transport, headers, advice)
        try:
            yield link
        finally:
            link.close()


def _dial(address: Address) -> Dial:
    """Return how to connect: directly. Proxies of the environment are not for our own server."""
    return UnixDialer(address.path) if isinstance(address, UnixAddress) else Dialer()


def _origin(address: Address) -> Origin:
    if isinstance(address, UnixAddress):
        return Origin(_UNIX_HOST, 80, secure=False)
    return Origin(address.host, address.port, secure=False)
