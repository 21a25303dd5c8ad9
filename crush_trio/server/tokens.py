"""Named tokens: what each may do, their file, the view of it that a server has, and their clients.

The file has the SHA-256 of each token and never the token itself: a token is 32 random bytes, so a slow
hash would add nothing. `TokenFile` changes the file, for the command line. `Tokens` reads it for a
server, again whenever it has changed: a revoked token is refused from the next request on.
"""

import errno
import hmac
import logging
import os
import re
import secrets
import stat
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from hashlib import sha256
from pathlib import Path
from typing import Final

from attrs import define, field, frozen

from crush_trio.clock import Clock, SystemClock
from crush_trio.config.sources import Places, account_home
from crush_trio.errors import BadRequest, Conflict, CrushError, DecodeError, NotFound, Unavailable
from crush_trio.private_files import LockHeld, locked, replace_file
from crush_trio.wire.fields import OmitEmpty

FILE_NAME: Final = "tokens.json"

ENVIRONMENT_TOKEN: Final = "CRUSH_TRIO_TOKEN"
"""The name in the audit of the token that a server was started with; no other token may have it."""

TOKEN_PREFIX: Final = "ct_"
"""What every token begins with, so that people and programs recognise one."""

_FILE_LIMIT: Final = 1024 * 1024
_READ: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

log = logging.getLogger(__name__)


class TokenNameInvalid(BadRequest):
    """A name that a token cannot have."""

    code = "token_name_invalid"
    message = (
        "not a name for a token; use up to 64 letters, digits, dots, dashes and underscores, "
        "beginning with a letter or digit"
    )


class TokenNameTaken(Conflict):
    """There is a token of this name."""

    code = "token_name_taken"
    message = "there is a token of this name; revoke it first, or choose another name"


class TokenNotFound(NotFound):
    """There is no token of this name."""

    code = "token_not_found"
    message = "no such token; list them with: crush-trio token list"


class TokensUnusable(Unavailable):
    """The file of the tokens cannot be read or written; the detail says why."""

    code = "tokens_unusable"
    message = "the file of the tokens cannot be used"


class RightMissing(CrushError):
    """The token of a request does not have the right that the route needs."""

    code = "right_missing"
    message = "the token does not have the right for this; ask for one with more rights"


class Right(StrEnum):
    """What the holder of a token may do; each right includes the ones before it."""

    WATCH = "watch"
    """Read everything and follow the event streams of workspaces that are open."""
    ANSWER = "answer"
    """Also send prompts, cancel runs, edit queues, and answer permissions and questions."""
    ADMIN = "admin"
    """Everything."""

    def covers(self, needed: "Right") -> bool:
        """Whether this right includes *needed*."""
        return _ORDER[self] >= _ORDER[needed]


_ORDER: Final[Mapping[Right, int]] = {right: place for place, right in enumerate(Right)}


@frozen(kw_only=True)
class NamedToken:
    """A token as the file has it. Times are unix seconds."""

    name: str
    sha256: str = field(repr=False)
    right: Right
    created_at: int
    expires_at: OmitEmpty[int | None] = None

    def expired(self, now: int) -> bool:
        """Whether the token is not valid any more."""
        return self.expires_at is not None and self.expires_at <= now


@frozen(kw_only=True)
class _Content:
    tokens: tuple[NamedToken, ...] = ()


def tokens_path(environ: Mapping[str, str]) -> Path:
    """Return the file of the tokens of the user whose environment is *environ*.

    Without a home directory in *environ*, as in many services, it is in that of the account: a server
    that did not see the tokens of its user would be open to requests without one.
    """
    home = Path(environ.get("HOME", ""))
    if not home.is_absolute():
        home = account_home() or Path("/")
    places = Places(directory=Path("/"), home=home, environment=environ)
    return places.data_file.with_name(FILE_NAME)


# ── Changing the file ───────────────────────────────────────────────────────────────────────────


@frozen
class TokenFile:
    """The file of the tokens. Every method blocks for a moment; raises `TokensUnusable`."""

    path: Path
    clock: Clock = field(factory=SystemClock, repr=False)

    def add(self, name: str, right: Right, seconds: int | None = None) -> str:
        """Store a new token and return it; *seconds* is how long it is valid, None for ever."""
        if not _NAME.fullmatch(name) or name == ENVIRONMENT_TOKEN:
            raise TokenNameInvalid(repr(name))
        token, now = TOKEN_PREFIX + secrets.token_urlsafe(32), self.clock.unix()
        stored = NamedToken(
            name=name,
            sha256=digest_of(token),
            right=right,
            created_at=now,
            expires_at=None if seconds is None else now + seconds,
        )
        with self._changing() as tokens:
            if any(each.name == name for each in tokens):
                raise TokenNameTaken(repr(name))
            self._write((*tokens, stored))
        return token

    def revoke(self, name: str) -> None:
        """Remove the token called *name*."""
        with self._changing() as tokens:
            rest = tuple(each for each in tokens if each.name != name)
            if len(rest) == len(tokens):
                raise TokenNotFound(repr(name))
            self._write(rest)

    def read(self) -> tuple[NamedToken, ...]:
        """Return the tokens, in the order in which they were added."""
        with _usable(self.path):
            try:
                handle = os.open(self.path, _READ)
            except (FileNotFoundError, NotADirectoryError):
                return ()
            with os.fdopen(handle, "rb") as file:
                _check_private(os.fstat(handle))
                # The codec takes as long to import as all that a server needs to listen, and most have no tokens.
                from crush_trio.wire.codec import decode

                return decode(file.read(_FILE_LIMIT), _Content).tokens

    @contextmanager
    def _changing(self) -> Iterator[tuple[NamedToken, ...]]:
        with _usable(self.path), locked(self.path):
            yield self.read()

    def _write(self, tokens: tuple[NamedToken, ...]) -> None:
        from crush_trio.wire.codec import encode  # see `read`

        replace_file(self.path, encode(_Content(tokens=tokens)) + b"\n")


