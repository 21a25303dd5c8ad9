"""Lines on a terminal: a renderer for rich, growing Markdown, and a region that is redrawn.

`Renderer` turns what rich can draw into lines. Each line has its own styles and leaves none behind,
so lines can be stored, cut off and joined in any order.

`GrowingMarkdown` draws Markdown that is still being written. A block that another one follows is
finished: it is drawn once and released. Only the last block is redrawn, so the cost is linear in the
length of the text. An incomplete last line does not finish a block, because its next character may
change what it is. If the last block is higher than the screen, its first lines are released early;
in rare cases they would have changed, but waiting would hide the text. How much of a block was
released is counted in visible characters (ink), not in lines, because the width may change meanwhile.

`Region` is the part at the bottom that is redrawn. `paint` returns one string that erases it, prints
finished lines, and draws it again, so the terminal's scrollback has each finished line once. A
terminal that becomes narrower wraps the lines on it; the region keeps their widths to know how many
rows they take then.
"""

import io
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from attrs import define, field, frozen
from rich.cells import cell_len
from rich.console import Console, RenderableType

from crush_trio.cli.terminal.text import visible

if TYPE_CHECKING:
    from rich.markdown import Markdown

WIDEST: Final = 4096
"""The width in cells used where lines must not be wrapped."""

_STYLE: Final = re.compile(r"\x1b\[[0-9;]*m")
_SPACES: Final = re.compile(r" +\Z")


@define(eq=False)
class Renderer:
    """Renders for one terminal and returns the lines; it writes nothing."""

    _console: Console = field(repr=False)

    @classmethod
    def like(cls, console: Console) -> "Renderer":
        """Return a renderer with the colours of *console*."""
        colours = cast("Any", console.color_system)  # rich has a literal type for the names
        paper = Console(
            file=io.StringIO(),
            width=WIDEST,
            force_terminal=console.is_terminal,
            color_system=colours,
            no_color=console.no_color,
        )
        return cls(paper)

    def lines(self, drawing: RenderableType, width: int) -> list[str]:
        """Return *drawing* as lines of *width* cells at most."""
        with self._console.capture() as captured:
            self._console.print(drawing, width=width, highlight=False)
        text = captured.get()
        return (
            [_SPACES.sub("", line) for line in text.removesuffix("\n").split("\n")] if text else []
        )


def plain(line: str) -> str:
    """Return a line without its styles."""
    return _STYLE.sub("", line)


def width_of(line: str) -> int:
    """Return how many cells a line takes."""
    return cell_len(plain(line))


def ink(line: str) -> int:
    """Return the number of characters that are not spaces; wrapping does not change it."""
    return sum(not letter.isspace() for letter in plain(line))


def without_ink(line: str, amount: int) -> str:
    """Return a line without its first *amount* visible characters; its styles stay."""
    kept, place = [], 0
    for match in [*_STYLE.finditer(line), None]:
        end = len(line) if match is None else match.start()
        for index in range(place, end):
            if amount == 0:
                kept.append(line[index:end])
                break
            amount -= not line[index].isspace()
        if match is not None:
            kept.append(match[0])
            place = match.end()
    return "".join(kept)


Draw = Callable[[RenderableType, int], list[str]]
"""Renders a drawing as lines of a width."""


_SLACK: Final = 16
"""By how many visible characters two drawings of the same lines may differ.

For example, two asterisks disappear once they turn out to be emphasis.
"""


@frozen
class DrawnLines:
    """Finished lines, to be released, and lines that may still change."""

    done: tuple[str, ...] = ()
    live: tuple[str, ...] = ()


@frozen
class _Released:
    """What was released of a drawing: the visible characters of each line, and the width.

    Width 0 means that the lines are not known, only the sum of the characters.
    """

    marks: tuple[int, ...]
    width: int

    @property
    def ink(self) -> int:
        return sum(self.marks)

    def left(self, lines: list[str], width: int) -> list[str]:
        """Return the *lines* that were not released; all of them, if the drawing has changed.

        Showing a line twice is better than not showing it.
        """
        if width != self.width:
            return list(_without(lines, self.ink))
        count = len(self.marks)
        before, now = sum(self.marks[: len(lines)]), sum(map(ink, lines[:count]))
        return lines[count:] if abs(now - before) <= _SLACK else lines

    def beyond(self, lines: list[str], width: int) -> "_Released | None":
        """Return what was released beyond *lines*; None if nothing was."""
        if width == self.width:
            rest = self.marks[len(lines) :]
            return _Released(rest, width) if rest else None
        marks = self.ink - sum(map(ink, lines))
        return _Released((marks,), 0) if marks > 0 else None


