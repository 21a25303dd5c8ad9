"""Wire values out, wire values in.

A `Link` is the way to one server. Whatever goes wrong on it comes out as a `CrushError`: what the
server refused as the error it raised, what the network did as a `NoAnswer`.
"""

from collections.abc import AsyncIterator, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, TypeAlias, TypeVar
from urllib.parse import quote

from attrs import define, field

from crush_trio.client.errors import AnswerGarbled, refusal
from crush_trio.errors import DecodeError
from crush_trio.wire.addresses import Address
from crush_trio.wire.codec import decode, encode

if TYPE_CHECKING:
    import httpx

    from crush_trio.client.exchange import Exchanges

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
    from crush_trio.client.exchange import open_exchanges

    async with open_exchanges(address, advice=advice, token=token, transport=transport) as opened:
        yield Link(address, opened)
