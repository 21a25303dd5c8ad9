"""Who may talk to the server.

The agent runs commands, so a web page must not reach it. Two checks see to that, and need nothing of
the client: a page is known by its `Origin`, and one that got a name to point at this machine by
the `Host` it asks for. Whoever must prove more has a token. Decisions are plain functions of what a
request says; `guarded` puts them in front of an application, where no route can forget them.
"""

import hmac
import ipaddress
import logging
import os
import re
import stat
from collections.abc import Iterable, Mapping
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from attrs import field, frozen
from hypercorn.typing import (
    ASGIFramework,
    ASGIReceiveCallable,
    ASGISendCallable,
    Scope,
)

from crush_trio.errors import CrushError
from crush_trio.server.answers import send_whole
from crush_trio.server.status import error_body, error_headers, status_of
from crush_trio.wire.converters import shown

TOKEN_VARIABLE: Final = "CRUSH_TRIO_TOKEN"
"""The environment variable that holds the token."""

TOKEN_FILE_VARIABLE: Final = "CRUSH_TRIO_TOKEN_FILE"
"""The environment variable that names the file which holds the token."""

TOKEN_LENGTH: Final = 16
"""The fewest characters a token may have: fewer can be guessed."""

_TOKEN_FILE_LIMIT: Final = 4096
_HTTP_PORT: Final = 80

log = logging.getLogger(__name__)


class Forbidden(CrushError):
    """The request comes from where no request may come from, whoever sends it."""


class HostForbidden(Forbidden):
    """The request asks for a host that this server is not known as."""

    code = "host_forbidden"
    message = "host is not allowed"


class OriginForbidden(Forbidden):
    """The request was made by a web page of somebody else."""

    code = "origin_forbidden"
    message = "origin is not allowed"


class Unauthorized(CrushError):
    """The server asks for a token, and the request has none or a wrong one; it does not say which."""

    code = "unauthorized"
    message = "a valid token is required"


class TokenUnusable(CrushError):
    """The token of the server cannot be used; it does not start rather than start without one."""

    code = "token_unusable"
    message = "the server's token cannot be used"


class Transport(Enum):
    """What a connection came through."""

    UNIX = "unix"
    TCP = "tcp"


def _lowered(names: Iterable[str]) -> frozenset[str]:
    return frozenset(name.lower() for name in names)


@frozen(kw_only=True)
class GuardSettings:
    """Whom to let in. By default everybody on this machine, and no web page but our own."""

    hosts: frozenset[str] = field(default=frozenset(), converter=_lowered)
    """Names of this server besides those of the loopback: `name` for any port, or `name:port`."""
    origins: frozenset[str] = field(default=frozenset(), converter=_lowered)
    """Pages of others that may use this server, as `https://name[:port]`."""
    token: str | None = field(default=None, repr=False)
    """What every request has to show, on either transport; None asks for nothing."""

    @token.validator
    def _must_be_something(self, _attribute: object, token: str | None) -> None:
        if token == "":
            raise TokenUnusable("it is empty")


# ── Deciding ────────────────────────────────────────────────────────────────────────────────────

_HEADERS: Final = frozenset((b"host", b"origin", b"authorization"))
_AUTHORITY: Final = re.compile(r"(\[[0-9a-f:.]+\]|[^\[\]:/@?#\s,]+)(?::([0-9]{1,5}))?")


def check_request(
    settings: GuardSettings,
    *,
    transport: Transport,
    port: int | None = None,
    host: str | None = None,
    origin: str | None = None,
    authorization: str | None = None,
) -> None:
    """Return if the request may pass; otherwise raise `Forbidden` or `Unauthorized`.

    *port* is our end of the connection, the rest are headers. Through a Unix socket any host will
    do: its clients make one up, and no page gets there. A preflight is a request like any other: it
    has an origin, so it is refused, and no answer of ours permits a page anything.

    Whoever shows the token may call us what they like: a server on an address of its own is known by
    names we cannot guess, and a page that was led here by a false name has no token to show.
    """
    proven = settings.token is not None and _proves(authorization, settings.token)
    if transport is Transport.TCP and not proven and not _is_our_host(settings, host, port):
        raise HostForbidden(_named(host))
    if origin is not None and not _is_our_origin(settings, transport, host, origin):
        raise OriginForbidden(_named(origin))
    if settings.token is not None and not proven:
        raise Unauthorized


