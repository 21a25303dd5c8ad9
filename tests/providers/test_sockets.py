"""Real sockets, TLS and proxies: whatever is opened is closed, at once and by whoever opened it."""

import gc
import os
import ssl
import subprocess
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import trio
from attrs import define, field
from trio.testing import wait_all_tasks_blocked

from crush_trio.providers.base import TextDelta
from crush_trio.providers.dialing import Dialer, Origin, origin_of, proxy_for
from crush_trio.providers.errors import ProviderUnreachable
from crush_trio.providers.registry import open_providers
from crush_trio.testing.model.script import Say, Sleep
from crush_trio.testing.model.server import open_model_server
from tests.providers.asking import endpoint, read, request

pytestmark = [pytest.mark.slow, pytest.mark.real_clock]

FAMILIES = pytest.mark.parametrize("family", ["openai-compat", "anthropic"])
AT_ONCE = 0.05
ENDLESS = [Say("a"), Say("b"), Sleep(1000)]


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch):
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


def sockets():
    """Return how many sockets this process has open."""
    links = (fd.readlink() for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink())
    return sum(str(link).startswith("socket:") for link in links)


async def settled(server):
    """Wait until the server has done its part of closing, too."""
    gc.collect()
    await server.all_closed()
    await wait_all_tasks_blocked(0.02)


# ── Cancels ─────────────────────────────────────────────────────────────────────────────────────


@FAMILIES
async def test_a_cancel_in_the_midst_of_an_answer_is_seen_by_the_server_at_once(family):
    async with open_model_server([ENDLESS] * 10) as server, open_providers() as providers:
        provider = providers.provider(endpoint(family, f"{server.base_url}/v1"))
        for connection in range(10):
            with trio.CancelScope() as scope:
                async with provider.stream(request()) as parts:
                    await anext(parts)
                    await anext(parts)
                    cancelled_at = trio.current_time()
                    scope.cancel()
                    await anext(parts)
            await server.all_closed()
            assert server.connections[connection].closed_at - cancelled_at < AT_ONCE


@FAMILIES
async def test_a_hundred_cancelled_answers_leave_nothing(family):
    async with open_model_server([ENDLESS] * 100) as server, open_providers() as providers:
        before = sockets()
        provider = providers.provider(endpoint(family, f"{server.base_url}/v1"))
        for answer in range(100):
            with trio.CancelScope() as scope:
                async with provider.stream(request()) as parts:
                    for _ in range(answer % 3):
                        await anext(parts)
                    scope.cancel()
                    await anext(parts)
        await settled(server)
        assert len(server.connections) == 100
        assert sockets() == before
        assert providers.idle == 0


@FAMILIES
async def test_a_hundred_at_a_time_cancelled_at_any_instant_leave_nothing(family):
    async with open_model_server(lambda _: ENDLESS) as server, open_providers() as providers:
        before = sockets()
        provider = providers.provider(endpoint(family, f"{server.base_url}/v1"))
        for storm in range(10):
            async with trio.open_nursery() as nursery:
                for _ in range(100):
                    nursery.start_soon(read, provider)
                await trio.sleep(0.004 * storm)
                nursery.cancel_scope.cancel()
        await settled(server)
        assert sockets() == before
        assert providers.idle == 0


async def test_a_cancel_in_the_midst_of_a_handshake_closes_the_connection_at_once():
    async with open_deaf_server() as deaf:
        dial = Dialer(trust=ssl.create_default_context())
        for n in range(10):
            with trio.move_on_after(0.01) as scope:
                await dial(Origin("127.0.0.1", deaf.port, secure=True))
            assert scope.cancelled_caught
            with trio.fail_after(5):
                await deaf.ended(n + 1)
            assert deaf.endings[n] - scope.deadline < AT_ONCE


async def test_a_cancel_while_a_proxy_thinks_closes_the_connection_at_once(monkeypatch):
    async with open_deaf_server() as deaf:
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{deaf.port}")
        with trio.move_on_after(0.01) as scope:
            await Dialer()(Origin("model.test", 443, secure=True))
        assert scope.cancelled_caught
        with trio.fail_after(5):
            await deaf.ended(1)


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


# ── Connections that end ────────────────────────────────────────────────────────────────────────


async def test_a_server_that_is_not_there_is_unreachable():
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener.socket.getsockname()[1]
    await listener.aclose()
    with pytest.raises(ProviderUnreachable, match=f"127.0.0.1:{port}"):
        await Dialer()(Origin("127.0.0.1", port, secure=False))


async def test_a_connection_that_the_server_closed_meanwhile_is_not_used_again():
    async with open_providers() as providers:
        async with open_model_server([[Say("a")]]) as server:
            url = server.base_url
            assert await read(providers.provider(endpoint(base_url=url)))
            assert providers.idle == 1
        await trio.sleep(0.01)
        port = int(url.rpartition(":")[2])
        async with trio.open_nursery() as nursery:
            [listener] = await trio.open_tcp_listeners(port, host="127.0.0.1")
            async with open_model_server([[Say("b")]], sockets=False) as again:
                nursery.start_soon(trio.serve_listeners, again.serve, [listener])
                parts = await read(providers.provider(endpoint(base_url=url)))
                assert parts[0] == TextDelta("b")
                nursery.cancel_scope.cancel()


async def test_idle_connections_are_closed_with_their_owner_even_under_a_cancel():
    async with open_model_server([[Say("a")]]) as server:
        with trio.CancelScope() as scope:
            async with open_providers() as providers:
                await read(providers.provider(endpoint(base_url=server.base_url)))
                assert providers.idle == 1
                scope.cancel()
        await server.all_closed()
        assert server.connections[0].closed_by_client


