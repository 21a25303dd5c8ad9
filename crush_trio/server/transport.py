"""One client's connection, made safe: it can always be ended, and a bad client harms itself alone.

Hypercorn speaks HTTP; this file owns what its Trio worker leaves to the good will of the client.

* No write waits for ever, and none resists cancellation. As shipped, one client that stops reading
  keeps the whole server from stopping.
* A write that was cut short ends the connection: half a frame may be out, and what follows would be
  read as its other half.
* What comes after a response (the idle timer, the close) happens, although Quart-Trio cancels the
  very task that is doing it.
* Whatever fails in a connection is logged and stays there. As shipped, one malformed request can
  end the server.
* A connection that carries a stream does nothing else, see `begin_stream`.

The names taken from Hypercorn and h11 are few and tested for, and their versions are pinned.
"""

import logging
import os
import traceback
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import h11
import hypercorn.trio.run as hypercorn_worker
import trio
from attrs import frozen
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData
from hypercorn.trio.tcp_server import MAX_RECV, TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import (
    AppWrapper,
    ASGIFramework,
    ASGIReceiveCallable,
    ASGISendCallable,
    LifespanState,
    Scope,
)
from hypercorn.utils import LifespanFailureError
from typing_extensions import override

from crush_trio.errors import BadRequest

SEND_LIMIT: Final = 30.0
"""Seconds a client may take none of what we send before it is given up."""

LINGER: Final = 1.0
"""Seconds a client has to close its side once we have closed ours."""

OWN_WORKER: Final = "crush_trio.own_worker"
"""The key in the scope of a lifespan that says that our own server is serving."""

_CONNECTION: Final = "crush_trio.connection"
_STREAMABLE: Final = {"1.0", "1.1"}
_lifespans: Final[set[object]] = set()

log = logging.getLogger(__name__)


class StreamNeedsHttp1(BadRequest):
    """A stream was asked for over HTTP/2, where the server would buffer without limit."""

    code = "http_version_unsupported"
    message = "event streams are served over HTTP/1.1 only"


def begin_stream(scope: Mapping[str, Any]) -> None:
    """Give the connection of the request *scope* over to the response that is about to start.

    The response is sent as it comes, without chunks, and its end is the end of the connection: a
    client then takes even the death of this process for the end of the stream and connects again.
    What the client still sends is thrown away, so that a request sent too early cannot hide that it
    has hung up. Call this last, when nothing but the stream can be the answer. Raises
    `StreamNeedsHttp1` for other versions; does no more than that under a server other than ours.
    """
    version = scope["http_version"]
    if version not in _STREAMABLE:
        raise StreamNeedsHttp1(f"this request came over HTTP/{version}")
    connection = scope.get("state", {}).get(_CONNECTION)
    if isinstance(connection, Connection):
        connection.begin_stream()


class Connection(TCPServer):
    """Serves one client from accept to close; whatever happens to it, it ends by returning.

    It ends when the client leaves, when it has taken nothing for *send_limit* seconds, when it
    has been idle for the keep-alive time, or when it is cancelled, at once and whatever it was
    waiting for. Hypercorn's `read_timeout` is not used: a stream's client has nothing to say.
    """

    def __init__(
        self,
        app: AppWrapper,
        config: Config,
        context: WorkerContext,
        state: LifespanState,
        stream: trio.SSLStream[trio.SocketStream],
        *,
        send_limit: float = SEND_LIMIT,
    ) -> None:
        super().__init__(app, config, context, {**state, _CONNECTION: self}, stream)
        self._send_limit = send_limit
        self._life = trio.CancelScope()
        self._parsing = trio.CancelScope()
        self._deaf = False

    @override
    async def run(self) -> None:
        """Serve until the connection ends, and leave it closed."""
        try:
            with self._life:
                await super().run()
        except* Exception as failures:  # noqa: BLE001 - the barrier between clients
            # A traceback would show messages, and those can hold what the client sent: its token.
            log.error("connection.failed", extra={"failures": sorted(_places(failures))})  # noqa: TRY400
        finally:
            await trio.aclose_forcefully(self.stream)

    @override
    async def protocol_send(self, event: Event) -> None:
        """Do what the protocol asks for: send bytes, close, or start and stop the idle timer.

        The last two are over in no time whatever the client does, so the shield costs nothing.
        Without it the timer would never start: Quart-Trio takes the end of the request for the
        client's departure, and cancels the task that is on its way here.
        """
        if isinstance(event, RawData):
            await self._send(event.data)
        elif isinstance(event, Closed) or self._deaf:
            with trio.CancelScope(shield=True):
                await self._hang_up()
            await self.protocol.handle(Closed())
        else:
            with trio.CancelScope(shield=True):
                await super().protocol_send(event)

    def begin_stream(self) -> None:
        """Serve the current response until it ends, then close; listen for the hang-up only."""
        parser = self.protocol.protocol.connection
        if not isinstance(parser, h11.Connection):
            raise StreamNeedsHttp1
        parser.their_http_version = b"1.0"  # h11 then leaves the body as it is, to end with a close
        self._deaf = True
        if parser.trailing_data[0]:
            # The reader has met a second request and waits for its turn, which will not come.
            self._parsing.cancel()

    # ── Writing ─────────────────────────────────────────────────────────────────────────────────

    async def _send(self, data: bytes) -> None:
        """Send all of *data*, or end the connection: the protocol goes on as if it had been sent.

        After a failure nothing more goes out, also from behind a shield.
        """
        try:
            async with self.send_lock:
                if not self._life.cancel_called:
                    await self._write(data)
        except (trio.TooSlowError, trio.BrokenResourceError, trio.ClosedResourceError, OSError):
            self._life.cancel()
            await trio.lowlevel.checkpoint()
        except trio.Cancelled:
            self._life.cancel()
            raise

    async def _write(self, data: bytes) -> None:  # noqa: ASYNC910 - the caller's lock checkpoints
        """Write at once what fits, and the rest piece by piece, each within the limit.

        The limit is on silence and not on size, so that a slow client may take a large answer.
        Nearly always everything fits, and setting up a deadline would double the cost.
        """
        stream: trio.abc.SendStream = self.stream
        if not isinstance(stream, trio.SocketStream):
            with trio.fail_after(self._send_limit):
                await stream.send_all(data)
            return
        unsent = memoryview(data)[_write_now(stream, data) :]
        while unsent:
            with trio.fail_after(self._send_limit):
                sent = await stream.socket.send(unsent)
            unsent = unsent[sent:]

    async def _hang_up(self) -> None:
        """Say that no more will come, and leave the client a moment to close in its turn.

        Closing while the client is still sending would reset the connection, and the client might
        lose the answer that says why. What it sends until then is read and not kept.
        """
        self._deaf = True
        self._life.deadline = min(self._life.deadline, trio.current_time() + LINGER)
        try:
            await self.stream.send_eof()
        except (trio.BrokenResourceError, trio.ClosedResourceError, trio.BusyResourceError):
            self._life.cancel()
            await trio.lowlevel.checkpoint()

    # ── Reading ─────────────────────────────────────────────────────────────────────────────────

    @override
    async def _read_data(self) -> None:
        """Hand on what the client says while it matters, and notice when it leaves."""
        while True:
            try:
                data = await self.stream.receive_some(MAX_RECV)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                break
            if not self._deaf:
                with trio.CancelScope() as self._parsing:
                    await self.protocol.handle(RawData(bytes(data)))
            if not data:
                break
        await self.protocol.handle(Closed())
        await self.idle_task.stop()  # else the connection would be kept for as long as an idle one


