"""The tool `grep`: searches the contents of files.

Ripgrep does the search if it is installed and accepts the expression. Otherwise the files are listed
here, newest first, and searched by `_grep_worker.py`. Both run as a process that is stopped at the time
limit, so an expression that takes exponential time does not block the server.
"""

import os
import sys
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Sequence
from io import BufferedReader
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from time import monotonic
from typing import Annotated, Final

import orjson
import trio
from attrs import define, evolve, field, frozen

from crush_trio.nofollow import open_regular
from crush_trio.tools.base import (
    About,
    BuiltIn,
    ReportProcesses,
    ToolCall,
    ToolError,
    ToolResult,
    read_arguments,
)
from crush_trio.tools.files.disk import display_path
from crush_trio.tools.search import _grep_worker as worker
from crush_trio.tools.search.patterns import BadPattern, Patterns
from crush_trio.tools.search.ripgrep import (
    RIPGREP_OPTIONS,
    ProgramResult,
    SearchScope,
    find_scope,
    printable,
    run_search_program,
    time_limit,
)
from crush_trio.tools.search.walk import DirectoryWalk
from crush_trio.tools.shell.output import width
from crush_trio.tools.shell.process import Command
from crush_trio.tools.workbench import Workbench
from crush_trio.wire.config import SearchLimits

SHOWN: Final = 100
COLUMNS: Final = 500
SECONDS: Final = 5.0

POOL: Final = 20_000
"""Matches read from ripgrep; those in the newest files are shown."""

WORKER_MATCHES: Final = 200
"""Matches read from the worker, which begins with the newest file."""

LARGEST: Final = 10 * 1024 * 1024
"""Bytes that a file may have for the worker to search it."""

UTF_16: Final = (BOM_UTF16_LE, BOM_UTF16_BE)

WORKER: Final = (sys.executable, "-I", "-S", str(worker.__file__))


@frozen(kw_only=True)
class GrepArguments:
    """The arguments of `grep`."""

    pattern: Annotated[str, About("The regular expression to look for in each line.")]
    path: Annotated[
        str,
        About(
            "The directory or file to search; the workspace if left out. Relative to the workspace."
        ),
    ] = ""
    include: Annotated[
        str, About("Search only files that match this pattern, such as `*.py` or `*.{ts,tsx}`.")
    ] = ""
    literal_text: Annotated[
        bool, About("Whether the pattern is plain text and not a regular expression.")
    ] = False


@frozen(kw_only=True)
class LineMatch:
    """A matching line; the path is relative to the searched directory."""

    path: str
    line: int
    text: str = field(default="", repr=False)
    offset: int = 0
    """Where the line begins in the file, in bytes; known of ripgrep's matches only."""


@frozen(kw_only=True)
class Findings:
    """Matches in display order; `more` says that there may be others."""

    matches: list[LineMatch]
    more: bool = False
    cut_short: bool = False


@frozen(kw_only=True)
class Search:
    """The parameters of one search."""

    arguments: GrepArguments
    place: SearchScope
    included: Patterns | None
    seconds: float
    reaped: ReportProcesses = field(repr=False)

    def includes(self, path: Sequence[str]) -> bool:
        """Whether a file matches `include`; True if `path` named a single file."""
        return self.included is None or self.included.matches(path)


