"""`ServiceManager`: tells systemd how the server is, if it was started by a unit with `Type=notify`.

The protocol is one datagram per message to the Unix socket that `NOTIFY_SOCKET` names (sd_notify(3)). A
server that was not started this way has a manager without a socket, which does nothing.

With `WatchdogSec=` in the unit, `watch` sends a sign of life from a task of the server. If the loop hangs,
none is sent, and systemd restarts the service. What cannot be sent is logged once and never hurts: the
server is worth more than its manager.
"""

import logging
import os
import socket
import time
from collections.abc import Mapping
from math import inf
from typing import Final, Self

import trio
from attrs import define, field

NOTIFY_VARIABLE: Final = "NOTIFY_SOCKET"
"""The environment variable with the address of the service manager."""

WATCHDOG_VARIABLE: Final = "WATCHDOG_USEC"
"""The environment variable with the microseconds after which a silent service is restarted."""

WATCHDOG_PID_VARIABLE: Final = "WATCHDOG_PID"
"""The environment variable with the process that must send the signs of life."""

MANAGER_VARIABLES: Final = frozenset({NOTIFY_VARIABLE, WATCHDOG_VARIABLE, WATCHDOG_PID_VARIABLE})
"""Variables for the server alone: a command that had them could speak for the service."""

SIGNS_PER_LIMIT: Final = 3
"""How many signs of life are sent within the time after which the service would be restarted."""

STOP_MARGIN: Final = 15.0
"""Seconds that the service manager is asked to wait for the stop, beyond the drain and the grace."""

log = logging.getLogger(__name__)


@define(eq=False)
class ServiceManager:
    """The service manager of this process; without an *address* there is none. Nothing here waits or raises."""

    address: str = ""
    """The path of its socket; an abstract one begins with `@`."""
    limit: float = inf
    """Seconds without a sign of life after which it restarts the service."""
    _failed: bool = field(default=False, init=False)
    _stopping: bool = field(default=False, init=False)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Self:
        """Return the manager that *environ* names."""
        address = environ.get(NOTIFY_VARIABLE, "")
        if address[:1] not in {"/", "@"}:
            return cls()
        return cls(address, _watchdog_limit(environ))

    def ready(self, status: str) -> None:
        """Tell that clients are answered."""
        self._tell("READY=1", f"STATUS={status}")

    def reloading(self) -> None:
        """Tell that the configuration is read again; `ready` ends it."""
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self._tell("RELOADING=1", f"MONOTONIC_USEC={now}", "STATUS=Reading the configuration")

    def status(self, text: str) -> None:
        """Tell people what the server does; one line."""
        self._tell(f"STATUS={text}")

    def stopping(self, seconds: float) -> None:
        """Tell, once, that the server ends within *seconds* and a margin; later calls do nothing."""
        if not self._stopping:
            self._stopping = True
            wait = int((seconds + STOP_MARGIN) * 1_000_000)
            self._tell("STOPPING=1", f"EXTEND_TIMEOUT_USEC={wait}", "STATUS=Stopping")

    async def watch(self) -> None:
        """Send signs of life until cancelled; without a watchdog, only wait."""
        while True:
            if self.limit < inf:
                self._tell("WATCHDOG=1")
            await trio.sleep(self.limit / SIGNS_PER_LIMIT)

    def _tell(self, *lines: str) -> None:
        if not self.address:
            return
        data = "".join(f"{' '.join(line.splitlines())}\n" for line in lines).encode()
        name = f"\0{self.address[1:]}" if self.address.startswith("@") else self.address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.setblocking(False)
                sender.sendto(data, name)
        except OSError as error:
            if not self._failed:
                log.warning("service_manager.not_told", extra={"error": str(error)})
            self._failed = True
        else:
            self._failed = False


def _watchdog_limit(environ: Mapping[str, str]) -> float:
    """Return the seconds of the watchdog; never, if there is none or it is for another process."""
    text, pid = environ.get(WATCHDOG_VARIABLE, ""), environ.get(WATCHDOG_PID_VARIABLE)
    if pid not in {None, "", str(os.getpid())}:
        return inf
    usable = text.isascii() and text.isdigit() and len(text) < 19 and int(text) > 0
    return int(text) / 1_000_000 if usable else inf
