"""The HTTP and SSE surface over a backend, and the sockets it is served on.

`serve` runs an application in a nursery of yours; `addresses` says where it may listen. This is the
only package that knows of Quart and Hypercorn.
"""

from crush_trio.net.address import (
    Address,
    BadAddress,
    TcpAddress,
    UnixAddress,
    default_address,
    is_loopback,
    parse_address,
)
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

__all__ = [
    "Address",
    "AddressExposed",
    "AddressInUse",
    "BadAddress",
    "CannotListen",
    "LifespanFailed",
    "Listening",
    "StreamNeedsHttp1",
    "TcpAddress",
    "UnixAddress",
    "begin_stream",
    "default_address",
    "is_loopback",
    "open_listeners",
    "parse_address",
    "safe_app",
    "serve",
    "wait_for_signal",
]
