"""How MCP servers are reached, as the `mcp` package wants it: what reads messages, and what writes them.

A command is run by `stdio.py`; the rest is HTTP. A request carries what is configured for its
server and nothing of this process: no proxy, no password file.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from http import HTTPStatus
from typing import Any, Final

import anyio
import httpx2
import mcp_types as types
import trio
from attrs import define, field
from mcp.client.session import IncomingMessage
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from typing_extensions import override

from crush_trio.integrations.mcp.session import ListKind, LoginNeeded, McpFailure, McpTarget
from crush_trio.integrations.mcp.stdio import LONGEST_MESSAGE, open_stdio
from crush_trio.wire.config import McpTransport

CONNECT_TIMEOUT: Final = 30
"""Seconds to reach a server at an address."""

DELETE_TIMEOUT: Final = 1
"""Seconds to tell a server at an address that nobody will come back."""

_LISTINGS: Final[dict[type, ListKind]] = {
    types.ToolListChangedNotification: ListKind.TOOLS,
    types.PromptListChangedNotification: ListKind.PROMPTS,
    types.ResourceListChangedNotification: ListKind.RESOURCES,
}

Streams = AbstractAsyncContextManager[tuple[Any, Any]]
"""What reads and what writes the messages of a server, for the length of a block."""


@define(eq=False)
class ListChanges:
    """What a server has said of itself that nobody has heard yet, and whether it says more.

    It stands between the transport and the package's session: the end of a stream is told by nobody
    else.
    """

    _stale: dict[ListKind, None] = field(factory=dict, init=False)
    _ended: bool = field(default=False, init=False)
    _waiting: trio.lowlevel.ParkingLot = field(
        factory=trio.lowlevel.ParkingLot, init=False, repr=False
    )

    async def hear(self, message: IncomingMessage) -> None:
        """Take note of what the server says without being asked."""
        await trio.lowlevel.checkpoint()
        listing = _LISTINGS.get(type(message))
        if listing is not None:
            self._stale[listing] = None
            self._waiting.unpark_all()

    async def next(self) -> ListKind:
        """Return the next list that is said to be another; each once, however often it is said."""
        await trio.lowlevel.checkpoint()
        while not self._stale:
            if self._ended:
                raise McpFailure("it has hung up")
            await self._waiting.park()
        listing = next(iter(self._stale))
        del self._stale[listing]
        return listing

    def end(self) -> None:
        """Say that there will be no more."""
        self._ended = True
        self._waiting.unpark_all()


@define(eq=False)
class ObservedStream:
    """A stream of messages whose end is noticed. Satisfies the package's `ReadStream`."""

    _stream: Any
    _news: ListChanges

    @property
    def last_context(self) -> object:
        """What the package keeps with a message."""
        return getattr(self._stream, "last_context", None)

    async def receive(self) -> Any:  # noqa: ANN401 - the package's own types
        """Return the next message."""
        return await self.__anext__()

    def __aiter__(self) -> "ObservedStream":
        return self

    async def __anext__(self) -> Any:  # noqa: ANN401
        try:
            return await self._stream.__anext__()
        except (StopAsyncIteration, anyio.ClosedResourceError):
            self._news.end()
            raise

    async def aclose(self) -> None:
        """Close it."""
        await self._stream.aclose()

    async def __aenter__(self) -> "ObservedStream":
        await trio.lowlevel.checkpoint()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        self._news.end()
        await self.aclose()


@asynccontextmanager
async def open_transport(target: McpTarget, news: ListChanges) -> AsyncIterator[tuple[Any, Any]]:
    """Reach a server in the way that is configured; *news* is told when it hangs up."""
    ways: dict[McpTransport, Callable[[McpTarget], Streams]]
    ways = {McpTransport.STDIO: open_stdio, McpTransport.HTTP: _http, McpTransport.SSE: _sse}
    async with ways[target.config.type](target) as (incoming, outgoing):
        yield ObservedStream(incoming, news), outgoing


@define(eq=False)
class HttpAddress:
    """Where a server is, and what was seen in its answers."""

    target: McpTarget
    session_id: str = field(default="", init=False, repr=False)
    closed_to_us: bool = field(default=False, init=False)

    @property
    def url(self) -> str:
        """Where requests go."""
        if not self.target.config.url:
            raise McpFailure("it has no url")
        return self.target.config.url

    def client(
        self,
        headers: object = None,  # the arguments are what the package would have
        timeout: object = None,
        auth: object = None,
    ) -> httpx2.AsyncClient:
        """Return what makes requests. Only connecting has a limit: a tool may take its time."""
        return httpx2.AsyncClient(
            headers={**self.target.config.headers, "Accept-Encoding": "identity"},
            timeout=httpx2.Timeout(None, connect=CONNECT_TIMEOUT),
            trust_env=False,
            event_hooks={"response": [self._look]},
        )

    async def _look(self, response: httpx2.Response) -> None:
        """Take note of an answer before the package sees it."""
        await trio.lowlevel.checkpoint()
        self.session_id = response.headers.get("mcp-session-id", self.session_id)
        self.closed_to_us = response.status_code in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}
        if response.headers.get("content-encoding", "identity") != "identity":
            raise McpFailure("it compresses its answers, which it was asked not to")
        if isinstance(response.stream, httpx2.AsyncByteStream) and not _is_stream(response):
            response.stream = BoundedBody(response.stream)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Tell a server that wants a login from one that is broken."""
        try:
            yield
        except Exception:
            if not self.closed_to_us:
                raise
            raise LoginNeeded("it wants a login; configure a header or an oauth_token") from None


def _is_stream(response: httpx2.Response) -> bool:
    """Whether an answer is one of many messages, which are bounded one by one."""
    kind: str = response.headers.get("content-type", "")
    return kind.lower().startswith("text/event-stream")


class BoundedBody(httpx2.AsyncByteStream):
    """The body of an answer that is one message, and may be no longer than one."""

    def __init__(self, body: httpx2.AsyncByteStream) -> None:
        self._body = body
        self._chunks = aiter(body)
        self._left = LONGEST_MESSAGE

    @override
    def __aiter__(self) -> "BoundedBody":
        return self

    async def __anext__(self) -> bytes:
        """Return the next piece; raises what the package takes for a broken answer."""
        data = await anext(self._chunks)
        self._left -= len(data)
        if self._left < 0:
            raise httpx2.StreamError("the answer is too long")
        return data

    @override
    async def aclose(self) -> None:
        """Close it."""
        await self._body.aclose()


@asynccontextmanager
async def _http(target: McpTarget) -> AsyncIterator[tuple[Any, Any]]:
    address = HttpAddress(target)
    with address.watched():
        async with address.client() as client, _ended(address, client):
            async with streamable_http_client(
                address.url,
                http_client=client,
                terminate_on_close=False,
                max_sse_event_size=LONGEST_MESSAGE,
            ) as streams:
                yield streams


@asynccontextmanager
async def _ended(address: HttpAddress, client: httpx2.AsyncClient) -> AsyncIterator[None]:
    """Tell the server in the end that its session is over, also when we are cancelled."""
    try:
        yield
    finally:
        with trio.move_on_after(DELETE_TIMEOUT, shield=True), suppress(httpx2.HTTPError):
            if address.session_id:
                headers = {"mcp-session-id": address.session_id}
                await client.delete(address.url, headers=headers)


@asynccontextmanager
async def _sse(target: McpTarget) -> AsyncIterator[tuple[Any, Any]]:
    address = HttpAddress(target)
    with address.watched():
        async with sse_client(address.url, httpx_client_factory=address.client) as streams:
            yield streams
