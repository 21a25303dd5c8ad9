"""The tools that change files: `edit`, `multiedit` and `write`.

`edit` replaces one text by another, `multiedit` applies several such edits in order and writes once,
`write` creates a file or replaces all of its content.
"""

from collections.abc import Sequence
from typing import Annotated

import orjson
import trio
from attrs import define, field, frozen

from crush_trio.tools.base import (
    About,
    BuiltIn,
    Metadata,
    ToolCall,
    ToolError,
    ToolResult,
    read_arguments,
)
from crush_trio.tools.files.changes import FileChanges, Proposal, TargetFile
from crush_trio.tools.files.disk import display_path
from crush_trio.tools.files.matching import find_edit
from crush_trio.tools.files.text import FileText, plain_text
from crush_trio.wire.fields import Json


@frozen(kw_only=True)
class EditArguments:
    """The arguments of `edit`."""

    file_path: Annotated[str, About("The file to change, absolute or relative to the workspace.")]
    old_string: Annotated[str, About("The text to replace. Empty to create the file.")]
    new_string: Annotated[str, About("The text to put in its place. Empty to delete it.")]
    replace_all: Annotated[bool, About("Replace every occurrence. Default false.")] = False


@define(eq=False)
class EditTool(BuiltIn):
    """The tool `edit`: replaces or deletes text in a file, or creates the file."""

    name = "edit"
    arguments = EditArguments

    changes: FileChanges

    async def run(self, call: ToolCall, /) -> ToolResult:
        """Find where the edit applies, ask for permission, and write the file."""
        arguments = read_arguments(call.input, EditArguments)
        target = await self.changes.find(arguments.file_path)
        if arguments.old_string:
            after, note = await self._replaced(call, target, arguments)
        else:
            after, note = new_file_text(target, arguments.new_string), ""
        proposal = await self.changes.propose(target, after)
        name = display_path(self.changes.bench, target.path)
        verb = "Edit" if target.exists else "Create"
        metadata = edit_metadata(proposal)
        said = await self.changes.carry_out(call, proposal, f"{verb} {name}", metadata)
        done = f"{'Edited' if target.exists else 'Created'} {target.path} ({proposal.summary})."
        return ToolResult(content="\n\n".join(filter(None, [done, note, said])), metadata=metadata)

    async def _replaced(
        self, call: ToolCall, target: TargetFile, arguments: EditArguments
    ) -> tuple[FileText, str]:
        await self.changes.must_be_fresh(call, target)
        return await trio.to_thread.run_sync(
            replace_text,
            target.text,
            arguments.old_string,
            arguments.new_string,
            arguments.replace_all,
        )


def new_file_text(target: TargetFile, content: str) -> FileText:
    """Return the text of a new file; raise `ToolError` if the file exists."""
    if target.exists:
        raise ToolError(
            f"{target.path} exists already. To change it, say in old_string what to replace; to "
            "replace all of it, use write."
        )
    return FileText(content)


def replace_text(text: FileText, old: str, new: str, replace_all: bool) -> tuple[FileText, str]:
    """Return *text* after one edit, and a note for the model or nothing."""
    match = find_edit(text.plain, plain_text(old), plain_text(new), replace_all=replace_all)
    return text.spliced(match.splices), match.note


def edit_metadata(proposal: Proposal) -> Metadata:
    """Return the metadata of an edit for clients, whether it was made or denied."""
    return {**proposal.counts, **proposal.contents}


@frozen(kw_only=True)
class EditOperation:
    """One edit of a `multiedit` call."""

    old_string: Annotated[
        str, About("The text to replace, as the edits before this one have left it.")
    ]
    new_string: Annotated[str, About("The text to put in its place. Empty to delete it.")]
    replace_all: Annotated[bool, About("Replace every occurrence. Default false.")] = False


@frozen(kw_only=True)
class MultiEditArguments:
    """The arguments of `multiedit`."""

    file_path: Annotated[str, About("The file to change, absolute or relative to the workspace.")]
    edits: Annotated[
        tuple[EditOperation, ...],
        About("The edits, in the order in which they apply. An empty first old_string creates."),
    ]


@frozen(kw_only=True)
class AppliedEdits:
    """The result of applying a list of edits."""

    text: FileText
    notes: tuple[str, ...] = ()
    failed: tuple[Metadata, ...] = field(default=(), repr=False)
    """The edits that failed, each with its number and the reason."""


