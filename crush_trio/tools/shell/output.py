"""`BoundedOutput`: the beginning and end of a command's output, in bounded memory.

A command may write for hours. The middle is dropped and only counted. Bytes are decoded when the text
is read, and no character is split at a cut.
"""

from codecs import getincrementaldecoder
from collections.abc import Callable
from typing import Final
from unicodedata import category, east_asian_width

from attrs import define, evolve, field, frozen
from typing_extensions import override

from crush_trio.limits import byte_size

KEPT: Final = 512 * 1024
"""Bytes kept of a stream. Half of it is enough for 30 000 columns, even of wide characters."""

CONTINUATIONS: Final = frozenset(range(0x80, 0xC0))
"""The bytes of a UTF-8 character that are not its first."""


@define(eq=False)
class BoundedOutput:
    """Collects bytes. At least `limit` of them are kept, half from each end."""

    limit: int = KEPT
    total: int = field(default=0, init=False)
    _head: bytearray = field(factory=bytearray, init=False, repr=False)
    _tail: bytearray = field(factory=bytearray, init=False, repr=False)
    _dropped_lines: int = field(default=0, init=False, repr=False)

    def append(self, data: bytes | bytearray) -> None:
        """Add bytes; drop from the middle if there are too many."""
        self.total += len(data)
        half = self.limit // 2
        room = half - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        if (
            len(self._tail) > 2 * half
        ):  # not at every append: deleting from the front copies the rest
            self._drop(len(self._tail) - half)

    @property
    def dropped(self) -> int:
        """How many bytes were dropped."""
        return self.total - len(self._head) - len(self._tail)

    def excerpt(self) -> "Excerpt":
        """Return the kept bytes as text."""
        if not self.dropped:
            return Excerpt(head=(self._head + self._tail).decode(errors="replace"))
        head = getincrementaldecoder("utf-8")("replace").decode(self._head)
        return Excerpt(head=head, lines=self._dropped_lines, tail=_whole(self._tail))

    def text(self, columns: int | None = None, hide: Callable[[str], str] = str) -> str:
        """Return the kept text, at most *columns* display columns; a note replaces the rest.

        *hide* removes secrets. It sees the text before it is cut, so that no part of one is left.
        """
        whole = self.excerpt()
        excerpt = evolve(whole, head=hide(whole.head), tail=hide(whole.tail))
        return str(excerpt if columns is None else excerpt.clipped(columns))

    def _drop(self, size: int) -> None:
        self._dropped_lines += self._tail.count(b"\n", 0, size)
        del self._tail[:size]


def _whole(tail: bytes | bytearray) -> str:
    """Decode the end of a stream, beginning with the first complete character."""
    torn = next((n for n, byte in enumerate(tail[:3]) if byte not in CONTINUATIONS), 3)
    return tail[torn:].decode(errors="replace")


@frozen(kw_only=True)
class Excerpt:
    """The beginning and the end of a text; `lines` counts the dropped lines, None if complete.

    `total` is the size of the whole text in bytes, if the note should contain it.
    """

    head: str
    lines: int | None = None
    tail: str = ""
    total: int | None = None

    @classmethod
    def of(cls, text: str, limit: int) -> "Excerpt":
        """Return at most *limit* bytes of *text*, half from each end."""
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
        """Return a shorter excerpt if this one takes more than *columns*."""
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
    """Return how many columns *text* takes. A line feed counts as one, so empty lines count too."""
    return len(text) if text.isascii() else sum(map(_columns, text))


def _columns(character: str) -> int:
    if east_asian_width(character) in {"W", "F"}:
        return 2
    return 0 if category(character) in {"Mn", "Me", "Cf"} else 1


def _fitting(text: str, columns: int) -> int:
    """Return how many characters at the beginning of *text* fit into *columns*."""
    if text.isascii():
        return min(len(text), columns)
    used = 0
    for count, character in enumerate(text):
        used += _columns(character)
        if used > columns:
            return count
    return len(text)
