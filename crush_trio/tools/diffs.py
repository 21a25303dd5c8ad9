"""What changed between two texts, in lines, in bounded time.

`difflib` finds good differences, and takes quadratic time for it. So it only gets to see what is
small: equal lines at both ends are set aside, then lines that each text has exactly once split the
rest, and a piece in between that is still too large counts as changed altogether. The result is
always true, and for very large changes coarser than it could be.
"""

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import Final

from attrs import field, frozen

from crush_trio.tools.text import common_head

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
