"""Bytes of any length, put together in pieces of bounded size.

A frame may be many megabytes long: a message with attachments, an answer, the state of a resync.
Such a frame is never one bytes object. It is a list of sources which all readers share, and each
reader walks through them at its own speed: what a reader owns is its position and at most one piece.
Shorter frames are put together once, for the readers that keep up; one that stalls lets go of that
object and walks through the sources too.

Sources encode as they are walked through. So a large frame costs no time when it is made, and no
step of any reader takes longer than a piece.
"""

from binascii import b2a_base64
from collections.abc import Iterable, Iterator
from typing import Final, Protocol, TypeAlias, cast

from attrs import field, frozen

from crush_trio.wire.codec import clean_text, escape

PIECE: Final = 16 * 1024
"""Bytes that a reader holds at most of what it was given and has not taken."""

JOINED: Final = 128 * 1024
"""Bytes that are put together at most. One object serves all readers that keep up, with one call each."""

GRAIN: Final = 4 * 1024
"""Bytes that a source gives at a time at most, unless it says otherwise."""

_RAW: Final = GRAIN // 4 * 3
_CHARACTERS: Final = 2048
"""Characters that are escaped at a time. One becomes six bytes at most, so they fit a piece."""


class Source(Protocol):
    """Something that bytes can be read from, any number of times, always the same ones."""

    def __len__(self) -> int:
        """How many bytes there are; where that is not known before they are made, an estimate."""
        ...

    def grains(self) -> Iterator[bytes | memoryview]:
        """Give the bytes in small portions, at most a piece each."""
        ...


Chunk: TypeAlias = bytes | Source
"""Bytes, or something that they can be read from."""


@frozen(eq=False)
class Base64:
    """Binary data as base64 text, encoded while it is read."""

    data: bytes

    def __len__(self) -> int:
        return (len(self.data) + 2) // 3 * 4

    def grains(self) -> Iterator[bytes | memoryview]:
        """Give the text."""
        view = memoryview(self.data)
        for start in range(0, len(view), _RAW):
            yield b2a_base64(view[start : start + _RAW], newline=False)


@frozen(eq=False)
class Escaped:
    """Text as it stands between the quotes of a JSON string, escaped while it is read."""

    text: str = field(converter=clean_text)

    def __len__(self) -> int:
        return len(self.text)  # most characters are a byte each

    def grains(self) -> Iterator[bytes | memoryview]:
        """Give the escaped text."""
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
        """Give the bytes as the sources give them."""
        for source in self.sources:
            yield from grains_of(source)

    def __iter__(self) -> Iterator[bytes]:
        """Give the bytes in pieces of at most `PIECE`, as few as possible."""
        return pieces_after(self.sources, 0)


Content: TypeAlias = bytes | Pieces
"""Bytes to be sent: one object if there are few of them."""


def assemble(sources: Iterable[Chunk], limit: int = PIECE) -> Content:
    """Return the bytes of *sources*: joined if there are at most *limit*, else left where they are."""
    listed = sources if isinstance(sources, list) else list(sources)
    length = sum(map(len, listed))
    if length > limit:
        return Pieces(tuple(listed), length)
    try:
        return b"".join(cast("list[bytes]", listed))  # nearly always that is what they are
    except TypeError:
        data = b"".join(map(joined, listed))
    return data if len(data) <= limit else Pieces((data,), len(data))


def joined(content: Chunk) -> bytes:
    """Return all of *content* as one object, however long; not for what is sent to many readers."""
    return content if isinstance(content, bytes) else b"".join(content.grains())


def grains_of(source: Chunk) -> Iterator[bytes | memoryview]:
    """Give the bytes of *source* in small portions."""
    if not isinstance(source, bytes):
        yield from source.grains()
    elif len(source) <= GRAIN:
        yield source
    else:
        view = memoryview(source)
        for start in range(0, len(view), GRAIN):
            yield view[start : start + GRAIN]


def pieces_of(content: Content) -> Iterator[bytes]:
    """Give *content* in pieces of at most `PIECE` bytes."""
    return pieces_after((content,), 0)


def pieces_after(sources: Iterable[Chunk], offset: int) -> Iterator[bytes]:
    """Give the bytes of *sources* from *offset* on, in pieces of at most `PIECE` bytes."""
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
                yield _emptied(gathered)
                size = len(grain)
            gathered.append(grain)
    if size:
        yield _emptied(gathered)


def _emptied(gathered: list[bytes | memoryview]) -> bytes:
    """Join what was gathered and let go of it: the iterator must not keep what the reader keeps."""
    piece = b"".join(gathered)
    gathered.clear()
    return piece
