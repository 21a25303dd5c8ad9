"""A cancel at every single wait of a model call: nothing is left open, and the next call works."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from crush_trio.providers.base import Finished, TextDelta
from crush_trio.providers.call import Patience, converse
from crush_trio.providers.registry import open_providers
from crush_trio.testing.explore.checkpoints import Call, CheckpointFaults, Fault
from crush_trio.testing.model.provider import ScriptedProvider
from crush_trio.testing.model.script import CallTool, Cut, Refuse, Say, Sleep, Think
from crush_trio.testing.model.server import open_model_server
from crush_trio.wire.messages import FinishReason
from tests.providers.asking import Recorder, dial_to, endpoint, read, request

FAMILIES = pytest.mark.parametrize("family", ["openai-compat", "anthropic"])
ANSWER = [Think("hm"), Say("a"), Sleep(1), Say("b"), CallTool("ls", {"p": 1}, pieces=2)]


async def cancelled_at(number, work, *args):
    """Do some work, with a cancel at its wait of that number; return whether it got that far."""
    with trio.CancelScope() as scope:
        fault = Fault(number, Call(scope.cancel))
        await CheckpointFaults([fault]).drive(work(*args))
    return scope.cancel_called


@pytest.mark.explored
@FAMILIES
@pytest.mark.parametrize("warm", [False, True], ids=["new connection", "used connection"])
async def test_an_answer_over_http_can_be_cancelled_anywhere(family, warm):
    number = 0
    while True:
        async with (
            open_model_server(lambda _: ANSWER, sockets=False) as server,
            open_providers(dial_to(server)) as providers,
        ):
            provider = providers.provider(endpoint(family))
            if warm:
                await read(provider)
            again = await cancelled_at(number, read, provider)
            await wait_all_tasks_blocked()
            assert server.open == providers.idle
            parts = await read(provider)
            assert parts[-1] == Finished(reason=FinishReason.TOOL_USE)
        assert server.open == 0
        if not again:
            break
        number += 1
    assert number > 20


async def ask(model, sink):
    await converse(model, request(), sink, patience=Patience(), waiting=lambda _: None)


async def test_a_call_can_be_cancelled_anywhere():
    """Whatever the sink has then is what one attempt said, from its beginning."""
    said = [[Say("a"), Say("b"), Cut()], [Refuse(503)], [Say("c"), Sleep(20), Say("d")]]
    beginnings = [[], ["a"], ["a", "b"], ["c"], ["c", "d"]]
    number = 0
    while True:
        model, sink = ScriptedProvider(said), Recorder()

        again = await cancelled_at(number, ask, model, sink)
        assert model.open == 0
        assert [p.text for p in sink.parts if isinstance(p, TextDelta)] in beginnings
        if not again:
            break
        number += 1
    assert sink.text == "cd"
    assert number > 15


@FAMILIES
async def test_leaving_after_any_part_closes_the_connection(family):
    async with (
        open_model_server(lambda _: [*ANSWER, Sleep(1000)], sockets=False) as server,
        open_providers(dial_to(server)) as providers,
    ):
        provider = providers.provider(endpoint(family))
        for parts_read in range(5):
            async with provider.stream(request()) as parts:
                for _ in range(parts_read):
                    await anext(parts)
            await server.all_closed()
            assert providers.idle == 0
