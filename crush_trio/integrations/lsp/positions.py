"""Positions, ranges, URIs and edits of language servers, converted to offsets in Python strings.

A server counts lines from 0, and within a line it counts code units of the negotiated encoding, usually
UTF-16, where a character outside the basic plane counts two. All conversions are in this module. Servers
do not see a byte order mark.

No I/O. A position that does not exist is moved to the nearest one that does, as the protocol requires for
characters; an invalid edit raises `BadEdit`.
"""

import re
from collections.abc import Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from attrs import define, field, frozen

from crush_trio.integrations.lsp.connection import LspFailure
from crush_trio.tools.files.text import BOM, CRLF, LF, FileText
from crush_trio.wire.fields import Json

_BREAK: Final = re.compile("\r\n|\n|\r")


class Encoding(StrEnum):
    """The position encoding of a server."""

    UTF8 = "utf-8"
    UTF16 = "utf-16"
    UTF32 = "utf-32"


class BadEdit(LspFailure):
    """An edit that is malformed or overlaps another."""


# ── Positions ───────────────────────────────────────────────────────────────────────────────────


@frozen(order=True)
class TextPosition:
    """A position: both numbers count from 0, the second in code units of an encoding."""

    line: int
    character: int

    @classmethod
    def read(cls, span: Json, side: str) -> "TextPosition":
        """Parse one side of a range; raises `LspFailure` if it is invalid."""
        place = span.get(side) if isinstance(span, dict) else None
        given = place if isinstance(place, dict) else {}
        line, character = given.get("line"), given.get("character")
        if not (isinstance(line, int) and isinstance(character, int)) or min(line, character) < 0:
            raise LspFailure("the server sent an invalid position")
        return cls(line, character)


@frozen
class TextRange:
    """A range between two positions."""

    start: TextPosition
    end: TextPosition

    @classmethod
    def read(cls, value: Json) -> "TextRange":
        """Parse a range; raises `LspFailure` if it is invalid."""
        start, end = TextPosition.read(value, "start"), TextPosition.read(value, "end")
        if end < start:
            raise LspFailure("the server sent an invalid position")
        return cls(start, end)

    @property
    def lines(self) -> tuple[int, int]:
        """The first and last line; a line at whose beginning the range ends is not included."""
        within = self.end.character == 0 and self.end.line > self.start.line
        return self.start.line, self.end.line - within


def encoded_length(text: str, encoding: Encoding) -> int:
    """Return the length of *text* in code units of *encoding*."""
    if encoding is Encoding.UTF32 or text.isascii():
        return len(text)
    if encoding is Encoding.UTF8:
        return len(text.encode("utf-8", "surrogatepass"))
    return len(text) + sum(letter > "\uffff" for letter in text)


def decode_column(line: str, character: int, encoding: Encoding) -> int:
    """Return the index in *line* of a server's *character*; one inside a character is before it."""
    if line.isascii() or encoding is Encoding.UTF32:
        return min(character, len(line))
    passed = 0
    for index, letter in enumerate(line):
        passed += encoded_length(letter, encoding)
        if passed > character:
            return index
    return len(line)


@define(eq=False)
class Lines:
    """A text with an index of its lines."""

    text: str = field(repr=False)
    _starts: list[int] = field(init=False, repr=False)
    _ends: list[int] = field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        breaks = [match.span() for match in _BREAK.finditer(self.text)]
        self._starts = [0, *(end for _, end in breaks)]
        self._ends = [*(start for start, _ in breaks), len(self.text)]

    def __len__(self) -> int:
        return len(self._starts)

    def line(self, number: int) -> str:
        """Return a line without its ending; empty if it does not exist."""
        if not 0 <= number < len(self):
            return ""
        return self.text[self._starts[number] : self._ends[number]]

    def start(self, number: int) -> int:
        """Return the offset of a line's beginning; the end of the text for a line after the last."""
        return self._starts[number] if number < len(self) else len(self.text)

    def offset(self, position: TextPosition, encoding: Encoding) -> int:
        """Return the offset of a position."""
        if position.line >= len(self):
            return len(self.text)
        line = self.line(position.line)
        return self._starts[position.line] + decode_column(line, position.character, encoding)


def server_text(text: FileText) -> str:
    """Return the text of a file for a server: without byte order mark."""
    return text.content.removeprefix(BOM)


# ── URIs ────────────────────────────────────────────────────────────────────────────────────────


def uri_of(path: Path) -> str:
    """Return the URI of a file."""
    return path.as_uri()


def path_of(uri: Json) -> Path | None:
    """Return the path of a file URI; None if it is not a file on this machine."""
    try:
        parts = urlsplit(uri) if isinstance(uri, str) else None
    except ValueError:
        return None
    if parts is None or parts.scheme != "file" or parts.netloc not in {"", "localhost"}:
        return None
    path = unquote(parts.path)
    return Path(path) if path.startswith("/") and "\0" not in path else None


def normalize_uri(uri: str) -> str:
    """Return the canonical form of a file URI; other URIs are unchanged."""
    path = path_of(uri)
    return uri if path is None else uri_of(path)


# ── Edits ───────────────────────────────────────────────────────────────────────────────────────


@frozen
class TextEdit:
    """A replacement of the text in a range."""

    range: TextRange
    text: str = field(repr=False)

    @classmethod
    def read(cls, value: Json) -> "TextEdit":
        """Parse an edit; raises `LspFailure` if it is invalid."""
        text = value.get("newText") if isinstance(value, dict) else None
        if not isinstance(text, str):
            raise BadEdit("the server sent an edit without a text")
        return cls(TextRange.read(value.get("range")), text)


def apply_text_edits(text: FileText, edits: Iterable[TextEdit], encoding: Encoding) -> FileText:
    """Apply *edits*, whose ranges all refer to the original *text* and must not overlap.

    New text gets the line endings of the file.
    """
    lines = Lines(server_text(text))
    places = [
        (lines.offset(each.range.start, encoding), lines.offset(each.range.end, encoding), each)
        for each in edits
    ]
    places.sort(key=lambda place: place[:2])  # stable: of two insertions the first comes first
    return FileText(text.bom + _spliced(lines.text, places, text.newline))


def _spliced(body: str, places: Sequence[tuple[int, int, TextEdit]], newline: str) -> str:
    pieces, kept = [], 0
    for start, end, edit in places:
        if start < kept:
            raise BadEdit("the server sent edits that overlap")
        pieces += [body[kept:start], edit.text.replace(CRLF, LF).replace(LF, newline)]
        kept = end
    return "".join([*pieces, body[kept:]])
