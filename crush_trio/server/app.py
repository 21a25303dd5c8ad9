"""The ASGI application of a server: a Quart-Trio application over the route table, and two wrappers.

A request passes `Door`, which counts it and checks whether it may come in, then `Direct`, which answers
the rows that may be answered without Quart, then Quart. Both `Direct` and the Quart views call
`server.routing.respond`, so every row has one implementation.

Opening and closing the backend is left to the caller of `create_app`.
"""

import logging
import re
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any, Final, cast
from urllib.parse import urlsplit

from attrs import define, field
from hypercorn.typing import (
    ASGIFramework,
    ASGIReceiveCallable,
    ASGISendCallable,
    ASGISendEvent,
    Scope,
)

from crush_trio.audit.log import AuditLog
from crush_trio.errors import CrushError
from crush_trio.net.address import TcpAddress, is_loopback
from crush_trio.server.audit_notes import refusal
from crush_trio.server.bodies import BodyTooLarge
from crush_trio.server.cluster.conveyed import NODE, conveyed_caller
from crush_trio.server.guard import (
    STRANGER,
    Caller,
    Forbidden,
    HostForbidden,
    Unauthorized,
    check_scope,
    check_user,
    is_forwarded,
    no_page,
    tokens_of,
)
from crush_trio.server.http.exchange import take_whole_body
from crush_trio.server.http.sockets import AddressExposed
from crush_trio.server.page.login import Logins
from crush_trio.server.routes import MATCHER
from crush_trio.server.routing import Reply, refused, respond
from crush_trio.server.routing.call import BODILESS, Call
from crush_trio.server.routing.quart_views import quart_app
from crush_trio.server.routing.state import NO_STATUS, REQUEST, RequestState, state_of
from crush_trio.server.server import Meters, Server
from crush_trio.server.settings import GuardSettings
from crush_trio.server.status import error_body, error_headers, status_of
from crush_trio.server.tokens import RightMissing, Tokens
from crush_trio.wire.ids import WorkspaceId

STRANGER_BODY: Final = 4096
"""The most bytes of a body that are read from who has no token yet."""

_OTHER: Final = "other"
_METHODS: Final = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})

log = logging.getLogger(__name__)


def create_app(server: Server, guard: GuardSettings | None = None) -> ASGIFramework:
    """Return the ASGI application that serves *server* to the clients that *guard* lets in.

    Any number of servers can be served side by side: they share the Quart application. Raises
    `AddressExposed` if the page has an address that other machines can reach, and there is no token.
    """
    settings = GuardSettings() if guard is None else guard
    door = Door(Direct(server), server.meters, settings, server.audit)
    check_exposed(settings, door.logins.tokens)
    server.logins, server.public_url = door.logins, settings.public_url
    return door


def check_short(scope: Mapping[str, Any]) -> None:
    """Raise `BodyTooLarge` if a stranger wants to send more than a login needs."""
    for name, value in scope["headers"]:
        key, text = bytes(name).lower(), bytes(value).decode("latin-1")
        short = text.isdigit() and int(text[:9]) <= STRANGER_BODY and len(text) < 9
        if key == b"transfer-encoding" or (key == b"content-length" and not short):
            raise BodyTooLarge(f"the limit is {STRANGER_BODY} bytes")


def check_exposed(settings: GuardSettings, tokens: Tokens) -> None:
    """Raise `AddressExposed` if a proxy makes a server public that needs no token."""
    if settings.public_url is None or tokens.required:
        return
    host = urlsplit(settings.public_url).hostname or ""
    if not is_loopback(TcpAddress(host, 0)):
        raise AddressExposed(settings.public_url)


# ── The wrappers ────────────────────────────────────────────────────────────────────────────────


@define(eq=False)
class Door:
    """Counts and guards: refused requests are counted too, and nothing behind it sees them."""

    app: ASGIFramework
    meters: Meters
    guard: GuardSettings
    audit: AuditLog = field(factory=AuditLog)
    logins: Logins = field(init=False, repr=False)

    @logins.default
    def _its_logins(self) -> Logins:
        return Logins(tokens_of(self.guard), self.guard.login_code)

    async def __call__(
        self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable
    ) -> None:
        """Handle one connection scope."""
        if scope["type"] != "http":
            await self._enter(scope, receive, send)
            return
        method = scope["method"] if scope["method"] in _METHODS else _OTHER
        state = RequestState(method, self.meters)

        async def counting(event: ASGISendEvent) -> None:
            if event["type"] == "http.response.start":
                state.answered(str(event["status"]))
            await send(event)

        try:
            await self._enter(cast("Scope", {**scope, REQUEST: state}), receive, counting)
        finally:
            state.answered(NO_STATUS)

    async def _enter(
        self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable
    ) -> None:
        if scope["type"] != "lifespan":
            try:
                check_user(cast("dict[str, Any]", scope))
                caller = self._caller(cast("dict[str, Any]", scope))
                if is_forwarded(cast("dict[str, Any]", scope)):
                    caller = conveyed_caller(caller, cast("dict[str, Any]", scope))
                if scope["type"] == "http":
                    state_of(scope).caller = caller
            except CrushError as error:
                log.warning("request.refused", extra={"code": error.code, "path": scope["path"]})
                self.audit.note(refusal(cast("dict[str, Any]", scope), error))
                await refuse(scope["type"], error, send)
                return
        await self.app(scope, receive, send)

    def _caller(self, scope: dict[str, Any]) -> Caller:
        """Return who sends a request; raises what is wrong with it.

        Who has no token is let in as a stranger where the path leads to a row that is open to all. Who asks
        for another host is let in at a row for probes, unless it is a web page.
        """
        try:
            return check_scope(scope, self.guard, self.logins.tokens, self.logins)
        except (Unauthorized, HostForbidden) as error:
            if scope["type"] != "http":
                raise
            method = "GET" if scope["method"] == "HEAD" else scope["method"]
            found = MATCHER.find(method, scope["path"])
            if found is None or not found[0].open_to_all:
                raise
            if isinstance(error, HostForbidden) and not (found[0].probe and no_page(scope)):
                raise
            check_short(scope)
            return STRANGER


