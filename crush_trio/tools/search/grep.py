"""The tool `grep`: searches the contents of files.

Ripgrep does the search if it is installed and accepts the expression. Otherwise the files are listed
here, newest first, and searched by `_grep_worker.py`. Both run as a process that is stopped at the time
limit, so an expression that takes exponential time does not block the server.
"""

import os
import re
import sys
from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter
from time import monotonic
from typing import Annotated, Final

import orjson
import trio
from attrs import define, field, frozen

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
from crush_trio.tools.search.expressions import NotTranslatable, SpansLines, to_python
from crush_trio.tools.search.matches import (
    LARGEST,
    SHOWN_BYTES,
    LineMatch,
    by_age,
    newest_first,
    read_lines,
    read_match,
)
from crush_trio.tools.search.patterns import BadPattern, Patterns
from crush_trio.tools.search.ripgrep import (
    RIPGREP_OPTIONS,
    ProgramResult,
    SearchScope,
    find_scope,
    hidden_options,
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

MAX_NAMED: Final = 5
"""Maximum files named that were too large for the worker."""

_TEXT_ANCHOR: Final = re.compile(r"\\[AzZ]|\0")
"""What ripgrep is not asked for: it takes the ends of the text for those of the file, not of the line."""

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
class Findings:
    """Matches in display order; `more` says that there may be others, `unread` what was too large."""

    matches: list[LineMatch]
    more: bool = False
    cut_short: bool = False
    unread: tuple[str, ...] = ()


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
        if place.ripgrep is not None and _TEXT_ANCHOR.search(arguments.pattern) is None:
            findings = await self._ask_ripgrep(place.ripgrep, search)
        if findings is None:
            findings = await self._ask_worker(search)
        return self._answer(place, findings, search.seconds)

    async def _ask_ripgrep(self, program: str, search: Search) -> Findings | None:
        """Search with ripgrep; None if it does not support the expression, such as look-around."""
        matches: list[LineMatch] = []
        cut_short = False
        # Ripgrep reads UTF-8 and UTF-16. Letters beyond ASCII are also searched in single-byte encodings.
        for single_byte in (False,) if search.arguments.pattern.isascii() else (False, True):
            heard = await self._run_ripgrep(program, search, matches, single_byte)
            if heard.status == worker.INVALID and not matches:
                return None
            cut_short = cut_short or heard.cut_short
        chosen = await trio.to_thread.run_sync(newest_first, search.place, matches)
        lines = await trio.to_thread.run_sync(read_lines, search.place.root, chosen[:SHOWN])
        more = len(matches) >= POOL or len(chosen) > SHOWN
        return Findings(matches=lines, more=more, cut_short=cut_short)

    async def _run_ripgrep(
        self, program: str, search: Search, matches: list[LineMatch], single_byte: bool
    ) -> ProgramResult:
        place = search.place

        def take(record: bytes) -> bool:
            match = read_match(record, single_byte=single_byte)
            if match is not None and search.includes(match.path.split("/")):
                matches.append(match)
            return len(matches) < POOL

        encoding = ("--encoding=windows-1252",) if single_byte else ()
        options = (*ripgrep_options(search), *encoding, "--", f"./{place.file or ''}")
        return await run_search_program(
            Command(argv=(program, *options), working_dir=place.root, env=self.bench.env),
            take,
            clock=self.bench.clock,
            separator=b"\n",
            seconds=search.seconds,
            reaped=search.reaped,
        )

    async def _ask_worker(self, search: Search) -> Findings:
        """Search with the worker, in the time that is left after the files were listed."""
        begun = monotonic()
        request = _order(search)
        files, cut_short = await trio.to_thread.run_sync(_candidates, search)
        left = search.seconds - (monotonic() - begun)
        matches: list[LineMatch] = []
        unread: list[str] = []

        def take(record: bytes) -> bool:
            number, line, text = orjson.loads(record)
            if line == worker.TOO_LARGE:
                unread.append(files[number])
            else:
                matches.append(LineMatch(path=files[number], line=line, text=text))
            return True

        heard = await run_search_program(
            Command(argv=WORKER, working_dir=search.place.root, env={}),
            take,
            clock=self.bench.clock,
            separator=b"\n",
            seconds=max(left, search.seconds / 10),
            reaped=search.reaped,
            feed=b"\0".join([request, os.fsencode(search.place.root), *map(os.fsencode, files)]),
        )
        if heard.status == worker.INVALID:
            raise _invalid(heard)
        return Findings(
            matches=matches,
            more=len(matches) >= WORKER_MATCHES,
            cut_short=cut_short or heard.cut_short or heard.status != 0,
            unread=tuple(unread),
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
        if findings.unread:
            blocks.append(self._unread(place, findings.unread))
        return ToolResult(
            content="\n\n".join(blocks),
            metadata={"number_of_matches": len(shown), "truncated": truncated},
        )

    def _unread(self, place: SearchScope, paths: Sequence[str]) -> str:
        names = [printable(display_path(self.bench, place.root / each)) for each in paths]
        more = [f"{len(names) - MAX_NAMED} more"] if len(names) > MAX_NAMED else []
        return (
            f"(Not searched, because they are larger than {LARGEST // 1024**2} MB and ripgrep is not "
            f"installed: {', '.join([*names[:MAX_NAMED], *more])}.)"
        )


def ripgrep_options(search: Search) -> tuple[str, ...]:
    """Return the command-line options for ripgrep."""
    include = "" if search.included is None else search.arguments.include
    return (
        *RIPGREP_OPTIONS,
        *("--no-heading", "--with-filename", "--line-number", "--byte-offset"),
        *("--max-columns=1", f"--max-count={SHOWN + 1}", "--crlf"),
        *(("--fixed-strings",) if search.arguments.literal_text else ()),
        *((f"--glob={_literal_beginning(include)}",) if include else ()),
        *hidden_options(search.place),
        f"--regexp={search.arguments.pattern}",
    )


def _literal_beginning(glob: str) -> str:
    """Escape a leading `!` or `#`, which ripgrep would read as negation or comment."""
    return f"\\{glob}" if glob.startswith(("!", "#")) else glob


def _order(search: Search) -> bytes:
    """Return the request for the worker; raises `ToolError` if it cannot search the expression."""
    pattern, literal = search.arguments.pattern, search.arguments.literal_text
    try:
        if literal and "\n" in pattern:
            raise SpansLines
        expression = pattern if literal else to_python(pattern)
    except SpansLines:
        raise ToolError("a pattern never spans lines: search for one of the lines") from None
    except NotTranslatable as exc:
        why = (
            "is not installed"
            if search.place.ripgrep is None
            else "refuses the rest of the pattern"
        )
        raise ToolError(
            f"{exc} works only with ripgrep, which {why}: write the pattern without it"
        ) from None
    return orjson.dumps(
        {
            "pattern": expression,
            "literal": literal,
            "limit": WORKER_MATCHES,
            "seconds": search.seconds,
            "size": LARGEST,
            "columns": SHOWN_BYTES,
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


# ── In worker threads ───────────────────────────────────────────────────────────────────────────


def _candidates(search: Search) -> tuple[list[str], bool]:
    """Return the files to search, newest first, and whether the time was too short to list all."""
    place = search.place
    if place.file is not None:
        return [place.file], False
    walk = DirectoryWalk(place.ignoring, seconds=search.seconds)
    files = [each.path for each in walk.entries() if each.is_file and search.includes(each.parts)]
    return by_age(place.root, files), walk.cut_short
