"""Settings of a server: its guard and token, its backend, its limits.

Importing this module loads neither Quart nor Hypercorn, so a program can make its settings before it
decides to serve.
"""

import logging
import os
import re
import stat
from collections.abc import Iterable, Mapping
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from attrs import evolve, field, frozen

from crush_trio.agent.asks.attendance import DEFAULT_PATIENCE
from crush_trio.audit.record import NO_PLACE, audit_path
from crush_trio.backend.settings import IDLE_VARIABLE, BackendSettings, whole_seconds
from crush_trio.config.sources import Places
from crush_trio.errors import BadRequest, CrushError
from crush_trio.limits import DEFAULTS, VARIABLE, SizeLimits
from crush_trio.net.address import HOST_VARIABLE, TcpAddress, parse_server_url
from crush_trio.server.http.sockets import OWNER_ONLY, SocketAccess
from crush_trio.server.service_manager import MANAGER_VARIABLES
from crush_trio.server.tokens import tokens_path
from crush_trio.store.lease import TTL
from crush_trio.store.open import STORE_VARIABLE, StoreSettings

if TYPE_CHECKING:
    from crush_trio.net.dial import Dial
    from crush_trio.store.open import OpenSharedStore

log = logging.getLogger(__name__)

RECENT_NAME: Final = "recent.json"
"""The file with the directories that were used lately, in the user's data directory."""

REGISTER_NAME: Final = "workspaces"
"""The directory of the register of open workspaces, in the same place."""

TOKEN_VARIABLE: Final = "CRUSH_TRIO_TOKEN"
"""The environment variable that holds the token."""

TOKEN_FILE_VARIABLE: Final = "CRUSH_TRIO_TOKEN_FILE"
"""The environment variable that names the file which holds the token."""

PATIENCE_VARIABLE: Final = "CRUSH_TRIO_PATIENCE"
"""The environment variable with the seconds that an ask waits while no client is attached."""

PUBLIC_URL_VARIABLE: Final = "CRUSH_TRIO_PUBLIC_URL"
"""The environment variable with the address of the page behind a proxy."""

ADVERTISE_VARIABLE: Final = "CRUSH_TRIO_ADVERTISE"
"""The environment variable with the address at which other nodes of a cluster reach this server."""

TTL_VARIABLE: Final = "CRUSH_TRIO_LEASE_TTL"
"""The environment variable with the seconds for which leases of workspaces hold."""

LEAST_TTL: Final = 0.5
MOST_TTL: Final = 600.0

TOKEN_LENGTH: Final = 16
"""The fewest characters a token may have; a shorter one can be guessed."""

_TOKEN_FILE_LIMIT: Final = 4096

_NOT_FOR_COMMANDS: Final = MANAGER_VARIABLES | {
    TOKEN_VARIABLE,
    TOKEN_FILE_VARIABLE,
    HOST_VARIABLE,
    STORE_VARIABLE,
}
"""Variables that commands of a workspace must not see."""


class TokenUnusable(CrushError):
    """The server's token cannot be used. The server does not start, rather than start without one."""

    code = "token_unusable"
    message = "the server's token cannot be used"


class PublicUrlInvalid(BadRequest):
    """The public address of a server is not one that a page can have."""

    code = "public_url_invalid"
    message = "not an address that a page can have"


class AdvertiseInvalid(CrushError):
    """The place of a server in its cluster cannot be what its settings say."""

    code = "advertise_invalid"
    message = "the server cannot take part in a cluster so"

    @classmethod
    def address(cls, why: str) -> Self:
        """Return the error for an address that other servers cannot use."""
        return cls(f"{why}; write --advertise tcp://HOST:PORT")


class LeaseTtlInvalid(CrushError):
    """Leases cannot last for as long as the settings of a server say."""

    code = "lease_ttl_invalid"
    message = "leases cannot last so long; correct --lease-ttl or CRUSH_TRIO_LEASE_TTL"


def _lowered(names: Iterable[str]) -> frozenset[str]:
    return frozenset(name.lower() for name in names)


