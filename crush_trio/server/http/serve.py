"""`serve`: serve an ASGI application until told to stop, then stop in bounded time whatever clients do.

`serve` accepts connections itself, so that it controls the order of the shutdown:

1. the socket files are removed and the sockets close: no new client gets in, and a successor may start;
2. the application is told, so that its streams can send their last event and end;
3. idle connections close at once, busy ones as soon as they have answered;
4. after the grace everything else is cut off;
5. the application's lifespan ends.

`serve` runs inside its caller's nursery and starts nothing outside of it. A crash in the application's
own tasks ends it, and is raised to the caller.
"""

import logging
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Final, cast

import trio

from crush_trio.errors import CrushError
from crush_trio.limits import DEFAULTS, SizeLimits
from crush_trio.net.address import Address
from crush_trio.nursery import Interrupt, open_hidden_nursery
from crush_trio.server.http.admission import Acceptor, Admission, open_acceptor
from crush_trio.server.http.connection import Terms, serve_connection
from crush_trio.server.http.outgoing import SEND_LIMIT
from crush_trio.server.http.sockets import OWNER_ONLY, Listening, SocketAccess, open_listeners

if TYPE_CHECKING:
    from hypercorn.typing import (
        ASGIFramework,
        ASGIReceiveEvent,
        ASGISendEvent,
        LifespanScope,
        LifespanState,
    )

GRACE: Final = 3.0
"""Seconds that requests under way have to end once the server stops."""

KEEP_ALIVE: Final = 120.0
"""Seconds a connection may be idle, or a client may pause within a request.

Longer than clients keep an idle connection: the Go program's library does so for 90 s, and does not
repeat a request that is sent in the moment in which we close the connection.
"""

_LIFESPAN_LIMIT: Final = 0.5

log = logging.getLogger(__name__)


class LifespanFailed(CrushError):
    """The application could not start, or failed to stop; the detail is the application's message."""

    code = "lifespan_failed"
    message = "the application reported a failure"


async def serve(
    app: "ASGIFramework",
    addresses: Sequence[Address],
    *,
    shutdown: Callable[[], Awaitable[object]],
    on_draining: Callable[[], None] | None = None,
    grace: float = GRACE,
    keep_alive: float = KEEP_ALIVE,
    send_limit: float = SEND_LIMIT,
    sizes: SizeLimits = DEFAULTS,
    require_token: bool = False,
    restore: float = inf,
    access: SocketAccess = OWNER_ONLY,
    task_status: trio.TaskStatus[tuple[Address, ...]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve *app* on *addresses* until *shutdown* returns; return within *grace* and a second.

    `await nursery.start(...)` returns the real addresses once the application has started and clients
    are answered. *on_draining* is called when no new client gets in; it ends the streams. Cancelling
    stops without grace.

    A client that takes nothing for *send_limit* seconds is disconnected. *sizes* limits connections and
    requests that are slow to arrive. *require_token* says that *app* refuses requests without a token;
    only then may an address be reachable from other machines. A socket file that was deleted is made
    again within *restore* seconds; *access* says who may open it.
    """
    stopping, admission = Interrupt(), Admission(sizes)
    async with (
        open_listeners(addresses, require_token=require_token, access=access) as listening,
        _open_lifespan(app) as state,
        open_hidden_nursery() as connections,
    ):
        terms = Terms(
            app=app,
            state=state,
            stopping=stopping,
            keep_alive=keep_alive,
            send_limit=send_limit,
        )
        async with (
            open_acceptor(admission, partial(serve_connection, terms), connections) as acceptor,
            open_hidden_nursery() as accepting,
        ):
            for listener in listening.listeners():
                accepting.start_soon(acceptor.accept_from, listener)
            if restore < inf:
                accepting.start_soon(_restore, listening, restore, acceptor, accepting)
            task_status.started(listening.addresses)
            await shutdown()
            listening.close()
            accepting.cancel_scope.cancel()
        log.info("server.draining", extra={"connections": len(connections.child_tasks)})
        if on_draining is not None:
            on_draining()
        stopping.call()
        connections.cancel_scope.deadline = trio.current_time() + grace
    log.info("server.stopped", extra={"cut": connections.cancel_scope.cancelled_caught})


async def _restore(
    listening: Listening, pause: float, acceptor: Acceptor, accepting: trio.Nursery
) -> None:
    """Listen again wherever a socket file was deleted, until cancelled."""
    while True:
        accepting.start_soon(acceptor.accept_from, await listening.restored(pause))


async def wait_for_signal() -> signal.Signals:
    """Return at the first SIGTERM or SIGINT: the *shutdown* of a program that is only a server.

    From then on the signals have their previous handlers again, so that a second one can end the
    program at once.
    """
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as arrivals:
        async for number in arrivals:
            return signal.Signals(number)
    raise AssertionError("the receiver of signals ended by itself")


# ── The application's own start and end ─────────────────────────────────────────────────────────


@asynccontextmanager
async def _open_lifespan(app: "ASGIFramework") -> "AsyncIterator[LifespanState]":
    """Start *app*, yield the state it set up, and stop it when the block ends without an exception.

    Its lifespan is a child of this block: an exception in it cancels the block. An application
    without a lifespan may return; an exception counts as a failure to start.
    """
    tell, told = trio.open_memory_channel["ASGIReceiveEvent"](2)
    tell.send_nowait({"type": "lifespan.startup"})
    state: LifespanState = {}
    async with open_hidden_nursery() as nursery:
        await nursery.start(_live, app, state, told)
        yield state
        tell.send_nowait({"type": "lifespan.shutdown"})
        nursery.cancel_scope.deadline = trio.current_time() + _LIFESPAN_LIMIT


async def _live(
    app: "ASGIFramework",
    state: "LifespanState",
    told: "trio.MemoryReceiveChannel[ASGIReceiveEvent]",
    task_status: trio.TaskStatus[None],
) -> None:
    """Run the lifespan of *app*; it has started when it says so, or when it returns without saying anything."""
    scope = {
        "type": "lifespan",
        "asgi": {"spec_version": "2.0", "version": "3.0"},
        "state": state,
    }
    said: list[str] = []
    failure: LifespanFailed | None = None

    async def hear(event: "ASGISendEvent") -> None:
        nonlocal failure
        await trio.lowlevel.checkpoint()
        said.append(event["type"])
        match event:
            case {"type": "lifespan.startup.complete"}:
                task_status.started()
            case {"type": "lifespan.startup.failed" | "lifespan.shutdown.failed"}:
                failure = LifespanFailed(str(event.get("message", "")))
                life.cancel()

    with trio.CancelScope() as life:
        await app(cast("LifespanScope", scope), told.receive, hear)
    if failure is not None:
        raise failure
    if not said:
        task_status.started()
