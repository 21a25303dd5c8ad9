"""Attached clients: a `Witness`, which parses the event stream, and a `Crowd`, which counts bytes.

The witness parses every frame and records times. A crowd is up to hundreds of connections that are
read by one task: it counts bytes and searches for the last frame of a run, without parsing, so that
on a machine with two cores the measurement waits for the server and not for its clients.
"""

import select
import socket
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Final

import h11
import trio
from attrs import define, field
from trio.lowlevel import ParkingLot

from benchmarks.driver.frames import NATIVE, Ended, Grew, Reader
from benchmarks.driver.http import Place, UnexpectedStatus

_READ: Final = 262144
_BACKLOG: Final = 4 * 1024 * 1024
"""The receive buffer of a client, in bytes: large, so that a slow crowd does not slow the server down."""

_LAST_WORD: Final = {NATIVE: b'"completed"', "crush": b"run_complete"}
"""Text that only the last frame of a completed run contains."""


async def _attach(place: Place, target: str) -> tuple[trio.SocketStream, h11.Connection]:
    """Open an event stream; return after the head of the answer."""
    sock = trio.socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BACKLOG)
    await sock.connect((place.host, place.port))
    stream, http = trio.SocketStream(sock), h11.Connection(h11.CLIENT)
    headers = [("Host", place.authority), ("Accept", "text/event-stream"), *place.login]
    asked = http.send(h11.Request(method="GET", target=target, headers=headers)) or b""
    await stream.send_all(asked + (http.send(h11.EndOfMessage()) or b""))
    while (event := http.next_event()) is h11.NEED_DATA:
        http.receive_data(bytes(await stream.receive_some(_READ)))
    if not isinstance(event, h11.Response) or event.status_code != 200:
        await stream.aclose()
        raise UnexpectedStatus(f"GET {target}: {event}")
    return stream, http


# ── The witness ─────────────────────────────────────────────────────────────────────────────────


@define(eq=False)
class Witness:
    """Records when each run ends and when a session's answer has its first text."""

    form: str
    _stream: trio.SocketStream
    _http: h11.Connection
    endings: dict[str, list[tuple[float, str]]] = field(factory=dict, init=False)
    """The endings of each run by the caller's id: time and state. There should be one."""
    received: int = field(default=0, init=False)
    """The number of bytes received."""
    texts: dict[str, str] = field(factory=dict, init=False)
    """The newest answer of each session."""
    _first: dict[str, float] = field(factory=dict, init=False)
    reader: Reader = field(init=False)
    _moved: ParkingLot = field(factory=ParkingLot, init=False)

    def __attrs_post_init__(self) -> None:
        self.reader = Reader(self.form)

    async def greeted(self, limit: float) -> bool:
        """Wait for `ready`, with which a native stream begins; return whether it came in time."""
        with trio.move_on_after(limit):
            while not self.reader.greeted:
                await self._moved.park()
        return self.reader.greeted

    def expect_text(self, session_id: str) -> None:
        """Forget the last answer of a session, so that the next text counts as the first one."""
        self._first.pop(session_id, None)
        self.texts.pop(session_id, None)

    async def first_text(self, session_id: str) -> float:
        """Wait for the first text since `expect_text`; return when it came."""
        while session_id not in self._first:
            await self._moved.park()
        return self._first[session_id]

    async def ended(self, run_id: str) -> tuple[float, str]:
        """Wait until a run has ended; return when that arrived, and the state."""
        while run_id not in self.endings:
            await self._moved.park()
        return self.endings[run_id][0]

    async def listen(self) -> None:
        """Read until the server ends the stream."""
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                data = bytes(await self._stream.receive_some(_READ))
                self._http.receive_data(data)
            elif isinstance(event, h11.Data):
                self._take(bytes(event.data), trio.current_time())
            else:
                return

    def _take(self, data: bytes, now: float) -> None:
        self.received += len(data)
        for told in self.reader.feed(data):
            match told:
                case Grew(session_id=session_id, text=text):
                    self._first.setdefault(session_id, now)
                    self.texts[session_id] = text
                case Ended(run_id=run_id, state=state):
                    self.endings.setdefault(run_id, []).append((now, state))
        self._moved.unpark_all()


@asynccontextmanager
async def open_witness(place: Place, target: str, form: str) -> AsyncIterator[Witness]:
    """Attach a witness during the block."""
    stream, http = await _attach(place, target)
    async with stream, trio.open_nursery() as nursery:
        witness = Witness(form, stream, http)
        nursery.start_soon(witness.listen)
        try:
            yield witness
        finally:
            nursery.cancel_scope.cancel()


# ── The crowd ───────────────────────────────────────────────────────────────────────────────────


@define(eq=False)
class Seat:
    """One client of a crowd: the bytes it got, and whether it got the last frame."""

    sock: socket.socket
    received: int = field(default=0, init=False)
    done: bool = field(default=False, init=False)
    tail: bytes = field(default=b"", init=False)


@define(eq=False)
class Crowd:
    """Clients that only count bytes. One task reads all of them, with an epoll of its own."""

    form: str
    seats: dict[int, Seat]
    _poll: select.epoll
    _left: int = field(default=0, init=False)
    _all_done: trio.Event = field(factory=trio.Event, init=False)
    _space: bytearray = field(factory=lambda: bytearray(_READ), init=False)

    def expect_ending(self) -> None:
        """Start counting at zero for the next run."""
        for seat in self.seats.values():
            seat.received, seat.done, seat.tail = 0, False, b""
        self._left, self._all_done = len(self.seats), trio.Event()

    async def all_done(self) -> None:
        """Wait until every client has the last frame of the run."""
        if self._left:
            await self._all_done.wait()

    async def listen(self) -> None:
        """Read until the block that opened the crowd is left."""
        while True:
            await trio.lowlevel.wait_readable(self._poll.fileno())
            for number, _ in self._poll.poll(0):
                self._read(self.seats[number])

    def _read(self, seat: Seat) -> None:
        count = seat.sock.recv_into(self._space)
        if not count:
            self._poll.unregister(seat.sock)
            return
        seat.received += count
        if not seat.done and self._hears(seat, count):
            seat.done = True
            self._left -= 1
            if not self._left:
                self._all_done.set()

    def _hears(self, seat: Seat, count: int) -> bool:
        """Whether the text of the last frame is in what was just read, or across its beginning."""
        word = _LAST_WORD[self.form]
        across = seat.tail + self._space[: min(count, len(word))]
        seat.tail = bytes(self._space[max(0, count - len(word)) : count])
        return word in across or self._space.find(word, 0, count) >= 0


@asynccontextmanager
async def open_crowd(place: Place, targets: Iterable[str], form: str) -> AsyncIterator[Crowd]:
    """Attach one client per target during the block."""
    poll, seats = select.epoll(), dict[int, Seat]()
    try:
        for target in targets:
            stream, _ = await _attach(place, target)
            sock = socket.socket(
                fileno=stream.socket.detach()
            )  # read by the crowd's epoll from here on
            sock.setblocking(False)
            seats[sock.fileno()] = Seat(sock)
            poll.register(sock, select.EPOLLIN)
        async with trio.open_nursery() as nursery:
            crowd = Crowd(form, seats, poll)
            nursery.start_soon(crowd.listen)
            yield crowd
            nursery.cancel_scope.cancel()
    finally:
        poll.close()
        for seat in seats.values():
            seat.sock.close()
