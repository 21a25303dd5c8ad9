"""Host, Origin and token checks, and checks of the peer: which requests may reach the server.

The agent runs commands, so a web page must not reach it. Two checks prevent that, and need nothing from
the client: a page is recognised by its `Origin` or by `Sec-Fetch-Site`, and a page that made a name point
at this machine (DNS rebinding) by the `Host` it asks for. A server may also require a token
(`server.tokens`). These checks are plain functions of what a request says; `server.app.Door` applies them
before any route. What the caller's token does not allow is refused once the route is known, by
`server.routing.respond`.

Two checks depend on the process at the other end (`server.http.peer`): its user, and whether it is a command
of the agent, which may read and not change anything (`server.routing.respond` applies that one).
"""

import ipaddress
import os
import re
from collections.abc import Callable, Mapping
from enum import Enum
from functools import lru_cache, partial
from typing import Any, Final

import trio
from attrs import field, frozen

from crush_trio.errors import CrushError
from crush_trio.net.address import TcpAddress, is_loopback
from crush_trio.plain_json import shown
from crush_trio.server.http.peer import peer_of
from crush_trio.server.page.login import Logins
from crush_trio.server.settings import TOKEN_VARIABLE, GuardSettings
from crush_trio.server.tokens import ENVIRONMENT_TOKEN, Right, RightMissing, TokenFile, Tokens

_PORTS: Final[Mapping[str, int]] = {"http": 80, "https": 443}
_FETCH_SITE: Final = b"sec-fetch-site"
_FETCH_MODE: Final = b"sec-fetch-mode"
_FETCH_DEST: Final = b"sec-fetch-dest"
_HEADERS: Final = frozenset(
    (b"host", b"origin", b"authorization", b"cookie", _FETCH_SITE, _FETCH_MODE, _FETCH_DEST)
)
_READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_AUTHORITY: Final = re.compile(r"(\[[0-9a-f:.]+\]|[^\[\]:/@?#\s,]+)(?::([0-9]{1,5}))?")


FORWARDED: Final = b"x-crush-trio-forwarded"
"""The header with the id of the node that passed a request on."""

PAGE_HEADER: Final = b"x-crush-trio"
"""The header without which the page's cookie changes nothing."""

_FROM_US: Final = frozenset({"same-origin", "none"})
"""The values of `Sec-Fetch-Site` with which a cookie counts: our page, or the user's own doing.

A page on another port of this host is the same site for a browser, which sends the cookie for it too.
"""


class Forbidden(CrushError):
    """The request comes from a place that no request may come from, whatever token it carries."""


class HostForbidden(Forbidden):
    """The request asks for a host that is no name of this server."""

    code = "host_forbidden"
    message = "host is not allowed"


class OriginForbidden(Forbidden):
    """The request was made by a foreign web page."""

    code = "origin_forbidden"
    message = "origin is not allowed"


class CsrfRefused(Forbidden):
    """A request with the page's cookie wants a change and lacks the header that the page itself sends."""

    code = "csrf"
    message = "a change with the cookie of the page needs the header X-Crush-Trio: page"


class OwnProcess(Forbidden):
    """A command of the agent asks for a change, which its user did not ask for."""

    code = "own_process"
    message = (
        "a command that this server runs cannot change anything here; "
        "do it from a program that you started yourself"
    )


class PeerForbidden(Forbidden):
    """Another user than the server's has come through a socket that is private to its owner."""

    code = "peer_forbidden"
    message = "this socket is private to the user who runs the server; start a server of your own"


class Unauthorized(CrushError):
    """The server requires a token, and the request has none or a wrong one; the answer does not say which."""

    code = "unauthorized"
    message = "a valid token is required"


class Transport(Enum):
    """The kind of socket that a connection came through."""

    UNIX = "unix"
    TCP = "tcp"


@frozen(kw_only=True)
class Caller:
    """Who sends a request, as far as the server can tell."""

    right: Right = Right.ADMIN
    token: str = ""
    """The name of the token; empty if the request has none and needs none."""
    valid: Callable[[], bool] | None = field(default=None, eq=False, repr=False)
    """Whether a named token still gives the same right; None for callers that need not be asked again."""

    known: bool = True
    """False for a request that lacks the token it needs; it reaches the rows that are open to all."""
    cookie: bool = False
    """Whether the page's cookie stands for the token, which a browser sends by itself."""
    forwarded: bool = False
    """Whether another node of the cluster has passed the request on, and told the rest of this."""
    address: str = ""
    """Where a forwarded request came from; empty for others, whose scope has it."""
    own_process: bool = False
    """Whether a forwarded request was sent by a command of the node that it came through."""

    def check(self, needed: Right) -> None:
        """Raise `RightMissing` if the caller may not do what needs this right; `Unauthorized` if it is not known."""
        if not self.known:
            raise Unauthorized
        if not self.right.covers(needed):
            raise RightMissing(f"{self.token} may {self.right}, and this needs {needed}")


