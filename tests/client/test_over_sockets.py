"""The client over real sockets, against real servers: found, refused, killed and started again."""

import gc
import os
import signal
import subprocess
import sys
from contextlib import asynccontextmanager
from functools import partial
from pathlib import PurePosixPath

import pytest
import trio

from crush_trio.backend.settings import WorkspaceSettings
from crush_trio.client import (
    ApiError,
    Disconnected,
    Reconnected,
    RunEvent,
    ServerUnreachable,
    TextPiece,
    open_client,
)
from crush_trio.net.address import TcpAddress, UnixAddress
from crush_trio.server.run import run_server
from crush_trio.server.settings import GuardSettings, ServerSettings
from crush_trio.testing import Call, CheckpointFaults, Fault, Gate
from crush_trio.testing.server.server import WrittenTurns
from crush_trio.testing.server.turns import Pause, Say
from crush_trio.wire.ids import RunId
from crush_trio.wire.runs import RunState
from tests.client.acting import TOLD, Actor, told, without_states
from tests.client.places import collected

pytestmark = [pytest.mark.slow, pytest.mark.real_clock]

LIMIT = 30
"""Seconds that anything may take on a busy machine."""

ANYWHERE = TcpAddress("127.0.0.1", 0)


@asynccontextmanager
async def serving(address, turns=None, *, token=None):
    """Serve in this process, with data on the disk, until the block is left in good order."""
    stop = trio.Event()
    with trio.fail_after(LIMIT):
        async with trio.open_nursery() as nursery:
            [bound] = await nursery.start(
                partial(
                    run_server,
                    [address],
                    settings=ServerSettings(guard=GuardSettings(token=token)),
                    workspaces=WorkspaceSettings(make_turn=turns),
                    shutdown=stop.wait,
                    grace=1.0,
                )
            )
            yield bound
            stop.set()


@pytest.fixture
def socket_path(tmp_path):
    return UnixAddress(PurePosixPath(tmp_path / "s"))


@asynccontextmanager
async def opened(address, folder, **options):
    """Open a client and a workspace, and give both."""
    async with open_client(address, environ={}, **options) as client:
        async with client.open_workspace(folder) as workspace:
            yield client, workspace


async def session_of(workspace):
    return (await workspace.sessions.create("a session")).id


async def followed(handle):
    async with handle.stream() as stream:
        return [piece async for piece in stream]


# ── Finding a server ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", ["unix", "tcp"])
async def test_a_whole_run_over_a_socket(kind, tmp_path, socket_path):
    address = socket_path if kind == "unix" else ANYWHERE
    async with serving(address, Actor()) as bound:
        async with opened(str(bound), tmp_path) as (client, workspace):
            assert client.address == bound
            assert workspace.created.path == str(tmp_path)
            handle = await workspace.submit("look", session=await session_of(workspace))
            assert without_states(told(await followed(handle))) == TOLD


@pytest.mark.item("G14")
async def test_without_an_address_the_client_looks_where_servers_listen(tmp_path):
    environ = {"XDG_RUNTIME_DIR": str(tmp_path)}
    path = tmp_path / f"crush-{os.getuid()}.sock"
    async with serving(UnixAddress(PurePosixPath(path))):
        async with open_client(environ=environ) as client:
            await client.health()


@pytest.mark.parametrize("environ", [False, True])
async def test_a_token_is_given_or_taken_from_the_environment(environ):
    token = "a token of some length"
    async with serving(ANYWHERE, token=token) as bound:
        given = {} if environ else {"token": token}
        variables = {"CRUSH_TRIO_TOKEN": token} if environ else {}
        async with open_client(bound, environ=variables, **given) as client:
            await client.version()
        async with open_client(bound, environ={}, token="another token") as client:
            with pytest.raises(ApiError, match="a valid token is required"):
                await client.version()


async def test_where_nobody_listens_the_error_says_what_to_do(tmp_path):
    async with open_client(environ={"XDG_RUNTIME_DIR": str(tmp_path)}) as client:
        with pytest.raises(ServerUnreachable, match=r"start one with: crush-trio serve$"):
            await client.health()
    async with open_client("tcp://127.0.0.1:1", environ={}) as client:
        with pytest.raises(ServerUnreachable, match=r"crush-trio serve --host tcp://127.0.0.1:1"):
            await client.version()


# ── Two at one run ──────────────────────────────────────────────────────────────────────────────


async def test_two_clients_supervise_one_run_and_it_outlives_the_one_that_sent_it(
    tmp_path, socket_path
):
    gates = {"called": Gate(), "answering": Gate()}
    pieces = []
    async with serving(socket_path, Actor(gates)) as bound:
        async with opened(bound, tmp_path) as (_, second):
            async with opened(bound, tmp_path) as (_, first):
                session = await session_of(first)
                await first.submit("look", session=session, run_id=RunId("r1"))
                await gates["called"].reached()

            async def follow():
                pieces.extend(await followed(second.run(RunId("r1"))))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(follow)
                gates["called"].open()
                await gates["answering"].reached()
                gates["answering"].open()
    assert without_states(told(pieces)) == TOLD


# ── Servers that go away ────────────────────────────────────────────────────────────────────────


