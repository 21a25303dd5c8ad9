"""The real client in memory: its requests arrive, its streams stream, its network breaks on cue."""

import httpx
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

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


def client_of(network):
    return httpx.AsyncClient(transport=network, base_url="http://host")


async def test_a_request_arrives_with_its_body_and_its_headers_once(network):
    async with client_of(network) as http:
        answer = await http.post("/a?b=c", content=b"hello", headers={"X-Mine": "1"})
    assert (answer.status_code, answer.content) == (201, b"hello!")
    assert answer.headers["x-method"] == "POST"
    names = answer.headers["x-headers"].split(",")
    assert len(names) == len(set(names))
    assert "x-mine" in names
    assert network.requests == ["POST /a?b=c"]


async def test_a_stream_comes_piece_by_piece_and_is_hung_up_on(network):
    with trio.CancelScope() as scope:
        async with (
            client_of(network) as http,
            http.stream("POST", "/wait", content=b"hi") as answer,
        ):
            async for piece in answer.aiter_raw():
                assert piece == b"hi"
                scope.cancel()
    assert network._open == set()


async def test_a_server_that_is_away_is_not_connected_to(network):
    network.away = True
    async with client_of(network) as http:
        with pytest.raises(httpx.ConnectError):
            await http.get("/")
        network.away = False
        assert (await http.get("/")).status_code == 201


async def test_a_lost_answer_is_that_of_a_request_that_was_carried_out(network):
    network.lose_answer("POST", "/a")
    async with client_of(network) as http:
        assert (await http.post("/b")).status_code == 201
        with pytest.raises(httpx.ReadError):
            await http.post("/a")
        assert (await http.post("/a")).status_code == 201
    assert network.requests == ["POST /b", "POST /a", "POST /a"]


async def read_for_ever(network, failures):
    async with client_of(network) as http:
        try:
            await http.post("/wait")
        except httpx.ReadError as error:
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
    async with client_of(network) as http, trio.open_nursery() as nursery:
        with trio.move_on_after(10) as scope:
            nursery.start_soon(deafen_soon, network, deaf)
            await http.post("/late")
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
