"""The server begins when it can answer, and ends in order, in time and whole."""

import signal
import subprocess
import sys
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path, PurePosixPath

import h11
import pytest
import trio
import trio.testing

from crush_trio.server import (
    AddressInUse,
    LifespanFailed,
    TcpAddress,
    UnixAddress,
    parse_address,
    serve,
    wait_for_signal,
)
from tests.server.raw_client import SMALL, open_client
from tests.server.tiny_app import FRAME, HERE, LAST, TinyApp, open_own_server

pytestmark = [pytest.mark.slow, pytest.mark.real_clock]

SOON = 2.0
ROOT = Path(__file__).parents[3]


@pytest.fixture
def app():
    return TinyApp()


@pytest.fixture
def socket_file(tmp_path):
    return UnixAddress(PurePosixPath(tmp_path / "crush.sock"))


def exists(address):
    return Path(address.path).exists()


def delete(address):
    Path(address.path).unlink()


# ── Beginning ───────────────────────────────────────────────────────────────────────────────────


async def test_one_server_listens_on_several_addresses_and_tells_the_real_ones(app, socket_file):
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        run = partial(serve, app.quart, [socket_file, HERE], shutdown=stop.wait)
        bound = await nursery.start(run)
        assert bound == (socket_file, TcpAddress("127.0.0.1", bound[1].port))
        assert bound[1].port != 0
        for address in bound:
            async with open_client(address) as client:
                assert await client.get("/hello") == (200, b"hello")
        stop.set()


async def test_an_application_that_cannot_start_is_not_served(app, socket_file):
    @app.quart.before_serving
    async def fail():
        raise RuntimeError("no disk")

    with pytest.raises(LifespanFailed, match="no disk"):
        await serve(app.quart, [socket_file], shutdown=trio.sleep_forever)
    assert not exists(socket_file)


async def test_an_application_is_not_started_for_an_address_that_is_taken(app, socket_file):
    started = []
    other = TinyApp()
    other.quart.before_serving(lambda: started.append(True))
    async with open_own_server(app.quart, [socket_file]):
        with pytest.raises(AddressInUse):
            await serve(other.quart, [socket_file], shutdown=trio.sleep_forever)
    assert started == []


async def test_requests_see_what_the_lifespan_has_set_up():
    async def application(scope, receive, send):
        if scope["type"] == "lifespan":
            scope["state"]["word"] = b"ready"
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": scope["state"]["word"]})

    async with open_own_server(application) as server:
        async with open_client(server.address) as client:
            assert await client.get("/") == (200, b"ready")


async def test_clients_get_in_again_after_the_socket_file_was_deleted(app, socket_file):
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        run = partial(serve, app.quart, [socket_file], shutdown=stop.wait, restore=0.001)
        await nursery.start(run)
        delete(socket_file)
        while not exists(socket_file):  # noqa: ASYNC110 - a file sends no event
            await trio.lowlevel.checkpoint()
        async with open_client(socket_file) as client:
            assert await client.get("/hello") == (200, b"hello")
        stop.set()
    assert not exists(socket_file)


# ── Ending ──────────────────────────────────────────────────────────────────────────────────────


async def test_nobody_gets_in_any_more_when_the_application_learns_of_the_end(app, socket_file):
    seen = []

    def on_draining():
        seen.append(exists(socket_file))
        app.draining.set()

    async with open_own_server(app.quart, [socket_file], on_draining=on_draining) as server:
        async with open_client(server.address) as client:
            await client.request("/quiet")
            await app.opened.wait()
            server.stop.set()
            with trio.fail_after(SOON):
                assert (await client.answer())[1] == FRAME + LAST
            with pytest.raises(FileNotFoundError):
                await open_client(server.address).__aenter__()
    assert seen == [False]


async def test_a_port_is_free_again_while_streams_are_still_ending(app):
    async with open_own_server(app.quart, grace=60) as server:
        async with open_client(server.address) as client:
            await client.request("/quiet")
            await app.opened.wait()
            server.stop.set()
            successor = TinyApp()
            with trio.fail_after(SOON):
                async with open_own_server(
                    successor.quart, [await when_free(server.address)]
                ) as next_:
                    async with open_client(next_.address) as other:
                        assert await other.get("/hello") == (200, b"hello")
            assert not app.ended.is_set()
            app.draining.set()
            assert (await client.answer())[1] == FRAME + LAST


async def when_free(address):
    """Return *address* once its server has stopped listening."""
    while True:
        try:
            async with open_client(address):
                await trio.sleep(0.01)
        except OSError:
            return address


async def test_a_stream_that_does_not_end_by_itself_is_cut_after_the_grace(app):
    async with open_own_server(app.quart, grace=0.3) as server:
        async with open_client(server.address) as client:
            await client.request("/quiet")
            await app.opened.wait()
            started = trio.current_time()
            server.stop.set()
            await server.stopped.wait()
            assert 0.3 <= trio.current_time() - started < 1.3
            assert (await client.answer())[1] == FRAME