@contextmanager
def _usable(path: Path) -> Iterator[None]:
    try:
        yield
    except LockHeld:
        raise TokensUnusable(f"{path}: another command changes it; try again") from None
    except DecodeError as error:
        raise TokensUnusable(f"{path}: {error.detail}; restore it, or delete it") from error
    except OSError as error:
        raise TokensUnusable(f"{path}: {error.strerror or error}") from error


def _check_private(about: os.stat_result) -> None:
    if not stat.S_ISREG(about.st_mode):
        raise OSError(errno.EINVAL, "not a regular file")
    if about.st_uid != os.geteuid():
        raise OSError(errno.EPERM, "it belongs to another user")
    if stat.S_IMODE(about.st_mode) & 0o077:
        raise OSError(errno.EPERM, "other users can open it; chmod 600 it")


def digest_of(token: str) -> str:
    """Return the hash of a secret, in place of which it is stored."""
    return sha256(token.encode(errors="surrogatepass")).hexdigest()


# ── Clients ─────────────────────────────────────────────────────────────────────────────────────

_SPARE_CLIENTS: Final = 1000
"""How many clients without a claim are remembered at most."""


@define(eq=False)
class ClientTokens:
    """The token with which each client first came, so that another token cannot end its claims.

    *held* returns the clients that have a claim; they are never forgotten, others when there are many.
    """

    _held: Callable[[], Collection[str]] = field(repr=False)
    _tokens: dict[str, str] = field(factory=dict, init=False, repr=False)

    def check(self, client_id: str, token: str, right: Right) -> None:
        """Raise `RightMissing` if the client came with another token, and this one is not admin's."""
        owner = self._tokens.get(client_id)
        if owner is None:
            self._remember(client_id, token)
        elif owner != token and not right.covers(Right.ADMIN):
            raise RightMissing(
                f"{token} may {right}, and the client belongs to another token; use a client id of your own"
            )

    def _remember(self, client_id: str, token: str) -> None:
        self._tokens[client_id] = token
        held = self._held()
        if len(self._tokens) > len(held) + _SPARE_CLIENTS:
            kept = {*held, client_id}
            self._tokens = {each: named for each, named in self._tokens.items() if each in kept}


# ── A server's view ─────────────────────────────────────────────────────────────────────────────


@define(eq=False)
class Tokens:
    """The tokens that a server accepts: the one it was started with, and those in the file.

    A server that has required a token once requires one until it ends, whatever happens to the file:
    revoking the last token, or damaging the file, must not open the server.
    """

    token: str | None = field(default=None, repr=False)
    file: TokenFile | None = None
    clock: Clock = field(factory=SystemClock, repr=False)
    _named: tuple[NamedToken, ...] = field(default=(), init=False, repr=False)
    _state: tuple[int, ...] | None = field(default=None, init=False)
    """What identifies the content of the file that was read; None if there was no file."""
    _required: bool = field(default=False, init=False)

    @property
    def required(self) -> bool:
        """Whether requests need a token. Looks at the file."""
        self._refresh()
        return self._required

    def find(self, given: str) -> tuple[str, Right] | None:
        """Return the name and the right of the token *given*; None if it is not valid.

        Every stored token is compared, in constant time: the answer takes as long for a near miss.
        """
        return self.find_digest(digest_of(given))

    def find_digest(self, given: str) -> tuple[str, Right] | None:
        """Return what `find` does, for a token of which only the hash is known."""
        self._refresh()
        digest, found = given.encode(), None
        if self.token is not None and hmac.compare_digest(digest, digest_of(self.token).encode()):
            found = ENVIRONMENT_TOKEN, Right.ADMIN
        now = self.clock.unix()
        for each in self._named:
            same = hmac.compare_digest(digest, each.sha256.encode(errors="surrogatepass"))
            if same and not each.expired(now):
                found = each.name, each.right
        return found

    def _refresh(self) -> None:
        """Read the file if it has changed. One `stat` per request, so that revoking works at once."""
        self._required = self._required or self.token is not None
        if self.file is None:
            return
        try:
            about = os.stat(self.file.path, follow_symlinks=False)  # noqa: PTH116 - half the time of Path.stat
            state: tuple[int, ...] = (
                *(about.st_mtime_ns, about.st_ino, about.st_size, about.st_mode),
            )
        except (FileNotFoundError, NotADirectoryError):
            self._named, self._state = (), None
            return
        except OSError:
            state = (0,)
        if state == self._state:
            return
        self._state = state
        try:
            self._named = self.file.read()
        except TokensUnusable as error:
            self._named, self._required = (), True
            log.error("tokens.unusable", extra={"reason": error.detail})  # noqa: TRY400
        self._required = self._required or bool(self._named)
