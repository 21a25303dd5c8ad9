"""`crush-trio capsule`: write the recording of a run to a file."""

import os
from collections.abc import Mapping
from pathlib import Path

import click
import orjson
import trio

from crush_trio.cli.names import find_run
from crush_trio.cli.options import (
    Invocation,
    cwd_option,
    debug_option,
    directory_of,
    host_option,
    pass_invocation,
    write,
)
from crush_trio.cli.server_link import open_directory, open_link
from crush_trio.wire.ids import RunId

_LISTED = 1000
"""How many runs are searched for one whose id was shortened."""

_MODE = 0o600
"""The mode of the file: it holds what the run has seen."""


@click.command()
@click.argument("run", metavar="RUN")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The file to write; by default RUN.capsule.",
)
@host_option
@cwd_option
@debug_option
@pass_invocation
def capsule(
    invocation: Invocation, run: str, output: Path | None, host: str | None, cwd: str
) -> int:
    """Write what a recorded run saw to a file.

    RUN is the id of a run of the directory, or its first characters. The run must have been recorded:
    `crush-trio run --record`. `crush-trio replay` replays the file.
    """
    directory = directory_of(cwd, host)
    return invocation.run(write_capsule, invocation.environ, host, directory, run, output)


async def write_capsule(
    environ: Mapping[str, str], host: str | None, directory: str, run: str, output: Path | None
) -> int:
    """Fetch the capsule of *run* and write it; return the exit code."""
    async with (
        open_link(host, environ, start=True) as link,
        open_directory(link, directory, environ, interactive=False) as workspace,
    ):
        found = find_run(run, await workspace.runs.list(limit=_LISTED))
        if found is None:
            found = (await workspace.runs.get(RunId(run))).id
        data = await workspace.runs.capsule(found)
    file = output or Path(f"{run}.capsule")
    try:
        await trio.to_thread.run_sync(_save, file, data)
    except OSError as error:
        raise click.ClickException(f"{file} cannot be written: {error.strerror}") from error
    write(f"{file}: {len(data):,} bytes{_about(data)}\n")
    return 0


def _save(file: Path, data: bytes) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _MODE)
    with os.fdopen(descriptor, "wb") as opened:
        opened.write(data)


def _about(data: bytes) -> str:
    """Return what the last line says: what was redacted, and whether something is missing."""
    end = orjson.loads(data.rstrip().rpartition(b"\n")[2])
    redacted = ", ".join(f"{name} ({count})" for name, count in end.get("redacted", {}).items())
    said = [f"redacted: {redacted}"] if redacted else []
    if not end["complete"]:
        said.append(f"not complete, the run is {end['state']}")
    return "".join(f"; {each}" for each in said)
