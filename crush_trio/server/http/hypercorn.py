"""A connection that Hypercorn accepted, made safe: it can always be ended, and harms nobody else.

Under `hypercorn -k trio` Hypercorn speaks HTTP; this file owns what its worker leaves to the good
will of the client. (Our own server accepts connections itself: `server.http1`.)

* Writes are those of `server.outgoing`. As shipped, one client that stops reading keeps the whole
  server from stopping.
* What comes after a response (the idle timer, the close) happens, although Quart-Trio cancels the
  very task that is doing it.
* Whatever fails in a connection is logged and stays there. As shipped, one malformed request can
  end the server.
* A connection that carries a stream does nothing else, see `streaming.begin_stream`.
* There are no more connections than allowed, and the first request on one has to arrive in its time
  (`server.admission`). What a worker has accepted when it is full is refused here.

The names taken from Hypercorn and h11 are few and tested for, and their versions are pinned.
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
from crush_trio.server.http.acceptor import refuse
from crush_trio.server.http.admission import Admission, Stage
from crush_trio.server.http.outgoing import CARRIER, SEND_LIMIT, Outgoing, SendNow, StreamNeedsHttp1
from crush_trio.server.logging import places

OWN_WORKER: Final = "crush_trio.own_worker"
"""The key in the scope of a lifespan that says that our own server is serving."""

_ADMISSION: Final = "crush_trio.admission"
"""The key in the state of a lifespan under which the connections of its worker are kept."""

_lifespans: Final[set[object]] = set()

log = logging.getLogger(__name__)


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
        super().__init__(app, config, context, {**state, CARRIER: self}, stream)
        admission = state.get(_ADMISSION) or Admission()
        self._seat = admission.admit(_descriptor(stream))
        self._life = trio.CancelScope() if self._seat is None else self._seat.life
        self._outgoing = Outgoing(stream, self._life, send_limit)
        self._parsing = trio.CancelScope()
        self._deaf = False
        self._served = False
        """Whether there has been a request."""
        self._answering = False

    @override
    async def run(self) -> None:
        """Serve until the connection ends, and leave it closed; one too many is told so."""
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

        The last two are over in no time whatever the client does, so the shield costs nothing.
        Without it the timer would never start: Quart-Trio takes the end of the request for the
        client's departure, and cancels the task that is on its way here.
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
        """Note that something has arrived: while it is being looked at, the client is not waited for."""
        assert self._seat is not None
        self._seat.move(Stage.BUSY)

    def _note_rest(self) -> None:
        """Note what is waited for if that made no request. Of HTTP/2, only the first can be told."""
        assert self._seat is not None
        if not self._answering:
            self._seat.move(Stage.IDLE if self._served else Stage.HEAD)

    def begin_stream(self) -> SendNow:
        """Serve the current response until it ends, then close; listen for the hang-up only."""
        parser = self.protocol.protocol.connection
        if not isinstance(parser, h11.Connection):
            raise StreamNeedsHttp1
        parser.their_http_version = b"1.0"  # h11 then leaves the body as it is, to end with a close
        self._deaf = True
        if parser.trailing_data[0]:
            # The reader has met a second request and waits for its turn, which will not come.
            self._parsing.cancel()
        self._outgoing.limit_backlog()
        return self._outgoing.send_now

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
                self._look_at()
                with trio.CancelScope() as self._parsing:
                    await self.protocol.handle(RawData(bytes(data)))
                self._note_rest()
            if not data:
                break
        await self.protocol.handle(Closed())
        await self.idle_task.stop()  # else the connection would be kept for as long as an idle one


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
    connection = scope.get("state", {}).get(CARRIER)
    if not isinstance(connection, Connection):
        return None
    return Worker(
        stopping=connection.context.terminated.wait, grace=connection.config.graceful_timeout
    )


def safe_app(app: ASGIFramework, sizes: SizeLimits = DEFAULTS) -> ASGIFramework:
    """Wrap *app* to be served by `hypercorn -k trio`, which accepts connections itself.

    While the application's lifespan lasts, Hypercorn's worker makes connections of our kind; after
    it, nothing is left changed. A crash in the lifespan ends the worker, which would otherwise go
    on answering without the tasks that the application lives by. Our own server needs neither, so
    under it the wrapping does nothing. *sizes* limits the connections of such a worker.
    """

    async def wrapped(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        if scope["type"] != "lifespan" or OWN_WORKER in scope:
            await app(scope, receive, send)
            return
        state = cast("dict[str, Any]", scope).get("state")
        if state is not None:  # the worker makes of it what each connection is given
            state[_ADMISSION] = Admission(sizes)
        with _safe_worker():
            try:
                await app(scope, receive, send)
            except Exception as error:
                cause = _lone(error)
                if isinstance(cause, LifespanFailureError):
                    raise cause from None
                raise LifespanFailureError("serving", str(cause) or repr(cause)) from error

    return wrapped


def _descriptor(stream: trio.abc.Stream) -> int:
    """Return the descriptor of the socket of *stream*; 0 if it has none."""
    if isinstance(stream, trio.SSLStream):
        stream = stream.transport_stream
    return stream.socket.fileno() if isinstance(stream, trio.SocketStream) else 0


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
