"""`crush-trio import`: import the sessions of the Go program."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import click
import trio
from rich.console import Group, RenderableType
from rich.text import Text

from crush_trio.cli.configuration import configuration_of
from crush_trio.cli.import_hint import GO_NAME
from crush_trio.cli.options import (
    Invocation,
    cwd_option,
    debug_option,
    directory_of,
    pass_invocation,
    print_report,
)
from crush_trio.cli.report.reporter import count
from crush_trio.store.go_import import ImportReport, NotCrushDatabase, import_go_database
from crush_trio.store.open import StoreSettings, open_store

_DATA_NAME: Final = ".crush"


@click.command("import")
@click.argument("path", type=click.Path(exists=True))
@click.option(
    "--root",
    metavar="DIR",
    help="The directory in which Crush was started, for relative paths in the file; by "
    "default the one that contains the `.crush` of the file.",
)
@cwd_option
@debug_option
@pass_invocation
def import_sessions(invocation: Invocation, path: str, root: str | None, cwd: str) -> int:
    """Import the sessions of Crush from PATH.

    PATH is a `crush.db`, or a directory that contains one. The file is not changed. Sessions that are
    already present are skipped, also if Crush has gone on with them, so an import can be repeated.
    """
    place = None if root is None else Path(root).absolute()
    return invocation.run(import_database, invocation.environ, directory_of(cwd), path, place)


async def import_database(
    environ: Mapping[str, str], directory: str, path: str, root: Path | None
) -> int:
    """Import the sessions of a `crush.db` into the store of a directory."""
    file = await trio.to_thread.run_sync(find_database, Path(path))
    config = await configuration_of(Path(directory), environ)
    settings = StoreSettings.from_environment(environ)
    async with open_store(settings, config.data_dir, Path(directory)) as store:
        report = await import_go_database(
            file, store, root=default_root(file) if root is None else root
        )
    print_report(import_text(file, config.data_dir, report))
    return 0


def find_database(path: Path) -> Path:
    """Return the database that *path* is or contains; raises `NotCrushDatabase`."""
    candidates = [path, path / GO_NAME, path / _DATA_NAME / GO_NAME]
    for candidate in candidates:
        if candidate.is_file():
            return candidate.absolute()
    raise NotCrushDatabase(f"there is no {GO_NAME} in {path}")


def default_root(file: Path) -> Path:
    """Return where the Go program was started: the parent of the `.crush` with its file."""
    folder = file.parent
    return folder.parent if folder.name == _DATA_NAME else folder


def import_text(file: Path, data_dir: Path, report: ImportReport) -> RenderableType:
    """Return the report on what was imported and what was left out."""
    if report.sessions or report.files:
        lines = [Text(f"Imported from {file} into {data_dir}:")]
    else:
        lines = [Text(f"Nothing was imported from {file} into {data_dir}:")]
    if report.sessions or not report.known:
        sessions, messages = count(report.sessions, "session"), count(report.messages, "message")
        lines.append(Text(f"  {sessions} with {messages}"))
    if report.files:
        lines.append(Text(f"  {count(report.files, 'version')} of files"))
    if report.known:
        lines.append(Text(f"  {count(report.known, 'session')} already present, not changed"))
    if report.behind:
        text = (
            f"{count(report.behind, 'message')} of these not imported: Crush has gone on with them"
        )
        lines.append(Text(f"  {text}, or they were deleted here", "yellow"))
    for what, times in sorted(report.left_out.items()):
        lines.append(Text(f"  left out {count(times, 'time')}: {what}", "yellow"))
    if report.sessions:
        lines.append(Text("Next: list them with crush-trio sessions", "dim"))
    return Group(*lines)
