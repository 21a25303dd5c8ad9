"""Turns of a real agent with a scripted model: steps, tools, folding, endings."""

import pytest
import trio

from crush_trio.agent.asks.permit import DENIED
from crush_trio.agent.turn.model_call import BILLED
from crush_trio.agent.turn.steps import CUT_OFF, EMPTY, REPEATED
from crush_trio.providers.base import ECHO, Finished, Usage
from crush_trio.runtime.outcome import Completion
from crush_trio.store.changes import SessionCreated
from crush_trio.store.memory.store import MemoryStore
from crush_trio.testing.explore.checkpoints import Gate
from crush_trio.testing.model.provider import ScriptedProvider
from crush_trio.testing.model.script import CallTool, Pause, Refuse, Say, Think
from crush_trio.testing.server.agent import ScriptedTool, open_test_agent
from crush_trio.tools.base import Media, ToolError, ToolResult
from crush_trio.wire.ids import SessionId
from crush_trio.wire.messages import (
    FinishReason,
    ReasoningPart,
    Role,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from crush_trio.wire.runs import RunState
from crush_trio.wire.views import Session
from tests.agent.durable import check_complete, finish_of, parts_of


def shape(messages):
    """Return who spoke and how each message ended."""
    return [(message.role, finish_of(message).reason) for message in messages]


def results(messages):
    return [part for message in messages for part in parts_of(message, ToolResultPart)]


TURN = [
    (Role.USER, FinishReason.STOP),
    (Role.ASSISTANT, FinishReason.TOOL_USE),
    (Role.TOOL, FinishReason.STOP),
    (Role.ASSISTANT, FinishReason.END_TURN),
]


@pytest.mark.item("B2", "D13", "D14")
async def test_each_step_is_a_message_and_so_is_each_result():
    model = ScriptedProvider(
        [[Say("Looking."), CallTool("look", {"at": 1})], [Say("All "), Say("good.")]]
    )
    look = ScriptedTool("look", lambda _: ToolResult(content="a file"))
    async with open_test_agent(model, [look]) as bench:
        outcome = await bench.accept("go", run_id="r1").wait()
        messages = await bench.messages()
        await check_complete(bench.store)
    assert outcome.state is RunState.COMPLETED
    assert (outcome.message_id, outcome.text) == (messages[-1].id, "All good.")
    assert shape(messages) == TURN
    assert results(messages)[0].content == "a file"
    assert [call.input for call in look.calls] == ['{"at":1}']
    assert look.calls[0].message_id == messages[1].id


@pytest.mark.item("D13")
async def test_events_of_a_turn_come_in_the_order_the_clients_know():
    model = ScriptedProvider([[CallTool("look")], [Say("done")]])
    async with open_test_agent(model, [ScriptedTool("look")]) as bench:
        await bench.accept("go", run_id="r1").wait()
        seen = bench.recorder.events
    told = []
    for event in seen:
        if hasattr(event, "view"):
            parts = event.view.message().parts
            told.append((event.view.head.role.value, event.change.value, *(p.kind for p in parts)))
        elif hasattr(event, "entity"):
            told.append((event.payload_type.value,))
        elif event.terminal:
            told.append(("ending",))
    assert told == [
        ("user", "created", "text", "finish"),
        ("assistant", "created"),
        ("assistant", "updated", "tool_call"),
        ("assistant", "updated", "tool_call"),
        ("tool", "created", "tool_result", "finish"),
        ("session",),
        ("assistant", "updated", "tool_call", "finish"),
        ("assistant", "created"),
        ("session",),
        ("assistant", "updated", "text", "finish"),
        ("agent_event",),
        ("ending",),
    ]


async def test_the_model_sees_what_it_said_and_what_its_tools_answered():
    model = ScriptedProvider(
        [[Think("hm", signature="sig"), CallTool("look", id="c1")], [Say("done")]]
    )
    async with open_test_agent(model, [ScriptedTool("look")]) as bench:
        await bench.accept("go").wait()
    first, second = model.requests
    assert [m.role for m in first.messages] == [Role.USER]
    assert [m.role for m in second.messages] == [Role.USER, Role.ASSISTANT, Role.TOOL]
    thought, call = second.messages[1].parts
    assert (thought.thinking, thought.signature) == ("hm", "sig")
    assert (call.id, call.name) == ("c1", "look")
    assert first.affinity == second.affinity != ""


async def test_what_is_no_signature_goes_back_to_the_model_and_is_not_shown_as_one():
    model = ScriptedProvider([[Think("hm", signature=ECHO), CallTool("look")], [Say("done")]])
    async with open_test_agent(model, [ScriptedTool("look")]) as bench:
        await bench.accept("go").wait()
        stored = (await bench.messages())[1].parts[0]
    assert (stored.signature, stored.replay) == ("", ECHO)
    thought = model.requests[1].messages[1].parts[0]
    assert (thought.signature, thought.replay) == (ECHO, "")


@pytest.mark.item("D15")
async def test_reasoning_is_closed_when_the_answer_begins():
    model = ScriptedProvider([[Think("hm"), Say("yes")]])
    async with open_test_agent(model) as bench:
        await bench.accept("go").wait()
        [_, answer] = await bench.messages()
    [thought] = parts_of(answer, ReasoningPart)
    assert thought.finished_at


# ── Tools ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.item("H8")
async def test_parallel_calls_run_together_and_others_alone_in_their_place():
    order = []

    def noting(name):
        async def play(_):
            order.append(f"{name} begins")
            await trio.sleep(1)
            order.append(f"{name} ends")
            return ToolResult(content=name)

        return play

    tools = [
        ScriptedTool("a", noting("a"), parallel=True),
        ScriptedTool("b", noting("b"), parallel=True),
        ScriptedTool("w", noting("w")),
    ]
    calls = [CallTool("w"), CallTool("a"), CallTool("b"), CallTool("w"), CallTool("w")]
    model = ScriptedProvider([calls, [Say("done")]])
    async with open_test_agent(model, tools) as bench:
        before = trio.current_time()
        await bench.accept("go").wait()
        took = trio.current_time() - before
    assert order[:2] == ["w begins", "w ends"]
    assert set(order[2:4]) == {"a begins", "b begins"}
    assert order[6:] == ["w begins", "w ends"] * 2
    assert 4 <= took < 5


@pytest.mark.item("H1")
async def test_a_tool_error_is_told_to_the_model_and_the_turn_goes_on():
    def refuse(_):
        raise ToolError("no such file")

    model = ScriptedProvider([[CallTool("look")], [Say("then not")]])
    async with open_test_agent(model, [ScriptedTool("look", refuse)]) as bench:
        outcome = await bench.accept("go").wait()
        [result] = results(await bench.messages())
    assert outcome.text == "then not"
    assert (result.content, result.is_error) == ("no such file", True)


@pytest.mark.item("H1", "B5", "D17", "D19")
async def test_a_tool_that_raises_ends_the_run_and_every_call_has_a_result():
    def crash(_):
        raise RuntimeError("boom")

    model = ScriptedProvider([[CallTool("ok"), CallTool("bad"), CallTool("ok")]])
    tools = [ScriptedTool("ok"), ScriptedTool("bad", crash)]
    async with open_test_agent(model, tools) as bench:
        outcome = await bench.accept("go", run_id="r").wait()
        messages = await bench.messages()
        await check_complete(bench.store)
    assert (outcome.state, outcome.error) == (RunState.ERRORED, "boom")
    assert [r.is_error for r in results(messages)] == [False, True, True]
    assert finish_of(messages[1]).reason is FinishReason.ERROR


async def test_a_tool_that_does_not_exist_is_told_so():
    model = ScriptedProvider([[CallTool("nope")], [Say("ok")]])
    async with open_test_agent(model) as bench:
        await bench.accept("go").wait()
        [result] = results(await bench.messages())
    assert result.is_error
    assert "nope" in result.content


@pytest.mark.item("D14b")
@pytest.mark.parametrize("broken", ["{", "[1]", '"text"', "{'a': 1}"])
async def test_arguments_that_are_no_object_are_stored_as_none_and_refused(broken):
    look = ScriptedTool("look")
    model = ScriptedProvider([[CallTool("look", broken)], [Say("sorry")]])
    async with open_test_agent(model, [look]) as bench:
        await bench.accept("go").wait()
        messages = await bench.messages()
    [call] = parts_of(messages[1], ToolCallPart)
    [result] = results(messages)
    assert call.input == "{}"
    assert result.is_error
    assert "JSON" in result.content
    assert look.calls == []


@pytest.mark.item("D14c")
async def test_media_without_words_get_some():
    picture = ToolResult(media=Media(data=b"png", mime_type="image/png"))
    model = ScriptedProvider([[CallTool("look")], [Say("nice")]])
    async with open_test_agent(model, [ScriptedTool("look", lambda _: picture)]) as bench:
        await bench.accept("go").wait()
        [result] = results(await bench.messages())
    assert (result.content, result.data) == ("Loaded image/png content", "cG5n")


@pytest.mark.item("F5", "D14")
async def test_a_result_that_stops_the_turn_ends_it():
    stop = ToolResult(content=DENIED, is_error=True, stop_turn=True, by_person=True)
    model = ScriptedProvider([[Say("May I?"), CallTool("look")]])
    async with open_test_agent(model, [ScriptedTool("look", lambda _: stop)]) as bench:
        outcome = await bench.accept("go").wait()
        messages = await bench.messages()
        await check_complete(bench.store)
    assert (outcome.state, outcome.text) == (RunState.COMPLETED, "May I?")
    assert finish_of(messages[1]).reason is FinishReason.END_TURN


@pytest.mark.item("D30")
async def test_a_model_that_goes_in_circles_is_stopped():
    model = ScriptedProvider(lambda _: [CallTool("look", {"at": 1})])
    async with open_test_agent(model, [ScriptedTool("look")]) as bench:
        outcome = await bench.accept("go").wait()
        messages = await bench.messages()
    assert outcome.state is RunState.COMPLETED
    assert len(model.requests) == 10
    assert finish_of(messages[-2]).message == REPEATED


@pytest.mark.item("D14")
async def test_an_answer_that_was_cut_off_runs_no_tools():
    look = ScriptedTool("look")
    model = ScriptedProvider(
        [[Say("I will"), CallTool("look"), Finished(reason=FinishReason.MAX_TOKENS)]]
    )
    async with open_test_agent(model, [look]) as bench:
        outcome = await bench.accept("go").wait()
        messages = await bench.messages()
        await check_complete(bench.store)
    assert outcome.state is RunState.COMPLETED
    assert look.calls == []
    assert finish_of(messages[1]).reason is FinishReason.MAX_TOKENS
    assert "reached its limit of 4096 tokens" in finish_of(messages[1]).message
    assert [r.content for r in results(messages)] == [CUT_OFF]


@pytest.mark.item("D14")
@pytest.mark.parametrize("answer", [[], [Think("Hm.")], [Say(" \n")]])
async def test_an_answer_without_a_text_is_told_as_such(answer):
    async with open_test_agent(ScriptedProvider([answer])) as bench:
        outcome = await bench.accept("go").wait()
        messages = await bench.messages()
    assert outcome.state is RunState.COMPLETED
    assert finish_of(messages[-1]).message == EMPTY


# ── Folding, retries, failures, cancels ─────────────────────────────────────────────────────────


@pytest.mark.item("C2", "C3", "C4")
async def test_prompts_that_wait_are_taken_in_before_the_next_step():
    gate = Gate("tool")

    async def wait(_):
        await gate.wait()
        return ToolResult(content="ok")

    model = ScriptedProvider([[CallTool("look")], [Say("both")], [Say("mine")]])
    async with open_test_agent(model, [ScriptedTool("look", wait)]) as bench:
        first = bench.accept("go")
        await gate.reached()
        folded, kept = bench.accept("and this"), bench.accept("alone", run_id="r2")
        await kept.journaled()
        await folded.journaled()
        gate.open()
        assert (await first.wait()).text == "both"
        assert (await folded.wait()).state is RunState.FOLDED
        assert (await kept.wait()).text == "mine"
        await check_complete(bench.store)
    said = [p.text for m in model.requests[1].messages for p in m.parts if isinstance(p, TextPart)]
    assert said == ["go", "and this"]


async def test_a_turn_reads_the_conversation_once_per_step(monkeypatch):
    read, store = [], MemoryStore("boot")
    await store.commit(SessionCreated(session=Session(id=SessionId("s"))))
    conversation = store.conversation

    async def counted(session_id, run_id):
        read.append(run_id)
        return await conversation(session_id, run_id)

    monkeypatch.setattr(store, "conversation", counted)
    model = ScriptedProvider(lambda request: [Say("Title")] if not request.tools else steps.pop(0))
    steps = [[CallTool("look")], [Say("done")]]
    async with open_test_agent(model, [ScriptedTool("look")], titles=True, store=store) as bench:
        await bench.accept("go").wait()
    assert len(read) == 2


@pytest.mark.item("D14a")
async def test_a_retry_begins_the_answer_again():
    model = ScriptedProvider([[Say("half a"), Refuse(503)], [Say("whole")]])
    async with open_test_agent(model) as bench:
        outcome = await bench.accept("go").wait()
        [_, answer] = await bench.messages()
    assert outcome.text == "whole"
    assert [p.text for p in parts_of(answer, TextPart)] == ["whole"]


@pytest.mark.item("D14a")
async def test_the_result_says_that_a_retry_may_be_billed_twice():
    model = ScriptedProvider(
        [[Refuse(503)], [Say("half a"), Refuse(503)], [Say("whole")], [Refuse(503)], [Say("more")]]
    )
    async with open_test_agent(model) as bench:
        views = []
        for _ in range(2):
            run = bench.accept("go")
            await run.wait()
            views.append(run.view)
    assert [view.notices for view in views] == [(BILLED.format(title="Service Unavailable"),), ()]


@pytest.mark.item("B5", "D18")
async def test_a_provider_that_refuses_ends_the_run_with_its_own_words():
    model = ScriptedProvider([[Refuse(401, "bad key")]])
    async with open_test_agent(model) as bench:
        outcome = await bench.accept("go", run_id="r").wait()
        messages = await bench.messages()
        errors = bench.recorder.errors
    assert outcome.state is RunState.ERRORED
    assert "bad key" in outcome.error
    finish = finish_of(messages[-1])
    assert (finish.reason, finish.message) == (FinishReason.ERROR, "Unauthorized")
    assert "bad key" in finish.details
    assert [e.run_id for e in errors] == ["r"]


@pytest.mark.item("B3", "D15", "D16", "D17", "D18")
async def test_a_cancel_in_the_middle_of_an_answer_keeps_what_was_said():
    gate = Gate("speaking")
    model = ScriptedProvider([[Think("hm"), Say("I was"), CallTool("look"), Pause(gate)]])
    async with open_test_agent(model, [ScriptedTool("look")]) as bench:
        run = bench.accept("go", run_id="r")
        await gate.reached()
        await bench.cancel().settled()
        assert model.open == 0
        messages = await bench.messages()
        await check_complete(bench.store)
    assert run.outcome.state is RunState.CANCELLED
    assert run.outcome.text == "I was"
    assert finish_of(messages[1]).reason is FinishReason.CANCELLED
    assert [r.is_error for r in results(messages)] == [True]


@pytest.mark.item("D27")
async def test_usage_is_counted_and_shown_after_every_step():
    used = Usage(input_tokens=100, output_tokens=5)
    model = ScriptedProvider(
        [
            [CallTool("look"), Finished(reason=FinishReason.TOOL_USE, usage=used)],
            [Say("x"), Finished(reason=FinishReason.END_TURN, usage=used)],
        ]
    )
    async with open_test_agent(model, [ScriptedTool("look")]) as bench:
        await bench.accept("go").wait()
        session = await bench.session()
        totals = await bench.store.totals(session.id)
    assert (session.prompt_tokens, session.completion_tokens) == (100, 5)
    assert (totals.prompt_tokens, totals.completion_tokens) == (200, 10)


@pytest.mark.item("B7")
async def test_a_prompt_for_a_session_that_does_not_exist_fails_with_one_ending():
    model = ScriptedProvider([])
    async with open_test_agent(model) as bench:
        outcome = await bench.accept("go", session="nowhere", run_id="r").wait()
        assert bench.recorder.endings_per_run.total() == 1
    assert outcome.state is RunState.ERRORED
    assert outcome.message_id == Completion().message_id


async def test_long_silence_of_the_model_is_told():
    model = ScriptedProvider([[Pause(Gate("never")), Say("x")]])
    async with open_test_agent(model) as bench:
        bench.accept("go", run_id="r")
        await trio.sleep(30)
        told = [e.entity.progress for e in bench.recorder.events if hasattr(e, "entity")]
        bench.cancel()
    assert told == ["waiting for the model, 10 s", "waiting for the model, 25 s"]


@pytest.mark.item("F5", "F21")
@pytest.mark.parametrize(
    ("said", "by_person", "text"),
    [
        ([], True, ""),
        ([], False, "no one can answer"),
        ([Say("May I?")], False, "May I?\n\nno one can answer"),
    ],
)
async def test_the_text_of_a_stopped_turn_says_why_unless_a_person_stopped_it(
    said, by_person, text
):
    stop = ToolResult(
        content="no one can answer", is_error=True, stop_turn=True, by_person=by_person
    )
    model = ScriptedProvider([[*said, CallTool("look")]])
    async with open_test_agent(model, [ScriptedTool("look", lambda _: stop)]) as bench:
        outcome = await bench.accept("go", run_id="r").wait()
    assert (outcome.state, outcome.text) == (RunState.COMPLETED, text)
