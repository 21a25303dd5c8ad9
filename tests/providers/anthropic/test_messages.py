"""Anthropic's events, one by one."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crush_trio.net.sse import SseEvent
from crush_trio.providers.anthropic.messages import MessagesReading
from crush_trio.providers.base import (
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
    ProviderUnauthorized,
    ProviderUnavailable,
)
from crush_trio.wire.messages import FinishReason

STOP = {"type": "message_stop"}


def read(*events, over=STOP):
    """Return the parts of an answer; without an *over*, its body just ends."""
    reading = MessagesReading()
    parts = []
    for event in (*events, *([over] if over else [])):
        parts += reading.read(SseEvent(event["type"], json.dumps(event).encode()))
    if not over:
        parts += reading.end()
    assert reading.finished
    return parts


def block(index, start, *deltas, stop=True):
    begin = {"type": "content_block_start", "index": index, "content_block": start}
    more = [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
    return [begin, *more, *([{"type": "content_block_stop", "index": index}] if stop else [])]


def says(index, *texts):
    deltas = ({"type": "text_delta", "text": text} for text in texts)
    return block(index, {"type": "text", "text": ""}, *deltas)


def thinks(index, *texts, signature="sig"):
    deltas = [{"type": "thinking_delta", "thinking": text} for text in texts]
    signed = {"type": "signature_delta", "signature": signature}
    return block(index, {"type": "thinking", "thinking": "", "signature": ""}, *deltas, signed)


def calls(index, *pieces, call_id="c1", stop=True, **more):
    start = {"type": "tool_use", "id": call_id, "name": "ls", "input": {}, **more}
    deltas = ({"type": "input_json_delta", "partial_json": piece} for piece in pieces)
    return block(index, start, *deltas, stop=stop)


def end(reason="end_turn", **usage):
    return {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": usage}


def without_end(parts):
    assert isinstance(parts[-1], Finished)
    return [part for part in parts[:-1] if part != ReasoningDelta("")]


def test_text_comes_as_it_is_written():
    assert without_end(read(*says(0, "a", "", "b"), end())) == [TextDelta("a"), TextDelta("b")]


def test_text_may_begin_with_its_block():
    assert without_end(read(*block(0, {"type": "text", "text": "a"}), end())) == [TextDelta("a")]


def test_a_thought_ends_with_its_signature_when_something_else_begins():
    parts = without_end(read(*thinks(0, "hm", "m"), *says(1, "a"), end()))
    assert parts == [ReasoningDelta("hm"), ReasoningDelta("m"), ReasoningEnd("sig"), TextDelta("a")]


def test_that_a_model_thinks_is_told_before_it_has_a_thought():
    assert read(*thinks(0, "hm"), end())[0] == ReasoningDelta("")


def test_a_thought_that_is_everything_ends_with_the_answer():
    assert without_end(read(*thinks(0, "hm"), end()))[-1] == ReasoningEnd("sig")


def test_several_thoughts_are_signed_together():
    hidden = block(1, {"type": "redacted_thinking", "data": "x"})
    parts = without_end(read(*thinks(0, "a"), *hidden, *says(2, "b"), *thinks(3, "c"), end()))
    first, second = [part for part in parts if isinstance(part, ReasoningEnd)]
    a = {"type": "thinking", "thinking": "a", "signature": "sig"}
    x = {"type": "redacted_thinking", "data": "x"}
    c = {"type": "thinking", "thinking": "c", "signature": "sig"}
    assert unpack(first.signature, "thinking", "redacted") == [a, x]
    assert unpack(second.signature, "thinking", "redacted") == [a, x, c]


def test_a_thought_without_a_signature_does_not_go_back():
    unsigned = block(
        0, {"type": "thinking"}, {"type": "thinking_delta", "thinking": "hm"}, stop=True
    )
    assert ReasoningEnd("") in read(*unsigned, *says(1, "a"), end())
    assert ReasoningEnd("sig") in read(*unsigned, *thinks(1, "m"), *says(2, "a"), end())


def test_tags_after_a_signed_thought_are_text():
    parts = read(*thinks(0, "hm"), *says(1, "<think>a</think>"), end())
    assert TextDelta("<think>a</think>") in parts


def test_a_hidden_thought_is_kept():
    parts = read(*block(0, {"type": "redacted_thinking", "data": "x"}), *says(1, "a"), end())
    assert parts[0] == ReasoningDelta("")
    assert unpack(parts[1].signature, "redacted") == [{"type": "redacted_thinking", "data": "x"}]


def test_a_call_is_complete_when_its_block_is():
    parts = without_end(read(*calls(0, '{"p', '":1}'), *says(1, "a"), end("tool_use")))
    assert parts == [
        ToolCallBegin("c1", "ls"),
        ToolCallDelta("c1", '{"p'),
        ToolCallDelta("c1", '":1}'),
        ToolCallEnd("c1", "ls", '{"p":1}'),
        TextDelta("a"),
    ]


@pytest.mark.parametrize(
    ("pieces", "given_input", "whole"),
    [([], {}, "{}"), ([""], {}, "{}"), ([], {"p": 1}, '{"p":1}')],
)
def test_a_call_without_pieces_has_the_arguments_it_began_with(pieces, given_input, whole):
    parts = read(*calls(0, *pieces, input=given_input), end("tool_use"))
    assert parts[1] == ToolCallEnd("c1", "ls", whole)


def test_a_call_that_was_cut_off_is_not_complete():
    parts = read(*calls(0, '{"p', stop=False), end("max_tokens"))
    assert not any(isinstance(part, ToolCallEnd) for part in parts)
    assert parts[-1].reason is FinishReason.MAX_TOKENS


@given(
    value=st.dictionaries(st.text(), st.integers() | st.text() | st.lists(st.none())),
    cuts=st.sets(st.integers(0, 200)),
)
def test_wherever_arguments_are_cut_the_call_is_the_same(value, cuts):
    text = json.dumps(value, ensure_ascii=False)
    edges = [0, *sorted(cut for cut in cuts if cut < len(text)), len(text)]
    parts = read(*calls(0, *(text[a:b] for a, b in pairwise(edges))), end("tool_use"))
    assert parts[-2] == ToolCallEnd("c1", "ls", text)
    assert "".join(p.text for p in parts if isinstance(p, ToolCallDelta)) == text


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("end_turn", FinishReason.END_TURN),
        ("stop_sequence", FinishReason.END_TURN),
        ("max_tokens", FinishReason.MAX_TOKENS),
        ("model_context_window_exceeded", FinishReason.MAX_TOKENS),
        ("tool_use", FinishReason.TOOL_USE),
        ("refusal", FinishReason.CONTENT_FILTER),
        ("pause_turn", FinishReason.UNKNOWN),
        (None, FinishReason.UNKNOWN),
    ],
)
@pytest.mark.item("D14")
def test_reasons_are_translated(reason, finish):
    assert read(*says(0, "a"), end(reason))[-1].reason is finish


def test_an_answer_that_calls_tools_ends_with_that():
    assert read(*calls(0, "{}"), end("end_turn"))[-1].reason is FinishReason.TOOL_USE


def test_usage_is_what_was_said_last():
    start = {
        "type": "message_start",
        "message": {
            "usage": {
                "input_tokens": 10,
                "output_tokens": 1,
                "cache_read_input_tokens": 4,
                "cache_creation_input_tokens": None,
            }
        },
    }
    parts = read(start, *says(0, "a"), end(output_tokens=7, cache_creation_input_tokens=3))
    assert parts[-1].usage == Usage(
        input_tokens=10, output_tokens=7, cache_read_tokens=4, cache_write_tokens=3
    )


def test_what_nobody_knows_is_left_alone():
    server = block(
        0,
        {"type": "server_tool_use", "id": "s"},
        {"type": "input_json_delta", "partial_json": "{}"},
    )
    odd = [{"type": "ping"}, {"type": "something_new"}, *server]
    citation = block(1, {"type": "text", "text": ""}, {"type": "citations_delta", "citation": {}})
    assert without_end(read(*odd, *citation, *says(2, "a"), end())) == [TextDelta("a")]


def test_a_body_that_is_over_after_the_reason_is_complete():
    assert read(*says(0, "a"), end(), over=None)[-1].reason is FinishReason.END_TURN


def test_a_body_that_is_over_before_is_a_broken_answer():
    with pytest.raises(ProviderGarbled):
        read(*says(0, "a"), over=None)


def test_more_of_nothing_is_a_broken_answer():
    delta = {
        "type": "content_block_delta",
        "index": 3,
        "delta": {"type": "text_delta", "text": "a"},
    }
    with pytest.raises(ProviderGarbled):
        read(delta)


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("overloaded_error", ProviderUnavailable),
        ("api_error", ProviderUnavailable),
        ("timeout_error", ProviderUnavailable),
        ("rate_limit_error", ProviderRateLimited),
        ("authentication_error", ProviderUnauthorized),
        ("permission_error", ProviderUnauthorized),
        ("invalid_request_error", ProviderRefused),
        ("request_too_large", ProviderRefused),
        ("billing_error", ProviderRefused),
        ("something_new", ProviderUnavailable),
    ],
)
def test_an_error_in_the_midst_is_told_by_its_type(kind, error):
    said = {"type": "error", "error": {"type": kind, "message": "sorry"}}
    with pytest.raises(error, match="sorry"):
        read(*says(0, "a"), said)


@pytest.mark.parametrize("index", [[1], {}, None, "a"])
def test_a_block_with_an_odd_index_is_read(index):
    start = {"type": "content_block_start", "index": index, "content_block": {"type": "text"}}
    delta = {
        "type": "content_block_delta",
        "index": index,
        "delta": {"type": "text_delta", "text": "a"},
    }
    assert TextDelta("a") in read(start, delta)


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ({"error": {"message": "sorry", "type": "authentication_error"}}, ProviderUnauthorized),
        ({"error": "sorry"}, ProviderUnavailable),
        ({"object": "error", "message": "sorry", "code": 400}, ProviderRefused),
    ],
)
def test_an_error_of_a_gateway_needs_no_type(said, error):
    with pytest.raises(error, match="sorry"):
        list(MessagesReading().read(SseEvent("", json.dumps(said).encode())))


@pytest.mark.parametrize("given", [("a", "a", "a"), (None, None, None), ("a_2", "a", "a")])
def test_every_call_has_an_id_of_its_own(given):
    several = [calls(n, f'{{"n":{n}}}', call_id=call_id) for n, call_id in enumerate(given)]
    parts = read(*(event for each in several for event in each), end("tool_use"))
    ends = [part for part in parts if isinstance(part, ToolCallEnd)]
    assert [part.input for part in ends] == ['{"n":0}', '{"n":1}', '{"n":2}']
    assert len({part.id for part in ends}) == 3
    assert all(part.id for part in ends)


def test_a_call_without_a_name_is_left_out():
    parts = read(*calls(0, "{}", name=""), *calls(1, "{}", name=None), end("tool_use"))
    assert [type(part) for part in parts] == [Finished]


def test_blocks_without_an_end_are_complete_if_the_answer_is():
    first, second = calls(0, '{"n":1}', stop=False), calls(0, '{"n":2}', call_id="c2", stop=False)
    parts = read(*first, *second, end("tool_use"))
    assert [p.input for p in parts if isinstance(p, ToolCallEnd)] == ['{"n":1}', '{"n":2}']


def test_arguments_may_be_a_text_at_the_beginning_of_a_call():
    assert ToolCallEnd("c1", "ls", '{"n":1}') in read(*calls(0, input='{"n":1}'), end("tool_use"))
