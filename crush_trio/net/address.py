"""Addresses as values: where a server listens, the origin of a URL, and URLs themselves.

Nothing here opens a socket or reads the process's environment. The environment is passed in, so that the
same input gives the same address in a test and on a user's machine. Text that is not an address is
refused, and the error shows the spelling that was probably meant.
"""

import ipaddress
import os
import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Final
from urllib.parse import SplitResult, quote, urljoin, urlsplit

from attrs import field, frozen
from typing_extensions import override

from crush_trio.errors import CrushError
from crush_trio.net.errors import BadUrl

PATH_LIMIT: Final = 104
"""The longest socket path, in bytes, that every Unix we know of can bind."""

PORTS: Final[Mapping[str, int]] = {"http": 80, "https": 443}
"""The default port of each URL scheme."""

HOST_VARIABLE: Final = "CRUSH_TRIO_HOST"
"""The environment variable that names the server for clients; servers do not listen there."""

_EXAMPLES: Final = "write unix:///run/user/1000/crush.sock or tcp://127.0.0.1:8765"


# ── Addresses of servers ────────────────────────────────────────────────────────────────────────


class BadAddress(CrushError):
    """Text that is not an address of a server; the detail says what to write instead."""

    code = "bad_address"
    message = "not the address of a server"


@frozen
class UnixAddress:
    """A socket in the file system; file permissions decide who may connect."""

    path: PurePosixPath
    owner: int | None = field(default=None, eq=False, repr=False)
    """The user whose server must be behind it; None for any. Set if the address was found by default."""
    private: bool = field(default=False, eq=False, repr=False)
    """Whether its directory is the owner's alone: the server makes it, and both sides check it."""

    @override
    def __str__(self) -> str:
        return f"unix://{self.path}"


@frozen
class TcpAddress:
    """A host and a port. Port 0 asks the system for a free one, which the server then reports."""

    host: str
    port: int
    secure: bool = False
    """Whether clients speak TLS there; a server of ours leaves that to Hypercorn or a proxy."""

    @override
    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.secure else 'tcp'}://{host}:{self.port}"


Address = UnixAddress | TcpAddress
"""Any place a server can listen."""


def parse_address(text: str) -> Address:
    """Read `unix://` and an absolute path, or `tcp://host:port`.

    A path after the port is ignored, as clients ignore it. Raises `BadAddress` for anything else.
    """
    scheme, separator, rest = text.partition("://")
    if not separator:
        raise _bad(text, f"there is no scheme; {_with_scheme(text)}")
    if scheme == "unix":
        return _parse_unix(text, rest)
    if scheme == "tcp":
        return _parse_tcp(text)
    if scheme == "https":
        raise _bad(
            text, f"TLS is left to Hypercorn or a proxy, see docs/operations.md; {_EXAMPLES}"
        )
    raise _bad(text, f"{scheme}:// is not a scheme we listen on; {_EXAMPLES}")


def _with_scheme(text: str) -> str:
    """Return what was probably meant by an address without a scheme."""
    if text.startswith("/"):
        return f"write unix://{text}"
    host, _, port = text.rpartition(":")
    return f"write tcp://{text}" if host and port.isdecimal() else _EXAMPLES


def parse_server_url(text: str) -> Address:
    """Read the address of a server as clients name it: also `https://host[:port]` and `http://…`.

    Raises `BadAddress`. A path is refused there: requests go to the root of the server.
    """
    scheme = text.partition("://")[0].lower()
    if scheme not in PORTS:
        return parse_address(text)
    try:
        parts = urlsplit(text)
        port = parts.port or PORTS[scheme]
    except ValueError as error:
        raise _bad(text, f"{error}; write {scheme}://host:port") from None
    if parts.username is not None:
        raise _bad(text, f"credentials do not belong in an address; write {scheme}://host:port")
    if not parts.hostname:
        raise _bad(text, f"the host is missing: write {scheme}://host:port")
    if parts.path not in {"", "/"} or parts.query or parts.fragment:
        raise _bad(text, f"only a host and a port can be named; write {scheme}://{parts.netloc}")
    return TcpAddress(parts.hostname, port, secure=scheme == "https")


def named_server(environ: Mapping[str, str]) -> Address | None:
    """Return the server that `CRUSH_TRIO_HOST` names for clients; None if it is not set or empty."""
    text = environ.get(HOST_VARIABLE)
    if not text:
        return None
    try:
        return parse_server_url(text)
    except BadAddress as error:
        raise BadAddress(f"{HOST_VARIABLE} is {error.detail}") from None


def default_address(
    environ: Mapping[str, str], uid: int | None, *, stem: str = "crush"
) -> UnixAddress:
    """Return the default socket of user *uid*, which servers and clients use unless told otherwise (G14).

    It is in the user's runtime directory. Without one, it is in a private directory among the user's
    state files, or in the temporary directory if that path is too long to bind. Another user could make a
    socket, or a link, with a name that can be guessed; hence a directory, which is checked. A relative
    directory in the environment is ignored, as the XDG specification demands. With another *stem*, it is
    another socket beside it.
    """
    suffix = "" if uid is None else f"-{uid}"
    name = f"{stem}{suffix}.sock"
    if path := _fitting(environ.get("XDG_RUNTIME_DIR"), name):
        return UnixAddress(path, owner=uid)
    home, temporary = environ.get("HOME"), f"crush-trio{suffix}"
    path = (
        _fitting(environ.get("XDG_STATE_HOME"), "crush-trio", "run", name)
        or _fitting(home, ".local", "state", "crush-trio", "run", name)
        or _fitting(environ.get("TMPDIR"), temporary, name)
        or PurePosixPath("/tmp", temporary, name)
    )
    return UnixAddress(path, owner=uid, private=uid is not None)


