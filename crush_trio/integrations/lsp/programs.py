"""Language servers as programs: where they are, whether they are for a project, and how they run.

A server that a user has written down is started because the user said so. Its program is looked for in
the absolute directories of the search path only; a path that is relative to the project names a file that
came with the project, and is taken only if the user trusts that.
"""

import subprocess
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

import trio
from attrs import define, field

from crush_trio.clock import Clock
from crush_trio.integrations.lsp.known import KNOWN
from crush_trio.integrations.lsp.life import OpenProgram, ServerUnavailable
from crush_trio.tools.output import BoundedOutput
from crush_trio.tools.processes import Command, open_process_group
from crush_trio.tools.searches import find_program
from crush_trio.wire.config import LspServerConfig

COMPLAINTS: Final = 8 * 1024
"""Bytes kept of what a server writes about itself."""

LAST_WORDS: Final = 200
"""Letters of it that are shown when it has failed."""


@define(eq=False)
class Program:
    """Satisfies `Launched`."""

    transport: trio.StapledStream[trio.abc.SendStream, trio.abc.ReceiveStream]
    _complaints: BoundedOutput = field(repr=False)

    def last_words(self) -> str:
        """Return the last line that it wrote about an error, or else the last of all."""
        lines = [line.strip() for line in self._complaints.text().split("\n") if line.strip()]
        errors = [line for line in lines if "error" in line.lower()]
        return (errors or lines or [""])[-1][:LAST_WORDS]


def program_opener(clock: Clock) -> OpenProgram:
    """Return what starts servers, each in a process group of its own that is gone with its block."""

    @asynccontextmanager
    async def opened(command: Command) -> AsyncIterator[Program]:
        complaints = BoundedOutput(COMPLAINTS)
        async with open_process_group(
            command,
            clock=clock,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=complaints,
        ) as group:
            assert group.stdin is not None
            assert group.stdout is not None
            yield Program(trio.StapledStream(group.stdin, group.stdout), complaints)

    return opened


# ── On the disk: all that follows belongs in a thread ───────────────────────────────────────────


def program_of(
    config: LspServerConfig, env: Mapping[str, str], directory: Path, *, trusted: bool
) -> str:
    """Return the program of a server; raises `ServerUnavailable` if there is none. Touches the disk."""
    command = config.command
    if not command:
        raise ServerUnavailable("it is configured without a command")
    if "/" not in command:
        found = find_program(command, env)
    elif Path(command).is_absolute():
        found = command
    elif trusted:
        found = str(directory / command)
    else:
        raise ServerUnavailable(f"{command} came with the project, which is not trusted")
    if found is None or not Path(found).is_file():
        raise ServerUnavailable(f"{command} was not found")
    return found


def has_root(directory: Path, markers: Iterable[str]) -> bool:
    """Whether something in a directory says that it is a project of a kind. Touches the disk."""
    wanted = tuple(markers)
    if not wanted:
        return True
    try:
        names = [entry.name for entry in directory.iterdir()]
    except OSError:
        return False
    return any(
        (directory / marker).exists()
        if "/" in marker
        else any(fnmatchcase(name, marker) for name in names)
        for marker in wanted
    )


def look_around(directory: Path, env: Mapping[str, str]) -> dict[str, LspServerConfig]:
    """Return the known servers that are installed and made for what is in a directory."""
    found: dict[str, LspServerConfig] = {}
    for name, known in KNOWN.items():
        if has_root(directory, known.root_markers):
            argvs = (argv for argv in known.programs if find_program(argv[0], env) is not None)
            argv = next(argvs, None)
            if argv is not None:
                found[name] = known.config(argv)
    return found