async def test_a_server_that_is_restarted_in_order_takes_the_client_back(tmp_path, socket_path):
    gate, seen = Gate(), []
    turns = WrittenTurns({"long": [Say("Hel"), Pause(gate)]})
    with trio.fail_after(LIMIT):
        async with open_client(socket_path, environ={}) as client, trio.open_nursery() as nursery:
            stop = await nursery.start(keep_serving, socket_path, turns)
            async with client.open_workspace(tmp_path) as workspace:
                session = await session_of(workspace)
                async with workspace.events() as reader:
                    nursery.start_soon(collected, reader, seen)
                handle = await workspace.submit("long", session=session)
                await gate.reached()
                await stop()
                stop = await nursery.start(keep_serving, socket_path, turns)
                run = await handle.wait()
                assert (run.state, run.text) == (RunState.CANCELLED, "Hel")
                async with workspace.events() as reader:
                    again = await workspace.submit("short", session=session)
                    assert await again.result_text() == "done"
                    async for event in reader:  # the answer to a question may overtake the stream
                        if isinstance(event, RunEvent) and event.run.state.terminal:
                            break
            await stop()
    about_the_stream = [type(e) for e in seen if isinstance(e, Disconnected | Reconnected)]
    assert about_the_stream == [Disconnected, Reconnected]
    endings = [e.run.id for e in seen if isinstance(e, RunEvent) and e.run.state.terminal]
    assert len(endings) == len(set(endings)) == 2


async def keep_serving(address, turns, task_status):
    """Serve until the function is called that the caller is given; it waits for the end."""
    leave, left = trio.Event(), trio.Event()

    async def stop():
        leave.set()
        await left.wait()

    async with serving(address, turns):
        task_status.started(stop)
        await leave.wait()
    left.set()


@asynccontextmanager
async def server_process(address, folder):
    """Start a server as a process; the block may end it, or has it ended."""
    command = [sys.executable, "-m", "crush_trio", "serve", "--host", str(address)]
    environ = {k: v for k, v in os.environ.items() if not k.startswith("CRUSH_")}
    with (folder / "stderr.txt").open("ab") as errors:
        process = await trio.lowlevel.open_process(
            command, stdout=subprocess.PIPE, stderr=errors, env=environ
        )
    try:
        with trio.fail_after(LIMIT):
            line = await process.stdout.receive_some()
        assert b"Listening" in line, (folder / "stderr.txt").read_text("utf-8")
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        with trio.move_on_after(LIMIT, shield=True):
            await process.wait()
        await process.stdout.aclose()


@pytest.mark.item("L42")
async def test_after_a_kill_in_the_middle_of_a_run_the_client_learns_how_it_ended(
    tmp_path, socket_path
):
    with trio.fail_after(2 * LIMIT):
        async with open_client(socket_path, environ={}) as client, trio.open_nursery() as nursery:
            old = await nursery.start(keep_server, socket_path, tmp_path)
            async with client.open_workspace(tmp_path) as workspace:
                session = await session_of(workspace)
                handle = await workspace.submit("hello", session=session, run_id=RunId("r1"))
                async with handle.stream() as stream:
                    async for piece in stream:
                        if isinstance(piece, TextPiece):
                            break
                    os.kill(old.pid, signal.SIGKILL)
                    new = await nursery.start(keep_server, socket_path, tmp_path)
                    rest = [piece async for piece in stream]
                run = await handle.wait()
                assert run.state is RunState.INTERRUPTED
                assert told(rest)[-1].startswith("ended:interrupted")
                repeated = await workspace.submit("hello", session=session, run_id=RunId("r1"))
                assert await repeated.wait() == run
                assert await (await workspace.submit("hello", session=session)).result_text()
            new.terminate()


async def keep_server(address, folder, task_status):
    async with server_process(address, folder) as process:
        task_status.started(process)
        await process.wait()


# ── Cancelling ──────────────────────────────────────────────────────────────────────────────────


def sockets_of_clients():
    """Return the open ends of connections that were opened, and not accepted, in this process.

    One that nobody holds any more is not among them; Python warns of those, which fails the test.
    """
    streams = [each for each in gc.get_objects() if isinstance(each, trio.SocketStream)]
    return [each for each in streams if each.socket.fileno() >= 0 and not each.socket.getsockname()]


async def use_everything(address, folder):
    """Open a workspace, submit, follow, and leave; twenty-odd requests over several connections."""
    async with opened(address, folder) as (client, workspace):
        session = await session_of(workspace)
        handle = await workspace.submit("hello", session=session)
        async with handle.stream() as stream:
            async for piece in stream:
                if isinstance(piece, TextPiece):
                    break
        await handle.cancel()
        await handle.wait()
        await client.version()


async def test_a_cancel_at_any_wait_leaves_no_connection_and_no_task(tmp_path, socket_path):
    async with serving(socket_path, WrittenTurns()) as bound:
        place, fired = 0, True
        before = len(trio.lowlevel.current_root_task().child_nurseries)
        while fired:
            with trio.CancelScope() as scope:
                fault = Fault(place, Call(scope.cancel))
                await CheckpointFaults([fault]).drive(use_everything(bound, tmp_path))
            fired, place = fault.fired, place + 1
        assert place > 30
        assert sockets_of_clients() == []
        assert len(trio.lowlevel.current_root_task().child_nurseries) == before


async def test_a_storm_of_cancelled_requests_leaves_a_client_that_works(tmp_path, socket_path):
    async with serving(socket_path) as bound, open_client(bound, environ={}) as client:

        async def impatient(number):
            with trio.move_on_after(number % 50 * 0.0002):
                await client.version()

        for _ in range(4):
            async with trio.open_nursery() as nursery:
                for number in range(100):
                    nursery.start_soon(impatient, number)
            assert (await client.version()).version
        assert len(sockets_of_clients()) <= 100
    assert sockets_of_clients() == []