@define(eq=False)
class GrepTool(BuiltIn):
    """The tool `grep`."""

    name = "grep"
    parallel = True
    arguments = GrepArguments

    bench: Workbench
    limits: SearchLimits | None = field(default=None, kw_only=True)

    async def run(self, call: ToolCall) -> ToolResult:
        """Search, and return the matching lines."""
        arguments = read_arguments(call.input, GrepArguments)
        if not arguments.pattern:
            raise ToolError("pattern is required")
        included = _read_include(arguments.include)
        place = await find_scope(
            self.bench,
            call,
            arguments.path,
            action="read",
            params={"pattern": arguments.pattern, "path": arguments.path},
        )
        search = Search(
            arguments=arguments,
            place=place,
            included=included if place.file is None else None,
            seconds=time_limit(self.limits, SECONDS),
            reaped=call.reaped,
        )
        findings = None
        if place.ripgrep is not None and "\0" not in arguments.pattern:
            findings = await self._ask_ripgrep(place.ripgrep, search)
        if findings is None:
            findings = await self._ask_worker(search)
        return self._answer(place, findings, search.seconds)

    async def _ask_ripgrep(self, program: str, search: Search) -> Findings | None:
        """Search with ripgrep; None if it does not support the expression, such as look-around."""
        place = search.place
        matches: list[LineMatch] = []

        def take(record: bytes) -> bool:
            match = _read_match(record)
            if match is not None and search.includes(match.path.split("/")):
                matches.append(match)
            return len(matches) < POOL

        heard = await run_search_program(
            Command(
                argv=(program, *ripgrep_options(search), "--", f"./{place.file or ''}"),
                working_dir=place.root,
                env=self.bench.env,
            ),
            take,
            clock=self.bench.clock,
            separator=b"\n",
            seconds=search.seconds,
            reaped=search.reaped,
        )
        if heard.status == worker.INVALID and not matches:
            return None
        chosen = await trio.to_thread.run_sync(_newest_first, place, matches)
        lines = await trio.to_thread.run_sync(_read_lines, place.root, chosen[:SHOWN])
        more = len(matches) >= POOL or len(chosen) > SHOWN
        return Findings(matches=lines, more=more, cut_short=heard.cut_short)

    async def _ask_worker(self, search: Search) -> Findings:
        """Search with the worker, in the time that is left after the files were listed."""
        begun = monotonic()
        files, cut_short = await trio.to_thread.run_sync(_candidates, search)
        left = search.seconds - (monotonic() - begun)
        matches: list[LineMatch] = []

        def take(record: bytes) -> bool:
            number, line, text = orjson.loads(record)
            matches.append(LineMatch(path=files[number], line=line, text=text))
            return True

        heard = await run_search_program(
            Command(argv=WORKER, working_dir=search.place.root, env={}),
            take,
            clock=self.bench.clock,
            separator=b"\n",
            seconds=max(left, search.seconds / 10),
            reaped=search.reaped,
            feed=b"\0".join(
                [_order(search), os.fsencode(search.place.root), *map(os.fsencode, files)]
            ),
        )
        if heard.status == worker.INVALID:
            raise _invalid(heard)
        return Findings(
            matches=matches,
            more=len(matches) >= WORKER_MATCHES,
            cut_short=cut_short or heard.cut_short or heard.status != 0,
        )

    def _answer(self, place: SearchScope, findings: Findings, seconds: float) -> ToolResult:
        if findings.cut_short and not findings.matches:
            raise ToolError(
                f"nothing was found within {seconds:g} seconds, and there is more to search: "
                "give a simpler pattern, a narrower path, or say which files to include"
            )
        shown = findings.matches[:SHOWN]
        truncated = findings.more or findings.cut_short or len(findings.matches) > SHOWN
        blocks = [_heading(len(shown), truncated)] if shown else ["No matches found."]
        for path, lines in groupby(shown, key=attrgetter("path")):
            shown_path = printable(display_path(self.bench, place.root / path))
            blocks.append("\n".join([shown_path, *(f"  {m.line}: {clip(m.text)}" for m in lines)]))
        if findings.cut_short:
            blocks.append(f"(The search was stopped after {seconds:g} seconds.)")
        return ToolResult(
            content="\n\n".join(blocks),
            metadata={"number_of_matches": len(shown), "truncated": truncated},
        )


def ripgrep_options(search: Search) -> tuple[str, ...]:
    """Return the command-line options for ripgrep."""
    include = "" if search.included is None else search.arguments.include
    return (
        *RIPGREP_OPTIONS,
        *("--no-heading", "--with-filename", "--line-number", "--byte-offset"),
        *("--max-columns=1", f"--max-count={SHOWN + 1}"),
        *(("--fixed-strings",) if search.arguments.literal_text else ()),
        *((f"--glob={_literal_beginning(include)}",) if include else ()),
        f"--regexp={search.arguments.pattern}",
    )


def _literal_beginning(glob: str) -> str:
    """Escape a leading `!` or `#`, which ripgrep would read as negation or comment."""
    return f"\\{glob}" if glob.startswith(("!", "#")) else glob


def _order(search: Search) -> bytes:
    """Return the request for the worker."""
    return orjson.dumps(
        {
            "pattern": search.arguments.pattern,
            "literal": search.arguments.literal_text,
            "limit": WORKER_MATCHES,
            "seconds": search.seconds,
            "size": LARGEST,
            "columns": 4 * COLUMNS,
        }
    )


