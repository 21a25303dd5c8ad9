"""The tool `write`: a whole file at once."""

from typing import Annotated

from attrs import define, frozen

from crush_trio.tools.arguments import About, read_arguments
from crush_trio.tools.base import Metadata, ToolCall, ToolError, ToolResult
from crush_trio.tools.built_in import BuiltIn
from crush_trio.tools.changing import FileChanges, Target
from crush_trio.tools.places import named
from crush_trio.tools.text import Text


@frozen(kw_only=True)
class WriteArguments:
    """What the model says."""

    file_path: Annotated[str, About("The file to write, absolute or relative to the workspace.")]
    content: Annotated[str, About("Everything that the file shall hold.")]


@define(eq=False)
class WriteTool(BuiltIn):
    """Creates a file, or replaces all of one that the session has seen."""

    name = "write"
    arguments = WriteArguments

    changes: FileChanges

    async def run(self, call: ToolCall, /) -> ToolResult:
        """Write the file, if a person agrees."""
        arguments = read_arguments(call.input, WriteArguments)
        target = await self.changes.find(arguments.file_path)
        if target.exists:
            await self.changes.must_be_fresh(call, target)
            if arguments.content == target.text.plain:
                raise ToolError(f"{target.path} already holds exactly that: nothing would change")
        proposal = await self.changes.propose(target, _written(target, arguments.content))
        name = named(self.changes.bench, target.path)
        metadata: Metadata = {"diff": proposal.difference.unified(name), **proposal.counts}
        verb = "Replace all of" if target.exists else "Create"
        said = await self.changes.carry_out(call, proposal, f"{verb} {name}", metadata)
        done = f"Wrote {target.path} ({proposal.summary})."
        return ToolResult(content="\n\n".join(filter(None, [done, said])), metadata=metadata)


def _written(target: Target, content: str) -> Text:
    """Return the text to write: a new file gets it as it is, an old one in its own manner."""
    return target.text.rewritten(content) if target.exists else Text(content)
