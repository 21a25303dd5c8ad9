"""The HTTP and SSE surface over a backend, and the sockets it is served on.

`run` runs a server, `server` is what its routes share, `app` the application. `routing` and `routes/` are
the route table and its handlers, `openapi` the documents made from it. `guard` checks requests, `tokens`
has the named tokens, `audit_notes` says what requests leave in the audit, `bodies` reads them, `status` answers errors, `sse` sends events; `prometheus`, `logging` and `service_manager` are for operators.
`http/` has the connections and sockets.

`open_server` serves for the length of a block; `serve` runs any ASGI application as a task. A name's
module is loaded when the name is first used, so importing this package loads neither Quart nor
Hypercorn.
"""

from typing import Final

from crush_trio._exports import Homes, lazy, names_of

_HOMES: Final[Homes] = {
    "crush_trio.net.address": (
        "Address",
        "BadAddress",
        "TcpAddress",
        "UnixAddress",
        "default_address",
        "is_loopback",
        "parse_address",
    ),
    "crush_trio.server.http.hypercorn": ("safe_app",),
    "crush_trio.server.http.outgoing": (
        "StreamNeedsHttp1",
        "begin_stream",
    ),
    "crush_trio.server.http.serve": (
        "LifespanFailed",
        "serve",
        "wait_for_signal",
    ),
    "crush_trio.server.http.sockets": (
        "AddressExposed",
        "AddressInUse",
        "CannotListen",
        "Listening",
        "SocketAccess",
        "SocketExposed",
        "open_listeners",
    ),
    "crush_trio.server.logging": (
        "LogFormat",
        "LogLevel",
        "open_log",
    ),
    "crush_trio.server.run": (
        "Orders",
        "open_server",
        "run_server",
    ),
    "crush_trio.server.service_manager": ("ServiceManager",),
    "crush_trio.server.settings": (
        "ClusterSettings",
        "GuardSettings",
        "ServerSettings",
    ),
}

__all__ = names_of(_HOMES)
__getattr__, __dir__ = lazy(__name__, _HOMES)
