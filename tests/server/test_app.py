"""One set of routes serves every site, and a request reaches the site it was sent to."""

from functools import partial

import hypercorn.trio.run as hypercorn_worker
import trio
from hypercorn.trio.tcp_server import TCPServer

from crush_trio.server.app import create_app
from crush_trio.server.http.hypercorn import Connection, safe_app
from crush_trio.testing.server.server import client_id, open_test_server

A = client_id(1)


async def test_two_servers_in_one_process_know_nothing_of_each_other():
    async with open_test_server() as one, open_test_server() as other:
        here = await one.create(A)
        there = await other.create(A)
        assert here.id == there.id
        await here.create_session()
        assert len((await here.request("GET", "/sessions")).json()) == 1
        assert (await there.request("GET", "/sessions")).json() == []
        await other.request("DELETE", f"/v1/clients/{A}")
        assert (await there.request("GET")).status == 404
        assert (await here.request("GET")).status == 200


async def test_requests_of_two_servers_may_be_under_way_at_once():
    async with open_test_server() as one, open_test_server() as other:
        here, there = await one.create(A), await other.create(A)
        with await here.watch(A) as mine, await there.watch(A) as yours:
            session = await there.create_session("there")
            await here.create_session("here")
            for watcher, title in ((mine, "here"), (yours, "there")):
                event = await watcher.until(lambda event: event["type"] == "session")
                assert event["payload"]["payload"]["title"] == title
            assert (await there.request("GET", f"/sessions/{session}")).status == 200


async def test_a_path_that_is_no_route_is_not_looked_for_among_files():
    async with open_test_server() as server:
        answer = await server.request("GET", "/static/app.py")
        assert (answer.status, answer.body) == (404, b"404 page not found\n")


async def begin_lifespan(app, nursery):
    """Start the lifespan of *app* as a server does; return what ends it."""
    said, hears = trio.open_memory_channel(2)
    answers, answered = trio.open_memory_channel(2)
    scope = {"type": "lifespan", "asgi": {"version": "3.0", "spec_version": "2.0"}, "state": {}}
    nursery.start_soon(app, scope, hears.receive, answers.send)

    async def expect(phase):
        said.send_nowait({"type": f"lifespan.{phase}"})
        with trio.fail_after(60):
            assert await answered.receive() == {"type": f"lifespan.{phase}.complete"}

    await expect("startup")
    return partial(expect, "shutdown")


async def test_the_lifespan_of_one_server_ends_without_that_of_another():
    async with (
        open_test_server() as one,
        open_test_server() as other,
        trio.open_nursery() as nursery,
    ):
        end_one = await begin_lifespan(safe_app(create_app(one.server)), nursery)
        end_other = await begin_lifespan(safe_app(create_app(other.server)), nursery)
        await end_one()
        await trio.sleep(60)
        assert hypercorn_worker.TCPServer is Connection
        await end_other()
    assert hypercorn_worker.TCPServer is TCPServer
