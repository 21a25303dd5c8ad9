"""The tools that read from language servers: diagnostics, references, definitions, calls, symbols, restart.

Those that change files are in `edit_tools.py`.
"""

from collections.abc import Sequence
from contextlib import suppress
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final

import trio
from attrs import define, field, frozen

from crush_trio.integrations.lsp.connection import LspFailure
from crush_trio.integrations.lsp.diagnostics import (
    after_change,
    current_diagnostics,
    format_diagnostics,
    format_doubts,
)
from crush_trio.integrations.lsp.documents import LOADING_LIMIT, refresh_documents
from crush_trio.integrations.lsp.edit_tools import RenameTool, ReplaceSymbolTool
from crush_trio.integrations.lsp.protocol import (
    Location,
    Symbol,
    flatten_symbols,
    read_calls,
    read_locations,
    uri_of,
)
from crush_trio.integrations.lsp.server import LanguageServer
from crush_trio.integrations.lsp.session import LONG_REQUEST_LIMIT, LspSession
from crush_trio.integrations.lsp.symbols import SymbolQueries, symbols_of
from crush_trio.tools.base import (
    About,
    BuiltIn,
    Tool,
    ToolCall,
    ToolError,
    ToolResult,
    read_arguments,
)
from crush_trio.tools.files.changes import FileChanges
from crush_trio.wire.fields import Json
from crush_trio.wire.integrations import LspState

if TYPE_CHECKING:
    from crush_trio.integrations.lsp.servers import WorkspaceLanguageServers

SYMBOLS: Final = 500
"""Maximum symbols in a tool result."""

CALLS: Final = 100
"""Maximum callers or called symbols in a tool result."""

_PATH: Final = "The directory or file in which to look for the name; the workspace if left out."


def code_tools(servers: "WorkspaceLanguageServers", changes: FileChanges) -> tuple[Tool, ...]:
    """Return the tools of a workspace that has language servers."""
    queries = SymbolQueries(servers, changes.bench)
    return (
        DiagnosticsTool(queries),
        ReferencesTool(queries),
        DefinitionTool(queries),
        CallHierarchyTool(queries),
        SymbolsTool(queries),
        RenameTool(queries, changes),
        ReplaceSymbolTool(queries, changes),
        RestartTool(servers),
    )


# ── Diagnostics ─────────────────────────────────────────────────────────────────────────────────


@frozen(kw_only=True)
class DiagnosticsArguments:
    """The arguments of `lsp_diagnostics`."""

    file_path: Annotated[
        str,
        About("The file, absolute or relative to the workspace; the whole project if left out."),
    ] = ""


@define(eq=False)
class DiagnosticsTool(BuiltIn):
    """The tool `lsp_diagnostics`."""

    name = "lsp_diagnostics"
    arguments = DiagnosticsArguments

    queries: SymbolQueries

    async def run(self, call: ToolCall) -> ToolResult:
        """Show the servers one file, or all open documents again, and return the diagnostics."""
        arguments = read_arguments(call.input, DiagnosticsArguments)
        root, servers = self.queries.bench.directory, self.queries.servers
        if arguments.file_path:
            path = await self.queries.file(arguments.file_path)
            asked = await servers.servers_for(path)
            await _all_ready(asked)
            said = await after_change(asked, path, root, LOADING_LIMIT)
        else:
            await _look_again(servers.usable())
            found = format_diagnostics(current_diagnostics(servers.usable()), None, root)
            said = "\n\n".join(filter(None, [found, format_doubts(servers.usable())]))
        return ToolResult(content=said or "The language servers have nothing to complain about.")


async def _all_ready(servers: Sequence[LanguageServer]) -> None:
    """Wait until all are ready or failed; raise `ToolError` if all failed."""
    failures = list[LspFailure]()
    for server in servers:
        try:
            await server.get_ready()
        except LspFailure as failure:
            failures.append(failure)
    await trio.lowlevel.checkpoint()
    if failures and len(failures) == len(servers):
        raise ToolError("\n".join(map(str, failures)))


async def _look_again(servers: Sequence[LanguageServer]) -> None:
    """Send all running servers the current content of their open documents."""
    running = [each.session for each in servers if each.session is not None]
    if not running:
        states = "\n".join(f"{each.name}: {_state(each)}" for each in servers)
        raise ToolError(
            f"no language server is running; one starts when a file of its kind is viewed\n{states}"
        )
    async with trio.open_nursery() as nursery:
        for session in running:
            nursery.start_soon(_refreshed, session)


