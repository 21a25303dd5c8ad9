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


@pytest.mark.heavy
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


@pytest.mark.parametrize("size", [1, 7, 10**6])
def test_gzip_members_that_follow_each_other_are_one_body(size):
    empty = gzip.compress(b"")
    packed = gzip.compress(DATA) + empty * 3 + gzip.compress(bytes(PIECE)) + gzip.compress(b"end")
    chunks = [packed[at : at + size] for at in range(0, len(packed), size)]
    assert b"".join(inflated("gzip", chunks)) == DATA + bytes(PIECE) + b"end"


@pytest.mark.parametrize(
    ("encoding", "data", "reason"),
    [
        ("gzip", gzip.compress(DATA) + b"x", "goes on"),
        ("gzip", gzip.compress(DATA) + b"\x1fx", "goes on"),
        ("gzip", gzip.compress(DATA) + b"\x1f", "in the middle"),
        ("gzip", gzip.compress(DATA) + gzip.compress(DATA)[:-1], "in the middle"),
        ("gzip", gzip.compress(DATA) + b"\x1f\x8bxxx", "cannot be decompressed"),
        ("deflate", zlib.compress(DATA) + b"x", "goes on"),
        ("deflate", zlib.compress(DATA) + gzip.compress(DATA), "goes on"),
        ("deflate", raw_deflate(DATA) + b"x", "goes on"),
    ],
)
def test_other_bytes_after_a_compressed_body_are_an_error(encoding, data, reason):
    for chunks in ([data], [data[at : at + 1] for at in range(len(data))]):
        with pytest.raises(BadEncoding, match=reason):
            inflated(encoding, chunks)


def test_an_encoding_that_was_not_asked_for_is_an_error():
    with pytest.raises(BadEncoding, match="not asked for: br"):
        inflater_for("br")
