"""What a model and its tools may say, and what is kept of more than that."""

from contextlib import aclosing, asynccontextmanager

import pytest
import trio
from attrs import define, field

from crush_trio.limits import SizeLimits
from crush_trio.providers.base import (
    Finished,
    ReasoningDelta,
    TextDelta,
    ToolCallBegin,
    ToolCallDelta,
    Usage,
)
from crush_trio.runtime.outcome import Submission
from crush_trio.testing.model.provider import ScriptedProvider
from crush_trio.testing.model.script import CallTool, Cut, Say, Think
from crush_trio.testing.server.agent import TEST_MODEL, ScriptedTool, open_test_agent
from crush_trio.tools.base import ToolError, ToolResult
from crush_trio.wire.messages import FinishReason, ReasoningPart, TextPart, ToolResultPart
from crush_trio.wire.runs import RunKind, RunState
from tests.agent.durable import check_complete, finish_of, parts_of


@define(eq=False)
class Endless:
    """A model that never stops saying the same."""

    part: object
    first: tuple = ()
    said: int = field(default=0, init=False)
    open: int = field(default=0, init=False)

    @asynccontextmanager
    async def stream(self, _request):
        await trio.lowlevel.checkpoint()
        self.open += 1
        try:
            async with aclosing(self.parts()) as parts:
                yield parts
        finally:
            self.open -= 1

    async def parts(self):
        for part in self.first:
            yield part
        while True:
            self.said += 1
            yield self.part


def limits(**values):
    return SizeLimits(**values)


