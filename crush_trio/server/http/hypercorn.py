"""Connections that Hypercorn accepted, made safe: each can always be ended, and harms no other.

Under `hypercorn -k trio` Hypercorn speaks HTTP. This module adds what its worker does not guard against.
(Our own server accepts connections itself, see `server.http.connection`.)

* Writes go through `server.http.outgoing`. As shipped, one client that stops reading keeps the whole
  server from stopping.
* What comes after a response (the idle timer, the close) happens, although Quart-Trio cancels the
  very task that is doing it.
* Requests that programs read in different ways are refused (`server.http.framing.StrictConnection`).
* What fails in a connection is logged and stays there. As shipped, one malformed request can end the
  server.
* A connection that carries a stream does nothing else, see `server.http.outgoing.begin_stream`.
* There are no more connections than allowed, and the first request on one must arrive in its time
  (`server.http.admission`). What a worker has accepted when it is full is refused here.

The names taken from Hypercorn and h11 are few and tested for, with the newest and the lowest versions allowed.
"""

import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from math import inf
from typing import Any, Final, cast

import h11
import hypercorn.trio.run as hypercorn_worker
import trio
from attrs import frozen
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData, Updated
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

from crush_trio.limits import DEFAULTS, SizeLimits
from crush_trio.server.http.admission import Admission, Stage, refuse
from crush_trio.server.http.framing import StrictConnection
from crush_trio.server.http.outgoing import CARRIER, SEND_LIMIT, Outgoing, SendNow, StreamNeedsHttp1
from crush_trio.server.http.peer import Peer
from crush_trio.server.logging import places

_ADMISSION: Final = "crush_trio.admission"
"""The key in the state of a lifespan under which the connections of its worker are kept."""

_lifespans: Final[set[object]] = set()

log = logging.getLogger(__name__)


