"""HTML pages as Markdown or plain text.

The page is converted while its tokens are read. There is no tree and no recursion, so pages may be nested
to any depth; what is remembered (open lists, open emphasis) is bounded. Elements that authors forget to
close, mostly list items and table cells, end where the next one begins.
"""

import re
from collections.abc import Callable
from typing import Final
from urllib.parse import urljoin

from attrs import define, field

from crush_trio.tools.web.html import End, Start, Text, tokens

DEEPEST: Final = 20
"""How many nested lists and quotes are shown, and how many nested kinds of emphasis."""

STEP: Final = 2048
"""Tokens between two calls of the cancel check."""

_MARKS: Final = {
    **dict.fromkeys(("b", "strong"), "**"),
    **dict.fromkeys(("i", "em", "cite"), "*"),
    **dict.fromkeys(("code", "kbd", "samp", "tt"), "`"),
    **dict.fromkeys(("del", "s", "strike"), "~~"),
}
_INDENTS: Final = {"blockquote": "> ", "ol": "   "}
_HEADINGS: Final = {f"h{level}": level for level in range(1, 7)}
_LISTS: Final = frozenset(("ul", "ol", "menu", "dir"))
_CELLS: Final = frozenset(("td", "th"))
_BLOCKS: Final = frozenset(
    (
        *("address", "article", "aside", "body", "caption", "center", "dd", "details", "dialog"),
        *("div", "dl", "dt", "fieldset", "figcaption", "figure", "footer", "form", "header"),
        *("hgroup", "html", "legend", "main", "nav", "optgroup", "option", "p", "section"),
        *("summary", "tbody", "tfoot", "thead", "title"),
    )
)
_BLANKS: Final = re.compile(r"[\s\xa0]+")


def to_markdown(page: str, *, base: str = "", check: Callable[[], None] = lambda: None) -> str:
    """Return a page as Markdown; its links are made absolute with *base*.

    *check* is called regularly, and may raise to end the conversion.
    """
    return _written(page, _Writer(base=base), check)


def to_text(page: str, *, check: Callable[[], None] = lambda: None) -> str:
    """Return the text of a page, without its links and its emphasis."""
    return _written(page, _Writer(base="", plain=True), check)


def _written(page: str, writer: "_Writer", check: Callable[[], None]) -> str:
    for number, token in enumerate(tokens(page)):
        if number % STEP == 0:
            check()
        match token:
            case Text(text):
                writer.text(text)
            case Start():
                writer.start(token)
            case End(name):
                writer.end(name)
    return writer.finish()


