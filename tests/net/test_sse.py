"""The SSE decoder: the same events however a stream is cut, and never more bytes than it may hold."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crush_trio.net.errors import EventTooLarge
from crush_trio.net.sse import SseDecoder, SseEvent
from tests.client.native_streams import STEPS, stream_of, written


def read(*pieces):
    reader = SseDecoder(10**6)
    return [frame for piece in pieces for frame in reader.feed(piece)]


def cut(data, places):
    """Return *data* in pieces, cut at *places*."""
    ends = sorted({place % (len(data) + 1) for place in places} | {len(data)})
    return [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def test_a_frame_has_a_name_a_place_and_data():
    [frame] = read(b'id: boot-1\nevent: run\ndata: {"a":1}\n\n')
    assert frame == SseEvent("run", b'{"a":1}', "boot-1")


def test_a_frame_counts_when_the_empty_line_has_come():
    reader = SseDecoder(10**6)
    assert reader.feed(b"event: run\ndata: {}\n") == []
    assert reader.feed(b"\n") == [SseEvent("run", b"{}")]


def test_what_one_frame_said_does_not_stick_to_the_next():
    first, second = read(b"id: b-1\nevent: run\ndata: {}\n\n", b"data: {}\n\n")
    assert (first.id, first.name) == ("b-1", "run")
    assert (second.id, second.name) == (None, "")


@pytest.mark.parametrize(
    "noise",
    [b"retry: 1000\n", b": a comment\n", b"\n", b"\n\n\n", b"weather: fine\n", b"event\n"],
)
def test_what_means_nothing_to_us_is_skipped(noise):
    assert read(noise + b"event: run\ndata: {}\n\n") == [SseEvent("run", b"{}")]


def test_data_on_several_lines_is_one_value():
    [frame] = read(b"event: x\ndata: [1,\ndata: 2]\n\n")
    assert frame.data == b"[1,\n2]"


def test_lines_may_end_as_on_other_systems():
    assert read(b"event: run\r\ndata: {}\r\n\r\n") == [SseEvent("run", b"{}")]


def test_the_space_after_the_colon_is_not_part_of_the_value_and_a_second_one_is():
    assert read(b"event:run\ndata:  {}\n\n") == [SseEvent("run", b" {}")]


def test_a_name_without_data_is_no_event():
    assert read(b"event: run\n\n") == []


@pytest.mark.parametrize(
    "line", [b"data: " + b"x" * 50, b"data: " + b"x" * 20 + b"\n", b"data\n" * 20]
)
def test_a_frame_without_an_end_is_not_kept_for_ever(line):
    reader = SseDecoder(100)
    with pytest.raises(EventTooLarge, match="more than 100 bytes"):
        [reader.feed(line) for _ in range(10)]


def test_many_frames_in_one_piece_are_not_taken_for_one_that_is_too_large():
    assert len(SseDecoder(100).feed(b"event: run\ndata: {}\n\n" * 50)) == 50


@given(st.lists(STEPS, max_size=8), st.lists(st.integers(0, 5000), max_size=12))
def test_the_frames_are_the_same_wherever_the_stream_is_cut(steps, places):
    stream = stream_of(written(steps)[0])
    assert read(*cut(stream, places)) == read(stream)


@given(st.lists(STEPS, min_size=1, max_size=3))
def test_the_frames_are_the_same_byte_by_byte(steps):
    stream = stream_of(written(steps)[0])
    assert read(*(stream[at : at + 1] for at in range(len(stream)))) == read(stream)


# ── Streams of other servers ────────────────────────────────────────────────────────────────────


def decode(data, cuts=()):
    """Return names and data of the events in *data*, fed in pieces, with what its end completes."""
    decoder, found = SseDecoder(10**6), []
    for piece in cut(data, cuts):
        found += decoder.feed(piece)
    return [(event.name, event.data) for event in (*found, *decoder.end())]


@pytest.mark.parametrize(
    ("data", "events"),
    [
        (b"", []),
        (b"data:a\n\n", [("", b"a")]),
        (b"data: a\r\n\r\n", [("", b"a")]),
        (b"data: a\r\rdata: b\r\r", [("", b"a"), ("", b"b")]),
        (b"event: ping\ndata: {}\n\n", [("ping", b"{}")]),
        (b"event: ping\n\ndata: a\n\n", [("", b"a")]),
        (b"data\n\n", [("", b"")]),
        (b": keep-alive\n\ndata: a\n\n", [("", b"a")]),
        (b"id: 7\nretry: 10\nnonsense\ndata: a\n\n", [("", b"a")]),
        (b"\xef\xbb\xbfdata: a\n\n", [("", b"a")]),
        (b"data: \xef\xbb\xbfa\n\n", [("", b"\xef\xbb\xbfa")]),
        (b"data: a\n\ndata: b", [("", b"a"), ("", b"b")]),
        (b"data: a\n", [("", b"a")]),
        (b"data: a\r", [("", b"a")]),
        (b"data: a\x0bb\xe2\x80\xa8c\n\n", [("", b"a\x0bb\xe2\x80\xa8c")]),
    ],
)
def test_events_are_found(data, events):
    assert decode(data) == events
    assert decode(data, range(len(data))) == events


def test_a_line_that_ends_with_cr_counts_before_anything_follows():
    decoder = SseDecoder(100)
    assert decoder.feed(b"data: a\r\r") == [SseEvent("", b"a")]
    assert decoder.feed(b"\ndata: b\r\n\r\n") == [SseEvent("", b"b")]


LINES = st.sampled_from(
    [b"data: a", b"data:", b"event: e", b": c", b"", b"data: \xc3\xa9", b"id: 1", b"da"]
)


@given(
    lines=st.lists(st.tuples(LINES, st.sampled_from([b"\n", b"\r\n", b"\r"]))),
    cuts=st.lists(st.integers(0, 200)),
)
def test_wherever_the_bytes_are_cut_the_events_are_the_same(lines, cuts):
    data = b"".join(line + end for line, end in lines)
    assert decode(data, cuts) == decode(data)
