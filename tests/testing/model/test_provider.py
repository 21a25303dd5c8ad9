"""`ScriptedProvider`: a model that says what is written, and nothing stays open behind it."""

import pytest
import trio

from crush_trio.providers.base import (
    Finished,
    ModelRequest,
    PromptMessage,
    Provider,
    ReasoningDelta,
    ReasoningEnd,
    TextDelta,
    ToolCallBegin,
    ToolCallDelta,
    ToolCallEnd,
    Usage,
)
from crush_trio.providers.errors import (
    ProviderGarbled,
    ProviderRateLimited,
    ProviderRefused,
    ProviderUnauthorized,
    ProviderUnavailable,
    ProviderUnreachable,
)
from crush_trio.testing import Gate
from crush_trio.testing.model.provider import ScriptedProvider
from crush_trio.testing.model.script import (
    CallTool,
    Cut,
    Garble,
    Ping,
    Refuse,
    ScriptOver,
    Think,
    by_model,
    by_text,
)
from crush_trio.testing.server.turns import Fail, Pause, Say, Sleep
from crush_trio.wire.config import CatalogModel, SelectedModel
from crush_trio.wire.messages import FinishReason, Role, TextPart, ToolResultPart


def request(text="hello", model="m1", *more):
    said = PromptMessage(role=Role.USER, parts=(TextPart(text=text),))
    return ModelRequest(
        model=CatalogModel(id=model),
        chosen=SelectedModel(model=model, provider="p1"),
        messages=(said, *more),
    )


RESULT = PromptMessage(
    role=Role.TOOL, parts=(ToolResultPart(tool_call_id="call_1_1", name="view", content="text"),)
)


async def heard(provider, asked=None):
    async with provider.stream(asked or request()) as parts:
        return [part async for part in parts]


# ── What is said ───────────────────────────────────────────────────────────────────────────────


async def test_an_answer_streams_its_pieces_and_is_finished():
    provider: Provider = ScriptedProvider([[Say("Hel"), TextDelta("lo")]])
    assert await heard(provider) == [
        TextDelta("Hel"),
        TextDelta("lo"),
        Finished(reason=FinishReason.END_TURN),
    ]


async def test_answers_come_in_order_and_requests_are_kept():
    provider = ScriptedProvider([[Say("one")], [Say("two")]])
    asked = [request("a"), request("b")]
    said = [(await heard(provider, each))[0].text for each in asked]
    assert said == ["one", "two"]
    assert provider.requests == asked


async def test_a_call_begins_grows_and_ends_and_the_step_wants_a_tool():
    provider = ScriptedProvider([[CallTool("view", {"a": 1}, pieces=2), CallTool("ls", id="mine")]])
    assert await heard(provider) == [
        ToolCallBegin("call_1_1", "view"),
        ToolCallDelta("call_1_1", '{"a"'),
        ToolCallDelta("call_1_1", ":1}"),
        ToolCallEnd("call_1_1", "view", '{"a":1}'),
        ToolCallBegin("mine", "ls"),
        ToolCallDelta("mine", "{}"),
        ToolCallEnd("mine", "ls", "{}"),
        Finished(reason=FinishReason.TOOL_USE),
    ]


async def test_calls_of_different_answers_have_different_ids():
    provider = ScriptedProvider([[CallTool("ls")], [CallTool("ls")]])
    assert [(await heard(provider))[0].id for _ in range(2)] == ["call_1_1", "call_2_1"]


async def test_arguments_may_be_any_text():
    parts = await heard(ScriptedProvider([[CallTool("view", '{"file')]]))
    assert parts[2] == ToolCallEnd("call_1_1", "view", '{"file')


async def test_thinking_ends_when_something_else_begins():
    provider = ScriptedProvider([[Think("Hm"), Pause(opened()), Think("m."), Say("Yes")]])
    assert (await heard(provider))[:4] == [
        ReasoningDelta("Hm"),
        ReasoningDelta("m."),
        ReasoningEnd(),
        TextDelta("Yes"),
    ]


async def test_thinking_ends_once_with_its_signature_and_also_without_an_answer():
    provider = ScriptedProvider([[Think("Hm", "sig"), Say("Yes")], [Think("Hm")]])
    assert (await heard(provider))[:3] == [
        ReasoningDelta("Hm"),
        ReasoningEnd("sig"),
        TextDelta("Yes"),
    ]
    assert (await heard(provider))[1:] == [
        ReasoningEnd(),
        Finished(reason=FinishReason.END_TURN),
    ]


async def test_a_script_may_finish_as_it_likes_and_nothing_follows():
    end = Finished(reason=FinishReason.MAX_TOKENS, usage=Usage(output_tokens=3))
    assert await heard(ScriptedProvider([[Say("a"), end, Say("b")]])) == [TextDelta("a"), end]


def opened():
    gate = Gate()
    gate.open()
    return gate


