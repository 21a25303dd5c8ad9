"""A token is sent to the server that was named, over a connection that others cannot read, or not at all."""

import os

import pytest
import trio

from crush_trio.client.client import open_client
from crush_trio.client.http import ApiError, TokenExposed
from crush_trio.net.address import BadAddress, TcpAddress, parse_address, parse_server_url
from tests.client.fake_transport import FakeTransport, answered

TOKEN = "a-token-of-some-length"
FAR = "tcp://192.0.2.7:8765"


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("https://host", TcpAddress("host", 443, secure=True)),
        ("https://host:8443/", TcpAddress("host", 8443, secure=True)),
        ("HTTPS://[::1]:8443", TcpAddress("::1", 8443, secure=True)),
        ("http://host", TcpAddress("host", 80)),
        ("tcp://host:1", TcpAddress("host", 1)),
    ],
)
def test_clients_read_urls_of_the_web_too(text, address):
    assert parse_server_url(text) == address
    assert parse_server_url(str(address)) == address


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("https://", "the host is missing"),
        ("https://host/v1", "only a host and a port"),
        ("https://me:secret@host", "credentials do not belong"),
        ("https://host:x", "write https://host:port"),
        ("ftp://host", "not a scheme"),
    ],
)
def test_an_address_that_is_none_is_refused_with_the_right_spelling(text, advice):
    with pytest.raises(BadAddress, match=advice) as refused:
        parse_server_url(text)
    assert "secret" not in str(refused.value)


def test_servers_say_who_speaks_tls_for_them():
    with pytest.raises(BadAddress, match="TLS is left to Hypercorn or a proxy"):
        parse_address("https://host:1")


async def test_the_environment_names_the_server_unless_the_caller_does():
    environ = {"CRUSH_TRIO_HOST": "https://far:1", "XDG_RUNTIME_DIR": "/run/me"}
    transport = FakeTransport(lambda _request: answered())
    for given, expected in (
        ((), TcpAddress("far", 1, secure=True)),
        (("tcp://near:2",), TcpAddress("near", 2)),
    ):
        async with open_client(*given, environ=environ, transport=transport) as client:
            assert client.address == expected
    async with open_client(environ={**environ, "CRUSH_TRIO_HOST": ""}) as client:
        assert str(client.address) == f"unix:///run/me/crush-{os.getuid()}.sock"
    with pytest.raises(BadAddress, match="CRUSH_TRIO_HOST is 'far': there is no scheme"):
        async with open_client(environ={"CRUSH_TRIO_HOST": "far"}):
            pass


async def opened(address, environ=None, **options):
    """Open a client and send a request; return what the server saw of the token."""
    transport = FakeTransport(lambda _request: answered())
    async with open_client(
        address, token=TOKEN, environ=environ or {}, transport=transport, **options
    ) as client:
        await client.health()
    [request] = transport.requests
    return request.headers["authorization"]


@pytest.mark.parametrize("address", [FAR, "http://agents.example", "tcp://localhost.example:1"])
async def test_a_token_is_not_sent_to_another_machine_without_tls(address):
    with pytest.raises(TokenExposed, match="use https://"):
        await opened(address)


@pytest.mark.parametrize(
    ("address", "environ", "options"),
    [
        ("https://agents.example", {}, {}),
        ("tcp://127.0.0.1:1", {}, {}),
        ("tcp://localhost:1", {}, {}),
        ("unix:///s", {}, {}),
        (FAR, {}, {"insecure": True}),
        (FAR, {"CRUSH_TRIO_INSECURE": "1"}, {}),
    ],
)
async def test_it_is_sent_where_it_is_safe_or_said_to_be(address, environ, options):
    assert await opened(address, environ, **options) == f"Bearer {TOKEN}"


async def test_without_a_token_any_server_may_be_asked():
    transport = FakeTransport(lambda _request: answered())
    async with open_client(FAR, environ={}, transport=transport) as client:
        await client.health()
    assert "authorization" not in transport.requests[0].headers
    assert transport.requests[0].headers["x-crush-client-id"] == client.id


@pytest.mark.slow
@pytest.mark.real_clock
async def test_a_redirect_does_not_carry_the_token_to_another_server():
    reached = []

    async def other(stream):
        reached.append(stream)
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        [theirs] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        [ours] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        place = f"http://127.0.0.1:{theirs.socket.getsockname()[1]}/v1/health"

        async def redirecting(stream):
            async with stream:
                await stream.receive_some()
                head = f"HTTP/1.1 307 Moved\r\nlocation: {place}\r\ncontent-length: 0\r\n\r\n"
                await stream.send_all(head.encode())

        nursery.start_soon(trio.serve_listeners, other, [theirs])
        nursery.start_soon(trio.serve_listeners, redirecting, [ours])
        port = ours.socket.getsockname()[1]
        async with open_client(f"tcp://127.0.0.1:{port}", token=TOKEN, environ={}) as client:
            with pytest.raises(ApiError, match="redirects are not followed") as refused:
                await client.health()
        assert refused.value.status == 307
        assert place in str(refused.value)
        nursery.cancel_scope.cancel()
    assert reached == []
