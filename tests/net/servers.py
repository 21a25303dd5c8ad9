"""Servers on real sockets for the tests of the network: deaf ones, with TLS, and a proxy."""

import ssl
import subprocess
from contextlib import asynccontextmanager, suppress

import trio
from attrs import define, field


@define(eq=False)
class Deaf:
    """A server that accepts, listens and never answers."""

    port: int = 0
    endings: list = field(factory=list)
    _ended: trio.lowlevel.ParkingLot = field(factory=trio.lowlevel.ParkingLot)

    async def serve(self, stream):
        async with stream:
            with suppress(trio.BrokenResourceError):
                while await stream.receive_some():
                    pass
            self.endings.append(trio.current_time())
            self._ended.unpark_all()

    async def ended(self, times):
        while len(self.endings) < times:
            await self._ended.park()


@asynccontextmanager
async def open_deaf_server():
    deaf = Deaf()
    async with trio.open_nursery() as nursery:
        [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        deaf.port = listener.socket.getsockname()[1]
        nursery.start_soon(trio.serve_listeners, deaf.serve, [listener])
        yield deaf
        nursery.cancel_scope.cancel()


def make_certificate(place):
    """Return the files of a key and of a self-signed certificate for this machine."""
    key, cert = place / "key.pem", place / "cert.pem"
    names = "subjectAltName=DNS:localhost,IP:127.0.0.1"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext", names),
            *("-keyout", key, "-out", cert),
        ],
        check=True,
        capture_output=True,
    )
    return key, cert


@asynccontextmanager
async def open_secure_server(certificate, serve_stream):
    """Listen with TLS, and serve each connection with *serve_stream*; yield the port."""
    key, cert = certificate
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)

    async def serve(stream):
        tls = trio.SSLStream(stream, context, server_side=True, https_compatible=True)
        with suppress(trio.BrokenResourceError):  # a client that does not believe us
            await serve_stream(tls)

    async with trio.open_nursery() as nursery:
        [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, serve, [listener])
        yield listener.socket.getsockname()[1]
        nursery.cancel_scope.cancel()


@define(eq=False)
class ConnectProxy:
    """A proxy that connects every tunnel to the same place, or refuses."""

    port: int
    status: bytes = b"200 Connected"
    """What it answers; a request that is not CONNECT is answered with `ok`."""
    asked: list = field(factory=list)

    async def serve(self, client):
        async with client:
            head = b""
            while b"\r\n\r\n" not in head:
                head += await client.receive_some()
            self.asked.append(head.decode().split("\r\n"))
            if not head.startswith(b"CONNECT"):
                await client.send_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
                return
            await client.send_all(b"HTTP/1.1 %b\r\n\r\n" % self.status)
            if self.status.startswith(b"200"):
                async with await trio.open_tcp_stream("127.0.0.1", self.port) as server:
                    await self._relay(client, server)

    async def _relay(self, client, server):
        async def pump(source, sink):
            with suppress(trio.BrokenResourceError):
                async for data in source:
                    await sink.send_all(data)
            nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(pump, client, server)
            nursery.start_soon(pump, server, client)


@asynccontextmanager
async def open_proxy(port, **more):
    proxy = ConnectProxy(port, **more)
    async with trio.open_nursery() as nursery:
        [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, proxy.serve, [listener])
        yield proxy, listener.socket.getsockname()[1]
        nursery.cancel_scope.cancel()
