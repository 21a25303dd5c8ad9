"""Conversations that are too long for their model: shortened, and gone on with."""

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from crush_trio.agent.turn.context_window import LEFT_OUT, fitted, size_of, with_room
from crush_trio.agent.turn.summary import REQUEST
from crush_trio.providers.base import Finished, Usage
from crush_trio.providers.errors import ProviderContextFull
from crush_trio.testing.model.provider import ScriptedProvider
from crush_trio.testing.model.script import CallTool, Fail, Say
from crush_trio.testing.server.agent import TEST_MODEL, ScriptedTool, open_test_agent
from crush_trio.wire.messages import FinishReason, Role, TextPart, ToolCallPart, ToolResultPart
from crush_trio.wire.runs import RunKind, RunState
from tests.agent.durable import check_complete
from tests.providers.asking import assistant, request, tool, user

UNKNOWN = evolve(TEST_MODEL, context_window=0)


def texts(asked):
    return [p.text for m in asked.messages for p in m.parts if isinstance(p, TextPart)]


def too_long(window=0):
    return [Fail(ProviderContextFull("too long", window=window))]


@pytest.mark.item("D29")
async def test_a_conversation_that_the_provider_finds_too_long_is_summarised_and_goes_on():
    model = ScriptedProvider(
        [[CallTool("look")], too_long(5000), [Say("So far: looked.")], [Say("done")]]
    )
    async with open_test_agent(model, [ScriptedTool("look")], model=UNKNOWN) as bench:
        outcome = await bench.accept("look into it", run_id="r").wait()
        messages = await bench.messages()
        assert bench.recorder.endings_per_run.total() == 1
    assert (outcome.state, outcome.text) == (RunState.COMPLETED, "done")
    roles = [Role.USER, Role.ASSISTANT, Role.TOOL, Role.ASSISTANT, Role.USER, Role.ASSISTANT]
    assert [m.role for m in messages] == roles, "the message of the refused call is gone"
    summary, continued = texts(model.requests[-1])
    assert summary == "So far: looked."
    assert "look into it" in continued


@pytest.mark.item("D29")
async def test_the_providers_limit_is_used_from_then_on():
    answers = ["Short.", "a", "Sum.", "b", "Sum."]
    model = ScriptedProvider([too_long(2000), *([Say(text)] for text in answers)])
    async with open_test_agent(model, model=UNKNOWN) as bench:
        await bench.accept("hello").wait()
        outcome = await bench.accept("x" * 12_000).wait()
    assert outcome.text == "b"
    assert texts(model.requests[3])[-1].startswith(REQUEST)
    assert max(map(size_of, model.requests[3:])) < 2000


@pytest.mark.item("D29")
async def test_a_prompt_longer_than_the_window_is_cut_if_a_summary_does_not_help():
    model = ScriptedProvider([[Say("Sum.")], [Say("b")], [Say("Sum.")]])
    async with open_test_agent(model, model=evolve(TEST_MODEL, context_window=2000)) as bench:
        outcome = await bench.accept("begin" + "x" * 40_000 + "end").wait()
    assert outcome.text == "b"
    assert size_of(model.requests[1]) < 2000
    last = texts(model.requests[1])[-1]
    assert "begin" in last
    assert "characters left out" in last
    assert last.endswith("end")


@pytest.mark.parametrize("window", [0, 50_000])
async def test_what_is_still_too_long_becomes_shorter_each_time(window):
    refused = too_long(window)
    model = ScriptedProvider([refused, [Say("Sum.")], refused, refused, [Say("b")], [Say("Sum.")]])
    async with open_test_agent(model, model=UNKNOWN) as bench:
        outcome = await bench.accept("x" * 400_000).wait()
    assert outcome.text == "b"
    first, _, *shorter = map(size_of, model.requests[:5])
    assert first > 50_000
    assert shorter == sorted(set(shorter), reverse=True)


async def test_a_model_that_finds_everything_too_long_ends_the_run_with_its_error():
    model = ScriptedProvider([too_long()] * 12)
    async with open_test_agent(model, model=UNKNOWN) as bench:
        outcome = await bench.accept("hello").wait()
        await check_complete(bench.store)
    assert outcome.state is RunState.ERRORED
    assert "longer than the model can read" in outcome.error


