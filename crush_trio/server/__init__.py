"""The HTTP and SSE surface over a backend, and the sockets it is served on.

`open_server` serves for the length of a block; `serve` runs any ASGI application as a task. Importing this
package loads neither Quart nor Hypercorn: names that need them are loaded when they are first used.
"""

from contextlib import AbstractAsyncContextManager
from importlib import import_module
from typing import TYPE_CHECKING, Final

from crush_trio.net.address import (
    Address,
    BadAddress,
    TcpAddress,
    UnixAddress,
    default_address,
    is_loopback,
    parse_address,
)

if TYPE_CHECKING:
    from crush_trio.backend.settings import OpenWorkspace
    from crush_trio.backend.workspace import HostedWorkspace
    from crush_trio.server.http.hypercorn import safe_app
    from crush_trio.server.http.outgoing import StreamNeedsHttp1, begin_stream
    from crush_trio.server.http.serve import LifespanFailed, serve, wait_for_signal
    from crush_trio.server.http.sockets import (
        AddressExposed,
        AddressInUse,
        CannotListen,
        Listening,
        open_listeners,
    )
    from crush_trio.server.settings import GuardSettings, ServerSettings

__all__ = [
    "Address",
    "AddressExposed",
    "AddressInUse",
    "BadAddress",
    "CannotListen",
    "GuardSettings",
    "LifespanFailed",
    "Listening",
    "ServerSettings",
    "StreamNeedsHttp1",
    "TcpAddress",
    "UnixAddress",
    "begin_stream",
    "default_address",
    "is_loopback",
    "open_listeners",
    "open_server",
    "parse_address",
    "safe_app",
    "serve",
    "wait_for_signal",
]

_LATE: Final = {
    "AddressExposed": "http.sockets",
    "AddressInUse": "http.sockets",
    "CannotListen": "http.sockets",
    "GuardSettings": "settings",
    "LifespanFailed": "http.serve",
    "Listening": "http.sockets",
    "ServerSettings": "settings",
    "StreamNeedsHttp1": "http.outgoing",
    "begin_stream": "http.outgoing",
    "open_listeners": "http.sockets",
    "safe_app": "http.hypercorn",
    "serve": "http.serve",
    "wait_for_signal": "http.serve",
}
"""The modules of the names that are loaded when they are first used."""


def __getattr__(name: str) -> object:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LATE[name]}"), name)


def open_server(
    *addresses: str | Address,
    settings: "ServerSettings | None" = None,
    opener: "OpenWorkspace[HostedWorkspace] | None" = None,
    grace: float = 3.0,
) -> AbstractAsyncContextManager[tuple[Address, ...]]:
    """Serve on *addresses* for the length of the block; see `crush_trio.server.embed.open_server`."""
    from crush_trio.server import embed

    return embed.open_server(*addresses, settings=settings, opener=opener, grace=grace)
