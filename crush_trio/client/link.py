"""Requests out, answers in: the one module that knows of an HTTP library.

A `Link` sends wire values and returns wire values. Whatever goes wrong comes out as a `CrushError`:
what the server refused as the error it raised, what the network did as a `NoAnswer`. The library is
loaded when the first link is opened.
"""

from collections.abc import AsyncIterator, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import quote

import trio
from attrs import define, field

from crush_trio.client.errors import AnswerGarbled, AnswerLost, ServerUnreachable, refusal
from crush_trio.errors import DecodeError
from crush_trio.wire.addresses import Address, UnixAddress
from crush_trio.wire.codec import decode, encode

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")

CONNECT_LIMIT: Final = 10.0
"""Seconds within which a server begins to answer a request for its events."""

_KEEP_ALIVE: Final = 3.0
"""Seconds after which an unused connection is not used again; servers close theirs a little later."""

_UNIX_HOST: Final = "api.crush.localhost"
"""The name under which clients ask for a server behind a Unix socket."""

Query = Mapping[str, str]

Take = Callable[[bytes], float | None]
"""Takes a piece of a stream; returns how long to wait for the next, or None to hear no more."""


@define(eq=False)
class Link:
    """The way to one server. Made by `open_link` only."""

    address: Address
    advice: str
    """What to do if nothing answers there."""
    _http: "httpx.AsyncClient" = field(repr=False)

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
        data = await self._send(method, path, body, query)
        with _sensible(method, path):
            return decode(data, answer)

    async def tell(
        self, method: str, path: str, *, body: object = None, query: Query | None = None
    ) -> bytes:
        """Send a request that is answered with nothing but success; return what came all the same."""
        return await self._send(method, path, body, query)

    async def listen(
        self, path: str, take: Take, *, query: Query | None = None, place: str | None = None
    ) -> None:
        """Give *take* the pieces of an event stream until it ends or *take* wants no more.

        Raises `AnswerLost` if the connection breaks or is silent for longer than *take* allowed. *take*
        does not wait and does not raise. That is why leaving is a matter of cancelling: the library
        reads a body through generators, and those end in good order only while they are waiting.
        """
        headers = {} if place is None else {"Last-Event-ID": place}
        wanted = True
        with trio.CancelScope(deadline=trio.current_time() + CONNECT_LIMIT) as scope:
            with self._translated():
                async with self._http.stream(
                    "GET", path, params=query, headers=headers
                ) as response:
                    if response.status_code != 200:
                        raise refusal(response.status_code, await response.aread())
                    async for data in response.aiter_raw():
                        patience = take(data) if wanted else None
                        if patience is None:
                            wanted = False
                            scope.cancel()
                        else:
                            scope.deadline = trio.current_time() + patience
        if scope.cancelled_caught and wanted:
            raise AnswerLost("nothing was heard from the server for too long")

    async def _send(self, method: str, path: str, body: object, query: Query | None) -> bytes:
        content = None if body is None else encode(body)
        headers = {} if content is None else {"Content-Type": "application/json"}
        with self._translated():
            response = await self._http.request(
                method, path, params=query, content=content, headers=headers
            )
        if not 200 <= response.status_code < 300:
            raise refusal(response.status_code, response.content)
        return response.content

    @contextmanager
    def _translated(self) -> Generator[None]:
        """Turn what the library says about the network into what we say about it."""
        import httpx

        try:
            yield
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            reason = f" ({error})" if str(error) else ""
            raise ServerUnreachable(
                f"nothing answers at {self.address}{reason}; {self.advice}"
            ) from error
        except httpx.TransportError as error:
            raise AnswerLost(str(error) or type(error).__name__) from error


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
    """Open the way to the server at *address*; nothing is sent yet. Leaving closes its connections.

    Deadlines are the caller's: a request waits for as long as its answer takes.
    """
    import httpx

    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(
        base_url=_base_url(address),
        headers=headers,
        transport=transport or _transport(address),
        timeout=None,
        trust_env=False,
    ) as http:
        yield Link(address, advice, http)


def _base_url(address: Address) -> str:
    if isinstance(address, UnixAddress):
        return f"http://{_UNIX_HOST}"
    return str(address).replace("tcp://", "http://", 1)


def _transport(address: Address) -> "httpx.AsyncHTTPTransport":
    """Return what connects to *address*: any number of times at once, and never with TLS."""
    import ssl

    import httpx

    options: dict[str, Any] = {"uds": str(address.path)} if isinstance(address, UnixAddress) else {}
    return httpx.AsyncHTTPTransport(
        verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),  # trusts nobody, and costs nothing to make
        trust_env=False,
        limits=httpx.Limits(max_connections=None, keepalive_expiry=_KEEP_ALIVE),
        **options,
    )
