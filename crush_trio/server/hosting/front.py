"""`Front`: the application of a server from the moment it listens, until the real one has been imported.

Quart, the codec and the route table take most of the time that a start takes. Meanwhile the front answers
probes: that the server is there, that it is not ready, and its version. Every other request waits.
"""

import platform
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, cast

import trio
from attrs import define, field

from crush_trio import __version__
from crush_trio.errors import CrushError, Unavailable
from crush_trio.net.address import Address
from crush_trio.plain_json import dump
from crush_trio.server.guard import (
    HostForbidden,
    Unauthorized,
    check_scope,
    check_user,
    is_forwarded,
    no_page,
)
from crush_trio.server.http.exchange import take_whole_body
from crush_trio.server.http.serve import serve
from crush_trio.server.settings import GuardSettings, ServerSettings
from crush_trio.server.status import error_body
from crush_trio.server.tokens import Tokens

if TYPE_CHECKING:
    from hypercorn.typing import ASGIFramework, ASGIReceiveCallable, ASGISendCallable, Scope

HEALTH: Final = b"/v1/health"
READY: Final = b"/v1/ready"
VERSION: Final = b"/v1/version"

_JSON: Final = (b"content-type", b"application/json")
_MACHINES: Final = {"x86_64": "amd64", "aarch64": "arm64"}


class NotReady(Unavailable):
    """The server works, but something it needs does not; it should get no new clients meanwhile."""

    code = "not_ready"
    message = "the server is not ready; its log and GET /v1/health, with a token, say why"


def version_members() -> dict[str, str]:
    """Return what is serving: the members of the wire's `Version`."""
    machine = platform.machine()
    return {
        "version": __version__,
        "commit": "",
        "build_id": f"crush_trio-{__version__}",
        "go_version": "",
        "platform": f"{platform.system().lower()}/{_MACHINES.get(machine, machine)}",
    }


@define(eq=False)
class Front:
    """An ASGI application in two stages: until `open` it answers probes, then *app* answers everything.

    Requests that are answered here are in no metric and in no audit, and one that the guard would refuse
    waits for the application, which refuses it.
    """

    guard: GuardSettings
    tokens: Tokens
    ended: trio.Event = field(factory=trio.Event, init=False)
    """Set when no connection is left."""
    _app: "ASGIFramework | None" = field(default=None, init=False, repr=False)
    _opened: trio.Event = field(factory=trio.Event, init=False)
    _closing: trio.Event = field(factory=trio.Event, init=False)
    _on_draining: Callable[[], None] = field(default=lambda: None, init=False, repr=False)

    async def listen(
        self,
        addresses: Sequence[Address],
        settings: ServerSettings,
        grace: float,
        task_status: trio.TaskStatus[tuple[Address, ...]] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve this application until `close`, as `serve` does."""
        try:
            await serve(
                self,
                addresses,
                shutdown=self._closing.wait,
                on_draining=lambda: self._on_draining(),
                grace=grace,
                sizes=settings.sizes,
                restore=settings.restore_sockets,
                access=settings.socket_access,
                require_token=self.tokens.required,
                task_status=task_status,
            )
        finally:
            self.ended.set()

    def open(self, app: "ASGIFramework", on_draining: Callable[[], None]) -> None:
        """Have *app* answer from now on; *on_draining* is called when no new client gets in."""
        self._app, self._on_draining = app, on_draining
        self._opened.set()

    def close(self) -> None:
        """End `listen`: no new client gets in, and requests under way have the grace to end."""
        self._closing.set()

    async def __call__(
        self, scope: "Scope", receive: "ASGIReceiveCallable", send: "ASGISendCallable"
    ) -> None:
        """Handle one connection scope. There is no lifespan: `open` stands for its start."""
        if scope["type"] == "lifespan":
            await trio.lowlevel.checkpoint()
            return
        if self._app is None:
            reply = self._early_reply(cast("dict[str, Any]", scope))
            if reply is not None:
                status, body = reply
                headers = [*([_JSON] if body else []), (b"content-length", b"%d" % len(body))]
                await send({"type": "http.response.start", "status": status, "headers": headers})
                await send({"type": "http.response.body", "body": body, "more_body": False})
                return
            await self._opened.wait()
            assert self._app is not None
        await self._app(scope, receive, send)

    def _early_reply(self, scope: dict[str, Any]) -> tuple[int, bytes] | None:
        """Return the status and the body of the answer to a probe that the guard lets in; else None."""
        if scope["type"] != "http" or scope["method"] != "GET":
            return None
        path = scope["raw_path"]
        if path not in {HEALTH, READY, VERSION} or not self._lets_in(scope, path != VERSION):
            return None
        if take_whole_body(cast("Scope", scope)) is None:
            return None
        if path == HEALTH:
            return HTTPStatus.OK, b""
        if path == READY:
            return HTTPStatus.SERVICE_UNAVAILABLE, error_body(NotReady())
        return HTTPStatus.OK, dump(version_members())

    def _lets_in(self, scope: Mapping[str, Any], open_to_all: bool) -> bool:
        """Whether a request may pass: as `server.app.Door` decides, which has the last word in case of doubt."""
        if is_forwarded(scope):
            return False
        try:
            check_user(scope)
            check_scope(scope, self.guard, self.tokens)
        except Unauthorized:
            return open_to_all
        except HostForbidden:
            return open_to_all and no_page(scope)
        except CrushError:
            return False
        return True
