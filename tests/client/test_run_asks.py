"""What a run asks: told in its stream, settled by anybody, known to whoever joins."""

import trio

from crush_trio.client import Asked, Settled
from crush_trio.testing.server.server import open_test_server
from crush_trio.wire.asks import GrantScope, QuestionResponse
from crush_trio.wire.ids import RunId
from crush_trio.wire.runs import RunState
from tests.client.acting import told
from tests.client.places import open_place
from tests.client.test_run import followed
from tests.server.asker import Asker


async def asked(handle):
    async with handle.stream() as stream:
        async for piece in stream:
            if isinstance(piece, Asked):
                return piece.request
    raise AssertionError("nothing was asked")


async def test_a_permission_is_asked_for_in_the_stream_and_answered_by_anybody():
    asker = Asker()
    async with open_test_server(asker) as server:
        asker.server = server
        async with open_place(server=server, interactive=True) as place:
            handle = await place.submit("allow?")
            pieces = []
            async with trio.open_nursery() as nursery:
                nursery.start_soon(followed, handle, pieces)
                request = await asked(handle)
                assert [request] == list(await place.workspace.permissions.pending())
                assert await place.workspace.permissions.grant(request, GrantScope.PROJECT)
                assert not await place.workspace.permissions.deny(request)
            assert told(pieces)[-3:] == [
                f"asked:{request.id}",
                f"settled:{request.id}:True",
                "ended:completed:allowed",
            ]
            [grant] = await place.workspace.permissions.grants()
            assert grant.scope is GrantScope.PROJECT
            assert await place.workspace.permissions.revoke(grant.id)


async def test_a_question_is_asked_in_the_stream_and_answered():
    asker = Asker()
    async with open_test_server(asker) as server:
        asker.server = server
        async with open_place(server=server, interactive=True) as place:
            handle = await place.submit("question?")
            batch = await asked(handle)
            [question] = batch.questions
            answer = QuestionResponse(request_id=question.id, yes=True)
            assert await place.workspace.questions.answer(batch.id, [answer])
            pieces = await followed(handle)
            assert Settled(batch) in pieces
            assert (await handle.wait()).state is RunState.COMPLETED


async def test_what_is_asked_already_is_told_to_whoever_joins():
    asker = Asker()
    async with open_test_server(asker) as server:
        asker.server = server
        async with open_place(server=server, interactive=True) as one:
            handle = await one.submit("allow?", run_id=RunId("theirs"))
            request = await asked(handle)
            async with open_place(server=server, number=2) as two:
                assert await asked(two.workspace.run(RunId("theirs"))) == request
                assert await two.workspace.permissions.deny(request)
            assert Settled(request, granted=False) in await followed(handle)


async def test_an_ask_that_was_settled_while_we_were_away_is_told_as_settled():
    asker = Asker()
    async with open_test_server(asker) as server:
        asker.server = server
        async with (
            open_place(server=server, interactive=True) as one,
            open_place(server=server, number=2) as two,
        ):
            handle = await one.submit("allow?")
            pieces = []
            async with trio.open_nursery() as nursery:
                nursery.start_soon(followed, handle, pieces)
                request = await asked(handle)
                one.workspace._calls.keeper.picture.mislay()
                one.network.away = True
                one.network.cut()
                await two.workspace.permissions.grant(request)
                await trio.sleep(1)
                one.network.away = False
            assert [type(p).__name__ for p in pieces if isinstance(p, Asked | Settled)] == [
                "Asked",
                "Settled",
            ]
