"""`RpcConnection`: JSON-RPC with one language server, its framing, and the program at its other end.

One task reads and one writes, both in `RpcConnection.run`. No other task uses the stream, so a cancelled
request leaves no half-written message: its message is in the writer's queue, and so is the notification
that its answer is no longer wanted, which is queued without waiting.

Invariant: every request ends, by its answer, its time limit, its cancel, or the end of the connection.

A message is framed by a header with its length (`FrameDecoder`). The server may be broken, so header and
message have a maximum size, and memory is bounded.
"""

import math
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import count
from typing import Final, Protocol

import orjson
import trio
from attrs import define, field

from crush_trio.clock import Clock
from crush_trio.integrations.base import read_json
from crush_trio.tools.shell.output import BoundedOutput
from crush_trio.tools.shell.process import Command, open_process_group
from crush_trio.wire.fields import Json, JsonObject

CHUNK: Final = 64 * 1024

MAX_BACKLOG: Final = 64 * 1024 * 1024
"""Maximum bytes in the writer's queue. A peer that lets more accumulate does not read at all."""

METHOD_NOT_FOUND: Final = -32601


class LspFailure(Exception):
    """A request to a language server failed. The text is for people and models."""


class ConnectionLost(LspFailure):
    """The server has ended, or sends data that cannot be parsed."""


class RequestTimedOut(LspFailure):
    """The server did not answer in time."""


class RequestRefused(LspFailure):
    """The server answered with an error; `code` is its number, None if it has none."""

    def __init__(self, text: str, code: Json = None) -> None:
        super().__init__(text)
        self.code = code if isinstance(code, int) else None


class RpcTransport(Protocol):
    """The byte streams of a server. One task sends and one receives."""

    async def send_all(self, data: bytes, /) -> None:
        """Write all of *data*."""
        ...

    async def receive_some(self, max_bytes: int, /) -> bytes | bytearray:
        """Return the next bytes; empty at the end."""
        ...


class UnknownMethod(Exception):
    """Raised by `Peer.asked` for an unknown method."""


class Peer(Protocol):
    """Handles the notifications and requests of the server. Synchronous."""

    def notified(self, method: str, params: Json) -> None:
        """Handle a notification."""
        ...

    def asked(self, method: str, params: Json) -> Json:
        """Return the answer to a request; raises `UnknownMethod`."""
        ...


@define(eq=False)
class _Pending:
    """A request that waits for its answer; `answered` is also set when the connection is lost."""

    answered: trio.Event = field(factory=trio.Event)
    answer: JsonObject | None = None


