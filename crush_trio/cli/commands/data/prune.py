"""`crush-trio prune`: delete the sessions of a directory that were not used for long."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import click
from rich.table import Table
from rich.text import Text

from crush_trio.cli.commands.token import duration
from crush_trio.cli.configuration import configuration_of
from crush_trio.cli.options import (
    Invocation,
    cwd_option,
    debug_option,
    directory_of,
    pass_invocation,
    print_report,
    write,
)
from crush_trio.cli.report.reporter import count, short
from crush_trio.cli.server_link import finds_server, open_directory, open_link
from crush_trio.cli.terminal.text import one_line
from crush_trio.clock import SystemClock
from crush_trio.store.errors import StoreLocked
from crush_trio.store.open import StoreSettings, has_data, open_store
from crush_trio.wire.fields import timestamp
from crush_trio.wire.views import Session


@click.command()
@click.option("--dry-run", is_flag=True, help="List what would be deleted, and delete nothing.")
@click.option(
    "--unused-for",
    type=duration,
    metavar="TIME",
    help="Delete what was not used for 12h, 30d or 8w; by default what crush_trio.retention says.",
)
@cwd_option
@debug_option
@pass_invocation
def prune(invocation: Invocation, dry_run: bool, unused_for: int | None, cwd: str) -> int:
    """Delete the sessions of a directory that were not used for long.

    A session with a run that has not ended is kept. A server prunes the directories that it has open by
    itself, as crush_trio.retention says.
    """
    environ, directory = invocation.environ, directory_of(cwd)
    return invocation.run(prune_directory, environ, directory, unused_for, dry_run)


async def prune_directory(
    environ: Mapping[str, str], directory: str, unused_for: int | None, dry_run: bool
) -> int:
    """Delete old sessions, or list them; return the exit code."""
    from crush_trio.backend.retention import limit_of, prune_store, unused_since

    config = await configuration_of(Path(directory), environ)
    now, days = SystemClock().unix(), config.retention.sessions
    if unused_for is None and not days:
        write(
            "Everything is kept: crush_trio.retention says nothing else. Give a time with --unused-for.\n"
        )
        return 0
    before = limit_of(days, now) if unused_for is None else now - unused_for
    settings = StoreSettings.from_environment(environ)
    if not await has_data(settings, config.data_dir, Path(directory)):
        write("There are no sessions here.\n")
        return 0
    if dry_run:
        _print(unused_since(await _listed(environ, directory, config.data_dir), before), "would be")
        return 0
    try:
        async with open_store(settings, config.data_dir, Path(directory)) as store:
            gone = await prune_store(store, before)
    except StoreLocked as error:
        raise StoreLocked(
            f"{error.detail}; it prunes this directory itself every hour, as crush_trio.retention says"
        ) from None
    _print(gone, "was" if len(gone) == 1 else "were")
    return 0


async def _listed(environ: Mapping[str, str], directory: str, data_dir: Path) -> Sequence[Session]:
    """Return the sessions, from the server if one has the directory open."""
    try:
        settings = StoreSettings.from_environment(environ)
        async with open_store(settings, data_dir, Path(directory)) as store:
            return await store.sessions()
    except StoreLocked:
        if not await finds_server(environ):
            raise
    async with (
        open_link(None, environ, start=True) as link,
        open_directory(link, directory, environ, init=False) as workspace,
    ):
        return await workspace.sessions.list()


def _print(sessions: Sequence[Session], verb: str) -> None:
    if not sessions:
        write("No session is old enough.\n")
        return
    table = Table("id", "last used", "title", box=None, pad_edge=False)
    for each in sessions:
        used = str(timestamp(each.updated_at))
        table.add_row(Text(short(each.id)), Text(used), Text(one_line(each.title or "(no title)")))
    print_report(table)
    write(f"{count(len(sessions), 'session')} {verb} deleted.\n")
