"""Sections A8 and B, played by the real agent: what it does before a turn, and how turns are told.

The rules of accepting and of terminal events are in `test_a_accept.py` and `test_b_terminal_events.py`,
for turns of any kind.
"""

import orjson
import pytest
import trio.testing
from attrs import evolve

from crush_trio.events import Form
from crush_trio.testing.explore.checkpoints import Gate
from crush_trio.testing.model.provider import ScriptedProvider
from crush_trio.testing.model.script import CallTool, Pause, Refuse, Say, by_text
from crush_trio.testing.server.agent import TEST_MODEL, ScriptedAgent, ScriptedTool, open_test_agent
from crush_trio.wire.messages import FinishReason, Role
from crush_trio.wire.runs import RunState
from tests.agent.durable import check_complete, finish_of

ASK = CallTool("agent", {"prompt": "find it"}, id="c1")


def completions(reader):
    """Return the completions that one of Crush's own clients has received, in order."""
    frames = reader.take().encode(Form.CRUSH).split(b"\n\n")[:-1]
    events = [orjson.loads(frame.removeprefix(b"data: ")) for frame in frames]
    return [event["payload"]["payload"] for event in events if event["type"] == "run_complete"]


# ── A8 What comes before a turn ─────────────────────────────────────────────────────────────────


@pytest.mark.item("A8", "C5")
async def test_a_prompt_that_waited_runs_on_the_model_and_the_tools_of_its_own_beginning():
    gate = Gate("first")
    model = ScriptedProvider([[Pause(gate), Say("one")], [Say("two")]])
    async with open_test_agent(model) as bench:
        bench.accept("go", run_id="1")
        await gate.reached()
        second = bench.accept("then", run_id="2")
        await trio.testing.wait_all_tasks_blocked()
        bench.agent.model = evolve(TEST_MODEL, id="m2")
        bench.agent.tools["look"] = ScriptedTool("look")
        gate.open()
        await second.wait()
        messages = await bench.messages()
    first, later = model.requests
    assert (first.model.id, later.model.id) == ("m1", "m2")
    assert [tool.name for tool in first.tools] == ["agent"]
    assert [tool.name for tool in later.tools] == ["agent", "look"]
    assert [m.model for m in messages if m.role is Role.ASSISTANT] == ["m1", "m2"]


@pytest.mark.item("A8", "L9")
async def test_a_cancel_while_a_turn_is_prepared_is_a_cancel_with_a_complete_record(monkeypatch):
    gate = Gate("choosing")

    async def choose(_agent, _slot, _instead=None):
        await gate.wait()

    monkeypatch.setattr(ScriptedAgent, "choose", choose)
    model = ScriptedProvider([])
    async with open_test_agent(model) as bench:
        run = bench.accept("go", run_id="r")
        await gate.reached()
        await bench.cancel().settled()
        [prompt, answer] = await bench.messages()
        assert bench.recorder.errors == []
        await check_complete(bench.store)
    assert run.outcome.state is RunState.CANCELLED
    assert (prompt.role, finish_of(answer).reason) == (Role.USER, FinishReason.CANCELLED)
    assert model.requests == []


# ── B Terminal events ───────────────────────────────────────────────────────────────────────────


@pytest.mark.item("B2")
async def test_a_completion_has_the_words_of_the_last_step_and_of_no_other():
    model = ScriptedProvider([[Say("Looking."), CallTool("look")], [Say("Do"), Say("ne.")]])
    async with open_test_agent(model, [ScriptedTool("look")]) as bench:
        reader = bench.events.cursor(Form.CRUSH)
        await bench.accept("go", run_id="r").wait()
        last = (await bench.messages())[-1]
        [completion] = completions(reader)
    assert completion == {
        "session_id": "s",
        "run_id": "r",
        "message_id": last.id,
        "text": "Done.",
    }


@pytest.mark.item("B3", "A20")
async def test_a_run_cancelled_in_its_second_step_tells_of_that_one():
    gate = Gate("speaking")
    model = ScriptedProvider([[Say("Looking."), CallTool("look")], [Say("I am"), Pause(gate)]])
    async with open_test_agent(model, [ScriptedTool("look")]) as bench:
        reader = bench.events.cursor(Form.CRUSH)
        bench.accept("go", run_id="r")
        await gate.reached()
        await bench.cancel().settled()
        [completion] = completions(reader)
    assert (completion["text"], completion["cancelled"]) == ("I am", True)
    assert completion["error"]


@pytest.mark.item("B5")
async def test_a_provider_that_fails_in_the_midst_is_told_with_what_it_had_said():
    model = ScriptedProvider([[Say("I was"), Refuse(400, "too long")]])
    async with open_test_agent(model) as bench:
        reader = bench.events.cursor(Form.CRUSH)
        await bench.accept("go", run_id="r").wait()
        [completion] = completions(reader)
    assert (completion["text"], completion.get("cancelled")) == ("I was", None)
    assert "too long" in completion["error"]


@pytest.mark.item("B11")
async def test_attempts_that_failed_are_not_told_as_endings():
    model = ScriptedProvider([[Say("a"), Refuse(503)], [Refuse(429)], [Say("b")]])
    async with open_test_agent(model) as bench:
        reader = bench.events.cursor(Form.CRUSH)
        await bench.accept("go", run_id="r").wait()
        [completion] = completions(reader)
        assert bench.recorder.errors == []
    assert (completion["text"], completion.get("error")) == ("b", None)


@pytest.mark.item("B16")
async def test_a_task_has_a_completion_of_its_own_session_without_a_run_id_before_its_run_has():
    model = ScriptedProvider(by_text({"go": [[ASK], [Say("done")]], "find it": [[Say("found")]]}))
    async with open_test_agent(model) as bench:
        reader = bench.events.cursor(Form.CRUSH)
        await bench.accept("go", run_id="r").wait()
        answer = (await bench.messages())[1]
        task, run = completions(reader)
    assert task["session_id"] == f"{answer.id}$$c1"
    assert (task.get("run_id"), task["text"]) == (None, "found")
    assert (run["session_id"], run["run_id"], run["text"]) == ("s", "r", "done")


@pytest.mark.item("B16", "A11")
async def test_a_task_makes_its_own_session_busy_and_can_be_cancelled_there():
    gate = Gate("searching")
    answers = {"go": [[ASK], [Say("without")]], "find it": [[Say("I am"), Pause(gate)]]}
    async with open_test_agent(ScriptedProvider(by_text(answers))) as bench:
        run = bench.accept("go", run_id="r")
        await gate.reached()
        child = f"{(await bench.messages())[1].id}$$c1"
        assert bench.workspace.runs.session_busy(child)
        receipt = await bench.cancel(child).settled()
        assert len(receipt.hits) == 1
        assert (await run.wait()).text == "without"
        await check_complete(bench.store, "s", child)


@pytest.mark.item("B18", "H1")
async def test_a_tool_with_a_bug_ends_its_task_and_the_run_above_hears_of_it():
    def crash(_call):
        raise ZeroDivisionError("a bug")

    answers = {"go": [[ASK], [Say("then not")]], "find it": [[Say("I"), CallTool("view")]]}
    tools = [ScriptedTool("view", crash)]
    async with open_test_agent(ScriptedProvider(by_text(answers)), tools) as bench:
        outcome = await bench.accept("go", run_id="r").wait()
        task, run = bench.recorder.endings
        await check_complete(bench.store, "s", task.session_id)
    assert (task.state, task.error, task.text) == (RunState.ERRORED, "a bug", "I")
    assert (run.state, outcome.text) == (RunState.COMPLETED, "then not")
