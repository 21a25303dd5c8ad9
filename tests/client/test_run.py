"""A run from afar: waiting for it, cancelling it, following it, also when the connection breaks."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from crush_trio.client import RunEnded, RunNotCompleted, TextPiece
from crush_trio.errors import RunNotFound
from crush_trio.testing import Gate
from crush_trio.testing.server.server import WrittenTurns, open_test_server
from crush_trio.testing.server.turns import Fail, Fold, Pause, Say, Sleep
from crush_trio.wire.ids import RunId
from crush_trio.wire.runs import RunState, WhenUnclaimed
from tests.client.acting import TOLD, Actor, told, without_states
from tests.client.places import open_place


async def followed(handle, into=None):
    """Return every piece of a run."""
    pieces = [] if into is None else into
    async with handle.stream() as stream:
        async for piece in stream:
            pieces.append(piece)
    return pieces


# ── Waiting ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("script", "state", "text", "error"),
    [
        ([Say("Hello")], "completed", "Hello", ""),
        ([Say("Hm"), Fail(ValueError("no"))], "errored", "Hm", "no"),
    ],
)
async def test_waiting_gives_the_ending_with_the_whole_answer(script, state, text, error):
    async with open_place(WrittenTurns({"hi": script})) as place:
        run = await (await place.submit("hi")).wait()
        assert (run.state, run.text, run.error) == (state, text, error)


async def test_any_number_of_waiters_hear_of_the_same_ending_and_of_one_that_is_past():
    gate, endings = Gate(), []
    async with open_place(WrittenTurns({"hi": [Pause(gate), Say("Hello")]})) as place:
        handle = await place.submit("hi")

        async def wait():
            endings.append(await handle.wait())

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(wait)
            await gate.reached()
            await trio.sleep(1)
            gate.open()
        await wait()
        assert [run.text for run in endings] == ["Hello"] * 6


async def test_a_wait_that_is_cancelled_leaves_the_run_alone():
    gate = Gate()
    async with open_place(WrittenTurns({"hi": [Pause(gate), Say("Hello")]})) as place:
        handle = await place.submit("hi")
        with trio.move_on_after(5):
            await handle.wait()
        assert (await handle.view()).state is RunState.ACTIVE
        gate.open()
        assert await handle.result_text() == "Hello"


async def test_a_run_that_does_not_exist_cannot_be_waited_for():
    async with open_place() as place:
        with pytest.raises(RunNotFound):
            await place.workspace.run(RunId("nobody's")).wait()


@pytest.mark.item("L42")
async def test_a_run_that_ended_while_there_was_no_connection_is_not_waited_for_in_vain():
    gate = Gate()
    async with open_place(WrittenTurns({"hi": [Pause(gate), Say("Hello")]})) as place:
        handle = await place.submit("hi", when_unclaimed=WhenUnclaimed.CONTINUE)
        async with trio.open_nursery() as nursery:
            texts = []

            async def wait():
                texts.append(await handle.result_text())

            nursery.start_soon(wait)
            await gate.reached()
            place.workspace._calls.keeper.picture.mislay()
            place.network.away = True
            place.network.cut()
            gate.open()
            await trio.sleep(5)
            place.network.away = False
        assert texts == ["Hello"]


async def test_a_wait_goes_on_if_only_its_own_request_fails():
    """The ending is past, so no event will come; the question has to be asked again."""
    async with open_place(WrittenTurns({"hi": [Say("Hello")]})) as place:
        handle = await place.submit("hi")
        await trio.sleep(1)
        place.network.lose_answer("GET", f"/runs/{handle.id}")
        assert await handle.result_text() == "Hello"


async def test_a_wait_goes_on_if_the_answer_to_its_request_never_comes():
    async with open_place(WrittenTurns({"hi": [Say("Hello")]})) as place:
        handle = await place.submit("hi")
        await trio.sleep(1)
        place.network.lose_answer("GET", f"/runs/{handle.id}", silently=True)
        assert await handle.result_text() == "Hello"
        place.network.lose_answer("GET", "/messages", silently=True)
        pieces = await followed(place.workspace.run(handle.run_id))
        assert without_states(told(pieces))[0] == "text:Hello"


# ── Text ────────────────────────────────────────────────────────────────────────────────────────


async def test_the_text_of_a_run_that_failed_is_an_error_that_has_the_run():
    async with open_place(WrittenTurns({"hi": [Say("Hm"), Fail(ValueError("no"))]})) as place:
        with pytest.raises(RunNotCompleted, match="errored: no") as failed:
            await (await place.submit("hi")).result_text()
        assert (failed.value.run.state, failed.value.run.text) == ("errored", "Hm")


async def test_the_text_of_a_prompt_that_was_folded_is_that_of_the_run_that_took_it_in():
    gate = Gate()
    turns = WrittenTurns({"first": [Pause(gate), Fold(), Say("both")]})
    async with open_place(turns) as place:
        first = await place.submit("first")
        await gate.reached()
        path = f"/v1/workspaces/{place.workspace.id}/agent"
        body = {"session_id": place.session, "prompt": "second"}  # no id: it may be folded
        assert (await place.server.request("POST", path, body)).status == 202
        await wait_all_tasks_blocked()
        gate.open()
        await first.wait()
        [second, _] = await place.workspace.runs.list(place.session)
        assert second.state is RunState.FOLDED
        assert await place.workspace.run(second.id).result_text() == "both"


# ── Cancelling ──────────────────────────────────────────────────────────────────────────────────


async def test_a_cancel_hits_this_run_and_says_how_it_ended():
    gate = Gate()
    async with open_place(WrittenTurns({"hi": [Say("Hm"), Pause(gate)]})) as place:
        handle = await place.submit("hi")
        await gate.reached()
        receipt = await handle.cancel()
        [hit] = receipt.hits
        assert (receipt.complete, hit.run_id, hit.state, hit.ended) == (
            True,
            handle.run_id,
            "active",
            "cancelled",
        )
        assert (await handle.wait()).state is RunState.CANCELLED
        assert (await handle.cancel()).hits == ()


async def test_two_clients_see_the_same_run_and_one_of_them_stops_it():
    gate = Gate()
    async with open_test_server(WrittenTurns({"hi": [Say("Hm"), Pause(gate)]})) as server:
        async with open_place(server=server) as one, open_place(server=server, number=2) as two:
            handle = await one.submit("hi")
            await gate.reached()
            [seen] = await two.workspace.runs.list()
            pieces = {"one": [], "two": []}
            async with trio.open_nursery() as nursery:
                nursery.start_soon(followed, handle, pieces["one"])
                nursery.start_soon(followed, two.workspace.run(seen.id), pieces["two"])
                await trio.sleep(1)
                await two.workspace.run(seen.id).cancel()
            for name in ("one", "two"):
                assert without_states(told(pieces[name])) == [
                    "text:Hm",
                    "finish:cancelled",
                    "ended:cancelled:Hm",
                ]


# ── Following ───────────────────────────────────────────────────────────────────────────────────


async def test_a_stream_tells_the_run_from_its_acceptance_to_its_end():
    async with open_place(Actor()) as place:
        pieces = await followed(await place.submit("look"))
        assert told(pieces) == ["run:accepted", "run:active", *TOLD]
        assert isinstance(pieces[-1], RunEnded)


async def test_a_stream_that_begins_after_the_run_has_ended_tells_all_of_it():
    async with open_place(Actor()) as place:
        handle = await place.submit("look")
        await handle.wait()
        assert without_states(told(await followed(handle))) == TOLD
        assert without_states(told(await followed(handle))) == TOLD


async def test_a_run_of_somebody_else_is_told_from_its_beginning_too():
    gates = {"called": Gate(), "answering": Gate()}
    async with open_test_server(Actor(gates)) as server:
        async with open_place(server=server) as one:
            await one.submit("look", run_id=RunId("theirs"))
            await gates["called"].reached()
            async with open_place(server=server, number=2) as two:
                pieces = []
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(followed, two.workspace.run(RunId("theirs")), pieces)
                    await trio.sleep(1)
                    gates["called"].open()
                    await gates["answering"].reached()
                    await trio.sleep(1)
                    gates["answering"].open()
        assert told(pieces) == ["run:active", *TOLD]


async def test_a_model_that_was_asked_again_has_its_first_words_taken_back():
    async with open_place(Actor(restart=True)) as place:
        shown = without_states(told(await followed(await place.submit("look"))))
        at = shown.index("restart")
        assert shown[at - 1 : at + 2] == ["text:Oops", "restart", "text:Two files."]


async def test_a_waiting_run_is_told_nothing_of_the_one_before_it():
    gate = Gate()
    turns = WrittenTurns({"first": [Say("one"), Pause(gate), Say("!")], "second": [Say("two")]})
    async with open_place(turns) as place:
        first = await place.submit("first")
        await gate.reached()
        second = await place.submit("second")
        pieces = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(followed, second, pieces)
            await trio.sleep(1)
            gate.open()
        assert told(pieces) == [
            "run:accepted",
            "run:queued",
            "run:active",
            "text:two",
            "finish:end_turn",
            "ended:completed:two",
        ]
        assert without_states(told(await followed(first)))[0] == "text:one!"


async def test_runs_of_other_sessions_are_not_mixed_up():
    script = [step for n in range(5) for step in (Say(f"{n}"), Sleep(0.1))]
    async with open_place(WrittenTurns({"count": script})) as place:
        other = (await place.workspace.sessions.create("another")).id
        handles = [
            await place.workspace.submit("count", session=session)
            for session in (place.session, other)
        ]
        results = [[], []]
        async with trio.open_nursery() as nursery:
            for handle, pieces in zip(handles, results, strict=True):
                nursery.start_soon(followed, handle, pieces)
        for pieces in results:
            assert len({p.message_id for p in pieces if isinstance(p, TextPiece)}) == 1
            assert told(pieces)[-1] == "ended:completed:01234"


async def test_a_stream_may_be_left_and_another_one_begun():
    gate = Gate()
    async with open_place(Actor({"answering": gate})) as place:
        handle = await place.submit("look")
        async with handle.stream() as stream:
            async for piece in stream:
                if isinstance(piece, TextPiece):
                    break
        gate.open()
        assert without_states(told(await followed(handle))) == TOLD


async def test_a_stream_ends_when_the_workspace_is_left():
    gate, pieces = Gate(), []
    async with trio.open_nursery() as nursery:
        async with open_place(Actor({"answering": gate})) as place:
            nursery.start_soon(followed, await place.submit("look"), pieces)
            await gate.reached()
            await trio.sleep(1)
    assert "ended" not in told(pieces)[-1]


# ── Following through thick and thin ────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("lost", [False, True], ids=["resumed", "resynced"])
async def test_a_stream_of_a_run_is_whole_however_often_the_connection_breaks(seed, lost):
    script = [step for n in range(20) for step in (Say(f"{n} "), Sleep(0.3))]
    async with open_place(WrittenTurns({"count": script})) as place:
        handle = await place.submit("count")
        pieces = []

        async def break_it():
            while True:
                await trio.sleep(0.7)
                if lost:
                    place.workspace._calls.keeper.picture.mislay()
                place.network.cut()

        async with trio.open_nursery() as breaking:
            breaking.start_soon(break_it)
            await followed(handle, pieces)
            breaking.cancel_scope.cancel()
        text = "".join(f"{n} " for n in range(20))
        assert without_states(told(pieces)) == [
            f"text:{text}",
            "finish:end_turn",
            f"ended:completed:{text}",
        ]


@pytest.mark.parametrize("place_of_loss", ["called", "answering"])
@pytest.mark.parametrize("away", [0.1, 5])
async def test_a_stream_that_lost_its_place_tells_what_it_missed(place_of_loss, away):
    gates = {"called": Gate(), "answering": Gate()}
    async with open_place(Actor(gates)) as place:
        handle = await place.submit("look", when_unclaimed=WhenUnclaimed.CONTINUE)
        pieces = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(followed, handle, pieces)
            if place_of_loss == "answering":
                gates["called"].open()
            await gates[place_of_loss].reached()
            await trio.sleep(1)
            place.workspace._calls.keeper.picture.mislay()
            place.network.away = True
            place.network.cut()
            gates["called"].open()
            gates["answering"].open()
            await trio.sleep(away)
            place.network.away = False
        assert without_states(told(pieces)) == TOLD


async def test_a_reader_that_is_far_too_slow_is_told_everything_all_the_same():
    """It falls out of the window while it does not read, and catches up by asking."""
    async with open_place(Actor()) as place:
        window = place.workspace._calls.keeper.picture.window
        window.events = 3
        handle = await place.submit("look")
        await handle.wait()
        for number in range(20):
            await place.workspace.sessions.rename(place.session, f"title {number}")
        await trio.sleep(1)
        assert without_states(told(await followed(handle))) == TOLD
