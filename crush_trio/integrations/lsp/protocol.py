"""Values of the protocol: positions, URIs, edits, locations and symbols, parsed from a server's answers.

A server counts lines from 0, and within a line it counts code units of the negotiated encoding, usually
UTF-16, where a character outside the basic plane counts two. All conversions are in this module. Servers
do not see a byte order mark.

No I/O. A position that does not exist is moved to the nearest one that does, as the protocol requires for
characters; an invalid edit raises `BadEdit`. Most answers have several forms in the protocol. A server may
send anything: an answer in none of the known forms raises `LspFailure` or is ignored; no other exception
is raised.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from attrs import define, evolve, field, frozen

from crush_trio.integrations.lsp.connection import LspFailure
from crush_trio.tools.files.text import BOM, CRLF, LF, FileText
from crush_trio.wire.fields import Json, JsonObject

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
    return evolve(text, content=text.bom + _spliced(lines.text, places, text.newline))


def _spliced(body: str, places: Sequence[tuple[int, int, TextEdit]], newline: str) -> str:
    pieces, kept = [], 0
    for start, end, edit in places:
        if start < kept:
            raise BadEdit("the server sent edits that overlap")
        pieces += [body[kept:start], edit.text.replace(CRLF, LF).replace(LF, newline)]
        kept = end
    return "".join([*pieces, body[kept:]])


# ── Answers ─────────────────────────────────────────────────────────────────────────────────────

MAX_DEPTH: Final = 20
"""Maximum nesting of symbols that is read."""

KINDS: Final = (
    *("symbol", "file", "module", "namespace", "package", "class", "method", "property", "field"),
    *("constructor", "enum", "interface", "function", "variable", "constant", "string", "number"),
    *("boolean", "array", "object", "key", "null", "enum member", "struct", "event", "operator"),
    "type parameter",
)
"""The kinds of symbols, by their number in the protocol."""


@frozen
class Location:
    """A range in a document."""

    uri: str
    range: TextRange


@frozen(kw_only=True)
class Symbol:
    """A named symbol. `range` is its whole definition, `name_range` its name."""

    name: str
    kind: str
    range: TextRange
    name_range: TextRange
    uri: str = ""
    """The document it is in, if the answer covers several."""
    children: "tuple[Symbol, ...]" = ()


@frozen(kw_only=True)
class FileEdits:
    """The edits of one document; `version` is the document version they were made for, if known."""

    uri: str
    version: int | None = None
    edits: tuple[TextEdit, ...] = field(repr=False)


# ── Locations ───────────────────────────────────────────────────────────────────────────────────


def read_locations(answer: Json) -> tuple[Location, ...]:
    """Return the locations in an answer: one, several, or links; without duplicates."""
    given = answer if isinstance(answer, list) else [answer]
    return tuple(dict.fromkeys(_location(each) for each in given if isinstance(each, dict)))


def _location(value: JsonObject) -> Location:
    uri = value.get("uri", value.get("targetUri"))
    if not isinstance(uri, str):
        raise LspFailure("the server sent a location without a document")
    span = value.get("range", value.get("targetSelectionRange", value.get("targetRange")))
    return Location(normalize_uri(uri), TextRange.read(span))


# ── Symbols ─────────────────────────────────────────────────────────────────────────────────────


def read_symbols(answer: Json) -> tuple[Symbol, ...]:
    """Return the symbols of a document, with nested ones in `children`."""
    return tuple(_symbols(answer, MAX_DEPTH))


def _symbols(given: Json, levels: int) -> Iterator[Symbol]:
    for value in given if isinstance(given, list) and levels else ():
        if isinstance(value, dict):
            yield _symbol(value, tuple(_symbols(value.get("children"), levels - 1)))


def _symbol(value: JsonObject, children: tuple[Symbol, ...] = ()) -> Symbol:
    """Parse a `SymbolInformation`, which has a location, or a `DocumentSymbol`, which has ranges."""
    place = value.get("location")
    span = TextRange.read(
        value.get("range") or (place if isinstance(place, dict) else {}).get("range")
    )
    chosen = value.get("selectionRange")
    uri = value.get("uri")
    return Symbol(
        name=str(value.get("name", "")),
        kind=_kind(value.get("kind")),
        range=span,
        name_range=span if chosen is None else TextRange.read(chosen),
        uri=normalize_uri(uri) if isinstance(uri, str) else "",
        children=children,
    )


def _kind(number: Json) -> str:
    known = isinstance(number, int) and 0 < number < len(KINDS)
    return KINDS[number] if known else KINDS[0]


def flatten_symbols(symbols: tuple[Symbol, ...], within: str = "") -> Iterator[tuple[str, Symbol]]:
    """Yield all symbols, nested ones included, each with its full name: `Class.method`."""
    for symbol in symbols:
        name = f"{within}.{symbol.name}" if within else symbol.name
        yield name, symbol
        yield from flatten_symbols(symbol.children, name)


def read_calls(answer: Json, side: str) -> tuple[Symbol, ...]:
    """Return the callers or the called symbols; *side* is `from` or `to`."""
    given = answer if isinstance(answer, list) else []
    return tuple(
        _symbol(each[side])
        for each in given
        if isinstance(each, dict) and isinstance(each.get(side), dict)
    )


# ── Edits ───────────────────────────────────────────────────────────────────────────────────────


def read_workspace_edit(answer: Json) -> tuple[FileEdits, ...]:
    """Return the edits of a workspace edit, by document; documents without edits are left out.

    Raises `BadEdit` if it creates, renames or deletes files, which is not supported.
    """
    if not isinstance(answer, dict):
        return ()
    changes = answer.get("documentChanges")
    if isinstance(changes, list):
        found = [_of_document(each) for each in changes]
    else:
        by_uri = answer.get("changes")
        pairs = by_uri.items() if isinstance(by_uri, dict) else ()
        found = [_file_edits(uri, None, edits) for uri, edits in pairs]
    return _merged(each for each in found if each.edits)


def _of_document(change: Json) -> FileEdits:
    document = change.get("textDocument") if isinstance(change, dict) else None
    if not isinstance(document, dict) or "kind" in change:
        raise BadEdit("the server wants to create, move or delete files, which is not supported")
    return _file_edits(document.get("uri"), document.get("version"), change.get("edits"))


def _file_edits(uri: Json, version: Json, edits: Json) -> FileEdits:
    if not isinstance(uri, str) or not isinstance(edits, list):
        raise BadEdit("the server sent an invalid change")
    return FileEdits(
        uri=normalize_uri(uri),
        version=version if isinstance(version, int) else None,
        edits=tuple(map(TextEdit.read, edits)),
    )


def _merged(found: Iterator[FileEdits]) -> tuple[FileEdits, ...]:
    """Return one entry per document."""
    by_uri: dict[str, FileEdits] = {}
    for each in found:
        before = by_uri.get(each.uri)
        edits = each.edits if before is None else (*before.edits, *each.edits)
        by_uri[each.uri] = FileEdits(uri=each.uri, version=each.version, edits=edits)
    return tuple(by_uri.values())


def position_params(uri: str, position: Mapping[str, int]) -> dict[str, Json]:
    """Return the params of a request about a position."""
    return {"textDocument": {"uri": uri}, "position": position}
