"""The tool `multiedit`: several changes to one file, in order, written at once."""

from collections.abc import Sequence
from typing import Annotated

import orjson
import trio
from attrs import define, field, frozen

from crush_trio.tools.arguments import About, read_arguments
from crush_trio.tools.base import Metadata, ToolCall, ToolError, ToolResult
from crush_trio.tools.built_in import BuiltIn
from crush_trio.tools.changing import FileChanges, Target
from crush_trio.tools.edit import created, edit_metadata, replaced
from crush_trio.tools.places import named
from crush_trio.tools.text import Text
from crush_trio.wire.fields import Json


@frozen(kw_only=True)
class EditOperation:
    """One of the edits."""

    old_string: Annotated[
        str, About("The text to replace, as the edits before this one have left it.")
    ]
    new_string: Annotated[str, About("The text to put in its place. Empty to delete it.")]
    replace_all: Annotated[bool, About("Replace every occurrence. Default false.")] = False


@frozen(kw_only=True)
class MultiEditArguments:
    """What the model says."""

    file_path: Annotated[str, About("The file to change, absolute or relative to the workspace.")]
    edits: Annotated[
        tuple[EditOperation, ...],
        About("The edits, in the order in which they apply. An empty first old_string creates."),
    ]


@frozen(kw_only=True)
class Applied:
    """What became of a list of edits."""

    text: Text
    notes: tuple[str, ...] = ()
    failed: tuple[Metadata, ...] = field(default=(), repr=False)
    """The edits that do not apply, each with its number and the reason."""


@define(eq=False)
class MultiEditTool(BuiltIn):
    """Applies several edits to a file, or creates it with the first one."""

    name = "multiedit"
    arguments = MultiEditArguments

    changes: FileChanges

    async def run(self, call: ToolCall, /) -> ToolResult:
        """Apply what applies, if a person agrees; write nothing if no edit does."""
        arguments = read_arguments(call.input, MultiEditArguments)
        _must_be_complete(call.input)
        target = await self.changes.find(arguments.file_path)
        if not creates(arguments.edits):
            await self.changes.must_be_fresh(call, target)
        applied = await trio.to_thread.run_sync(apply_edits, target, arguments.edits)
        count = len(arguments.edits) - len(applied.failed)
        if not count:
            raise ToolError(f"no edit applies, nothing was written.\n{_reasons(applied)}")
        proposal = await self.changes.propose(target, applied.text)
        metadata: Metadata = {**edit_metadata(proposal), "edits_applied": count}
        if applied.failed:
            metadata["edits_failed"] = list(applied.failed)
        name = named(self.changes.bench, target.path)
        description = f"Apply {count} of {len(arguments.edits)} edits to {name}"
        said = await self.changes.carry_out(call, proposal, description, metadata)
        done = f"Applied {count} of {len(arguments.edits)} edits to {target.path} ({proposal.summary})."
        parts = [done, _reasons(applied), *applied.notes, said]
        return ToolResult(content="\n\n".join(filter(None, parts)), metadata=metadata)


def creates(edits: Sequence[EditOperation]) -> bool:
    """Whether the edits begin with a new file."""
    return bool(edits) and not edits[0].old_string


def apply_edits(target: Target, edits: Sequence[EditOperation]) -> Applied:
    """Apply each edit to what the ones before it have left; take note of those that fail."""
    text, notes, failed = target.text, list[str](), list[Metadata]()
    rest = list(enumerate(edits, 1))
    if creates(edits):
        text = created(target, edits[0].new_string)
        del rest[0]
    for number, edit in rest:
        try:
            text, note = _applied(text, edit)
        except ToolError as exc:
            failed.append({"index": number, "error": str(exc), "edit": _as_sent(edit)})
        else:
            notes += [f"Edit {number}: {note}"] if note else []
    return Applied(text=text, notes=tuple(notes), failed=tuple(failed))


def _applied(text: Text, edit: EditOperation) -> tuple[Text, str]:
    if not edit.old_string:
        raise ToolError("old_string is empty: only the first edit can create the file")
    return replaced(text, edit.old_string, edit.new_string, edit.replace_all)


def _as_sent(edit: EditOperation) -> dict[str, Json]:
    sent: dict[str, Json] = {"old_string": edit.old_string, "new_string": edit.new_string}
    return {**sent, "replace_all": True} if edit.replace_all else sent


def _reasons(applied: Applied) -> str:
    return "\n".join(f"Edit {each['index']} failed: {each['error']}" for each in applied.failed)


def _must_be_complete(text: str) -> None:
    """Raise if an edit leaves out one of its texts: an absent text must not be taken for none."""
    edits: list[dict[str, Json] | None] = orjson.loads(text)["edits"]
    if not edits:
        raise ToolError("edits is empty: there is nothing to do")
    for index, edit in enumerate(edits):
        for key in ("old_string", "new_string"):
            if (edit or {}).get(key) is None:
                raise ToolError(f"edits[{index}].{key} is required")