@pytest.mark.parametrize(
    ("part", "first"),
    [
        (TextDelta("x" * 100), ()),
        (TextDelta("\u20ac" * 33), ()),
        (ReasoningDelta("x" * 100), ()),
        (ToolCallDelta("c1", "x" * 100), (ToolCallBegin("c1", "look"),)),
        (TextDelta("x" * 5000), ()),
    ],
    ids=["text", "wide text", "reasoning", "arguments", "one large piece"],
)
async def test_a_model_that_never_stops_is_stopped_at_the_limit(part, first):
    """An answer of 300 MB took 2.6 GB of memory, and cancelling it 7 s."""
    model = Endless(part, first)
    async with open_test_agent(model, sizes=limits(answer=1000)) as bench:
        outcome = await bench.accept("go", run_id="r").wait()
        answer = (await bench.messages())[1]
        await check_complete(bench.store)
    assert outcome.state is RunState.ERRORED
    assert outcome.error.startswith(
        "the answer is too long (answer_too_long); ask for less at once"
    )
    assert "more than 1,000 bytes" in outcome.error
    room = 1000 - sum(len(each.id) + len(each.name) for each in first)
    assert (model.open, model.said) == (0, room // len(part.text.encode()) + 1)
    assert finish_of(answer).reason is FinishReason.ERROR
    assert finish_of(answer).message == "Answer too long"
    assert finish_of(answer).details == outcome.error
    kept = "".join(each.text for each in parts_of(answer, TextPart))
    kept += "".join(each.thinking for each in parts_of(answer, ReasoningPart))
    if not first:
        whole = part.text * 100
        assert whole.startswith(kept)
        assert 1000 - 3 < len(kept.encode()) <= 1000
    assert outcome.text == (kept if isinstance(part, TextDelta) else "")


async def test_text_reasoning_and_arguments_count_together():
    said = [Think("t" * 400), Say("s" * 400), CallTool("look", {"at": "a" * 400})]
    async with open_test_agent(ScriptedProvider([said]), sizes=limits(answer=1000)) as bench:
        outcome = await bench.accept("go").wait()
    assert outcome.state is RunState.ERRORED
    assert (outcome.text, "answer_too_long" in outcome.error) == ("s" * 400, True)


async def test_arguments_count_once_though_they_come_twice():
    look = ScriptedTool("look")
    said = [CallTool("look", {"at": "a" * 700})]
    model = ScriptedProvider([said, [Say("done")]])
    async with open_test_agent(model, [look], sizes=limits(answer=1000)) as bench:
        outcome = await bench.accept("go").wait()
    assert (outcome.state, outcome.text) == (RunState.COMPLETED, "done")
    assert len(look.calls) == 1


async def test_an_answer_of_exactly_the_limit_is_whole():
    model = ScriptedProvider([[Say("x" * 1000)]])
    async with open_test_agent(model, sizes=limits(answer=1000)) as bench:
        outcome = await bench.accept("go").wait()
    assert (outcome.state, outcome.text) == (RunState.COMPLETED, "x" * 1000)


async def test_each_message_and_each_attempt_counts_from_the_beginning():
    model = ScriptedProvider(
        [[Say("x" * 900), Cut()], [Say("y" * 900), CallTool("look")], [Say("z" * 900)]]
    )
    sizes = limits(answer=1000)
    async with open_test_agent(model, [ScriptedTool("look")], sizes=sizes) as bench:
        outcome = await bench.accept("go").wait()
    assert (outcome.state, outcome.text) == (RunState.COMPLETED, "z" * 900)


async def test_the_next_prompt_finds_its_session_in_order():
    model = ScriptedProvider([[Say("x" * 2000)], [Say("short")]])
    async with open_test_agent(model, sizes=limits(answer=1000)) as bench:
        long, short = bench.accept("a", run_id="a"), bench.accept("b", run_id="b")
        assert (await long.wait()).state is RunState.ERRORED
        assert (await short.wait()).text == "short"
        await check_complete(bench.store)


async def test_a_summary_that_is_too_long_fails_and_one_after_the_answer_fails_alone():
    last = Finished(reason=FinishReason.END_TURN)
    model = ScriptedProvider([[Say("hello"), last], [Say("s" * 2000)]])
    async with open_test_agent(model, sizes=limits(answer=1000)) as bench:
        await bench.accept("go").wait()
        outcome = await bench.accept("", kind=RunKind.SUMMARIZE).wait()
    assert outcome.state is RunState.ERRORED
    assert "answer_too_long" in outcome.error


async def test_a_turn_that_was_over_is_not_undone_by_its_summary():
    full = Usage(input_tokens=TEST_MODEL.context_window)
    last = Finished(reason=FinishReason.END_TURN, usage=full)
    model = ScriptedProvider([[Say("hello"), last], [Say("s" * 2000)]])
    async with open_test_agent(model, sizes=limits(answer=1000)) as bench:
        outcome = await bench.accept("go").wait()
    assert (outcome.state, outcome.text) == (RunState.COMPLETED, "hello")


# ── Titles ──────────────────────────────────────────────────────────────────────────────────────


async def test_a_title_that_a_model_makes_is_cut_and_not_refused():
    model = ScriptedProvider(lambda request: [Say("t" * 80)] if request.cache is False else [])
    async with open_test_agent(model, titles=True, sizes=limits(title=20)) as bench:
        await bench.accept("go").wait()
        await trio.sleep(120)
        assert (await bench.session()).title == "t" * 20


async def test_a_title_without_end_is_given_up():
    model = Endless(TextDelta("x" * 100))
    async with open_test_agent(model, titles=True, sizes=limits(answer=1000)) as bench:
        await bench.accept("go").wait()
        await trio.sleep(120)
        assert (await bench.session()).title == "Untitled Session"
    assert model.open == 0


# ── Tools ───────────────────────────────────────────────────────────────────────────────────────


def raises(content):
    raise ToolError(content)


@pytest.mark.parametrize(
    "play", [lambda content: ToolResult(content=content), raises], ids=["a result", "an error"]
)
async def test_of_a_tools_output_the_beginning_and_the_end_are_kept_and_the_rest_is_told(play):
    content = "\n".join(f"line {number:04}" for number in range(1000))
    look = ScriptedTool("look", lambda _: play(content))
    model = ScriptedProvider([[CallTool("look")], [Say("done")]])
    async with open_test_agent(model, [look], sizes=limits(tool_output=200)) as bench:
        await bench.accept("go").wait()
        [part] = parts_of((await bench.messages())[2], ToolResultPart)
    assert part.content == (
        content[:100]
        + "\n\n… 979 lines truncated; the whole output had 9,999 bytes …\n\n"
        + content[-100:]
    )
    [result] = parts_of(model.requests[1].messages[-1], ToolResultPart)
    assert result.content == part.content


@pytest.mark.parametrize("content", ["x" * 200, "\u20ac" * 66])
async def test_output_within_the_limit_stays_as_it_is(content):
    look = ScriptedTool("look", lambda _: ToolResult(content=content))
    model = ScriptedProvider([[CallTool("look")], [Say("done")]])
    async with open_test_agent(model, [look], sizes=limits(tool_output=200)) as bench:
        await bench.accept("go").wait()
        [part] = parts_of((await bench.messages())[2], ToolResultPart)
    assert part.content == content


async def test_no_character_is_torn_where_output_is_cut():
    look = ScriptedTool("look", lambda _: ToolResult(content="\u20ac" * 1000))
    model = ScriptedProvider([[CallTool("look")], [Say("done")]])
    async with open_test_agent(model, [look], sizes=limits(tool_output=200)) as bench:
        await bench.accept("go").wait()
        [part] = parts_of((await bench.messages())[2], ToolResultPart)
    euros = "\u20ac" * 33
    assert part.content == (
        f"{euros}\n\n… 1 line truncated; the whole output had 3,000 bytes …\n\n{euros}"
    )


async def test_a_task_with_too_long_a_prompt_is_an_error_that_the_model_sees():
    task = CallTool("agent", {"prompt": "p" * 200})
    model = ScriptedProvider([[task], [Say("done")]])
    async with open_test_agent(model, sizes=limits(prompt=100)) as bench:
        outcome = await bench.accept("go").wait()
        [part] = parts_of((await bench.messages())[2], ToolResultPart)
        assert (await bench.store.sessions())[0].id == "s"
    assert outcome.text == "done"
    assert part.is_error
    assert "it has 200 bytes, the limit is 100 bytes" in part.content


# ── Active runs ─────────────────────────────────────────────────────────────────────────────────


async def test_a_task_needs_no_place_of_its_own_so_a_full_workspace_does_not_wait_for_itself():
    """With one place, a run that waits for a task which waits for a place would wait for ever."""
    answers = {
        "go": [[CallTool("agent", {"prompt": "look"})], [Say("done")]],
        "look": [[Say("it")]],
    }

    def answer(request):
        asked = next(p.text for p in request.messages[0].parts if isinstance(p, TextPart))
        return answers[asked].pop(0)

    async with open_test_agent(ScriptedProvider(answer), sizes=limits(active_runs=1)) as bench:
        with trio.fail_after(60):
            outcome = await bench.accept("go").wait()
    assert (outcome.state, outcome.text) == (RunState.COMPLETED, "done")


async def test_a_summary_within_a_run_needs_no_place_of_its_own():
    full = Usage(input_tokens=TEST_MODEL.context_window)
    last = Finished(reason=FinishReason.END_TURN, usage=full)
    model = ScriptedProvider([[Say("hello"), last], [Say("summary")]])
    async with open_test_agent(model, sizes=limits(active_runs=1)) as bench:
        with trio.fail_after(60):
            assert (await bench.accept("go").wait()).text == "hello"


def test_a_submission_is_checked_without_a_workspace_too():
    Submission(session_id="s", prompt="x" * 100).check(limits(prompt=100))
