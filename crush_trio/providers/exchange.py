"""One POST and its answer at a time, over connections that are used again.

HTTP/1.1 is h11's; what is added here is who owns a connection. While it is in use, the `async with`
that borrowed it does. Leaving that block puts the connection back if both sides are done with it, and
closes it in every other case: an error, a cancel, a reader who has had enough. Nothing else ever
holds one, so nothing has to be counted, and a thousand cancels leave nothing behind.

Why there is no HTTP library here: docs/decisions/006-providers.md.
"""

from collections.abc import AsyncIterator, Generator, Iterable, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from math import inf
from typing import Final

import h11
import trio
from attrs import define, field, frozen

from crush_trio.providers.dialing import Dial, Origin
from crush_trio.providers.errors import ProviderGarbled, ProviderRefused, ProviderUnreachable

IDLE_LIMIT: Final = 45.0
"""Seconds after which an unused connection is not trusted any more."""

IDLE_MOST: Final = 4
"""How many unused connections are kept for a server."""

SETTLE_LIMIT: Final = 0.1
"""Seconds that the end of a body may take after the answer in it is complete."""

HEAD_MOST: Final = 65536
"""Bytes that the head of a response may have."""

READ_MOST: Final = 16384
"""Bytes that are read at once. What is made of them is made in one go, and others wait meanwhile."""

Headers = Iterable[tuple[str, str]]


@define(eq=False)
class Connection:
    """One connection: a request out, a response in, and perhaps another."""

    _stream: trio.abc.Stream
    idle_since: float = field(default=inf, init=False)
    _http: h11.Connection = field(factory=lambda: h11.Connection(h11.CLIENT, HEAD_MOST), init=False)

    async def ask(self, target: str, headers: Headers, body: bytes) -> h11.Response:
        """Send a POST and return the head of the response; its body is to be received."""
        request = _request(target, headers)
        events = (request, h11.Data(data=body), h11.EndOfMessage())
        sent = b"".join(self._http.send(event) or b"" for event in events)
        with suppress(trio.BrokenResourceError):  # it may refuse before it has heard everything
            await self._stream.send_all(sent)
        while not isinstance(event := await self._event(), h11.Response):
            pass
        return event

    async def receive(self) -> bytes:
        """Return more of the body: all that has come of it, or what comes next; nothing at its end."""
        if self._http.their_state not in {h11.SEND_BODY, h11.ERROR}:
            await trio.lowlevel.checkpoint()
            return b""
        event = await self._event()
        said = bytearray(event.data if isinstance(event, h11.Data) else b"")
        with suppress(h11.RemoteProtocolError):  # the next call meets it, after what came before
            while isinstance(more := self._http.next_event(), h11.Data):
                said += more.data
        return bytes(said)

    async def settle(self) -> None:  # noqa: ASYNC910  # receiving is what waits
        """Receive what is left of a body that should be over, so that the connection is free.

        Whatever goes wrong here is of no consequence: the answer is complete.
        """
        with trio.move_on_after(SETTLE_LIMIT), suppress(ProviderUnreachable, ProviderGarbled):
            while await self.receive():
                pass

    @property
    def reusable(self) -> bool:
        """Whether both sides have said everything, nothing more, and mean to go on."""
        done = self._http.our_state is h11.DONE and self._http.their_state is h11.DONE
        return done and self._http.trailing_data == (b"", False)

    def rest(self) -> None:
        """Make ready for another request."""
        self._http.start_next_cycle()
        self.idle_since = trio.current_time()

    @property
    def stale(self) -> bool:
        """Whether an unused connection is too old, or has been closed by the other side.

        Nothing is due on it, so whatever there is to read can only be the end.
        """
        if trio.current_time() - self.idle_since > IDLE_LIMIT:
            return True
        stream = self._stream
        while isinstance(stream, trio.SSLStream):
            stream = stream.transport_stream
        return isinstance(stream, trio.SocketStream) and stream.socket.is_readable()

    async def aclose(self) -> None:
        """Close at once, without a word: the socket is closed even if this is cancelled."""
        await trio.aclose_forcefully(self._stream)

    async def _event(self) -> h11.Event:
        with _translated():
            if (event := self._http.next_event()) is not h11.NEED_DATA:
                await trio.lowlevel.checkpoint()
            while event is h11.NEED_DATA:
                self._http.receive_data(data := bytes(await self._stream.receive_some(READ_MOST)))
                event = self._http.next_event() if data else self._last_event()
        assert isinstance(event, h11.Event), "a client is never paused here"
        return event  # noqa: ASYNC910  # where there was no event, data was waited for

    def _last_event(self) -> h11.Event:
        """Return the event that the end of the stream completes, if it completes one."""
        try:
            event = self._http.next_event()
        except h11.RemoteProtocolError as exc:
            raise ProviderUnreachable("the connection was closed in the midst of it") from exc
        assert isinstance(event, h11.EndOfMessage)
        return event


def _request(target: str, headers: Headers) -> h11.Request:
    try:
        return h11.Request(method="POST", target=target, headers=list(headers))
    except (h11.LocalProtocolError, UnicodeEncodeError):
        # The text of these errors would repeat the header, which may be the key.
        raise ProviderRefused("a header or the URL has characters that cannot be sent") from None


@contextmanager
def _translated() -> Generator[None]:
    try:
        yield
    except trio.BrokenResourceError as exc:
        raise ProviderUnreachable("the connection broke") from exc
    except h11.RemoteProtocolError as exc:
        raise ProviderGarbled(f"this is not HTTP: {exc}") from exc


# ── Connections to one server ───────────────────────────────────────────────────────────────────


@define(eq=False)
class Connections:
    """The connections to one server that nobody uses now, and the way to more."""

    origin: Origin
    dial: Dial = field(repr=False)
    _keep: int = field(default=IDLE_MOST, init=False)
    _idle: list[Connection] = field(factory=list, init=False)

    @property
    def idle(self) -> int:
        """How many connections wait to be used again."""
        return len(self._idle)

    @asynccontextmanager
    async def borrow(self) -> AsyncIterator[Connection]:
        """Have a connection for a while. It is kept or closed when the block is left."""
        connection = await self._take()
        try:
            yield connection
        finally:
            if connection.reusable and len(self._idle) < self._keep:
                connection.rest()
                self._idle.append(connection)
            else:
                await connection.aclose()

    async def _take(self) -> Connection:
        """Return the connection that was used last, or a new one."""
        await trio.lowlevel.checkpoint()
        while self._idle:
            connection = self._idle.pop()
            if not connection.stale:
                return connection
            await connection.aclose()
        return Connection(await self.dial(self.origin))

    async def aclose(self) -> None:
        """Close what is unused, now and from now on. What is in use belongs to its user."""
        self._keep = 0
        await trio.lowlevel.checkpoint()
        while self._idle:
            await self._idle.pop().aclose()


@frozen(eq=False)
class Answer:
    """The response to a POST; `receive` it while the block that opened it lasts."""

    status: int
    headers: Mapping[str, str] = field(repr=False)
    _connection: Connection = field(repr=False)

    async def receive(self) -> bytes:
        """Return more of the body; nothing at its end."""
        return await self._connection.receive()


@asynccontextmanager
async def open_answer(
    connections: Connections, target: str, headers: Headers, body: bytes
) -> AsyncIterator[Answer]:
    """Send a POST, and have its answer for as long as the block lasts."""
    own = [("host", connections.origin.name), ("content-length", str(len(body)))]
    async with connections.borrow() as connection:
        head = await connection.ask(target, [*own, *headers], body)
        said = {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers}
        yield Answer(head.status_code, said, connection)
        await connection.settle()
