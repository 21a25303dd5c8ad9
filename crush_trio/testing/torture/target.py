"""The target: requests to the server under test, and readers of its event streams.

Only routes of the wire are used. Every request is bounded by *patience*, and so is the silence of a stream
while a check waits for it. A slow server is not a broken one: while events come, waiting goes on.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from math import inf
from typing import Any, Final
from urllib.parse import urlencode

import orjson
import trio
from attrs import define, field, frozen

from crush_trio.net.address import Address, Origin, UnixAddress
from crush_trio.net.client import HttpClient, Request, Response, open_http_client
from crush_trio.net.dial import Dial, ViaProxy
from crush_trio.net.errors import NetworkError
from crush_trio.net.sse import SseDecoder
from crush_trio.testing.torture.ledger import Violation
from crush_trio.testing.torture.view import View

ANSWER_MOST: Final = 64 * 2**20
EVENT_MOST: Final = 64 * 2**20
IDLE_LIMIT: Final = 1.0
"""Seconds after which a connection is not used again; servers close theirs later."""

SMALL: Final = 512
"""Bytes that a slow reader takes at once."""

PAUSE: Final = 0.02
"""Seconds between two reads of a slow reader."""

_NARROW: Final = 4096
"""The receive buffer of a slow or stalled reader, so that the server notices it."""


@frozen
class Reply:
    """An answer: status and body."""

    status: int
    body: bytes = field(repr=False)

    def json(self) -> Any:  # noqa: ANN401
        """Return the body as JSON; raises `Violation` if it is none."""
        try:
            return orjson.loads(self.body)
        except ValueError:
            raise Violation(f"an answer is not JSON: {self.body[:200]!r}") from None

    def sentence(self) -> str:
        """Return what a refusal says, for people."""
        try:
            said = orjson.loads(self.body)
            text = ": ".join(filter(None, (said.get("message"), said.get("detail"))))
        except (ValueError, AttributeError):
            text = self.body[:200].decode(errors="replace").strip()
        return f"{self.status} {text}".strip()


@define(eq=False)
class Target:
    """The server under test, and the workspace in it. Made by `open_target`."""

    address: Address
    native: bool
    patience: float
    dial: Dial = field(repr=False)
    http: HttpClient = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    client_id: str
    base: str = field(default="", init=False)
    """The path of the workspace."""

    @property
    def origin(self) -> Origin:
        """The origin that requests name."""
        if isinstance(self.address, UnixAddress):
            return Origin("localhost", 80, secure=False)
        return Origin(self.address.host, self.address.port, secure=self.address.secure)

    async def ask(self, method: str, path: str, body: object = None) -> Reply:
        """Send a request and return the answer; a lost connection is a `Violation`."""
        with trio.move_on_after(self.patience):
            try:
                async with self.http.open(self.request(method, path, body)) as response:
                    return Reply(response.status, await response.read(ANSWER_MOST))
            except NetworkError as exc:
                raise Violation(f"{method} {path}: the connection was lost ({exc})") from exc
        raise Violation(f"{method} {path}: no answer within {self.patience:g} s")

    async def tell(self, method: str, path: str, body: object = None) -> Any:  # noqa: ANN401
        """Send a request that must succeed; return its JSON, or None if there is none."""
        reply = await self.ask(method, path, body)
        if not 200 <= reply.status < 300:
            raise Violation(f"{method} {path}: {reply.sentence()}")
        return reply.json() if reply.body else None

    def request(self, method: str, path: str, body: object = None) -> Request:
        """Return a request."""
        kind = {} if body is None else {"content-type": "application/json"}
        content = b"" if body is None else orjson.dumps(body)
        headers = {**self.headers, **kind}
        return Request(
            method=method, origin=self.origin, target=path, headers=headers, body=content
        )

    async def hang_up(self, path: str, body: object, share: float = 1.0) -> None:
        """Send that *share* of a POST with *body*, and close the connection without reading."""
        data = orjson.dumps(body)
        named = {"host": self.origin.name, **self.headers, "content-type": "application/json"}
        fields = {**named, "content-length": str(len(data))}
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        whole = f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + data
        left = len(whole) - round(len(data) * (1 - share))
        try:
            with trio.fail_after(self.patience):
                stream = await self.dial(self.origin)
                assert not isinstance(stream, ViaProxy)
                async with stream:
                    await stream.send_all(whole[:left])
        except (NetworkError, trio.BrokenResourceError, trio.TooSlowError) as exc:
            raise Violation(f"POST {path}: it could not be sent ({exc!r})") from exc


@asynccontextmanager
async def open_target(
    address: Address,
    dial: Dial,
    client_id: str,
    *,
    native: bool,
    token: str = "",
    patience: float = 60.0,
) -> AsyncIterator[Target]:
    """Open a target; nothing is sent yet."""
    headers = {"authorization": f"Bearer {token}"} if token else {}
    async with open_http_client(dial, idle_most=16, idle_limit=IDLE_LIMIT) as http:
        yield Target(address, native, patience, dial, http, headers, client_id)


# ── Readers ─────────────────────────────────────────────────────────────────────────────────────


@define(eq=False)
class Reader:
    """A reader of the workspace's events, over all its connections."""

    target: Target
    slow: bool = False
    view: View = field(init=False)
    broken: Violation | None = field(default=None, init=False)
    over: bool = field(default=False, init=False)
    """Whether the server, or the network, has ended the last connection."""
    stalled: trio.Event = field(factory=trio.Event, init=False)
    """Reading waits for this event."""
    on_ending: Callable[[str, str], None] | None = field(default=None, init=False)
    """Called with each ending, before anybody who waits sees it."""
    _attached: bool = field(default=False, init=False)
    _changed: trio.lowlevel.ParkingLot = field(factory=trio.lowlevel.ParkingLot, init=False)

    def __attrs_post_init__(self) -> None:
        self.view = View(self.target.native)
        self.stalled.set()

    async def visit(
        self, most: float = inf, task_status: "trio.TaskStatus[None]" = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Connect, and read *most* events or until the stream ends. It is started when it is attached."""
        await trio.lowlevel.checkpoint()
        self.over = self._attached = False

        def attached() -> None:
            self._attached = True
            task_status.started()

        try:
            await self._read(most, attached)
        except Violation as exc:
            self.broken = exc
        except NetworkError:
            pass  # a stream may be cut; what was missed is noticed elsewhere
        self.over = True
        self._changed.unpark_all()
        if not self._attached:
            task_status.started()  # those who wait on this reader are told

    async def _read(self, most: float, attached: Callable[[], None]) -> None:
        target = self.target
        form = {"form": "native"} if target.native else {}
        query = urlencode({"client_id": target.client_id, **form})
        resume = {"last-event-id": self.view.place} if self.view.place else {}
        request = target.request("GET", f"{target.base}/events?{query}")
        headers = {**request.headers, "accept": "text/event-stream", **resume}
        request = Request(
            method="GET", origin=request.origin, target=request.target, headers=headers
        )
        size = SMALL if self.slow else 65536
        dial = _narrowed(target.dial) if self.slow else target.dial
        async with open_http_client(dial, read_most=size) as http:
            with trio.move_on_after(target.patience) as scope:
                async with http.open(request) as response:
                    scope.deadline = inf
                    if response.status != 200:
                        raise Violation(f"the event stream was answered with {response.status}")
                    attached()
                    await self._take(response, self.view.heard + most)
            if scope.cancelled_caught:
                raise Violation(f"the event stream was not answered within {target.patience:g} s")

    async def _take(self, response: Response, upto: float) -> None:
        await trio.lowlevel.checkpoint()
        decoder = SseDecoder(EVENT_MOST)
        while self.view.heard < upto:
            await self.stalled.wait()
            if self.slow:
                await trio.sleep(PAUSE)
            data = await response.receive()
            if not data:
                return
            known = len(self.view.endings)
            for event in decoder.feed(data):
                if self.view.apply(event) or event.name == "ready":
                    self._changed.unpark_all()
            for name in list(self.view.endings)[known:]:
                if self.on_ending is not None:
                    self.on_ending(name, self.view.endings[name])

    async def attach(self, nursery: trio.Nursery) -> None:
        """Connect, and read in *nursery*. A native reader then knows a place from which it can resume."""
        await nursery.start(self.visit)
        if self.view.native:
            await self.until(
                "the stream gave no place to resume from", lambda: bool(self.view.place)
            )

    async def until(self, what: str, done: Callable[[], bool]) -> None:
        """Wait until *done*; raise `Violation` if the stream ends, breaks, or is silent for too long."""
        await trio.lowlevel.checkpoint()
        while True:
            if self.broken is not None:
                raise self.broken
            if done():
                return
            if self.over:
                raise Violation(f"{what}: the event stream ended before")
            with trio.move_on_after(self.target.patience) as scope:
                await self._changed.park()
            if scope.cancelled_caught:
                quiet = f"nothing came on the event stream for {self.target.patience:g} s"
                raise Violation(f"{what}: {quiet}")


def _narrowed(dial: Dial) -> Dial:
    """Return *dial* with a small receive buffer, so that a reader that waits stops the server's writes."""

    async def narrow(origin: Origin) -> trio.abc.Stream | ViaProxy:
        stream = await dial(origin)
        if isinstance(stream, trio.SocketStream):
            stream.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_RCVBUF, _NARROW)
        return stream

    return narrow
