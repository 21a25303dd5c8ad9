"""Bytes in pieces: always the same ones, never more than fit, and none that are copied to be kept."""

from base64 import b64encode
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crush_trio.events.pieces import (
    GRAIN,
    PIECE,
    Base64,
    Escaped,
    GrowingText,
    Pieces,
    TextSlice,
    assemble,
    joined,
    pieces_of,
)
from crush_trio.wire.codec import encode


def stretch(text, start=0, stop=None):
    growing = GrowingText()
    growing.append(text)
    return TextSlice(growing, start, len(encode(text)) - 2 if stop is None else stop)


SIZES = st.sampled_from([0, 1, 5, GRAIN - 1, GRAIN, GRAIN + 1, PIECE - 1, PIECE, PIECE + 1, 90_000])
BYTES = SIZES.map(lambda size: bytes(range(256)) * (size // 256) + bytes(size % 256))
TEXTS = st.builds(
    lambda unit, size: (unit * (size // len(unit) + 1))[:size],
    st.sampled_from(["a", 'a"\n', "ü", "😀x", "\x00", "word "]),
    SIZES,
)
SOURCES = st.one_of(
    BYTES.map(lambda data: (data, data)),
    BYTES.map(lambda data: (Base64(data), b64encode(data))),
    TEXTS.map(lambda text: (Escaped(text), encode(text)[1:-1])),
    TEXTS.map(lambda text: (stretch(text), encode(text)[1:-1])),
)


@given(st.lists(SOURCES, max_size=6))
def test_pieces_are_the_bytes_of_their_sources_and_each_fits(parts):
    expected = b"".join(data for _, data in parts)
    content = assemble(source for source, _ in parts)
    for _ in range(2):
        pieces = list(pieces_of(content))
        assert b"".join(pieces) == expected
        assert all(0 < len(piece) <= PIECE for piece in pieces)
    assert joined(content) == expected
    assert isinstance(content, bytes) == (len(expected) <= PIECE)


@given(st.lists(SOURCES, max_size=6))
def test_no_more_pieces_are_sent_than_necessary(parts):
    content = assemble(source for source, _ in parts)
    pieces = list(pieces_of(content))
    assert all(len(one) + len(other) > PIECE - GRAIN for one, other in pairwise(pieces))


def test_what_is_short_is_one_object_and_what_is_long_is_not_copied():
    long, file = bytes(PIECE), bytes(PIECE)
    assert assemble([b"a", b"b"]) == b"ab"
    content = assemble([b"a", long, Base64(file)])
    assert isinstance(content, Pieces)
    assert content.sources[1] is long
    assert content.sources[2].data is file


def test_readers_walk_through_the_same_content_each_at_its_own_speed():
    content = assemble([b"x" * 100_000, Base64(b"y" * 100_000)])
    slow, fast = iter(content), iter(content)
    first = next(slow)
    everything = list(fast)
    assert [first, *slow] == everything


def test_a_stretch_of_text_stays_as_it_was_while_the_text_grows():
    growing = GrowingText()
    growing.append("é" * 50_000)
    cut = growing.cut()
    walking = iter(assemble([cut.json()]))
    seen = [next(walking)]
    for _ in range(10):
        growing.append('more "text"' * 1000)
    assert b"".join([*seen, *walking]).decode() == "é" * 50_000


@pytest.mark.parametrize("split", range(4090, 4100))
def test_half_a_character_is_joined_to_its_other_half_wherever_the_text_is_split(split):
    text = "x" * split + "\ud83d\ude00" + "y" * 50_000
    assert joined(Escaped(text)).decode() == "x" * split + "😀" + "y" * 50_000
