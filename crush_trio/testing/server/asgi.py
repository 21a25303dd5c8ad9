"""An ASGI application driven in this process, on the test's own clock.

There is no socket and no server: a request is a task in the caller's nursery and two memory channels,
one for the request and one for the response. The latter is unbounded, so an application can finish a
response that is not read. A response may be read in pieces, and the client may disconnect at any
time: before its body is complete, before the response, in the middle of a stream.

An exception of the application leaves through the nursery, so a test cannot miss it.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from math import inf
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import unquote

import orjson
import trio
from attrs import define, field, frozen
from hypercorn.typing import ASGIFramework, ASGISendEvent, HTTPScope

Headers = Iterable[tuple[str, str]]

_HOST: Final = "api.crush.localhost"
"""The `Host` header that clients send to a server on a Unix socket."""


class NoAnswer(Exception):
    """The application returned without a response."""


@frozen
class AsgiResponse:
    """A whole response."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:  # noqa: ANN401 - a test knows what it asked for
        """Return the body parsed as JSON."""
        return orjson.loads(self.body)


@define(eq=False)
class Exchange:
    """One request and its response. Leaving the context disconnects."""

    _said: trio.MemorySendChannel[dict[str, Any]] = field(repr=False)
    _answers: trio.MemoryReceiveChannel[dict[str, Any]] = field(repr=False)
    _ended: trio.Event = field(repr=False)
    status: int = field(default=0, init=False)
    """The status; 0 until `head` has returned."""
    headers: dict[str, str] = field(factory=dict, init=False)
    _complete: bool = field(default=False, init=False)

    async def head(self) -> int:
        """Wait for the start of the response, and return its status."""
        if not self.status:
            start = await self._next()
            assert start["type"] == "http.response.start"
            self.status = start["status"]
            pairs = (
                (n.decode("latin-1").lower(), v.decode("latin-1")) for n, v in start["headers"]
            )
            self.headers.update(pairs)
        else:
            await trio.lowlevel.checkpoint()
        return self.status

    async def receive(self) -> bytes:
        """Return the next piece of the body; empty at the end."""
        await self.head()
        while not self._complete:
            event = await self._next()
            self._complete = not event.get("more_body", False)
            if piece := event.get("body", b""):
                return bytes(piece)
        return b""

    async def answer(self) -> AsgiResponse:
        """Read the response to its end."""
        pieces = []
        while piece := await self.receive():
            pieces.append(piece)
        return AsgiResponse(self.status, self.headers, b"".join(pieces))

    def hang_up(self) -> None:
        """Disconnect; may be called twice. What the application sends from now on is lost."""
        self._answers.close()
        self._said.send_nowait({"type": "http.disconnect"})

    async def ended(self) -> None:
        """Wait until the application has returned."""
        await self._ended.wait()

    async def _next(self) -> dict[str, Any]:
        try:
            return await self._answers.receive()
        except trio.EndOfChannel:
            raise NoAnswer from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.hang_up()


@define(eq=False)
class AsgiDriver:
    """Sends requests to *app*; each is a task of *nursery* until the application returns.

    ```python
    async with trio.open_nursery() as nursery:
        driver = AsgiDriver(app, nursery)
        assert (await driver.request("GET", "/v1/health")).status == 200
        with driver.open("GET", "/v1/workspaces/w/events?client_id=…") as stream:
            frame = await stream.receive()
    ```
    """

    app: ASGIFramework
    nursery: trio.Nursery = field(repr=False)

    async def request(
        self, method: str, target: str, body: object = b"", *, headers: Headers = ()
    ) -> AsgiResponse:
        """Send a request and return the whole response. A *body* other than bytes is sent as JSON."""
        with self.open(method, target, body, headers=headers) as exchange:
            return await exchange.answer()

    def open(
        self,
        method: str,
        target: str,
        body: object = b"",
        *,
        headers: Headers = (),
        complete: bool = True,
    ) -> Exchange:
        """Send a request without waiting; without *complete* its body is not finished."""
        said, hears = trio.open_memory_channel[dict[str, Any]](inf)
        answers, answered = trio.open_memory_channel[dict[str, Any]](inf)
        data = body if isinstance(body, bytes) else orjson.dumps(body)
        said.send_nowait({"type": "http.request", "body": data, "more_body": not complete})
        ended = trio.Event()
        scope = _scope(method, target, len(data), headers)
        self.nursery.start_soon(self._call, scope, hears, answers, ended, name=f"{method} {target}")
        return Exchange(said, answered, ended)

    async def _call(
        self,
        scope: HTTPScope,
        hears: trio.MemoryReceiveChannel[Any],
        answers: trio.MemorySendChannel[dict[str, Any]],
        ended: trio.Event,
    ) -> None:
        async def send(event: ASGISendEvent) -> None:
            await trio.lowlevel.checkpoint()
            with suppress(
                trio.BrokenResourceError
            ):  # as in a real server, the application is not told
                answers.send_nowait(dict(event))

        try:
            with answers:
                await self.app(scope, hears.receive, send)
        finally:
            ended.set()


def _scope(method: str, target: str, length: int, headers: Headers) -> HTTPScope:
    """Return the ASGI scope of a request over a Unix socket."""
    raw_path, _, query = target.partition("?")
    pairs = [("host", _HOST), ("content-length", str(length)), *headers]
    return {
        "type": "http",
        "asgi": {"spec_version": "2.3", "version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote(raw_path),
        "raw_path": raw_path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in pairs],
        "client": None,
        "server": None,
        "state": {},  # type: ignore[typeddict-item]  # set by a lifespan, which a test does not have
        "extensions": {},
    }
