"""The real client in memory: its requests arrive, its streams stream, its network breaks on cue."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from crush_trio.net.address import Origin
from crush_trio.net.client import Request
from crush_trio.net.errors import ConnectFailed, ConnectionLost
from crush_trio.testing.server.asgi import AsgiDriver
from crush_trio.testing.server.client import MemoryTransport, open_test_client
from crush_trio.testing.server.server import client_id, open_test_server


async def echo(scope, receive, send):
    """Answer with what was asked, in two pieces; `/wait` never ends, `/late` takes a while."""
    body = b""
    while True:
        event = await receive()
        body += event.get("body", b"")
        if not event.get("more_body"):
            break
    names = b",".join(name for name, _ in scope["headers"])
    headers = [(b"x-method", scope["method"].encode()), (b"x-headers", names)]
    await send({"type": "http.response.start", "status": 201, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": True})
    if scope["path"] == "/wait":
        while (await receive())["type"] != "http.disconnect":
            pass
        return
    if scope["path"] == "/late":
        await trio.sleep(1)
    await send({"type": "http.response.body", "body": b"!", "more_body": False})


@pytest.fixture
async def nursery_of_requests():
    async with trio.open_nursery() as nursery:
        yield nursery


@pytest.fixture
async def network(nursery_of_requests):
    return MemoryTransport(AsgiDriver(echo, nursery_of_requests))


def asking(method, target, body=b"", **headers):
    origin = Origin("host", 80, secure=False)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Request(method=method, origin=origin, target=target, headers=named, body=body)


async def sent(network, *args, **headers):
    """Return the status, the headers and the body of an answer."""
    async with network.open(asking(*args, **headers)) as response:
        return response.status, response.headers, await response.read(1000)


async def test_a_request_arrives_with_its_body_and_its_headers_once(network):
    status, headers, body = await sent(network, "POST", "/a?b=c", b"hello", x_mine="1")
    assert (status, body) == (201, b"hello!")
    assert headers["x-method"] == "POST"
    names = headers["x-headers"].split(",")
    assert len(names) == len(set(names))
    assert "x-mine" in names
    assert network.requests == ["POST /a?b=c"]


async def test_a_stream_comes_piece_by_piece_and_is_hung_up_on(network):
    async with network.open(asking("POST", "/wait", b"hi")) as response:
        assert await response.receive() == b"hi"
        assert len(network._open) == 1
    assert network._open == set()


async def test_a_cancelled_request_hangs_up(network):
    with trio.CancelScope() as scope:
        async with network.open(asking("POST", "/wait", b"hi")) as response:
            assert await response.receive() == b"hi"
            scope.cancel()
            await response.receive()
    assert network._open == set()


async def test_a_server_that_is_away_is_not_connected_to(network):
    network.away = True
    with pytest.raises(ConnectFailed):
        await sent(network, "GET", "/")
    network.away = False
    assert (await sent(network, "GET", "/"))[0] == 201


async def test_a_lost_answer_is_that_of_a_request_that_was_carried_out(network):
    network.lose_answer("POST", "/a")
    assert (await sent(network, "POST", "/b"))[0] == 201
    with pytest.raises(ConnectionLost):
        await sent(network, "POST", "/a")
    assert (await sent(network, "POST", "/a"))[0] == 201
    assert network.requests == ["POST /b", "POST /a", "POST /a"]


async def read_for_ever(network, failures):
    try:
        await sent(network, "POST", "/wait")
    except ConnectionLost as error:
        failures.append(error)


async def test_cutting_breaks_what_is_open(network):
    failures = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(read_for_ever, network, failures)
        await wait_all_tasks_blocked()
        network.cut()
    assert len(failures) == 1
    assert network._open == set()


@pytest.mark.parametrize("deaf", [False, True])
async def test_a_deaf_connection_says_nothing_and_does_not_end(network, deaf):
    async with trio.open_nursery() as nursery:
        with trio.move_on_after(10) as scope:
            nursery.start_soon(deafen_soon, network, deaf)
            await sent(network, "POST", "/late")
    assert scope.cancelled_caught is deaf


async def deafen_soon(network, deaf):
    await wait_all_tasks_blocked()
    if deaf:
        network.deafen()


async def test_clients_are_told_apart_by_their_number():
    async with open_test_server() as server:
        async with open_test_client(server) as one, open_test_client(server, 2) as two:
            assert (one.id, two.id) == (client_id(1), client_id(2))
            await one.health()
            await two.health()
