"""The server as an ASGI application: `hypercorn -k trio crush_trio.asgi:app`.

The backend lives inside the lifespan call and nowhere else: when that call ends, for whatever
reason, no workspace is left, and when the backend fails, the call fails and takes the worker along.
Settings come from the environment, as for `crush-trio serve`.

Two things are the ASGI server's here. It accepts connections and cuts them off at its own grace, so
streams that are open when it stops end without a last event; their clients learn the rest when they
resume. And a data directory has one owner: with more than one worker, a create that reaches another
worker than the one that has the directory is refused and told so.
"""

import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, cast

import trio
from attrs import define, field
from hypercorn.typing import (
    ASGIFramework,
    ASGIReceiveCallable,
    ASGISendCallable,
    ASGISendEvent,
    Scope,
)
from hypercorn.utils import LifespanFailureError

from crush_trio import __version__
from crush_trio.backend.backend import Backend, open_backend
from crush_trio.backend.opened import OpenedWorkspace, keeps_open, workspace_opener
from crush_trio.errors import CrushError, ServerShuttingDown
from crush_trio.nursery import open_hidden_nursery
from crush_trio.server.addresses import TcpAddress, is_loopback
from crush_trio.server.app import create_app
from crush_trio.server.guard import HostForbidden
from crush_trio.server.hosting import HostSettings
from crush_trio.server.site import Site
from crush_trio.server.status import error_body, error_headers, status_of

_ANSWER_TIME: Final = 1.0
"""Seconds that the client who asked for the shutdown has to take the answer."""


@define(eq=False)
class HostedApp:
    """Opens a backend when its lifespan starts, and serves it until the lifespan ends."""

    environ: Mapping[str, str] = field(factory=lambda: os.environ, repr=False)
    _app: ASGIFramework | None = field(default=None, init=False, repr=False)
    _exposable: bool = field(default=False, init=False)

    async def __call__(
        self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable
    ) -> None:
        """Handle one connection scope."""
        if scope["type"] == "lifespan":
            await self._live(scope, receive, send)
        elif self._app is None:
            await _refuse(ServerShuttingDown("it has no lifespan"), scope, send)
        elif not self._exposable and _is_exposed(scope):
            await _refuse(HostForbidden(_EXPOSED), scope, send)
        else:
            await self._app(scope, receive, send)

    async def _live(
        self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable
    ) -> None:
        """Be open for as long as the lifespan lasts; whatever goes wrong ends the worker.

        That the end is complete is said only when the backend has closed: the server cancels this
        call as soon as it hears it.
        """
        ended: list[ASGISendEvent] = []

        async def send_but_the_last(event: ASGISendEvent) -> None:
            if event["type"] == "lifespan.shutdown.complete":
                await trio.lowlevel.checkpoint()
                ended.append(event)
            else:
                await send(event)

        try:
            settings = HostSettings.from_environment(self.environ)
            await self._host(settings, lambda app: app(scope, receive, send_but_the_last))
        except LifespanFailureError:
            raise
        except Exception as error:
            raise LifespanFailureError("serving", str(error) or repr(error)) from error
        for event in ended:
            await send(event)

    async def _host(
        self, settings: HostSettings, live: Callable[[ASGIFramework], Awaitable[None]]
    ) -> None:
        """Open a backend and answer from it while *live*, given the application, goes on."""
        async with (
            open_backend(
                workspace_opener(),
                settings=settings.backend,
                version=__version__,
                keeps_open=keeps_open,
            ) as backend,
            open_hidden_nursery() as nursery,
        ):
            app = create_app(Site(backend), settings.guard)
            self._exposable = settings.guard.token is not None
            self._app = app
            nursery.start_soon(_end_when_decided, backend)
            try:
                await live(app)
            finally:
                self._app = None
            nursery.cancel_scope.cancel()


_EXPOSED: Final = "without a token this server answers on 127.0.0.1 only; set CRUSH_TRIO_TOKEN"


def _is_exposed(scope: Scope) -> bool:
    """Whether the connection came to an address that other machines can reach."""
    host, port = cast("Mapping[str, Any]", scope).get("server") or (None, None)
    return port is not None and not is_loopback(TcpAddress(str(host), port))


async def _end_when_decided(backend: Backend[OpenedWorkspace]) -> None:
    """End the worker when the backend has decided to end: it lets nobody in any more.

    Failing is the only way an application can say so.
    """
    await backend.wait_shutdown()
    await trio.sleep(_ANSWER_TIME)
    raise LifespanFailureError("serving", "the server was asked to shut down")


async def _refuse(error: CrushError, scope: Scope, send: ASGISendCallable) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008, "reason": None})
        return
    headers, status = error_headers(error), status_of(error)
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": error_body(error), "more_body": False})


app = HostedApp()
