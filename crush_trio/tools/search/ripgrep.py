"""What `grep` and `glob` share: the scope of a search, and running a search program such as ripgrep.

A search inside the workspace needs no permission and skips private paths. A search outside, also
through `..` or a symbolic link, asks for permission like reading a file there. A search program is
stopped at the time limit; what it found until then is used.
"""

import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import trio
from attrs import frozen

from crush_trio.clock import Clock
from crush_trio.tools.base import ReportProcesses, ToolCall, ToolError, Wanted
from crush_trio.tools.files.disk import locate, reason_to_ask
from crush_trio.tools.search.walk import NOISE, IgnoreFilter, project_root
from crush_trio.tools.shell.output import BoundedOutput
from crush_trio.tools.shell.process import Command, CommandEnd, ProcessGroup, open_process_group
from crush_trio.tools.workbench import Workbench
from crush_trio.wire.config import SearchLimits
from crush_trio.wire.fields import JsonObject

RIPGREP: Final = "rg"

RIPGREP_OPTIONS: Final = (
    *("--no-config", "--no-messages", "--color=never", "--null", "--no-require-git"),
    *("--no-ignore-global", "--no-ignore-exclude", "--no-ignore-dot", "--no-ignore-parent"),
)
"""Options for every call. Ripgrep's ignore rules only save it work: ours are applied to its output."""

STDERR_LIMIT: Final = 4096
"""Bytes kept of a search program's standard error."""

GRACE: Final = 0.2
"""Seconds between SIGTERM and SIGKILL; a search program has nothing to clean up."""

MAX_RECORD: Final = 1024 * 1024
"""Maximum bytes of one record; reading stops at a longer one."""


def time_limit(limits: SearchLimits | None, default: float) -> float:
    """Return the time limit of a search in seconds; the configuration has nanoseconds."""
    timeout = None if limits is None else limits.timeout
    return timeout / 1e9 if timeout is not None and timeout > 0 else default


# ── The scope ───────────────────────────────────────────────────────────────────────────────────


@frozen(kw_only=True)
class SearchScope:
    """The directory of a search, or one file in it. `ripgrep` is the program, None if not found."""

    root: Path
    file: str | None = None
    ignoring: IgnoreFilter
    ripgrep: str | None = None


async def find_scope(
    bench: Workbench, call: ToolCall, path: str, *, action: str, params: JsonObject
) -> SearchScope:
    """Return the scope that *path* names; asks for permission if that is needed."""
    target = await locate(bench, path or ".")
    if not bench.shared(target):
        await call.permit(
            Wanted(
                action=action,
                description=f"Search {target}, which is {reason_to_ask(bench, target)}",
                params=params,
                path=target,
            )
        )
    return await trio.to_thread.run_sync(_survey, bench, target)


def _survey(bench: Workbench, target: Path) -> SearchScope:
    if not target.exists():
        raise ToolError(f"{target} does not exist")
    is_dir = target.is_dir()
    root = target if is_dir else target.parent
    return SearchScope(
        root=root,
        file=None if is_dir else target.name,
        ignoring=IgnoreFilter(
            root,
            project_root(root, bench.directory),
            hidden=_has_home(bench, root),
            secrets=True,
            private=bench.private,
        ),
        ripgrep=find_program(RIPGREP, bench.env),
    )


def _has_home(bench: Workbench, root: Path) -> bool:
    """Whether the user's home is below a directory: what is hidden there is not part of a project."""
    home = bench.env.get("HOME", "")
    return home.startswith("/") and Path(home).is_relative_to(root)


def hidden_options(place: SearchScope) -> tuple[str, ...]:
    """Return the options for ripgrep about hidden files; after other globs, which they override."""
    if place.ignoring.hidden:
        return ()
    noise = (f"--glob=!{each}" for each in NOISE if each.startswith("."))
    return ("--hidden", *noise)


def find_program(name: str, env: Mapping[str, str]) -> str | None:
    """Return the path of a program.

    Relative entries of PATH are ignored: with them, a checkout could bring its own `rg`.
    """
    entries = env.get("PATH", "").split(os.pathsep)
    return shutil.which(name, path=os.pathsep.join(filter(os.path.isabs, entries)) or os.devnull)


def printable(path: str) -> str:
    """Return a path as valid Unicode; bytes that are not UTF-8 become replacement characters."""
    return os.fsencode(path).decode("utf-8", "replace")


# ── The search program ──────────────────────────────────────────────────────────────────────────


@frozen(kw_only=True)
class ProgramResult:
    """How a search program ended. `cut_short` means that the time limit stopped it."""

    status: int
    stderr: str
    cut_short: bool


async def run_search_program(
    command: Command,
    take: Callable[[bytes], bool],
    *,
    clock: Clock,
    separator: bytes,
    seconds: float,
    reaped: ReportProcesses,
    feed: bytes = b"",
) -> ProgramResult:
    """Run a program, write *feed* to its standard input, and pass its records to *take*.

    It is stopped when *take* returns False, at the time limit, and on cancel. *reaped* is called with
    the processes stopped because of a cancel, and with those that could not be stopped.
    """
    stderr = BoundedOutput(STDERR_LIMIT)
    stdin = subprocess.PIPE if feed else subprocess.DEVNULL
    async with _open_searcher(command, clock, stdin, stderr, reaped) as group:
        with trio.move_on_after(seconds) as limit:
            async with trio.open_nursery() as nursery:
                if group.stdin is not None:
                    nursery.start_soon(_feed, group.stdin, feed)
                assert group.stdout is not None
                if await _take_all(group.stdout, separator, take):
                    await group.wait()
                nursery.cancel_scope.cancel()
    assert group.ended is not None
    return ProgramResult(
        status=group.ended.status, stderr=stderr.text(), cut_short=limit.cancelled_caught
    )


@asynccontextmanager
async def _open_searcher(
    command: Command, clock: Clock, stdin: int, stderr: BoundedOutput, reaped: ReportProcesses
) -> AsyncIterator[ProcessGroup]:
    """Start a search program; report stopped processes only if the block is left by an exception."""
    completed = False

    def note(ended: CommandEnd) -> None:
        reaped(() if completed else ended.reaped, ended.left)

    async with open_process_group(
        command,
        clock=clock,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=stderr,
        grace=GRACE,
        on_ended=note,
    ) as group:
        yield group
        completed = True


async def _feed(stream: trio.abc.SendStream, data: bytes) -> None:
    """Write *data*; a program that ends early closes its standard input."""
    async with stream:
        try:
            await stream.send_all(data)
        except trio.BrokenResourceError:
            return  # noqa: ASYNC910  # the attempt was a checkpoint


async def _take_all(
    stream: trio.abc.ReceiveStream, separator: bytes, take: Callable[[bytes], bool]
) -> bool:
    """Pass each record to *take*; return whether all of them were taken."""
    rest = b""
    async for data in stream:
        *records, rest = (rest + data).split(separator)
        if not all(map(take, records)) or len(rest) > MAX_RECORD:
            return False
    return not rest or take(rest)
