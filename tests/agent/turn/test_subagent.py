"""Tasks: runs that other runs have done for them."""

import pytest
import trio

from crush_trio.providers.base import Finished, Usage
from crush_trio.testing.explore.checkpoints import Gate
from crush_trio.testing.model.provider import ScriptedProvider
from crush_trio.testing.model.script import CallTool, Pause, Refuse, Say, by_text, text_of
from crush_trio.testing.server.agent import ScriptedTool, open_test_agent
from crush_trio.wire.messages import FinishReason, ToolResultPart
from crush_trio.wire.runs import RunKind, RunState
from tests.agent.durable import check_complete, parts_of

ASK = CallTool("agent", {"prompt": "find it"}, id="c1")


def results(messages):
    return [part for message in messages for part in parts_of(message, ToolResultPart)]


@pytest.mark.item("B16", "D33")
async def test_a_task_runs_in_a_session_below_and_its_last_words_are_the_result():
    used = Usage(input_tokens=1, cost=0.5)
    found = [Say("In a.py:1"), Finished(reason=FinishReason.END_TURN, usage=used)]
    model = ScriptedProvider(by_text({"go": [[ASK], [Say("done")]], "find it": [found]}))
    async with open_test_agent(model, [ScriptedTool("view"), ScriptedTool("bash")]) as bench:
        outcome = await bench.accept("go", run_id="r").wait()
        messages = await bench.messages()
        child = f"{messages[1].id}$$c1"
        session = await bench.session(child)
        endings = {run.session_id: run for run in bench.recorder.endings}
        await check_complete(bench.store, "s", child)
        parent = await bench.session()
    assert outcome.text == "done"
    assert [r.content for r in results(messages)] == ["In a.py:1"]
    assert session.parent_session_id == "s"
    assert (endings[child].run_id, endings[child].kind) == (None, RunKind.TASK)
    assert parent.cost == session.cost == 0.5
    [asked] = [r for r in model.requests if text_of(r) == "find it"]
    assert [tool.name for tool in asked.tools] == ["view"]


@pytest.mark.item("D33")
@pytest.mark.parametrize("answer", [[Refuse(400, "no")], []])
async def test_a_task_that_fails_or_says_nothing_is_an_error_the_model_sees(answer):
    model = ScriptedProvider(by_text({"go": [[ASK], [Say("then not")]], "find it": [answer]}))
    async with open_test_agent(model) as bench:
        outcome = await bench.accept("go").wait()
        [result] = results(await bench.messages())
    assert outcome.text == "then not"
    assert result.is_error


@pytest.mark.item("A20")
async def test_cancelling_the_run_ends_its_task_first():
    gate = Gate("searching")
    model = ScriptedProvider(by_text({"go": [[ASK]], "find it": [[Say("I am"), Pause(gate)]]}))
    async with open_test_agent(model) as bench:
        run = bench.accept("go", run_id="r")
        await gate.reached()
        await bench.cancel().settled()
        assert model.open == 0
        assert bench.workspace.runs.runs == ()
        states = [(r.kind, r.state) for r in bench.recorder.endings]
        child = f"{(await bench.messages())[1].id}$$c1"
        await check_complete(bench.store, "s", child)
    assert run.outcome.state is RunState.CANCELLED
    assert states == [
        (RunKind.TASK, RunState.CANCELLED),
        (RunKind.PROMPT, RunState.CANCELLED),
    ]


async def test_processes_of_a_task_are_in_the_receipt_of_the_run_that_had_it_done():
    async def stopped(call):
        reached.set()
        try:
            await trio.sleep_forever()
        finally:
            call.reaped([7, 8], [9])

    reached = trio.Event()
    look = CallTool("view", {}, id="c2")
    model = ScriptedProvider(by_text({"go": [[ASK]], "find it": [[look]]}))
    async with open_test_agent(model, [ScriptedTool("view", stopped)]) as bench:
        bench.accept("go", run_id="r")
        await reached.wait()
        receipt = await bench.cancel().settled()
    [hit] = receipt.hits
    assert (hit.processes, hit.left) == ((7, 8), (9,))
    assert not receipt.complete


async def test_cancelling_the_task_alone_lets_the_run_go_on():
    gate = Gate("searching")
    model = ScriptedProvider(
        by_text({"go": [[ASK], [Say("without it")]], "find it": [[Pause(gate)]]})
    )
    async with open_test_agent(model) as bench:
        run = bench.accept("go", run_id="r")
        await gate.reached()
        [task] = [r for r in bench.workspace.runs.runs if r.submission.kind is RunKind.TASK]
        task.cancel()
        assert (await run.wait()).text == "without it"


async def test_tasks_of_one_step_run_at_the_same_time():
    first, second = Gate("first"), Gate("second")
    asks = [CallTool("agent", {"prompt": "one"}), CallTool("agent", {"prompt": "two"})]
    model = ScriptedProvider(
        by_text(
            {
                "go": [asks, [Say("done")]],
                "one": [[Pause(first), Say("1")]],
                "two": [[Pause(second), Say("2")]],
            }
        )
    )
    async with open_test_agent(model) as bench:
        run = bench.accept("go")
        await first.reached()
        await second.reached()
        second.open()
        first.open()
        assert (await run.wait()).text == "done"
        assert sorted(r.content for r in results(await bench.messages())) == ["1", "2"]
