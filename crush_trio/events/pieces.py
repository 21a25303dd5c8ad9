"""Frames of any length as pieces of bounded size, and the sources that they are made of.

A frame may be many megabytes long: a message with attachments, an answer, the state of a resync.
Such a frame is never one bytes object. It is a list of sources that all readers share, and each
reader iterates over them at its own speed: a reader owns only its position and at most one piece.
Shorter frames are joined once, for the readers that keep up; a reader that stalls drops that object
and iterates over the sources too.

Sources encode while they are iterated over. So making a large frame takes no time, and no step of a
reader takes longer than one piece.

`GrowingText` keeps the bytes of a growing text once, escaped as JSON. Every view of the text, and
every frame with it, refers to a slice of these bytes; a reader that is in the middle of an old
frame keeps nothing alive that the newest frame does not need too.
"""

from binascii import b2a_base64
from collections.abc import Iterable, Iterator
from typing import Final, Protocol, TypeAlias, cast

from attrs import define, field, frozen

from crush_trio.plain_json import clean_text
from crush_trio.wire.codec import escape

PIECE: Final = 16 * 1024
"""The most bytes that one reader holds and has not sent."""

JOINED: Final = 128 * 1024
"""The most bytes that are joined.

One object serves all readers that keep up, with one send each.
"""

GRAIN: Final = 4 * 1024
"""The most bytes that a source yields at a time, unless it says otherwise."""

_RAW: Final = GRAIN // 4 * 3
_CHARACTERS: Final = 2048
"""Characters that are escaped at a time.

Each becomes at most six bytes, so they fit into a piece.
"""


class Source(Protocol):
    """Bytes that can be read any number of times and are made while they are read."""

    def __len__(self) -> int:
        """The number of bytes; an estimate where that is not known before they are made."""
        ...

    def grains(self) -> Iterator[bytes | memoryview]:
        """Yield the bytes in small portions, each at most `PIECE` long."""
        ...


Chunk: TypeAlias = bytes | Source
"""Bytes, or a source of bytes."""


@frozen(eq=False)
class Base64:
    """Binary data as base64 text, encoded while it is read."""

    data: bytes

    def __len__(self) -> int:
        return (len(self.data) + 2) // 3 * 4

    def grains(self) -> Iterator[bytes | memoryview]:
        """Yield the base64 text."""
        view = memoryview(self.data)
        for start in range(0, len(view), _RAW):
            yield b2a_base64(view[start : start + _RAW], newline=False)


@frozen(eq=False)
class Escaped:
    """The inside of a JSON string, escaped while it is read."""

    text: str = field(converter=clean_text)

    def __len__(self) -> int:
        return len(self.text)  # most characters are a byte each

    def grains(self) -> Iterator[bytes | memoryview]:
        """Yield the escaped text."""
        for start in range(0, len(self.text), _CHARACTERS):
            yield escape(self.text[start : start + _CHARACTERS])


@frozen(eq=False)
class Pieces:
    """The bytes of several sources, one after the other. Made by `assemble`."""

    sources: tuple[Chunk, ...]
    _length: int

    def __len__(self) -> int:
        return self._length

    def grains(self) -> Iterator[bytes | memoryview]:
        """Yield the bytes as the sources yield them."""
        for source in self.sources:
            yield from grains_of(source)

    def __iter__(self) -> Iterator[bytes]:
        """Yield the bytes in pieces of at most `PIECE`, as few as possible."""
        return pieces_after(self.sources, 0)


Content: TypeAlias = bytes | Pieces
"""Bytes to be sent: one object if it is short, else pieces."""


def assemble(sources: Iterable[Chunk], limit: int = PIECE) -> Content:
    """Return the bytes of *sources*: joined if there are at most *limit*, else as `Pieces`."""
    listed = sources if isinstance(sources, list) else list(sources)
    length = sum(map(len, listed))
    if length > limit:
        return Pieces(tuple(listed), length)
    try:
        return b"".join(cast("list[bytes]", listed))  # nearly always all of them are bytes
    except TypeError:
        data = b"".join(map(joined, listed))
    return data if len(data) <= limit else Pieces((data,), len(data))


