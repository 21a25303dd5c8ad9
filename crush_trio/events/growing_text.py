"""Text that is only ever appended to, and how far it had grown at some moment.

The bytes of a growing text are kept once, escaped as JSON. Every view of the text, and every frame in
which it stands, refers to a stretch of these bytes; a reader that is halfway through an old frame
keeps nothing alive that the newest one does not need too.
"""

from collections.abc import Iterator

from attrs import define, field, frozen

from crush_trio.events.pieces import GRAIN
from crush_trio.wire.codec import clean_text, escape


@define(eq=False)
class GrowingText:
    """Text that is only appended to, kept escaped as JSON beside the plain pieces."""

    _pieces: list[str] = field(factory=list, init=False)
    _json: bytearray = field(factory=bytearray, init=False)
    _size: int = field(default=0, init=False)

    def append(self, text: str) -> None:
        """Add *text* at the end; costs as much as *text* is long."""
        text = clean_text(text)
        self._pieces.append(text)
        self._json += escape(text)
        self._size += len(text) if text.isascii() else len(text.encode())

    def cut(self) -> "TextCut":
        """Remember the text as it is now, without copying it."""
        return TextCut(self, len(self._pieces), len(self._json), self._size)

    def text(self, start: int, stop: int) -> str:
        """Return the text of some of the appends, counted from the first."""
        return "".join(self._pieces[start:stop])

    def json(self, start: int, stop: int) -> bytes:
        """Return a stretch of the escaped text; cuts know which stretches are whole."""
        with memoryview(self._json) as view:
            return bytes(view[start:stop])


@frozen(eq=False)
class TextCut:
    """How far a text had grown at one moment. `size` is its length in UTF-8 bytes."""

    source: GrowingText
    pieces: int
    escaped: int
    size: int

    def text(self, since: "TextCut | None" = None) -> str:
        """Return the text from an earlier cut, or from the beginning, up to this one."""
        return self.source.text(0 if since is None else since.pieces, self.pieces)

    def json(self, since: int = 0) -> "bytes | Stretch":
        """Return the escaped text from an earlier cut's `escaped` up to this one.

        Long text is not copied but referred to.
        """
        if self.escaped - since <= GRAIN:
            return self.source.json(since, self.escaped)
        return Stretch(self.source, since, self.escaped)


@frozen(eq=False)
class Stretch:
    """A part of a growing text's escaped bytes; a source of `events.pieces`."""

    source: GrowingText
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    def grains(self) -> Iterator[bytes | memoryview]:
        """Give the bytes; each is a copy, because the text may grow while it is held."""
        for start in range(self.start, self.stop, GRAIN):
            yield self.source.json(start, min(start + GRAIN, self.stop))
