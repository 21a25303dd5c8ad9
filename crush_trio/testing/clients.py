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

from collections.abc import AsyncIterator, Generator
from contextlib import asynccontextmanager, contextmanager
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
    _deaf: set[Exchange] = field(factory=set, init=False, repr=False)
    _losing: list[tuple[str, str, bool]] = field(factory=list, init=False, repr=False)

    # ── What can go wrong ───────────────────────────────────────────────────────────────────────

    def cut(self) -> None:
        """Cut every connection that is open now, as a network that fails does."""
        for exchange in tuple(self._open):
            self.close(exchange)

    def deafen(self) -> None:
        """Let nothing come through on the connections that are open now, and do not say so."""
        self._deaf |= self._open

    def lose_answer(self, method: str, path_end: str, *, silently: bool = False) -> None:
        """Lose the answer to the next such request; the server has carried it out by then.

        The connection breaks, unless it happens *silently*: then the answer just does not come.
        """
        self._losing.append((method, path_end, silently))

    # ── Carrying ────────────────────────────────────────────────────────────────────────────────

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
            with _broken():
                await exchange.head()
                await self._lose(request)
        except BaseException:
            self.close(exchange)
            raise
        return httpx.Response(
            exchange.status, headers=exchange.headers, stream=_Body(self, exchange)
        )

    async def _lose(self, request: httpx.Request) -> None:
        await trio.lowlevel.checkpoint()
        for losing in self._losing:
            method, path_end, silently = losing
            if request.method == method and request.url.path.endswith(path_end):
                self._losing.remove(losing)
                if silently:
                    await trio.sleep_forever()
                raise NoAnswer

    async def receive(self, exchange: Exchange) -> bytes:
        """Return the next piece of a body; an empty one is the end."""
        with _broken():
            piece = await exchange.receive()
        if exchange in self._deaf:
            await trio.sleep_forever()
        return piece

    def close(self, exchange: Exchange) -> None:
        """Hang up."""
        self._open.discard(exchange)
        self._deaf.discard(exchange)
        exchange.hang_up()


@contextmanager
def _broken() -> Generator[None]:
    try:
        yield
    except (NoAnswer, trio.ClosedResourceError) as error:
        raise httpx.ReadError("the connection was cut") from error


@define(eq=False)
class _Body(httpx.AsyncByteStream):
    """The body of a response as it comes; closing it hangs up."""

    _transport: MemoryTransport
    _exchange: Exchange

    @override
    async def __aiter__(self) -> AsyncIterator[bytes]:  # noqa: ASYNC900, ASYNC911 - receiving is what waits
        while piece := await self._transport.receive(self._exchange):
            yield piece  # noqa: ASYNC911 - as above

    @override
    async def aclose(self) -> None:
        await trio.lowlevel.cancel_shielded_checkpoint()
        self._transport.close(self._exchange)


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
