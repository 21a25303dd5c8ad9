"""`crush-trio backup` and `crush-trio restore`: make a checked copy of a store, and put one back."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import click
import trio

from crush_trio.cli.configuration import configuration_of
from crush_trio.cli.exits import FileInTheWay, NoData
from crush_trio.cli.options import Invocation, debug_option, host_option, pass_invocation, write
from crush_trio.cli.report.reporter import count
from crush_trio.cli.server_link import open_link
from crush_trio.store.backup import CopyReport, back_up
from crush_trio.store.backup import restore as restore_copy
from crush_trio.store.open import StoreSettings, has_data

_PREFIX: Final = 4
"""The fewest characters of a workspace id."""


@click.command()
@click.argument("directory", metavar="DIRECTORY")
@click.argument("file", type=click.Path(dir_okay=False))
@host_option
@debug_option
@pass_invocation
def backup(invocation: Invocation, directory: str, file: str, host: str | None) -> int:
    """Copy the stored data of DIRECTORY to FILE, and check it.

    DIRECTORY is one that was worked in, its data directory, or the id of a workspace that a server on this
    machine has open. The server goes on meanwhile. FILE must not exist.
    """
    place = Path(directory).absolute()
    return invocation.run(back_up_directory, invocation.environ, host, directory, place, Path(file))


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.argument("directory", type=click.Path(exists=True, file_okay=False))
@debug_option
@pass_invocation
def restore(invocation: Invocation, file: str, directory: str) -> int:
    """Put the data in FILE back into DIRECTORY.

    FILE is checked first. No server may have the directory open. The data that was there is kept under
    another name.
    """
    place = Path(directory).absolute()
    return invocation.run(restore_directory, invocation.environ, Path(file), place)


async def back_up_directory(
    environ: Mapping[str, str], host: str | None, named: str, place: Path, file: Path
) -> int:
    """Make a backup of the directory *place*, or the workspace *named*; return the exit code."""
    data_dir = await _find_data(environ, host, named, place)
    try:
        report = await back_up(data_dir, file)
    except FileExistsError:
        raise FileInTheWay(str(file)) from None
    write(f"Copied {data_dir} to {file}: {_told(report)}.\n")
    return 0


async def restore_directory(environ: Mapping[str, str], file: Path, place: Path) -> int:
    """Restore a backup; return the exit code."""
    data_dir = place if await has_data(StoreSettings(), place) else None
    if data_dir is None:
        data_dir = (await configuration_of(place, environ)).data_dir
    report, former = await restore_copy(file, data_dir)
    write(f"Restored {file} into {data_dir}: {_told(report)}.\n")
    if former is not None:
        write(f"The former data is in {former}.\n")
    return 0


async def _find_data(environ: Mapping[str, str], host: str | None, named: str, place: Path) -> Path:
    """Return the data directory that *place* or *named* leads to; raises `NoData`."""
    if await trio.Path(place).is_dir():
        if await has_data(StoreSettings(), place):
            return place
        data_dir = (await configuration_of(place, environ)).data_dir
    elif len(named) >= _PREFIX and "/" not in named:
        data_dir = await _data_of_workspace(environ, host, named)
    else:
        raise NoData(f"{named} is no directory")
    if not await has_data(StoreSettings(), data_dir):
        raise NoData(f"{data_dir} has none")
    return data_dir


async def _data_of_workspace(environ: Mapping[str, str], host: str | None, named: str) -> Path:
    async with open_link(host, environ, start=False) as link:
        found = [each for each in await link.client.workspaces() if each.id.startswith(named)]
    if len(found) != 1 or not link.local:
        raise NoData(f"{named} is no directory here, and not the id of one open workspace")
    data_dir = (await configuration_of(Path(found[0].path), environ)).data_dir
    return Path(found[0].path, found[0].data_dir) if found[0].data_dir else data_dir


def _told(report: CopyReport) -> str:
    held = f"{count(report.sessions, 'session')}, {count(report.messages, 'message')}"
    return f"{held}, {report.bytes:,} bytes, schema {report.schema}, intact"
