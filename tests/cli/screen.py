"""A terminal in memory, as far as the command line needs one: it shows what a person would see.

It knows lines, the cursor, erasing and breaking lines at its edge. Colours are left out. When it
becomes narrower or wider it breaks its lines anew, as most terminals do.
"""

import re

from attrs import define, field

TOKEN = re.compile(
    r"\x1b\[([?0-9;]*)([A-Za-z])|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|[\r\n]|.", re.DOTALL
)


@define(eq=False)
class Screen:
    """What a terminal of some size has been told."""

    width: int
    height: int
    rows: list[str] = field(factory=lambda: [""], init=False)
    joined: list[bool] = field(factory=lambda: [False], init=False)
    """Whether a row continues the one above it."""
    row: int = field(default=0, init=False)
    column: int = field(default=0, init=False)
    cursor_shown: bool = field(default=True, init=False)
    modes: dict[str, bool] = field(factory=dict, init=False)

    @property
    def top(self):
        return max(0, len(self.rows) - self.height)

    @property
    def lines(self):
        """All lines there ever were, without the spaces at their ends, and the empty ones below."""
        lines = [row.rstrip() for row in self.rows]
        while lines and not lines[-1]:
            lines.pop()
        return lines

    @property
    def text(self):
        return "\n".join(self.lines)

    def feed(self, text):
        for match in TOKEN.finditer(text):
            if match[2] is not None:
                self._control(match[1], match[2])
            elif match[0] == "\r":
                self.column = 0
            elif match[0] == "\n":
                self._down(joined=False)
                self.column = 0
            elif not match[0].startswith("\x1b"):
                self._put(match[0])

    def _control(self, argument, letter):
        number = int(argument) if argument.isdecimal() else 1
        if letter == "A":
            self.row = max(self.top, self.row - number)
        elif letter == "C":
            self.column = min(self.width - 1, self.column + number)
        elif letter == "J":
            self.rows[self.row] = self.rows[self.row][: self.column]
            del self.rows[self.row + 1 :], self.joined[self.row + 1 :]
        elif letter in "hl":
            self.modes[argument] = letter == "h"
            self.cursor_shown = self.modes.get("?25", True)
        else:
            assert letter == "m", f"this terminal does not know {argument}{letter}"

    def _put(self, letter):
        if self.column == self.width:
            self._down(joined=True)
            self.column = 0
        row = self.rows[self.row].ljust(self.column)
        self.rows[self.row] = row[: self.column] + letter + row[self.column + 1 :]
        self.column += 1

    def _down(self, *, joined):
        self.row += 1
        if self.row == len(self.rows):
            self.rows.append("")
            self.joined.append(joined)

    def resize(self, width, height):
        """Break all lines anew; the cursor stays with its letter."""
        rows, place = [], (0, 0)
        for number, row in enumerate(self.rows):
            if number and self.joined[number]:
                rows[-1] += row
            else:
                rows.append(row)
            if number == self.row:
                place = len(rows) - 1, len(rows[-1]) - len(row) + self.column
        self.width, self.height = width, height
        self.rows, self.joined = [], []
        for number, row in enumerate(rows):
            pieces = [row[at : at + width] for at in range(0, len(row), width)] or [""]
            if number == place[0]:
                self.row = len(self.rows) + min(place[1] // width, len(pieces) - 1)
                self.column = min(place[1] % width, width)
            self.rows += pieces
            self.joined += [False, *[True] * (len(pieces) - 1)]
