"""A TCP proxy before a server, which cuts connections at chosen moments, resets them, or holds bytes back.

It has threads of its own, so it works whatever its user runs on.
"""

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

SIZE: Final = 65_536
_RESET: Final = struct.pack("ii", 1, 0)
"""`SO_LINGER` of a socket that is closed with a reset."""


class Proxy:
    """Passes bytes on. `cut` ends all connections and refuses new ones until `mend`."""

    def __init__(self, port: int) -> None:
        self._target = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._refuses = False
        self._flows = threading.Event()
        self._flows.set()
        self.at: bytes | None = None
        """Bytes of the client at which to cut once: before they were sent on, or after."""
        self.when = "before"
        self.connections = 0
        self._start(self._accept)

    def cut(self) -> None:
        """End all connections, and refuse new ones."""
        self._refuses = True
        self._for_all(self._end)

    def reset(self) -> None:
        """End all connections with a reset, as a router does that has restarted; new ones are accepted."""
        self._for_all(self._break)

    def hold(self) -> None:
        """Pass nothing on and say nothing, as a network that is gone; `mend` delivers what was held."""
        self._flows.clear()

    def mend(self) -> None:
        """Accept connections, and pass everything on."""
        self._refuses = False
        self._flows.set()

    def cut_at(self, text: bytes, *, when: str) -> None:
        """Cut the connection that sends *text* next, before the server gets it or after; only that one."""
        self.at, self.when = text, when

    def close(self) -> None:
        """End everything."""
        self.cut()
        self._flows.set()
        self._end(self._listener)
        for thread in self._threads:
            thread.join(10)

    def _for_all(self, do: Callable[[socket.socket], None]) -> None:
        with self._lock:
            sockets = list(self._open)
        for each in sockets:
            do(each)

    def _start(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self._refuses:
                    client.close()
                    continue
                try:
                    server = socket.create_connection(self._target)
                except OSError:  # the server is down
                    client.close()
                    continue
                self.connections += 1
                with self._lock:
                    self._open |= {client, server}
                unheard = threading.Event()
                self._start(self._pump, client, server, unheard, True)
                self._start(self._pump, server, client, unheard, False)
        self._listener.close()

    def _pump(
        self,
        source: socket.socket,
        sink: socket.socket,
        unheard: threading.Event,
        of_client: bool,
    ) -> None:
        """Pass bytes on in one direction. What the server says once *unheard* is set ends both."""
        with suppress(OSError):
            while data := source.recv(SIZE):
                if of_client and self.at is not None and self.at in data:
                    self.at = None
                    if self.when == "before":
                        break
                    unheard.set()
                elif not of_client and unheard.is_set():
                    break
                self._flows.wait()
                sink.sendall(data)
        self._flows.wait()  # the end of a connection is not heard of either
        for each in (source, sink):
            self._end(each)
        with self._lock:
            self._open.discard(source)
        source.close()

    def _end(self, each: socket.socket) -> None:
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)

    def _break(self, each: socket.socket) -> None:
        with suppress(OSError):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            each.shutdown(socket.SHUT_RD)


@contextmanager
def open_proxy(port: int) -> Iterator[Proxy]:
    """Open a proxy before *port* of this machine during the block."""
    proxy = Proxy(port)
    try:
        yield proxy
    finally:
        proxy.close()
