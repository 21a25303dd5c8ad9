"""Sessions summarised, on demand and because they grew too long."""

import pytest
import trio

from crush_trio.agent.turn.summary import FAILED, REQUEST
from crush_trio.providers.base import Finished, Usage
from crush_trio.store.changes import SessionEdited
from crush_trio.testing.explore.checkpoints import Gate
from crush_trio.testing.model.provider import ScriptedProvider
from crush_trio.testing.model.script import CallTool, Pause, Refuse, Say
from crush_trio.testing.server.agent import TEST_MODEL, ScriptedTool, open_test_agent
from crush_trio.wire.ids import SessionId
from crush_trio.wire.messages import FinishReason, Role, TextPart
from crush_trio.wire.runs import RunKind, RunState
from crush_trio.wire.views import Todo, TodoStatus
from tests.agent.durable import check_complete, finish_of

FULL = Usage(input_tokens=TEST_MODEL.context_window - 10, output_tokens=5)


def texts(request):
    return [p.text for m in request.messages for p in m.parts if isinstance(p, TextPart)]


def summarize(bench):
    return bench.accept("", kind=RunKind.SUMMARIZE)


@pytest.mark.item("D32", "D21")
async def test_a_summary_becomes_the_beginning_of_the_history():
    model = ScriptedProvider([[Say("hello")], [Say("In short.")], [Say("yes")]])
    async with open_test_agent(model) as bench:
        await bench.accept("hi").wait()
        outcome = await summarize(bench).wait()
        session = await bench.session()
        await bench.accept("and now?").wait()
        messages = await bench.messages()
        await check_complete(bench.store)
    summary = messages[2]
    assert outcome.state is RunState.COMPLETED
    assert summary.is_summary_message
    assert finish_of(summary).reason is FinishReason.END_TURN
    assert session.summary_message_id == summary.id
    assert (session.prompt_tokens, session.completion_tokens) == (0, 3)
    assert texts(model.requests[2]) == ["In short.", "and now?"]


@pytest.mark.item("D32")
async def test_the_request_carries_the_todo_list():
    model = ScriptedProvider([[Say("hello")], [Say("In short.")]])
    todo = Todo(content="Run tests", status=TodoStatus.IN_PROGRESS, active_form="Running tests")
    async with open_test_agent(model) as bench:
        await bench.accept("hi").wait()
        await bench.store.commit(SessionEdited(id=SessionId("s"), at=1, todos=(todo,)))
        await summarize(bench).wait()
    last = texts(model.requests[1])[-1]
    assert last.startswith(REQUEST)
    assert "- [in_progress] Run tests" in last
    assert model.requests[1].tools == ()


@pytest.mark.item("D31")
async def test_an_empty_session_has_nothing_to_summarise():
    model = ScriptedProvider([])
    async with open_test_agent(model) as bench:
        outcome = await summarize(bench).wait()
        assert await bench.messages() == []
    assert outcome.state is RunState.COMPLETED
    assert model.requests == []


@pytest.mark.item("D32")
async def test_a_cancelled_summary_leaves_nothing_behind():
    gate = Gate("summing up")
    model = ScriptedProvider([[Say("hello")], [Say("In "), Pause(gate)]])
    async with open_test_agent(model) as bench:
        await bench.accept("hi").wait()
        run = summarize(bench)
        await gate.reached()
        await bench.cancel().settled()
        messages = await bench.messages()
        session = await bench.session()
        await check_complete(bench.store)
    assert run.outcome.state is RunState.CANCELLED
    assert [m.role for m in messages] == [Role.USER, Role.ASSISTANT]
    assert session.summary_message_id == ""


@pytest.mark.item("D32")
async def test_a_summary_that_fails_says_so_and_is_not_used():
    model = ScriptedProvider([[Say("hello")], [Say("In "), Refuse(400, "too long")]])
    async with open_test_agent(model) as bench:
        await bench.accept("hi").wait()
        outcome = await summarize(bench).wait()
        messages = await bench.messages()
        session = await bench.session()
    finish = finish_of(messages[-1])
    assert outcome.state is RunState.ERRORED
    assert (finish.reason, finish.message) == (FinishReason.ERROR, FAILED)
    assert "too long" in finish.details
    assert session.summary_message_id == ""


@pytest.mark.item("C10", "L12")
async def test_prompts_wait_behind_a_summary():
    gate = Gate("summing up")
    model = ScriptedProvider([[Say("hello")], [Pause(gate), Say("Short.")], [Say("yes")]])
    async with open_test_agent(model) as bench:
        await bench.accept("hi").wait()
        summary = summarize(bench)
        await gate.reached()
        waiting = bench.accept("and now?", run_id="r")
        await trio.testing.wait_all_tasks_blocked()
        assert waiting.state is RunState.QUEUED
        gate.open()
        await summary.wait()
        assert (await waiting.wait()).text == "yes"
    assert texts(model.requests[2]) == ["Short.", "and now?"]


@pytest.mark.item("D29", "C9", "B14")
async def test_a_turn_whose_context_is_full_is_summarised_and_goes_on_with_one_ending():
    model = ScriptedProvider(
        [
            [CallTool("look"), Finished(reason=FinishReason.TOOL_USE, usage=FULL)],
            [Say("So far: looked.")],
            [Say("done")],
        ]
    )
    async with open_test_agent(model, [ScriptedTool("look")]) as bench:
        outcome = await bench.accept("look into it", run_id="r").wait()
        messages = await bench.messages()
        endings = bench.recorder.endings_per_run
    assert outcome.text == "done"
    assert endings.total() == 1
    assert [m.role for m in messages] == [
        Role.USER,
        Role.ASSISTANT,
        Role.TOOL,
        Role.ASSISTANT,
        Role.USER,
        Role.ASSISTANT,
    ]
    summary, continued = texts(model.requests[2])
    assert summary == "So far: looked."
    assert "look into it" in continued


@pytest.mark.item("D29")
async def test_a_finished_turn_whose_context_is_full_is_summarised_after_it():
    model = ScriptedProvider(
        [[Say("done"), Finished(reason=FinishReason.END_TURN, usage=FULL)], [Say("Short.")]]
    )
    async with open_test_agent(model) as bench:
        outcome = await bench.accept("go").wait()
        messages = await bench.messages()
    assert outcome.text == "done"
    assert messages[-1].is_summary_message
    assert outcome.message_id == messages[1].id


@pytest.mark.item("D29")
async def test_a_failing_summary_does_not_undo_a_finished_turn():
    model = ScriptedProvider(
        [[Say("done"), Finished(reason=FinishReason.END_TURN, usage=FULL)], [Refuse(400)]]
    )
    async with open_test_agent(model) as bench:
        outcome = await bench.accept("go").wait()
        await check_complete(bench.store)
    assert (outcome.state, outcome.text) == (RunState.COMPLETED, "done")
