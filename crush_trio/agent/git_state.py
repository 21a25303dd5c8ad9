"""What a repository looks like when a run begins: its branch, its changes, its last commits."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import trio

from crush_trio.clock import Clock
from crush_trio.tools.environment import shell_argv, tool_environment
from crush_trio.tools.processes import Command, run_command

log = logging.getLogger(__name__)

LIMIT: Final = 3.0
"""Seconds that git may take; a run begins without its help rather than late."""

MOST_CHANGES: Final = 30
_GIT: Final = "git -c core.fsmonitor=false -c core.untrackedCache=false"
"""A repository may name programs that git would run to find out about changes; not for us."""
_SCRIPT: Final = (
    f"{_GIT} status --short --branch | head -n {MOST_CHANGES} && echo && {_GIT} log --oneline -n 5"
)


async def git_state(directory: Path, environment: Mapping[str, str], clock: Clock) -> str:
    """Return the state of the repository that *directory* is in; nothing if it cannot be told."""
    command = Command(
        argv=shell_argv(_SCRIPT), working_dir=directory, env=tool_environment(environment, {})
    )
    await trio.lowlevel.checkpoint()
    with trio.move_on_after(LIMIT):
        try:
            finished = await run_command(command, clock=clock, keep=8192)
        except OSError as error:
            log.info("git.not_run", extra={"error": str(error)})
            return ""
        return finished.stdout.text().strip() if finished.ended.status == 0 else ""
    log.info("git.too_slow", extra={"seconds": LIMIT})
    return ""
