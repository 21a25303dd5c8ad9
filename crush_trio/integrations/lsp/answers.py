"""Parses the answers of language servers into values; most have several forms in the protocol.

No I/O. A server may send anything: an answer in none of the known forms raises `LspFailure` or is
ignored; no other exception is raised.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from attrs import field, frozen

from crush_trio.integrations.lsp.connection import LspFailure
from crush_trio.integrations.lsp.positions import BadEdit, TextEdit, TextRange, normalize_uri
from crush_trio.wire.fields import Json, JsonObject

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
