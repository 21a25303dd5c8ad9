"""Compressed bodies: inflated in pieces of bounded size.

A small compressed body can stand for a very large one. So a reader never gets more than `PIECE` bytes at a
time, and can stop as soon as it has counted too many; what has not been asked for is not inflated.
"""

import zlib
from typing import Final

from attrs import define, field

from crush_trio.net.errors import BadEncoding

PIECE: Final = 64 * 1024
"""Bytes that are inflated at a time."""

ACCEPTED: Final = "gzip, deflate"
"""What a request that takes compressed answers says in `Accept-Encoding`."""

_GZIP_OR_ZLIB: Final = zlib.MAX_WBITS | 32
_RAW: Final = -zlib.MAX_WBITS
_CHOICE: Final = 2
"""Bytes after which zlib's header can be told from a deflate stream that has none."""


@define(eq=False)
class Inflater:
    """Inflates gzip and deflate. Feed it a chunk, then `take` pieces until there are none."""

    _raw_allowed: bool
    """Whether the stream may lack zlib's header: some servers send `deflate` so."""
    _waiting: bytes = field(default=b"", init=False)
    _full: bool = field(default=False, init=False)
    _state: "zlib._Decompress | None" = field(default=None, init=False)

    def feed(self, chunk: bytes) -> None:
        """Add compressed bytes."""
        self._waiting += chunk

    def take(self) -> bytes:
        """Return the next piece, at most `PIECE` bytes; no bytes if more have to be fed."""
        if self._state is None:
            if len(self._waiting) < _CHOICE:
                return b""
            self._state = zlib.decompressobj(self._format())
        if not self._waiting and not self._full:  # a full piece may have left something behind
            return b""
        try:
            piece = self._state.decompress(self._waiting, PIECE)
        except zlib.error as exc:
            raise BadEncoding(f"the answer cannot be decompressed: {exc}") from exc
        self._waiting, self._full = self._state.unconsumed_tail, len(piece) == PIECE
        return piece

    def end(self) -> None:
        """Raise `BadEncoding` unless the stream is complete. An empty body is complete."""
        if self._state is None and not self._waiting:
            return
        if self._state is None or not self._state.eof:
            raise BadEncoding("the answer ends in the middle")

    def _format(self) -> int:
        first, second = self._waiting[:_CHOICE]
        has_header = first & 0x0F == zlib.DEFLATED and (first << 8 | second) % 31 == 0
        return _RAW if self._raw_allowed and not has_header else _GZIP_OR_ZLIB


def inflater_for(encoding: str) -> Inflater | None:
    """Return the inflater for a `Content-Encoding`, None for a plain body; raises `BadEncoding`."""
    match encoding.strip().lower():
        case "" | "identity":
            return None
        case "gzip" | "x-gzip":
            return Inflater(raw_allowed=False)
        case "deflate":
            return Inflater(raw_allowed=True)
        case other:
            raise BadEncoding(f"the answer is compressed in a way that was not asked for: {other}")
