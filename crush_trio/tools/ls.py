"""Lists a directory as a tree.

The entries are found level by level and drawn as a tree, so a listing that is cut still shows the upper
levels whole.
"""

from itertools import islice
from pathlib import Path
from typing import Annotated, Final

import trio
from attrs import define, field, frozen

from crush_trio.tools.arguments import About, read_arguments
from crush_trio.tools.base import ToolCall, ToolError, ToolResult, Wanted
from crush_trio.tools.built_in import BuiltIn
from crush_trio.tools.ignoring import Ignoring, Rules, project_root, work_tree
from crush_trio.tools.patterns import BadPattern, expand
from crush_trio.tools.places import locate, outside
from crush_trio.tools.searches import printable
from crush_trio.tools.walking import Entry, Walk
from crush_trio.tools.workbench import Workbench
from crush_trio.wire.config import ListingLimits

ENTRIES: Final = 1000
SECONDS: Final = 10.0
"""How long it looks at most; a directory on a network can be slow."""

UNTRACKED_DEPTH: Final = 2
UNTRACKED_ENTRIES: Final = 100
"""What is shown of a directory that is no project: a home directory has no end."""


@frozen(kw_only=True)
class LsArguments:
    """What to list, and how much of it."""

    path: Annotated[
        str, About("The directory to list; the workspace if left out. Relative to the workspace.")
    ] = ""
    ignore: Annotated[
        tuple[str, ...], About("Patterns of what to leave out, as in `.gitignore`.")
    ] = ()
    depth: Annotated[int, About("How many levels to show; all of them if left out or 0.")] = 0


@frozen(kw_only=True)
class Tree:
    """What is in a directory, upper levels first."""

    entries: list[Entry]
    truncated: bool


@define(eq=False)
class LsTool(BuiltIn):
    """The tool `ls`."""

    name = "ls"
    parallel = True
    arguments = LsArguments

    bench: Workbench
    limits: ListingLimits | None = field(default=None, kw_only=True)

    async def run(self, call: ToolCall) -> ToolResult:
        """List the directory, after asking if it lies outside the workspace or is private."""
        arguments = read_arguments(call.input, LsArguments)
        more = _read_ignore(arguments.ignore)
        root = await locate(self.bench, arguments.path or ".")
        if not self.bench.shared(root):
            await call.permit(
                Wanted(
                    action="list",
                    description=f"List {root}, which is {outside(self.bench, root)}",
                    params={
                        "path": str(root),
                        "ignore": list(arguments.ignore),
                        "depth": arguments.depth,
                    },
                    path=root,
                )
            )
        tree = await trio.to_thread.run_sync(self._look, root, more, arguments.depth)
        return ToolResult(
            content=_drawn(root, tree),
            metadata={"number_of_files": len(tree.entries), "truncated": tree.truncated},
        )

    def _look(self, root: Path, more: Rules | None, depth: int) -> Tree:
        """Collect the entries; runs in a worker thread."""
        if not root.exists():
            raise ToolError(f"{root} does not exist")
        if not root.is_dir():
            raise ToolError(f"{root} is not a directory")
        limits = self.limits or ListingLimits()
        tracked = work_tree(root) is not None
        levels = depth or limits.max_depth or (0 if tracked else UNTRACKED_DEPTH)
        most = limits.max_items or (ENTRIES if tracked else UNTRACKED_ENTRIES)
        top = project_root(root, self.bench.directory)
        ignoring = Ignoring(root, top, more=more, private=self.bench.private)
        walk = Walk(ignoring, depth=levels if levels > 0 else None, seconds=SECONDS)
        entries = list(islice(walk.entries(), most + 1))
        return Tree(entries=entries[:most], truncated=len(entries) > most or walk.cut_short)


def _read_ignore(ignore: tuple[str, ...]) -> Rules | None:
    try:
        return Rules.parse(each for pattern in ignore for each in expand(pattern))
    except BadPattern as exc:
        raise ToolError(f"invalid ignore: {exc}") from exc


def _drawn(root: Path, tree: Tree) -> str:
    """Return the tree as text: each level is indented by two more spaces."""
    lines = [f"{printable(str(root)).rstrip('/')}/"]
    for entry in sorted(tree.entries, key=lambda each: each.parts):
        indent = "  " * len(entry.parts)
        lines.append(f"{indent}{printable(entry.parts[-1])}{'/' * entry.is_dir}")
    if tree.truncated:
        lines += [
            "",
            f"(Only the first {len(tree.entries)} entries. List a directory further down, or fewer "
            "levels, to see others.)",
        ]
    elif not tree.entries:
        lines.append("  (nothing)")
    return "\n".join(lines)
