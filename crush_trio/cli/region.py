"""The bottom of the screen, which changes, below everything that was said, which does not.

`paint` says in one string what a terminal has to be told: take away what was at the bottom, add what
is finished for good, and draw the bottom anew. Finished lines scroll away as those of any program do,
so the history of the terminal has all of them, once.

A terminal that becomes narrower breaks the lines that are on it. The region knows how wide its lines
were, and so how many rows they take now.
"""

from collections.abc import Sequence
from typing import Final

from attrs import define, field, frozen

from crush_trio.cli.render import width_of

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
