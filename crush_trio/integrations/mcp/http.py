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
from typing import Any, Final, Self

import anyio
import httpx2
import mcp_types as types
import orjson
import trio
from attrs import define, field
from mcp.client.session import IncomingMessage
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage

from crush_trio.integrations.mcp.bodies import BoundedBody, BoundedEvents
from crush_trio.integrations.mcp.session import ListKind, LoginNeeded, McpFailure, McpTarget
from crush_trio.integrations.mcp.stdio import open_stdio
from crush_trio.wire.config import McpTransport

CONNECT_TIMEOUT: Final = 30
"""Seconds to connect to a server."""

DELETE_TIMEOUT: Final = 1
"""Seconds for the DELETE request that ends the session at the server."""

MAX_WHY: Final = 200
"""Maximum characters of the reason for which a connection is given up."""


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
    ended: str = field(default="", init=False)
    """Why the stream has ended; empty while it has not."""
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
            if self.ended:
                raise McpFailure(self.ended)
            await self._waiting.park()
        listing = next(iter(self._stale))
        del self._stale[listing]
        return listing

    def end(self, why: str = "it closed the connection") -> None:
        """Record that the stream has ended, or must end, and wake the waiting tasks."""
        self.ended = self.ended or why
        self._waiting.unpark_all()


@define(eq=False)
class SentMessages:
    """A message stream that remembers the requests sent. Satisfies the package's `WriteStream`."""

    _stream: Any
    last_id: int = field(default=0, init=False)
    """The id of the last request: the package counts them."""

    async def send(self, item: SessionMessage) -> None:
        """Send a message."""
        if isinstance(item.message, types.JSONRPCRequest):
            self.last_id = max(self.last_id, int(item.message.id))
        await self._stream.send(item)

    async def aclose(self) -> None:
        """Close it."""
        await self._stream.aclose()

    async def __aenter__(self) -> Self:
        await trio.lowlevel.checkpoint()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.aclose()


@define(eq=False)
class ObservedStream:
    """A message stream that reports its end to `ListChanges`. Satisfies the package's `ReadStream`.

    It must also end after an answer to a request that was not sent: the package ignores that answer,
    and a request waits for ever. A second answer to the same request is harmless.
    """

    _stream: Any
    _changes: ListChanges
    _sent: SentMessages

    @property
    def last_context(self) -> object:
        """The context that the package keeps with a message."""
        return getattr(self._stream, "last_context", None)

    async def receive(self) -> Any:  # noqa: ANN401 - the package's own types
        """Return the next message."""
        return await self.__anext__()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:  # noqa: ANN401
        try:
            found = await self._stream.__anext__()
        except (StopAsyncIteration, anyio.ClosedResourceError):
            self._changes.end()
            raise
        if isinstance(found, Exception):
            self._changes.end(str(found) or type(found).__name__)
        elif why := self._why_lost(found.message):
            self._changes.end(why)
        elif isinstance(found.message, types.JSONRPCResponse):
            _mend_tools(found.message.result)
        return found

    def _why_lost(self, message: types.JSONRPCMessage) -> str:
        """Return why a request will never be answered; empty if a message does not show that."""
        match message:
            case types.JSONRPCError(id=None, error=error) if error.code == types.PARSE_ERROR:
                # With another code it may be about a notification, which some servers answer.
                return f"it could not read a request: {error.message}"
            case types.JSONRPCResponse(id=found) | types.JSONRPCError(id=found) if (
                found is not None
            ):
                known = str(found).isdigit() and 0 < int(found) <= self._sent.last_id
                return "" if known else f"it answered a request with another id ({found})"[:MAX_WHY]
        return ""

    async def aclose(self) -> None:
        """Close it."""
        await self._stream.aclose()

    async def __aenter__(self) -> Self:
        await trio.lowlevel.checkpoint()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        self._changes.end()
        await self.aclose()


def _mend_tools(result: dict[str, Any]) -> None:
    """Correct the usual flaws in a list of tools: the package refuses the whole list for one of them."""
    if isinstance(tools := result.get("tools"), list):
        result["tools"] = [each for each in tools if isinstance(each, dict) and each.get("name")]
        for each in result["tools"]:
            given = each.get("inputSchema")
            schema = given if isinstance(given, dict) else {}
            each["inputSchema"] = {**schema, "type": "object"}
            if not isinstance(schema.get("properties", {}), dict):
                del each["inputSchema"]["properties"]


@asynccontextmanager
async def open_transport(target: McpTarget, changes: ListChanges) -> AsyncIterator[tuple[Any, Any]]:
    """Connect to a server by its configured transport; *changes* also records the stream's end."""
    opens: dict[McpTransport, Callable[[], Streams]]
    address = HttpAddress(target, changes)
    opens = {
        McpTransport.STDIO: lambda: open_stdio(target),
        McpTransport.HTTP: lambda: _http(address),
        McpTransport.SSE: lambda: _sse(address),
    }
    async with opens[target.config.type]() as (incoming, outgoing):
        sent = SentMessages(outgoing)
        yield ObservedStream(incoming, changes, sent), sent


@define(eq=False)
class HttpAddress:
    """The URL of a server, and what its responses contained."""

    target: McpTarget
    changes: ListChanges = field(repr=False)
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
        streamable = self.target.config.type is McpTransport.HTTP
        asked = _asked(response.request) if streamable and response.is_success else None
        if isinstance(response.stream, httpx2.AsyncByteStream):
            bounded = BoundedEvents if _is_stream(response) else BoundedBody
            response.stream = bounded(response.stream, asked)
        if not streamable and response.is_error and response.request.method == "POST":
            # The package stops to send then, and lets the request wait.
            self.changes.end(f"it answered a request with HTTP status {response.status_code}")

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


def _asked(request: httpx2.Request) -> int | None:
    """Return the id of the JSON-RPC request that an HTTP request carries; None if it carries none."""
    try:
        sent = orjson.loads(request.content)
    except (orjson.JSONDecodeError, httpx2.RequestNotRead):
        return None
    found = sent.get("id") if isinstance(sent, dict) and "method" in sent else None
    return found if isinstance(found, int) else None


@asynccontextmanager
async def _http(address: HttpAddress) -> AsyncIterator[tuple[Any, Any]]:
    with address.watched():
        async with address.client() as client, _ended(address, client):
            async with streamable_http_client(
                address.url,
                http_client=client,
                terminate_on_close=False,
                max_sse_event_size=None,  # `BoundedEvents` limits it
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
async def _sse(address: HttpAddress) -> AsyncIterator[tuple[Any, Any]]:
    with address.watched():
        async with sse_client(address.url, httpx_client_factory=address.client) as streams:
            yield streams