@define(eq=False)
class RpcConnection:
    """One JSON-RPC connection; usable while `run` runs."""

    _transport: RpcTransport = field(repr=False)
    _peer: Peer = field(repr=False)
    backlog: int = MAX_BACKLOG
    lost: str = field(default="", init=False)
    """Why the connection was lost; empty while it works."""
    ended: trio.Event = field(factory=trio.Event, init=False, repr=False)
    _ids: "count[int]" = field(factory=lambda: count(1), init=False, repr=False)
    _waiting: dict[int, _Pending] = field(factory=dict, init=False, repr=False)
    _unwritten: int = field(default=0, init=False)
    _put: Callable[[bytes], None] = field(init=False, repr=False)
    _queue: trio.MemoryReceiveChannel[bytes] = field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        # Unbounded in messages, because sending must not wait; `_send` bounds the bytes.
        sending, self._queue = trio.open_memory_channel[bytes](math.inf)
        self._put = sending.send_nowait

    # ── Sending ─────────────────────────────────────────────────────────────────────────────────

    def notify(self, method: str, params: Json = None) -> None:
        """Queue a notification; does nothing if the connection is lost."""
        self._send(_message(method=method, params=params))

    async def request(self, method: str, params: Json = None, *, limit: float) -> Json:
        """Send a request and return its answer; raises `LspFailure`.

        After a cancel, or after *limit* seconds, the server is notified that the answer is not needed.
        """
        await trio.lowlevel.checkpoint()
        number, pending = next(self._ids), _Pending()
        self._waiting[number] = pending
        self._send(_message(id=number, method=method, params=params))
        try:
            with trio.move_on_after(limit):
                if not self.lost:
                    await pending.answered.wait()
        finally:
            del self._waiting[number]
            if pending.answer is None:
                self.notify("$/cancelRequest", {"id": number})
        return self._result(method, pending, limit)

    def _result(self, method: str, pending: _Pending, limit: float) -> Json:
        if pending.answer is None:
            if self.lost:
                raise ConnectionLost(self.lost)
            raise RequestTimedOut(f"{method} was not answered within {limit:g} seconds")
        error = pending.answer.get("error")
        if error is None:
            return pending.answer.get("result")
        given = error if isinstance(error, dict) else {"message": error}
        raise RequestRefused(f"{method}: {given.get('message')}", given.get("code"))

    def _send(self, message: JsonObject) -> None:
        if self.lost:
            return
        data = frame_message(orjson.dumps(message))
        self._unwritten += len(data)
        if self._unwritten > self.backlog:
            self._lose("it no longer reads what it is sent")
        else:
            self._put(data)

    # ── Receiving ───────────────────────────────────────────────────────────────────────────────

    async def run(self) -> None:
        """Read and write until the connection is lost; `lost` then says why. Raises no error."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write, nursery.cancel_scope)
                await self._read()
                nursery.cancel_scope.cancel()
        finally:
            self._lose("the connection was closed")
            self.ended.set()

    async def _write(self, both: trio.CancelScope) -> None:
        async for data in self._queue:
            try:
                await self._transport.send_all(data)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                self._lose("it has ended")
                both.cancel()
            self._unwritten -= len(data)

    async def _read(self) -> None:  # noqa: ASYNC910  # receiving is a checkpoint, also if it fails
        frames = FrameDecoder()
        try:
            while not self.lost and (data := await self._transport.receive_some(CHUNK)):
                for body in frames.feed(data):
                    self._take(read_json(body))
        except (FramingError, orjson.JSONDecodeError) as error:
            self._lose(f"it sent an invalid message: {error}")
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._lose("it has ended")
        self._lose("it has ended")

    def _take(self, message: Json) -> None:
        """Dispatch one message: a request, a notification or an answer; others are ignored."""
        if not isinstance(message, dict):
            return
        method, number = message.get("method"), message.get("id")
        if isinstance(method, str):
            if "id" in message:
                self._answer(number, method, message.get("params"))
            else:
                self._peer.notified(method, message.get("params"))
        elif isinstance(number, int) and (pending := self._waiting.get(number)) is not None:
            pending.answer = message
            pending.answered.set()

    def _answer(self, number: Json, method: str, params: Json) -> None:
        try:
            self._send({"jsonrpc": "2.0", "id": number, "result": self._peer.asked(method, params)})
        except UnknownMethod:
            error = {"code": METHOD_NOT_FOUND, "message": f"{method} is not known here"}
            self._send({"jsonrpc": "2.0", "id": number, "error": error})

    def _lose(self, why: str) -> None:
        """Record that the connection is lost, and wake all waiting requests."""
        self.lost = self.lost or why
        for pending in self._waiting.values():
            pending.answered.set()


def _message(**parts: Json) -> JsonObject:
    """Return a message without its empty parts: some servers reject null params."""
    return {"jsonrpc": "2.0", **{key: value for key, value in parts.items() if value is not None}}


HEADER_LIMIT: Final = 8 * 1024
"""Maximum bytes of a message's header. Real ones have fewer than a hundred."""

MESSAGE_LIMIT: Final = 32 * 1024 * 1024
"""Maximum bytes of a message."""

