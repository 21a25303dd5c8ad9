"""Where a server listens, as values: how an address is written, read, and chosen by default.

Nothing here opens a socket or looks at the process. The environment is passed in, so that the same
input gives the same address in a test and on a stranger's machine. An address that cannot be meant
is refused with the spelling that could have been: a server that listens somewhere else than its
clients look is worse than one that does not start.
"""

import ipaddress
import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Final
from urllib.parse import urlsplit

from attrs import frozen
from typing_extensions import override

from crush_trio.errors import CrushError

PATH_LIMIT: Final = 104
"""The longest socket path, in bytes, that every Unix we know of can bind."""

_EXAMPLES: Final = "write unix:///run/user/1000/crush.sock or tcp://127.0.0.1:8765"


class BadAddress(CrushError):
    """Text that is not an address of a server; the detail says what to write instead."""

    code = "bad_address"
    message = "not an address to listen on"


@frozen
class UnixAddress:
    """A socket in the file system; who may connect is a matter of file permissions."""

    path: PurePosixPath

    @override
    def __str__(self) -> str:
        return f"unix://{self.path}"


@frozen
class TcpAddress:
    """A host and a port. Port 0 asks the system for a free one, which the server then reports."""

    host: str
    port: int

    @override
    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"tcp://{host}:{self.port}"


Address = UnixAddress | TcpAddress
"""Any place a server can listen."""


def parse_address(text: str) -> Address:
    """Read `unix://` and an absolute path, or `tcp://host:port`.

    A path after the port is ignored, as clients ignore it. Raises `BadAddress` for anything else.
    """
    scheme, separator, rest = text.partition("://")
    if not separator:
        raise _bad(text, f"there is no scheme; {_EXAMPLES}")
    if scheme == "unix":
        return _parse_unix(text, rest)
    if scheme == "tcp":
        return _parse_tcp(text)
    raise _bad(text, f"{scheme}:// is not a scheme we listen on; {_EXAMPLES}")


def default_address(environ: Mapping[str, str], uid: int | None) -> UnixAddress:
    """Return the socket that clients of user *uid* look for when nobody names one (G14).

    It lies in the user's runtime directory, else in the temporary directory. A path too long to
    bind gives way to `/tmp`. A relative runtime directory is no directory, as its standard says.
    """
    name = "crush.sock" if uid is None else f"crush-{uid}.sock"
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    folder = runtime if runtime.startswith("/") else environ.get("TMPDIR") or "/tmp"
    path = PurePosixPath(folder, name)
    if not path.is_absolute() or len(str(path).encode()) > PATH_LIMIT:
        path = PurePosixPath("/tmp", name)
    return UnixAddress(path)


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
    """Return the refusal of *text*, without the password that somebody may have put into it."""
    shown = re.sub("//.*@", "//…@", text)
    return BadAddress(f"{shown!r}: {advice}")
