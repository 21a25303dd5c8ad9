"""From what rich can draw to lines that a terminal can show, one string each.

Every line carries its own styles and leaves none behind, so lines can be kept, cut off and put
together in any order.

Markdown that is still being written, shown as far as it has come.

A block that has another one behind it is finished: it is drawn once and never again. Only the last
block is drawn anew when it grows, so an answer costs as much as it is long. What stands on a line that
has not ended does not count yet, because its next letter may make something else of it. If the last
block alone is higher than the screen, its first lines are let go as they are: they would not change any more in all
but the oddest cases, and waiting for the end would hide what is being said.

How much of a block was let go is counted in marks and not in lines, because a terminal may become
wider or narrower in between.

The bottom of the screen, which changes, below everything that was said, which does not.

`paint` says in one string what a terminal has to be told: take away what was at the bottom, add what
is finished for good, and draw the bottom anew. Finished lines scroll away as those of any program do,
so the history of the terminal has all of them, once.

A terminal that becomes narrower breaks the lines that are on it. The region knows how wide its lines
were, and so how many rows they take now.
"""

import io
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, cast

from attrs import define, field, frozen
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.markdown import Markdown

from crush_trio.cli.terminal.text import visible

WIDEST: Final = 4096
"""How many cells a line has at most, wherever it is to be shown."""

_STYLE: Final = re.compile(r"\x1b\[[0-9;]*m")
_SPACES: Final = re.compile(r" +\Z")


@define(eq=False)
class Renderer:
    """Draws for one terminal, without touching it: whoever wants lines to be seen writes them."""

    _console: Console = field(repr=False)

    @classmethod
    def like(cls, console: Console) -> "Renderer":
        """Return what draws with the colours that *console* can show."""
        colours = cast("Any", console.color_system)  # the names are a type of their own
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
    """Return how many characters of a line leave a mark; that does not depend on where it is broken."""
    return sum(not letter.isspace() for letter in plain(line))


def without_ink(line: str, amount: int) -> str:
    """Return a line without its first *amount* marks; its styles stay."""
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
"""Turns a drawing into lines of a width."""


_SLACK: Final = 16
"""By how many marks a drawing may differ from one before, as when an emphasis turns out to be one."""


@frozen
class Shown:
    """Lines that are finished for good, and lines that may still change."""

    done: tuple[str, ...] = ()
    live: tuple[str, ...] = ()


@frozen
class _Gone:
    """What was let go of a drawing: the marks on each of its lines, and its width.

    Width 0 is that of no drawing: then only the sum of the marks means something.
    """

    marks: tuple[int, ...]
    width: int

    @property
    def ink(self) -> int:
        return sum(self.marks)

    def left(self, lines: list[str], width: int) -> list[str]:
        """Return what of *lines* was not let go; all of them, if they are not what they were.

        To say something twice is better than never to say it.
        """
        if width != self.width:
            return list(_without(lines, self.ink))
        count = len(self.marks)
        before, now = sum(self.marks[: len(lines)]), sum(map(ink, lines[:count]))
        return lines[count:] if abs(now - before) <= _SLACK else lines

    def beyond(self, lines: list[str], width: int) -> "_Gone | None":
        """Return what was let go beyond *lines*; None if that is nothing."""
        if width == self.width:
            rest = self.marks[len(lines) :]
            return _Gone(rest, width) if rest else None
        marks = self.ink - sum(map(ink, lines))
        return _Gone((marks,), 0) if marks > 0 else None


@define(eq=False)
class GrowingMarkdown:
    """A text of which some has been let go."""

    _rest: str = field(default="", init=False)
    _begun: bool = field(default=False, init=False)
    """Whether anything was let go."""
    _gone: _Gone | None = field(default=None, init=False)
    """What was let go of the rest, which is still needed to draw what follows."""

    def append(self, text: str) -> None:
        """Add *text* at the end."""
        self._rest += visible(text)

    def advance(self, draw: Draw, width: int, room: int) -> Shown:
        """Return what is finished since the last time, and the rest in *room* lines at most."""
        blocks = list(_blocks(self._rest[: self._rest.rfind("\n") + 1]))
        done = [line for block in blocks[:-1] for line in self._finish(draw, width, block)]
        if not self._rest.strip():
            return Shown(tuple(done))
        whole = self._spaced(draw(_markdown(self._rest), width))
        left = self._left(whole, width)
        excess = max(0, len(left) - max(room, 2))
        if excess:
            done += left[:excess]
            self._gone = _Gone(tuple(map(ink, whole[: len(whole) - len(left) + excess])), width)
        return Shown(tuple(done), tuple(left[excess:]))

    def finish(self, draw: Draw, width: int) -> tuple[str, ...]:
        """Return everything that was not let go yet; nothing more will come."""
        blocks = list(_blocks(self._rest))
        return tuple(line for block in blocks for line in self._finish(draw, width, block))

    def _finish(self, draw: Draw, width: int, block: str) -> list[str]:
        whole = self._spaced(draw(_markdown(block), width))
        left = self._left(whole, width)
        self._rest = self._rest[len(block) :]
        self._begun = True
        self._gone = None if self._gone is None else self._gone.beyond(whole, width)
        return left

    def _left(self, lines: list[str], width: int) -> list[str]:
        return lines if self._gone is None else self._gone.left(lines, width)

    def _spaced(self, lines: list[str]) -> list[str]:
        """Return the lines of a block with an empty one before them, unless it is the first block."""
        lines = _trimmed(lines)
        return ["", *lines] if self._begun and lines else lines


def _markdown(block: str) -> Markdown:
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
    """Return *lines* without the empty ones at both ends; the distance of blocks is our business."""
    while lines and not lines[0].strip():
        lines = lines[1:]
    while lines and not lines[-1].strip():
        lines = lines[:-1]
    return lines


def _blocks(text: str) -> Iterator[str]:
    """Cut *text* in front of each of its blocks, as those see them who draw it; nothing is left out."""
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
    """What the bottom shows, and where the cursor is in it; None for nowhere."""

    lines: Sequence[str] = ()
    cursor: tuple[int, int] | None = None


@define(eq=False)
class Region:
    """What is at the bottom now."""

    _widths: tuple[int, ...] = field(default=(), init=False)
    _row: int = field(default=0, init=False)
    """The line of the bottom that the cursor is on."""

    def paint(self, done: Sequence[str], bottom: Bottom, width: int) -> str:
        """Return what makes a terminal of *width* cells show *bottom*, below *done*."""
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
        """Return what takes the bottom away and leaves the terminal to others."""
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
