"""The sending half of a connection, and how a connection is handed over to a stream.

* Every write has a time limit and can be cancelled: a client that stops reading is given up after a
  while, and cannot keep the server from stopping until then.
* A write that was cut short ends the connection: half a frame may be out, and what follows would be
  read as its other half.

The server puts a `Carrier` into the scope of each request. A route that is about to answer with a stream
calls `begin_stream`, whichever server it runs under.
"""

import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final, Protocol, runtime_checkable

import trio
from attrs import define

from crush_trio.errors import BadRequest

CARRIER: Final = "crush_trio.carrier"
"""The key in the state of a request's scope under which its server leaves the `Carrier`."""

_STREAMABLE: Final = {"1.0", "1.1"}

SendNow = Callable[[bytes], int]
"""Sends what can be sent without waiting, and returns how many bytes that was.

Everything before must have been sent, and what it did not take must be sent next.
"""


@runtime_checkable
class Carrier(Protocol):
    """A connection with a request on it that can be handed over to a stream."""

    def begin_stream(self) -> SendNow:
        """Serve the answer that is about to start until it ends, and no request after it."""
        ...


class StreamNeedsHttp1(BadRequest):
    """A stream was asked for over HTTP/2, where the server would buffer without limit."""

    code = "http_version_unsupported"
    message = "event streams are served over HTTP/1.1 only"


def begin_stream(scope: Mapping[str, Any]) -> SendNow:
    """Hand the connection of the request *scope* over to the response that is about to start.

    The response is sent without chunks, and ends with the connection: a client then takes even a crash
    of this process for the end of the stream, and reconnects. What the client still sends is dropped,
    so that a request sent too early cannot hide a disconnect. Call this last, when nothing but the
    stream can be the answer. Raises `StreamNeedsHttp1` for other versions of HTTP; does nothing else
    under a server other than ours.

    Once the first piece of the response is sent, the returned function sends the following ones without
    the framework.
    """
    version = scope["http_version"]
    if version not in _STREAMABLE:
        raise StreamNeedsHttp1(f"this request came over HTTP/{version}")
    carrier = scope.get("state", {}).get(CARRIER)
    if not isinstance(carrier, Carrier):
        return send_nothing_now
    send_now = carrier.begin_stream()
    return send_nothing_now if scope["method"] == "HEAD" else send_now


def send_nothing_now(_data: bytes) -> int:
    """Send nothing; the framework sends everything."""
    return 0


SEND_LIMIT: Final = 30.0
"""Seconds without progress after which a client that does not read is given up."""

BACKLOG: Final = 16 * 1024
"""Bytes of a stream that the kernel may hold, unsent, for a client that does not read.

The default is up to 4 MB for each.
"""

LINGER: Final = 1.0
"""Seconds a client has to close its side once we have closed ours."""


@define(eq=False)
class Outgoing:
    """The sending half of a connection. Its user sends one thing at a time.

    It shares the *life* of the connection with the receiving half: when sending has failed, the
    connection has no purpose left, and its life is cancelled.
    """

    stream: trio.abc.Stream
    life: trio.CancelScope
    limit: float = SEND_LIMIT

    async def send(self, data: bytes) -> None:  # noqa: ASYNC910 - what fits is not waited for
        """Send all of *data*, or end the connection; the caller goes on as if it had been sent.

        After a failure nothing more goes out, also from behind a shield.
        """
        if self.life.cancel_called:
            return  # noqa: ASYNC910 - a caller that sends in a loop waits for something else in it
        try:
            await self._send(data)
        except (trio.TooSlowError, trio.BrokenResourceError, trio.ClosedResourceError, OSError):
            self.life.cancel()
            await trio.lowlevel.checkpoint()
        except trio.Cancelled:
            self.life.cancel()
            raise

    async def _send(self, data: bytes) -> None:  # noqa: ASYNC910 - what fits is not waited for
        """Write at once what fits, and the rest piece by piece, each within the limit.

        The limit is on the pause and not on the size, so that a slow client may take a large answer.
        Nearly always everything fits, and setting up a deadline would double the cost.
        """
        if not isinstance(self.stream, trio.SocketStream):
            with trio.fail_after(self.limit):
                await self.stream.send_all(data)
            return
        unsent = memoryview(data)[_write(self.stream, data) :]
        while unsent:
            with trio.fail_after(self.limit):
                sent = await self.stream.socket.send(unsent)
            unsent = unsent[sent:]

    def send_now(self, data: bytes) -> int:
        """Send what the kernel takes of *data* without waiting; return how many bytes it took.

        The rest has to be sent next. Whatever is wrong with the connection is left to that.
        """
        if self.life.cancel_called or not isinstance(self.stream, trio.SocketStream):
            return 0
        try:
            return _write(self.stream, data)
        except OSError:
            return 0

    def limit_backlog(self) -> None:
        """Limit what the kernel holds for this client; for streams, which may be many and last long.

        For TCP the limit is on what was not sent yet. A system without the option is not limited.
        """
        if not isinstance(self.stream, trio.SocketStream):
            return
        sock = self.stream.socket
        with suppress(OSError, AttributeError):
            if sock.family == socket.AF_UNIX:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * BACKLOG)
            else:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, BACKLOG)

    async def hang_up(self) -> None:
        """Close our side, and give the client a moment to close its own.

        Closing both while the client is still sending would reset the connection, and the client might
        lose the answer that says why. The receiving half must drop what it sends until then. A stream
        that cannot close one side only, as under TLS, is closed.
        """
        self.life.deadline = min(self.life.deadline, trio.current_time() + LINGER)
        try:
            if isinstance(self.stream, trio.abc.HalfCloseableStream):
                await self.stream.send_eof()
            else:
                await self.stream.aclose()
        except (trio.BrokenResourceError, trio.ClosedResourceError, trio.BusyResourceError):
            self.life.cancel()
            await trio.lowlevel.checkpoint()


def _write(stream: trio.SocketStream, data: bytes) -> int:
    """Give the kernel what it takes of *data* without waiting; return how much that was."""
    if not data:
        return 0
    try:
        return os.write(stream.socket.fileno(), data)
    except BlockingIOError:
        return 0
