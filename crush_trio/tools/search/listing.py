"""The tools `glob`, which finds files by name, and `ls`, which lists a directory as a tree.

`glob` collects a bounded number of matching files and returns the hundred with the shortest paths.
Ripgrep lists the files if it is installed. Patterns and ignore rules are applied here in either case;
ripgrep may ignore more files than we do if ignore files contradict each other.

`ls` collects entries level by level and prints them as a tree, so a truncated listing still shows the
upper levels completely.
"""

import re
from heapq import nsmallest
from itertools import islice
from pathlib import Path
from typing import Annotated, Final

import trio
from attrs import define, field, frozen

from crush_trio.nofollow import is_regular
from crush_trio.tools.base import (
    About,
    BuiltIn,
    ReportProcesses,
    ToolCall,
    ToolError,
    ToolResult,
    Wanted,
    read_arguments,
)
from crush_trio.tools.files.disk import display_path, locate, reason_to_ask
from crush_trio.tools.search.patterns import BadPattern, Patterns, expand, split_base
from crush_trio.tools.search.ripgrep import (
    RIPGREP_OPTIONS,
    SearchScope,
    find_scope,
    hidden_options,
    printable,
    run_search_program,
    time_limit,
)
from crush_trio.tools.search.walk import (
    DirectoryWalk,
    IgnoreFilter,
    IgnoreRules,
    WalkEntry,
    project_root,
    work_tree,
)
from crush_trio.tools.shell.process import Command
from crush_trio.tools.workbench import Workbench
from crush_trio.wire.config import ListingLimits, SearchLimits

SHOWN: Final = 100
POOL: Final = 10_000
GLOB_SECONDS: Final = 30.0

DIFFERS_IN_RIPGREP: Final = re.compile(r"[\[\\{}]|[^/]\*\*|\*\*[^/]")
"""Pattern syntax that ripgrep interprets differently."""


@frozen(kw_only=True)
class GlobArguments:
    """The arguments of `glob`."""

    pattern: Annotated[str, About("The pattern that paths must match, such as `src/**/*.py`.")]
    path: Annotated[
        str, About("The directory to search; the workspace if left out. Relative to the workspace.")
    ] = ""


@frozen(kw_only=True)
class FoundPaths:
    """Paths relative to the searched directory. `cut_short`: time limit; `full`: POOL reached."""

    paths: list[str]
    cut_short: bool = False
    full: bool = False


@define(eq=False)
class GlobTool(BuiltIn):
    """The tool `glob`."""

    name = "glob"
    parallel = True
    arguments = GlobArguments

    bench: Workbench
    limits: SearchLimits | None = field(default=None, kw_only=True)

    async def run(self, call: ToolCall) -> ToolResult:
        """Find the files and return their paths."""
        arguments = read_arguments(call.input, GlobArguments)
        path, patterns = _read_pattern(arguments)
        place = await find_scope(
            self.bench,
            call,
            path,
            action="list",
            params={"pattern": arguments.pattern, "path": arguments.path},
        )
        if place.file is not None:
            raise ToolError(f"{place.root / place.file} is not a directory")
        seconds = time_limit(self.limits, GLOB_SECONDS)
        if place.ripgrep is None:
            listing = await trio.to_thread.run_sync(_walk, place, patterns, seconds)
        else:
            listing = await self._ask_ripgrep(place.ripgrep, place, patterns, seconds, call.reaped)
        return await trio.to_thread.run_sync(self._answer, place, listing, seconds)

    async def _ask_ripgrep(
        self,
        program: str,
        place: SearchScope,
        patterns: Patterns,
        seconds: float,
        reaped: ReportProcesses,
    ) -> FoundPaths:
        paths: list[str] = []

        def take(record: bytes) -> bool:
            path = record.decode("utf-8", "surrogateescape").removeprefix("./")
            if patterns.matches(path.split("/")):
                paths.append(path)
            return len(paths) < POOL

        globs = (*_globs(patterns), *hidden_options(place))
        heard = await run_search_program(
            Command(
                argv=(program, "--files", *RIPGREP_OPTIONS, *globs, "--", "./"),
                working_dir=place.root,
                env=self.bench.env,
            ),
            take,
            clock=self.bench.clock,
            separator=b"\0",
            seconds=seconds,
            reaped=reaped,
        )
        if heard.status == 2 and not paths:
            return await trio.to_thread.run_sync(_walk, place, patterns, seconds)
        kept = await trio.to_thread.run_sync(_not_left_out, place, paths)
        return FoundPaths(paths=kept, cut_short=heard.cut_short, full=len(paths) >= POOL)

    def _answer(self, place: SearchScope, listing: FoundPaths, seconds: float) -> ToolResult:
        """Return the result; runs in a worker thread."""
        if listing.cut_short and not listing.paths:
            raise ToolError(
                f"nothing was found within {seconds:g} seconds, and there is more to search: "
                "give a narrower pattern or path"
            )
        shortest = nsmallest(SHOWN, listing.paths, key=lambda path: (len(path), path))
        # Ripgrep opens directories by name: one that was replaced by a link meanwhile leads elsewhere.
        shown = [path for path in shortest if is_regular(place.root / path)]
        truncated = len(listing.paths) > SHOWN or listing.cut_short or listing.full
        lines = [printable(display_path(self.bench, place.root / path)) for path in shown]
        if not lines:
            lines = ["No files found."]
        elif truncated:
            lines += ["", _note(listing, seconds)]
        return ToolResult(
            content="\n".join(lines),
            metadata={"number_of_files": len(shown), "truncated": truncated},
        )


