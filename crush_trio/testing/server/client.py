"""The real client against a server in memory, and a minimal client of native event streams.

`open_test_client` is `open_client` without sockets: requests go through a `MemoryTransport` to the
application of a server opened by `open_test_server`. Streams stream, and a test can cut every
connection, or make the server unreachable for a while.

```python
async with open_test_server(turns) as server, open_test_client(server) as client:
    async with client.open_workspace("/srv/project") as workspace:
        session = await workspace.sessions.create("a session")
        run = await workspace.submit("hello", session=session.id)
        assert await run.result_text() == "done"
```

A `Replica` rebuilds the state of a workspace from the bytes of a native stream, split anywhere. It
raises `ReplicaMismatch` for a frame that does not fit: a delta at the wrong offset, an id that does
not grow, a second ending of a run. A real client would go wrong there too.
"""

from collections.abc import AsyncIterator, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import orjson
import trio
from attrs import define, field

from crush_trio.client.client import Client, open_client
from crush_trio.clock import CountingIds
from crush_trio.net.client import Request, Response
from crush_trio.net.errors import ConnectFailed, ConnectionLost
from crush_trio.testing.server.asgi import AsgiDriver, Exchange, NoAnswer
from crush_trio.testing.server.server import Served, client_id

Json = dict[str, Any]


OF_THE_STREAM = frozenset({"asks", "ready", "heartbeat", "end"})
"""Events that a server adds to those of the log; they do not change the state."""


class ReplicaMismatch(AssertionError):
    """A frame does not fit the state of the replica."""


@define(eq=False)
class Replica:
    """The state of a client that has applied every frame so far."""

    messages: dict[str, Json] = field(factory=dict, init=False)
    endings: dict[str, Json] = field(factory=dict, init=False)
    """The terminal `run` event of each run, by the server's id."""
    resyncs: int = field(default=0, init=False)
    last_id: str | None = field(default=None, init=False)
    """What a client sends as `Last-Event-ID` when it reconnects."""
    _rest: bytes = field(default=b"", init=False)

    def feed(self, data: bytes) -> None:
        """Apply the frames that *data* completes."""
        *frames, self._rest = (self._rest + data).split(b"\n\n")
        for frame in frames:
            self._apply(frame)

    def cut(self) -> None:
        """Lose the connection: an incomplete frame is dropped."""
        self._rest = b""

    def _apply(self, frame: bytes) -> None:
        lines = dict(line.split(b": ", 1) for line in frame.split(b"\n"))
        name = lines[b"event"].decode()
        if name in OF_THE_STREAM:
            return
        data = orjson.loads(lines[b"data"])
        self._advance(lines[b"id"].decode(), anew=name == "resync")
        match name:
            case "message":
                self._message(data)
            case "message_delta":
                self._delta(data)
            case "run":
                self._run(data)
            case "resync":
                self._resync(data)

    def _advance(self, event_id: str, *, anew: bool) -> None:
        """Check that ids grow; a resync may repeat the id it was requested from."""
        if self.last_id is not None:
            (boot, place), (last_boot, last_place) = _split(event_id), _split(self.last_id)
            if boot == last_boot and place < last_place + (not anew):
                raise ReplicaMismatch(f"event {event_id} came after {self.last_id}")
        self.last_id = event_id

    def _message(self, change: Json) -> None:
        message = change["payload"]
        if change["type"] == "deleted":
            self.messages.pop(message["id"], None)
        else:
            self.messages[message["id"]] = message

    def _delta(self, delta: Json) -> None:
        message = self.messages.get(delta["id"])
        if message is None:
            raise ReplicaMismatch(f"delta for an unknown message: {delta['id']}")
        message["updated_at"] = delta["updated_at"]
        for change in delta["changes"]:
            apply_change(message["parts"], change)

    def _run(self, run: Json) -> None:
        if run["state"] not in {"accepted", "queued", "active", "ending"}:
            self._end(run)

    def _end(self, run: Json) -> None:
        if run["id"] in self.endings:
            raise ReplicaMismatch(f"run {run['id']} ended twice")
        self.endings[run["id"]] = run

    def _resync(self, state: Json) -> None:
        self.resyncs += 1
        for run in state["ended"]:
            self._end(run)
        self.messages.update({message["id"]: message for message in state["messages"]})


def apply_change(parts: list[Json], change: Mapping[str, Any]) -> None:
    """Apply one change of a `message_delta` to the parts of a message, in place."""
    place = change["length"] if "length" in change else change["index"]
    if place > len(parts) or ("append" in change and place == len(parts)):
        raise ReplicaMismatch(f"a change at part {place} of a message that has {len(parts)}")
    if "length" in change:
        del parts[place:]
    elif "append" in change:
        _append(parts, change)
    else:
        parts[place : place + 1] = [change["part"]]


def _append(parts: list[Json], change: Mapping[str, Any]) -> None:
    """Append to a text or reasoning part; `offset` is its length so far, in UTF-8 bytes."""
    part = parts[change["index"]]
    key = "text" if part["type"] == "text" else "thinking"
    text = part["data"][key]
    if len(text.encode()) != change["offset"]:
        raise ReplicaMismatch(f"delta at {change['offset']}, but the text has {len(text.encode())}")
    data = dict(change["part"]["data"]) if "part" in change else dict(part["data"])
    data[key] = text + change["append"]
    parts[change["index"]] = {"type": part["type"], "data": data}


def _split(event_id: str) -> tuple[str, int]:
    boot, _, place = event_id.rpartition("-")
    return boot, int(place)


@define(eq=False)
class MemoryTransport:
    """Carries the requests of a client to an ASGI application. Satisfies `net.client.Transport`.

    One transport stands for one client's network: its faults hit this client only.
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

    @asynccontextmanager
    async def open(self, request: Request) -> AsyncIterator[Response]:
        """Send *request*, and give the response as soon as it has begun. Leaving hangs up."""
        await trio.lowlevel.checkpoint()
        if self.away:
            raise ConnectFailed("the server is away", reason="the server is away")
        self.requests.append(f"{request.method} {request.target}")
        exchange = self.driver.open(
            request.method, request.target, request.body, headers=request.headers.items()
        )
        self._open.add(exchange)
        try:
            with _broken():
                await exchange.head()
                await self._lose(request)
            yield Response(exchange.status, exchange.headers, _Body(self, exchange))
        finally:
            self.close(exchange)

    async def _lose(self, request: Request) -> None:
        await trio.lowlevel.checkpoint()
        for losing in self._losing:
            method, path_end, silently = losing
            if request.method == method and request.path.endswith(path_end):
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
        raise ConnectionLost("the connection was cut") from error


@define(eq=False)
class _Body:
    """The body of a response in memory."""

    _transport: MemoryTransport
    _exchange: Exchange

    async def receive(self) -> bytes:
        return await self._transport.receive(self._exchange)


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
