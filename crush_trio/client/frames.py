"""Server-sent events, from bytes that are cut anywhere.

Plain data: bytes in, whole frames out. What a frame means is the business of `picture`.
"""

from typing import Final

import orjson
from attrs import define, field, frozen

from crush_trio.client.errors import StreamBroken
from crush_trio.wire.fields import Json

FRAME_MOST: Final = 64 * 1024 * 1024
"""Bytes of a frame that is not complete; more is no event but an accident."""


@frozen
class Frame:
    """One event: its name, its data, and its place in the log if it has one."""

    name: str
    data: bytes = field(repr=False)
    id: str | None = None

    def json(self) -> Json:
        """Return the data as parsed JSON; `StreamBroken` if it is none."""
        try:
            return orjson.loads(self.data)
        except orjson.JSONDecodeError:
            raise StreamBroken(f"the data of {self.name or 'an event'} is no JSON") from None


@define(eq=False)
class FrameReader:
    """Finds frames in a stream. Costs as much as the stream is long, however it is cut.

    A frame counts once the empty line after it has come. Comments, times to retry after and
    whatever else has no meaning for us are skipped.
    """

    most: int = FRAME_MOST
    _buffer: bytearray = field(factory=bytearray, init=False, repr=False)
    _searched: int = field(default=0, init=False)
    _size: int = field(default=0, init=False)
    _name: str = field(default="", init=False)
    _id: str | None = field(default=None, init=False)
    _data: list[bytes] = field(factory=list, init=False, repr=False)

    def feed(self, data: bytes) -> list[Frame]:
        """Return the frames that *data* completes."""
        self._buffer += data
        frames, start = [], 0
        while (end := self._buffer.find(b"\n", max(start, self._searched))) >= 0:
            frame = self._line(bytes(self._buffer[start:end]).removesuffix(b"\r"))
            if frame is not None:
                frames.append(frame)
            start = end + 1
        del self._buffer[:start]
        self._searched = len(self._buffer)
        if self._size + len(self._buffer) > self.most:
            raise StreamBroken(f"an event of more than {self.most} bytes")
        return frames

    def _line(self, line: bytes) -> Frame | None:
        if not line:
            return self._complete()
        key, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if key == b"data":
            self._data.append(value)
            self._size += len(value)
        elif key == b"event":
            self._name = value.decode(errors="replace")
        elif key == b"id" and b"\0" not in value:
            self._id = value.decode(errors="replace")
        return None

    def _complete(self) -> Frame | None:
        """Return the frame that an empty line ends; one without data is none."""
        frame = Frame(self._name, b"\n".join(self._data), self._id) if self._data else None
        self._name, self._id, self._data, self._size = "", None, [], 0
        return frame
