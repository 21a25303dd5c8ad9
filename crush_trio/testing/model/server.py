"""A scripted model over HTTP, for tests of code that talks to a real one.

It plays the answers of a script in the format of OpenAI's chat completions or Anthropic's messages,
depending on the request's path, over loopback sockets or in memory. It can do what real providers do
when they fail: answer late or never, refuse, break off, send invalid data, split bytes anywhere. It
records every request, and when each connection was closed and by which side.

```python
async with open_model_server([[Say("Hel"), Pause(gate), Say("lo")]]) as server:
    ...  # any client with the base URL f"{server.base_url}/v1"
    await server.all_closed()
```

Invariant: every connection has one task, which ends with the connection; after the block no task,
connection or listener is left.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import h11
import orjson
import trio
import trio.testing
from attrs import define, field, frozen

from crush_trio.nursery import open_hidden_nursery
from crush_trio.providers.base import Finished, Usage
from crush_trio.testing.model import anthropic as model_anthropic
from crush_trio.testing.model import openai
from crush_trio.testing.model.anthropic import AnthropicAnswer
from crush_trio.testing.model.openai import OpenAIAnswer
from crush_trio.testing.model.reply import Format, ScriptedReply, Split
from crush_trio.testing.model.script import (
    Answer,
    Choice,
    PlainStep,
    Refuse,
    ScriptOver,
    choice_of,
    expand,
)

if TYPE_CHECKING:
    from crush_trio.net.address import Origin

MEMORY_HOST: Final = "http://model.test"
"""The base URL of a server without sockets."""

_READ: Final = 65536
_LOOPBACK: Final = "127.0.0.1"


# ── Records ─────────────────────────────────────────────────────────────────────────────────────


@define(eq=False)
class ModelConnection:
    """When one connection was opened and closed, on Trio's clock."""

    opened_at: float
    closed_at: float | None = field(default=None, init=False)
    """When it was closed, by either side; None while it is open."""
    closed_by_client: bool = field(default=False, init=False)

    def close(self, *, by_client: bool) -> None:
        """Record that the connection was closed; only the first call counts."""
        if self.closed_at is None:
            self.closed_at = trio.current_time()
            self.closed_by_client = by_client


@frozen(kw_only=True)
class HeardRequest:
    """A request: header names in lower case, the body as JSON, None if it had none."""

    method: str
    path: str
    headers: Mapping[str, str] = field(repr=False)
    body: Any = field(repr=False)
    connection: ModelConnection = field(repr=False)
    heard_at: float

    @property
    def model_id(self) -> str:
        """The id of the requested model; empty if there is none."""
        return str(self._said.get("model", ""))

    @property
    def text(self) -> str:
        """The text of the last user message, in either format."""
        spoken = [_text(m.get("content")) for m in self._said.get("messages", []) if _by_user(m)]
        return spoken[-1] if spoken else ""

    @property
    def _said(self) -> Mapping[str, Any]:
        return self.body if isinstance(self.body, dict) else {}


def _by_user(message: Mapping[str, Any]) -> bool:
    """Whether a message is a user's text; in Anthropic's format tool results have that role too."""
    return message.get("role") == "user" and bool(_text(message.get("content")))


def _text(content: object) -> str:
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else []
    return "".join(block["text"] for block in blocks if block.get("type") == "text")


# ── The server ──────────────────────────────────────────────────────────────────────────────────


ServerScript: TypeAlias = Sequence[Answer] | Callable[[HeardRequest], Answer]
"""The answers of a server: in order, or chosen by the request."""