@pytest.mark.item("D31", "D32")
async def test_a_session_beyond_the_window_can_be_summarised_by_hand():
    model = ScriptedProvider([[Say("y" * 9000)], too_long(1500), too_long(1500), [Say("Short.")]])
    async with open_test_agent(model, model=UNKNOWN) as bench:
        await bench.accept("hello").wait()
        outcome = await bench.accept("", kind=RunKind.SUMMARIZE).wait()
        session = await bench.session()
    assert outcome.text == "Short."
    assert session.summary_message_id
    sizes = [size_of(asked) for asked in model.requests[1:]]
    assert sizes == sorted(sizes, reverse=True)


# ── Shorter requests ────────────────────────────────────────────────────────────────────────────


async def test_a_window_that_the_first_request_fills_is_not_summarised_after_every_step():
    tokens = Usage(input_tokens=9000, output_tokens=5)
    step = [CallTool("look"), Finished(reason=FinishReason.TOOL_USE, usage=tokens)]
    model = ScriptedProvider([step, [Say("Sum.")], step, step, step, [Say("done")]])
    small = evolve(TEST_MODEL, context_window=10_000)
    async with open_test_agent(model, [ScriptedTool("look")], model=small) as bench:
        outcome = await bench.accept("look into it").wait()
    assert outcome.text == "done"


@pytest.mark.parametrize("tokens", [0, 500])
async def test_a_window_that_instructions_alone_fill_is_never_summarised(tokens):
    usage = Usage(input_tokens=tokens, output_tokens=5)
    answers = [[Say(text), Finished(reason=FinishReason.END_TURN, usage=usage)] for text in "ab"]
    model = ScriptedProvider(answers)
    async with open_test_agent(model, model=evolve(TEST_MODEL, context_window=5)) as bench:
        await bench.accept("hello").wait()
        outcome = await bench.accept("again").wait()
    assert (outcome.state, outcome.text) == (RunState.COMPLETED, "b")


async def test_a_limit_that_the_model_itself_exceeds_is_forgotten():
    tokens = Usage(input_tokens=9000, output_tokens=5)
    read = [Say("a"), Finished(reason=FinishReason.END_TURN, usage=tokens)]
    model = ScriptedProvider([too_long(100), read, [Say("b")]])
    async with open_test_agent(model, model=UNKNOWN) as bench:
        await bench.accept("hello").wait()
        outcome = await bench.accept("again").wait()
    assert outcome.text == "b"


def test_the_limit_of_an_answer_leaves_room_for_the_request():
    asked = request(user("x" * 20_000), max_tokens=30_000)
    for shorter in (with_room(asked, 32_768), fitted(asked, 32_768)):
        assert shorter.messages == asked.messages
        assert 8000 <= shorter.max_tokens <= 32_768 - size_of(shorter)


def test_a_request_that_fits_stays_as_it_is():
    asked = request(user("hello"))
    assert fitted(asked, 1000) is asked


SIZES = st.sampled_from([10, 3000, 30_000])


@settings(max_examples=40)
@given(turns=st.lists(st.tuples(SIZES, st.lists(SIZES, max_size=3)), min_size=1, max_size=6))
def test_a_shorter_request_keeps_the_last_prompt_and_every_call_with_its_results(turns):
    messages = []
    for number, (length, results) in enumerate(turns):
        messages.append(user(f"prompt {number} " + "x" * length))
        calls = [ToolCallPart(id=f"c{number}-{n}", name="t") for n in range(len(results))]
        messages.append(assistant(TextPart(text="a"), *calls))
        for call, size in zip(calls, results, strict=True):
            messages.append(
                tool(ToolResultPart(tool_call_id=call.id, name="t", content="r" * size))
            )
    window = 8000
    asked = request(*messages)
    shorter = fitted(asked, window)
    assert size_of(shorter) <= window
    assert any(text.startswith(f"prompt {len(turns) - 1} ") for text in texts(shorter))
    waiting = []
    for message in shorter.messages:
        if message.role is Role.TOOL:
            assert message.parts[0].tool_call_id == waiting.pop(0)
        else:
            assert waiting == []
            waiting = [p.id for p in message.parts if isinstance(p, ToolCallPart)]
    assert waiting == []
    if len(shorter.messages) < len(asked.messages):
        assert shorter.messages[0] == user(LEFT_OUT)