def _is_our_host(settings: GuardSettings, host: str | None, port: int | None) -> bool:
    match = _AUTHORITY.fullmatch((host or "").lower())
    if match is None:
        return False
    name = match[1]
    if name in settings.hosts or match[0] in settings.hosts:
        return True
    return _is_loopback(name) and int(match[2] or _HTTP_PORT) == port


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
    """Whether the page is one we served ourselves, or one that somebody allowed by name.

    A page of ours asks for the host it came from, which has been found to be us. It cannot have come
    through a Unix socket. The origin `null`, of a page that hides where it is from, is nobody's.
    """
    text = origin.lower()
    if text in settings.origins:
        return True
    scheme, _, authority = text.partition("://")
    ours = transport is Transport.TCP and scheme in {"http", "https"}
    return ours and authority == (host or "").lower()


def _proves(authorization: str | None, token: str) -> bool:
    """Whether the header has our token; takes as long for a near miss as for nonsense."""
    scheme, _, given = (authorization or "").partition(" ")
    same = hmac.compare_digest(
        given.strip().encode(errors="surrogatepass"), token.encode(errors="surrogatepass")
    )
    return same and scheme.lower() == "bearer"


def _named(header: str | None) -> str:
    return "the header is missing" if header is None else shown(header)


def check_scope(scope: Mapping[str, Any], settings: GuardSettings) -> None:
    """Decide about an ASGI connection scope, as `check_request` does.

    A scope without a server address came through a Unix socket. A header that is there twice is
    read as one with both values, which no rule here lets pass.
    """
    _, port = scope.get("server") or (None, None)
    found: dict[bytes, str] = {}
    for name, value in scope["headers"]:
        key = bytes(name).lower()
        if key in _HEADERS:
            text = bytes(value).decode("latin-1")
            found[key] = f"{found[key]}, {text}" if key in found else text
    check_request(
        settings,
        transport=Transport.UNIX if port is None else Transport.TCP,
        port=port,
        host=found.get(b"host"),
        origin=found.get(b"origin"),
        authorization=found.get(b"authorization"),
    )


def guarded(app: ASGIFramework, settings: GuardSettings) -> ASGIFramework:
    """Put the checks in front of *app*: what they refuse, it never sees."""

    async def wrapped(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        if scope["type"] != "lifespan":
            try:
                check_scope(scope, settings)
            except CrushError as error:
                log.warning("request.refused", extra={"code": error.code, "path": scope["path"]})
                await refuse(scope["type"], error, send)
                return
        await app(scope, receive, send)

    return wrapped


async def refuse(kind: str, error: CrushError, send: ASGISendCallable) -> None:
    """Answer a connection scope of the ASGI type *kind* with *error*, in place of the application."""
    if kind == "websocket":
        await send({"type": "websocket.close", "code": 1008, "reason": None})
        return
    body = error_body(error)
    headers = [*error_headers(error), (b"content-length", b"%d" % len(body))]
    await send_whole(send, status_of(error), headers, body)


# ── The server's own token ──────────────────────────────────────────────────────────────────────


def load_token(environ: Mapping[str, str]) -> str | None:
    """Return the token that *environ* holds or names the file of; None if it does neither.

    Whatever is half right raises `TokenUnusable`: a variable that is set and empty most likely
    stands for a token that got lost, and not for a wish to do without. Reads a small file.
    """
    token, path = environ.get(TOKEN_VARIABLE), environ.get(TOKEN_FILE_VARIABLE)
    if token is not None and path is not None:
        raise TokenUnusable(f"set {TOKEN_VARIABLE} or {TOKEN_FILE_VARIABLE}, not both")
    if token is not None:
        return _judged(token, TOKEN_VARIABLE)
    if path is not None:
        return _judged(_read_private(path), path)
    return None


def _judged(token: str, source: str) -> str:
    if not token:
        raise TokenUnusable(f"{source} is empty; put a token there, or unset the variable")
    if len(token) < TOKEN_LENGTH:
        raise TokenUnusable(f"the token in {source} needs at least {TOKEN_LENGTH} characters")
    if not (token.isascii() and token.isprintable() and " " not in token):
        raise TokenUnusable(f"the token in {source} may hold letters, digits and signs only")
    return token


def _read_private(path: str) -> str:
    """Return the one line of a file that strangers cannot read; checked on the file as opened."""
    try:
        with Path(path).open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            data = file.read(_TOKEN_FILE_LIMIT + 1)
    except (OSError, ValueError) as error:
        raise TokenUnusable(f"{TOKEN_FILE_VARIABLE}: {error}") from error
    if mode & stat.S_IRWXO:
        raise TokenUnusable(f"{path} is open to every user of this machine; chmod o-rwx it")
    if len(data) > _TOKEN_FILE_LIMIT:
        raise TokenUnusable(f"{path} is too large to be a token")
    return data.decode(errors="replace").strip()
