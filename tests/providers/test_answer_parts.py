"""The parts of a streamed answer, and the JSON in its events."""

import json
from math import isnan

import pytest
import trio
from attrs import frozen

from crush_trio.net.errors import ConnectionLost, ResponseTooLarge
from crush_trio.net.sse import SseDecoder
from crush_trio.providers import http
from crush_trio.providers.base import (
    Finished,
    ReasoningDelta,
    ReasoningEnd,
    TextDelta,
    ToolCallBegin,
    ToolCallDelta,
    ToolCallEnd,
)
from crush_trio.providers.errors import ProviderGarbled, ProviderUnreachable, ProviderUnreadable
from crush_trio.providers.failures import json_of
from crush_trio.providers.http import TAIL_LIMIT, AnswerParts, WholeBody, joined
from crush_trio.providers.openai.chat import ChatReading
from crush_trio.wire.ids import ToolCallId
from crush_trio.wire.messages import FinishReason


def test_a_body_that_is_one_value_is_one_event():
    body = WholeBody()
    assert [*body.feed(b'{"a"'), *body.feed(b":1}")] == []
    [event] = body.end()
    assert event.data == b'{"a":1}'


def test_a_body_that_is_one_value_is_bounded(monkeypatch):
    monkeypatch.setattr(http, "BODY_MOST", 100)
    with pytest.raises(ResponseTooLarge):
        WholeBody().feed(b"x" * 101)


def test_json_is_read_as_leniently_as_servers_write_it():
    assert json_of('{"a":1}') == json_of(b'{"a":1}') == {"a": 1}
    assert json_of(b'"\xff"') == "\ufffd"
    assert json_of('"\\ud83d"') == "\ud83d"  # half of a pair: some servers count in UTF-16
    [number] = json_of("[NaN]")
    assert isnan(number)


@pytest.mark.parametrize("data", ["", "nonsense", '{"a":', "[" * 100_000])
def test_what_is_no_json_is_a_broken_answer(data):
    with pytest.raises(ProviderGarbled):
        json_of(data)


# ── Parts ───────────────────────────────────────────────────────────────────────────────────────


@frozen
class Body:
    """An answer whose body comes in these pieces; the last may be an error."""

    pieces: list

    async def receive(self):
        await trio.lowlevel.checkpoint()
        piece = self.pieces.pop(0) if self.pieces else b""
        if isinstance(piece, float):
            await trio.sleep(piece)
            piece = b": still here\n\n"
        if isinstance(piece, Exception):
            raise piece
        return piece


def chunk(text, reason=None):
    choice = {"delta": {"content": text}, "finish_reason": reason}
    return b"data: %b\n\n" % json.dumps({"choices": [choice]}).encode()


def parts_of(*pieces):
    return AnswerParts(Body(list(pieces)), ChatReading(prefix="c"), SseDecoder(1000))


ENDED = Finished(reason=FinishReason.END_TURN)


async def test_nothing_is_read_after_the_end():
    parts = parts_of(chunk("a", "stop") + b"data: [DONE]\n\n" + chunk("b") + b"data: nonsense\n\n")
    assert [part async for part in parts] == [TextDelta("a"), ENDED]


async def test_a_server_that_hangs_up_after_its_last_word_has_said_everything():
    parts = parts_of(chunk("a", "stop"), ConnectionLost("reset"))
    assert [part async for part in parts] == [TextDelta("a"), ENDED]


async def test_a_server_that_keeps_the_body_of_a_complete_answer_open_is_not_waited_for():
    parts = parts_of(chunk("a", "stop"), *[TAIL_LIMIT / 2] * 9, chunk("b"))
    assert [part async for part in parts] == [TextDelta("a"), ENDED]
    assert trio.current_time() == TAIL_LIMIT
    parts = parts_of(chunk("a"), TAIL_LIMIT * 2, chunk("b", "stop"))
    assert [part async for part in parts] == [TextDelta("a"), TextDelta("b"), ENDED]


async def test_one_that_hangs_up_before_is_blamed_for_that():
    parts = parts_of(chunk("a"), ConnectionLost("reset"))
    assert await anext(parts) == TextDelta("a")
    with pytest.raises(ProviderUnreachable, match="reset"):
        await anext(parts)


async def test_an_error_comes_after_the_parts_of_its_packet_and_stays():
    parts = parts_of(chunk("a") + chunk("b") + b"data: nonsense\n\n" + chunk("c"))
    assert await anext(parts) == TextDelta("ab")
    for _ in range(2):
        with pytest.raises(ProviderGarbled):
            await anext(parts)


async def test_an_event_without_an_end_is_a_broken_answer():
    parts = parts_of(chunk("a"), b"data: " + b"x" * 1001)
    assert await anext(parts) == TextDelta("a")
    with pytest.raises(ProviderUnreadable, match="more than 1000 bytes"):
        await anext(parts)


async def test_the_text_of_one_read_is_one_part_and_nothing_waits_for_the_next_read():
    parts = parts_of(chunk("a"), chunk("b") + chunk("c") + chunk("d", "stop"), b"data: [DONE]\n\n")
    assert [part async for part in parts] == [TextDelta("a"), TextDelta("bcd"), ENDED]


def test_what_goes_on_is_joined_and_everything_else_stays_as_it_is():
    one, two = ToolCallId("1"), ToolCallId("2")
    parts = [
        ReasoningDelta("hm"),
        ReasoningDelta("m"),
        ReasoningEnd("signed"),
        TextDelta("a"),
        TextDelta("b"),
        ToolCallBegin(one, "ls"),
        ToolCallDelta(one, "{"),
        ToolCallDelta(one, "}"),
        ToolCallDelta(two, "{"),
        ToolCallEnd(one, "ls", "{}"),
        ToolCallEnd(two, "ls", "{}"),
        ENDED,
    ]
    assert list(joined(parts)) == [
        ReasoningDelta("hmm"),
        ReasoningEnd("signed"),
        TextDelta("ab"),
        ToolCallBegin(one, "ls"),
        ToolCallDelta(one, "{}"),
        ToolCallDelta(two, "{"),
        ToolCallEnd(one, "ls", "{}"),
        ToolCallEnd(two, "ls", "{}"),
        ENDED,
    ]
