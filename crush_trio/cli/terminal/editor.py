"""The line editor of the input line, and its layout on the screen.

Plain data: keys in, text out.
"""

from collections.abc import Callable, Mapping
from typing import Final

from attrs import define, field, frozen
from rich.cells import cell_len

from crush_trio.cli.terminal.text import visible

HISTORY: Final = 200
"""How many lines the history keeps."""


@define(eq=False)
class LineEditor:
    """The text of the input line, its cursor and its history."""

    text: str = ""
    cursor: int = 0
    _history: list[str] = field(factory=list, init=False)
    _place: int = field(default=0, init=False)
    _draft: str = field(default="", init=False)

    def take(self) -> str:
        """Return the text, add it to the history, and clear the line."""
        text = self.text
        if text.strip() and self._history[-1:] != [text]:
            self._history = [*self._history, text][-HISTORY:]
        self._place = len(self._history)
        self._set("")
        return text

    def press(self, name: str, text: str = "") -> bool:
        """Apply a key; return False for keys that do not edit."""
        if name == "text":
            self._replace(self.cursor, self.cursor, text)
        elif name == "newline":
            self._replace(self.cursor, self.cursor, "\n")
        elif name in _EDITS:
            _EDITS[name](self)
        else:
            return False
        return True

    # ── Boundaries ──────────────────────────────────────────────────────────────

    def _word_left(self) -> int:
        place = len(self.text[: self.cursor].rstrip())
        while place > 0 and not self.text[place - 1].isspace():
            place -= 1
        return place

    def _word_right(self) -> int:
        place = self.cursor
        while place < len(self.text) and self.text[place].isspace():
            place += 1
        while place < len(self.text) and not self.text[place].isspace():
            place += 1
        return place

    def _line_start(self) -> int:
        return self.text.rfind("\n", 0, self.cursor) + 1

    def _line_end(self) -> int:
        end = self.text.find("\n", self.cursor)
        return len(self.text) if end < 0 else end

    # ── Changes ────────────────────────────────────────────────────────────────────────────────

    def _set(self, text: str) -> None:
        self.text, self.cursor = text, len(text)

    def _replace(self, begin: int, end: int, text: str) -> None:
        self.text = self.text[:begin] + text + self.text[end:]
        self.cursor = begin + len(text)

    def _move(self, place: int) -> None:
        self.cursor = min(max(place, 0), len(self.text))

    def _recall(self, step: int) -> None:
        """Show an earlier or later line of the history; the unsent text comes after the last."""
        if self._place == len(self._history):
            self._draft = self.text
        place = self._place + step
        if 0 <= place <= len(self._history):
            self._place = place
            self._set([*self._history, self._draft][place])


_EDITS: Final[Mapping[str, Callable[[LineEditor], None]]] = {
    "backspace": lambda line: line._replace(max(line.cursor - 1, 0), line.cursor, ""),
    "delete": lambda line: line._replace(line.cursor, line.cursor + 1, ""),
    "ctrl-u": lambda line: line._replace(line._line_start(), line.cursor, ""),
    "ctrl-k": lambda line: line._replace(line.cursor, line._line_end(), ""),
    "ctrl-w": lambda line: line._replace(line._word_left(), line.cursor, ""),
    "left": lambda line: line._move(line.cursor - 1),
    "ctrl-b": lambda line: line._move(line.cursor - 1),
    "right": lambda line: line._move(line.cursor + 1),
    "ctrl-f": lambda line: line._move(line.cursor + 1),
    "word-left": lambda line: line._move(line._word_left()),
    "word-right": lambda line: line._move(line._word_right()),
    "home": lambda line: line._move(line._line_start()),
    "ctrl-a": lambda line: line._move(line._line_start()),
    "end": lambda line: line._move(line._line_end()),
    "ctrl-e": lambda line: line._move(line._line_end()),
    "up": lambda line: line._recall(-1),
    "ctrl-p": lambda line: line._recall(-1),
    "down": lambda line: line._recall(1),
    "ctrl-n": lambda line: line._recall(1),
}


@frozen
class Layout:
    """Rows on the screen, and the position of the cursor."""

    lines: tuple[str, ...]
    row: int
    column: int


def _shown(letter: str) -> str:
    """Return a character as displayed: nothing for a line feed, spaces for a tab."""
    if letter in {"\n", "\t"}:
        return "" if letter == "\n" else "    "
    seen = visible(letter)
    return seen if len(seen) <= 1 else "\ufffd"


def layout(lead: str, text: str, cursor: int, width: int) -> Layout:
    """Lay out *text* after *lead* in rows of at most *width* cells."""
    rows, place = [lead], (0, cell_len(lead))
    indent = " " * cell_len(lead)
    for index, letter in enumerate([*text, ""]):
        shown = _shown(letter)
        if cell_len(rows[-1]) + max(cell_len(shown), index == cursor) > width:
            rows.append(indent)
        if index == cursor:
            place = len(rows) - 1, cell_len(rows[-1])
        if letter == "\n":
            rows.append(indent)
        rows[-1] += shown
    return Layout(tuple(rows), *place)
