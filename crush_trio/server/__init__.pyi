# The names of `__init__.py`, for type checkers and editors.

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
    SocketAccess,
    SocketExposed,
    open_listeners,
)
from crush_trio.server.logging import LogFormat, LogLevel, open_log
from crush_trio.server.run import Orders, open_server, run_server
from crush_trio.server.service_manager import ServiceManager
from crush_trio.server.settings import ClusterSettings, GuardSettings, ServerSettings

__all__ = [
    "Address",
    "AddressExposed",
    "AddressInUse",
    "BadAddress",
    "CannotListen",
    "ClusterSettings",
    "GuardSettings",
    "LifespanFailed",
    "Listening",
    "LogFormat",
    "LogLevel",
    "Orders",
    "ServerSettings",
    "ServiceManager",
    "SocketAccess",
    "SocketExposed",
    "StreamNeedsHttp1",
    "TcpAddress",
    "UnixAddress",
    "begin_stream",
    "default_address",
    "is_loopback",
    "open_listeners",
    "open_log",
    "open_server",
    "parse_address",
    "run_server",
    "safe_app",
    "serve",
    "wait_for_signal",
]
