"""Model calls over real sockets, TLS and proxies: whatever is opened is closed, at once."""

import gc
import ssl
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from crush_trio.net.dial import Dialer
from crush_trio.providers.base import TextDelta
from crush_trio.providers.errors import ProviderUnconnectable
from crush_trio.providers.registry import open_providers
from crush_trio.testing.model.script import Say, Sleep
from crush_trio.testing.model.server import open_model_server
from tests.net.servers import make_certificate, open_proxy, open_secure_server
from tests.providers.asking import endpoint, read, request

pytestmark = [pytest.mark.slow, pytest.mark.real_clock]

FAMILIES = pytest.mark.parametrize("family", ["openai-compat", "anthropic"])
AT_ONCE = 0.05
ENDLESS = [Say("a"), Say("b"), Sleep(1000)]


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


# ── Connections that end ────────────────────────────────────────────────────────────────────────


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


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    return make_certificate(tmp_path_factory.mktemp("tls"))


def trusting(certificate):
    return Dialer(trust=ssl.create_default_context(cafile=certificate[1]))


# ── TLS ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.needs("openssl")
async def test_an_answer_comes_over_tls_and_the_connection_is_used_again(certificate):
    async with (
        open_model_server([[Say("a")], [Say("b")]], sockets=False) as server,
        open_secure_server(certificate, server.serve) as port,
        open_providers(trusting(certificate)) as providers,
    ):
        provider = providers.provider(endpoint(base_url=f"https://localhost:{port}/v1"))
        assert (await read(provider))[0] == TextDelta("a")
        assert (await read(provider))[0] == TextDelta("b")
        assert len(server.connections) == 1


@pytest.mark.needs("openssl")
@pytest.mark.needs("openssl")
async def test_a_cancel_over_tls_is_seen_at_once(certificate):
    async with (
        open_model_server([ENDLESS], sockets=False) as server,
        open_secure_server(certificate, server.serve) as port,
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


# ── Proxies ─────────────────────────────────────────────────────────────────────────────────────


def through(port, context):
    return Dialer({"HTTPS_PROXY": f"http://me:pass%20word@127.0.0.1:{port}"}, trust=context)


@pytest.mark.needs("openssl")
async def test_an_answer_comes_through_a_proxy(certificate):
    context = ssl.create_default_context(cafile=certificate[1])
    context.check_hostname = False
    async with (
        open_model_server([[Say("a")]], sockets=False) as server,
        open_secure_server(certificate, server.serve) as port,
        open_proxy(port) as (proxy, proxy_port),
        open_providers(through(proxy_port, context)) as providers,
    ):
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


@pytest.mark.needs("openssl")
async def test_a_bad_certificate_behind_a_proxy_is_told_of_its_server(certificate):
    async with (
        open_model_server([], sockets=False) as server,
        open_secure_server(certificate, server.serve) as port,
        open_proxy(port) as (_, proxy_port),
        open_providers(through(proxy_port, None)) as providers,
    ):
        provider = providers.provider(endpoint(base_url="https://model.test/v1"))
        with pytest.raises(ProviderUnconnectable, match=r"to model\.test:443: its certificate"):
            await read(provider)


async def test_the_proxies_of_the_process_are_not_used(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    async with open_model_server([[Say("a")]]) as server, open_providers() as providers:
        url = server.base_url.replace("127.0.0.1", "0.0.0.0")  # not an address without proxies
        parts = await read(providers.provider(endpoint(base_url=f"{url}/v1")))
        assert parts[0] == TextDelta("a")