def clip(text: str) -> str:
    """Cut a line that takes too many columns."""
    if width(text) <= COLUMNS:
        return text
    used = 0
    for place, character in enumerate(text):
        used += width(character)
        if used > COLUMNS:
            return f"{text[:place]}…"
    return text


def _heading(count: int, truncated: bool) -> str:
    if truncated:
        return f"The first {count} matches; there may be more. Narrow the search to see others."
    return "1 match" if count == 1 else f"{count} matches"


def _invalid(heard: ProgramResult) -> ToolError:
    return ToolError(
        f"invalid pattern: {heard.stderr.strip()}\nIf it is plain text, set literal_text."
    )


def _read_include(include: str) -> Patterns | None:
    try:
        return Patterns.parse_anywhere(include) if include else None
    except BadPattern as exc:
        raise ToolError(f"invalid include: {exc}") from exc


def _read_match(record: bytes) -> LineMatch | None:
    """Parse one line of ripgrep's output: path, null byte, line number, byte offset, and the text.

    The text is not used: see `_read_lines`.
    """
    path, null, rest = record.partition(b"\0")
    number, _, rest = rest.partition(b":")
    offset, colon, _ = rest.partition(b":")
    if not null or not colon or not number.isdigit() or not offset.isdigit():
        return None
    return LineMatch(
        path=os.fsdecode(path).removeprefix("./"), line=int(number), offset=int(offset)
    )


# ── In worker threads ───────────────────────────────────────────────────────────────────────────


def _candidates(search: Search) -> tuple[list[str], bool]:
    """Return the files to search, newest first, and whether the time was too short to list all."""
    place = search.place
    if place.file is not None:
        return [place.file], False
    walk = DirectoryWalk(place.ignoring, seconds=search.seconds)
    files = [each.path for each in walk.entries() if each.is_file and search.includes(each.parts)]
    return _by_age(place.root, files), walk.cut_short


def _newest_first(place: SearchScope, matches: list[LineMatch]) -> list[LineMatch]:
    """Sort the matches by age of their files, and drop those in ignored files."""
    by_path: dict[str, list[LineMatch]] = {}
    for match in matches:
        by_path.setdefault(match.path, []).append(match)
    kept = [path for path in by_path if _is_searched(place, path)]
    return [
        match
        for path in _by_age(place.root, kept)
        for match in sorted(by_path[path], key=attrgetter("line"))
    ]


def _read_lines(root: Path, matches: list[LineMatch]) -> list[LineMatch]:
    """Return *matches* with their lines, read here without following links.

    Ripgrep opens files by name. A directory that was replaced by a link meanwhile leads it out of the
    workspace, so what it read is not shown.
    """
    found: list[LineMatch] = []
    for path, group in groupby(matches, key=attrgetter("path")):
        try:
            with os.fdopen(open_regular(root / path), "rb") as file:
                found += (evolve(each, text=_line_at(file, each)) for each in group)
        except OSError:
            continue
    return found


def _line_at(file: BufferedReader, match: LineMatch) -> str:
    """Return the beginning of a matching line."""
    file.seek(0)
    head = file.read(
        len(BOM_UTF8)
    )  # ripgrep does not count it, and decodes UTF-16 before it counts
    if head[:2] in UTF_16:
        file.seek(0)
        lines = file.read(LARGEST).decode("utf-16", "replace").split("\n")
        text = lines[match.line - 1] if match.line <= len(lines) else ""
    else:
        file.seek(match.offset + (len(BOM_UTF8) if head == BOM_UTF8 and match.line > 1 else 0))
        text = file.readline(4 * COLUMNS).decode("utf-8", "replace")
    return text.removesuffix("\n").removesuffix("\r")


def _is_searched(place: SearchScope, path: str) -> bool:
    return place.file is not None or not place.ignoring.leaves_out_file(tuple(path.split("/")))


def _by_age(root: Path, paths: list[str]) -> list[str]:
    """Return *paths* with the most recently changed file first."""
    ages = {path: _changed_at(root / path) for path in paths}
    return sorted(paths, key=lambda path: (-ages[path], path))


def _changed_at(path: Path) -> int:
    try:
        return os.lstat(path).st_mtime_ns
    except OSError:
        return 0
