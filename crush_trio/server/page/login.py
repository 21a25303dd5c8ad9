"""Logging in with a browser: sessions behind a cookie, one-time codes, and a limit on tries.

A browser cannot add a token to the requests that it makes by itself, so a login exchanges a token for a
cookie. The cookie is a random id that scripts cannot read; the server keeps its hash, in memory. It is
worth what its token is worth at that moment: a token that is revoked or expires ends the sessions it
opened. A session that was opened with a one-time code, which `crush-trio serve` prints, has all rights. It
ends with the server.
"""

import hmac
import ipaddress
import re
import secrets
from collections import deque
from collections.abc import Mapping
from typing import Any, Final

import trio
from attrs import define, field, frozen

from crush_trio.errors import CrushError
from crush_trio.server.http.peer import peer_of
from crush_trio.server.tokens import Right, Tokens, digest_of

COOKIE: Final = "crush_trio_page"
LIFE: Final = 30 * 24 * 3600
"""Seconds that a session lasts at most."""

CODE_LIFE: Final = 600
"""Seconds in which a one-time code can be used."""

LINK: Final = "one-time link"
"""What the audit calls sessions that were opened with a code; no token can have a name with a space."""

TRIES: Final = 10
"""How many logins of one peer may fail within `TRIES_WITHIN` seconds."""

TRIES_WITHIN: Final = 60.0

_SESSIONS_MOST: Final = 1000
_PEERS_MOST: Final = 1000
_SAME_NAME_MOST: Final = 4
_BETWEEN: Final = re.compile(r"[;,]")


class TooManyLogins(CrushError):
    """Too many logins of this peer have failed."""

    code = "too_many_logins"
    message = "too many logins have failed; wait a minute and try again"


@frozen
class _Session:
    name: str
    expires_at: int
    token: str | None = field(default=None, repr=False)
    """The hash of the token that opened it; None if a code did."""


@define(eq=False)
class Logins:
    """The logins of one server: its sessions, its one-time code, and the tries that failed."""

    tokens: Tokens = field(factory=Tokens)
    code: str | None = field(default=None, repr=False)
    """A code that opens one session, within `CODE_LIFE` seconds from now."""
    _code_until: int = field(init=False, repr=False)
    _sessions: dict[str, _Session] = field(factory=dict, init=False, repr=False)
    """By the hash of the cookie's value, the oldest first."""
    _failed: dict[str, deque[float]] = field(factory=dict, init=False, repr=False)
    """When logins failed, by peer; the peer that failed last is the last."""

    @_code_until.default
    def _its_end(self) -> int:
        return self.tokens.clock.unix() + CODE_LIFE

    def find(self, cookies: str) -> tuple[str, Right] | None:
        """Return the name and the right of the session that a `Cookie` header names; None if there is none."""
        for value in values_of(cookies):
            key = digest_of(value)
            session = self._sessions.get(key)
            if session is not None:
                holder = self._holder(session)
                if holder is not None:
                    return holder
                del self._sessions[key]
        return None

    def _holder(self, session: _Session) -> tuple[str, Right] | None:
        if session.expires_at <= self.tokens.clock.unix():
            return None
        if session.token is None:
            return session.name, Right.ADMIN
        return self.tokens.find_digest(session.token)

    def open_with_token(self, token: str) -> tuple[str, str] | None:
        """Return the name and the cookie of a new session; None if the token is not valid."""
        holder = self.tokens.find(token)
        return None if holder is None else (holder[0], self._open(holder[0], digest_of(token)))

    def open_with_code(self, code: str) -> tuple[str, str] | None:
        """Return the name and the cookie of a new session; None if the code is wrong, used or too old."""
        given, kept = digest_of(code), digest_of(self.code or "")
        if self.code is None or not hmac.compare_digest(given, kept):
            return None
        self.code = None
        if self._code_until <= self.tokens.clock.unix():
            return None
        return LINK, self._open(LINK, None)

    def _open(self, name: str, token: str | None) -> str:
        now, value = self.tokens.clock.unix(), secrets.token_urlsafe(32)
        if len(self._sessions) >= _SESSIONS_MOST:
            living = {k: each for k, each in self._sessions.items() if self._holder(each)}
            excess = max(0, len(living) - _SESSIONS_MOST + 1)
            self._sessions = dict(list(living.items())[excess:])
        self._sessions[digest_of(value)] = _Session(name, now + LIFE, token)
        return value

    def close(self, cookies: str) -> None:
        """End the sessions that a `Cookie` header names."""
        for value in values_of(cookies):
            self._sessions.pop(digest_of(value), None)

    # ── Tries ───────────────────────────────────────────────────────────────────────────────────

    def check_tries(self, peer: str) -> None:
        """Raise `TooManyLogins` if the logins of *peer* have failed too often lately."""
        failed = self._failed.get(peer)
        if failed is None:
            return
        while failed and failed[0] <= trio.current_time() - TRIES_WITHIN:
            failed.popleft()
        if len(failed) >= TRIES:
            raise TooManyLogins
        if not failed:
            del self._failed[peer]

    def note_failed(self, peer: str) -> None:
        """Remember that a login of *peer* failed."""
        failed = self._failed.pop(peer, None) or deque(maxlen=TRIES)
        failed.append(trio.current_time())
        self._failed[peer] = failed
        if len(self._failed) > _PEERS_MOST:
            del self._failed[next(iter(self._failed))]


def values_of(cookies: str) -> list[str]:
    """Return the values of our cookie in a `Cookie` header; another site on this host may have set one too."""
    found = []
    for piece in _BETWEEN.split(cookies):
        name, _, value = piece.strip().partition("=")
        if name == COOKIE:
            found.append(value)
    return found[:_SAME_NAME_MOST]


def cookie_header(value: str, *, secure: bool) -> tuple[bytes, bytes]:
    """Return the header that sets the cookie to *value*; an empty one removes it."""
    life = LIFE if value else 0
    text = f"{COOKIE}={value}; Path=/; Max-Age={life}; HttpOnly; SameSite=Lax"
    return b"set-cookie", (text + ("; Secure" if secure else "")).encode()


def is_secure(public_url: str | None, scheme: str, origin: str | None) -> bool:
    """Whether a browser reaches the server through TLS, as far as the request and the settings tell.

    Behind a proxy the request is plain. The page itself says where it came from, with its origin.
    """
    if scheme == "https":
        return True
    if origin is not None:
        return origin.lower().startswith("https:")
    return (public_url or "").startswith("https:")


def peer_name(scope: Mapping[str, Any]) -> str:
    """Return what tries are counted by: the address, the network of an IPv6 address, or the user."""
    client = scope.get("client")
    if client and client[1] is not None:
        return _network(str(client[0]))
    peer = peer_of(scope)
    return "" if peer is None else f"user {peer.uid}"


def _network(host: str) -> str:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if address.version == 4:
        return str(address)
    return str(ipaddress.ip_network((address, 64), strict=False))


def new_code() -> str:
    """Return a new one-time code."""
    return secrets.token_urlsafe(24)
