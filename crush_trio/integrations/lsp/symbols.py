"""`SymbolQueries`: asks language servers about a file, or about a symbol that the model knows by its name.

A file is shown to a server before any request about it. A model knows a symbol by its name, a server by
its position. So the name is searched as a whole word in the files that some server handles, beginning
with places that look like a definition, and the servers are asked about each in turn: an empty answer or
an error leads to the next place; a server that is gone or too slow ends the attempt. All errors go to the
model as the result of its call and never fail the run.

The search runs in a worker thread, which notices a cancel. It begins at the directory of the workspace or
at the path that the model names, never at the directory of the process (L21).
"""

import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import trio
from attrs import define, field, frozen

from crush_trio.integrations.lsp.connection import LspFailure, RequestRefused
from crush_trio.integrations.lsp.diagnostics import until_loaded
from crush_trio.integrations.lsp.documents import document_text, read_document
from crush_trio.integrations.lsp.protocol import (
    Lines,
    Location,
    Symbol,
    encoded_length,
    path_of,
    position_params,
    read_symbols,
    uri_of,
)
from crush_trio.integrations.lsp.session import LspSession
from crush_trio.tools.base import ToolCall, ToolError
from crush_trio.tools.files.disk import display_path, locate
from crush_trio.tools.search.ripgrep import SearchScope, find_scope
from crush_trio.tools.search.walk import DirectoryWalk
from crush_trio.tools.workbench import Workbench
from crush_trio.wire.fields import Json

if TYPE_CHECKING:
    from crush_trio.integrations.lsp.servers import WorkspaceLanguageServers


T = TypeVar("T")

MAX_TRIES: Final = 10
"""Maximum occurrences about which servers are asked."""

MAX_LISTED: Final = 100
"""Maximum locations in a tool result."""

COLUMNS: Final = 200
"""Maximum characters of the line shown with a location."""


@frozen(kw_only=True)
class Occurrence:
    """An occurrence of a name: `line` counts from 0, `column` is an index into its text."""

    path: Path
    line: int
    column: int
    text: str = field(repr=False)

    @property
    def defines(self) -> bool:
        """Whether it looks like a definition."""
        return _DEFINING.search(self.text[: self.column]) is not None


AskServer = Callable[[LspSession, dict[str, Json]], Awaitable[T]]
"""Sends a request about a position, given its params."""


@frozen
class SymbolAnswer(Generic[T]):
    """An answer about a symbol, the server that gave it, and the occurrence asked about."""

    session: LspSession
    spot: Occurrence
    answer: T


@define(eq=False)
class SymbolQueries:
    """Queries of the tools to the servers of a workspace."""

    servers: "WorkspaceLanguageServers" = field(repr=False)
    bench: Workbench = field(repr=False)

    # ── About a file ────────────────────────────────────────────────────────────────────────────

    async def file(self, file_path: str) -> Path:
        """Return the file that a model named; raises `ToolError` if no server handles it."""
        path = await locate(self.bench, file_path)
        if not await self.servers.servers_for(path):
            raise ToolError(f"no language server handles {display_path(self.bench, path)}")
        return path

    async def shown(self, path: Path, capability: str) -> list[LspSession]:
        """Show a file to its servers; return those that have a capability."""
        text = await document_text(path)
        if text is None:
            raise ToolError(f"{path} does not exist, is too large, or is not text")
        found, failures = list[LspSession](), list[LspFailure]()
        for server in await self.servers.servers_for(path):
            try:
                session = await server.get_ready()
            except LspFailure as failure:
                failures.append(failure)
            else:
                session.documents.show(path, text)
                await until_loaded(session)
                found += [session] if session.can(capability) else []
        if not found:
            raise ToolError(_joined(failures) or f"no language server can do that for {path.name}")
        return found

    # ── About a symbol ──────────────────────────────────────────────────────────────────────────

    async def symbol(
        self, call: ToolCall, name: str, path: str, capability: str, ask: AskServer[T]
    ) -> SymbolAnswer[T]:
        """Ask about the occurrences of *name*; return the first answer that is not empty."""
        if not name.strip():
            raise ToolError("symbol is required")
        params = {"symbol": name, "path": path}
        place = await find_scope(self.bench, call, path, action="read", params=params)
        wanted = self.servers.may_handle
        spots = await trio.to_thread.run_sync(find_occurrences, place, name.strip(), wanted)
        if not spots:
            where = display_path(self.bench, place.root / (place.file or ""))
            raise ToolError(f"{name} does not occur in {where} in a file of a language server")
        refusals, asked = list[LspFailure](), dict[str, LspSession]()
        for spot in spots[:MAX_TRIES]:
            for session in await self.shown(spot.path, capability):
                asked[session.name] = session
                found = await self._try(session, spot, ask, refusals)
                if found is not None:
                    return found
        loading = [
            f"; {each.name} {each.documents.doubt()}, ask again later"
            for each in asked.values()
            if each.documents.busy
        ]
        why = _joined(refusals) or f"no language server knows a symbol {name}"
        raise ToolError("".join([why, *loading]))

    async def _try(
        self,
        session: LspSession,
        spot: Occurrence,
        ask: AskServer[T],
        refusals: list[LspFailure],
    ) -> SymbolAnswer[T] | None:
        """Ask about one occurrence; None if the answer is empty or refused."""
        character = encoded_length(spot.text[: spot.column], session.encoding)
        position = {"line": spot.line, "character": character}
        try:
            answer = await ask(session, position_params(uri_of(spot.path), position))
        except RequestRefused as refusal:
            refusals.append(refusal)
            return None  # noqa: ASYNC910  # asking is a checkpoint, also if it is refused
        except LspFailure as failure:
            raise ToolError(_joined([failure])) from failure
        return SymbolAnswer(session, spot, answer) if answer else None

    # ── Text for the model ──────────────────────────────────────────────────────────────────────

    async def listed(self, locations: Sequence[Location]) -> str:
        """Return locations with the text of their lines; without text if outside the workspace."""
        await trio.lowlevel.checkpoint()
        lines = list[str]()
        texts: dict[str, Lines | None] = {}
        for location in locations[:MAX_LISTED]:
            if location.uri not in texts:
                texts[location.uri] = await self._lines(location.uri)
            lines.append(self._listed(location, texts[location.uri]))
        if len(locations) > MAX_LISTED:
            lines.append(f"({len(locations) - MAX_LISTED} more)")
        return "\n".join(lines)

    def _listed(self, location: Location, text: Lines | None) -> str:
        path, start = path_of(location.uri), location.range.start
        name = location.uri if path is None else display_path(self.bench, path)
        shown = "" if text is None else text.line(start.line).strip()[:COLUMNS]
        return f"{name}:{start.line + 1}:{start.character + 1}" + (f": {shown}" if shown else "")

    async def _lines(self, uri: str) -> Lines | None:
        """Return the text of a document, if reading it needs no permission."""
        await trio.lowlevel.checkpoint()
        path = path_of(uri)
        if path is None or not self.bench.shared(await locate(self.bench, str(path))):
            return None
        text = await document_text(path)
        return None if text is None else Lines(text)


