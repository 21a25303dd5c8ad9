"""Messages on a byte stream, the way language servers frame them: a header with a length, then so many bytes.

Pure: bytes go in as they come, messages come out. The peer is a program that may be broken, so nothing
it announces is believed beyond a limit: neither a header nor a message can make this grow without end.
"""

from collections.abc import Iterator
from typing import Final

from attrs import define, field

HEADER_LIMIT: Final = 8 * 1024
"""Bytes that the header of a message may have. Real ones have fewer than a hundred."""

MESSAGE_LIMIT: Final = 32 * 1024 * 1024
"""Bytes that a message may have."""

_END: Final = b"\r\n\r\n"
_LENGTH: Final = b"content-length"
_DIGITS: Final = 10


class FramingError(Exception):
    """The stream is not made of messages, or of one that is too large. There is no way to read on."""


def framed(body: bytes) -> bytes:
    """Return *body* as it goes on the stream."""
    return b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


@define(eq=False)
class Frames:
    """Cuts a stream into messages. After a `FramingError` it is of no use any more."""

    header_limit: int = HEADER_LIMIT
    message_limit: int = MESSAGE_LIMIT
    _buffer: bytearray = field(factory=bytearray, init=False, repr=False)
    _size: int | None = field(default=None, init=False)
    """How long the message is whose header has been read."""

    def feed(self, data: bytes | bytearray) -> Iterator[bytes]:
        """Take more bytes, and return the messages that are complete now. Iterate to the end."""
        self._buffer += data
        while self._header_is_read() and self._size is not None:
            if len(self._buffer) < self._size:
                return
            body = bytes(self._buffer[: self._size])
            del self._buffer[: self._size]
            self._size = None
            yield body

    @property
    def within(self) -> bool:
        """Whether the stream would end in the middle of a message if it ended now."""
        return self._size is not None or bool(self._buffer)

    def _header_is_read(self) -> bool:
        if self._size is not None:
            return True
        end = self._buffer.find(_END, 0, self.header_limit + len(_END))
        if end < 0:
            if len(self._buffer) > self.header_limit:
                raise FramingError("a header without an end")
            return False
        self._size = self._length(bytes(self._buffer[:end]))
        del self._buffer[: end + len(_END)]
        return True

    def _length(self, header: bytes) -> int:
        """Return the length that a header announces; other fields in it mean nothing here."""
        fields = [line.partition(b":") for line in header.split(b"\r\n")]
        lengths = {value.strip() for name, _, value in fields if name.strip().lower() == _LENGTH}
        if len(lengths) != 1:
            raise FramingError("a header without one length")
        [length] = lengths
        if not length.isdigit() or len(length) > _DIGITS or int(length) > self.message_limit:
            raise FramingError("a message that is too large, or has no length")
        return int(length)
