"""`crush-trio trust`: show what a project wants, and trust it; list and remove trusted directories.

It works on the user's own file and needs no server. A server that has the directory open reads the file
again before the next prompt.
"""

import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import click
import trio
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from crush_trio.audit.record import Action
from crush_trio.cli.audited import record_change
from crush_trio.cli.configuration import places_of
from crush_trio.cli.exits import ExitCode, NotTrusted
from crush_trio.cli.options import (
    Invocation,
    debug_option,
    directory_of,
    pass_invocation,
    print_report,
)
from crush_trio.cli.terminal.text import one_line
from crush_trio.config.edits import Change, distrust_directory, trust_directory, write_change
from crush_trio.config.files import check_types, read_tree, without_malformed
from crush_trio.config.load import Draft, read_draft
from crush_trio.config.sources import Places, is_trusted, real_path
from crush_trio.config.trust.wishes import Wishes
from crush_trio.providers.catalog import catalog_providers

LINES = 20
"""How many wishes of each kind are printed."""


@click.command()
@click.argument("directory", required=False)
@click.option("-l", "--list", "listed", is_flag=True, help="List the trusted directories.")
@click.option("-r", "--remove", "removed", is_flag=True, help="Trust DIRECTORY no longer.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask before trusting.")
@debug_option
@pass_invocation
def trust(
    invocation: Invocation, directory: str | None, listed: bool, removed: bool, yes: bool
) -> int:
    """Trust the configuration files of DIRECTORY.

    The default is the current directory. Prints what these files want to do, and asks before trusting. Everything
    below the directory is trusted with it, also files that are added or changed later.
    """
    if listed and removed:
        raise click.UsageError("--list and --remove cannot be combined; leave one out")
    if listed and directory is not None:
        raise click.UsageError("--list lists all trusted directories; leave out DIRECTORY")
    environ = invocation.environ
    if listed:
        return invocation.run(list_trusted, environ)
    named = directory_of(directory or ".", hint="DIRECTORY", exists=not removed)
    path = real_path(Path(named))
    if not _is_text(path):
        raise click.BadParameter(f"{str(path)!r} is not valid UTF-8; rename the directory")
    if removed:
        return invocation.run(remove_trust, environ, path)
    return invocation.run(add_trust, environ, path, not yes)


def _is_text(path: Path) -> bool:
    """Whether *path* can be written into a JSON file."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return False
    return True


async def add_trust(environ: Mapping[str, str], directory: Path, ask: bool) -> int:
    """Print what a project wants, and trust its directory; return the exit code."""
    draft = await _draft(directory, environ)
    if is_trusted(directory, draft.trusted):
        print_report(Text(one_line(f"{directory} is trusted already.")))
        return ExitCode.OK
    print_report(wishes_report(draft.wishes, directory))
    if ask and not await trio.to_thread.run_sync(_confirmed):
        print_report(
            Text("Not trusted; nothing was changed. In a script, --yes trusts without asking.")
        )
        return ExitCode.FAILED
    await _write(trust_directory(directory), draft)
    await _record(environ, "trusted", directory)
    print_report(
        Text.assemble(
            ("✓ ", "green"), one_line(f"{directory} is trusted, in {draft.places.data_file}.")
        )
    )
    return ExitCode.OK


def _confirmed() -> bool:
    print("Trust this directory? [y/N] ", end="", flush=True)
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


async def remove_trust(environ: Mapping[str, str], directory: Path) -> int:
    """Remove a directory from the trusted ones; raises `NotTrusted` if it is not removable."""
    places = places_of(directory, environ)
    found = await trio.to_thread.run_sync(trusted_in_files, places)
    files = [file for file, path in found if path == directory]
    above = [path for _, path in found if path != directory and directory.is_relative_to(path)]
    others = [file for file in files if file != places.data_file]
    if not files:
        reason = "it is not in the list; see crush-trio trust --list"
        if above:
            reason = f"it is below {above[0]}; remove that one"
        raise NotTrusted(f"{directory}: {reason}")
    if places.data_file in files:
        await _write(distrust_directory(directory, places), await _draft(directory, environ))
        await _record(environ, "no longer trusted", directory)
    if others:
        raise NotTrusted(f"{directory}: it is also listed in {others[0]}; edit that file")
    text = f"{directory} is no longer trusted."
    if above:
        text = f"{directory} was removed. It is still trusted, because it is below {above[0]}."
    print_report(Text(one_line(text)))
    return ExitCode.OK


async def list_trusted(environ: Mapping[str, str]) -> int:
    """Print every trusted directory, with the file that names it."""
    places = places_of(Path("/"), environ)
    found = await trio.to_thread.run_sync(trusted_in_files, places)
    lines = [
        Text.assemble(one_line(str(path)), (f"  ({one_line(str(file))})", "dim"))
        for file, path in found
    ]
    print_report(Group(*(lines or [Text("No directory is trusted.", "dim")])))
    return ExitCode.OK


def trusted_in_files(places: Places) -> list[tuple[Path, Path]]:
    """Return each trusted directory, resolved, after the file that names it. Reads the disk."""
    found = []
    for source in places.user_sources():
        tree = read_tree(source.path)
        own = (
            None
            if tree is None
            else check_types(without_malformed(tree)[0], source.path).crush_trio
        )
        for text in () if own is None else own.trusted_directories:
            path = places.expand_home(text)
            if path.is_absolute():
                found.append((source.path, real_path(path)))
    return found


def wishes_report(wishes: Wishes | None, directory: Path) -> RenderableType:
    """Return what a project wants to do, and whether trusting *directory* is enough for that."""
    if wishes is None:
        return Text("The configuration files of this project want nothing that needs trust.")
    files = sorted({str(wish.file) for wish in wishes.items})
    lines = [Text(f"- {one_line(line)}") for line in wishes.lines(LINES)]
    said: list[RenderableType] = [
        Text(f"The files of this project ({one_line(', '.join(files))}) want to:"),
        Padding(Group(*lines), (0, 0, 0, 2)),
    ]
    if directory != wishes.directory and not wishes.directory.is_relative_to(directory):
        above = f"Some of these files are above {directory}; for them: {wishes.command}"
        said.append(Text(one_line(above), "yellow"))
    return Group(*said)


async def _draft(directory: Path, environ: Mapping[str, str]) -> Draft:
    """Return the configuration of a directory as far as it is read without running anything."""
    read = partial(read_draft, places_of(directory, environ), catalogue=catalog_providers())
    return await trio.to_thread.run_sync(read)


async def _write(change: Change, draft: Draft) -> None:
    await write_change(
        change,
        places=draft.places,
        data_dir=draft.data_dir,
        config=draft.config,
        catalogue=catalog_providers(),
    )


async def _record(environ: Mapping[str, str], what: str, directory: Path) -> None:
    await record_change(environ, Action.CONFIG_CHANGED, what, directory=str(directory))
