"""What the routes share: the backend, how streams end, and who we are.

A route is given the site of its request as its first argument. It travels in the ASGI scope, so
one set of routes serves any number of sites and keeps none of them alive.
"""

import platform
from collections.abc import Mapping
from typing import Any, Final, cast

from attrs import define, field
from hypercorn.typing import ASGIFramework, ASGIReceiveCallable, ASGISendCallable, Scope

from crush_trio import __version__
from crush_trio.backend.backend import Backend
from crush_trio.backend.opened import OpenedWorkspace
from crush_trio.server.bodies import BodyLimits
from crush_trio.server.meters import Meters
from crush_trio.server.pending import AskFrames
from crush_trio.server.sse import HEARTBEAT, Drain, Streams
from crush_trio.wire.ids import WorkspaceId
from crush_trio.wire.views import Version

_SITE: Final = "crush_trio.site"
_MACHINES: Final = {"x86_64": "amd64", "aarch64": "arm64"}


@define(eq=False)
class Site:
    """One served backend."""

    backend: Backend[OpenedWorkspace]
    drain: Drain = field(factory=Drain)
    heartbeat: float = HEARTBEAT
    meters: Meters = field(factory=Meters, kw_only=True)
    """What was counted; to count runs too, the backend opens its workspaces through `metered`."""
    streams: Streams = field(factory=Streams, init=False)
    asks: AskFrames = field(factory=AskFrames, init=False)
    bodies: BodyLimits = field(init=False, repr=False)
    """How much a request may ask of us."""

    @bodies.default
    def _bodies(self) -> BodyLimits:
        return BodyLimits.of(self.backend.sizes)

    def opened(self, workspace_id: str) -> OpenedWorkspace:
        """Return a hosted workspace, or raise `WorkspaceNotFound`."""
        return self.backend.workspace(WorkspaceId(workspace_id)).opened

    @property
    def version(self) -> Version:
        """What is serving."""
        machine = platform.machine()
        return Version(
            version=__version__,
            commit="",
            build_id=f"crush_trio-{__version__}",
            go_version="",
            platform=f"{platform.system().lower()}/{_MACHINES.get(machine, machine)}",
        )


def site_of(scope: Mapping[str, Any]) -> Site:
    """Return the site that a request is for."""
    site = scope[_SITE]
    assert isinstance(site, Site)
    return site


def at_site(site: Site, app: ASGIFramework) -> ASGIFramework:
    """Send every request to *app* as one for *site*.

    A lifespan does not get there: the framework would remember the last one it saw as the only one,
    and there is nothing to do in it but to say so.
    """

    async def wrapped(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        if scope["type"] == "lifespan":
            await _live(receive, send)
        else:
            await app(cast("Scope", {**scope, _SITE: site}), receive, send)

    return wrapped


async def _live(receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
    while (await receive())["type"] != "lifespan.shutdown":
        await send({"type": "lifespan.startup.complete"})
    await send({"type": "lifespan.shutdown.complete"})