def _read_pattern(arguments: GlobArguments) -> tuple[str, Patterns]:
    """Return the directory to search, and the patterns relative to it."""
    if not arguments.pattern:
        raise ToolError("pattern is required")
    base, rest = split_base(arguments.pattern)
    try:
        patterns = Patterns.parse(rest or "**")
    except BadPattern as exc:
        raise ToolError(f"invalid pattern: {exc}") from exc
    return "/".join(filter(None, (arguments.path, base))) if not _absolute(base) else base, patterns


def _absolute(path: str) -> bool:
    return path.startswith(("/", "~"))


def _globs(patterns: Patterns) -> tuple[str, ...]:
    """Return glob options for ripgrep, to list fewer files; none if it would match differently."""
    globs = ["/".join(each.parts) for each in patterns.alternatives]
    if any(DIFFERS_IN_RIPGREP.search(glob) for glob in globs):
        return ()
    return tuple(f"--glob=/{glob}" for glob in globs)


def _walk(place: SearchScope, patterns: Patterns, seconds: float) -> FoundPaths:
    """List the files without ripgrep; runs in a worker thread."""
    walk = DirectoryWalk(place.ignoring, depth=patterns.depth, seconds=seconds)
    matching = (
        each.path for each in walk.entries() if each.is_file and patterns.matches(each.parts)
    )
    paths = list(islice(matching, POOL))
    return FoundPaths(paths=paths, cut_short=walk.cut_short, full=len(paths) >= POOL)


def _not_left_out(place: SearchScope, paths: list[str]) -> list[str]:
    """Apply our ignore rules; runs in a worker thread."""
    return [path for path in paths if not place.ignoring.leaves_out_file(tuple(path.split("/")))]


def _note(listing: FoundPaths, seconds: float) -> str:
    if listing.cut_short:
        return f"(The search was stopped after {seconds:g} seconds. There may be more files.)"
    return "(There are more files than these. Narrow the pattern or the path to see others.)"


ENTRIES: Final = 1000
LS_SECONDS: Final = 10.0
"""Time limit; a directory on a network can be slow."""

UNTRACKED_DEPTH: Final = 2
UNTRACKED_ENTRIES: Final = 100
"""Depth and entries shown of a directory outside any Git work tree, such as a home directory."""


@frozen(kw_only=True)
class LsArguments:
    """The arguments of `ls`."""

    path: Annotated[
        str, About("The directory to list; the workspace if left out. Relative to the workspace.")
    ] = ""
    ignore: Annotated[
        tuple[str, ...], About("Patterns of what to leave out, as in `.gitignore`.")
    ] = ()
    depth: Annotated[int, About("How many levels to show; all of them if left out or 0.")] = 0


@frozen(kw_only=True)
class Tree:
    """The entries below a directory, upper levels first."""

    entries: list[WalkEntry]
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
        """List the directory; asks for permission if it is outside the workspace or private."""
        arguments = read_arguments(call.input, LsArguments)
        more = _read_ignore(arguments.ignore)
        root = await locate(self.bench, arguments.path or ".")
        if not self.bench.shared(root):
            await call.permit(
                Wanted(
                    action="list",
                    description=f"List {root}, which is {reason_to_ask(self.bench, root)}",
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

    def _look(self, root: Path, more: IgnoreRules | None, depth: int) -> Tree:
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
        ignoring = IgnoreFilter(root, top, more=more, private=self.bench.private)
        walk = DirectoryWalk(ignoring, depth=levels if levels > 0 else None, seconds=LS_SECONDS)
        entries = list(islice(walk.entries(), most + 1))
        return Tree(entries=entries[:most], truncated=len(entries) > most or walk.cut_short)


def _read_ignore(ignore: tuple[str, ...]) -> IgnoreRules | None:
    try:
        return IgnoreRules.parse(each for pattern in ignore for each in expand(pattern))
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
