"""A change of a file as an HTML table, which style can show unified or side by side.

The table has two bodies, `unified` and `split`, of which one is hidden. Both are made from a unified diff:
the one that a tool left in its result, or that of two contents.
"""

import re
from collections.abc import Iterator
from html import escape
from typing import Final

from attrs import define, field

from crush_trio.server.page.code import code_lines, language_of_file

CONTENT_MOST: Final = 1_000_000
"""The most characters of a file whose contents are compared."""

LINES_MOST: Final = 4000
"""The most lines of a change that are shown."""

LONG_LINE: Final = 5000
"""The most characters of a line that are shown."""

_HUNK: Final = re.compile(r"@@ -(\d{1,9})(?:,\d{1,9})? \+(\d{1,9})(?:,\d{1,9})? @@")
_TARGET: Final = re.compile(r"^\+\+\+ (?:b/)?([^\t\n]+)", re.MULTILINE)
_TOO_LONG: Final = '<p class="note">The file is too long to show the change here.</p>\n'
_CUT: Final = "The rest of the change is not shown."


def diff_of_contents(path: str, old: str, new: str) -> str:
    """Return the change from *old* to *new* as HTML. Takes time: call it in a thread."""
    from crush_trio.tools.files.text import difference

    if max(len(old), len(new)) > CONTENT_MOST:
        return _TOO_LONG
    return diff_table(difference(old, new).unified(path), path)


def diff_table(unified: str, path: str = "") -> str:
    """Return a unified diff as HTML; *path* tells the language, otherwise the diff itself does."""
    if not path:
        target = _TARGET.search(unified)
        path = target[1] if target else ""
    hunks, cut = _read(unified)
    language = language_of_file(path)
    one, two = [], []
    for hunk in hunks:
        lines = hunk.lines(language)
        one += [
            f'<tr class="hunk"><td colspan="3">{escape(hunk.head)}</td></tr>\n',
            *_unified(lines),
        ]
        two += [f'<tr class="hunk"><td colspan="4">{escape(hunk.head)}</td></tr>\n', *_split(lines)]
    if cut:
        one.append(f'<tr class="hunk note"><td colspan="3">{_CUT}</td></tr>\n')
        two.append(f'<tr class="hunk note"><td colspan="4">{_CUT}</td></tr>\n')
    return (
        f'<table class="diff"><tbody class="unified">\n{"".join(one)}</tbody>'
        f'<tbody class="split" hidden>\n{"".join(two)}</tbody></table>\n'
    )


_Line = tuple[str, int | None, int | None, str]
"""The kind of a line, its number before and after, and its HTML."""


@define(eq=False)
class _Hunk:
    head: str
    old_start: int
    new_start: int
    marked: list[tuple[str, str]] = field(factory=list)
    """The lines, each with the mark before it."""

    def lines(self, language: str | None) -> list[_Line]:
        """Return the lines as HTML with their numbers."""
        old = iter(_html([text for mark, text in self.marked if mark in " -"], language))
        new = iter(_html([text for mark, text in self.marked if mark in " +"], language))
        before, after, found = self.old_start, self.new_start, list[_Line]()
        for mark, _ in self.marked:
            if mark == "-":
                found.append(("del", before, None, next(old)))
            elif mark == "+":
                found.append(("add", None, after, next(new)))
            else:
                next(old)
                found.append(("same", before, after, next(new)))
            before += mark in " -"
            after += mark in " +"
        return found


def _read(unified: str) -> tuple[list[_Hunk], bool]:
    """Return the hunks of a unified diff, and whether there are more lines than are shown."""
    hunks, count = list[_Hunk](), 0
    for line in unified.split("\n"):
        head = _HUNK.match(line)
        if head is not None:
            hunks.append(_Hunk(head[0], int(head[1]), int(head[2])))
        elif hunks and line[:1] in {" ", "+", "-"}:
            count += 1
            if count > LINES_MOST:
                return hunks, True
            hunks[-1].marked.append((line[0], line[1 : LONG_LINE + 1]))
    return hunks, False


def _html(lines: list[str], language: str | None) -> list[str]:
    found = code_lines("".join(f"{line}\n" for line in lines), language)
    return [line.removesuffix("\n") for line in found]


def _unified(lines: list[_Line]) -> Iterator[str]:
    for kind, before, after, html in lines:
        yield f'<tr class="{kind}">{_number(before)}{_number(after)}<td class="text">{html}</td></tr>\n'


def _split(lines: list[_Line]) -> Iterator[str]:
    """Yield the rows of two sides: in each block of changes, what went is beside what came."""
    went, came = list[_Line](), list[_Line]()
    for line in [*lines, None]:
        if line is not None and line[0] == "del" and not came:
            went.append(line)
        elif line is not None and line[0] == "add":
            came.append(line)
        else:
            for number in range(max(len(went), len(came))):
                left = went[number] if number < len(went) else None
                right = came[number] if number < len(came) else None
                yield f"<tr>{_side(left, 1)}{_side(right, 2)}</tr>\n"
            went, came = [], []
            if line is not None and line[0] == "del":
                went.append(line)
            elif line is not None:
                yield f"<tr>{_side(line, 1)}{_side(line, 2)}</tr>\n"


def _side(line: _Line | None, which: int) -> str:
    if line is None:
        return f'{_number(None)}<td class="text none"></td>'
    number = line[1] if which == 1 else line[2]
    return f'{_number(number)}<td class="text {line[0]}">{line[3]}</td>'


def _number(number: int | None) -> str:
    return f'<td class="num">{"" if number is None else number}</td>'
