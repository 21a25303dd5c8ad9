"""How a tool asks language servers: for a file, or for a symbol that a model knows by its name.

A file is shown to a server before it is asked about. A server that does not know what is at a place says
so with nothing or with an error, and then the next place is tried; one that is gone or too slow ends the
attempt. All that goes wrong is told to the model as the error of its call, and never ends a run.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import trio
from attrs import define, field, frozen

from crush_trio.integrations.lsp.answers import Location, Symbol, position_params, read_symbols
from crush_trio.integrations.lsp.connection import LspFailure, RequestRefused
from crush_trio.integrations.lsp.diagnosing import text_of
from crush_trio.integrations.lsp.life import Conversation
from crush_trio.integrations.lsp.text import Lines, path_of, units, uri_of
from crush_trio.integrations.lsp.words import Spot, find_spots
from crush_trio.tools.base import ToolCall, ToolError
from crush_trio.tools.places import locate, named
from crush_trio.tools.searches import find_place
from crush_trio.tools.workbench import Workbench
from crush_trio.wire.fields import Json

if TYPE_CHECKING:
    from crush_trio.integrations.lsp.servers import WorkspaceServers

T = TypeVar("T")

TRIES: Final = 10
"""Places of a name about which servers are asked."""

LISTED: Final = 100
"""Places that a model is shown."""

COLUMNS: Final = 200
"""Letters of a line that it is shown with them."""

Question = Callable[[Conversation, dict[str, Json]], Awaitable[T]]
"""Asks a server about a place, given the params that name it."""


@frozen
class Found(Generic[T]):
    """An answer, the server that gave it, and the place it is about."""

    conversation: Conversation
    spot: Spot
    answer: T


@define(eq=False)
class Asking:
    """Asks the servers of a workspace in the name of its tools."""

    servers: "WorkspaceServers" = field(repr=False)
    bench: Workbench = field(repr=False)

    # ── About a file ────────────────────────────────────────────────────────────────────────────

    async def file(self, file_path: str) -> Path:
        """Return the file that a model named; raises if no server could be for it."""
        path = await locate(self.bench, file_path)
        if not await self.servers.servers_for(path):
            raise ToolError(f"no language server is for {named(self.bench, path)}")
        return path

    async def shown(self, path: Path, capability: str) -> list[Conversation]:
        """Return the servers that offer something for a file, and know it as it is on the disk."""
        text = await text_of(path)
        if text is None:
            raise ToolError(f"{path} does not exist, or is no text of a usual size")
        found, failures = list[Conversation](), list[LspFailure]()
        for server in await self.servers.servers_for(path):
            try:
                conversation = await server.get_ready()
            except LspFailure as failure:
                failures.append(failure)
            else:
                conversation.documents.show(path, text)
                found += [conversation] if conversation.can(capability) else []
        if not found:
            raise ToolError(_told(failures) or f"no language server can do that for {path.name}")
        return found

    # ── About a symbol ──────────────────────────────────────────────────────────────────────────

    async def symbol(
        self, call: ToolCall, name: str, path: str, capability: str, ask: Question[T]
    ) -> Found[T]:
        """Return the first answer that says something, of the places where *name* stands."""
        if not name.strip():
            raise ToolError("symbol is required")
        params = {"symbol": name, "path": path}
        place = await find_place(self.bench, call, path, action="read", params=params)
        wanted = self.servers.may_handle
        spots = await trio.to_thread.run_sync(find_spots, place, name.strip(), wanted)
        if not spots:
            where = named(self.bench, place.root / (place.file or ""))
            raise ToolError(f"{name} stands nowhere in {where} where a language server could look")
        refusals = list[LspFailure]()
        for spot in spots[:TRIES]:
            for conversation in await self.shown(spot.path, capability):
                found = await self._try(conversation, spot, ask, refusals)
                if found is not None:
                    return found
        raise ToolError(_told(refusals) or f"no language server knows a symbol {name}")

    async def _try(
        self,
        conversation: Conversation,
        spot: Spot,
        ask: Question[T],
        refusals: list[LspFailure],
    ) -> Found[T] | None:
        """Ask about one place; None if the server has nothing to say about it."""
        character = units(spot.text[: spot.column], conversation.encoding)
        position = {"line": spot.line, "character": character}
        try:
            answer = await ask(conversation, position_params(uri_of(spot.path), position))
        except RequestRefused as refusal:
            refusals.append(refusal)
            return None  # noqa: ASYNC910  # asking is a checkpoint, also if it is refused
        except LspFailure as failure:
            raise ToolError(_told([failure])) from failure
        return Found(conversation, spot, answer) if answer else None

    # ── What a model sees ───────────────────────────────────────────────────────────────────────

    async def listed(self, locations: Sequence[Location]) -> str:
        """Return places with the lines they are in, by file; those outside have no lines."""
        await trio.lowlevel.checkpoint()
        lines = list[str]()
        texts: dict[str, Lines | None] = {}
        for location in locations[:LISTED]:
            if location.uri not in texts:
                texts[location.uri] = await self._lines(location.uri)
            lines.append(self._listed(location, texts[location.uri]))
        if len(locations) > LISTED:
            lines.append(f"({len(locations) - LISTED} more)")
        return "\n".join(lines)

    def _listed(self, location: Location, text: Lines | None) -> str:
        path, start = path_of(location.uri), location.range.start
        name = location.uri if path is None else named(self.bench, path)
        shown = "" if text is None else text.line(start.line).strip()[:COLUMNS]
        return f"{name}:{start.line + 1}:{start.character + 1}" + (f": {shown}" if shown else "")

    async def _lines(self, uri: str) -> Lines | None:
        """Return the text of a document, if it is a file that may be looked at without asking."""
        await trio.lowlevel.checkpoint()
        path = path_of(uri)
        if path is None or not self.bench.shared(await locate(self.bench, str(path))):
            return None
        text = await text_of(path)
        return None if text is None else Lines(text)


async def symbols_of(server: Conversation, uri: str) -> tuple[Symbol, ...]:
    """Return what a document defines."""
    params = {"textDocument": {"uri": uri}}
    try:
        return read_symbols(await server.request("textDocument/documentSymbol", params))
    except LspFailure as failure:
        raise ToolError(_told([failure])) from failure


def _told(failures: Iterable[LspFailure]) -> str:
    return "\n".join(dict.fromkeys(map(str, failures)))
