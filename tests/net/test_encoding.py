"""Compressed bodies: inflated in bounded pieces, however they are cut."""

import gzip
import zlib

import pytest

from crush_trio.net.errors import BadEncoding
from crush_trio.net.http1 import PIECE, inflater_for

DATA = bytes(range(256)) * 40


def raw_deflate(data):
    deflater = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return deflater.compress(data) + deflater.flush()


def inflated(encoding, chunks):
    """Return the pieces that a body in *chunks* is inflated to."""
    inflater, pieces = inflater_for(encoding), []
    for chunk in chunks:
        inflater.feed(chunk)
        while piece := inflater.take():
            pieces.append(piece)
    inflater.end()
    return pieces


@pytest.mark.parametrize(
    ("encoding", "compress"),
    [
        ("gzip", gzip.compress),
        (" X-GZIP ", gzip.compress),
        ("deflate", zlib.compress),
        ("deflate", raw_deflate),
    ],
)
def test_a_body_is_inflated_in_one_piece_and_byte_by_byte(encoding, compress):
    packed = compress(DATA)
    assert b"".join(inflated(encoding, [packed])) == DATA
    assert b"".join(inflated(encoding, [bytes([byte]) for byte in packed])) == DATA


def test_pieces_are_bounded():
    pieces = inflated("gzip", [gzip.compress(bytes(10 * PIECE + 1))])
    assert b"".join(pieces) == bytes(10 * PIECE + 1)
    assert max(map(len, pieces)) == PIECE


def test_a_bomb_is_not_inflated_further_than_it_is_read():
    inflater = inflater_for("gzip")
    inflater.feed(gzip.compress(bytes(100_000_000)))
    assert inflater.take() == bytes(PIECE)
    assert len(inflater._waiting) > 50_000


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_an_empty_body_is_complete(encoding):
    assert inflated(encoding, []) == []


@pytest.mark.parametrize("encoding", ["", "identity", " Identity"])
def test_a_plain_body_needs_nothing(encoding):
    assert inflater_for(encoding) is None


@pytest.mark.parametrize(
    ("encoding", "data", "reason"),
    [
        ("gzip", b"junk", "cannot be decompressed"),
        ("gzip", gzip.compress(DATA)[:-1], "in the middle"),
        ("gzip", b"\x1f", "in the middle"),
        ("deflate", b"\xff\xff\xff", "cannot be decompressed"),
    ],
    ids=["junk", "torn", "one byte", "bad deflate"],
)
def test_a_body_that_is_damaged_is_an_error(encoding, data, reason):
    with pytest.raises(BadEncoding, match=reason):
        inflated(encoding, [data])


def test_an_encoding_that_was_not_asked_for_is_an_error():
    with pytest.raises(BadEncoding, match="not asked for: br"):
        inflater_for("br")
