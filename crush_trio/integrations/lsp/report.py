"""Diagnostics as a model reads them: the worst first, a few of them, and how many there are (H7)."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from attrs import frozen
from typing_extensions import override

from crush_trio.integrations.lsp.text import path_of
from crush_trio.wire.fields import JsonObject
from crush_trio.wire.views import Diagnostics

SHOWN: Final = 10
"""Diagnostics of a block."""

COLUMNS: Final = 300
"""Letters that are shown of what one of them says."""

SEVERITIES: Final[Mapping[int, str]] = {1: "error", 2: "warning", 3: "info", 4: "hint"}
_ERROR: Final = 1


@frozen(order=True)
class Line:
    """One diagnostic; in this order they are shown."""

    severity: int
    file: str
    line: int
    column: int
    message: str

    @override
    def __str__(self) -> str:
        return f"{SEVERITIES[self.severity]}: {self.file}:{self.line}:{self.column}: {self.message}"


def lines_of(said: Diagnostics, root: Path) -> Iterator[tuple[str, Line]]:
    """Return every diagnostic with the address of its file; files are named as seen from *root*."""
    for uri, diagnostics in said.items():
        name = _named(uri, root)
        for each in diagnostics:
            yield uri, _line(name, each)


def _line(name: str, diagnostic: JsonObject) -> Line:
    severity = diagnostic.get("severity", _ERROR)
    start = diagnostic.get("range", {}).get("start", {})
    about = [str(diagnostic[key]) for key in ("source", "code") if diagnostic.get(key)]
    said = " ".join(str(diagnostic.get("message", "")).split())
    return Line(
        severity if severity in SEVERITIES else _ERROR,
        name,
        start.get("line", 0) + 1,
        start.get("character", 0) + 1,
        _cut(said) + (f" ({' '.join(about)[:80]})" if about else ""),
    )


def _cut(text: str) -> str:
    return text if len(text) <= COLUMNS else f"{text[:COLUMNS]}..."


def _named(uri: str, root: Path) -> str:
    path = path_of(uri)
    if path is None:
        return uri
    return str(path.relative_to(root) if path.is_relative_to(root) else path)


def report(said: Iterable[Diagnostics], uri: str | None, root: Path) -> str:
    """Return what servers *said*: of the file at *uri*, of all others, and how much that is.

    Empty if they have nothing to say.
    """
    found = [each for one in said for each in lines_of(one, root)]
    here = sorted({line for address, line in found if address == uri})
    elsewhere = sorted({line for address, line in found if address != uri})
    blocks = [
        _block("Diagnostics of this file", here),
        _block(
            "Diagnostics of the project" if uri is None else "Diagnostics of other files", elsewhere
        ),
        _summary([*here, *elsewhere]),
    ]
    return "\n\n".join(filter(None, blocks))


def _block(title: str, lines: Sequence[Line]) -> str:
    if not lines:
        return ""
    more = len(lines) - SHOWN
    shown = [f"{title}:", *map(str, lines[:SHOWN]), *([f"({more} more)"] if more > 0 else [])]
    return "\n".join(shown)


def _summary(lines: Sequence[Line]) -> str:
    counts = Counter(line.severity for line in lines)
    parts = [_counted(counts[severity], name) for severity, name in SEVERITIES.items()]
    return f"In all: {', '.join(filter(None, parts))}." if lines else ""


def _counted(count: int, name: str) -> str:
    if not count:
        return ""
    return f"{count} {name}{'' if count == 1 or name == 'info' else 's'}"