_END: Final = b"\r\n\r\n"
_LENGTH: Final = b"content-length"
_DIGITS: Final = 10


class FramingError(Exception):
    """The stream does not contain valid frames, or a message is too large. It cannot be read on."""


def frame_message(body: bytes) -> bytes:
    """Return *body* with its header."""
    return b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


@define(eq=False)
class FrameDecoder:
    """Splits a byte stream into messages. Unusable after a `FramingError`."""

    header_limit: int = HEADER_LIMIT
    message_limit: int = MESSAGE_LIMIT
    _buffer: bytearray = field(factory=bytearray, init=False, repr=False)
    _size: int | None = field(default=None, init=False)
    """The length of the message whose header has been read."""

    def feed(self, data: bytes | bytearray) -> Iterator[bytes]:
        """Add bytes, and yield the complete messages. Iterate to the end."""
        self._buffer += data
        while self._header_is_read() and self._size is not None:
            if len(self._buffer) < self._size:
                return
            body = bytes(self._buffer[: self._size])
            del self._buffer[: self._size]
            self._size = None
            yield body

    @property
    def within(self) -> bool:
        """Whether a message is incomplete."""
        return self._size is not None or bool(self._buffer)

    def _header_is_read(self) -> bool:
        if self._size is not None:
            return True
        end = self._buffer.find(_END, 0, self.header_limit + len(_END))
        if end < 0:
            if len(self._buffer) > self.header_limit:
                raise FramingError("a header without an end")
            return False
        self._size = self._length(bytes(self._buffer[:end]))
        del self._buffer[: end + len(_END)]
        return True

    def _length(self, header: bytes) -> int:
        """Return the content length of a header; other fields are ignored."""
        fields = [line.partition(b":") for line in header.split(b"\r\n")]
        lengths = {value.strip() for name, _, value in fields if name.strip().lower() == _LENGTH}
        if len(lengths) != 1:
            raise FramingError("a header without one length")
        [length] = lengths
        if not length.isdigit() or len(length) > _DIGITS or int(length) > self.message_limit:
            raise FramingError("a message that is too large, or has no length")
        return int(length)


# ── Programs ────────────────────────────────────────────────────────────────────────────────────


class RunningProgram(Protocol):
    """A running server program."""

    @property
    def transport(self) -> RpcTransport:
        """Its standard input and output."""
        ...

    def last_error(self) -> str:
        """Return the last error line it wrote; complete when its block has been left."""
        ...


OpenProgram = Callable[[Command], AbstractAsyncContextManager[RunningProgram]]
"""Opens a server program; leaving the block stops it. Raises `OSError` if it cannot be started."""

MAX_STDERR: Final = 8 * 1024
"""Maximum bytes kept of a server's standard error."""

MAX_LAST_ERROR: Final = 200
"""Maximum characters of it in a failure."""


@define(eq=False)
class ServerProgram:
    """A running server program. Satisfies `RunningProgram`."""

    transport: trio.StapledStream[trio.abc.SendStream, trio.abc.ReceiveStream]
    _complaints: BoundedOutput = field(repr=False)

    def last_error(self) -> str:
        """Return the last line of standard error that contains "error", else the last line."""
        lines = [line.strip() for line in self._complaints.text().split("\n") if line.strip()]
        errors = [line for line in lines if "error" in line.lower()]
        return (errors or lines or [""])[-1][:MAX_LAST_ERROR]


def program_opener(clock: Clock) -> OpenProgram:
    """Return a function that opens a server program, in a process group that ends with the block."""

    @asynccontextmanager
    async def opened(command: Command) -> AsyncIterator[ServerProgram]:
        complaints = BoundedOutput(MAX_STDERR)
        async with open_process_group(
            command,
            clock=clock,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=complaints,
        ) as group:
            assert group.stdin is not None
            assert group.stdout is not None
            yield ServerProgram(trio.StapledStream(group.stdin, group.stdout), complaints)

    return opened