# ── TLS ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """Return a key and a certificate for this machine that nobody but us believes in."""
    place = tmp_path_factory.mktemp("tls")
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
async def open_secure_server(certificate, server):
    """Have *server* listen with TLS; yield its port."""
    key, cert = certificate
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)

    async def serve(stream):
        tls = trio.SSLStream(stream, context, server_side=True, https_compatible=True)
        with suppress(trio.BrokenResourceError):  # a client that does not believe us
            await server.serve(tls)

    async with trio.open_nursery() as nursery:
        [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, serve, [listener])
        yield listener.socket.getsockname()[1]
        nursery.cancel_scope.cancel()


def trusting(certificate):
    return Dialer(trust=ssl.create_default_context(cafile=certificate[1]))


@pytest.mark.needs("openssl")
async def test_an_answer_comes_over_tls_and_the_connection_is_used_again(certificate):
    async with (
        open_model_server([[Say("a")], [Say("b")]], sockets=False) as server,
        open_secure_server(certificate, server) as port,
        open_providers(trusting(certificate)) as providers,
    ):
        provider = providers.provider(endpoint(base_url=f"https://localhost:{port}/v1"))
        assert (await read(provider))[0] == TextDelta("a")
        assert (await read(provider))[0] == TextDelta("b")
        assert len(server.connections) == 1


@pytest.mark.needs("openssl")
async def test_a_cancel_over_tls_is_seen_at_once(certificate):
    async with (
        open_model_server([ENDLESS], sockets=False) as server,
        open_secure_server(certificate, server) as port,
        open_providers(trusting(certificate)) as providers,
    ):
        provider = providers.provider(endpoint(base_url=f"https://localhost:{port}/v1"))
        with trio.CancelScope() as scope:
            async with provider.stream(request()) as parts:
                await anext(parts)
                cancelled_at = trio.current_time()
                scope.cancel()
                await anext(parts)
        await server.all_closed()
        assert server.connections[0].closed_at - cancelled_at < AT_ONCE


@pytest.mark.needs("openssl")
async def test_a_certificate_that_nobody_vouches_for_is_not_believed(certificate):
    async with (
        open_model_server([], sockets=False) as server,
        open_secure_server(certificate, server) as port,
    ):
        with pytest.raises(ProviderUnreachable, match="certificate verify failed"):
            await Dialer()(Origin("localhost", port, secure=True))


# ── Proxies ─────────────────────────────────────────────────────────────────────────────────────


@define(eq=False)
class ConnectProxy:
    """A proxy that connects every tunnel to the same place, or refuses."""

    port: int
    status: bytes = b"200 Connected"
    asked: list = field(factory=list)

    async def serve(self, client):
        async with client:
            head = b""
            while b"\r\n\r\n" not in head:
                head += await client.receive_some()
            self.asked.append(head.decode().split("\r\n"))
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


@pytest.mark.needs("openssl")
async def test_an_answer_comes_through_a_proxy(certificate, monkeypatch):
    context = ssl.create_default_context(cafile=certificate[1])
    context.check_hostname = False
    async with (
        open_model_server([[Say("a")]], sockets=False) as server,
        open_secure_server(certificate, server) as port,
        open_proxy(port) as (proxy, proxy_port),
        open_providers(Dialer(trust=context)) as providers,
    ):
        monkeypatch.setenv("HTTPS_PROXY", f"http://me:pass%20word@127.0.0.1:{proxy_port}")
        parts = await read(providers.provider(endpoint(base_url="https://model.test/v1")))
        assert parts[0] == TextDelta("a")
        assert proxy.asked == [
            [
                "CONNECT model.test:443 HTTP/1.1",
                "host: model.test:443",
                "proxy-authorization: Basic bWU6cGFzcyB3b3Jk",
                "",
                "",
            ]
        ]


async def test_a_proxy_that_refuses_is_named_without_its_password(monkeypatch):
    async with open_proxy(0, status=b"407 Who are you") as (_, port):
        monkeypatch.setenv("https_proxy", f"http://me:password@127.0.0.1:{port}")
        with pytest.raises(ProviderUnreachable, match=f"127.0.0.1:{port} answered 407") as refused:
            await Dialer()(Origin("model.test", 443, secure=True))
        assert "password" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "environment", "proxied"),
    [
        ("https://model.test/", {}, False),
        ("https://model.test/", {"https_proxy": "http://proxy:3128"}, True),
        ("https://model.test/", {"HTTPS_PROXY": "proxy:3128"}, True),
        ("https://model.test/", {"http_proxy": "http://proxy:3128"}, False),
        ("http://model.test/", {"http_proxy": "http://proxy:3128"}, True),
        ("https://model.test/", {"all_proxy": "http://proxy:3128"}, True),
        ("https://model.test/", {"https_proxy": "http://proxy:3128", "no_proxy": "test"}, False),
        ("https://model.test/", {"https_proxy": "http://proxy:3128", "no_proxy": "*"}, False),
        ("http://localhost:11434/", {"http_proxy": "http://proxy:3128"}, False),
        ("http://127.0.0.1:11434/", {"http_proxy": "http://proxy:3128"}, False),
        ("http://[::1]:11434/", {"http_proxy": "http://proxy:3128"}, False),
    ],
)
def test_the_environment_says_which_proxy_to_use(url, environment, proxied, monkeypatch):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    proxy = proxy_for(origin_of(url))
    assert (proxy is not None) == proxied
    assert proxy is None or proxy.origin == Origin("proxy", 3128, secure=False)


def test_a_proxy_that_speaks_something_else_is_no_way(monkeypatch):
    monkeypatch.setenv("all_proxy", "socks5://proxy:1080")
    with pytest.raises(ProviderUnreachable, match="socks5"):
        proxy_for(Origin("model.test", 443, secure=True))
