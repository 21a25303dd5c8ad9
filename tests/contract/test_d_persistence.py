"""Section D of the contract, as corrected by L: how turns are stored, seen from a whole workspace.

The unit tests in `tests/agent` cover the same items piece by piece and under every schedule.
"""

import pytest
import trio
import trio.testing

from crush_trio.agent.record.message import RETRY
from crush_trio.agent.record.transcript import PACE
from crush_trio.agent.record.unfinished_turn import TOOL_CANCELLED, TOOL_FAILED
from crush_trio.events.facts import MessageChange, RunChange
from crush_trio.store.changes import (
    MessageCreated,
    MessageFinished,
    RunEnded,
    TextAppended,
)
from crush_trio.store.errors import DiskFull
from crush_trio.testing import Gate
from crush_trio.testing.server.faulty_store import StoreFault
from crush_trio.wire.events import EventType
from crush_trio.wire.messages import (
    FinishReason,
    ReasoningPart,
    Role,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from crush_trio.wire.runs import RunState
from tests.agent.durable import (
    END,
    Turns,
    all_events,
    answer,
    check_complete,
    completion,
    ending_commit,
    finish_of,
    give_result,
    kinds,
    message_events,
    open_bench,
    parts_of,
    roles,
    text_of,
    told,
)
from tests.store.stores import STOP, call, text

settle = trio.testing.wait_all_tasks_blocked


def turn_of(*changes):
    """Return a turn that makes *changes* to its answer, one after the other, and then returns."""

    async def play(run, transcript):
        opened = await answer(run, transcript)
        for change in changes:
            done = change(opened)
            if done is not None:
                await done
        return completion(opened)

    return Turns(default=play)


async def played(bench):
    """Have one run end, and return its answer as it is stored."""
    run = bench.accept("hello")
    await run.wait()
    return (await bench.store.message(f"answer-{run.id}")).message


# ── D.1 Message model ───────────────────────────────────────────────────────────────────────────


@pytest.mark.item("D1")
async def test_every_message_of_a_turn_is_stored_before_it_is_published():
    turns = turn_of(lambda opened: opened.append_text("done"), lambda opened: opened.finish(END))
    async with open_bench(turns) as bench:
        seen = []

        def look(changes):
            """Nothing that is only now to be stored may have been published."""
            published = {e.message_id for e in all_events(bench.events) if type(e) is MessageChange}
            seen.extend(
                change.message.id in published
                for change in changes
                if isinstance(change, MessageCreated)
            )

        bench.store.watch = look
        await played(bench)
        assert seen == [False, False]
        question, reply = await bench.messages()
        assert question.parts == (text("hello"), STOP)
        for stored in (question, reply):
            events = message_events(bench.events, stored.id)
            assert events[0].change is EventType.CREATED
            assert told(events[-1].message) == told(stored)


@pytest.mark.item("D2")
@pytest.mark.parametrize("sealed", [False, True])
async def test_a_message_has_one_finish_and_it_is_the_last_part(sealed):
    gate = Gate()

    async def stream(run, transcript):
        opened = await answer(run, transcript)
        opened.append_text("done")
        await opened.put_tool_call(call(finished=True))
        opened.append_text(" and done")
        if sealed:
            opened.seal(END)
        await gate.wait()

    async with open_bench(Turns(default=stream)) as bench:
        run = bench.accept("hello")
        await gate.reached()
        bench.cancel()
        await run.wait()
        reply = (await bench.store.message(f"answer-{run.id}")).message
        expected = FinishReason.END_TURN if sealed else FinishReason.CANCELLED
        assert finish_of(reply).reason is expected
        assert text_of(reply) == "done and done"


@pytest.mark.item("D3")
async def test_deltas_go_to_one_text_and_one_reasoning_part():
    turns = turn_of(
        lambda opened: opened.append_text("\n\nhel"),
        lambda opened: opened.append_reasoning("h"),
        lambda opened: opened.put_tool_call(call(finished=True)),
        lambda opened: opened.append_text("lo\n"),
        lambda opened: opened.append_reasoning("m"),
    )
    async with open_bench(turns) as bench:
        stored = await played(bench)
        assert parts_of(stored, TextPart) == [text("\nhello\n")]
        assert [thought.thinking for thought in parts_of(stored, ReasoningPart)] == ["hm"]


# ── D.2 Update buffering ────────────────────────────────────────────────────────────────────────


@pytest.mark.item("D4", "D5", "D6", "D10")
async def test_an_answer_is_written_in_windows_and_its_structure_at_once():
    async def stream(run, transcript):
        opened = await answer(run, transcript)
        for piece in "abcdef":
            opened.append_text(piece)
            await trio.sleep(PACE / 10)
        await opened.put_tool_call(call(finished=True))
        await give_result(run, transcript, "c")
        await opened.finish(END)

    async with open_bench(Turns(default=stream)) as bench:
        stored = await played(bench)
        pieces = [change.text for change in bench.store.committed(TextAppended)]
        assert pieces == ["a", "bcdef"]
        events = message_events(bench.events, stored.id)
        assert [(text_of(e.message), e.plain) for e in events] == [
            ("", False),
            ("a", True),
            ("abcdef", False),
            ("abcdef", False),
        ]


@pytest.mark.item("D8")
async def test_what_could_not_be_stored_is_stored_later_and_not_published_before():
    gate = Gate()

    async def stream(run, transcript):
        opened = await answer(run, transcript)
        await trio.testing.wait_all_tasks_blocked()
        opened.append_text("half")
        await trio.sleep(RETRY / 2)
        assert [e.change for e in message_events(bench.events, opened.id)] == [EventType.CREATED]
        await gate.wait()
        await opened.finish(END)
        return completion(opened)

    async with open_bench(Turns(default=stream)) as bench:
        bench.store.spoil(StoreFault(of=(TextAppended,), error=DiskFull, times=1))
        run = bench.accept("hello")
        await gate.reached()
        assert bench.store.degraded is not None
        await trio.sleep(RETRY)
        assert text_of((await bench.store.message(f"answer-{run.id}")).message) == "half"
        assert bench.store.degraded is None
        gate.open()
        assert (await run.wait()).state is RunState.COMPLETED


# ── D.4 Cancelled and failed turns ──────────────────────────────────────────────────────────────


@pytest.mark.item("D9", "D18")
async def test_a_run_cancelled_while_it_streams_keeps_every_word():
    gate = Gate()

    async def stream(run, transcript):
        opened = await answer(run, transcript)
        opened.append_reasoning("hm")
        opened.append_text("half")
        await settle()
        opened.append_text(" a sen")  # waits for the window to pass, and is cancelled before
        await gate.wait()

    async with open_bench(Turns(default=stream)) as bench:
        run = bench.accept("hello")
        await gate.reached()
        bench.cancel()
        outcome = await run.wait()
        assert (outcome.state, outcome.text) == (RunState.CANCELLED, "half a sen")
        _question, reply = await bench.messages()
        assert text_of(reply) == "half a sen"
        assert finish_of(reply).reason is FinishReason.CANCELLED
        commit = ending_commit(bench, run)
        assert MessageFinished in kinds(commit)
        assert MessageCreated not in kinds(commit)
        await check_complete(bench.store)


@pytest.mark.item("D15", "D16", "D17")
@pytest.mark.parametrize(("how", "text"), [("cancel", TOOL_CANCELLED), ("fail", TOOL_FAILED)])
async def test_a_run_that_ends_in_a_tool_answers_the_calls_that_are_open(how, text):
    gate = Gate()

    async def use_tools(run, transcript):
        opened = await answer(run, transcript)
        opened.append_reasoning("hm")
        await opened.put_tool_call(call("answered", finished=True))
        await give_result(run, transcript, "answered")
        await opened.put_tool_call(call("running", input='{"a":1}', finished=True))
        await opened.put_tool_call(call("arriving", input='{"a'))
        await gate.wait()
        raise ValueError("the tool broke")

    async with open_bench(Turns(default=use_tools)) as bench:
        run = bench.accept("hello")
        await gate.reached()
        bench.cancel() if how == "cancel" else gate.open()
        await run.wait()
        _question, reply, seen, *errors = await bench.messages()
        assert [c.input for c in parts_of(reply, ToolCallPart)] == ["", '{"a":1}', "{}"]
        assert parts_of(seen, ToolResultPart)[0].content == "seen"
        results = [part for error in errors for part in parts_of(error, ToolResultPart)]
        assert [(r.tool_call_id, r.content, r.is_error) for r in results] == [
            ("running", text, True),
            ("arriving", text, True),
        ]
        assert kinds(ending_commit(bench, run)).count(MessageCreated) == 2
        await check_complete(bench.store)


@pytest.mark.item("D17")
async def test_a_call_of_an_earlier_step_that_was_never_answered_gets_its_result_too():
    gate = Gate()

    async def use_tool(run, transcript):
        opened = await answer(run, transcript)
        await opened.put_tool_call(call(finished=True))
        await opened.finish(END)
        await gate.wait()

    async with open_bench(Turns(default=use_tool)) as bench:
        run = bench.accept("hello")
        await gate.reached()
        bench.cancel()
        await run.wait()
        await check_complete(bench.store)


@pytest.mark.item("D18", "D19")
async def test_a_failed_turn_says_so_in_its_answer_and_the_next_run_goes_on():
    async def fail(run, transcript):
        opened = await answer(run, transcript)
        opened.append_text("half")
        raise ValueError("the model is gone")

    async with open_bench(Turns({"fail": fail})) as bench:
        run, following = bench.accept("fail"), bench.accept("next", run_id="next")
        outcome = await run.wait()
        assert (outcome.state, outcome.error) == (RunState.ERRORED, "the model is gone")
        reply = (await bench.store.message(f"answer-{run.id}")).message
        finish = finish_of(reply)
        assert (finish.reason, finish.details) == (FinishReason.ERROR, "the model is gone")
        assert (await following.wait()).state is RunState.COMPLETED
        await check_complete(bench.store)


@pytest.mark.item("D20")
async def test_a_turn_that_fails_before_its_answer_stores_nothing_more():
    async def fail(_run, _transcript):
        raise ValueError("no model")

    async with open_bench(Turns(default=fail)) as bench:
        run = bench.accept("hello")
        await run.wait()
        assert roles(await bench.messages()) == [Role.USER]
        assert kinds(ending_commit(bench, run)) == [RunEnded]


@pytest.mark.item("A21", "D20")
async def test_a_run_cancelled_on_entry_gets_a_complete_turn_in_one_commit():
    async with open_bench() as bench:
        run = bench.accept("hello")
        bench.cancel()
        await run.wait()
        commit = ending_commit(bench, run)
        assert kinds(commit) == [MessageCreated, MessageCreated, RunEnded]
        question, closing = await bench.messages()
        assert (question.role, text_of(question)) == (Role.USER, "hello")
        assert closing.role is Role.ASSISTANT
        assert finish_of(closing).reason is FinishReason.CANCELLED
        await check_complete(bench.store)


# ── What is left, and in which order ────────────────────────────────────────────────────────────


@pytest.mark.item("D11")
async def test_a_deleted_answer_stays_deleted_when_its_run_ends():

    async def discard(run, transcript):
        opened = await answer(run, transcript)
        opened.append_text("never mind")
        transcript.turn(run.id, run.session_id).discard(opened)

    async with open_bench(Turns(default=discard)) as bench:
        run = bench.accept("hello")
        await run.wait()
        assert roles(await bench.messages()) == [Role.USER]
        assert message_events(bench.events, f"answer-{run.id}")[-1].change is EventType.DELETED


@pytest.mark.item("D12")
async def test_whoever_reads_after_a_flush_misses_nothing():
    gate = Gate()

    async def stream(run, transcript):
        opened = await answer(run, transcript)
        opened.append_text("a")
        await settle()
        opened.append_text("b")
        await gate.wait()
        await opened.finish(END)

    async with open_bench(Turns(default=stream)) as bench:
        bench.accept("hello")
        await gate.reached()
        assert text_of((await bench.messages())[-1]) == "a"
        await bench.transcript.flush_all()
        assert text_of((await bench.messages())[-1]) == "ab"
        gate.open()


@pytest.mark.item("B6")
@pytest.mark.parametrize("how", ["return", "cancel", "fail"])
async def test_the_last_word_of_an_answer_is_published_before_the_ending(how):
    gate = Gate()

    async def stream(run, transcript):
        opened = await answer(run, transcript)
        opened.append_text("a")
        await settle()
        opened.append_text("b")
        if how == "cancel":
            await gate.wait()
        elif how == "fail":
            raise ValueError("broken")
        return completion(opened)

    async with open_bench(Turns(default=stream)) as bench:
        run = bench.accept("hello")
        if how == "cancel":
            await gate.reached()
            bench.cancel()
        await run.wait()
        *before, ending = all_events(bench.events)
        assert isinstance(ending, RunChange)
        (*_, last) = [e for e in before if isinstance(e, MessageChange)]
        assert last.view.finished
        assert text_of(last.message) == ending.run.text == "ab"


async def test_messages_of_one_second_keep_their_order():
    async with open_bench() as bench:
        for n in range(5):
            await bench.accept(f"{n}").wait()
        messages = await bench.messages()
        assert trio.current_time() < 1
        assert roles(messages) == [Role.USER, Role.ASSISTANT] * 5
        assert [text_of(message) for message in messages[::2]] == list("01234")