@define(eq=False)
class Direct:
    """Answers direct rows without Quart; gives every other request its server and cleanup stack."""

    server: Server

    async def __call__(
        self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable
    ) -> None:
        """Handle one connection scope.

        A lifespan is answered here: Quart would remember the last one it saw as the only one.
        """
        if scope["type"] == "lifespan":
            while (await receive())["type"] != "lifespan.shutdown":
                await send({"type": "lifespan.startup.complete"})
            await send({"type": "lifespan.shutdown.complete"})
        elif scope["type"] == "websocket":
            await self._ask_quart(scope, receive, send)  # there are none, which Quart says
        else:
            state = state_of(scope)
            state.server = self.server
            if state.caller.forwarded:
                send = signed(send, self.server.card.boot)
            with state.cleanup:
                if has_odd_slashes(cast("dict[str, Any]", scope)):
                    await send_reply(send, _NO_PAGE)
                    return
                # Quart answers a `HEAD` by the row of `GET`.
                head = scope["method"] == "HEAD"
                found = MATCHER.find("GET" if head else scope["method"], scope["path"])
                if found is None:
                    await self._ask_quart(scope, receive, send)
                    return
                call = state.call(found[0], scope, found[1])
                if self.server.absent is not None and not await self._is_here(call, receive, send):
                    return  # noqa: ASYNC910 - the answer was sent
                state.here = call.here
                body = call.here.body
                if body is None and call.route.direct and not head:
                    body = take_whole_body(scope)
                if body is None:
                    await self._ask_quart(scope, receive, send)
                else:
                    await send_reply(send, await respond(call, body))

    async def _is_here(
        self, call: Call, receive: ASGIReceiveCallable, send: ASGISendCallable
    ) -> bool:
        """Whether this server is to answer; a request about a workspace may be another node's.

        Then that node answers, or this tells why it cannot. A workspace that was open when its server
        ended may be opened first.
        """
        assert self.server.absent is not None
        place = call.values.get("wid") or call.query.get(call.route.names_workspace or "")
        if not place:
            return True  # noqa: ASYNC910 - the answer is sent next
        try:
            here = await self.server.absent.answered(call, WorkspaceId(place), receive, send)
        except Exception as error:  # noqa: BLE001 - the barrier between requests (B18)
            if isinstance(error, (RightMissing, Forbidden)):
                self.server.audit.note(refusal(call.scope, error, call.caller.token))
            await send_reply(send, refused(error, call))
            return False
        if here is None:
            return False
        call.here = here
        return True

    async def _ask_quart(
        self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable
    ) -> None:
        """Pass a request on. Quart compiles its rules for 30 ms, which the first such request waits for."""
        app = quart_app(self.server.bodies.size)
        await app(cast("Any", scope), receive, send)


def signed(send: ASGISendCallable, boot: str) -> ASGISendCallable:
    """Return what sends answers that tell which start of a node they come from."""

    async def send_signed(event: ASGISendEvent) -> None:
        if event["type"] == "http.response.start":
            headers = [*event["headers"], (NODE, boot.encode())]
            event = cast("ASGISendEvent", {**event, "headers": headers})
        await send(event)

    return send_signed


_NO_PAGE: Final = Reply(
    b"404 page not found\n", 404, ((b"content-type", b"text/plain; charset=utf-8"),)
)

_ENCODED_SLASH: Final = re.compile(rb"%(?:2f|5c)", re.IGNORECASE)


def has_odd_slashes(scope: Mapping[str, Any]) -> bool:
    """Whether a path has an empty first segment or an encoded slash, which programs read differently.

    A proxy that lets `/v1/health` through and nothing else may take `//v1` for another path than we do, or
    `%2F` for a part of a name.
    """
    raw = scope.get("raw_path") or scope["path"].encode()
    return raw.startswith(b"//") or _ENCODED_SLASH.search(raw) is not None


async def send_reply(send: ASGISendCallable, reply: Reply) -> None:
    """Send an answer without Quart."""
    if reply.pieces is None:
        length = () if reply.status in BODILESS else ((b"content-length", b"%d" % len(reply.body)),)
        headers = [*reply.headers, *length]
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})
        await send({"type": "http.response.body", "body": reply.body, "more_body": False})
        return
    await send({"type": "http.response.start", "status": reply.status, "headers": reply.headers})
    async with aclosing(reply.pieces) as pieces:
        async for piece in pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def refuse(kind: str, error: CrushError, send: ASGISendCallable) -> None:
    """Answer a connection scope of the ASGI type *kind* with *error*."""
    if kind == "websocket":
        await send({"type": "websocket.close", "code": 1008, "reason": None})
    else:
        headers = tuple(error_headers(error))
        await send_reply(send, Reply(error_body(error), status_of(error), headers))
