"""Section D, played by the real agent: what turns store, send and announce.

`tests/agent` covers the same items piece by piece; here is what only shows in a whole turn.
"""

import pytest
import trio
from attrs import evolve

from crush_trio.agent.record.unfinished_turn import TOOL_CANCELLED
from crush_trio.agent.turn.prompt import INTERRUPTED, affinity
from crush_trio.agent.turn.summary import FAILED, REQUEST
from crush_trio.agent.turn.title import INSTRUCTIONS
from crush_trio.config.errors import NotConfigured
from crush_trio.errors import SessionBusy
from crush_trio.events.facts import MessageChange
from crush_trio.providers.base import Finished, ToolCallBegin, Usage
from crush_trio.store.changes import MessageCreated, UsageAdded
from crush_trio.store.errors import DiskFull
from crush_trio.testing.explore.checkpoints import Gate
from crush_trio.testing.model.provider import ScriptedProvider
from crush_trio.testing.model.script import (
    CallTool,
    Fail,
    Pause,
    Refuse,
    Say,
    Think,
    by_text,
    text_of,
)
from crush_trio.testing.server.agent import TEST_MODEL, ScriptedAgent, ScriptedTool, open_test_agent
from crush_trio.testing.server.faulty_store import FaultyStore, StoreFault
from crush_trio.tools.base import ToolResult
from crush_trio.wire.events import AgentEvent, AgentEventType
from crush_trio.wire.ids import ToolCallId
from crush_trio.wire.messages import (
    FinishPart,
    FinishReason,
    ReasoningPart,
    Role,
    ShellCommandPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from crush_trio.wire.runs import RunKind, RunState, WhenBusy
from tests.agent.durable import assistant, check_complete, finish_of, parts_of
from tests.agent.whole_turn import new_store

FULL = Usage(input_tokens=TEST_MODEL.context_window)
ASK = CallTool("agent", {"prompt": "find it"}, id="c1")


def results(messages):
    return [part for m in messages for part in parts_of(m, ToolResultPart)]


def finished_notices(bench):
    """The notices by which clients hear that an agent has finished."""
    entities = [getattr(event, "entity", None) for event in bench.recorder.events]
    kind = AgentEventType.AGENT_FINISHED
    return [e for e in entities if isinstance(e, AgentEvent) and e.type is kind]


def summarize(bench, **more):
    return bench.accept("", kind=RunKind.SUMMARIZE, **more)


# ── D.3 Steps ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.item("D14")
@pytest.mark.parametrize(
    "reason",
    [
        FinishReason.END_TURN,
        FinishReason.MAX_TOKENS,
        FinishReason.CONTENT_FILTER,
        FinishReason.UNKNOWN,
    ],
)
async def test_an_answer_ends_for_the_reason_that_the_model_gave(reason):
    model = ScriptedProvider([[Say("so"), Finished(reason=reason)]])
    async with open_test_agent(model) as bench:
        outcome = await bench.accept("go").wait()
        [_, answer] = await bench.messages()
    assert (outcome.state, outcome.text) == (RunState.COMPLETED, "so")
    assert finish_of(answer).reason is reason


@pytest.mark.item("D14a", "D17")
async def test_a_call_that_a_second_attempt_did_not_repeat_is_gone_and_has_no_result():
    model = ScriptedProvider([[CallTool("look", id="c1"), Refuse(503)], [Say("without")]])
    async with open_test_agent(model, [ScriptedTool("look")]) as bench:
        outcome = await bench.accept("go").wait()
        messages = await bench.messages()
        await check_complete(bench.store)
    assert outcome.text == "without"
    assert [m.role for m in messages] == [Role.USER, Role.ASSISTANT]


@pytest.mark.item("D14a")
async def test_what_the_last_attempt_said_stays_when_it_fails():
    model = ScriptedProvider([[Say("first"), Refuse(503)], [Say("second"), Refuse(400, "no")]])
    async with open_test_agent(model) as bench:
        outcome = await bench.accept("go", run_id="r").wait()
        [_, answer] = await bench.messages()
    assert (outcome.state, outcome.text) == (RunState.ERRORED, "second")
    assert [part.text for part in parts_of(answer, TextPart)] == ["second"]


@pytest.mark.item("D16", "D17")
async def test_a_call_that_the_model_had_only_begun_is_closed_and_answered():
    gate = Gate("writing arguments")
    begun = ToolCallBegin(ToolCallId("c1"), "look")
    model = ScriptedProvider([[begun, Pause(gate)]])
    async with open_test_agent(model, [ScriptedTool("look")]) as bench:
        bench.accept("go")
        await gate.reached()
        await bench.cancel().settled()
        messages = await bench.messages()
        await check_complete(bench.store)
        told = [e.message.role for e in bench.recorder.events if isinstance(e, MessageChange)]
    assert told[-2:] == [Role.TOOL, Role.ASSISTANT], "the result comes before the finish"
    [call] = parts_of(messages[1], ToolCallPart)
    [result] = results(messages)
    assert (call.input, call.finished) == ("{}", True)
    assert (result.content, result.is_error) == (TOOL_CANCELLED, True)


@pytest.mark.item("D17")
async def test_a_call_whose_id_an_earlier_step_has_used_gets_a_result_of_its_own():
    gate = Gate("second look")

    async def wait(_call):
        await gate.wait()
        return ToolResult()

    model = ScriptedProvider([[CallTool("look", id="call_0")], [CallTool("wait", id="call_0")]])
    async with open_test_agent(model, [ScriptedTool("look"), ScriptedTool("wait", wait)]) as bench:
        bench.accept("go")
        await gate.reached()
        await bench.cancel().settled()
        await check_complete(bench.store)


# ── D.4 Failures ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.item("D18")
@pytest.mark.parametrize(
    ("step", "title"),
    [
        (Refuse(401, "why"), "Unauthorized"),
        (Refuse(400, "why"), "Bad Request"),
        (Fail(RuntimeError("why")), "Provider Error"),
    ],
)
async def test_a_failed_answer_says_what_went_wrong_under_a_title(step, title):
    model = ScriptedProvider([[Say("I was"), step]])
    async with open_test_agent(model) as bench:
        await bench.accept("go").wait()
        [_, answer] = await bench.messages()
    finish = finish_of(answer)
    assert (finish.reason, finish.message) == (FinishReason.ERROR, title)
    assert "why" in finish.details


@pytest.mark.item("D19", "D28")
@pytest.mark.parametrize("how", ["fails", "is cancelled"])
async def test_only_success_is_told_as_finished_and_the_queue_goes_on_either_way(how):
    gate = Gate("answering")
    model = ScriptedProvider(by_text({"go": [[Pause(gate), Refuse(400)]], "then": [[Say("yes")]]}))
    async with open_test_agent(model) as bench:
        first = bench.accept("go", run_id="1")
        await gate.reached()
        second = bench.accept("then", run_id="2")
        if how == "is cancelled":
            first.cancel()
        gate.open()
        assert (await second.wait()).text == "yes"
        assert first.outcome.state in {RunState.ERRORED, RunState.CANCELLED}
        [notice] = finished_notices(bench)
    assert (notice.session_id, notice.session_title) == ("s", "New Session")


@pytest.mark.item("D28")
@pytest.mark.parametrize("interactive", [True, False])
async def test_every_turn_is_told_as_finished_but_not_that_of_a_sub_agent(interactive):
    model = ScriptedProvider(by_text({"go": [[ASK], [Say("done")]], "find it": [[Say("found")]]}))
    async with open_test_agent(model) as bench:
        run = bench.accept("go", run_id="r", interactive=interactive)
        assert (await run.wait()).text == "done"
        [notice] = finished_notices(bench)
    assert notice.session_id == "s"


@pytest.mark.item("D20", "B7")
async def test_a_turn_that_has_no_model_keeps_the_prompt_and_stores_nothing_more(monkeypatch):
    async def choose(_agent, _slot, _instead=None):
        await trio.lowlevel.checkpoint()
        raise NotConfigured("no model")

    monkeypatch.setattr(ScriptedAgent, "choose", choose)
    async with open_test_agent(ScriptedProvider([]), titles=True) as bench:
        outcome = await bench.accept("go", run_id="r").wait()
        [prompt] = await bench.messages()
        assert [e.run_id for e in bench.recorder.errors] == ["r"]
        assert bench.recorder.endings_per_run.total() == 1
    assert (outcome.state, prompt.role) == (RunState.ERRORED, Role.USER)


# ── D.5 What the model is sent ──────────────────────────────────────────────────────────────────


@pytest.mark.item("D23")
async def test_a_history_with_loose_ends_is_sent_repaired_and_left_as_it_is():
    call = ToolCallPart(id=ToolCallId("c1"), name="look", input="{}", finished=True)
    orphan = ToolResultPart(tool_call_id=ToolCallId("gone"), name="look", content="old")
    end = FinishPart(reason=FinishReason.TOOL_USE, time=1)
    before = [assistant("a", call, end), evolve(assistant("t", orphan, end), role=Role.TOOL)]
    store = await new_store()
    await store.commit(*(MessageCreated(message=m) for m in before))
    model = ScriptedProvider([[Say("yes")]])
    async with open_test_agent(model, store=store) as bench:
        await bench.accept("go").wait()
        stored = await bench.messages()
    [request] = model.requests
    sent = [part for m in request.messages for part in m.parts if isinstance(part, ToolResultPart)]
    assert [(p.tool_call_id, p.content) for p in sent] == [("c1", INTERRUPTED)]
    assert [m.role for m in request.messages] == [Role.ASSISTANT, Role.TOOL, Role.USER]
    assert stored[:2] == before


@pytest.mark.item("D23c")
async def test_the_requests_of_a_session_share_a_name_that_tells_nobody_which_it_is():
    model = ScriptedProvider([[CallTool("look")], [Say("yes")]])
    async with open_test_agent(model, [ScriptedTool("look")]) as bench:
        await bench.accept("go").wait()
    names = {request.affinity for request in model.requests}
    assert names == {affinity("s")}
    assert affinity("s") != affinity("t")
    assert len(affinity("s")) == 32


# ── D.6 Titles, D.7 Usage ───────────────────────────────────────────────────────────────────────


@pytest.mark.item("D24")
async def test_a_command_that_a_person_ran_is_not_the_first_word_of_a_session():
    ran = ShellCommandPart(command="ls", output="a", exit_code=0)
    store = await new_store()
    shell = evolve(
        assistant("x", ran, FinishPart(reason=FinishReason.STOP, time=0)), role=Role.USER
    )
    await store.commit(MessageCreated(message=shell))
    model = ScriptedProvider(lambda r: [Say("A title" if r.system == (INSTRUCTIONS,) else "yes")])
    async with open_test_agent(model, titles=True, store=store) as bench:
        await bench.accept("go").wait()
        await trio.sleep(1)
        assert (await bench.session()).title == "A title"


@pytest.mark.item("D29")
async def test_a_full_context_is_left_alone_where_summaries_are_not_wanted(monkeypatch):
    plan = ScriptedAgent.plan

    async def plain(agent, run):
        return evolve(await plan(agent, run), auto_summarize=False)

    monkeypatch.setattr(ScriptedAgent, "plan", plain)
    model = ScriptedProvider([[Say("done"), Finished(reason=FinishReason.END_TURN, usage=FULL)]])
    async with open_test_agent(model) as bench:
        await bench.accept("go").wait()
    assert len(model.requests) == 1


# ── D.8 Summaries and tasks ─────────────────────────────────────────────────────────────────────


@pytest.mark.item("D31", "C10")
async def test_a_summary_of_a_busy_session_is_refused_or_waits_as_its_caller_wants():
    gate = Gate("answering")
    answers = {"go": [[Pause(gate), Say("yes")]], REQUEST: [[Say("Short.")]]}
    async with open_test_agent(ScriptedProvider(by_text(answers))) as bench:
        bench.accept("go", run_id="r")
        await gate.reached()
        with pytest.raises(SessionBusy):
            summarize(bench, when_busy=WhenBusy.REJECT)
        waiting = summarize(bench)
        gate.open()
        assert (await waiting.wait()).state is RunState.COMPLETED
        assert (await bench.session()).summary_message_id == waiting.outcome.message_id


@pytest.mark.item("D15", "D32")
async def test_a_summary_that_fails_while_the_model_thinks_is_closed_like_any_answer():
    call = ToolCallBegin(ToolCallId("c1"), "look")
    model = ScriptedProvider([[Say("hello")], [Think("hm"), call, Think("hm"), Refuse(400)]])
    async with open_test_agent(model) as bench:
        await bench.accept("hi").wait()
        await summarize(bench).wait()
        summary = (await bench.messages())[2]
        await check_complete(bench.store)
    assert finish_of(summary).message == FAILED
    assert all(part.finished_at for part in parts_of(summary, ReasoningPart))


@pytest.mark.item("D17", "D32")
async def test_a_cancelled_summary_takes_the_calls_with_it_that_it_made():
    gate = Gate("summing up")
    model = ScriptedProvider([[Say("hello")], [CallTool("look"), Pause(gate)]])
    async with open_test_agent(model, [ScriptedTool("look")]) as bench:
        await bench.accept("hi").wait()
        summarize(bench)
        await gate.reached()
        await bench.cancel().settled()
        assert [m.role for m in await bench.messages()] == [Role.USER, Role.ASSISTANT]


@pytest.mark.item("D33")
async def test_an_answer_is_not_lost_to_a_bill_that_could_not_be_written():
    def is_bill(change):
        return change.id == "s" and change.cost == 0.5

    store = FaultyStore(
        await new_store(), [StoreFault(of=(UsageAdded,), error=DiskFull, wanted=is_bill)]
    )
    used = Usage(input_tokens=1, cost=0.5)
    found = [Say("found"), Finished(reason=FinishReason.END_TURN, usage=used)]
    model = ScriptedProvider(by_text({"go": [[ASK], [Say("done")]], "find it": [found]}))
    async with open_test_agent(model, store=store) as bench:
        outcome = await bench.accept("go").wait()
        [result] = results(await bench.messages())
    assert store.struck
    assert (outcome.text, result.content) == ("done", "found")


@pytest.mark.item("D22", "D33")
async def test_a_task_knows_nothing_but_what_it_was_asked():
    model = ScriptedProvider(by_text({"go": [[ASK], [Say("done")]], "find it": [[Say("found")]]}))
    async with open_test_agent(model) as bench:
        await bench.accept("go").wait()
    [asked] = [request for request in model.requests if text_of(request) == "find it"]
    assert [m.role for m in asked.messages] == [Role.USER]
    assert asked.tools == ()
