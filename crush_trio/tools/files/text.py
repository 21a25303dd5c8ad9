"""`FileText`: the text of a file and its line endings. `difference`: line diff in bounded time.

A model quotes and writes lines that end in a line feed. The file may begin with a byte order mark, and
its lines may end in CRLF, in LF, or in both. So searches use `plain`, without the mark and with LF only,
and changes found there are applied to `content`, which is exactly what the file contains. Invariant:
outside of the changed places, every byte of the file stays as it is.

A file is UTF-8, or UTF-16 with a byte order mark, or else one byte per character (Windows-1252, or Latin-1
if it has bytes that Windows-1252 lacks). A changed file keeps its encoding.

`difflib` gives good diffs but takes quadratic time, so it only compares small pieces: equal lines at
both ends are set aside, then lines that occur exactly once in each text split the rest. A piece that is
still too large counts as changed as a whole. The diff is always correct, and coarser than necessary for
very large changes.
"""

import re
from bisect import bisect_left
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from functools import cached_property
from typing import Final

from attrs import evolve, field, frozen

BOM: Final = "\ufeff"
"""The byte order mark that some editors write at the beginning of a UTF-8 file."""

UTF8: Final = "utf-8"
UTF16: Final = {BOM_UTF16_LE: "utf-16-le", BOM_UTF16_BE: "utf-16-be"}
"""The encodings of files that begin with these bytes."""

SINGLE_BYTE: Final = ("cp1252", "latin-1")
"""Tried in this order for text that is not UTF-8; the last one has a character for every byte."""

NAMES: Final = {"cp1252": "Windows-1252", "latin-1": "Latin-1"}

_BINARY: Final = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f]")
"""Bytes that text in a single-byte encoding does not have."""

LF: Final = "\n"
CRLF: Final = "\r\n"


def plain_text(text: str) -> str:
    """Return *text* with LF line endings, which all matching expects."""
    return text.replace(CRLF, LF)


