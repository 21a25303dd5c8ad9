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
from crush_trio.store.copies.backup import CopyReport, StoredPlace, back_up
from crush_trio.store.copies.backup import restore as restore_copy
from crush_trio.store.open import StoreSettings, has_data

_FILES: Final = StoreSettings()

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
    machine has open. The server goes on meanwhile. FILE must not exist; it is a SQLite file also if
    CRUSH_TRIO_STORE names a PostgreSQL database.
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
    another name. A PostgreSQL database in CRUSH_TRIO_STORE must have no data of DIRECTORY.
    """
    place = Path(directory).absolute()
    return invocation.run(restore_directory, invocation.environ, Path(file), place)


async def back_up_directory(
    environ: Mapping[str, str], host: str | None, named: str, place: Path, file: Path
) -> int:
    """Make a backup of the directory *place*, or the workspace *named*; return the exit code."""
    found = await _find_data(environ, host, named, place)
    try:
        report = await back_up(found, file)
    except FileExistsError:
        raise FileInTheWay(str(file)) from None
    write(f"Copied {_name(found)} to {file}: {_told(report)}.\n")
    return 0


async def restore_directory(environ: Mapping[str, str], file: Path, place: Path) -> int:
    """Restore a backup; return the exit code."""
    found = await stored_place(StoreSettings.from_environment(environ), environ, place)
    report, former = await restore_copy(file, found)
    write(f"Restored {file} into {_name(found)}: {_told(report)}.\n")
    if former is not None:
        write(f"The former data is in {former}.\n")
    return 0


async def stored_place(
    settings: StoreSettings, environ: Mapping[str, str], place: Path
) -> StoredPlace:
    """Return where the data of *place* is: a directory that was worked in, or a data directory with a file."""
    if await has_data(_FILES, place):
        return StoredPlace(settings=settings, directory=place.parent, data_dir=place)
    if settings.shared:  # what the configuration says about directories is for files
        return StoredPlace(settings=settings, directory=place, data_dir=place)
    data_dir = (await configuration_of(place, environ)).data_dir
    return StoredPlace(settings=settings, directory=place, data_dir=data_dir)


async def _find_data(
    environ: Mapping[str, str], host: str | None, named: str, place: Path
) -> StoredPlace:
    """Return where the data that *place* or *named* leads to is; raises `NoData`."""
    settings = StoreSettings.from_environment(environ)
    if await trio.Path(place).is_dir():
        found = await stored_place(settings, environ, place)
    elif len(named) >= _PREFIX and "/" not in named:
        found = await _data_of_workspace(settings, environ, host, named)
    else:
        raise NoData(f"{named} is no directory")
    if not await has_data(settings, found.data_dir, found.directory):
        raise NoData(f"{_name(found)} has none")
    return found


async def _data_of_workspace(
    settings: StoreSettings, environ: Mapping[str, str], host: str | None, named: str
) -> StoredPlace:
    async with open_link(host, environ, start=False) as link:
        found = [each for each in await link.client.workspaces() if each.id.startswith(named)]
    if len(found) != 1 or not link.local:
        raise NoData(f"{named} is no directory here, and not the id of one open workspace")
    directory = Path(found[0].path)
    data_dir = (await configuration_of(directory, environ)).data_dir
    if found[0].data_dir:
        data_dir = directory / found[0].data_dir
    return StoredPlace(settings=settings, directory=directory, data_dir=data_dir)


def _name(place: StoredPlace) -> str:
    """Return what a person calls the place of some data."""
    return f"{place.directory} in PostgreSQL" if place.settings.shared else str(place.data_dir)


def _told(report: CopyReport) -> str:
    held = f"{count(report.sessions, 'session')}, {count(report.messages, 'message')}"
    return f"{held}, {report.bytes:,} bytes, schema {report.schema}, intact"
