"""Host, Origin and token checks: which requests may reach the server.

The agent runs commands, so a web page must not reach it. Two checks prevent that, and need nothing from
the client: a page is recognised by its `Origin`, and a page that made a name point at this machine (DNS
rebinding) by the `Host` it asks for. A server may also require a token (`server.tokens`). The checks are plain
functions of what a request says; `server.app.Door` applies them before any route. What the caller's token
does not allow is refused once the route is known, by `server.routing.respond`.
"""

import ipaddress
import os
import re
import socket
import struct
from collections.abc import Callable, Mapping
from enum import Enum
from functools import lru_cache
from typing import Any, Final

import trio
from attrs import field, frozen

from crush_trio.errors import CrushError
from crush_trio.net.address import TcpAddress, is_loopback
from crush_trio.server.http.outgoing import CARRIER
from crush_trio.server.settings import TOKEN_VARIABLE, GuardSettings
from crush_trio.server.tokens import ENVIRONMENT_TOKEN, Right, RightMissing, TokenFile, Tokens
from crush_trio.wire.converters import shown

_PORTS: Final[Mapping[str, int]] = {"http": 80, "https": 443}
_CREDENTIALS: Final = struct.Struct("iII")
_HEADERS: Final = frozenset((b"host", b"origin", b"authorization"))
_AUTHORITY: Final = re.compile(r"(\[[0-9a-f:.]+\]|[^\[\]:/@?#\s,]+)(?::([0-9]{1,5}))?")


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

    def check(self, needed: Right) -> None:
        """Raise `RightMissing` if the caller may not do what needs this right."""
        if not self.right.covers(needed):
            raise RightMissing(f"{self.token} may {self.right}, and this needs {needed}")


def tokens_of(settings: GuardSettings) -> Tokens:
    """Return the tokens that *settings* name."""
    path = settings.token_file
    return Tokens(settings.token, None if path is None else TokenFile(path))


def check_scope(
    scope: Mapping[str, Any], settings: GuardSettings, tokens: Tokens | None = None
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
    return check_request(
        settings,
        transport=Transport.UNIX if port is None else Transport.TCP,
        scheme=scope.get("scheme", "http"),
        port=port,
        host=found.get(b"host"),
        origin=found.get(b"origin"),
        authorization=found.get(b"authorization"),
        owner=settings.open_to_owner and peer_uid(scope) == os.geteuid(),
        tokens=tokens,
    )


def peer_uid(scope: Mapping[str, Any]) -> int | None:
    """Return the user at the other end of a Unix socket; None for TCP and under other servers."""
    carrier = scope.get("state", {}).get(CARRIER)
    stream = getattr(getattr(carrier, "connection", carrier), "stream", None)
    if not isinstance(stream, trio.SocketStream) or stream.socket.family != socket.AF_UNIX:
        return None
    try:
        data = stream.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    except OSError:  # it has disconnected
        return None
    _, uid, _ = _CREDENTIALS.unpack(data)
    return int(uid)


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
) -> Caller:
    """Return who sends the request if it may pass; otherwise raise `Forbidden` or `Unauthorized`.

    *port* is our end of the connection, *owner* whether the kernel says that the other end is our own
    user and needs no token; the rest are headers. Through a Unix socket any host is accepted: its
    clients invent one, and no web page can connect there. A preflight is a request like any other: it
    has an origin, so it is refused, and no answer of ours permits a page anything.

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
    if required and not owner:
        raise Unauthorized
    return Caller()


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
