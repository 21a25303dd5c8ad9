"""The tools `lsp_rename` and `lsp_replace_symbol`, which change files with a language server's help.

The server only proposes edits. The change of every file is computed first, permission is asked, and then
`FileChanges` writes the files like any other change: a file that another program changed meanwhile is not
written, and the old content is recorded (H6). Servers do not write files themselves, and edits of files
outside the workspace are refused.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Final

import trio
from attrs import define, evolve, field, frozen

from crush_trio.integrations.lsp.connection import LspFailure
from crush_trio.integrations.lsp.documents import refresh_documents
from crush_trio.integrations.lsp.protocol import (
    FileEdits,
    Lines,
    Symbol,
    apply_text_edits,
    flatten_symbols,
    path_of,
    read_workspace_edit,
    server_text,
    uri_of,
)
from crush_trio.integrations.lsp.session import LONG_REQUEST_LIMIT, LspSession
from crush_trio.integrations.lsp.symbols import SymbolQueries, symbols_of
from crush_trio.tools.base import (
    About,
    BuiltIn,
    Metadata,
    ToolCall,
    ToolError,
    ToolResult,
    Wanted,
    read_arguments,
)
from crush_trio.tools.files.changes import FileChanges, Proposal
from crush_trio.tools.files.disk import display_path
from crush_trio.tools.files.text import CRLF, LF, FileText
from crush_trio.wire.fields import Json

MAX_FILES: Final = 200
"""Maximum files of one rename."""

MAX_NAMED: Final = 10
"""Maximum files named in the permission request."""

APPLY_LIMIT: Final = 20.0
"""Seconds to write all files of a rename. Shielded from cancel: half a rename is worse than none."""


# ── Renaming ────────────────────────────────────────────────────────────────────────────────────


@frozen(kw_only=True)
class RenameArguments:
    """The arguments of `lsp_rename`."""

    symbol: Annotated[str, About("The name as it stands in the code, such as `parse`.")]
    new_name: Annotated[str, About("The new name, without what stands before it.")]
    path: Annotated[
        str,
        About("The directory or file in which to look for the name; the workspace if left out."),
    ] = ""


@define(eq=False)
class RenameTool(BuiltIn):
    """The tool `lsp_rename`."""

    name = "lsp_rename"
    arguments = RenameArguments

    queries: SymbolQueries
    changes: FileChanges = field(repr=False)

    async def run(self, call: ToolCall) -> ToolResult:
        """Rename a symbol in all files; asks for permission."""
        arguments = read_arguments(call.input, RenameArguments)
        if not arguments.new_name.strip():
            raise ToolError("new_name is required")

        async def rename(server: LspSession, place: dict[str, Json]) -> tuple[FileEdits, ...]:
            await refresh_documents(server.documents)
            params = {**place, "newName": arguments.new_name.strip()}
            answer = await server.request("textDocument/rename", params, limit=LONG_REQUEST_LIMIT)
            return read_workspace_edit(answer)

        found = await self.queries.symbol(
            call, arguments.symbol, arguments.path, "renameProvider", rename
        )
        proposals = [await self._propose(each, found.session) for each in _few(found.answer)]
        size = _size(found.answer)
        await call.permit(
            Wanted(
                action="",
                description=self._description(arguments, size, proposals),
                params=None,
                path=self.changes.bench.directory,
            )
        )
        await self._apply(call, proposals)
        names = "\n".join(display_path(self.changes.bench, each.target.path) for each in proposals)
        done = f"Renamed {arguments.symbol} to {arguments.new_name}, {size}:"
        said = await self._diagnosed(proposals)
        return ToolResult(content="\n\n".join(filter(None, [f"{done}\n{names}", said])))

    def _description(
        self, arguments: RenameArguments, size: str, proposals: Sequence[Proposal]
    ) -> str:
        bench = self.changes.bench
        names = [display_path(bench, each.target.path) for each in proposals]
        more = [f"{len(names) - MAX_NAMED} more"] if len(names) > MAX_NAMED else []
        listed = ", ".join([*names[:MAX_NAMED], *more])
        return f"Rename {arguments.symbol} to {arguments.new_name}, {size}: {listed}"

    async def _propose(self, change: FileEdits, server: LspSession) -> Proposal:
        """Compute the change of one file; raise `ToolError` if the server may not change it."""
        path = path_of(change.uri)
        if path is None:
            raise ToolError(f"the server wants to change {change.uri}, which is not a file")
        known = server.documents.version(change.uri)
        if None not in {change.version, known} and change.version != known:
            raise ToolError(f"the server answered for another version of {path}; try again")
        target = await self.changes.find(str(path))
        if not self.changes.bench.shared(target.path) or not target.exists:
            raise ToolError(
                f"the server wants to change {path}, which is not a file of the project"
            )
        try:
            after = apply_text_edits(target.text, change.edits, server.encoding)
        except LspFailure as failure:
            raise ToolError(str(failure)) from failure
        return await self.changes.propose(target, after)

    async def _apply(self, call: ToolCall, proposals: Sequence[Proposal]) -> None:
        """Write every file. If one cannot be written, the error names those that were."""
        written: list[str] = []
        with trio.fail_after(APPLY_LIMIT, shield=True):
            for proposal in proposals:
                try:
                    await self.changes.write(call, proposal)
                except ToolError as error:
                    done = ", ".join(written) or "none"
                    raise ToolError(f"{error} Of the others these were written: {done}.") from error
                written.append(display_path(self.changes.bench, proposal.target.path))
        await trio.lowlevel.checkpoint_if_cancelled()

    async def _diagnosed(self, proposals: Sequence[Proposal]) -> str:
        """Show the servers all changed files, and return the diagnostics after the last one."""
        servers = self.queries.servers
        await trio.lowlevel.checkpoint()
        for proposal in proposals[:-1]:
            for server in await servers.servers_for(proposal.target.path):
                if server.session is not None:
                    documents = server.session.documents
                    documents.show(proposal.target.path, server_text(proposal.after))
                    documents.save(proposal.target.path)
        return await servers.changed(proposals[-1].target.path)


def _size(changes: Sequence[FileEdits]) -> str:
    """Return the numbers of edits and files. Some servers replace a whole file by one edit."""
    edits = sum(len(each.edits) for each in changes)
    return f"{edits} edit{'s' * (edits != 1)} in {len(changes)} file{'s' * (len(changes) != 1)}"


def _few(changes: Sequence[FileEdits]) -> Sequence[FileEdits]:
    if len(changes) > MAX_FILES:
        raise ToolError(f"that would change {len(changes)} files; {MAX_FILES} are the most")
    return changes


# ── Replacing ───────────────────────────────────────────────────────────────────────────────────


class SymbolAction(StrEnum):
    """The change to make to a symbol."""

    REPLACE = "replace"
    ADD_BEFORE = "add_before"
    ADD_AFTER = "add_after"
    DELETE = "delete"


@frozen(kw_only=True)
class ReplaceSymbolArguments:
    """The arguments of `lsp_replace_symbol`."""

    symbol: Annotated[str, About("The name as `lsp_symbols` shows it, such as `Parser.parse`.")]
    file_path: Annotated[str, About("The file, absolute or relative to the workspace.")]
    replacement: Annotated[str, About("Whole lines, with their indentation.")] = ""
    action: Annotated[
        SymbolAction, About("`replace`, `add_before`, `add_after` or `delete`. Default replace.")
    ] = SymbolAction.REPLACE


@define(eq=False)
class ReplaceSymbolTool(BuiltIn):
    """The tool `lsp_replace_symbol`."""

    name = "lsp_replace_symbol"
    arguments = ReplaceSymbolArguments

    queries: SymbolQueries
    changes: FileChanges = field(repr=False)

    async def run(self, call: ToolCall) -> ToolResult:
        """Replace or delete the lines of a symbol, or add lines beside it; asks for permission."""
        arguments = read_arguments(call.input, ReplaceSymbolArguments)
        if not arguments.replacement and arguments.action is not SymbolAction.DELETE:
            raise ToolError("replacement is required")
        path = await self.queries.file(arguments.file_path)
        target = await self.changes.find(str(path))
        server, *_ = await self.queries.shown(path, "documentSymbolProvider")
        symbol = await _symbol(server, uri_of(path), arguments.symbol)
        proposal = await self.changes.propose(
            target, replace_symbol_lines(target.text, symbol, arguments)
        )
        name, action = display_path(self.changes.bench, path), arguments.action.value
        metadata: Metadata = {"file_path": str(path), **proposal.contents, "action": action}
        said = await self.changes.carry_out(
            call, proposal, f"{action} {arguments.symbol} in {name}", metadata, action=""
        )
        done = f"Done: {action} {arguments.symbol} in {path} ({proposal.summary})."
        return ToolResult(content="\n\n".join(filter(None, [done, said])), metadata=metadata)


async def _symbol(server: LspSession, uri: str, wanted: str) -> Symbol:
    """Return the only symbol of a document with a full or short name; raise `ToolError` if unclear."""
    symbols = list(flatten_symbols(await symbols_of(server, uri)))
    exact = [each for name, each in symbols if name == wanted]
    chosen = exact or [each for name, each in symbols if wanted == each.name]
    if len(chosen) == 1:
        return chosen[0]
    if not chosen:
        raise ToolError(f"the language server finds no {wanted} in this file")
    lines = ", ".join(str(each.range.start.line + 1) for each in chosen)
    raise ToolError(f"{wanted} is the name of several symbols, on the lines {lines}; use edit")


def replace_symbol_lines(
    text: FileText, symbol: Symbol, arguments: ReplaceSymbolArguments
) -> FileText:
    """Return *text* with the lines of a symbol replaced or deleted, or lines added beside them."""
    lines = Lines(server_text(text))
    first, last = symbol.range.lines
    start, end = lines.start(first), lines.start(last + 1)
    new = arguments.replacement.replace(CRLF, LF).removesuffix(LF).replace(LF, text.newline)
    old = lines.text[start:end]
    pieces = {
        SymbolAction.REPLACE: [new, _ending(old)],
        SymbolAction.ADD_BEFORE: [new, text.newline, old],
        SymbolAction.ADD_AFTER: [old, "" if _ending(old) else text.newline, new, _ending(old)],
        SymbolAction.DELETE: [],
    }
    body = [text.bom, lines.text[:start], *pieces[arguments.action], lines.text[end:]]
    return evolve(text, content="".join(body))


def _ending(text: str) -> str:
    """Return the line ending of *text*; empty if its last line has none."""
    return next((each for each in (CRLF, LF, "\r") if text.endswith(each)), "")
