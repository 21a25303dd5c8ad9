"""Chunks of chat completions, as servers really send them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crush_trio.providers.base import (
    CALLS_MOST,
    ECHO,
    Finished,
    ReasoningDelta,
    ReasoningEnd,
    TextDelta,
    ToolCallBegin,
    ToolCallDelta,
    ToolCallEnd,
    Usage,
    unpack,
)
from crush_trio.providers.errors import (
    ProviderGarbled,
    ProviderRateLimited,
    ProviderRefused,
    ProviderUnavailable,
    ProviderUnreadable,
)
from crush_trio.providers.openai.chat import ChatReading, usage_of
from crush_trio.wire.messages import FinishReason
from tests.providers.chunks import JSON, call, chunk_of, end, event, read, without_end

# ── Text and thoughts ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("deltas", "parts"),
    [
        ([{"role": "assistant", "content": ""}, {"content": "a"}], [TextDelta("a")]),
        ([{"content": None}, {"content": "a"}], [TextDelta("a")]),
        ([{"refusal": "No."}], [TextDelta("No.")]),
        ([{"content": [{"type": "text", "text": "a"}]}], [TextDelta("a")]),
        (
            [{"reasoning_content": "hm"}, {"content": "a"}],
            [ReasoningDelta("hm"), ReasoningEnd(ECHO), TextDelta("a")],
        ),
        (
            [{"reasoning": "hm"}, {"reasoning": "m"}, {"content": "a"}],
            [ReasoningDelta("hm"), ReasoningDelta("m"), ReasoningEnd(), TextDelta("a")],
        ),
        (
            [{"reasoning_content": "hm", "reasoning": "hm", "content": "a"}],
            [ReasoningDelta("hm"), ReasoningEnd(ECHO), TextDelta("a")],
        ),
        (
            [
                {
                    "content": [
                        {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
                        {"type": "text", "text": "a"},
                    ]
                }
            ],
            [ReasoningDelta("hm"), ReasoningEnd(), TextDelta("a")],
        ),
        ([{"reasoning_content": "hm"}], [ReasoningDelta("hm"), ReasoningEnd(ECHO)]),
    ],
)
def test_text_and_thoughts_are_told_apart(deltas, parts):
    assert without_end(read(*deltas, end("stop"))) == parts


def test_the_details_of_thoughts_are_put_together_for_the_way_back():
    def detail(**more):
        return {"reasoning_details": [{"type": "reasoning.text", "index": 0, **more}]}

    parts = read(
        {"reasoning": "Let ", **detail(text="Let ", format="f")},
        {"reasoning": "me", **detail(text="me")},
        detail(signature="sig"),
        {"content": "a", "reasoning_details": [{"type": "reasoning.encrypted", "data": "x"}]},
        end("stop"),
    )
    assert [type(part) for part in parts] == [
        ReasoningDelta,
        ReasoningDelta,
        ReasoningEnd,
        TextDelta,
        Finished,
    ]
    assert unpack(parts[2].signature, "reasoning.") == [
        {
            "type": "reasoning.text",
            "index": 0,
            "text": "Let me",
            "format": "f",
            "signature": "sig",
        },
        {"type": "reasoning.encrypted", "data": "x"},
    ]


def test_details_alone_are_thoughts_too():
    summary = {"reasoning_details": [{"type": "reasoning.summary", "summary": "hm"}]}
    assert read(summary, {"content": "a"}, end("stop"))[0] == ReasoningDelta("hm")


# ── The end ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("stop", FinishReason.END_TURN),
        ("length", FinishReason.MAX_TOKENS),
        ("content_filter", FinishReason.CONTENT_FILTER),
        ("tool_calls", FinishReason.TOOL_USE),
        ("function_call", FinishReason.TOOL_USE),
        ("something new", FinishReason.UNKNOWN),
        (None, FinishReason.UNKNOWN),
    ],
)
@pytest.mark.item("D14")
def test_reasons_are_translated(reason, finish):
    assert read({"content": "a"}, end(reason))[-1].reason is finish


@pytest.mark.item("D14")
def test_an_answer_that_calls_tools_ends_with_that_whatever_it_says():
    assert read(call(id="a", name="ls"), end("stop"))[-1].reason is FinishReason.TOOL_USE
    assert read(call(id="a", name="ls"))[-1].reason is FinishReason.TOOL_USE


def test_a_call_that_was_cut_off_is_not_complete():
    parts = read(
        call(0, '{"a":1}', id="a", name="ls"), call(1, '{"b', id="b", name="cat"), end("length")
    )
    assert [p.id for p in parts if isinstance(p, ToolCallEnd)] == ["a"]
    assert parts[-1].reason is FinishReason.MAX_TOKENS


@pytest.mark.parametrize("done", [True, False])
def test_usage_may_come_after_the_reason(done):
    used = {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 3}}
    parts = read({"content": "a"}, end("stop"), used, done=done)
    assert parts[-1] == Finished(
        reason=FinishReason.END_TURN, usage=Usage(input_tokens=9, output_tokens=3)
    )


def test_of_several_usages_the_last_one_counts():
    parts = read(
        chunk_of({"content": "a"}, usage={"prompt_tokens": 9, "completion_tokens": 1}),
        end("stop", usage={"prompt_tokens": 9, "completion_tokens": 2}),
        {"choices": [], "usage": None},
    )
    assert parts[-1].usage.output_tokens == 2


@pytest.mark.parametrize(
    ("said", "usage"),
    [
        ({}, Usage()),
        ({"prompt_tokens": 2**64, "completion_tokens": -5, "cost": float("nan")}, Usage()),
        ({"prompt_tokens": None, "completion_tokens": 3}, Usage(output_tokens=3)),
        (
            {"prompt_tokens": 100, "prompt_tokens_details": {"cached_tokens": 60}},
            Usage(input_tokens=40, cache_read_tokens=60),
        ),
        (
            {"prompt_tokens": 100, "prompt_cache_hit_tokens": 60, "prompt_cache_miss_tokens": 40},
            Usage(input_tokens=40, cache_read_tokens=60),
        ),
        ({"prompt_tokens": 100, "cached_tokens": 60}, Usage(input_tokens=40, cache_read_tokens=60)),
        (
            {
                "prompt_tokens": 100,
                "prompt_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 30},
                "cost": 0.25,
            },
            Usage(input_tokens=10, cache_read_tokens=60, cache_write_tokens=30, cost=0.25),
        ),
        (
            {"prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": 60}},
            Usage(cache_read_tokens=60),
        ),
    ],
)
def test_what_came_from_a_cache_is_counted_once(said, usage):
    assert usage_of(said) == usage


def test_groq_tells_its_usage_elsewhere():
    last = end("stop", x_groq={"usage": {"prompt_tokens": 4, "completion_tokens": 2}})
    assert read({"content": "a"}, last)[-1].usage == Usage(input_tokens=4, output_tokens=2)


def test_an_answer_may_come_whole():
    message = {
        "role": "assistant",
        "content": "a",
        "tool_calls": call(0, "{}", id="x", name="ls")["tool_calls"],
    }
    whole = {"choices": [{"message": message, "finish_reason": "tool_calls"}]}
    assert without_end(read(whole, done=False)) == [
        TextDelta("a"),
        ToolCallBegin("x", "ls"),
        ToolCallDelta("x", "{}"),
        ToolCallEnd("x", "ls", "{}"),
    ]


def test_a_body_that_ends_before_the_answer_does_is_a_broken_answer():
    with pytest.raises(ProviderGarbled):
        read({"content": "a"}, done=False)


# ── Errors ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ({"message": "busy", "code": 502}, ProviderUnavailable),
        ({"message": "busy", "code": "429"}, ProviderRateLimited),
        ({"message": "busy", "type": "server_error", "code": None}, ProviderUnavailable),
        ({"message": "busy", "code": "rate_limit_exceeded"}, ProviderRateLimited),
        ({"message": "busy", "type": "invalid_request_error"}, ProviderRefused),
        ({"message": "busy"}, ProviderUnavailable),
        ("busy", ProviderUnavailable),
    ],
)
def test_an_error_in_the_midst_is_told_by_its_words(said, error):
    with pytest.raises(error, match="busy"):
        read({"content": "a"}, {"error": said})


def test_an_error_may_be_the_chunk_itself():
    with pytest.raises(ProviderRefused, match="too few"):
        list(
            ChatReading(prefix="c").read(
                event({"object": "error", "message": "too few", "code": 400})
            )
        )


def test_an_error_in_a_choice_is_an_error():
    choice = {"delta": {}, "finish_reason": "error", "error": {"message": "no", "code": 503}}
    with pytest.raises(ProviderUnavailable, match="no"):
        read({"choices": [choice]})


def test_secrets_are_taken_out_of_errors():
    with pytest.raises(ProviderUnavailable) as failed:
        read({"error": {"message": "the key top secret is bad"}})
    assert failed.value.detail == "the key [redacted] is bad"


@given(chunk=JSON)
def test_whatever_a_chunk_is_it_is_read_or_refused(chunk):
    reading = ChatReading(prefix="c")
    try:
        list(reading.read(event(chunk)))
    except (ProviderUnavailable, ProviderRefused, ProviderRateLimited):
        assert chunk["error"]


FIELDS = st.sampled_from(
    [
        "choices",
        "delta",
        "content",
        "tool_calls",
        "function",
        "index",
        "id",
        "usage",
        "reasoning_details",
        "type",
    ]
)
ODD = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 2) | st.sampled_from(["", "a", "stop", "text"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS, inner, max_size=4),
    max_leaves=12,
)


@given(
    chunks=st.lists(
        st.fixed_dictionaries({"choices": st.lists(st.fixed_dictionaries({"delta": ODD}))}),
        max_size=4,
    )
)
def test_odd_chunks_never_break_the_reading(chunks):
    assert isinstance(read(*chunks)[-1], Finished)


def test_an_answer_with_too_many_calls_is_not_read_to_its_end():
    calls = [{"index": n, "id": f"c{n}", "function": {"name": "ls"}} for n in range(CALLS_MOST + 1)]
    assert len(read(chunk_of({"tool_calls": calls[:-1]}), end("tool_calls"))) > CALLS_MOST
    with pytest.raises(ProviderUnreadable, match="more than 1000 tool calls"):
        read(chunk_of({"tool_calls": calls}), end("tool_calls"))
