"""The text of a file: seen without its line endings and its byte order mark, kept with them.

A model quotes and writes lines that end in a line feed. The file may begin with a byte order mark,
may end its lines in another way, or in two ways. So everything is looked for in `plain`, and what
is changed there is changed in `content`, which is exactly what the file holds. Invariant: outside
of what was changed, `content` stays as it is, to the last byte.

What changed between two texts, in lines, in bounded time.

`difflib` finds good differences, and takes quadratic time for it. So it only gets to see what is
small: equal lines at both ends are set aside, then lines that each text has exactly once split the
rest, and a piece in between that is still too large counts as changed altogether. The result is
always true, and for very large changes coarser than it could be.
"""

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from difflib import SequenceMatcher
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


EFFORT: Final = 100_000
"""How many pairs of lines a piece may have that is compared line by line."""

CONTEXT: Final = 3
"""How many unchanged lines a diff shows around a change."""

_LINE: Final = re.compile(r".*\n|.+")


@frozen
class Edit:
    """The lines [old_start, old_end) of one text became [new_start, new_end) of the other."""

    old_start: int
    old_end: int
    new_start: int
    new_end: int

    @property
    def empty(self) -> bool:
        """Whether it changes nothing."""
        return self.old_start == self.old_end and self.new_start == self.new_end

    def moved(self, old: int, new: int) -> "Edit":
        """Return the same edit of texts that begin earlier."""
        return Edit(
            self.old_start + old, self.old_end + old, self.new_start + new, self.new_end + new
        )


@frozen(kw_only=True)
class Difference:
    """Two texts and what became of the lines of the first."""

    old: tuple[str, ...] = field(repr=False)
    new: tuple[str, ...] = field(repr=False)
    edits: tuple[Edit, ...] = field(repr=False)

    @property
    def additions(self) -> int:
        """How many lines the second text has that the first has not."""
        return sum(edit.new_end - edit.new_start for edit in self.edits)

    @property
    def removals(self) -> int:
        """How many lines the first text has that the second has not."""
        return sum(edit.old_end - edit.old_start for edit in self.edits)

    def unified(self, name: str) -> str:
        """Return the difference as a unified diff of a file called *name*."""
        if not self.edits:
            return ""
        hunks = "".join(self._hunk(group) for group in _groups(self.edits))
        return f"--- a/{name}\n+++ b/{name}\n{hunks}"

    def _hunk(self, group: Sequence[Edit]) -> str:
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
    """Compare two texts; a last line without its line feed is another line than one with it."""
    before, after = lines_of(old), lines_of(new)
    return Difference(old=before, new=after, edits=tuple(edits_between(before, after)))


def lines_of(text: str) -> tuple[str, ...]:
    """Split *text* behind its line feeds, and nowhere else."""
    return tuple(_LINE.findall(text))


def edits_between(old: Sequence[str], new: Sequence[str]) -> list[Edit]:
    """Return what turns *old* into *new*, in order, with something unchanged in between."""
    head = common_head(old, new)
    tail = common_head(old[head:][::-1], new[head:][::-1])
    inner = _inner(old[head : len(old) - tail], new[head : len(new) - tail])
    return [edit.moved(head, head) for edit in inner if not edit.empty]


def _inner(old: Sequence[str], new: Sequence[str]) -> Iterator[Edit]:
    if len(old) * len(new) <= EFFORT:
        yield from _compared(old, new)
        return
    old_at = new_at = 0
    for i, j in [*_anchors(old, new), (len(old), len(new))]:
        piece = old[old_at:i], new[new_at:j]
        small = len(piece[0]) * len(piece[1]) <= EFFORT
        found = _compared(*piece) if small else [Edit(0, len(piece[0]), 0, len(piece[1]))]
        yield from (edit.moved(old_at, new_at) for edit in found)
        old_at, new_at = i + 1, j + 1


def _compared(old: Sequence[str], new: Sequence[str]) -> Iterator[Edit]:
    matcher = SequenceMatcher(None, old, new, autojunk=False)
    return (Edit(*places) for tag, *places in matcher.get_opcodes() if tag != "equal")


def _anchors(old: Sequence[str], new: Sequence[str]) -> list[tuple[int, int]]:
    """Return pairs of equal lines that occur once in each text, as many as are in the same order."""
    in_old, in_new = Counter(old), Counter(new)
    places = {line: n for n, line in enumerate(new) if in_new[line] == 1}
    once = [(n, places[line]) for n, line in enumerate(old) if in_old[line] == 1 and line in places]
    return _longest_rising(once)


def _longest_rising(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the longest part of *pairs* whose second numbers rise as the first ones do."""
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


def _groups(edits: Sequence[Edit]) -> Iterator[list[Edit]]:
    """Put edits together whose surroundings overlap."""
    group: list[Edit] = []
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
