"""The client under Trio, asyncio and uvloop: the same programs against the same server.

The programs are written with anyio, so that one text runs under each. The rest of `tests/client` is about the
client under Trio alone.
"""

from functools import partial

import anyio
import pytest
import trio

from crush_trio.client import (
    Asked,
    ClientClosed,
    Disconnected,
    Reconnected,
    RunEnded,
    ServerUnreachable,
    TextPiece,
    open_client,
)
from crush_trio.net.errors import ConnectFailed
from crush_trio.wire.runs import RunState
from tests.client.served import LIMIT, Wires, serving

pytestmark = pytest.mark.slow

LIBRARIES = {
    "trio": ("trio", {}),
    "asyncio": ("asyncio", {}),
    "uvloop": ("asyncio", {"use_uvloop": True}),
}


@pytest.fixture(params=LIBRARIES)
def run(request):
    """Return what runs a program under the library."""
    if request.param == "uvloop":
        pytest.importorskip("uvloop")
    backend, options = LIBRARIES[request.param]

    async def bounded(program, *args):
        with anyio.fail_after(LIMIT):
            return await program(*args)

    return partial(anyio.run, bounded, backend=backend, backend_options=options)


@pytest.fixture(scope="module")
def addresses(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("served")) as found:
        yield found


@pytest.fixture(params=["unix", "tcp"])
def address(request, addresses):
    return addresses[request.param == "tcp"]


async def session_of(workspace):
    return (await workspace.sessions.create("a session")).id


async def followed(handle):
    async with handle.stream() as pieces:
        return [piece async for piece in pieces]


def text_of(pieces):
    return "".join(piece.text for piece in pieces if isinstance(piece, TextPiece))


async def a_run(address, folder):
    async with open_client(address, environ={}) as client:
        async with client.open_workspace(folder) as workspace:
            handle = await workspace.submit("long 12", session=await session_of(workspace))
            pieces = await followed(handle)
            ended = await handle.wait()
            assert pieces[-1] == RunEnded(ended)
            assert ended.state is RunState.COMPLETED
            assert text_of(pieces) == ended.text == await handle.result_text()
        assert await client.workspaces() == ()
        with pytest.raises(ClientClosed, match="the workspace has been left"):
            await workspace.show()
    for known in (trio.ClosedResourceError, anyio.ClosedResourceError):
        with pytest.raises(known, match="the client has been closed"):
            await client.health()


def test_a_run_is_followed_to_its_end(run, address, tmp_path):
    run(a_run, address, tmp_path)


async def a_cancel(address, folder):
    async with open_client(address, environ={}) as client:
        async with client.open_workspace(folder) as workspace:
            handle = await workspace.submit("long 100000", session=await session_of(workspace))
            async with handle.stream() as pieces:
                async for piece in pieces:
                    if isinstance(piece, TextPiece):
                        receipt = await handle.cancel()
                        break
            assert receipt.complete
            assert [hit.ended for hit in receipt.hits] == [RunState.CANCELLED]
            assert (await handle.wait()).state is RunState.CANCELLED


def test_a_run_is_cancelled(run, addresses, tmp_path):
    run(a_cancel, addresses[0], tmp_path)


async def a_permission(address, folder):
    async with open_client(address, environ={}) as client:
        async with client.open_workspace(folder, interactive=True) as workspace:
            handle = await workspace.submit(
                "run `touch asked`", session=await session_of(workspace)
            )
            async with handle.stream() as pieces:
                async for piece in pieces:
                    if isinstance(piece, Asked):
                        assert await workspace.permissions.grant(piece.request)
            assert (await handle.wait()).state is RunState.COMPLETED
    assert await (anyio.Path(folder) / "asked").exists()


def test_a_permission_is_asked_for_and_given(run, addresses, tmp_path):
    run(a_permission, addresses[0], tmp_path)


async def cut_off(address, folder):
    wires, seen = Wires(address), []
    async with open_client(address, environ={}, dial=wires) as client:
        async with client.open_workspace(folder) as workspace, workspace.events() as events:
            handle = await workspace.submit("long 40", session=await session_of(workspace))
            async with handle.stream() as stream:
                async for piece in stream:
                    seen.append(piece)
                    if isinstance(piece, TextPiece):
                        wires.cut()
                        break
                seen += [piece async for piece in stream]
            ended = await handle.wait()
            assert text_of(seen) == ended.text
            assert len(ended.text.split()) == 40
            kinds = []
            async for event in events:
                if isinstance(event, Disconnected | Reconnected):
                    kinds.append(type(event))
                if Reconnected in kinds:
                    break
            assert kinds == [Disconnected, Reconnected]
    assert wires.open == []


def test_a_stream_that_is_cut_goes_on_where_it_was(run, address, tmp_path):
    run(cut_off, address, tmp_path)


async def reused(address):
    wires = Wires(address)
    async with open_client(address, environ={}, dial=wires) as client:
        await client.version()
        await client.version()
        assert len(wires.sockets) == 1
        wires.cut()
        await client.version()
        assert len(wires.sockets) == 2
    assert wires.open == []


def test_a_connection_is_used_again_unless_it_was_closed_meanwhile(run, address):
    run(reused, address)


async def given_up(address, folder):
    wires = Wires(address)
    async with open_client(address, environ={}, dial=wires) as client:
        async with client.open_workspace(folder, patience=0.1):
            wires.away = True
            wires.cut()
            await anyio.sleep_forever()


def test_the_end_of_patience_is_raised_into_the_block_as_itself(run, addresses, tmp_path):
    with pytest.raises(ServerUnreachable, match=r"gave up after 0.1 seconds"):
        run(given_up, addresses[1], tmp_path)


async def unreachable(address):
    async with open_client(address, environ={}) as client:
        with pytest.raises(ServerUnreachable) as caught:
            await client.health()
    assert isinstance(caught.value.__cause__, ConnectFailed)
    return str(caught.value)


def test_where_nothing_listens_the_error_says_what_to_do(run, tmp_path):
    said = run(unreachable, "tcp://127.0.0.1:9")
    assert said.startswith("cannot reach the server: nothing answers at tcp://127.0.0.1:9 (")
    assert said.endswith("); start one with: crush-trio serve --host tcp://127.0.0.1:9")
    assert "No such file" in run(unreachable, f"unix://{tmp_path}/none")