@define(eq=False)
class ModelServer:
    """A scripted model server. Made by `open_model_server`."""

    base_url: str
    """The base URL, without `/v1`. Paths are matched by their end, so any prefix works."""
    _choose: Choice[HeardRequest] = field(repr=False)
    _models: Sequence[str] = field(repr=False)
    _split: Split = field(repr=False)
    _nursery: trio.Nursery = field(repr=False)
    requests: list[HeardRequest] = field(factory=list, init=False)
    """All requests, in the order in which they were complete."""
    connections: list[ModelConnection] = field(factory=list, init=False)
    """All connections, in the order in which they were opened."""
    _numbers: "count[int]" = field(factory=lambda: count(1), init=False, repr=False)
    _closings: trio.lowlevel.ParkingLot = field(
        factory=trio.lowlevel.ParkingLot, init=False, repr=False
    )

    @property
    def open(self) -> int:
        """How many connections are open."""
        return sum(connection.closed_at is None for connection in self.connections)

    async def all_closed(self) -> None:
        """Wait until no connection is open."""
        await trio.lowlevel.checkpoint()
        while self.open:
            await self._closings.park()

    def connect(self) -> trio.abc.Stream:
        """Open a connection in memory; return the client's end."""
        ours, theirs = trio.testing.memory_stream_pair()
        self._nursery.start_soon(self.serve, ours)
        return theirs

    async def dial(self, origin: "Origin") -> trio.abc.Stream:
        """Connect in memory for any *origin*: a `Dial` for providers in virtual time."""
        await trio.lowlevel.checkpoint()
        return self.connect()

    async def serve(self, stream: trio.abc.Stream) -> None:
        """Answer the requests of a connection until it closes."""
        connection = ModelConnection(trio.current_time())
        self.connections.append(connection)
        http = h11.Connection(h11.SERVER)
        try:
            async with stream:
                while await self._exchange(http, stream, connection):
                    http.start_next_cycle()
        finally:
            connection.close(by_client=False)
            self._closings.unpark_all()

    async def _exchange(
        self, http: h11.Connection, stream: trio.abc.Stream, connection: ModelConnection
    ) -> bool:
        """Read a request and answer it; return whether the connection can be used again."""
        request = await _hear(http, stream, connection)
        if request is None:
            connection.close(by_client=True)
            return False
        self.requests.append(request)
        async with open_hidden_nursery() as nursery:
            nursery.start_soon(_watch, http, stream, connection, nursery.cancel_scope)
            await self._answer(request, ScriptedReply(http, stream, self._split))
            nursery.cancel_scope.cancel()
        return connection.closed_at is None and http.our_state is h11.DONE

    async def _answer(self, request: HeardRequest, reply: ScriptedReply) -> None:
        await trio.lowlevel.checkpoint()
        try:
            if request.method == "GET" and request.path.endswith("/models"):
                await reply.send_json(200, orjson.dumps(self._list(request)))
            else:
                await self._play(request, reply)
        except trio.BrokenResourceError:
            request.connection.close(by_client=True)

    async def _play(self, request: HeardRequest, reply: ScriptedReply) -> None:
        number = next(self._numbers)
        steps = self._steps(request, number)
        usage = next((step.usage for step in steps if isinstance(step, Finished)), Usage())
        await reply.play(_format(request, number, usage), steps)

    def _steps(self, request: HeardRequest, number: int) -> Sequence[PlainStep]:
        if not request.path.endswith(("/chat/completions", "/messages")):
            return (Refuse(404, f"nothing is at {request.path}"),)
        if not isinstance(request.body, dict) or not request.body.get("stream"):
            return (Refuse(400, "scripts are only played as streams"),)
        try:
            return tuple(expand(self._choose(request), number))
        except ScriptOver as over:
            return (Refuse(400, str(over)),)

    def _list(self, request: HeardRequest) -> object:
        anthropic = "anthropic-version" in request.headers
        return (model_anthropic if anthropic else openai).models_body(self._models)


def _format(request: HeardRequest, number: int, usage: Usage) -> Format:
    asked = request.body if isinstance(request.body, dict) else {}
    if request.path.endswith("/messages"):
        return AnthropicAnswer(asked, number, usage)
    return OpenAIAnswer(asked, number, usage)


async def _watch(
    http: h11.Connection,
    stream: trio.abc.Stream,
    connection: ModelConnection,
    scope: trio.CancelScope,
) -> None:
    """Cancel the answer as soon as the client disconnects."""
    while data := await _receive(stream):
        http.receive_data(data)
    connection.close(by_client=True)
    scope.cancel()


async def _hear(
    http: h11.Connection, stream: trio.abc.Stream, connection: ModelConnection
) -> HeardRequest | None:
    """Return the next request; None if the client closed the connection instead."""
    await trio.lowlevel.checkpoint()
    head: h11.Request | None = None
    body = bytearray()
    while True:
        event = http.next_event()
        if event is h11.NEED_DATA:
            data = await _receive(stream)
            if not data:
                return None
            http.receive_data(data)
        elif isinstance(event, h11.Request):
            head = event
        elif isinstance(event, h11.Data):
            body += event.data
        elif isinstance(event, h11.EndOfMessage) and head is not None:
            return _heard(head, bytes(body), connection)


async def _receive(stream: trio.abc.Stream) -> bytes:
    """Return received bytes; empty if the connection is closed."""
    await trio.lowlevel.checkpoint()
    try:
        return bytes(await stream.receive_some(_READ))
    except trio.BrokenResourceError:
        return b""


def _heard(head: h11.Request, body: bytes, connection: ModelConnection) -> HeardRequest:
    return HeardRequest(
        method=head.method.decode("ascii"),
        path=head.target.decode("ascii").partition("?")[0],
        headers={name.decode("ascii"): value.decode("latin-1") for name, value in head.headers},
        body=orjson.loads(body) if body else None,
        connection=connection,
        heard_at=trio.current_time(),
    )


@asynccontextmanager
async def open_model_server(
    script: ServerScript = (),
    *,
    models: Sequence[str] = ("m1",),
    split: Split = None,
    sockets: bool = True,
) -> AsyncIterator[ModelServer]:
    """Open a server that plays *script*. Leaving the block closes every connection at once.

    *models* are the ids in its model list. *split* says how the bytes of every response are split into
    writes: None writes each step at once, a number makes pieces of that length, and a collection of
    offsets from the beginning of a response splits there. Without *sockets* there is only `dial`, for
    tests in virtual time.
    """
    await trio.lowlevel.checkpoint()
    listeners = await trio.open_tcp_listeners(0, host=_LOOPBACK) if sockets else []
    async with open_hidden_nursery() as nursery:
        server = ModelServer(
            base_url=_address(listeners),
            choose=choice_of(script),
            models=models,
            split=split,
            nursery=nursery,
        )
        if listeners:
            await nursery.start(trio.serve_listeners, server.serve, listeners)
        try:
            yield server
        finally:
            nursery.cancel_scope.cancel()


def _address(listeners: Sequence[trio.SocketListener]) -> str:
    if not listeners:
        return MEMORY_HOST
    return f"http://{_LOOPBACK}:{listeners[0].socket.getsockname()[1]}"