def _fitting(folder: str | None, *names: str) -> PurePosixPath | None:
    """Return a path below *folder*; None if that is not absolute, or the path is too long to bind."""
    path = PurePosixPath(folder or "", *names)
    return path if path.is_absolute() and len(os.fsencode(path)) <= PATH_LIMIT else None


def is_loopback(address: Address) -> bool:
    """Whether only this machine can reach *address*.

    A name other than `localhost` counts as reachable: what it resolves to can change.
    """
    if isinstance(address, UnixAddress) or address.host == "localhost":
        return True
    try:
        return ipaddress.ip_address(address.host).is_loopback
    except ValueError:
        return False


def _parse_unix(text: str, rest: str) -> UnixAddress:
    if not rest.startswith("/"):
        raise _bad(text, f"the path must be absolute: write unix:///{rest or 'path/to/crush.sock'}")
    if rest.endswith("/"):
        raise _bad(text, "that is a directory: add the name of the socket, as in crush.sock")
    if "\0" in rest:
        raise _bad(text, "a path cannot hold a NUL character")
    return UnixAddress(PurePosixPath(rest))


def _parse_tcp(text: str) -> TcpAddress:
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise _bad(text, f"{error}; write tcp://host:port, as in tcp://127.0.0.1:8765") from None
    if parts.username is not None:
        raise _bad(text, "credentials do not belong in an address; write tcp://host:port")
    if not host:
        raise _bad(
            text, "the host is missing: write tcp://127.0.0.1:8765 to listen on this machine"
        )
    if port is None:
        raise _bad(text, f"the port is missing: write tcp://{parts.netloc.rstrip(':')}:8765")
    return TcpAddress(host, port)


def _bad(text: str, advice: str) -> BadAddress:
    """Return the error for *text*, without a password that may be in it."""
    shown = re.sub("//.*@", "//…@", text)
    return BadAddress(f"{shown!r}: {advice}")


# ── Origins and URLs ────────────────────────────────────────────────────────────────────────────


@frozen
class Origin:
    """A scheme, a host and a port. Connections to the same origin are interchangeable."""

    host: str
    port: int
    secure: bool

    @property
    def scheme(self) -> str:
        """`https` or `http`."""
        return "https" if self.secure else "http"

    @property
    def authority(self) -> str:
        """Host and port, as CONNECT has them."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def name(self) -> str:
        """Host and port as the `Host` header has them: without the port if it is the default one."""
        default = self.port == PORTS[self.scheme]
        return self.authority.removesuffix(f":{self.port}") if default else self.authority


def origin_of(url: str) -> Origin:
    """Return the origin of *url*; raises `BadUrl`. A login in it is ignored."""
    try:
        return origin_of_parts(urlsplit(url))
    except ValueError:
        # The text of these errors would repeat the URL, which may contain a password.
        raise BadUrl("it must begin with http:// or https:// and name a host") from None


def origin_of_parts(parts: SplitResult) -> Origin:
    """Return the origin of a URL that has been split; raises `ValueError` if it has none."""
    if parts.scheme not in PORTS or not parts.hostname:
        raise ValueError(parts.scheme)
    host = parts.hostname if ":" in parts.hostname else parts.hostname.encode("idna").decode()
    return Origin(host, parts.port or PORTS[parts.scheme], parts.scheme == "https")


_BLANK: Final = re.compile(r"[\x00-\x20\x7f]")
_SAFE: Final = "/%:@!$&'()*+,;=~-._?[]|"
"""Characters of a path or a query that are sent unquoted."""


@frozen(kw_only=True)
class Url:
    """A URL of the web, parsed strictly. `target` is the path and query as they are sent.

    A user is shown a URL before it is requested, so both must mean the same. Text that programs
    parse in different ways (with a login, with blanks, without a host) is refused.
    """

    scheme: str
    host: str
    port: int
    target: str

    @classmethod
    def parse(cls, text: str) -> "Url":
        """Parse a URL; raises `BadUrl`, whose detail is a sentence of its own."""
        if not text:
            raise BadUrl("url is required")
        if _BLANK.search(text):
            raise BadUrl("not a usable URL: there is a blank in it")
        try:
            parts = urlsplit(text)
            port = parts.port
            host = _ascii(parts.hostname or "")
        except ValueError as exc:
            raise BadUrl(f"not a usable URL: {exc}") from exc
        if parts.scheme not in PORTS or not host:
            raise BadUrl("the URL must begin with http:// or https:// and name a host")
        if parts.username is not None:
            raise BadUrl("the URL must not hold a login")
        query = f"?{quote(parts.query, safe=_SAFE)}" if parts.query else ""
        return cls(
            scheme=parts.scheme,
            host=host,
            port=PORTS[parts.scheme] if port is None else port,
            target=quote(parts.path or "/", safe=_SAFE) + query,
        )

    def join(self, reference: str) -> "Url":
        """Return the URL that *reference*, as in a `Location` header, points to from here."""
        try:
            return Url.parse(urljoin(str(self), reference.strip()))
        except ValueError as exc:
            raise BadUrl(f"not a usable URL: {exc}") from exc

    @property
    def origin(self) -> Origin:
        """The server to connect to."""
        return Origin(self.host, self.port, self.scheme == "https")

    @override
    def __str__(self) -> str:
        return f"{self.scheme}://{self.origin.name}{self.target}"


def _ascii(host: str) -> str:
    """Return *host* as it is looked up; raises `UnicodeError`, which is a `ValueError`."""
    return host if host.isascii() else host.encode("idna").decode("ascii")