@define(eq=False)
class _Writer:
    """Writes block after block. `_inline` is the block in progress, in pieces."""

    base: str
    plain: bool = False
    _out: list[str] = field(factory=list, init=False)
    _inline: list[str] = field(factory=list, init=False)
    _marks: list[tuple[str, int, str]] = field(factory=list, init=False)
    """Open emphasis and links: the element, where in `_inline` it began, and its address."""
    _around: list[str] = field(factory=list, init=False)
    """Open lists and quotes."""
    _counts: list[int] = field(factory=list, init=False)
    """How many items each of them had."""
    _item: bool = field(default=False, init=False)
    """Whether the next block begins a list item."""
    _heading: int = field(default=0, init=False)
    _verbatim: bool = field(default=False, init=False)
    _row: list[str] | None = field(default=None, init=False)
    _rows: int = field(default=0, init=False)
    _cell: bool = field(default=False, init=False)

    # ── Tokens ──────────────────────────────────────────────────────────────────────────────────

    def text(self, text: str) -> None:
        """Add text; several blanks become one, except in preformatted text."""
        self._inline.append(text if self._verbatim else _BLANKS.sub(" ", text))

    def start(self, tag: Start) -> None:
        """Begin an element."""
        name = tag.name
        if self._verbatim:
            if name == "br":
                self._inline.append("\n")
        elif name == "br":
            self._inline.append(" " if self._row is not None else "\n")
        elif name == "img":
            self._image(tag)
        elif name == "a" or name in _MARKS:
            self._open_mark(name, tag.attribute("href") if name == "a" else "")
        else:
            self._start_block(name)

    def end(self, name: str) -> None:
        """End an element. The end of one that never began is ignored."""
        if self._verbatim:
            if name == "pre":
                self._end_verbatim()
        elif name == "a" or name in _MARKS:
            self._close_mark(name)
        elif name in _CELLS:
            self._end_cell()
        elif name == "tr" or name == "table":
            self._end_row()
        elif name in _LISTS or name == "blockquote":
            self._break()
            self._leave(name)
        elif name in _HEADINGS or name in _BLOCKS or name == "li":
            self._break()

    def finish(self) -> str:
        """Return everything that was written."""
        if self._verbatim:
            self._end_verbatim()
        self._end_row()
        self._break()
        return "".join(self._out).strip("\n")

    # ── Blocks ──────────────────────────────────────────────────────────────────────────────────

    def _start_block(self, name: str) -> None:
        if name in _CELLS:
            self._end_cell()
            self._row = self._row if self._row is not None else []
            self._cell = True
        elif name in {"tr", "table"}:
            self._end_row()
            self._rows = 0 if name == "table" else self._rows
            self._row = [] if name == "tr" else None
        elif name == "pre":
            self._end_row()
            self._break()
            self._verbatim = True
        elif name in _LISTS or name == "blockquote":
            self._break()
            self._enter(name)
        elif name == "li":
            self._break()
            self._item = True
        elif name == "hr":
            self._break()
            self._block("---")
        elif name in _HEADINGS or name in _BLOCKS:
            self._break()
            self._heading = _HEADINGS.get(name, 0)

    def _enter(self, name: str) -> None:
        if len(self._around) < DEEPEST:
            self._around.append(name)
            self._counts.append(0)
        self._item = False

    def _leave(self, name: str) -> None:
        if name in self._around:
            while self._around.pop() != name:
                self._counts.pop()
            self._counts.pop()
        self._item = False

    def _break(self) -> None:
        """End the current block, if there is something in it; in a table, add a blank instead."""
        if self._row is not None:
            self._inline.append(" ")
            return
        text = self._taken()
        if text:
            heading = f"{'#' * self._heading} " if self._heading and not self.plain else ""
            self._block(heading + text)
        self._heading = 0

    def _taken(self) -> str:
        """Return the inline pieces as clean text, and forget them."""
        while self._marks:
            self._close_mark(self._marks[-1][0])
        lines = "".join(self._inline).split("\n")
        self._inline.clear()
        return "\n".join(re.sub(" {2,}", " ", line).strip() for line in lines).strip()

    def _block(self, text: str, *, tight: bool = False) -> None:
        """Write a block with the prefix of its lists and quotes before each line."""
        item, self._item = self._item and bool(self._around), False
        before = first = "".join(_INDENTS.get(each, "  ") for each in self._around)
        if item:
            self._counts[-1] += 1
            bullet = f"{self._counts[-1]}. " if self._around[-1] == "ol" else "- "
            first = before[: -len(_INDENTS.get(self._around[-1], "  "))] + bullet
            tight = self._counts[-1] > 1 or len(self._around) > 1
        first_line, *others = text.split("\n")
        lines = [first + first_line, *((before + line).rstrip() for line in others)]
        self._out.append(("\n" if tight else "\n\n") + "\n".join(lines))

    def _end_verbatim(self) -> None:
        self._verbatim = False
        self._marks.clear()
        text = "".join(self._inline).strip("\n").replace("\r\n", "\n")
        self._inline.clear()
        if text and not self.plain:
            longest = max(map(len, re.findall("`+", text)), default=0)
            fence = "`" * max(3, longest + 1)
            text = f"{fence}\n{text}\n{fence}"
        if text:
            self._block(text)

    # ── Tables ──────────────────────────────────────────────────────────────────────────────────

    def _end_cell(self) -> None:
        """Add the text since the last cell to the row, if there is one."""
        if self._row is None:
            self._break()
            return
        text = self._taken().replace("\n", " ").replace("|", "\\|")
        if self._cell or text:
            self._row.append(text)
        self._cell = False

    def _end_row(self) -> None:
        if self._row is None:
            self._break()
            return
        self._end_cell()
        row, self._row = self._row, None
        if not any(row):
            return
        self._rows += 1
        self._block(f"| {' | '.join(row)} |", tight=self._rows > 1)
        if self._rows == 1 and not self.plain:
            self._block(f"|{' --- |' * len(row)}", tight=True)

    # ── Within a line ───────────────────────────────────────────────────────────────────────────

    def _open_mark(self, name: str, address: str) -> None:
        if len(self._marks) < DEEPEST:
            self._marks.append((name, len(self._inline), address))

    def _close_mark(self, name: str) -> None:
        """End the emphasis or link, and everything that was begun inside it and not ended."""
        if all(each[0] != name for each in self._marks):
            return
        while True:
            opened, place, address = self._marks.pop()
            inside = "".join(self._inline[place:])
            self._inline[place:] = [self._marked(opened, inside, address)]
            if opened == name:
                return

    def _marked(self, name: str, inside: str, address: str) -> str:
        """Return text with its emphasis or address; blanks at its ends stay outside."""
        text = inside.strip()
        if self.plain or not text:
            return inside
        mark = _MARKS.get(name)
        target = self._absolute(address)
        if mark is None and not target:
            return inside
        begin, _, end = inside.partition(text)
        return begin + (f"[{text}]({target})" if mark is None else mark + text + mark) + end

    def _image(self, tag: Start) -> None:
        words = _BLANKS.sub(" ", tag.attribute("alt")).strip()
        if words:
            address = self._absolute(tag.attribute("src"))
            self._inline.append(words if self.plain or not address else f"![{words}]({address})")

    def _absolute(self, address: str) -> str:
        """Return the absolute URL of a link; empty if it cannot be followed."""
        address = re.sub(r"[\t\r\n]", "", address.strip()).replace(" ", "%20")
        if not address or address.startswith("#"):
            return ""
        try:
            target = urljoin(self.base, address)
        except ValueError:
            return ""
        scheme = target.partition(":")[0].lower() if ":" in target else ""
        return "" if scheme in {"javascript", "data", "vbscript"} else target