# ── Which answer ───────────────────────────────────────────────────────────────────────────────


async def test_a_function_chooses_the_answer():
    provider = ScriptedProvider(lambda asked: [Say(asked.model.id)])
    assert (await heard(provider, request(model="m2")))[0] == TextDelta("m2")


async def test_each_model_may_have_a_script_of_its_own():
    provider = ScriptedProvider(
        by_model({"large": [[Say("1")], [Say("2")]], "small": [[Say("t")]]})
    )
    said = [(await heard(provider, request(model=m)))[0].text for m in ("large", "small", "large")]
    assert said == ["1", "t", "2"]


async def test_the_steps_of_a_turn_share_a_script():
    provider = ScriptedProvider(by_text({"hi": [[CallTool("view")], [Say("done")]]}))
    assert isinstance((await heard(provider, request("hi")))[0], ToolCallBegin)
    assert (await heard(provider, request("hi", "m1", RESULT)))[0] == TextDelta("done")


@pytest.mark.parametrize("answers", [[], by_text({"hi": []}), by_model({})])
async def test_a_request_without_an_answer_is_a_mistake_of_the_test(answers):
    provider = ScriptedProvider(answers)
    with pytest.raises(ScriptOver):
        await heard(provider, request("hi"))
    assert (len(provider.requests), provider.open) == (1, 0)


# ── When ───────────────────────────────────────────────────────────────────────────────────────


async def test_a_gate_holds_the_answer_back_in_the_middle():
    gate = Gate()
    provider, parts = ScriptedProvider([[Say("Hel"), Pause(gate), Say("lo")]]), []

    async def read():
        async with provider.stream(request()) as stream:
            parts.extend([part async for part in stream])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await gate.reached()
        assert provider.open == 1
        gate.open()
    assert len(parts) == 3


@pytest.mark.parametrize(
    ("answer", "entering"),
    [([Sleep(5), Say("a")], 5), ([Say("a"), Sleep(5)], 0), ([Ping(), Sleep(5), Say("a")], 0)],
)
async def test_what_comes_before_the_answer_happens_on_entering(answer, entering):
    async with ScriptedProvider([answer]).stream(request()) as parts:
        assert trio.current_time() == entering
        assert len([part async for part in parts]) == 2
    assert trio.current_time() == 5


@pytest.mark.parametrize("answer", [[Sleep(9), Say("a")], [Say("a"), Sleep(9)]])
async def test_a_cancel_closes_the_stream_before_and_within_the_answer(answer):
    provider = ScriptedProvider([answer])
    with trio.move_on_after(3) as scope:
        await heard(provider)
    assert scope.cancelled_caught
    assert trio.current_time() == 3
    assert provider.open == 0


async def test_leaving_early_closes_the_stream():
    provider = ScriptedProvider([[Say("a"), Say("b")]])
    async with provider.stream(request()) as parts:
        assert await anext(aiter(parts)) == TextDelta("a")
        assert provider.open == 1
    assert provider.open == 0


async def test_streams_may_be_open_side_by_side():
    provider = ScriptedProvider([[Say("a")], [Say("b")]])
    async with provider.stream(request()) as first, provider.stream(request()) as second:
        assert provider.open == 2
        assert await anext(aiter(second)) == TextDelta("b")
        assert await anext(aiter(first)) == TextDelta("a")


# ── Errors ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("step", "error"),
    [
        (Refuse(401), ProviderUnauthorized),
        (Refuse(403), ProviderUnauthorized),
        (Refuse(429), ProviderRateLimited),
        (Refuse(400), ProviderRefused),
        (Refuse(500), ProviderUnavailable),
        (Refuse(529), ProviderUnavailable),
        (Cut(), ProviderUnreachable),
        (Cut(tidy=True), ProviderGarbled),
        (Garble(), ProviderGarbled),
        (Fail(ZeroDivisionError()), ZeroDivisionError),
    ],
)
@pytest.mark.parametrize("before", [[], [Say("a")]])
async def test_errors_come_when_the_script_says_so(before, step, error):
    provider = ScriptedProvider([[*before, step, Say("never")]])
    parts = []
    with pytest.raises(error):
        await hear_into(parts, provider)
    assert len(parts) == len(before)
    assert provider.open == 0


async def hear_into(parts, provider):
    async with provider.stream(request()) as stream:
        async for part in stream:
            parts.append(part)


async def test_a_refusal_says_what_and_when_to_come_back():
    provider = ScriptedProvider([[Refuse(429, "slow down", retry_after=2.5)]])
    with pytest.raises(ProviderRateLimited, match="slow down") as caught:
        await heard(provider)
    assert (caught.value.status, caught.value.retry_after) == (429, 2.5)


async def test_an_http_error_before_the_answer_is_raised_on_entering():
    stream = ScriptedProvider([[Sleep(1), Refuse(500)]]).stream(request())
    with pytest.raises(ProviderUnavailable):
        await stream.__aenter__()
