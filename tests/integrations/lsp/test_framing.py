"""A stream of bytes becomes messages, however it is cut, and nothing in it can make that grow for ever."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crush_trio.integrations.lsp.connection import FrameDecoder, FramingError, frame_message

BODIES = st.lists(st.binary(max_size=200), max_size=8)


def pieces(data, cuts):
    places = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    return [data[start:end] for start, end in pairwise(places)]


@given(bodies=BODIES, cuts=st.lists(st.integers(0, 2000), max_size=20))
def test_messages_come_out_as_they_went_in_however_the_stream_is_cut(bodies, cuts):
    frames = FrameDecoder()
    data = b"".join(map(frame_message, bodies))
    out = [message for piece in pieces(data, cuts) for message in frames.feed(piece)]
    assert out == bodies
    assert not frames.within


@given(data=st.binary(max_size=3000), cuts=st.lists(st.integers(0, 3000), max_size=10))
def test_any_bytes_are_messages_or_a_framing_error_and_never_too_many_are_kept(data, cuts):
    frames = FrameDecoder(header_limit=64, message_limit=256)
    try:
        for piece in pieces(data, cuts):
            for message in frames.feed(piece):
                assert len(message) <= 256
            assert len(frames._buffer) <= max(64, 256)
    except FramingError:
        pass


@given(st.binary(max_size=200), st.integers(1, 400))
def test_the_end_in_the_midst_of_a_message_is_noticed(body, cut):
    frames = FrameDecoder()
    data = frame_message(body)
    kept = data[: max(1, len(data) - cut)]
    list(frames.feed(kept))
    assert frames.within == (len(kept) < len(data))


@pytest.mark.parametrize(
    "header",
    [
        b"Content-Length: 3\r\n\r\n",
        b"content-length:3\r\n\r\n",
        b"Content-Type: application/vscode-jsonrpc; charset=utf-8\r\nContent-Length: 3\r\n\r\n",
        b"Content-Length: 3\r\nContent-Length: 3\r\n\r\n",
    ],
)
def test_a_header_may_be_written_in_several_ways(header):
    assert list(FrameDecoder().feed(header + b"abc")) == [b"abc"]


@pytest.mark.parametrize(
    "header",
    [
        b"Content-Length: 1000000000\r\n\r\n",
        b"Content-Length: 99999999999999999999\r\n\r\n",
        b"Content-Length: -1\r\n\r\n",
        b"Content-Length: 1e3\r\n\r\n",
        b"Content-Length: \xc2\xb2\r\n\r\n",
        b"Content-Length: \r\n\r\n",
        b"Content-Type: x\r\n\r\n",
        b"\r\n\r\n",
        b"Content-Length: 3\r\nContent-Length: 4\r\n\r\n",
        b"x" * 9000,
        b"Content-Length: 3\r\nX: " + b"x" * 9000 + b"\r\n\r\n",
    ],
)
def test_a_header_that_announces_nothing_sensible_is_an_error(header):
    with pytest.raises(FramingError):
        list(FrameDecoder().feed(header))


def test_messages_before_an_error_are_not_lost():
    frames = FrameDecoder()
    messages = frames.feed(frame_message(b"one") + b"nonsense\r\n\r\n")
    assert next(messages) == b"one"
    with pytest.raises(FramingError):
        next(messages)
