"""`open_transport`: opens the message streams of an MCP server, as the `mcp` package expects them.

A server that is a command is run by `stdio.py`; this module does HTTP and SSE. A request carries what is
configured for its server and nothing from the process: no proxy, no password file.
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
"""Seconds to connect to a server."""

DELETE_TIMEOUT: Final = 1
"""Seconds for the DELETE request that ends the session at the server."""

_LISTINGS: Final[dict[type, ListKind]] = {
    types.ToolListChangedNotification: ListKind.TOOLS,
    types.PromptListChangedNotification: ListKind.PROMPTS,
    types.ResourceListChangedNotification: ListKind.RESOURCES,
}

Streams = AbstractAsyncContextManager[tuple[Any, Any]]
"""A context manager that yields the streams to read and write messages."""


@define(eq=False)
class ListChanges:
    """The lists that a server has announced as changed, and whether its stream has ended.

    It also observes the transport, because the package's session does not report the end of a stream.
    """

    _stale: dict[ListKind, None] = field(factory=dict, init=False)
    _ended: bool = field(default=False, init=False)
    _waiting: trio.lowlevel.ParkingLot = field(
        factory=trio.lowlevel.ParkingLot, init=False, repr=False
    )

    async def receive(self, message: IncomingMessage) -> None:
        """Handle a notification of the server."""
        await trio.lowlevel.checkpoint()
        listing = _LISTINGS.get(type(message))
        if listing is not None:
            self._stale[listing] = None
            self._waiting.unpark_all()

    async def next(self) -> ListKind:
        """Wait for the next changed list; several announcements of one list count once."""
        await trio.lowlevel.checkpoint()
        while not self._stale:
            if self._ended:
                raise McpFailure("it closed the connection")
            await self._waiting.park()
        listing = next(iter(self._stale))
        del self._stale[listing]
        return listing

    def end(self) -> None:
        """Record that the stream has ended, and wake the waiting tasks."""
        self._ended = True
        self._waiting.unpark_all()


@define(eq=False)
class ObservedStream:
    """A message stream that reports its end to `ListChanges`. Satisfies the package's `ReadStream`."""

    _stream: Any
    _changes: ListChanges

    @property
    def last_context(self) -> object:
        """The context that the package keeps with a message."""
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
            self._changes.end()
            raise

    async def aclose(self) -> None:
        """Close it."""
        await self._stream.aclose()

    async def __aenter__(self) -> "ObservedStream":
        await trio.lowlevel.checkpoint()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        self._changes.end()
        await self.aclose()


@asynccontextmanager
async def open_transport(target: McpTarget, changes: ListChanges) -> AsyncIterator[tuple[Any, Any]]:
    """Connect to a server by its configured transport; *changes* also records the stream's end."""
    opens: dict[McpTransport, Callable[[McpTarget], Streams]]
    opens = {McpTransport.STDIO: open_stdio, McpTransport.HTTP: _http, McpTransport.SSE: _sse}
    async with opens[target.config.type](target) as (incoming, outgoing):
        yield ObservedStream(incoming, changes), outgoing


@define(eq=False)
class HttpAddress:
    """The URL of a server, and what its responses contained."""

    target: McpTarget
    session_id: str = field(default="", init=False, repr=False)
    needs_login: bool = field(default=False, init=False)

    @property
    def url(self) -> str:
        """The configured URL."""
        if not self.target.config.url:
            raise McpFailure("it has no url")
        return self.target.config.url

    def client(
        self,
        headers: object = None,  # the package's own arguments, which are not used
        timeout: object = None,
        auth: object = None,
    ) -> httpx2.AsyncClient:
        """Return an HTTP client. Only connecting has a time limit: a tool call may take long."""
        return httpx2.AsyncClient(
            headers={**self.target.config.headers, "Accept-Encoding": "identity"},
            timeout=httpx2.Timeout(None, connect=CONNECT_TIMEOUT),
            trust_env=False,
            event_hooks={"response": [self._check]},
        )

    async def _check(self, response: httpx2.Response) -> None:
        """Check a response before the package sees it."""
        await trio.lowlevel.checkpoint()
        self.session_id = response.headers.get("mcp-session-id", self.session_id)
        self.needs_login = response.status_code in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}
        if response.headers.get("content-encoding", "identity") != "identity":
            raise McpFailure("it compresses its answers, which it was asked not to")
        if isinstance(response.stream, httpx2.AsyncByteStream) and not _is_stream(response):
            response.stream = BoundedBody(response.stream)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Raise `LoginNeeded` instead of other errors if the server has answered 401 or 403."""
        try:
            yield
        except Exception:
            if not self.needs_login:
                raise
            raise LoginNeeded("it wants a login; configure a header or an oauth_token") from None


def _is_stream(response: httpx2.Response) -> bool:
    """Whether a response is an event stream, whose messages are bounded one by one."""
    kind: str = response.headers.get("content-type", "")
    return kind.lower().startswith("text/event-stream")


class BoundedBody(httpx2.AsyncByteStream):
    """The body of a response that is one message, limited to the size of one."""

    def __init__(self, body: httpx2.AsyncByteStream) -> None:
        self._body = body
        self._chunks = aiter(body)
        self._left = LONGEST_MESSAGE

    @override
    def __aiter__(self) -> "BoundedBody":
        return self

    async def __anext__(self) -> bytes:
        """Return the next chunk; raises an error that the package handles if it is too long."""
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
    """End the session at the server when the block is left, also on cancel.

    The package's own `terminate_on_close` sends its request unshielded, so a cancel would skip it.
    """
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
