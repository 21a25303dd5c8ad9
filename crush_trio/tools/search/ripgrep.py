"""What searches have in common: where they look, with what, and for how long.

A search inside the workspace asks nobody, and what is private there it leaves out. One that a path,
`..` or a link leads outside asks first, as looking at a file there would. Other programs do the searching where they can: they are stopped at
the time limit, whatever they are busy with, and what they had found by then still counts.
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
from crush_trio.tools.base import Reaped, ToolCall, ToolError, Wanted
from crush_trio.tools.files.disk import locate, outside
from crush_trio.tools.search.walk import Ignoring, project_root
from crush_trio.tools.shell.output import BoundedOutput
from crush_trio.tools.shell.process import Command, Ended, ProcessGroup, open_process_group
from crush_trio.tools.workbench import Workbench
from crush_trio.wire.config import SearchLimits
from crush_trio.wire.fields import JsonObject

"""Is told of processes that had to be stopped."""

RIPGREP: Final = "rg"

OBEDIENT: Final = (
    *("--no-config", "--no-messages", "--color=never", "--null", "--no-require-git"),
    *("--no-ignore-global", "--no-ignore-exclude", "--no-ignore-dot", "--no-ignore-parent"),
)
"""How ripgrep looks at a tree as we do. Its ignore rules only spare it work: we apply our own after."""

COMPLAINT: Final = 4096
"""Bytes kept of what a searching program says about itself."""

GRACE: Final = 0.2
"""Seconds it has to end when it is told to; it has nothing to tidy up."""

LONGEST: Final = 1024 * 1024
"""Bytes of one record; a program that writes more without an end is not read further."""


def seconds_of(limits: SearchLimits | None, default: float) -> float:
    """Return how long a search may take; the configuration says it in nanoseconds."""
    timeout = None if limits is None else limits.timeout
    return timeout / 1e9 if timeout is not None and timeout > 0 else default


# ── Where ───────────────────────────────────────────────────────────────────────────────────────


@frozen(kw_only=True)
class Place:
    """Where a search looks: a directory, or one file in it. `ripgrep` is the program, if there is one."""

    root: Path
    file: str | None = None
    ignoring: Ignoring
    ripgrep: str | None = None


async def find_place(
    bench: Workbench, call: ToolCall, path: str, *, action: str, params: JsonObject
) -> Place:
    """Return the place that *path* names, once it is clear that the search may look there."""
    target = await locate(bench, path or ".")
    if not bench.shared(target):
        await call.permit(
            Wanted(
                action=action,
                description=f"Search {target}, which is {outside(bench, target)}",
                params=params,
                path=target,
            )
        )
    return await trio.to_thread.run_sync(_survey, bench, target)


def _survey(bench: Workbench, target: Path) -> Place:
    if not target.exists():
        raise ToolError(f"{target} does not exist")
    is_dir = target.is_dir()
    root = target if is_dir else target.parent
    return Place(
        root=root,
        file=None if is_dir else target.name,
        ignoring=Ignoring(
            root, project_root(root, bench.directory), hidden=True, private=bench.private
        ),
        ripgrep=find_program(RIPGREP, bench.env),
    )


def find_program(name: str, env: Mapping[str, str]) -> str | None:
    """Return where a program is. Relative entries of the search path would be the project's say."""
    entries = env.get("PATH", "").split(os.pathsep)
    return shutil.which(name, path=os.pathsep.join(filter(os.path.isabs, entries)) or os.devnull)


def printable(path: str) -> str:
    """Return a path as text; names that are not UTF-8 show it."""
    return os.fsencode(path).decode("utf-8", "replace")


# ── With what ───────────────────────────────────────────────────────────────────────────────────


@frozen(kw_only=True)
class Heard:
    """How a searching program ended. `cut_short` means that it had no time to finish."""

    status: int
    complaint: str
    cut_short: bool


async def hear(
    command: Command,
    take: Callable[[bytes], bool],
    *,
    clock: Clock,
    separator: bytes,
    seconds: float,
    reaped: Reaped,
    feed: bytes = b"",
) -> Heard:
    """Run a program, give it *feed*, and pass its records to *take* as they come.

    It is stopped when *take* returns False, when the time is up, and when this is cancelled. Of the
    last *reaped* is told, and of processes that could not be stopped.
    """
    complaint = BoundedOutput(COMPLAINT)
    stdin = subprocess.PIPE if feed else subprocess.DEVNULL
    async with _open_searcher(command, clock, stdin, complaint, reaped) as group:
        with trio.move_on_after(seconds) as limit:
            async with trio.open_nursery() as nursery:
                if group.stdin is not None:
                    nursery.start_soon(_feed, group.stdin, feed)
                assert group.stdout is not None
                if await _take_all(group.stdout, separator, take):
                    await group.wait()
                nursery.cancel_scope.cancel()
    assert group.ended is not None
    return Heard(
        status=group.ended.status, complaint=complaint.text(), cut_short=limit.cancelled_caught
    )


@asynccontextmanager
async def _open_searcher(
    command: Command, clock: Clock, stdin: int, stderr: BoundedOutput, reaped: Reaped
) -> AsyncIterator[ProcessGroup]:
    """Start a searching program; say what had to be stopped if its block does not end by itself."""
    heard_out = False

    def note(ended: Ended) -> None:
        reaped(() if heard_out else ended.reaped, ended.left)

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
        heard_out = True


async def _feed(stream: trio.abc.SendStream, data: bytes) -> None:
    """Write *data*; a program that has heard enough may stop reading."""
    async with stream:
        try:
            await stream.send_all(data)
        except trio.BrokenResourceError:
            return  # noqa: ASYNC910  # the attempt was a checkpoint


async def _take_all(
    stream: trio.abc.ReceiveStream, separator: bytes, take: Callable[[bytes], bool]
) -> bool:
    """Pass on record after record; return whether all of them were wanted."""
    rest = b""
    async for data in stream:
        *records, rest = (rest + data).split(separator)
        if not all(map(take, records)) or len(rest) > LONGEST:
            return False
    return not rest or take(rest)
