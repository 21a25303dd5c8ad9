"""A server for the length of a block: there when the block begins, gone in order when it is left."""

import pytest
import trio

from crush_trio.client import RunEvent, ServerUnreachable, open_client
from crush_trio.net.address import BadAddress
from crush_trio.server.run import open_server
from crush_trio.wire.runs import RunState

pytestmark = [pytest.mark.slow, pytest.mark.real_clock]


@pytest.fixture
def socket(tmp_path):
    return f"unix://{tmp_path}/s.sock"


async def answers(address):
    async with open_client(address, environ={}) as client:
        try:
            await client.health()
        except ServerUnreachable:
            return False
        return True


async def test_the_server_answers_inside_the_block_and_not_after_it(socket):
    with trio.fail_after(30):
        async with open_server(socket) as [address]:
            assert await answers(address)
        assert not await answers(address)


async def test_a_free_port_is_asked_for_with_zero_and_told(socket):
    with trio.fail_after(30):
        async with open_server("tcp://127.0.0.1:0", socket) as [tcp, unix]:
            assert tcp.port > 0
            assert await answers(tcp)
            assert await answers(unix)


async def test_a_run_that_is_active_when_the_block_is_left_has_its_ending(socket, tmp_path):
    with trio.fail_after(60):
        async with open_client(socket, environ={}) as client:
            async with open_server(socket), client.open_workspace(tmp_path) as workspace:
                session = await workspace.sessions.create("s")
                async with workspace.events() as events:
                    run = await workspace.submit("long 5000", session=session.id)
                    async for event in events:
                        if isinstance(event, RunEvent) and event.run.state is RunState.ACTIVE:
                            break
            async with open_server(socket), client.open_workspace(tmp_path) as workspace:
                assert (await workspace.run(run.id).view()).state is RunState.CANCELLED


async def test_what_the_block_raises_comes_out_as_itself_and_the_server_is_gone(socket):
    class Mine(Exception):
        pass

    with trio.fail_after(30):
        with pytest.raises(Mine):
            async with open_server(socket) as [address]:
                raise Mine
        assert not await answers(address)


async def test_an_address_that_is_none_is_refused_before_anything_is_opened():
    with pytest.raises(BadAddress):
        async with open_server("localhost"):
            raise AssertionError
