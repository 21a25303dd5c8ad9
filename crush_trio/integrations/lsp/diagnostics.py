"""Diagnostics of a file after a tool has viewed or changed it, and their text for the model (H7).

The file is sent to all servers for it concurrently, and each gets a short time to report diagnostics,
because a model waits for them. The time is longer in a large project. After a change, a server that is
still starting or loading is named in the text, so that its silence is not taken for "no mistakes". The
text shows the most severe diagnostics first, a limited number of them, and the totals.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import trio
from typing_extensions import override

from crush_trio.integrations.lsp.connection import LspFailure
from crush_trio.integrations.lsp.documents import LOADING_LIMIT, document_text
from crush_trio.integrations.lsp.protocol import path_of, uri_of
from crush_trio.integrations.lsp.server import LanguageServer
from crush_trio.integrations.lsp.session import LspSession
from crush_trio.wire.answers import Diagnostics
from crush_trio.wire.fields import JsonObject
from crush_trio.wire.integrations import LspState

CHANGED_LIMIT: Final = 5.0
"""Seconds to wait for diagnostics after a change, in a small project (H7)."""

STARTING_LIMIT: Final = 1.0
"""Seconds that a change waits for a server that is starting (H7)."""

VIEWED_LIMIT: Final = 0.3
"""Seconds to wait for diagnostics after a view (H7)."""


async def after_view(servers: Sequence[LanguageServer], path: Path, root: Path) -> str:
    """Send a viewed file to *servers*, and return the diagnostics that come within a short wait."""
    await _send(servers, path, VIEWED_LIMIT, changed=False)
    return format_diagnostics(current_diagnostics(servers), uri_of(path), root)


async def after_change(
    servers: Sequence[LanguageServer], path: Path, root: Path, limit: float = CHANGED_LIMIT
) -> str:
    """Send a changed file to *servers*; return their diagnostics, and which may be missing and why."""
    if not await _send(servers, path, limit, changed=True):
        return ""
    said = format_diagnostics(current_diagnostics(servers), uri_of(path), root)
    return "\n\n".join(filter(None, [said, format_doubts(servers, uri_of(path))]))


async def _send(
    servers: Sequence[LanguageServer], path: Path, limit: float, *, changed: bool
) -> bool:
    """Send a file to *servers* and wait for each, up to *limit* in a small project; False if no text."""
    text = await document_text(path)
    if text is None:
        return False
    async with trio.open_nursery() as nursery:
        for server in servers:
            nursery.start_soon(_attend, server, path, text, limit, changed)
    return True


async def _attend(
    server: LanguageServer, path: Path, text: str, limit: float, changed: bool
) -> None:
    """Send a file to one server, and wait until its diagnostics have settled.

    A server that is starting gets the file later: nothing waits for it longer than STARTING_LIMIT.
    """
    with trio.move_on_after(min(limit, STARTING_LIMIT)):
        try:
            await server.get_ready()
        except LspFailure:
            return  # noqa: ASYNC910  # getting ready is a checkpoint, also if it fails
    session = server.session
    if session is None:
        server.show_when_ready(path)
        return  # noqa: ASYNC910  # waiting was a checkpoint
    with trio.move_on_after(limit * session.documents.pace if changed else limit):
        with suppress(LspFailure):
            await session.check(path, text, changed=changed)


async def until_loaded(session: LspSession) -> bool:
    """Wait until a server has ended the work that it reports; return whether it did so in time."""
    with trio.move_on_after(LOADING_LIMIT * session.documents.pace):
        await session.documents.idle()
    return not session.documents.busy


def current_diagnostics(servers: Iterable[LanguageServer]) -> list[Diagnostics]:
    """Return the diagnostics of those servers that are ready."""
    talking = (server.session for server in servers)
    return [each.documents.diagnostics() for each in talking if each is not None]


def format_doubts(servers: Iterable[LanguageServer], uri: str | None = None) -> str:
    """Return which servers may have more diagnostics, of a file or at all; empty if none."""
    found = [(server.name, _doubt(server, uri)) for server in servers]
    lines = [f"{name} {doubt}." for name, doubt in found if doubt]
    if not lines:
        return ""
    return "\n".join(["Not complete, ask lsp_diagnostics later:", *lines])


def _doubt(server: LanguageServer, uri: str | None) -> str:
    if server.session is not None:
        return server.session.documents.doubt(uri)
    if server.state is LspState.ERROR:
        return f"is not available ({server.error})"
    return "is still starting" if server.state is LspState.STARTING else ""


MAX_SHOWN: Final = 10
"""Maximum diagnostics shown of this file, and of all others."""

COLUMNS: Final = 300
"""Maximum characters shown of one message."""

SEVERITIES: Final[Mapping[int, str]] = {1: "error", 2: "warning", 3: "info", 4: "hint"}
_ERROR: Final = 1


class DiagnosticLine(NamedTuple):
    """One diagnostic; the fields are in sort order.

    A tuple, because thousands are made, hashed and sorted after each change, while other tasks wait.
    """

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
