"""The client inside an asyncio program: asyncio's own tasks, timeouts and cancels, and nothing left behind."""

import asyncio  # noqa: TID251  # the programs of these tests run in it
import socket
from contextlib import ExitStack, suppress
from functools import wraps
from pathlib import PurePosixPath

import pytest

from crush_trio.client import TextPiece, open_client
from crush_trio.net.address import UnixAddress
from crush_trio.testing import Gate
from crush_trio.testing.server.server import WrittenTurns
from crush_trio.testing.server.turns import Pause, Say
from crush_trio.wire.runs import RunState
from tests.client.served import LIMIT, Wires, serving

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def addresses(tmp_path_factory):
    turns = WrittenTurns({"think": [Say("Hm"), Pause(Gate())]})
    with serving(tmp_path_factory.mktemp("served"), turns) as found:
        yield found


def in_asyncio(test):
    """Run an async test in asyncio, in debug mode; at its end no other task may be left."""

    @wraps(test)
    def run(**fixtures):
        async def bounded():
            async with asyncio.timeout(LIMIT):
                await test(**fixtures)
            assert asyncio.all_tasks() == {asyncio.current_task()}

        asyncio.run(bounded(), debug=True)

    return run


async def submitted(workspace, prompt):
    session = await workspace.sessions.create("a session")
    return await workspace.submit(prompt, session=session.id)


async def first_text(handle, told=None):
    """Follow a run; tell the first text, and go on to the end."""
    async with handle.stream() as pieces:
        async for piece in pieces:
            if isinstance(piece, TextPiece) and told is not None:
                told.set_result(piece.text)


@in_asyncio
async def test_tasks_of_a_group_share_a_workspace_and_one_is_cancelled_in_its_stream(
    addresses, tmp_path
):
    told = asyncio.get_running_loop().create_future()
    async with open_client(addresses[0], environ={}) as client:
        async with client.open_workspace(tmp_path) as workspace:
            thinking = await submitted(workspace, "think")
            async with asyncio.TaskGroup() as tasks:
                stream = tasks.create_task(first_text(thinking, told))
                wait = tasks.create_task(thinking.wait())
                answer = tasks.create_task((await submitted(workspace, "x")).result_text())
                assert await told == "Hm"
                stream.cancel()
                with suppress(asyncio.CancelledError):
                    await stream
                assert stream.cancelled()
                assert await answer == "done"
                assert not wait.done()
                await thinking.cancel()
            assert wait.result().state is RunState.CANCELLED


@in_asyncio
async def test_a_timeout_ends_a_stream_and_the_workspace_goes_on(addresses, tmp_path):
    async with open_client(addresses[0], environ={}) as client:
        async with client.open_workspace(tmp_path) as workspace:
            thinking = await submitted(workspace, "think")
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await first_text(thinking)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(thinking.wait(), 0.01)
            assert (await thinking.cancel()).complete
            assert (await thinking.wait()).state is RunState.CANCELLED


@in_asyncio
async def test_a_cancelled_task_leaves_the_workspace_and_its_error_is_asyncios(addresses, tmp_path):
    """The claim is released although the task has been cancelled, so the workspace closes."""
    wires = Wires(addresses[1])
    told = asyncio.get_running_loop().create_future()

    async def work():
        async with open_client(addresses[1], environ={}, dial=wires) as client:
            async with client.open_workspace(tmp_path) as workspace:
                await first_text(await submitted(workspace, "think"), told)

    task = asyncio.create_task(work())
    await told
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()
    assert wires.open == []
    async with open_client(addresses[1], environ={}) as client:
        assert await client.workspaces() == ()


@in_asyncio
async def test_an_error_in_the_block_leaves_it_as_itself(addresses, tmp_path):
    async with open_client(addresses[0], environ={}) as client:
        with pytest.raises(ZeroDivisionError):
            async with client.open_workspace(tmp_path):
                raise ZeroDivisionError


@in_asyncio
async def test_after_an_error_in_a_task_group_the_block_is_left_as_ever(addresses, tmp_path):
    """Python before 3.13 then counts the task as cancelled for ever."""

    async def fail():
        raise ZeroDivisionError

    async with open_client(addresses[0], environ={}) as client:
        async with client.open_workspace(tmp_path):
            with pytest.raises(ExceptionGroup):
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(fail())


@in_asyncio
async def test_a_cancel_that_meets_the_closing_leaves_no_connection_open(addresses):
    """As a second Ctrl-C does: the shields of anyio do not keep out a cancel of asyncio."""
    wires = Wires(addresses[0])

    async def work():
        async with open_client(addresses[0], environ={}, dial=wires) as client:
            await asyncio.gather(client.version(), client.version())
            asyncio.current_task().cancel()

    task = asyncio.create_task(work())
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(wires.sockets) == 2
    assert wires.open == []


@in_asyncio
async def test_a_name_with_several_addresses_leads_to_the_one_that_answers(addresses):
    async with open_client(f"tcp://localhost:{addresses[1].port}", environ={}) as client:
        assert (await client.version()).version


@in_asyncio
async def test_a_full_unix_socket_is_waited_for_and_a_cancel_leaves_none_open(tmp_path):
    address = UnixAddress(PurePosixPath(tmp_path / "full"))
    wires = Wires(address)
    with socket.socket(socket.AF_UNIX) as listener, ExitStack() as queue:
        listener.bind(str(address.path))
        listener.listen(0)
        for _ in range(2):  # the second one waits
            client = queue.enter_context(socket.socket(socket.AF_UNIX))
            client.setblocking(False)
            with suppress(BlockingIOError):
                client.connect(str(address.path))
        task = asyncio.create_task(wires(None))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(task), 0.03)
        listener.accept()[0].close()
        await (await task).aclose()
        stuck = asyncio.create_task(wires(None))
        await asyncio.sleep(0)
        stuck.cancel()
        with suppress(asyncio.CancelledError):
            await stuck


@pytest.mark.long
@pytest.mark.parametrize("kind", ["unix", "tcp"])
@in_asyncio
async def test_a_cancel_after_any_number_of_steps_leaves_no_connection_and_no_task(
    addresses, tmp_path, kind
):
    address = addresses[kind == "tcp"]
    wires = Wires(address)

    async def work():
        async with open_client(address, environ={}, dial=wires) as client:
            async with client.open_workspace(tmp_path) as workspace:
                handle = await submitted(workspace, "x")
                await first_text(handle)
                await handle.wait()
        return True

    steps, whole = 0, False
    while not whole:
        task = asyncio.create_task(work())
        for _ in range(steps):
            if not task.done():
                await asyncio.sleep(0)
        whole = task.done()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await asyncio.sleep(0)
        assert wires.open == []
        assert asyncio.all_tasks() == {asyncio.current_task()}
        steps += 1 + steps // 8
    assert steps > 30
