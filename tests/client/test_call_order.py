"""Readers of the client see a call finished, then its result, then the finish of the answer."""

import pytest
import trio

from crush_trio.client.events import MessageEvent, RunEvent
from crush_trio.testing.server.client import open_test_client
from crush_trio.testing.server.server import open_test_server
from crush_trio.wire.messages import Role, ToolCallPart
from tests.agent.durable import answer, parts_of
from tests.store.stores import call


def half_a_call(transcript):
    """Return a turn that is still writing the arguments of a call."""

    async def turn(run):
        opened = await answer(run, transcript)
        opened.append_text("let me see")
        await opened.put_tool_call(call("half", input='{"pa'))
        await trio.sleep_forever()

    return turn


async def read_to_the_end(reader):
    """Return what a reader is told of messages until the run has ended."""
    told = []
    async for event in reader:
        if isinstance(event, RunEvent) and event.run.state.terminal:
            break
        if isinstance(event, MessageEvent) and event.role is not Role.USER:
            calls = [part.finished for part in parts_of(event.message, ToolCallPart)]
            told.append((event.role, any(calls), event.finished))
    return told[-3:]


@pytest.mark.item("D17")
async def test_a_quick_and_a_slow_reader_see_the_call_before_its_result_and_the_finish_after_it():
    async with open_test_server(half_a_call) as server, open_test_client(server) as client:
        async with client.open_workspace("/srv/project") as workspace:
            async with workspace.events() as quick, workspace.events() as slow:
                told = []

                async def read():
                    told.append(await read_to_the_end(quick))

                async with trio.open_nursery() as nursery:
                    nursery.start_soon(read)
                    session = (await workspace.sessions.create("a session")).id
                    run = await workspace.submit("go", session=session)
                    await trio.sleep(1)
                    await run.cancel()
                told.append(await read_to_the_end(slow))
    order = [
        (Role.ASSISTANT, True, False),
        (Role.TOOL, False, True),
        (Role.ASSISTANT, True, True),
    ]
    assert told == [order, order]
