"""The real client against a server in memory, on the test's own clock.

`open_test_client` is `open_client` with the sockets taken out: requests go through a `MemoryTransport`
to the application of a server that `open_test_server` has opened. Streams stream, and a test can cut
every connection, or have the server be away for a while.

```python
async with open_test_server(turns) as server, open_test_client(server) as client:
    async with client.open_workspace("/srv/project") as workspace:
        session = await workspace.sessions.create("a session")
        run = await workspace.submit("hello", session=session.id)
        assert await run.result_text() == "done"
```
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

import httpx
import trio
from attrs import define, field
from typing_extensions import override

from crush_trio.client.client import Client, open_client
from crush_trio.clock import CountingIds
from crush_trio.testing.asgi import AsgiDriver, Exchange, NoAnswer
from crush_trio.testing.served import Served, client_id

_OURS: Final = frozenset({"host", "content-length", "transfer-encoding", "connection"})
"""Headers that the driver makes itself."""


@define(eq=False)
class MemoryTransport(httpx.AsyncBaseTransport):
    """Carries the requests of a client to an ASGI application; what HTTPX calls a transport.

    One transport stands for one client's network. What breaks it breaks it for this client only.
    """

    driver: AsgiDriver = field(repr=False)
    """Where requests go; a test may put another server in its place."""
    away: bool = field(default=False, init=False)
    """While true, no connection comes about."""
    requests: list[str] = field(factory=list, init=False)
    """The method and target of every request that was sent, in that order."""
    _open: set[Exchange] = field(factory=set, init=False, repr=False)

    @override
    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send *request*, and return the response as soon as it has begun."""
        body = await request.aread()
        target = request.url.raw_path.decode()
        if self.away:
            raise httpx.ConnectError("the server is away")
        self.requests.append(f"{request.method} {target}")
        headers = [pair for pair in request.headers.multi_items() if pair[0].lower() not in _OURS]
        exchange = self.driver.open(request.method, target, body, headers=headers)
        self._open.add(exchange)
        try:
            await exchange.head()
        except BaseException as error:
            self._close(exchange)
            if isinstance(error, NoAnswer | trio.ClosedResourceError):
                raise httpx.ReadError("the connection was cut") from error
            raise
        return httpx.Response(
            exchange.status, headers=exchange.headers, stream=_Body(exchange, self._close)
        )

    def cut(self) -> None:
        """Cut every connection that is open now, as a network that fails does."""
        for exchange in list(self._open):
            self._close(exchange)

    def _close(self, exchange: Exchange) -> None:
        self._open.discard(exchange)
        exchange.hang_up()


@define(eq=False)
class _Body(httpx.AsyncByteStream):
    """The body of a response as it comes; closing it hangs up."""

    _exchange: Exchange
    _close: Callable[[Exchange], None]

    @override
    async def __aiter__(self) -> AsyncIterator[bytes]:  # noqa: ASYNC900  # it holds nothing
        try:
            while piece := await self._exchange.receive():
                yield piece
        except (NoAnswer, trio.ClosedResourceError) as error:
            raise httpx.ReadError("the connection was cut") from error

    @override
    async def aclose(self) -> None:
        await trio.lowlevel.cancel_shielded_checkpoint()
        self._close(self._exchange)


@asynccontextmanager
async def open_test_client(
    server: Served,
    number: int = 1,
    *,
    token: str | None = None,
    transport: MemoryTransport | None = None,
) -> AsyncIterator[Client]:
    """Open a client of *server*; *number* tells clients apart, and one comes back as the same.

    Its runs are called `run-1-1`, `run-1-2` and so on. Give a *transport* of your own to break it.
    """
    async with open_client(
        "unix:///memory",
        token=token,
        client_id=client_id(number),
        environ={},
        ids=CountingIds(f"run-{number}"),
        transport=MemoryTransport(server.driver) if transport is None else transport,
    ) as client:
        yield client
