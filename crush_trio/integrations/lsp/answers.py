"""What servers answer, read into values; the protocol has several shapes for most of them.

Pure. A server is a program that may be wrong: whatever does not have one of those shapes is a `LspFailure`
or is left out, and never anything worse.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from attrs import field, frozen

from crush_trio.integrations.lsp.connection import LspFailure
from crush_trio.integrations.lsp.positions import BadEdit, TextEdit, TextRange, normalize_uri
from crush_trio.wire.fields import Json, JsonObject

MAX_DEPTH: Final = 20
"""Levels of symbols within symbols that are looked at."""

KINDS: Final = (
    *("symbol", "file", "module", "namespace", "package", "class", "method", "property", "field"),
    *("constructor", "enum", "interface", "function", "variable", "constant", "string", "number"),
    *("boolean", "array", "object", "key", "null", "enum member", "struct", "event", "operator"),
    "type parameter",
)
"""What symbols are, by the number that the protocol has for it."""


@frozen
class Location:
    """A piece of a document."""

    uri: str
    range: TextRange


@frozen(kw_only=True)
class Symbol:
    """Something that has a name. `range` is all of it, `name_range` its name."""

    name: str
    kind: str
    range: TextRange
    name_range: TextRange
    uri: str = ""
    """The document it is in, where the answer is about more than one."""
    children: "tuple[Symbol, ...]" = ()


@frozen(kw_only=True)
class FileEdits:
    """What is to be changed in one document; `version` is the one it was made for, if it is said."""

    uri: str
    version: int | None = None
    edits: tuple[TextEdit, ...] = field(repr=False)


# ── Places ──────────────────────────────────────────────────────────────────────────────────────


def read_locations(answer: Json) -> tuple[Location, ...]:
    """Return the places that a server named: one, several, or links to some; each only once."""
    given = answer if isinstance(answer, list) else [answer]
    return tuple(dict.fromkeys(_location(each) for each in given if isinstance(each, dict)))


def _location(value: JsonObject) -> Location:
    uri = value.get("uri", value.get("targetUri"))
    if not isinstance(uri, str):
        raise LspFailure("the server named a place without a document")
    span = value.get("range", value.get("targetSelectionRange", value.get("targetRange")))
    return Location(normalize_uri(uri), TextRange.read(span))


# ── Symbols ─────────────────────────────────────────────────────────────────────────────────────


def read_symbols(answer: Json) -> tuple[Symbol, ...]:
    """Return the symbols of a document, with those within them."""
    return tuple(_symbols(answer, MAX_DEPTH))


def _symbols(given: Json, levels: int) -> Iterator[Symbol]:
    for value in given if isinstance(given, list) and levels else ():
        if isinstance(value, dict):
            yield _symbol(value, tuple(_symbols(value.get("children"), levels - 1)))


def _symbol(value: JsonObject, children: tuple[Symbol, ...] = ()) -> Symbol:
    """Read the old form, which has a place, or the new one, which has ranges."""
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
    """Return all symbols, those within others too, each with its full name: `Class.method`."""
    for symbol in symbols:
        name = f"{within}.{symbol.name}" if within else symbol.name
        yield name, symbol
        yield from flatten_symbols(symbol.children, name)


def read_calls(answer: Json, side: str) -> tuple[Symbol, ...]:
    """Return who calls or is called; *side* is `from` or `to`."""
    given = answer if isinstance(answer, list) else []
    return tuple(
        _symbol(each[side])
        for each in given
        if isinstance(each, dict) and isinstance(each.get(side), dict)
    )


# ── Changes ─────────────────────────────────────────────────────────────────────────────────────


def read_workspace_edit(answer: Json) -> tuple[FileEdits, ...]:
    """Return the changes that a server proposes, by document; documents without any are left out.

    Raises `BadEdit` if it wants to create, rename or delete files: nobody said that it may.
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
        raise BadEdit("the server wants to create, move or delete files, which is not done for it")
    return _file_edits(document.get("uri"), document.get("version"), change.get("edits"))


def _file_edits(uri: Json, version: Json, edits: Json) -> FileEdits:
    if not isinstance(uri, str) or not isinstance(edits, list):
        raise BadEdit("the server sent a change that is none")
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
    """Return the params of a request about a place."""
    return {"textDocument": {"uri": uri}, "position": position}