STRANGER: Final = Caller(right=Right.WATCH, known=False)
"""The caller of a request that needs a token and has none."""


def tokens_of(settings: GuardSettings) -> Tokens:
    """Return the tokens that *settings* name."""
    path = settings.token_file
    return Tokens(settings.token, None if path is None else TokenFile(path))


def check_scope(
    scope: Mapping[str, Any],
    settings: GuardSettings,
    tokens: Tokens | None = None,
    logins: Logins | None = None,
) -> Caller:
    """Check an ASGI connection scope, as `check_request` does.

    A scope without a server address came through a Unix socket. A header that is present twice is read
    as one with both values, which no rule here accepts.
    """
    tokens = tokens_of(settings) if tokens is None else tokens
    host, port = scope.get("server") or (None, None)
    if settings.loopback_only and port is not None and not tokens.required:
        _check_loopback(TcpAddress(str(host), port))
    found: dict[bytes, str] = {}
    for name, value in scope["headers"]:
        key = bytes(name).lower()
        if key in _HEADERS:
            text = bytes(value).decode("latin-1")
            found[key] = f"{found[key]}, {text}" if key in found else text
    origin = found.get(b"origin")
    if _FETCH_SITE in found and not _is_our_page(scope, settings, found, origin):
        raise OriginForbidden("a page of another site")
    return check_request(
        settings,
        transport=Transport.UNIX if port is None else Transport.TCP,
        scheme=scope.get("scheme", "http"),
        port=port,
        host=found.get(b"host"),
        origin=origin,
        authorization=found.get(b"authorization"),
        owner=settings.open_to_owner and peer_uid(scope) == os.geteuid(),
        tokens=tokens,
        cookies=found.get(b"cookie") if found.get(_FETCH_SITE, "none") in _FROM_US else None,
        logins=logins,
    )


def check_csrf(caller: Caller, scope: Mapping[str, Any]) -> None:
    """Raise `CsrfRefused` if a browser may have sent a change that our page did not ask for.

    A foreign page can make a browser send a form with the cookie. It cannot add a header without asking
    first, which is refused.
    """
    if caller.cookie and scope["method"] not in _READING:
        given = [
            bytes(value) for name, value in scope["headers"] if bytes(name).lower() == PAGE_HEADER
        ]
        if given != [b"page"]:
            raise CsrfRefused


def _is_our_page(
    scope: Mapping[str, Any],
    settings: GuardSettings,
    found: Mapping[bytes, str],
    origin: str | None,
) -> bool:
    """Whether a request with `Sec-Fetch-Site` does not come from a page of another site.

    Browsers send the header with every request, also with those that have no `Origin`: images, scripts,
    frames. A link that the user follows, to show a document of ours in a tab of its own, may come from any
    site: the page with the link sees nothing of it.
    """
    if "cross-site" not in found[_FETCH_SITE].lower():
        return True
    if origin is not None:
        return origin.lower() in settings.origins
    mode, dest = found.get(_FETCH_MODE), found.get(_FETCH_DEST)
    return scope.get("method") == "GET" and mode == "navigate" and dest == "document"


def no_page(scope: Mapping[str, Any]) -> bool:
    """Whether a request says nothing of a web page: browsers name the page's origin or site."""
    named = {bytes(name).lower() for name, _ in scope["headers"]}
    return not named & {b"origin", _FETCH_SITE, _FETCH_MODE, _FETCH_DEST}


def is_forwarded(scope: Mapping[str, Any]) -> bool:
    """Whether a request says that another node has passed it on."""
    return any(bytes(name).lower() == FORWARDED for name, _ in scope["headers"])


def check_user(scope: Mapping[str, Any]) -> None:
    """Raise `PeerForbidden` if the request came from another user through a private socket."""
    peer = peer_of(scope)
    if peer is not None and peer.is_foreign():
        raise PeerForbidden


async def check_own_process(scope: Mapping[str, Any]) -> None:
    """Raise `OwnProcess` if the request was sent by a command of this server."""
    if await is_own_process(scope):
        raise OwnProcess


