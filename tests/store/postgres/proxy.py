"""A TCP proxy between a store and its server, which can cut connections at chosen moments."""

import socket
import threading
from contextlib import contextmanager, suppress

SIZE = 65_536


class Proxy:
    """Passes bytes on. `cut` ends all connections and refuses new ones until `mend`."""

    def __init__(self, port):
        self._target = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._open = set()
        self._threads = []
        self._refuses = False
        self.at = None
        """Bytes of the client at which to cut once: before they were sent on, or after."""
        self.when = "before"
        self.connections = 0
        self._start(self._accept)

    def cut(self):
        with self._lock:
            self._refuses = True
            sockets = list(self._open)
        for each in sockets:
            self._end(each)

    def mend(self):
        self._refuses = False

    def cut_at(self, text, *, when):
        """Cut the connection that sends *text* next, before the server gets it or after; only that one."""
        self.at, self.when = text, when

    def close(self):
        self.cut()
        self._end(self._listener)
        for thread in self._threads:
            thread.join(10)

    def _start(self, target, *arguments):
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self):
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self._refuses:
                    client.close()
                    continue
                server = socket.create_connection(self._target)
                self.connections += 1
                with self._lock:
                    self._open |= {client, server}
                unheard = threading.Event()
                self._start(self._pump, client, server, unheard, True)
                self._start(self._pump, server, client, unheard, False)
        self._listener.close()

    def _pump(self, source, sink, unheard, of_client):
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
                sink.sendall(data)
        for each in (source, sink):
            self._end(each)
        with self._lock:
            self._open.discard(source)
        source.close()

    def _end(self, each):
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


@contextmanager
def open_proxy(port):
    proxy = Proxy(port)
    try:
        yield proxy
    finally:
        proxy.close()