def joined(content: Chunk) -> bytes:
    """Return all of *content* as one bytes object, however long; not for sending to many readers."""
    return content if isinstance(content, bytes) else b"".join(content.grains())


def grains_of(source: Chunk) -> Iterator[bytes | memoryview]:
    """Yield the bytes of *source* in small portions."""
    if not isinstance(source, bytes):
        yield from source.grains()
    elif len(source) <= GRAIN:
        yield source
    else:
        view = memoryview(source)
        for start in range(0, len(view), GRAIN):
            yield view[start : start + GRAIN]


def pieces_of(content: Content) -> Iterator[bytes]:
    """Yield *content* in pieces of at most `PIECE` bytes."""
    return pieces_after((content,), 0)


def pieces_after(sources: Iterable[Chunk], offset: int) -> Iterator[bytes]:
    """Yield the bytes of *sources* from *offset* on, in pieces of at most `PIECE` bytes."""
    gathered: list[bytes | memoryview] = []
    size = 0
    for source in sources:
        for whole in grains_of(source):
            if offset >= len(whole):
                offset -= len(whole)
                continue
            grain = memoryview(whole)[offset:] if offset else whole
            offset = 0
            size += len(grain)
            if size > PIECE:
                yield _join_and_clear(gathered)
                size = len(grain)
            gathered.append(grain)
    if size:
        yield _join_and_clear(gathered)


def _join_and_clear(gathered: list[bytes | memoryview]) -> bytes:
    """Join and clear *gathered*: the suspended iterator must not keep a second copy of the piece."""
    piece = b"".join(gathered)
    gathered.clear()
    return piece


# ── Text that grows ─────────────────────────────────────────────────────────────────────────────


@define(eq=False)
class GrowingText:
    """Text that is only appended to, kept both escaped as JSON and as the appended strings."""

    _pieces: list[str] = field(factory=list, init=False)
    _json: bytearray = field(factory=bytearray, init=False)
    _size: int = field(default=0, init=False)

    def append(self, text: str) -> None:
        """Add *text* at the end; the cost is proportional to the length of *text*."""
        text = clean_text(text)
        self._pieces.append(text)
        self._json += escape(text)
        self._size += len(text) if text.isascii() else len(text.encode())

    def cut(self) -> "TextCut":
        """Return a reference to the text as it is now, without copying it."""
        return TextCut(self, len(self._pieces), len(self._json), self._size)

    def text(self, start: int, stop: int) -> str:
        """Return the text of the appends from number *start* up to *stop*."""
        return "".join(self._pieces[start:stop])

    def json(self, start: int, stop: int) -> bytes:
        """Return a slice of the escaped text; only a cut's offsets do not split an escape."""
        with memoryview(self._json) as view:
            return bytes(view[start:stop])


@frozen(eq=False)
class TextCut:
    """The length of a growing text at one moment. `size` is in UTF-8 bytes."""

    source: GrowingText
    pieces: int
    escaped: int
    size: int

    def text(self, since: "TextCut | None" = None) -> str:
        """Return the text from an earlier cut, or from the beginning, up to this one."""
        return self.source.text(0 if since is None else since.pieces, self.pieces)

    def json(self, since: int = 0) -> "bytes | TextSlice":
        """Return the escaped text from an earlier cut's `escaped` up to this one.

        Long text is not copied; the result refers to it.
        """
        if self.escaped - since <= GRAIN:
            return self.source.json(since, self.escaped)
        return TextSlice(self.source, since, self.escaped)


@frozen(eq=False)
class TextSlice:
    """A slice of a growing text's escaped bytes; a `Source`."""

    source: GrowingText
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    def grains(self) -> Iterator[bytes | memoryview]:
        """Yield the bytes; as copies, because a memoryview would keep the text from growing."""
        for start in range(self.start, self.stop, GRAIN):
            yield self.source.json(start, min(start + GRAIN, self.stop))
