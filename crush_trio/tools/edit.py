"""The tool `edit`: one change to one file, given as the old text and the new."""

from typing import Annotated

import trio
from attrs import define, frozen

from crush_trio.tools.arguments import About, read_arguments
from crush_trio.tools.base import Metadata, ToolCall, ToolError, ToolResult
from crush_trio.tools.built_in import BuiltIn
from crush_trio.tools.changing import FileChanges, Proposal, Target
from crush_trio.tools.matching import find_edit
from crush_trio.tools.places import named
from crush_trio.tools.text import Text, plain_text


@frozen(kw_only=True)
class EditArguments:
    """What the model says."""

    file_path: Annotated[str, About("The file to change, absolute or relative to the workspace.")]
    old_string: Annotated[str, About("The text to replace. Empty to create the file.")]
    new_string: Annotated[str, About("The text to put in its place. Empty to delete it.")]
    replace_all: Annotated[bool, About("Replace every occurrence. Default false.")] = False


@define(eq=False)
class EditTool(BuiltIn):
    """Replaces text in a file, deletes it, or creates the file with it."""

    name = "edit"
    arguments = EditArguments

    changes: FileChanges

    async def run(self, call: ToolCall, /) -> ToolResult:
        """Change the file, if its text says where and a person agrees."""
        arguments = read_arguments(call.input, EditArguments)
        target = await self.changes.find(arguments.file_path)
        if arguments.old_string:
            after, note = await self._replaced(call, target, arguments)
        else:
            after, note = created(target, arguments.new_string), ""
        proposal = await self.changes.propose(target, after)
        name = named(self.changes.bench, target.path)
        verb = "Edit" if target.exists else "Create"
        metadata = edit_metadata(proposal)
        said = await self.changes.carry_out(call, proposal, f"{verb} {name}", metadata)
        done = f"{'Edited' if target.exists else 'Created'} {target.path} ({proposal.summary})."
        return ToolResult(content="\n\n".join(filter(None, [done, note, said])), metadata=metadata)

    async def _replaced(
        self, call: ToolCall, target: Target, arguments: EditArguments
    ) -> tuple[Text, str]:
        await self.changes.must_be_fresh(call, target)
        return await trio.to_thread.run_sync(
            replaced,
            target.text,
            arguments.old_string,
            arguments.new_string,
            arguments.replace_all,
        )


def created(target: Target, content: str) -> Text:
    """Return the text of a new file; raise if it is not new."""
    if target.exists:
        raise ToolError(
            f"{target.path} exists already. To change it, say in old_string what to replace; to "
            "replace all of it, use write."
        )
    return Text(content)


def replaced(text: Text, old: str, new: str, replace_all: bool) -> tuple[Text, str]:
    """Return *text* after one edit, and what the model should know about it."""
    match = find_edit(text.plain, plain_text(old), plain_text(new), replace_all=replace_all)
    return text.spliced(match.splices), match.note


def edit_metadata(proposal: Proposal) -> Metadata:
    """Return what viewers are told about an edit, made or refused."""
    return {**proposal.counts, **proposal.contents}