async def test_all_kinds_of_clients_together_do_not_exceed_the_grace(app):
    async with open_own_server(app.quart, grace=0.3) as server:
        async with (
            open_client(server.address, receive_buffer=SMALL) as stalled,
            open_client(server.address) as idle,
            open_client(server.address) as silent,
            open_client(server.address) as streaming,
            open_client(server.address) as halfway,
        ):
            await stalled.request("/flood")
            await streaming.request("/quiet")
            await idle.get("/hello")
            await halfway.stream.send_all(
                b"POST /hello HTTP/1.1\r\nHost: t\r\nContent-Length: 9\r\n\r\n"
            )
            await app.opened.wait()
            started = trio.current_time()
            server.stop.set()
            await server.stopped.wait()
            assert trio.current_time() - started < 1.3
            assert await silent.wait_closed() == b""


async def test_the_application_ends_after_its_streams_and_may_not_take_long(app):
    order = []

    @app.quart.after_serving
    async def after_serving():
        order.append(app.ended.is_set())
        await trio.sleep_forever()

    async with open_own_server(app.quart, on_draining=app.draining.set) as server:
        async with open_client(server.address) as client:
            await client.request("/quiet")
            await app.opened.wait()
            server.stop.set()
            with trio.fail_after(SOON):
                await client.answer()
        with trio.fail_after(SOON):
            await server.stopped.wait()
    assert order == [True]


async def test_an_application_that_fails_to_stop_says_so(app):
    @app.quart.after_serving
    async def fail():
        raise RuntimeError("disk gone")

    with pytest.raises(LifespanFailed, match="disk gone"):
        await serve(app.quart, [HERE], shutdown=trio.lowlevel.checkpoint)


# ── Crashes ─────────────────────────────────────────────────────────────────────────────────────


async def test_a_crash_beside_the_server_ends_it_whatever_its_clients_do(app, socket_file):
    crash = trio.Event()

    async def neighbour():
        await crash.wait()
        raise RuntimeError("the neighbour crashed")

    async def both():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(neighbour)
            run = partial(serve, app.quart, [socket_file], shutdown=trio.sleep_forever)
            [address] = await nursery.start(run)
            async with open_client(address, receive_buffer=SMALL) as client:
                await client.request("/flood")
                await app.opened.wait()
                crash.set()
                await trio.sleep_forever()

    with trio.fail_after(SOON):
        with pytest.RaisesGroup(pytest.RaisesExc(RuntimeError, match="neighbour")):
            await both()
    assert app.ended.is_set()
    assert not exists(socket_file)


async def test_a_crash_in_a_task_of_the_application_ends_the_server_and_is_raised(app):
    async def run():
        async with open_own_server(app.quart) as server:
            async with open_client(server.address) as client:
                await client.request("/crash")
                await server.stopped.wait()

    with trio.fail_after(SOON):
        crashed = pytest.RaisesExc(RuntimeError, match="a task of the application")
        with pytest.RaisesGroup(crashed, flatten_subgroups=True):
            await run()


async def test_a_shutdown_that_fails_ends_the_server_and_is_raised(app, socket_file):
    async def shutdown():
        await trio.lowlevel.checkpoint()
        raise RuntimeError("cannot wait")

    with pytest.raises(RuntimeError, match="cannot wait"):
        await serve(app.quart, [socket_file], shutdown=shutdown)
    assert not exists(socket_file)


# ── Signals and processes ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_the_first_signal_is_what_a_server_waits_for(number):
    before = signal.getsignal(number)
    received = []

    async def wait():
        received.append(await wait_for_signal())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        signal.raise_signal(number)
    assert received == [number]
    assert signal.getsignal(number) is before


@asynccontextmanager
async def open_process(address, grace):
    command = [sys.executable, "-W", "error", "-m", "tests.server.server_process"]
    async with trio.open_nursery() as nursery:
        process = await nursery.start(
            partial(
                trio.run_process,
                [*command, str(address), str(grace)],
                stdout=subprocess.PIPE,
                check=False,
                cwd=ROOT,
            )
        )
        yield process, parse_address(await read_line(process.stdout))


async def read_line(stream):
    line = b""
    while not line.endswith(b"\n"):
        byte = await stream.receive_some(1)
        assert byte, "the process ended before it said where it listens"
        line += byte
    return line.decode().strip()


async def test_sigterm_ends_the_process_well_whatever_its_clients_do(socket_file):
    async with open_process(socket_file, 0.5) as (process, bound):
        async with (
            open_client(bound, receive_buffer=SMALL) as stalled,
            open_client(bound) as idle,
            open_client(bound) as streaming,
        ):
            await stalled.request("/flood")
            await idle.get("/hello")
            await streaming.request("/quiet")
            assert (await streaming.next_event()).status_code == 200
            process.send_signal(signal.SIGTERM)
            with trio.fail_after(0.5 + 1):
                assert (await streaming.wait_closed()).endswith(LAST)
                assert await read_line(process.stdout) == "stopped"
            assert await process.wait() == 0
    assert not exists(socket_file)


async def test_a_killed_process_reads_as_the_end_and_its_socket_can_be_taken_over(app, socket_file):
    async with open_process(socket_file, 3) as (process, address):
        async with open_client(address) as client:
            await client.request("/quiet")
            assert (await client.next_event()).status_code == 200
            assert (await client.next_event()).data == FRAME
            process.kill()
            with trio.fail_after(SOON):
                assert await client.next_event() == h11.EndOfMessage()
                await process.wait()
    assert exists(socket_file)
    async with open_own_server(app.quart, [socket_file]) as server:
        async with open_client(server.address) as client:
            assert await client.get("/hello") == (200, b"hello")
