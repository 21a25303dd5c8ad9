"""`crush-trio store copy`: copy workspaces from one store into another."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeAlias

import click
import trio

from crush_trio.cli.commands.data.backup import stored_place
from crush_trio.cli.exits import ExitCode, NoData, explain
from crush_trio.cli.options import Invocation, debug_option, pass_invocation, write
from crush_trio.cli.report.reporter import count
from crush_trio.errors import CrushError
from crush_trio.store.copies.backup import StoredPlace, end_of, run_copy, stored_workspaces
from crush_trio.store.copies.rows import Note, NothingToCopy
from crush_trio.store.open import SITE_VARIABLE, StoreSettings, check_site, check_url

_VARIABLE: Final = "env:"

StoreName: TypeAlias = StoreSettings | Path
"""A store: by its URL, or by the directory of its only workspace."""


@click.group()
@debug_option
def store() -> None:
    """Copy stored data from one store into another."""


@store.command()
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.option(
    "--workspace",
    "workspaces",
    metavar="PATH",
    multiple=True,
    help="The directory of a workspace to copy; may be repeated. By default all of a PostgreSQL database "
    "at this site.",
)
@click.option("--dry-run", is_flag=True, help="Count what would be copied, and write nothing.")
@debug_option
@pass_invocation
def copy(
    invocation: Invocation, source: str, target: str, workspaces: tuple[str, ...], dry_run: bool
) -> int:
    """Copy workspaces from one store into another, and compare them row by row.

    FROM and TO are each a directory that was worked in, with its SQLite file; `sqlite:`, the files of the
    workspaces that are named; postgresql://HOST/DATABASE; or env:NAME, a variable with such a URL, for one
    with a password. In PostgreSQL a workspace is known by its site, see CRUSH_TRIO_SITE.

    No server may have the workspace open. FROM is not changed. TO must have no data of the workspace; it
    gets all of it or nothing.
    """
    ends = [_named(text, invocation.environ) for text in (source, target)]
    paths = [str(Path(path).absolute()) for path in workspaces]
    if isinstance(ends[0], Path):
        if paths:
            raise click.UsageError("a directory is one workspace; write sqlite: for several")
        paths = [str(ends[0])]
    elif not ends[0].shared and not paths:
        raise click.UsageError("sqlite: has no list of workspaces; name them with --workspace")
    return invocation.run(copy_stores, invocation.environ, ends[0], ends[1], paths, dry_run)


def _named(text: str, environ: Mapping[str, str]) -> StoreName:
    """Return the store that an argument names."""
    if text.startswith(_VARIABLE):
        name = text.removeprefix(_VARIABLE)
        text = environ.get(name, "")
        if not text:
            raise click.UsageError(f"the variable {name} is not set")
    if ":" not in text or Path(text).is_dir():
        return Path(text).absolute()
    settings = StoreSettings(text, environ.get(SITE_VARIABLE, ""))
    check_url(settings)
    check_site(settings)
    return settings


async def copy_stores(
    environ: Mapping[str, str],
    source: StoreName,
    target: StoreName,
    paths: Sequence[str],
    dry_run: bool,
) -> int:
    """Copy workspaces; return the exit code. Of several, one that cannot be copied does not stop the others."""
    await trio.lowlevel.checkpoint()
    if not paths:
        assert isinstance(source, StoreSettings)
        paths = await stored_workspaces(source)
        if not paths:
            raise NothingToCopy(f"the database has none of the site {source.named_site}")
    if isinstance(target, Path) and len(paths) > 1:
        raise click.UsageError("a directory is one workspace; name it with --workspace")
    failed = 0
    for path in paths:
        try:
            await _copy(environ, source, target, path, dry_run)
        except CrushError as error:
            if len(paths) == 1:
                raise
            what, advice = explain(error)
            click.echo(f"crush-trio: {path}: {what}" + (f"; {advice}" if advice else ""), err=True)
            failed += 1
    if failed:
        write(f"{count(failed, 'workspace')} of {len(paths)} could not be copied.\n")
    return ExitCode.FAILED if failed else ExitCode.OK


async def _copy(
    environ: Mapping[str, str], source: StoreName, target: StoreName, path: str, dry_run: bool
) -> None:
    found = await _place(environ, source, Path(path))
    wanted = await _place(environ, target, found.directory)
    ends = end_of(found), end_of(wanted)
    if ends[0].label == ends[1].label:
        raise click.UsageError(f"FROM and TO are both {ends[0].label}")
    with _progress(path) as note:
        copied = await run_copy(*ends, note=note, dry_run=dry_run)
    told = ", ".join(
        (
            count(copied.sessions, "session"),
            count(copied.messages, "message"),
            count(copied.rows, "row"),
        )
    )
    if dry_run:
        write(f"Would copy {ends[0].label} to {ends[1].label}: {told}.\n")
    else:
        write(f"Copied {ends[0].label} to {ends[1].label}: {told}, compared one by one.\n")


async def _place(environ: Mapping[str, str], store_name: StoreName, directory: Path) -> StoredPlace:
    """Return where a store has the data of a workspace."""
    if isinstance(store_name, Path):
        return await stored_place(StoreSettings(), environ, store_name)
    if not store_name.shared and not await trio.Path(directory).is_dir():
        raise NoData(
            f"{directory} is no directory of this machine, so that it has no data directory"
        )
    return await stored_place(store_name, environ, directory)


@contextmanager
def _progress(path: str) -> Iterator[Note]:
    """Yield what shows the number of rows on a terminal while they are copied; it is called in a thread."""
    shown = sys.stderr.isatty()

    def note(rows: int) -> None:
        if shown:
            print(f"\r{path}: {rows:,} rows", end="", file=sys.stderr, flush=True)

    try:
        yield note
    finally:
        if shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
