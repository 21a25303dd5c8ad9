"""Diagnostics of a file after a tool has viewed or changed it, and their text for the model (H7).

The file is sent to all servers for it concurrently, and each gets a short time to publish diagnostics,
because a model waits for them. A server that is still starting or does not answer is skipped this time.
The text shows the most severe diagnostics first, a limited number of them, and the totals.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import trio
from attrs import frozen
from typing_extensions import override

from crush_trio.integrations.lsp.connection import LspFailure
from crush_trio.integrations.lsp.positions import path_of, server_text, uri_of
from crush_trio.integrations.lsp.server import LanguageServer
from crush_trio.integrations.lsp.session import LspSession
from crush_trio.tools.base import ToolError
from crush_trio.tools.files.changes import EDIT_LIMIT
from crush_trio.tools.files.disk import read_file
from crush_trio.tools.files.text import FileText
from crush_trio.wire.fields import JsonObject
from crush_trio.wire.views import Diagnostics

CHANGED_LIMIT: Final = 5.0
"""Seconds to wait for diagnostics after a change (H7)."""

VIEWED_LIMIT: Final = 0.3
"""Seconds to wait for diagnostics after a view (H7)."""


async def after_view(servers: Sequence[LanguageServer], path: Path, root: Path) -> str:
    """Send a viewed file to *servers*, and return their diagnostics after a short wait."""
    return await _after(servers, path, root, VIEWED_LIMIT, changed=False)


async def after_change(servers: Sequence[LanguageServer], path: Path, root: Path) -> str:
    """Send a changed file to *servers*, and return their diagnostics."""
    return await _after(servers, path, root, CHANGED_LIMIT, changed=True)


async def _after(
    servers: Sequence[LanguageServer], path: Path, root: Path, limit: float, *, changed: bool
) -> str:
    text = await document_text(path)
    if text is None:
        return ""
    async with trio.open_nursery() as nursery:
        nursery.cancel_scope.deadline = trio.current_time() + limit
        for server in servers:
            nursery.start_soon(_attend, server, path, text, changed)
    return format_diagnostics(current_diagnostics(servers), uri_of(path), root)


async def _attend(server: LanguageServer, path: Path, text: str, changed: bool) -> None:
    """Send a file to one server, and wait until its diagnostics have settled."""
    try:
        session = await server.get_ready()
    except LspFailure:
        return  # noqa: ASYNC910  # getting ready is a checkpoint, also if it fails
    documents = session.documents
    heard = documents.updates
    news = documents.show(path, text)
    if changed:
        documents.save(path)
    if news or changed:
        await documents.settled(heard)


def current_diagnostics(servers: Iterable[LanguageServer]) -> list[Diagnostics]:
    """Return the diagnostics of those servers that are ready."""
    talking = (server.session for server in servers)
    return [each.documents.diagnostics() for each in talking if each is not None]


async def refresh_documents(session: LspSession, known: Iterable[str] = ()) -> None:
    """Send a server the current content of its open documents, and of the *known* ones."""
    documents = session.documents
    await trio.lowlevel.checkpoint()
    for path in filter(None, map(path_of, (*documents.opened, *known))):
        text = await document_text(path)
        if text is None:
            documents.forget(path)
        elif documents.show(path, text):
            documents.save(path)


async def document_text(path: Path) -> str | None:
    """Return the text of a file for a server; None if it is missing, too large, or not text."""
    return await trio.to_thread.run_sync(_text, path)


def _text(path: Path) -> str | None:
    with suppress(ToolError, UnicodeDecodeError):
        snapshot = read_file(path, EDIT_LIMIT)
        return None if snapshot is None else server_text(FileText.decoded(snapshot.data))
    return None


MAX_SHOWN: Final = 10
"""Maximum diagnostics shown of this file, and of all others."""

COLUMNS: Final = 300
"""Maximum characters shown of one message."""

SEVERITIES: Final[Mapping[int, str]] = {1: "error", 2: "warning", 3: "info", 4: "hint"}
_ERROR: Final = 1


@frozen(order=True)
class DiagnosticLine:
    """One diagnostic; the fields are in sort order."""

    severity: int
    file: str
    line: int
    column: int
    message: str

    @override
    def __str__(self) -> str:
        return f"{SEVERITIES[self.severity]}: {self.file}:{self.line}:{self.column}: {self.message}"


def diagnostic_lines(said: Diagnostics, root: Path) -> Iterator[tuple[str, DiagnosticLine]]:
    """Yield every diagnostic with the URI of its file; file names are relative to *root*."""
    for uri, diagnostics in said.items():
        name = _named(uri, root)
        for each in diagnostics:
            yield uri, _line(name, each)


def _line(name: str, diagnostic: JsonObject) -> DiagnosticLine:
    severity = diagnostic.get("severity", _ERROR)
    start = diagnostic.get("range", {}).get("start", {})
    about = [str(diagnostic[key]) for key in ("source", "code") if diagnostic.get(key)]
    said = " ".join(str(diagnostic.get("message", "")).split())
    return DiagnosticLine(
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


def format_diagnostics(said: Iterable[Diagnostics], uri: str | None, root: Path) -> str:
    """Format the diagnostics in *said*: those of the file at *uri*, those of others, the totals.

    Empty if there are none.
    """
    found = [each for one in said for each in diagnostic_lines(one, root)]
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


def _block(title: str, lines: Sequence[DiagnosticLine]) -> str:
    if not lines:
        return ""
    more = len(lines) - MAX_SHOWN
    shown = [f"{title}:", *map(str, lines[:MAX_SHOWN]), *([f"({more} more)"] if more > 0 else [])]
    return "\n".join(shown)


def _summary(lines: Sequence[DiagnosticLine]) -> str:
    counts = Counter(line.severity for line in lines)
    parts = [_counted(counts[severity], name) for severity, name in SEVERITIES.items()]
    return f"In all: {', '.join(filter(None, parts))}." if lines else ""


def _counted(count: int, name: str) -> str:
    if not count:
        return ""
    return f"{count} {name}{'' if count == 1 or name == 'info' else 's'}"