@define(eq=False)
class GrowingMarkdown:
    """Markdown text that grows, and of which a part was released."""

    _rest: str = field(default="", init=False)
    _begun: bool = field(default=False, init=False)
    """Whether anything was released."""
    _released: _Released | None = field(default=None, init=False)
    """What was released of the rest, which is kept because it is needed to draw what follows."""

    def append(self, text: str) -> None:
        """Add *text* at the end."""
        self._rest += visible(text)

    def advance(self, draw: Draw, width: int, room: int) -> DrawnLines:
        """Return the lines to release since the last call, and the rest in at most *room* lines."""
        blocks = list(_blocks(self._rest[: self._rest.rfind("\n") + 1]))
        done = [line for block in blocks[:-1] for line in self._finish(draw, width, block)]
        if not self._rest.strip():
            return DrawnLines(tuple(done))
        whole = self._spaced(draw(_markdown(self._rest), width))
        left = self._left(whole, width)
        excess = max(0, len(left) - max(room, 2))
        if excess:
            done += left[:excess]
            self._released = _Released(
                tuple(map(ink, whole[: len(whole) - len(left) + excess])), width
            )
        return DrawnLines(tuple(done), tuple(left[excess:]))

    def finish(self, draw: Draw, width: int) -> tuple[str, ...]:
        """Return all lines that are not released; nothing more will be added."""
        blocks = list(_blocks(self._rest))
        return tuple(line for block in blocks for line in self._finish(draw, width, block))

    def _finish(self, draw: Draw, width: int, block: str) -> list[str]:
        whole = self._spaced(draw(_markdown(block), width))
        left = self._left(whole, width)
        self._rest = self._rest[len(block) :]
        self._begun = True
        self._released = None if self._released is None else self._released.beyond(whole, width)
        return left

    def _left(self, lines: list[str], width: int) -> list[str]:
        return lines if self._released is None else self._released.left(lines, width)

    def _spaced(self, lines: list[str]) -> list[str]:
        """Return a block's lines, with an empty line before them unless it is the first block."""
        lines = _trimmed(lines)
        return ["", *lines] if self._begun and lines else lines


def _markdown(block: str) -> "Markdown":
    # Not at the top: it brings a Markdown parser and Pygments, which only an answer at a terminal needs.
    from rich.markdown import Markdown

    return Markdown(block, hyperlinks=False)


def _without(lines: list[str], gone: int) -> Iterator[str]:
    for line in lines:
        marks = ink(line)
        if gone == 0:
            yield line
        elif marks > gone:
            yield without_ink(line, gone)
        gone = max(0, gone - marks)


def _trimmed(lines: list[str]) -> list[str]:
    """Return *lines* without empty ones at both ends; `_spaced` separates blocks."""
    while lines and not lines[0].strip():
        lines = lines[1:]
    while lines and not lines[-1].strip():
        lines = lines[:-1]
    return lines


def _blocks(text: str) -> Iterator[str]:
    """Split *text* into its top-level blocks, as rich's parser sees them; together they are *text*."""
    starts = [
        token.map[0]
        for token in _markdown(text).parsed
        if token.level == 0 and token.nesting >= 0 and token.map
    ]
    lines = text.splitlines(keepends=True)
    for begin, end in zip([0, *starts[1:]], [*starts[1:], len(lines)], strict=True):
        if block := "".join(lines[begin:end]):
            yield block


HIDE_CURSOR: Final = "\x1b[?25l"
SHOW_CURSOR: Final = "\x1b[?25h"
_ERASE_BELOW: Final = "\x1b[J"


@frozen
class Bottom:
    """The lines at the bottom of the screen, and the cursor in them; None hides it."""

    lines: Sequence[str] = ()
    cursor: tuple[int, int] | None = None


@define(eq=False)
class Region:
    """The lines at the bottom of the screen that are on it now."""

    _widths: tuple[int, ...] = field(default=(), init=False)
    _row: int = field(default=0, init=False)
    """The line that the cursor is on."""

    def paint(self, done: Sequence[str], bottom: Bottom, width: int) -> str:
        """Return the output that prints *done* and draws *bottom* below it."""
        text = self._erased(width) + "".join(f"{line}\n" for line in done)
        text += "\n".join(bottom.lines)
        self._widths = tuple(width_of(line) for line in bottom.lines)
        last = max(len(bottom.lines) - 1, 0)
        if bottom.cursor is None:
            self._row = last
            return HIDE_CURSOR + text
        self._row, column = bottom.cursor
        return f"{HIDE_CURSOR}{text}{_up(last - self._row)}\r{_right(column)}{SHOW_CURSOR}"

    def close(self, width: int) -> str:
        """Return the output that erases the region and shows the cursor."""
        text = self._erased(width) + SHOW_CURSOR
        self._widths, self._row = (), 0
        return text

    def _erased(self, width: int) -> str:
        rows = sum(max(1, -(-each // width)) for each in self._widths[: self._row])
        return f"{_up(rows)}\r{_ERASE_BELOW}"


def _up(rows: int) -> str:
    return f"\x1b[{rows}A" if rows else ""


def _right(columns: int) -> str:
    return f"\x1b[{columns}C" if columns else ""
