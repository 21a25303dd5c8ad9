"""What a scripted answer is in the words of each provider, and how its bytes are cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crush_trio.providers.base import Finished, ToolCallBegin, ToolCallDelta, Usage
from crush_trio.testing.model.anthropic import AnthropicAnswer
from crush_trio.testing.model.openai import OpenAIAnswer
from crush_trio.testing.model.reply import cut
from crush_trio.testing.model.script import CallTool, Say, Think, expand
from crush_trio.wire.messages import FinishReason

ASKED = {"model": "m1", "stream": True}
WITH_USAGE = {**ASKED, "stream_options": {"include_usage": True}}


def written(words, answer):
    """Return all the bytes of an answer that nothing befalls."""
    return words.begin() + b"".join(words.part(step) for step in expand(answer))


USED = Usage(input_tokens=10, output_tokens=5, cache_read_tokens=3, cache_write_tokens=2)
ANSWER = [
    Think("Hm.", "sig"),
    Say("Yes."),
    CallTool("ls", {"path": "ä"}, id="c1"),
    Finished(reason=FinishReason.TOOL_USE, usage=USED),
]


def test_an_answer_in_the_words_of_openai():
    head = b'data: {"id":"chatcmpl-7","object":"chat.completion.chunk","created":1767225600,'
    head += b'"model":"m1","choices":['
    start, end = (
        b'{"index":0,"delta":',
        b',"logprobs":null,"finish_reason":null}],"usage":null}\n\n',
    )
    deltas = (
        '{"role":"assistant","content":"","refusal":null}',
        '{"reasoning_content":"Hm."}',
        '{"content":"Yes."}',
        '{"tool_calls":[{"index":0,"id":"c1","type":"function",'
        '"function":{"name":"ls","arguments":""}}]}',
        r'{"tool_calls":[{"index":0,"function":{"arguments":"{\"path\":\"ä\"}"}}]}',
    )
    assert written(OpenAIAnswer(WITH_USAGE, 7, USED), ANSWER) == (
        b"".join(head + start + delta.encode() + end for delta in deltas)
        + head
        + b'{"index":0,"delta":{},"logprobs":null,"finish_reason":"tool_calls"}],"usage":null}\n\n'
        + head
        + b'],"usage":{"prompt_tokens":15,"completion_tokens":5,"total_tokens":20,'
        b'"prompt_tokens_details":{"cached_tokens":3,"cache_write_tokens":2}}}\n\n'
        b"data: [DONE]\n\n"
    )


def test_an_answer_in_the_words_of_anthropic():
    expected = """\
event: message_start
data: {"type":"message_start","message":{"id":"msg_7","type":"message","role":"assistant",\
"model":"m1","content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":10,\
"cache_creation_input_tokens":2,"cache_read_input_tokens":3,"output_tokens":1}}}

event: content_block_start
data: {"type":"content_block_start","index":0,"content_block":\
{"type":"thinking","thinking":"","signature":""}}

event: ping
data: {"type":"ping"}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"Hm."}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"sig"}}

event: content_block_stop
data: {"type":"content_block_stop","index":0}

event: content_block_start
data: {"type":"content_block_start","index":1,"content_block":{"type":"text","text":""}}

event: content_block_delta
data: {"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"Yes."}}

event: content_block_stop
data: {"type":"content_block_stop","index":1}

event: content_block_start
data: {"type":"content_block_start","index":2,"content_block":\
{"type":"tool_use","id":"c1","name":"ls","input":{}}}

event: content_block_delta
data: {"type":"content_block_delta","index":2,"delta":\
{"type":"input_json_delta","partial_json":"{\\"path\\":\\"ä\\"}"}}

event: content_block_stop
data: {"type":"content_block_stop","index":2}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"tool_use","stop_sequence":null},"usage":\
{"input_tokens":10,"cache_creation_input_tokens":2,"cache_read_input_tokens":3,"output_tokens":5}}

event: message_stop
data: {"type":"message_stop"}

"""
    assert written(AnthropicAnswer(ASKED, 7, USED), ANSWER).decode() == expected


def test_openai_says_what_was_used_only_if_asked():
    assert b"usage" not in written(OpenAIAnswer(ASKED), [Say("hi")])


def test_a_cost_is_said_where_there_is_one():
    assert b'"cost":0.25' in written(OpenAIAnswer(WITH_USAGE, 1, Usage(cost=0.25)), [Say("hi")])


INTERLEAVED = [
    ToolCallBegin("a", "ls"),
    ToolCallBegin("b", "ls"),
    ToolCallDelta("a", "{}"),
    ToolCallDelta("b", "{}"),
]


def test_calls_may_be_interleaved_where_the_format_can_say_so():
    said = written(OpenAIAnswer(ASKED), INTERLEAVED)
    assert said.count(b'{"index":1,"function":{"arguments":"{}"}}') == 1
    with pytest.raises(ValueError, match="cannot continue the call 'a'"):
        written(AnthropicAnswer(ASKED), INTERLEAVED)


@pytest.mark.parametrize(
    ("reason", "openai", "anthropic"),
    [
        (FinishReason.END_TURN, b'"stop"', b'"end_turn"'),
        (FinishReason.MAX_TOKENS, b'"length"', b'"max_tokens"'),
        (FinishReason.CONTENT_FILTER, b'"content_filter"', b'"refusal"'),
    ],
)
def test_reasons_are_worded_as_each_provider_does(reason, openai, anthropic):
    answer = [Finished(reason=reason)]
    assert b'"finish_reason":' + openai in written(OpenAIAnswer(ASKED), answer)
    assert b'"stop_reason":' + anthropic in written(AnthropicAnswer(ASKED), answer)


# ── Cutting ────────────────────────────────────────────────────────────────────────────────────


@given(st.binary(max_size=30), st.integers(0, 9), st.none() | st.integers(1, 9))
def test_pieces_of_a_length_are_all_there_is(data, start, split):
    pieces = list(cut(data, start, split))
    assert b"".join(pieces) == data
    assert all(pieces)
    assert all(split is None or len(piece) <= split for piece in pieces)


@given(st.binary(max_size=30), st.integers(0, 9), st.sets(st.integers(0, 40)))
def test_offsets_count_from_the_beginning_of_the_response(data, start, offsets):
    pieces = list(cut(data, start, offsets))
    assert b"".join(pieces) == data
    ends = {start + sum(map(len, pieces[:n])) for n in range(1, len(pieces))}
    assert ends == {offset for offset in offsets if start < offset < start + len(data)}
