"""The server as an ASGI application: `hypercorn -k trio crush_trio.asgi:app`.

The backend lives inside the lifespan call: when that call ends, for whatever reason, no workspace is
left, and when the backend fails, the call fails and ends the worker. Settings come from the
environment, as for `crush-trio serve`.

Two things are done by the ASGI server. It accepts connections, and it cuts off at its own grace what
has not ended when it stops; until then clients see their runs and streams end as they do under
`crush-trio serve`.

A start that cannot work is refused with a sentence: under a worker that does not run Trio, and with more
than one worker. Workers share one socket, so a client would reach another one with each request, and a
workspace lives in one of them.
"""

import os
from collections.abc import Mapping
from typing import Any, Final, cast

import trio
from attrs import define, evolve, field
from hypercorn.typing import ASGIFramework, ASGIReceiveCallable, ASGISendCallable, Scope
from hypercorn.utils import LifespanFailureError

from crush_trio.audit.log import open_audit
from crush_trio.backend.backend import Backend
from crush_trio.backend.workspace import HostedWorkspace
from crush_trio.errors import ServerShuttingDown
from crush_trio.nursery import open_hidden_nursery
from crush_trio.server.app import create_app, refuse
from crush_trio.server.hosting.host import (
    begin_drain,
    default_workspaces,
    end_streams_late,
    late_opener,
    settle_in,
)
from crush_trio.server.hosting.opening import open_hosting
from crush_trio.server.http.hypercorn import Worker, safe_worker, worker_of
from crush_trio.server.logging import keep_logs
from crush_trio.server.server import Server
from crush_trio.server.settings import ServerSettings, warn_without_audit

_ANSWER_TIME: Final = 1.0
"""Seconds that the client which asked for the shutdown has to take the answer."""


ONE_WORKER: Final = (
    "crush_trio needs one worker: start it with --workers 1. A workspace lives in one process, and "
    "workers share their address; for more than one process run several servers, each at its own address"
)

TRIO_ONLY: Final = (
    "crush_trio needs a worker that runs Trio: hypercorn -k trio --workers 1 crush_trio.asgi:app"
)


@define(eq=False)
class HostedApp:
    """For `hypercorn -k trio`: opens a backend in the lifespan, and makes the worker's connections safe."""

    environ: Mapping[str, str] = field(factory=lambda: os.environ, repr=False)
    _app: ASGIFramework | None = field(default=None, init=False, repr=False)
    """The application, while the lifespan lasts."""
    _worker: Worker | None = field(default=None, init=False)
    """The worker that serves, once a request has shown it."""
    _met: trio.Event = field(factory=trio.Event, init=False, repr=False)

    async def __call__(
        self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable
    ) -> None:
        """Handle one connection scope."""
        if scope["type"] == "lifespan":
            if (reason := refused_start(receive)) is not None:
                await receive()
                await send({"type": "lifespan.startup.failed", "message": reason})
                return
            settings = self._settings()
            with safe_worker(scope, settings.sizes):
                await self._live(settings, receive, send)
        elif self._app is None:
            await refuse(scope["type"], ServerShuttingDown("it has no lifespan"), send)
        else:
            self._meet(worker_of(cast("Mapping[str, Any]", scope)))
            await self._app(scope, receive, send)

    def _settings(self) -> ServerSettings:
        """Read the settings. Hypercorn opens the sockets, so the guard checks who can reach them."""
        try:
            settings = ServerSettings.from_environment(self.environ)
        except Exception as error:
            raise LifespanFailureError("serving", str(error) or repr(error)) from error
        return evolve(settings, guard=evolve(settings.guard, loopback_only=True))

    async def _live(
        self, settings: ServerSettings, receive: ASGIReceiveCallable, send: ASGISendCallable
    ) -> None:
        """Open a backend and answer from it until the worker ends the lifespan.

        The end is reported when the backend has closed: Hypercorn cancels this call as soon as it
        hears of it.
        """
        await receive()
        self._worker, self._met = None, trio.Event()
        with keep_logs(settings.secrets) as logs:
            warn_without_audit(settings)
            opener = late_opener(default_workspaces(settings, logs))
            async with (
                open_audit(settings.audit) as audit,
                open_hosting(settings, opener.open, audit) as server,
                open_hidden_nursery() as nursery,
            ):
                self._app = create_app(server, settings.guard)
                nursery.start_soon(self._watch, server)
                nursery.start_soon(settle_in, opener, True)
                try:
                    await send({"type": "lifespan.startup.complete"})
                    await receive()
                finally:
                    self._app = None
                nursery.cancel_scope.cancel()
        await send({"type": "lifespan.shutdown.complete"})

    async def _watch(self, server: Server) -> None:
        """Tell the worker when the backend decides to end, and the backend when the worker stops.

        A worker that stops before it has had a request has no streams to end.
        """
        async with open_hidden_nursery() as nursery:
            nursery.start_soon(_end_when_decided, server.backend)
            worker = await self._known_worker()
            await worker.stopping()
            nursery.cancel_scope.cancel()
        await end_streams_late(server, begin_drain(server), worker.grace)

    def _meet(self, worker: Worker | None) -> None:
        if self._worker is None and worker is not None:
            self._worker = worker
            self._met.set()

    async def _known_worker(self) -> Worker:
        await self._met.wait()
        assert self._worker is not None
        return self._worker


def refused_start(receive: ASGIReceiveCallable) -> str | None:
    """Return why the application cannot be served by the worker that *receive* belongs to, or None.

    Hypercorn's `receive` is a method of its lifespan, which has the configuration of the server. Of other
    servers nothing is known, and their lifespans are let in if they run Trio.
    """
    try:
        trio.lowlevel.current_task()
    except RuntimeError:
        return TRIO_ONLY
    config = getattr(getattr(receive, "__self__", None), "config", None)
    return ONE_WORKER if getattr(config, "workers", 1) > 1 else None


async def _end_when_decided(backend: Backend[HostedWorkspace]) -> None:
    """End the worker when the backend has decided to end.

    Failing is the only way in which an application can tell the worker.
    """
    await backend.wait_shutdown()
    await trio.sleep(_ANSWER_TIME)
    raise LifespanFailureError("serving", "the server was asked to shut down")


app = HostedApp()