def _places(error: BaseException) -> Iterator[str]:
    """Yield the kind and the line of code of each failure in *error*."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _places(inner)
    else:
        *_, last = traceback.extract_tb(error.__traceback__)
        yield f"{type(error).__name__} at {last.filename}:{last.lineno}"


def _write_now(stream: trio.SocketStream, data: bytes) -> int:
    """Give the kernel what it takes without waiting; return how much that was."""
    if not data:
        return 0
    try:
        return os.write(stream.socket.fileno(), data)
    except BlockingIOError:
        return 0


# ── Under Hypercorn's own worker ────────────────────────────────────────────────────────────────


@frozen(kw_only=True)
class Worker:
    """What a request can learn about the worker that serves it."""

    stopping: Callable[[], Awaitable[None]]
    """Waits until the worker has stopped to accept connections and waits for those it has."""
    grace: float
    """Seconds after which it cuts them off."""


def worker_of(scope: Mapping[str, Any]) -> Worker | None:
    """Return the worker that serves the request *scope*; None under a server without `Connection`.

    ASGI tells an application of the end only when all connections have ended, too late for streams
    that wait to be told. The worker tells its connections at once, and this is one of them.
    """
    connection = scope.get("state", {}).get(_CONNECTION)
    if not isinstance(connection, Connection):
        return None
    return Worker(
        stopping=connection.context.terminated.wait, grace=connection.config.graceful_timeout
    )


def safe_app(app: ASGIFramework) -> ASGIFramework:
    """Wrap *app* to be served by `hypercorn -k trio`, which accepts connections itself.

    While the application's lifespan lasts, Hypercorn's worker makes connections of our kind; after
    it, nothing is left changed. A crash in the lifespan ends the worker, which would otherwise go
    on answering without the tasks that the application lives by. Our own server needs neither, so
    under it the wrapping does nothing.
    """

    async def wrapped(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        if scope["type"] != "lifespan" or OWN_WORKER in scope:
            await app(scope, receive, send)
            return
        with _safe_worker():
            try:
                await app(scope, receive, send)
            except Exception as error:
                cause = _lone(error)
                if isinstance(cause, LifespanFailureError):
                    raise cause from None
                raise LifespanFailureError("serving", str(cause) or repr(cause)) from error

    return wrapped


def _lone(error: Exception) -> Exception:
    """Return what *error* was before nurseries wrapped it, if it was one thing."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


@contextmanager
def _safe_worker() -> Iterator[None]:
    """Put `Connection` where Hypercorn's worker looks for its class of connections.

    The name is the process's, and lifespans in it need not end in the order of their beginning: the
    last to end puts back what was there.
    """
    names, lifespan = vars(hypercorn_worker), object()
    _lifespans.add(lifespan)
    names["TCPServer"] = Connection
    try:
        yield
    finally:
        _lifespans.discard(lifespan)
        if not _lifespans:
            names["TCPServer"] = TCPServer