async def _refreshed(session: LspSession) -> None:
    await refresh_documents(session.documents)
    with trio.move_on_after(LOADING_LIMIT * session.documents.pace):
        await session.documents.idle()
        with suppress(LspFailure):
            await session.pull_all()
        await session.documents.settled()


# ── References and definitions ──────────────────────────────────────────────────────────────────


@frozen(kw_only=True)
class SymbolArguments:
    """The arguments of `lsp_references` and `lsp_definition`."""

    symbol: Annotated[
        str, About("The name as it stands in the code, such as `parse` or `Parser.parse`.")
    ]
    path: Annotated[str, About(_PATH)] = ""


@define(eq=False)
class ReferencesTool(BuiltIn):
    """The tool `lsp_references`."""

    name = "lsp_references"
    arguments = SymbolArguments

    queries: SymbolQueries

    async def run(self, call: ToolCall) -> ToolResult:
        """Return the locations where a symbol is used."""
        arguments = read_arguments(call.input, SymbolArguments)
        found = await self.queries.symbol(
            call, arguments.symbol, arguments.path, "referencesProvider", _references
        )
        listed = await self.queries.listed(found.answer)
        count = len(found.answer)
        return ToolResult(
            content=f"{arguments.symbol} is used in {count} place{'s' * (count != 1)}:\n{listed}"
        )


async def _references(server: LspSession, place: dict[str, Json]) -> tuple[Location, ...]:
    params = {**place, "context": {"includeDeclaration": True}}
    found = read_locations(await server.request("textDocument/references", params))
    return tuple(sorted(found, key=lambda each: (each.uri, each.range.start)))


@define(eq=False)
class DefinitionTool(BuiltIn):
    """The tool `lsp_definition`."""

    name = "lsp_definition"
    arguments = SymbolArguments

    queries: SymbolQueries

    async def run(self, call: ToolCall) -> ToolResult:
        """Return the locations where a symbol is defined."""
        arguments = read_arguments(call.input, SymbolArguments)
        found = await self.queries.symbol(
            call, arguments.symbol, arguments.path, "definitionProvider", _definitions
        )
        listed = await self.queries.listed(found.answer)
        return ToolResult(content=f"{arguments.symbol} is defined here:\n{listed}")


async def _definitions(server: LspSession, place: dict[str, Json]) -> tuple[Location, ...]:
    return read_locations(await server.request("textDocument/definition", place))


# ── Call hierarchy ──────────────────────────────────────────────────────────────────────────────


class Direction(StrEnum):
    """The direction of a call hierarchy."""

    INCOMING = "incoming"
    OUTGOING = "outgoing"


@frozen(kw_only=True)
class CallHierarchyArguments:
    """The arguments of `lsp_call_hierarchy`."""

    symbol: Annotated[str, About("The name of a function or method as it stands in the code.")]
    path: Annotated[str, About(_PATH)] = ""
    direction: Annotated[
        Direction,
        About("`incoming` for who calls it, `outgoing` for what it calls. Default incoming."),
    ] = Direction.INCOMING


@define(eq=False)
class CallHierarchyTool(BuiltIn):
    """The tool `lsp_call_hierarchy`."""

    name = "lsp_call_hierarchy"
    arguments = CallHierarchyArguments

    queries: SymbolQueries

    async def run(self, call: ToolCall) -> ToolResult:
        """Return the callers of a function, or the functions it calls."""
        arguments = read_arguments(call.input, CallHierarchyArguments)
        found = await self.queries.symbol(
            call, arguments.symbol, arguments.path, "callHierarchyProvider", _prepared
        )
        incoming = arguments.direction is Direction.INCOMING
        try:
            calls = await _calls(found.session, found.answer, incoming)
        except LspFailure as failure:
            raise ToolError(str(failure)) from failure
        if not calls:
            what = "is called by nothing" if incoming else "calls nothing"
            return ToolResult(
                content=f"{arguments.symbol} {what} that the language server knows of."
            )
        what = "is called by" if incoming else "calls"
        lines = [await self._line(each) for each in calls[:CALLS]]
        more = [f"({len(calls) - CALLS} more)"] if len(calls) > CALLS else []
        return ToolResult(content="\n".join([f"{arguments.symbol} {what}:", *lines, *more]))

    async def _line(self, symbol: Symbol) -> str:
        where = await self.queries.listed([Location(symbol.uri, symbol.name_range)])
        return f"{symbol.kind} {symbol.name}  {where}"