def common_prefix_length(one: Sequence[str], other: Sequence[str]) -> int:
    """Return how many lines, or characters, both have in common at the beginning."""
    pairs = zip(one, other, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def single_byte_encoding(data: bytes) -> str | None:
    """Return the single-byte encoding of text that is not UTF-8; None if it does not look like text."""
    if _BINARY.search(data) is not None:
        return None
    return next(each for each in SINGLE_BYTE if _decodes(data, each))


def _decodes(data: bytes, encoding: str) -> bool:
    try:
        data.decode(encoding)
    except UnicodeDecodeError:
        return False
    return True


def name_of_encoding(encoding: str) -> str:
    """Return the name of an encoding for people and models; empty for UTF-8."""
    return "" if encoding == UTF8 else NAMES.get(encoding, "UTF-16")


@frozen
class Splice:
    """A replacement of the text between two offsets."""

    start: int
    end: int
    text: str = field(repr=False)


@frozen
class FileText:
    """The decoded text of a file; `content` is all of it, with its own line endings."""

    content: str = field(repr=False)
    encoding: str = UTF8

    @classmethod
    def decoded(cls, data: bytes) -> "FileText":
        """Decode the bytes of a file; raise `UnicodeDecodeError` if they are not text."""
        wide = UTF16.get(data[:2])
        if wide is not None:
            return cls(data.decode(wide), wide)
        try:
            return cls(data.decode(UTF8))
        except UnicodeDecodeError:
            encoding = single_byte_encoding(data)
            if encoding is None:
                raise
            return cls(data.decode(encoding), encoding)

    def encoded(self) -> bytes:
        """Return the bytes of the file; raise `UnicodeEncodeError` if its encoding lacks a character."""
        return self.content.encode(self.encoding)

    @property
    def encoding_name(self) -> str:
        """The name of the encoding for people and models; empty if it is UTF-8."""
        return name_of_encoding(self.encoding)

    @property
    def bom(self) -> str:
        """The byte order mark, if the file begins with one."""
        return BOM if self.content.startswith(BOM) else ""

    @cached_property
    def plain(self) -> str:
        """The text as a model sees it: without byte order mark, with LF line endings."""
        return plain_text(self.content.removeprefix(BOM))

    @property
    def newline(self) -> str:
        """The line ending of most lines, which new lines get too."""
        crlf = self.content.count(CRLF)
        return CRLF if 2 * crlf > self.content.count(LF) else LF

    def spliced(self, splices: Iterable[Splice]) -> "FileText":
        """Return the text with *splices* applied; their offsets are of `plain`, none overlap."""
        pieces, kept, newline = [self.bom], 0, self.newline
        for splice in sorted(splices, key=lambda each: each.start):
            new = self._trimmed(splice)
            pieces.append(self._content_between(kept, new.start))
            pieces.append(new.text.replace(LF, newline))
            kept = new.end
        pieces.append(self._content_between(kept, len(self.plain)))
        return evolve(self, content="".join(pieces))

    def rewritten(self, content: str) -> "FileText":
        """Return *content* with the byte order mark and the line endings of this text.

        A content that contains CRLF keeps its own line endings.
        """
        body = content.removeprefix(BOM)
        if CRLF not in body:
            body = body.replace(LF, self.newline)
        return evolve(self, content=self.bom + body)

    def _trimmed(self, splice: Splice) -> Splice:
        """Remove from a splice the unchanged text at its edges: those lines keep their endings."""
        old = self.plain[splice.start : splice.end]
        head = common_prefix_length(old, splice.text)
        old, new = old[head:], splice.text[head:]
        tail = common_prefix_length(old[::-1], new[::-1])
        return Splice(splice.start + head, splice.end - tail, new[: len(new) - tail])

    def _content_between(self, start: int, end: int) -> str:
        return self.content[self._offset(start) : self._offset(end)]

    def _offset(self, plain_offset: int) -> int:
        """Convert an offset of `plain` to one of `content`."""
        passed = bisect_left(self._long_endings, plain_offset)
        return len(self.bom) + plain_offset + passed

    @cached_property
    def _long_endings(self) -> list[int]:
        """Return the offsets in `plain` of the line feeds that are CRLF in `content`."""
        places, at = list[int](), self.content.find(CRLF)
        while at >= 0:
            places.append(at - len(self.bom) - len(places))
            at = self.content.find(CRLF, at + len(CRLF))
        return places


MAX_LINE_PAIRS: Final = 100_000
"""A piece with more pairs of lines than this is not compared line by line."""

CONTEXT: Final = 3
"""How many unchanged lines a diff shows around a change."""

_LINE: Final = re.compile(r".*\n|.+")


@frozen
class LineEdit:
    """A change: the lines [old_start, old_end) became the lines [new_start, new_end)."""

    old_start: int
    old_end: int
    new_start: int
    new_end: int

    @property
    def empty(self) -> bool:
        """Whether it changes nothing."""
        return self.old_start == self.old_end and self.new_start == self.new_end

    def moved(self, old: int, new: int) -> "LineEdit":
        """Return the same edit for texts that have more lines before it."""
        return LineEdit(
            self.old_start + old, self.old_end + old, self.new_start + new, self.new_end + new
        )


@frozen(kw_only=True)
class Difference:
    """The difference of two texts, in lines."""

    old: tuple[str, ...] = field(repr=False)
    new: tuple[str, ...] = field(repr=False)
    edits: tuple[LineEdit, ...] = field(repr=False)

    @property
    def additions(self) -> int:
        """How many lines only the second text has."""
        return sum(edit.new_end - edit.new_start for edit in self.edits)

    @property
    def removals(self) -> int:
        """How many lines only the first text has."""
        return sum(edit.old_end - edit.old_start for edit in self.edits)

    def unified(self, name: str) -> str:
        """Return the difference as a unified diff of a file called *name*."""
        if not self.edits:
            return ""
        hunks = "".join(self._hunk(group) for group in _groups(self.edits))
        return f"--- a/{name}\n+++ b/{name}\n{hunks}"

    def _hunk(self, group: Sequence[LineEdit]) -> str:
        first, last = group[0], group[-1]
        before = min(CONTEXT, first.old_start)
        after = min(CONTEXT, len(self.old) - last.old_end)
        old = range(first.old_start - before, last.old_end + after)
        new = range(first.new_start - before, last.new_end + after)
        lines = [f"@@ -{_range(old)} +{_range(new)} @@\n"]
        at = old.start
        for edit in group:
            lines += _marked(" ", self.old[at : edit.old_start])
            lines += _marked("-", self.old[edit.old_start : edit.old_end])
            lines += _marked("+", self.new[edit.new_start : edit.new_end])
            at = edit.old_end
        lines += _marked(" ", self.old[at : old.stop])
        return "".join(lines)


def difference(old: str, new: str) -> Difference:
    """Compare two texts. A last line without line feed differs from the same line with one."""
    before, after = lines_of(old), lines_of(new)
    return Difference(old=before, new=after, edits=tuple(edits_between(before, after)))


def lines_of(text: str) -> tuple[str, ...]:
    """Split *text* after each line feed; other line separators are part of a line."""
    return tuple(_LINE.findall(text))


def edits_between(old: Sequence[str], new: Sequence[str]) -> list[LineEdit]:
    """Return the edits that turn *old* into *new*, in order; unchanged lines separate them."""
    head = common_prefix_length(old, new)
    tail = common_prefix_length(old[head:][::-1], new[head:][::-1])
    inner = _inner(old[head : len(old) - tail], new[head : len(new) - tail])
    return [edit.moved(head, head) for edit in inner if not edit.empty]


def _inner(old: Sequence[str], new: Sequence[str]) -> Iterator[LineEdit]:
    if len(old) * len(new) <= MAX_LINE_PAIRS:
        yield from _compared(old, new)
        return
    old_at = new_at = 0
    for i, j in [*_anchors(old, new), (len(old), len(new))]:
        piece = old[old_at:i], new[new_at:j]
        small = len(piece[0]) * len(piece[1]) <= MAX_LINE_PAIRS
        found = _compared(*piece) if small else [LineEdit(0, len(piece[0]), 0, len(piece[1]))]
        yield from (edit.moved(old_at, new_at) for edit in found)
        old_at, new_at = i + 1, j + 1


def _compared(old: Sequence[str], new: Sequence[str]) -> Iterator[LineEdit]:
    matcher = SequenceMatcher(None, old, new, autojunk=False)
    return (LineEdit(*places) for tag, *places in matcher.get_opcodes() if tag != "equal")


def _anchors(old: Sequence[str], new: Sequence[str]) -> list[tuple[int, int]]:
    """Return pairs of equal lines that occur once in each text, the most that keep the same order."""
    in_old, in_new = Counter(old), Counter(new)
    places = {line: n for n, line in enumerate(new) if in_new[line] == 1}
    once = [(n, places[line]) for n, line in enumerate(old) if in_old[line] == 1 and line in places]
    return _longest_rising(once)


def _longest_rising(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the longest subsequence of *pairs* whose second numbers rise (patience sorting)."""
    ends: list[int] = []
    last: list[int] = []
    before: list[int] = []
    for n, (_, j) in enumerate(pairs):
        length = bisect_left(ends, j)
        ends[length : length + 1] = [j]
        last[length : length + 1] = [n]
        before.append(last[length - 1] if length else -1)
    found, n = [], last[-1] if last else -1
    while n >= 0:
        found.append(pairs[n])
        n = before[n]
    return found[::-1]


def _groups(edits: Sequence[LineEdit]) -> Iterator[list[LineEdit]]:
    """Group edits whose context lines overlap."""
    group: list[LineEdit] = []
    for edit in edits:
        if group and edit.old_start - group[-1].old_end > 2 * CONTEXT:
            yield group
            group = []
        group.append(edit)
    yield group


def _range(lines: range) -> str:
    return f"{lines.start + bool(lines)},{len(lines)}"


def _marked(mark: str, lines: Sequence[str]) -> list[str]:
    ending = "\n\\ No newline at end of file\n"
    return [mark + line + ("" if line.endswith("\n") else ending) for line in lines]