@define(eq=False)
class MultiEditTool(BuiltIn):
    """The tool `multiedit`: applies several edits to a file; the first one may create it."""

    name = "multiedit"
    arguments = MultiEditArguments

    changes: FileChanges

    async def run(self, call: ToolCall, /) -> ToolResult:
        """Apply the edits that match, ask for permission, and write; nothing if none matches."""
        arguments = read_arguments(call.input, MultiEditArguments)
        _must_be_complete(call.input)
        target = await self.changes.find(arguments.file_path)
        if not creates_file(arguments.edits):
            await self.changes.must_be_fresh(call, target)
        applied = await trio.to_thread.run_sync(apply_edits, target, arguments.edits)
        count = len(arguments.edits) - len(applied.failed)
        if not count:
            raise ToolError(f"no edit applies, nothing was written.\n{_reasons(applied)}")
        proposal = await self.changes.propose(target, applied.text)
        metadata: Metadata = {**edit_metadata(proposal), "edits_applied": count}
        if applied.failed:
            metadata["edits_failed"] = list(applied.failed)
        name = display_path(self.changes.bench, target.path)
        description = f"Apply {count} of {len(arguments.edits)} edits to {name}"
        said = await self.changes.carry_out(call, proposal, description, metadata)
        done = f"Applied {count} of {len(arguments.edits)} edits to {target.path} ({proposal.summary})."
        parts = [done, _reasons(applied), *applied.notes, said]
        return ToolResult(content="\n\n".join(filter(None, parts)), metadata=metadata)


def creates_file(edits: Sequence[EditOperation]) -> bool:
    """Whether the first edit creates the file."""
    return bool(edits) and not edits[0].old_string


def apply_edits(target: TargetFile, edits: Sequence[EditOperation]) -> AppliedEdits:
    """Apply each edit to the result of the ones before it, and collect those that fail."""
    text, notes, failed = target.text, list[str](), list[Metadata]()
    rest = list(enumerate(edits, 1))
    if creates_file(edits):
        text = new_file_text(target, edits[0].new_string)
        del rest[0]
    for number, edit in rest:
        try:
            text, note = _applied(text, edit)
        except ToolError as exc:
            failed.append({"index": number, "error": str(exc), "edit": _as_sent(edit)})
        else:
            notes += [f"Edit {number}: {note}"] if note else []
    return AppliedEdits(text=text, notes=tuple(notes), failed=tuple(failed))


def _applied(text: FileText, edit: EditOperation) -> tuple[FileText, str]:
    if not edit.old_string:
        raise ToolError("old_string is empty: only the first edit can create the file")
    return replace_text(text, edit.old_string, edit.new_string, edit.replace_all)


def _as_sent(edit: EditOperation) -> dict[str, Json]:
    sent: dict[str, Json] = {"old_string": edit.old_string, "new_string": edit.new_string}
    return {**sent, "replace_all": True} if edit.replace_all else sent


def _reasons(applied: AppliedEdits) -> str:
    return "\n".join(f"Edit {each['index']} failed: {each['error']}" for each in applied.failed)


def _must_be_complete(text: str) -> None:
    """Raise if an edit lacks one of its texts: a missing text must not be taken for an empty one."""
    edits: list[dict[str, Json] | None] = orjson.loads(text)["edits"]
    if not edits:
        raise ToolError("edits is empty: there is nothing to do")
    for index, edit in enumerate(edits):
        for key in ("old_string", "new_string"):
            if (edit or {}).get(key) is None:
                raise ToolError(f"edits[{index}].{key} is required")


@frozen(kw_only=True)
class WriteArguments:
    """The arguments of `write`."""

    file_path: Annotated[str, About("The file to write, absolute or relative to the workspace.")]
    content: Annotated[str, About("Everything that the file shall hold.")]


@define(eq=False)
class WriteTool(BuiltIn):
    """The tool `write`: creates a file, or replaces all of one that the session has read."""

    name = "write"
    arguments = WriteArguments

    changes: FileChanges

    async def run(self, call: ToolCall, /) -> ToolResult:
        """Ask for permission and write the file."""
        arguments = read_arguments(call.input, WriteArguments)
        target = await self.changes.find(arguments.file_path)
        if target.exists:
            await self.changes.must_be_fresh(call, target)
            if arguments.content == target.text.plain:
                raise ToolError(f"{target.path} already holds exactly that: nothing would change")
        proposal = await self.changes.propose(target, _written(target, arguments.content))
        name = display_path(self.changes.bench, target.path)
        metadata: Metadata = {"diff": proposal.difference.unified(name), **proposal.counts}
        verb = "Replace all of" if target.exists else "Create"
        said = await self.changes.carry_out(call, proposal, f"{verb} {name}", metadata)
        done = f"Wrote {target.path} ({proposal.summary})."
        return ToolResult(content="\n\n".join(filter(None, [done, said])), metadata=metadata)


def _written(target: TargetFile, content: str) -> FileText:
    """Return the text to write; an existing file keeps its byte order mark and line endings."""
    return target.text.rewritten(content) if target.exists else FileText(content)