async def symbols_of(server: LspSession, uri: str) -> tuple[Symbol, ...]:
    """Return the symbols of a document."""
    params = {"textDocument": {"uri": uri}}
    try:
        return read_symbols(await server.request("textDocument/documentSymbol", params))
    except LspFailure as failure:
        raise ToolError(_joined([failure])) from failure


def _joined(failures: Iterable[LspFailure]) -> str:
    return "\n".join(dict.fromkeys(map(str, failures)))


MAX_FILE_BYTES: Final = 1024 * 1024
"""Maximum bytes of a searched file."""

MAX_FILES: Final = 5000
"""Maximum searched files."""

MAX_PER_FILE: Final = 20
MAX_OCCURRENCES: Final = 200
"""Maximum occurrences of one file, and in total."""

SECONDS: Final = 5.0

_DEFINING: Final = re.compile(
    r"\b(?:class|const|def|enum|fn|func|function|impl|interface|let|mod|module|namespace|static"
    r"|struct|trait|type|union|val|var)\s+(?:\([^()]*\)\s*)?$"
)
"""The text before a name where it is defined, in most languages."""


def find_occurrences(
    place: SearchScope, symbol: str, wanted: Callable[[Path], bool]
) -> list[Occurrence]:
    """Return the occurrences of *symbol*, definitions first, at its last part if it is `a.b`.

    If the full name does not occur, as is usual for a method, only its last part is searched.
    """
    files = list(_files(place, wanted))
    parts = [part for part in re.split(r"\.|::|#|->", symbol) if part]
    for text in dict.fromkeys([symbol, parts[-1] if parts else symbol]):
        last = len(parts[-1]) if parts else len(text)
        spots = list(_spots(files, _word(text), last))
        if spots:
            return sorted(spots, key=lambda spot: not spot.defines)
    return []


def _word(text: str) -> re.Pattern[str]:
    """Return an expression for *text* as a whole word; an end that is not a letter needs no boundary."""
    before = r"(?<!\w)" if text[:1].isalnum() or text[:1] == "_" else ""
    after = r"(?!\w)" if text[-1:].isalnum() or text[-1:] == "_" else ""
    return re.compile(before + re.escape(text) + after)


def _files(place: SearchScope, wanted: Callable[[Path], bool]) -> Iterator[Path]:
    if place.file is not None:
        yield place.root / place.file
        return
    entries = DirectoryWalk(place.ignoring, seconds=SECONDS).entries()
    paths = (place.root / entry.path for entry in entries if entry.is_file)
    for path, _ in zip(filter(wanted, paths), range(MAX_FILES), strict=False):
        yield path


def _spots(files: Iterable[Path], word: re.Pattern[str], last: int) -> Iterator[Occurrence]:
    left = MAX_OCCURRENCES
    for path in files:
        trio.from_thread.check_cancelled()
        for spot, _ in zip(_in_file(path, word, last), range(MAX_PER_FILE), strict=False):
            yield spot
            left -= 1
            if not left:
                return


def _in_file(path: Path, word: re.Pattern[str], last: int) -> Iterator[Occurrence]:
    for number, text in enumerate(_lines(path)):
        for match in word.finditer(text):
            yield Occurrence(path=path, line=number, column=match.end() - last, text=text)


def _lines(path: Path) -> list[str]:
    """Return the lines of a text file, as servers count them; none if it is not text."""
    text = read_document(path, MAX_FILE_BYTES)
    return [] if text is None else re.split("\r\n|\n|\r", text)
