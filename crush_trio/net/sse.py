"""The decoder of server-sent events: bytes in, cut anywhere; whole events out.

Plain data, no I/O. The work is proportional to the length of the stream, however it is cut. What an event
means is decided by its readers: `client/state.py` and the providers.
"""

from typing import Final

from attrs import define, field, frozen

from crush_trio.net.errors import EventTooLarge

_BOM: Final = b"\xef\xbb\xbf"


@frozen
class SseEvent:
    """One event: its name, its data, and its id if it has one of its own."""

    name: str
    data: bytes = field(repr=False)
    id: str | None = None


@define(eq=False)
class SseDecoder:
    """Finds events in a stream. Comments, retry times and unknown fields are skipped.

    Raises `EventTooLarge` when an event that is not complete has more than *most* bytes. An id counts
    for the event that it stands in, and not, as in browsers, for the events after it.
    """

    most: int
    _buffer: bytearray = field(factory=bytearray, init=False, repr=False)
    _searched: int = field(default=0, init=False)
    _size: int = field(default=0, init=False)
    _begun: bool = field(default=False, init=False)
    _after_cr: bool = field(default=False, init=False)
    _name: str = field(default="", init=False)
    _id: str | None = field(default=None, init=False)
    _data: list[bytes] = field(factory=list, init=False, repr=False)

    def feed(self, data: bytes) -> list[SseEvent]:
        """Return the events that *data* completes. An event is complete with the empty line after it."""
        self._buffer += self._with_newlines(data)
        events, start = [], 0
        while (end := self._buffer.find(b"\n", max(start, self._searched))) >= 0:
            event = self._line(bytes(self._buffer[start:end]))
            if event is not None:
                events.append(event)
            start = end + 1
        del self._buffer[:start]
        self._searched = len(self._buffer)
        if self._size + len(self._buffer) > self.most:
            raise EventTooLarge(f"an event of more than {self.most} bytes")
        return events

    def end(self) -> list[SseEvent]:
        """Return the last event, if the stream ended before the empty line that completes it.

        For streams that a server ends itself. If the connection broke, the event may be cut short.
        """
        return self.feed(b"\n\n")

    def _with_newlines(self, data: bytes) -> bytes:
        """Return *data* with every end of a line as LF; it may be LF, CR LF or CR.

        A CR ends its line at once. If an LF follows, perhaps in the next piece, it belongs to the CR.
        """
        if self._after_cr and data:
            self._after_cr = False
            data = data.removeprefix(b"\n")
        if b"\r" not in data:
            return data
        self._after_cr = data.endswith(b"\r")
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _line(self, line: bytes) -> SseEvent | None:
        if not self._begun:
            self._begun, line = True, line.removeprefix(_BOM)
        if not line:
            return self._complete()
        key, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if key == b"data":
            self._data.append(value)
            self._size += len(value) + 1  # a line costs memory even if it is empty
        elif key == b"event":
            self._name = value.decode(errors="replace")
        elif key == b"id" and b"\0" not in value:
            self._id = value.decode(errors="replace")
        return None

    def _complete(self) -> SseEvent | None:
        """Return the event that an empty line ends; without data there is none."""
        event = SseEvent(self._name, b"\n".join(self._data), self._id) if self._data else None
        self._name, self._id, self._data, self._size = "", None, [], 0
        return event
