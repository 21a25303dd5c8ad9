"""The server as an ASGI application: `hypercorn -k trio crush_trio.asgi:app`.

The backend lives inside the lifespan call and nowhere else: when that call ends, for whatever
reason, no workspace is left, and when the backend fails, the call fails and takes the worker along.
Settings come from the environment, as for `crush-trio serve`.

Two things are the ASGI server's here. It accepts connections, and it cuts off at its own grace what
has not ended when it stops; until then clients see their runs and streams end as they do under
`crush-trio serve`. And a data directory has one owner: with more than one worker, a create that
reaches another worker than the one that has the directory is refused and told so.
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
from crush_trio.backend.workspace import HostedWorkspace, keeps_open
from crush_trio.errors import ServerShuttingDown
from crush_trio.net.address import TcpAddress, is_loopback
from crush_trio.nursery import open_hidden_nursery
from crush_trio.server.app import create_app
from crush_trio.server.guard import HostForbidden, refuse
from crush_trio.server.http.hypercorn import Worker, worker_of
from crush_trio.server.run import (
    HostSettings,
    begin_drain,
    end_streams_late,
    settle_in,
    usual_opener,
)
from crush_trio.server.server import Meters, Site, metered
from crush_trio.tools.info import keep_recent_logs

_ANSWER_TIME: Final = 1.0
"""Seconds that the client who asked for the shutdown has to take the answer."""


@define(eq=False)
class _Serving:
    """A backend that is being served, and the worker that serves it, once a request has shown it."""

    site: Site
    settings: HostSettings
    app: ASGIFramework = field(init=False, repr=False)
    _worker: Worker | None = field(default=None, init=False)
    _met: trio.Event = field(factory=trio.Event, init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self.app = create_app(self.site, self.settings.guard)

    async def __call__(
        self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable
    ) -> None:
        """Answer a request; without a token, on addresses that other machines cannot reach."""
        self._meet(worker_of(cast("Mapping[str, Any]", scope)))
        if self.settings.guard.token is None and _is_exposed(scope):
            await refuse(scope["type"], HostForbidden(_EXPOSED), send)
        else:
            await self.app(scope, receive, send)

    def _meet(self, worker: Worker | None) -> None:
        if self._worker is None and worker is not None:
            self._worker = worker
            self._met.set()

    async def watch(self) -> None:
        """Make one end of two: the backend's own decision is told to the worker, or vice versa.

        A worker that stops before it has had a request has no streams to be told.
        """
        async with open_hidden_nursery() as nursery:
            nursery.start_soon(_end_when_decided, self.site.backend)
            worker = await self._known_worker()
            await worker.stopping()
            nursery.cancel_scope.cancel()
        await end_streams_late(self.site, begin_drain(self.site), worker.grace)

    async def _known_worker(self) -> Worker:
        await self._met.wait()
        assert self._worker is not None
        return self._worker


@define(eq=False)
class HostedApp:
    """Opens a backend when its lifespan starts, and serves it until the lifespan ends."""

    environ: Mapping[str, str] = field(factory=lambda: os.environ, repr=False)
    _serving: _Serving | None = field(default=None, init=False, repr=False)

    async def __call__(
        self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable
    ) -> None:
        """Handle one connection scope."""
        if scope["type"] == "lifespan":
            await self._live(scope, receive, send)
        elif self._serving is None:
            await refuse(scope["type"], ServerShuttingDown("it has no lifespan"), send)
        else:
            await self._serving(scope, receive, send)

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
        meters = Meters()
        with keep_recent_logs() as logs:
            opener = usual_opener(settings, logs)
            async with (
                open_backend(
                    metered(opener.open, meters),
                    settings=settings.backend,
                    sizes=settings.sizes,
                    version=__version__,
                    keeps_open=keeps_open,
                ) as backend,
                open_hidden_nursery() as nursery,
            ):
                self._serving = serving = _Serving(Site(backend, meters=meters), settings)
                nursery.start_soon(serving.watch)
                nursery.start_soon(settle_in, opener, True)
                try:
                    await live(serving.app)
                finally:
                    self._serving = None
                nursery.cancel_scope.cancel()


_EXPOSED: Final = "without a token this server answers on 127.0.0.1 only; set CRUSH_TRIO_TOKEN"


def _is_exposed(scope: Scope) -> bool:
    """Whether the connection came to an address that other machines can reach."""
    host, port = cast("Mapping[str, Any]", scope).get("server") or (None, None)
    return port is not None and not is_loopback(TcpAddress(str(host), port))


async def _end_when_decided(backend: Backend[HostedWorkspace]) -> None:
    """End the worker when the backend has decided to end: it lets nobody in any more.

    Failing is the only way an application can say so.
    """
    await backend.wait_shutdown()
    await trio.sleep(_ANSWER_TIME)
    raise LifespanFailureError("serving", "the server was asked to shut down")


app = HostedApp()
