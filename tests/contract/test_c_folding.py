"""Section C, played by the real agent: what becomes of prompts that come while it works.

`test_c_queueing.py` has the rules of the lane; here is what the model and the store see of them.
"""

import pytest
import trio
import trio.testing

from crush_trio.agent.turn.summary import CONTINUE, REQUEST
from crush_trio.agent.turn.title import INSTRUCTIONS
from crush_trio.providers.base import Finished, Usage
from crush_trio.testing.explore.checkpoints import Gate
from crush_trio.testing.model.provider import ScriptedProvider
from crush_trio.testing.model.script import CallTool, Pause, Say, by_text
from crush_trio.testing.server.agent import TEST_MODEL, ScriptedTool, open_test_agent
from crush_trio.tools.base import ToolResult
from crush_trio.wire.messages import FinishReason, Role, TextPart
from crush_trio.wire.requests import Attachment
from crush_trio.wire.runs import RunState, WhenBusy
from tests.agent.durable import check_complete
from tests.agent.durable import text_of as words_of

LAST_STRAW = Finished(
    reason=FinishReason.TOOL_USE, usage=Usage(input_tokens=TEST_MODEL.context_window)
)
CONTINUED = CONTINUE.format(prompt="go")


def texts(request):
    """Return what the user says in a request."""
    return [
        part.text
        for message in request.messages
        if message.role is Role.USER
        for part in message.parts
        if isinstance(part, TextPart)
    ]


def waiting_tool(gate):
    async def play(_call):
        await gate.wait()
        return ToolResult(content="seen")

    return ScriptedTool("look", play)


async def queued(bench, *submissions):
    """Accept prompts and return their runs once they stand in the queue, in this order."""
    runs = []
    for text, more in submissions:
        runs.append(bench.accept(text, **more))
        await trio.testing.wait_all_tasks_blocked()
    return runs


@pytest.mark.item("C2", "C3")
async def test_folded_prompts_reach_the_very_next_step_in_order_with_what_came_with_them():
    gate = Gate("tool")
    note = Attachment(
        file_path="n.txt", file_name="n.txt", mime_type="text/plain", content=b"remember"
    )
    model = ScriptedProvider([[CallTool("look")], [Say("all three")]])
    async with open_test_agent(model, [waiting_tool(gate)]) as bench:
        run = bench.accept("go", run_id="r")
        await gate.reached()
        folded = await queued(bench, ("one", {"attachments": (note,)}), ("two", {}))
        gate.open()
        await run.wait()
        assert [(await f.wait()).folded_into for f in folded] == [run.id, run.id]
        said = [words_of(m) for m in await bench.messages() if m.role is Role.USER]
        await check_complete(bench.store)
    assert said == ["go", "one", "two"]
    first, one, two = texts(model.requests[1])
    assert (first, two) == ("go", "two")
    assert one.startswith("one")
    assert "remember" in one


@pytest.mark.item("C2", "C3")
async def test_a_prompt_that_steers_a_streaming_answer_reaches_the_next_step_with_its_files():
    gate = Gate("in the middle of an answer")
    note = Attachment(
        file_path="n.txt", file_name="n.txt", mime_type="text/plain", content=b"remember"
    )
    first = [Say("let me"), Pause(gate), CallTool("look")]
    model = ScriptedProvider([first, [Say("as you say")], [Say("and this")]])
    seen = Gate("tool")
    seen.open()
    async with open_test_agent(model, [waiting_tool(seen)]) as bench:
        run = bench.accept("go", run_id="r")
        await gate.reached()
        steers = {"when_busy": WhenBusy.STEER, "attachments": (note,)}
        [steered, alone] = await queued(
            bench, ("left", {**steers, "run_id": "s"}), ("alone", {"run_id": "t"})
        )
        gate.open()
        assert (await run.wait()).text == "as you say"
        assert (await steered.wait()).folded_into == run.id
        assert (await alone.wait()).state is RunState.COMPLETED
        said = [words_of(m) for m in await bench.messages() if m.role is Role.USER]
        await check_complete(bench.store)
    assert said == ["go", "left", "alone"]
    assert "remember" in texts(model.requests[1])[1]


