"""Events out of bytes that are cut anywhere."""

from itertools import pairwise
from math import isnan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crush_trio.providers import event_stream
from crush_trio.providers.errors import ProviderGarbled
from crush_trio.providers.event_stream import Event, Events, WholeBody


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