class Connection(TCPServer):
    """Serves one client from accept to close; it always ends by returning.

    It ends when the client leaves, when the client has taken nothing for *send_limit* seconds, when it
    has been idle for the keep-alive time, or at once when it is cancelled. Hypercorn's `read_timeout`
    is not used, because a stream's client sends nothing.
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
        super().__init__(app, config, context, {**state, CARRIER: self}, stream)
        admission = state.get(_ADMISSION) or Admission()
        socket = _socket(stream)
        self.peer = Peer(socket)
        """The process at the other end of the connection."""
        self._seat = admission.admit(0 if socket is None else socket.fileno())
        self._life = trio.CancelScope() if self._seat is None else self._seat.life
        self._outgoing = Outgoing(stream, self._life, send_limit)
        self._parsing = trio.CancelScope()
        self._deaf = False
        self._served = False
        """Whether there has been a request."""
        self._answering = False

    @override
    async def run(self) -> None:
        """Serve until the connection ends, and close it; a connection over the limit is refused."""
        if self._seat is None:
            stream: trio.abc.Stream = self.stream
            if isinstance(stream, trio.SocketStream):
                refuse(stream)
            await trio.aclose_forcefully(stream)
            return
        self._life.deadline = trio.current_time() + self._seat.limits.head_time
        try:
            with self._life:
                await super().run()
        except* Exception as failures:  # noqa: BLE001 - the barrier between clients
            log.error("connection.failed", extra={"failures": sorted(places(failures))})  # noqa: TRY400
        finally:
            await trio.aclose_forcefully(self.stream)
            self._seat.leave()

    @override
    async def protocol_send(self, event: Event) -> None:
        """Do what the protocol asks for: send bytes, close, or start and stop the idle timer.

        The last two take no time whatever the client does, so the shield costs nothing. Without it
        the timer would never start: Quart-Trio takes the end of the request for a disconnect, and
        cancels the task that is about to start it.
        """
        if isinstance(event, RawData):
            async with self.send_lock:
                await self._outgoing.send(event.data)
        elif isinstance(event, Closed) or self._deaf:
            self._deaf = True
            self._note(Updated(idle=True))
            with trio.CancelScope(shield=True):
                await self._outgoing.hang_up()
            await self.protocol.handle(Closed())
        else:
            if isinstance(event, Updated):
                self._note(event)
            with trio.CancelScope(shield=True):
                await super().protocol_send(event)

    def _note(self, event: Updated) -> None:
        """Note whether a request is being answered; the first one has then arrived in time."""
        assert self._seat is not None
        if not event.idle and not self._served:
            self._served, self._life.deadline = True, inf
        self._answering = not event.idle
        self._seat.move(Stage.IDLE if event.idle else Stage.BUSY)

    def _look_at(self) -> None:
        """Note that data has arrived: while it is being parsed, the server does not wait for the client."""
        assert self._seat is not None
        self._seat.move(Stage.BUSY)

    def _note_rest(self) -> None:
        """Note what is waited for if that made no request. For HTTP/2, only the first one is known."""
        assert self._seat is not None
        if not self._answering:
            self._seat.move(Stage.IDLE if self._served else Stage.HEAD)

    def begin_stream(self) -> SendNow:
        """Serve the current response until it ends, then close; read only to notice a disconnect."""
        parser = self.protocol.protocol.connection
        if not isinstance(parser, h11.Connection):
            raise StreamNeedsHttp1
        parser.their_http_version = b"1.0"  # h11 then leaves the body as it is, to end with a close
        self._deaf = True
        if parser.trailing_data[0]:
            # The reader has parsed a second request and waits to handle it, which will not happen.
            self._parsing.cancel()
        self._outgoing.limit_backlog()
        return self._outgoing.send_now

    # ── Reading ─────────────────────────────────────────────────────────────────────────────────

    @override
    async def _read_data(self) -> None:
        """Pass on what the client sends while it matters, and notice when it disconnects."""
        self._parse_strictly()
        while True:
            try:
                data = await self.stream.receive_some(MAX_RECV)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                break
            if not self._deaf:
                self._look_at()
                with trio.CancelScope() as self._parsing:
                    await self.protocol.handle(RawData(bytes(data)))
                self._note_rest()
            if not data:
                break
        await self.protocol.handle(Closed())
        await self.idle_task.stop()  # otherwise the connection is kept for the idle time

    def _parse_strictly(self) -> None:
        """Have requests parsed as by our own server. HTTP/2 has its own parser and other rules."""
        protocol = self.protocol.protocol
        if isinstance(protocol.connection, h11.Connection):
            protocol.connection = StrictConnection(self.config.h11_max_incomplete_size)


# ── Under Hypercorn's own worker ────────────────────────────────────────────────────────────────


@frozen(kw_only=True)
class Worker:
    """What a request can know about the worker that serves it."""

    stopping: Callable[[], Awaitable[None]]
    """Waits until the worker has stopped accepting connections and waits for those it has."""
    grace: float
    """Seconds after which it cuts them off."""


def worker_of(scope: Mapping[str, Any]) -> Worker | None:
    """Return the worker that serves the request *scope*; None under a server without `Connection`.

    ASGI tells an application about the shutdown only when all connections have ended, too late to end
    its streams. The worker tells its connections at once.
    """
    connection = scope.get("state", {}).get(CARRIER)
    if not isinstance(connection, Connection):
        return None
    return Worker(
        stopping=connection.context.terminated.wait, grace=connection.config.graceful_timeout
    )


def safe_app(app: ASGIFramework, sizes: SizeLimits = DEFAULTS) -> ASGIFramework:
    """Wrap *app* to be served by `hypercorn -k trio`, which accepts connections itself.

    Its lifespan runs inside `safe_worker`. Under our own server the wrapping has no effect.
    """

    async def wrapped(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        if scope["type"] != "lifespan":
            await app(scope, receive, send)
            return
        with safe_worker(scope, sizes):
            await app(scope, receive, send)

    return wrapped


@contextmanager
def safe_worker(scope: Scope, sizes: SizeLimits = DEFAULTS) -> Iterator[None]:
    """Have Hypercorn's worker make connections of our kind, for the length of a lifespan.

    *scope* is the lifespan's, and *sizes* limits the worker's connections. Nothing stays changed after
    it. A crash in the block ends the worker, which would otherwise go on answering without the tasks
    that the application depends on.

    The class's name belongs to the process, and lifespans need not end in the order in which they
    began: the last to end restores what was there.
    """
    state = cast("dict[str, Any]", scope).get("state")
    if state is not None:  # the worker gives each connection a copy of it
        state[_ADMISSION] = Admission(sizes)
    names, lifespan = vars(hypercorn_worker), object()
    _lifespans.add(lifespan)
    names["TCPServer"] = Connection
    try:
        yield
    except Exception as error:
        cause = _lone(error)
        if isinstance(cause, LifespanFailureError):
            raise cause from None
        raise LifespanFailureError("serving", str(cause) or repr(cause)) from error
    finally:
        _lifespans.discard(lifespan)
        if not _lifespans:
            names["TCPServer"] = TCPServer


def _socket(stream: trio.abc.Stream) -> trio.socket.SocketType | None:
    """Return the socket of *stream*; None if it has none."""
    if isinstance(stream, trio.SSLStream):
        stream = stream.transport_stream
    return stream.socket if isinstance(stream, trio.SocketStream) else None


def _lone(error: Exception) -> Exception:
    """Return the single exception that nurseries wrapped into groups; *error* itself if there are several."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