@frozen(kw_only=True)
class GuardSettings:
    """Which requests are let in. The default: all from this machine, except those of foreign web pages."""

    hosts: frozenset[str] = field(default=frozenset(), converter=_lowered)
    """Names of this server besides those of the loopback: `name` for any port, or `name:port`."""
    origins: frozenset[str] = field(default=frozenset(), converter=_lowered)
    """Foreign web pages that may use this server, as `https://name[:port]`."""
    token: str | None = field(default=None, repr=False)
    """A token with all rights. If it is set, every request must carry a token, on either transport."""
    token_file: Path | None = None
    """The file of the named tokens (`server.tokens`). If it has any, every request must carry a token."""
    open_to_owner: bool = False
    """Whether the server's own user needs no token on a Unix socket; the kernel says who it is.

    Not for a socket behind a proxy that runs as this user: its clients would need none either.
    """
    loopback_only: bool = False
    """Whether a server without a token refuses requests on addresses that other machines can reach.

    For servers whose sockets are opened by another program, which does not know this rule.
    """

    public_url: str | None = None
    """The address of the page behind a proxy, as `https://name[:port]`; `behind` adds its host and origin."""
    login_code: str | None = field(default=None, repr=False)
    """A code with which one browser can log in, soon after the start."""

    @token.validator
    def _must_not_be_empty(self, _attribute: object, token: str | None) -> None:
        if token == "":
            raise TokenUnusable("it is empty")

    def behind(self, public_url: str) -> Self:
        """Return these settings for a server that browsers reach at *public_url*; raises `PublicUrlInvalid`."""
        origin, authority = _parse_public_url(public_url)
        return evolve(
            self,
            public_url=origin,
            hosts=self.hosts | {authority},
            origins=self.origins | {origin},
        )


_PUBLIC_URL: Final = re.compile(
    r"(https?)://(\[[0-9a-f:.]+\]|[a-z0-9_](?:[a-z0-9_.-]*[a-z0-9_])?)(?::([0-9]{1,5}))?/?"
)
_USUAL_PORTS: Final = {"http": "80", "https": "443"}


def _parse_public_url(text: str) -> tuple[str, str]:
    """Return the origin and the authority of a public URL, as browsers write them."""
    match = _PUBLIC_URL.fullmatch(text.strip().lower())
    if match is None:
        raise PublicUrlInvalid(f"{text!r}; write https://NAME or https://NAME:PORT, without a path")
    scheme, name, port = match[1], match[2], match[3]
    usual = port is None or port == _USUAL_PORTS[scheme]
    authority = name if usual else f"{name}:{port}"
    return f"{scheme}://{authority}", authority


@frozen(kw_only=True)
class ClusterSettings:
    """How a server takes part in a cluster. It does so if its store is one that several servers share."""

    advertise: str = ""
    """The address at which the other nodes reach this one; without one they cannot ask it."""
    lease_ttl: float = TTL
    """Seconds after which the workspaces of a server that is gone can be taken over; the same on all nodes."""
    open_store: "OpenSharedStore | None" = field(default=None, repr=False)
    """Opens a shared store of the program's own."""
    dial: "Dial | None" = field(default=None, repr=False)
    """Opens connections to the other nodes; by default over TCP."""

    @classmethod
    def of(cls, advertise: str, lease_ttl: float = TTL) -> Self:
        """Return the settings of a node at *advertise*, as people write it.

        Raises `AdvertiseInvalid` and `LeaseTtlInvalid`.
        """
        if not LEAST_TTL <= lease_ttl <= MOST_TTL:
            text = f"{lease_ttl:g} is not between {LEAST_TTL:g} and {MOST_TTL:g} seconds"
            raise LeaseTtlInvalid(text)
        if not advertise:
            return cls(lease_ttl=lease_ttl)
        try:
            address = parse_server_url(advertise)
        except CrushError as error:
            raise AdvertiseInvalid.address(error.detail) from error
        if not isinstance(address, TcpAddress) or not address.port:
            raise AdvertiseInvalid.address(f"{advertise!r} has no host and port")
        if address.host in {"0.0.0.0", "::"}:
            raise AdvertiseInvalid(f"{address.host} is every address; name the one of this machine")
        return cls(advertise=str(address), lease_ttl=lease_ttl)


