"""The text of a file: seen without its line endings and its byte order mark, kept with them.

A model quotes and writes lines that end in a line feed. The file may begin with a byte order mark,
may end its lines in another way, or in two ways. So everything is looked for in `plain`, and what
is changed there is changed in `content`, which is exactly what the file holds. Invariant: outside
of what was changed, `content` stays as it is, to the last byte.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Final

from attrs import field, frozen

BOM: Final = "\ufeff"
"""What some editors put at the beginning of a file in UTF-8."""

LF: Final = "\n"
CRLF: Final = "\r\n"


def plain_text(text: str) -> str:
    """Return *text* with lines that end in a line feed, as all matching wants it."""
    return text.replace(CRLF, LF)


def common_head(one: Sequence[str], other: Sequence[str]) -> int:
    """Return how many lines, or characters, both begin with."""
    pairs = zip(one, other, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


@frozen
class Splice:
    """Put *text* in the place of what stands between two offsets."""

    start: int
    end: int
    text: str = field(repr=False)


@frozen
class Text:
    """What a file holds, decoded; `content` is all of it."""

    content: str = field(repr=False)

    @classmethod
    def decoded(cls, data: bytes) -> "Text":
        """Read UTF-8, or raise `UnicodeDecodeError`."""
        return cls(data.decode("utf-8"))

    def encoded(self) -> bytes:
        """Return the bytes of the file."""
        return self.content.encode("utf-8")

    @property
    def bom(self) -> str:
        """The byte order mark, if the file begins with one."""
        return BOM if self.content.startswith(BOM) else ""

    @cached_property
    def plain(self) -> str:
        """The text as a model sees it."""
        return plain_text(self.content.removeprefix(BOM))

    @property
    def newline(self) -> str:
        """How most of the lines end; a new line ends like that too."""
        crlf = self.content.count(CRLF)
        return CRLF if 2 * crlf > self.content.count(LF) else LF

    def spliced(self, splices: Iterable[Splice]) -> "Text":
        """Return the text with *splices* applied; their offsets are of `plain`, none overlap."""
        pieces, kept, newline = [self.bom], 0, self.newline
        for splice in sorted(splices, key=lambda each: each.start):
            new = self._trimmed(splice)
            pieces.append(self._content_between(kept, new.start))
            pieces.append(new.text.replace(LF, newline))
            kept = new.end
        pieces.append(self._content_between(kept, len(self.plain)))
        return Text("".join(pieces))

    def rewritten(self, content: str) -> "Text":
        """Return a text that says *content* in the manner of this one.

        A content that brings line endings of the other kind means them, and keeps them.
        """
        body = content.removeprefix(BOM)
        if CRLF not in body:
            body = body.replace(LF, self.newline)
        return Text(self.bom + body)

    def _trimmed(self, splice: Splice) -> Splice:
        """Leave out what a splice puts back at its edges: those lines keep their own endings."""
        old = self.plain[splice.start : splice.end]
        head = common_head(old, splice.text)
        old, new = old[head:], splice.text[head:]
        tail = common_head(old[::-1], new[::-1])
        return Splice(splice.start + head, splice.end - tail, new[: len(new) - tail])

    def _content_between(self, start: int, end: int) -> str:
        return self.content[self._offset(start) : self._offset(end)]

    def _offset(self, plain_offset: int) -> int:
        """Return where in `content` a place of `plain` is."""
        passed = bisect_left(self._long_endings, plain_offset)
        return len(self.bom) + plain_offset + passed

    @cached_property
    def _long_endings(self) -> list[int]:
        """Return the places in `plain` whose line feed has two characters in `content`."""
        places, at = list[int](), self.content.find(CRLF)
        while at >= 0:
            places.append(at - len(self.bom) - len(places))
            at = self.content.find(CRLF, at + len(CRLF))
        return places
