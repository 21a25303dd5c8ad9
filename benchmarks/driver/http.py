"""Requests to a server under test, over a connection that is kept.

With little overhead in the measured time: one connection, one exchange at a time, and the bytes of
a request are made before the clock is read.
"""

from typing import Final

import h11
import orjson
import trio
from attrs import define, field, frozen

from crush_trio.wire.fields import Json

KEPT_FOR: Final = 2.0
"""Seconds after which a connection is not used again: servers close idle ones after five."""

_READ: Final = 65536


@frozen
class Place:
    """The address of a server."""

    host: str
    port: int
    token: str = field(default="", repr=False)
    """What clients show; a server on the loopback interface needs none."""

    @property
    def login(self) -> list[tuple[str, str]]:
        """The headers that show the token."""
        return [("Authorization", f"Bearer {self.token}")] if self.token else []

    @property
    def authority(self) -> str:
        """Host and port, as the `Host` header has them."""
        return f"{self.host}:{self.port}"


@frozen
class Reply:
    """The answer to a request; when its first byte was sent, and how many seconds it took from there."""

    status: int
    body: bytes
    began: float
    seconds: float

    def json(self) -> Json:
        """Return the body as JSON."""
        return orjson.loads(self.body)


class UnexpectedStatus(Exception):
    """A server answered with a status that the workload does not expect."""


@define(eq=False)
class Caller:
    """One client's connection for requests. Not for several tasks at once."""

    place: Place
    _stream: trio.SocketStream | None = field(default=None, init=False)
    _http: h11.Connection = field(factory=lambda: h11.Connection(h11.CLIENT), init=False)
    _used: float = field(default=0.0, init=False)

    async def ask(
        self, method: str, target: str, body: object = None, *, expect: int | None = 200
    ) -> Reply:
        """Send a request and return its answer; raise `UnexpectedStatus` if it is not *expect*.

        With None for *expect*, any status will do.
        """
        stream = await self._connected()
        request = self._request(method, target, b"" if body is None else orjson.dumps(body))
        began = trio.current_time()
        await stream.send_all(request)
        status, answer = await self._answer(stream)
        self._used = trio.current_time()
        await self._keep_or_close()
        if expect is not None and status != expect:
            raise UnexpectedStatus(f"{method} {target}: {status} {answer[:200]!r}")
        return Reply(status, answer, began, self._used - began)

    async def connect(self) -> None:
        """Connect now, so that the next request is measured without it."""
        await self._connected()

    async def aclose(self) -> None:
        """Close the connection, if there is one."""
        if self._stream is not None:
            await self._stream.aclose()
            self._stream = None

    async def _connected(self) -> trio.SocketStream:
        if self._stream is not None and trio.current_time() - self._used < KEPT_FOR:
            return self._stream
        await self.aclose()
        self._stream = await trio.open_tcp_stream(self.place.host, self.place.port)
        self._http = h11.Connection(h11.CLIENT)
        self._used = trio.current_time()
        return self._stream

    async def _keep_or_close(self) -> None:
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
        else:
            await self.aclose()

    def _request(self, method: str, target: str, data: bytes) -> bytes:
        headers = [("Host", self.place.authority), ("Content-Length", str(len(data)))]
        headers += self.place.login
        if data:
            headers.append(("Content-Type", "application/json"))
        events: list[h11.Event] = [
            h11.Request(method=method, target=target, headers=headers),
            h11.Data(data=data),
            h11.EndOfMessage(),
        ]
        return b"".join(self._http.send(event) or b"" for event in events)

    async def _answer(self, stream: trio.SocketStream) -> tuple[int, bytes]:
        status, body = 0, bytearray()
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                self._http.receive_data(bytes(await stream.receive_some(_READ)))
            elif isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                return status, bytes(body)