async def _prepared(server: LspSession, place: dict[str, Json]) -> list[Json]:
    answer = await server.request(
        "textDocument/prepareCallHierarchy", place, limit=LONG_REQUEST_LIMIT
    )
    return [each for each in answer if isinstance(each, dict)] if isinstance(answer, list) else []


async def _calls(server: LspSession, items: list[Json], incoming: bool) -> list[Symbol]:
    """Return the callers of *items*, or the symbols they call; without duplicates."""
    method, side = ("incomingCalls", "from") if incoming else ("outgoingCalls", "to")
    found: dict[Symbol, None] = {}
    await trio.lowlevel.checkpoint()
    for item in items:
        answer = await server.request(
            f"callHierarchy/{method}", {"item": item}, limit=LONG_REQUEST_LIMIT
        )
        found |= dict.fromkeys(read_calls(answer, side))
    return list(found)


# ── Symbols of a file ───────────────────────────────────────────────────────────────────────────


@frozen(kw_only=True)
class SymbolsArguments:
    """The arguments of `lsp_symbols`."""

    file_path: Annotated[str, About("The file, absolute or relative to the workspace.")]


@define(eq=False)
class SymbolsTool(BuiltIn):
    """The tool `lsp_symbols`."""

    name = "lsp_symbols"
    arguments = SymbolsArguments

    queries: SymbolQueries

    async def run(self, call: ToolCall) -> ToolResult:
        """Return the symbols of a file."""
        arguments = read_arguments(call.input, SymbolsArguments)
        path = await self.queries.file(arguments.file_path)
        server, *_ = await self.queries.shown(path, "documentSymbolProvider")
        symbols = await symbols_of(server, uri_of(path))
        lines = [_symbol_line(name, each) for name, each in flatten_symbols(symbols)]
        more = [f"({len(lines) - SYMBOLS} more)"] if len(lines) > SYMBOLS else []
        shown = "\n".join([*lines[:SYMBOLS], *more])
        return ToolResult(content=shown or "The language server finds no symbols in this file.")


def _symbol_line(name: str, symbol: Symbol) -> str:
    first, last = symbol.range.lines
    lines = f"line {first + 1}" if first == last else f"lines {first + 1}-{last + 1}"
    indent = "  " * name.count(".", 0, len(name) - len(symbol.name))
    return f"{indent}{symbol.kind} {symbol.name} ({lines})"


# ── Restart ─────────────────────────────────────────────────────────────────────────────────────


@frozen(kw_only=True)
class RestartArguments:
    """The arguments of `lsp_restart`."""

    name: Annotated[str, About("The name of the language server; all of them if left out.")] = ""


@define(eq=False)
class RestartTool(BuiltIn):
    """The tool `lsp_restart`."""

    name = "lsp_restart"
    arguments = RestartArguments

    servers: "WorkspaceLanguageServers" = field(repr=False)

    async def run(self, call: ToolCall) -> ToolResult:
        """Restart one server, or all that were started."""
        wanted = read_arguments(call.input, RestartArguments).name
        there = await self.servers.startable()
        started = [each for each in there if each.state is not LspState.UNSTARTED]
        chosen = [each for each in there if each.name == wanted] if wanted else started
        if not chosen:
            names = ", ".join(each.name for each in there) or "none"
            what = f"there is no language server {wanted}" if wanted else "none has been started"
            raise ToolError(f"{what}; those that could be are: {names}")
        async with trio.open_nursery() as nursery:
            for server in chosen:
                nursery.start_soon(_restarted, server)
        lines = [f"{each.name}: {_state(each)}" for each in chosen]
        ready = any(each.session is not None for each in chosen)
        return ToolResult(content="\n".join(lines), is_error=not ready)


async def _restarted(server: LanguageServer) -> None:
    """Restart a server, and show it its open documents again."""
    before = server.session
    known = () if before is None else before.documents.opened
    await server.restart()
    if server.session is not None:
        await refresh_documents(server.session.documents, known)


def _state(server: LanguageServer) -> str:
    return server.error or server.state.name.lower()
