"""Finds files by name.

However many files match, the answer is short: the hundred with the shortest paths, out of a pool that
is large enough to make these most likely the best known ones. Ripgrep lists the files where it is
installed. What matches and what is left out is decided here in either case; ripgrep may leave out more,
if ignore files contradict each other.
"""

import re
from heapq import nsmallest
from itertools import islice
from typing import Annotated, Final

import trio
from attrs import define, field, frozen

from crush_trio.tools.arguments import About, read_arguments
from crush_trio.tools.base import Reaped, ToolCall, ToolError, ToolResult
from crush_trio.tools.built_in import BuiltIn
from crush_trio.tools.patterns import BadPattern, Patterns, split_base
from crush_trio.tools.places import named
from crush_trio.tools.processes import Command
from crush_trio.tools.searches import (
    OBEDIENT,
    Place,
    find_place,
    hear,
    printable,
    seconds_of,
)
from crush_trio.tools.walking import Walk
from crush_trio.tools.workbench import Workbench
from crush_trio.wire.config import SearchLimits

SHOWN: Final = 100
POOL: Final = 10_000
SECONDS: Final = 30.0

SUBTLE: Final = re.compile(r"[\[\\{}]|[^/]\*\*|\*\*[^/]")
"""What ripgrep understands a little differently."""


@frozen(kw_only=True)
class GlobArguments:
    """What to look for, and where."""

    pattern: Annotated[str, About("The pattern that paths must match, such as `src/**/*.py`.")]
    path: Annotated[
        str, About("The directory to search; the workspace if left out. Relative to the workspace.")
    ] = ""


@frozen(kw_only=True)
class Listing:
    """Paths relative to the searched directory, and whether there are more than these."""

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
        """Find the files and list them."""
        arguments = read_arguments(call.input, GlobArguments)
        path, patterns = _read_pattern(arguments)
        place = await find_place(
            self.bench,
            call,
            path,
            action="list",
            params={"pattern": arguments.pattern, "path": arguments.path},
        )
        if place.file is not None:
            raise ToolError(f"{place.root / place.file} is not a directory")
        seconds = seconds_of(self.limits, SECONDS)
        if place.ripgrep is None:
            listing = await trio.to_thread.run_sync(_walk, place, patterns, seconds)
        else:
            listing = await self._ask_ripgrep(place.ripgrep, place, patterns, seconds, call.reaped)
        return self._answer(place, listing, seconds)

    async def _ask_ripgrep(
        self, program: str, place: Place, patterns: Patterns, seconds: float, reaped: Reaped
    ) -> Listing:
        paths: list[str] = []

        def take(record: bytes) -> bool:
            path = record.decode("utf-8", "surrogateescape").removeprefix("./")
            if patterns.matches(path.split("/")):
                paths.append(path)
            return len(paths) < POOL

        heard = await hear(
            Command(
                argv=(program, "--files", *OBEDIENT, *_globs(patterns), "--", "./"),
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
        return Listing(paths=kept, cut_short=heard.cut_short, full=len(paths) >= POOL)

    def _answer(self, place: Place, listing: Listing, seconds: float) -> ToolResult:
        if listing.cut_short and not listing.paths:
            raise ToolError(
                f"nothing was found within {seconds:g} seconds, and there is more to search: "
                "give a narrower pattern or path"
            )
        shown = nsmallest(SHOWN, listing.paths, key=lambda path: (len(path), path))
        truncated = len(listing.paths) > SHOWN or listing.cut_short or listing.full
        lines = [printable(named(self.bench, place.root / path)) for path in shown]
        if not lines:
            lines = ["No files found."]
        elif truncated:
            lines += ["", _note(listing, seconds)]
        return ToolResult(
            content="\n".join(lines),
            metadata={"number_of_files": len(shown), "truncated": truncated},
        )


def _read_pattern(arguments: GlobArguments) -> tuple[str, Patterns]:
    """Return the directory that the search begins in, and what it looks for below that."""
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
    """Return options that spare ripgrep the listing of other files, where we mean the same by them."""
    globs = ["/".join(each.parts) for each in patterns.alternatives]
    if any(SUBTLE.search(glob) for glob in globs):
        return ()
    return tuple(f"--glob=/{glob}" for glob in globs)


def _walk(place: Place, patterns: Patterns, seconds: float) -> Listing:
    """Look ourselves; runs in a worker thread."""
    walk = Walk(place.ignoring, depth=patterns.depth, seconds=seconds)
    matching = (
        each.path for each in walk.entries() if each.is_file and patterns.matches(each.parts)
    )
    paths = list(islice(matching, POOL))
    return Listing(paths=paths, cut_short=walk.cut_short, full=len(paths) >= POOL)


def _not_left_out(place: Place, paths: list[str]) -> list[str]:
    """Apply our own rules; runs in a worker thread."""
    return [path for path in paths if not place.ignoring.leaves_out_file(tuple(path.split("/")))]


def _note(listing: Listing, seconds: float) -> str:
    if listing.cut_short:
        return f"(The search was stopped after {seconds:g} seconds. There may be more files.)"
    return "(There are more files than these. Narrow the pattern or the path to see others.)"