@pytest.mark.item("C4")
async def test_a_folded_prompt_is_no_reason_for_a_title():
    gate = Gate("tool")
    answers = by_text({"": [], "go": [[CallTool("look")]], "more": [[Say("both")]]})
    titled = []

    def choose(request):
        if request.system == (INSTRUCTIONS,):
            titled.append(texts(request))
            return [Say("A title")]
        return answers(request)

    async with open_test_agent(
        ScriptedProvider(choose), [waiting_tool(gate)], titles=True
    ) as bench:
        run = bench.accept("go", run_id="r")
        await gate.reached()
        [folded] = await queued(bench, ("more", {}))
        gate.open()
        await run.wait()
        assert (await folded.wait()).state is RunState.FOLDED
        await trio.sleep(1)
    assert titled == [["go"]]


@pytest.mark.item("C6")
async def test_a_prompt_that_comes_during_the_last_step_gets_a_turn_and_sees_all_of_it():
    gate = Gate("last words")
    model = ScriptedProvider([[Say("so"), Pause(gate)], [Say("yes")]])
    async with open_test_agent(model) as bench:
        run = bench.accept("go", run_id="r")
        await gate.reached()
        [late] = await queued(bench, ("more", {}))
        gate.open()
        assert (await run.wait()).text == "so"
        assert (await late.wait()).text == "yes"
    assert [m.role for m in model.requests[1].messages] == [Role.USER, Role.ASSISTANT, Role.USER]


@pytest.mark.item("C9", "B14")
async def test_a_turn_that_was_summarised_goes_on_as_the_same_run():
    gate = Gate("summing up")
    answers = {
        "go": [[CallTool("look"), LAST_STRAW]],
        REQUEST: [[Pause(gate), Say("So far.")]],
        CONTINUED: [[Say("done")]],
    }
    model = ScriptedProvider(by_text(answers))
    async with open_test_agent(model, [ScriptedTool("look")]) as bench:
        run = bench.accept("go", run_id="r")
        await gate.reached()
        assert bench.workspace.runs.session_busy("s")
        assert bench.recorder.endings == []
        gate.open()
        outcome = await run.wait()
        [ending] = bench.recorder.endings
    assert (ending.run_id, ending.text, outcome.text) == ("r", "done", "done")
    assert texts(model.requests[2]) == ["So far.", CONTINUED]


@pytest.mark.item("C9", "C2")
async def test_a_prompt_that_comes_during_such_a_summary_is_folded_into_what_follows():
    gate = Gate("summing up")
    answers = {
        "go": [[CallTool("look"), LAST_STRAW]],
        REQUEST: [[Pause(gate), Say("So far.")]],
        "more": [[Say("both")]],
    }
    model = ScriptedProvider(by_text(answers))
    async with open_test_agent(model, [ScriptedTool("look")]) as bench:
        run = bench.accept("go", run_id="r")
        await gate.reached()
        [folded] = await queued(bench, ("more", {}))
        gate.open()
        assert (await run.wait()).text == "both"
        assert (await folded.wait()).state is RunState.FOLDED
    assert texts(model.requests[2]) == ["So far.", CONTINUED, "more"]


@pytest.mark.item("C9", "A13")
async def test_a_cancel_during_such_a_summary_ends_the_run_and_takes_the_summary_away():
    gate = Gate("summing up")
    answers = {"go": [[CallTool("look"), LAST_STRAW]], REQUEST: [[Say("So"), Pause(gate)]]}
    async with open_test_agent(ScriptedProvider(by_text(answers)), [ScriptedTool("look")]) as bench:
        run = bench.accept("go", run_id="r")
        await gate.reached()
        await bench.cancel().settled()
        assert run.outcome.state is RunState.CANCELLED
        assert not any(m.is_summary_message for m in await bench.messages())
        assert (await bench.session()).summary_message_id == ""
        await check_complete(bench.store)