@frozen(kw_only=True)
class ServerSettings:
    """How a server treats its workspaces and its clients."""

    backend: BackendSettings = field(factory=lambda: BackendSettings(idle_linger=inf))
    guard: GuardSettings = field(factory=GuardSettings)
    sizes: SizeLimits = DEFAULTS
    """Limits on what the server accepts, stores and does at once."""
    environment: Mapping[str, str] = field(factory=dict, repr=False)
    """The environment that configures workspaces whose clients send none of their own."""
    patience: float = DEFAULT_PATIENCE
    """Seconds that an ask waits while no client is attached to answer it."""
    audit: Path | None = None
    """The file of the audit; None records nothing."""
    recent: Path | None = None
    """The file with the directories that were used lately; None keeps none."""
    register: Path | None = None
    """The directory of the register of open workspaces, for a store of the server's own; None keeps none."""
    store: StoreSettings = field(factory=StoreSettings)
    """Which store keeps the data of workspaces."""
    cluster: ClusterSettings = field(factory=ClusterSettings)
    """What other servers on the same store need to know."""
    restore_sockets: float = inf
    """Seconds within which a socket file that was deleted is made again; by default never."""
    socket_access: SocketAccess = OWNER_ONLY
    """Who may open the socket files."""

    @property
    def clustered(self) -> bool:
        """Whether the server shares its store with others."""
        return self.store.shared or self.cluster.open_store is not None

    @property
    def secrets(self) -> tuple[str, ...]:
        """The server's own secrets, which no log and no workspace may show."""
        token = (self.guard.token,) if self.guard.token else ()
        return token + self.store.secrets

    @property
    def home(self) -> Path:
        """The user's home directory, which holds the user's own configuration."""
        return Path(self.environment.get("HOME") or "/")

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Self:
        """Read the settings from *environ*; reads the token's file if *environ* names one.

        Workspaces get all of *environ* except the server's token. A server stays until it is stopped,
        unless the variable for the idle time is set, as it is for a server that a client starts for
        itself. Raises `TokenUnusable`, `PublicUrlInvalid`, `LimitInvalid`, `StoreUnknown`, and `ConfigInvalid` for limits in the user's
        files.
        """
        backend = BackendSettings.from_environment(environ)
        if not environ.get(IDLE_VARIABLE):
            backend = evolve(backend, idle_linger=inf)
        guard = GuardSettings(token=load_token(environ), token_file=tokens_path(environ))
        if public_url := environ.get(PUBLIC_URL_VARIABLE):
            guard = guard.behind(public_url)
        store = StoreSettings.from_environment(environ)
        beside = _user_places(environ).data_file
        return cls(
            backend=backend,
            guard=guard,
            environment={k: v for k, v in environ.items() if k not in _NOT_FOR_COMMANDS},
            patience=whole_seconds(environ, PATIENCE_VARIABLE, DEFAULT_PATIENCE),
            sizes=_chosen_sizes(environ),
            audit=audit_path(environ),
            recent=beside.with_name(RECENT_NAME),
            register=beside.with_name(REGISTER_NAME),
            store=store,
            cluster=ClusterSettings.of(
                environ.get(ADVERTISE_VARIABLE, ""), _lease_ttl(environ.get(TTL_VARIABLE))
            ),
        )


def _user_places(environ: Mapping[str, str]) -> Places:
    """Return where the user whose environment is *environ* has files."""
    home = Path(environ.get("HOME") or "/")
    home = home if home.is_absolute() else Path("/")
    return Places(directory=Path("/"), home=home, environment=environ)


def _chosen_sizes(environ: Mapping[str, str]) -> SizeLimits:
    """Return the limits of *environ* and of the user's files."""
    paths = [source.path for source in _user_places(environ).user_sources()]
    if not environ.get(VARIABLE) and not any(map(_may_exist, paths)):
        return DEFAULTS
    # What reads the files takes longer to import than all that a server needs to listen.
    from crush_trio.config.checks import chosen_limits

    return chosen_limits(environ)


def _may_exist(path: Path) -> bool:
    """Whether there is anything at *path*, or no way to see that there is nothing."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def _lease_ttl(text: str | None) -> float:
    try:
        return TTL if text is None else float(text)
    except ValueError:
        raise LeaseTtlInvalid(f"{TTL_VARIABLE} is {text!r}, which is no number") from None


def warn_without_audit(settings: ServerSettings) -> None:
    """Log that nothing is recorded, if the environment names no place for the audit."""
    if settings.audit is None:
        log.warning("audit.none", extra={"reason": NO_PLACE})


# ── The server's token ──────────────────────────────────────────────────────────────────────────


def load_token(environ: Mapping[str, str]) -> str | None:
    """Return the token from *environ*, or from the file that it names; None if it has neither.

    Raises `TokenUnusable` for anything doubtful: a variable that is set and empty is most likely a
    token that got lost, not a wish to do without one. Reads a small file.
    """
    token, path = environ.get(TOKEN_VARIABLE), environ.get(TOKEN_FILE_VARIABLE)
    if token is not None and path is not None:
        raise TokenUnusable(f"set {TOKEN_VARIABLE} or {TOKEN_FILE_VARIABLE}, not both")
    if token is not None:
        return _checked(token, TOKEN_VARIABLE)
    if path is not None:
        return _checked(_read_private(path), path)
    return None


def _checked(token: str, source: str) -> str:
    if not token:
        raise TokenUnusable(f"{source} is empty; put a token there, or unset the variable")
    if len(token) < TOKEN_LENGTH:
        raise TokenUnusable(f"the token in {source} needs at least {TOKEN_LENGTH} characters")
    if not (token.isascii() and token.isprintable() and " " not in token):
        raise TokenUnusable(f"the token in {source} may hold letters, digits and signs only")
    return token


def _read_private(path: str) -> str:
    """Return the one line of a file that other users cannot read; the open file is what is checked."""
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