async def is_own_process(scope: Mapping[str, Any]) -> bool:
    """Whether the request was sent by a command of this server."""
    peer = peer_of(scope)
    if peer is None or not peer.suspect:
        return False  # noqa: ASYNC910 - the usual case, which must cost nothing
    return await peer.is_own_process()


async def is_owner(scope: Mapping[str, Any]) -> bool:
    """Whether the request was sent by the server's own user, through a socket that no other user can open.

    A command of the agent is not the user. Under other servers nothing is known of the peer.
    """
    await trio.lowlevel.checkpoint()
    peer = peer_of(scope)
    if peer is None or not peer.is_owner():
        return False
    return not (peer.suspect and await peer.is_own_process())


def peer_uid(scope: Mapping[str, Any]) -> int | None:
    """Return the user at the other end of a Unix socket; None for TCP and under other servers."""
    peer = peer_of(scope)
    return None if peer is None else peer.uid


def _check_loopback(address: TcpAddress) -> None:
    if not is_loopback(address):
        raise HostForbidden(
            f"without a token this server answers on 127.0.0.1 only; set {TOKEN_VARIABLE}"
        )


def check_request(
    settings: GuardSettings,
    *,
    transport: Transport,
    scheme: str = "http",
    port: int | None = None,
    host: str | None = None,
    origin: str | None = None,
    authorization: str | None = None,
    owner: bool = False,
    tokens: Tokens | None = None,
    cookies: str | None = None,
    logins: Logins | None = None,
) -> Caller:
    """Return who sends the request if it may pass; otherwise raise `Forbidden` or `Unauthorized`.

    *port* is our end of the connection, *owner* whether the kernel says that the other end is our own
    user and needs no token; the rest are headers. Through a Unix socket any host is accepted: its
    clients invent one, and no web page can connect there. A preflight is a request like any other: it
    has an origin, so it is refused, and no answer of ours permits a page anything.

    Without a bearer token, the page's cookie among *cookies* may stand for one, if *logins* know it.

    A request with a valid token may name any host: a server on an address of its own has names that we
    cannot know, and a page that came here through a false name has no token.
    """
    tokens = tokens_of(settings) if tokens is None else tokens
    required = tokens.required
    bearer = _bearer(authorization)
    holder = tokens.find(bearer) if required and bearer is not None else None
    if (
        transport is Transport.TCP
        and holder is None
        and not _is_our_host(settings, host, port, scheme)
    ):
        raise HostForbidden(_named(host))
    if origin is not None and not _is_our_origin(settings, transport, host, origin):
        raise OriginForbidden(_named(origin))
    if holder is not None:
        name, right = holder
        if name == ENVIRONMENT_TOKEN:
            return Caller(token=name, right=right)
        return Caller(token=name, right=right, valid=lambda: tokens.find(bearer or "") == holder)
    if required and bearer is None and cookies is not None and logins is not None:
        holder = logins.find(cookies)
        if holder is not None:
            valid = partial(_still, logins, cookies, holder)
            return Caller(token=holder[0], right=holder[1], valid=valid, cookie=True)
    if required and not owner:
        raise Unauthorized
    return Caller()


def _still(logins: Logins, cookies: str, holder: tuple[str, Right]) -> bool:
    return logins.find(cookies) == holder


def _is_our_host(settings: GuardSettings, host: str | None, port: int | None, scheme: str) -> bool:
    match = _AUTHORITY.fullmatch((host or "").lower())
    if match is None:
        return False
    name = match[1]
    if name in settings.hosts or match[0] in settings.hosts:
        return True
    return _is_loopback(name) and int(match[2] or _PORTS.get(scheme, 0)) == port


@lru_cache(maxsize=16)  # every request of a client has the same one
def _is_loopback(name: str) -> bool:
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False


def _is_our_origin(
    settings: GuardSettings, transport: Transport, host: str | None, origin: str
) -> bool:
    """Whether the page was served by us, or is allowed by the settings.

    A page of ours asks for the host it came from, and that host has been found to be ours. It cannot
    have come through a Unix socket. The origin `null`, of a page that hides its origin, is not ours.
    """
    text = origin.lower()
    if text in settings.origins:
        return True
    scheme, _, authority = text.partition("://")
    ours = transport is Transport.TCP and scheme in {"http", "https"}
    return ours and authority == (host or "").lower()


def _bearer(authorization: str | None) -> str | None:
    """Return the token that the header carries; None if it carries none."""
    scheme, _, given = (authorization or "").partition(" ")
    return given.strip() if scheme.lower() == "bearer" else None


def _named(header: str | None) -> str:
    return "the header is missing" if header is None else shown(header)
