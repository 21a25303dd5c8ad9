"""What a command wrote, in bounded memory: the beginning and the end are kept, the middle counted.

A command may write for hours. `BoundedOutput` takes all of it in constant memory and knows how much
it dropped. Bytes become text only when somebody looks, and no character is torn at a cut.
"""

from codecs import getincrementaldecoder
from typing import Final
from unicodedata import category, east_asian_width

from attrs import define, field, frozen
from typing_extensions import override

from crush_trio.limits import byte_size

KEPT: Final = 512 * 1024
"""Bytes kept of a stream. Half of it holds what 30 000 columns can need, even of wide letters."""

CONTINUATIONS: Final = frozenset(range(0x80, 0xC0))
"""The bytes of a UTF-8 character that are not its first."""


@define(eq=False)
class BoundedOutput:
    """Bytes as they come. `limit` of them are kept, half from each end, and at times some more."""

    limit: int = KEPT
    total: int = field(default=0, init=False)
    _head: bytearray = field(factory=bytearray, init=False, repr=False)
    _tail: bytearray = field(factory=bytearray, init=False, repr=False)
    _dropped_lines: int = field(default=0, init=False, repr=False)

    def append(self, data: bytes | bytearray) -> None:
        """Take more. What is too much is taken out of the middle."""
        self.total += len(data)
        half = self.limit // 2
        room = half - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        if len(self._tail) > 2 * half:
            self._drop(len(self._tail) - half)

    @property
    def dropped(self) -> int:
        """How many bytes are gone."""
        return self.total - len(self._head) - len(self._tail)

    def excerpt(self) -> "Excerpt":
        """Return what is kept, as text."""
        if not self.dropped:
            return Excerpt(head=(self._head + self._tail).decode(errors="replace"))
        head = getincrementaldecoder("utf-8")("replace").decode(self._head)
        return Excerpt(head=head, lines=self._dropped_lines, tail=_whole(self._tail))

    def text(self, columns: int | None = None) -> str:
        """Return what is kept, in *columns* display columns at most; a note stands for the rest."""
        excerpt = self.excerpt()
        return str(excerpt if columns is None else excerpt.clipped(columns))

    def _drop(self, size: int) -> None:
        self._dropped_lines += self._tail.count(b"\n", 0, size)
        del self._tail[:size]


def _whole(tail: bytes | bytearray) -> str:
    """Decode the end of a stream, from the first whole character on."""
    torn = next((n for n, byte in enumerate(tail[:3]) if byte not in CONTINUATIONS), 3)
    return tail[torn:].decode(errors="replace")


@frozen(kw_only=True)
class Excerpt:
    """The beginning and the end of a text; `lines` is how many lie between, None if nothing does.

    `total` is how many bytes there were, if the note is to say so.
    """

    head: str
    lines: int | None = None
    tail: str = ""
    total: int | None = None

    @classmethod
    def of(cls, text: str, limit: int) -> "Excerpt":
        """Return *text* in at most *limit* bytes, half from each end."""
        if len(text) <= limit and byte_size(text) <= limit:
            return cls(head=text)
        data, half = text.encode(errors="replace"), limit // 2
        rest = len(data) - half
        return cls(
            head=data[:half].decode(errors="ignore"),
            lines=data.count(b"\n", half, rest),
            tail=_whole(data[rest:]),
            total=len(data),
        )

    def clipped(self, columns: int) -> "Excerpt":
        """Return the same with a smaller beginning and end, if it takes more than *columns*."""
        if width(self.head) + width(self.tail) <= columns:
            return self
        whole = self.lines is None
        end = self.head if whole else self.tail
        head = self.head[: _fitting(self.head, columns // 2)]
        tail = end[len(end) - _fitting(end[::-1], columns // 2) :]
        cut = (self.head + self.tail).count("\n") - head.count("\n") - tail.count("\n")
        return Excerpt(head=head, lines=cut + (self.lines or 0), tail=tail)

    @override
    def __str__(self) -> str:
        if self.lines is None:
            return self.head
        lines = max(1, self.lines)
        whole = "" if self.total is None else f"; the whole output had {self.total:,} bytes"
        note = f"… {lines} {'line' if lines == 1 else 'lines'} truncated{whole} …"
        return f"{self.head}\n\n{note}\n\n{self.tail}"


# ── Display columns ─────────────────────────────────────────────────────────────────────────────


def width(text: str) -> int:
    """Return how many columns *text* takes. A line end counts as one, so that no text is free."""
    return len(text) if text.isascii() else sum(map(_columns, text))


def _columns(character: str) -> int:
    if east_asian_width(character) in {"W", "F"}:
        return 2
    return 0 if category(character) in {"Mn", "Me", "Cf"} else 1


def _fitting(text: str, columns: int) -> int:
    """Return how many characters from the beginning of *text* take no more than *columns*."""
    if text.isascii():
        return min(len(text), columns)
    used = 0
    for count, character in enumerate(text):
        used += _columns(character)
        if used > columns:
            return count
    return len(text)
