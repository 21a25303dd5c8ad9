"""Events out of bytes that are cut anywhere."""

import json
from itertools import pairwise
from math import isnan

import pytest
import trio
from attrs import frozen
from hypothesis import given
from hypothesis import strategies as st

from crush_trio.providers import event_stream
from crush_trio.providers.base import (
    Finished,
    ReasoningDelta,
    ReasoningEnd,
    TextDelta,
    ToolCallBegin,
    ToolCallDelta,
    ToolCallEnd,
)
from crush_trio.providers.errors import ProviderGarbled, ProviderUnreachable
from crush_trio.providers.event_stream import AnswerParts, Event, Events, WholeBody, joined
from crush_trio.providers.openai.chat import ChatReading
from crush_trio.wire.ids import ToolCallId
from crush_trio.wire.messages import FinishReason


def decode(data, cuts=()):
    """Return the events in *data*, fed in pieces."""
    events, found = Events(), []
    edges = [0, *sorted(cut for cut in cuts if 0 < cut < len(data)), len(data)]
    for start, stop in pairwise(edges):
        found += events.feed(data[start:stop])
    return [*found, *events.end()]


@pytest.mark.parametrize(
    ("data", "events"),
    [
        (b"", []),
        (b"data: a\n\n", [Event("a")]),
        (b"data:a\n\n", [Event("a")]),
        (b"data:  a\n\n", [Event(" a")]),
        (b"data: a\r\n\r\n", [Event("a")]),
        (b"data: a\r\rdata: b\r\r", [Event("a"), Event("b")]),
        (b"event: ping\ndata: {}\n\n", [Event("{}", "ping")]),
        (b"event: ping\n\ndata: a\n\n", [Event("a")]),
        (b"data: a\ndata: b\n\n", [Event("a\nb")]),
        (b"data\n\n", [Event("")]),
        (b": keep-alive\n\ndata: a\n\n", [Event("a")]),
        (b"id: 7\nretry: 10\nnonsense\ndata: a\n\n", [Event("a")]),
        (b"\xef\xbb\xbfdata: a\n\n", [Event("a")]),
        (b"data: \xef\xbb\xbfa\n\n", [Event("\ufeffa")]),
        (b"data: a\n\ndata: b", [Event("a"), Event("b")]),
        (b"data: a\n", [Event("a")]),
        (b"data: \xff\n\n", [Event("\ufffd")]),
        (b"data: a\x0bb\xe2\x80\xa8c\n\n", [Event("a\x0bb\u2028c")]),
    ],
)
def test_events_are_found(data, events):
    assert decode(data) == events
    assert decode(data, range(len(data))) == events


LINES = st.sampled_from(
    [b"data: a", b"data:", b"event: e", b": c", b"", b"data: \xc3\xa9", b"id: 1", b"da"]
)


@given(
    lines=st.lists(st.tuples(LINES, st.sampled_from([b"\n", b"\r\n", b"\r"]))),
    cuts=st.sets(st.integers(0, 200)),
)
def test_wherever_the_bytes_are_cut_the_events_are_the_same(lines, cuts):
    data = b"".join(line + end for line, end in lines)
    assert decode(data, cuts) == decode(data)


def test_an_event_without_an_end_is_not_kept_for_ever(monkeypatch):
    monkeypatch.setattr(event_stream, "EVENT_MOST", 100)
    events = Events()
    with pytest.raises(ProviderGarbled):
        events.feed(b"data: " + b"x" * 200)


def test_a_body_that_is_one_value_is_one_event():
    body = WholeBody()
    assert [*body.feed(b'{"a"'), *body.feed(b":1}")] == []
    [event] = body.end()
    assert event.json() == {"a": 1}


def test_json_is_read_as_leniently_as_servers_write_it():
    assert Event('{"a":1}').json() == {"a": 1}
    assert Event('"\\ud83d"').json() == "\ud83d"  # half of a pair: some servers count in UTF-16
    [number] = Event("[NaN]").json()
    assert isnan(number)


@pytest.mark.parametrize("data", ["", "nonsense", '{"a":', "[" * 100_000])
def test_what_is_no_json_is_a_broken_answer(data):
    with pytest.raises(ProviderGarbled):
        Event(data).json()


# ── Parts ───────────────────────────────────────────────────────────────────────────────────────


@frozen
class Body:
    """An answer whose body comes in these pieces; the last may be an error."""

    pieces: list

    async def receive(self):
        await trio.lowlevel.checkpoint()
        piece = self.pieces.pop(0) if self.pieces else b""
        if isinstance(piece, Exception):
            raise piece
        return piece


def chunk(text, reason=None):
    choice = {"delta": {"content": text}, "finish_reason": reason}
    return b"data: %b\n\n" % json.dumps({"choices": [choice]}).encode()


def parts_of(*pieces):
    return AnswerParts(Body(list(pieces)), ChatReading(prefix="c"), Events())


ENDED = Finished(reason=FinishReason.END_TURN)


async def test_nothing_is_read_after_the_end():
    parts = parts_of(chunk("a", "stop") + b"data: [DONE]\n\n" + chunk("b") + b"data: nonsense\n\n")
    assert [part async for part in parts] == [TextDelta("a"), ENDED]


async def test_a_server_that_hangs_up_after_its_last_word_has_said_everything():
    parts = parts_of(chunk("a", "stop"), ProviderUnreachable("reset"))
    assert [part async for part in parts] == [TextDelta("a"), ENDED]


async def test_one_that_hangs_up_before_is_blamed_for_that():
    parts = parts_of(chunk("a"), ProviderUnreachable("reset"))
    assert await anext(parts) == TextDelta("a")
    with pytest.raises(ProviderUnreachable, match="reset"):
        await anext(parts)


async def test_an_error_comes_after_the_parts_of_its_packet_and_stays():
    parts = parts_of(chunk("a") + chunk("b") + b"data: nonsense\n\n" + chunk("c"))
    assert await anext(parts) == TextDelta("ab")
    for _ in range(2):
        with pytest.raises(ProviderGarbled):
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
