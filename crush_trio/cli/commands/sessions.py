"""`crush-trio sessions`: list the sessions of a directory; show, rename or delete one."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from crush_trio.cli.options import (
    Invocation,
    Target,
    cwd_option,
    debug_option,
    directory_of,
    host_option,
    json_option,
    json_text,
    print_report,
    write,
)
from crush_trio.cli.report.conversation import transcript_lines
from crush_trio.cli.report.reporter import short
from crush_trio.cli.server_link import find_session, has_data, open_directory, open_link
from crush_trio.cli.terminal.screen import Renderer
from crush_trio.cli.terminal.text import one_line
from crush_trio.client.workspace import RemoteWorkspace
from crush_trio.clock import SystemClock
from crush_trio.wire.codec import unstructure
from crush_trio.wire.views import Session


@click.group(invoke_without_command=True)
@host_option
@cwd_option
@json_option
@debug_option
@click.pass_context
def sessions(context: click.Context, host: str | None, cwd: str, as_json: bool) -> int:
    """List the sessions of a directory; show, rename or delete one.

    An ID may be shortened to its first characters.
    """
    context.meta["target"] = host, directory_of(cwd, host)
    if context.invoked_subcommand is not None:
        return 0

    invocation = context.ensure_object(Invocation)
    return invocation.run(list_sessions, invocation.environ, context.meta["target"], as_json)


@sessions.command("list")
@json_option
@click.pass_context
def list_command(context: click.Context, as_json: bool) -> int:
    """List the sessions, the last used first."""
    invocation = context.ensure_object(Invocation)
    return invocation.run(list_sessions, invocation.environ, context.meta["target"], as_json)


@sessions.command()
@click.argument("session", metavar="ID")
@json_option
@click.pass_context
def show(context: click.Context, session: str, as_json: bool) -> int:
    """Print the messages of a session."""
    invocation = context.ensure_object(Invocation)
    target = context.meta["target"]
    return invocation.run(show_session, invocation.environ, target, session, as_json)


@sessions.command()
@click.argument("session", metavar="ID")
@click.argument("title", nargs=-1, required=True)
@click.pass_context
def rename(context: click.Context, session: str, title: tuple[str, ...]) -> int:
    """Rename a session."""
    invocation = context.ensure_object(Invocation)
    target = context.meta["target"]
    return invocation.run(rename_session, invocation.environ, target, session, " ".join(title))


@sessions.command()
@click.argument("session", metavar="ID")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@click.pass_context
def delete(context: click.Context, session: str, yes: bool) -> int:
    """Delete a session with all its messages; its runs are cancelled first."""
    if not yes:
        click.confirm(f"Delete the session {session} and all its messages?", abort=True)
    invocation = context.ensure_object(Invocation)
    return invocation.run(delete_session, invocation.environ, context.meta["target"], session)


@asynccontextmanager
async def _open(environ: Mapping[str, str], target: Target) -> AsyncIterator[RemoteWorkspace]:
    host, directory = target
    async with (
        open_link(host, environ, embed=True) as link,
        open_directory(link, directory, environ, init=False) as workspace,
    ):
        yield workspace


async def list_sessions(environ: Mapping[str, str], target: Target, as_json: bool) -> int:
    """Print the sessions of a directory."""
    found = await _sessions(environ, target)
    if as_json:
        write(json_text([unstructure(session) for session in found], indent=True))
    elif found:
        print_report(sessions_table(found, SystemClock().unix()))
    else:
        print("There are no sessions here yet. Start one with: crush-trio run PROMPT")
    return 0


async def _sessions(environ: Mapping[str, str], target: Target) -> Sequence[Session]:
    """Return the sessions of a directory, without creating a database in one that has none."""
    host, directory = target
    async with open_link(host, environ, embed=True) as link:
        if link.embedded and not await has_data(Path(directory), environ):
            return ()
        async with open_directory(link, directory, environ, init=False) as workspace:
            return await workspace.sessions.list()


async def show_session(
    environ: Mapping[str, str], target: Target, session: str, as_json: bool
) -> int:
    """Print the messages of a session."""
    async with _open(environ, target) as workspace:
        found = await find_session(workspace, session)
        messages = await workspace.sessions.messages(found.id)
    if as_json:
        report = {"session": unstructure(found), "messages": unstructure(messages)}
        write(json_text(report, indent=True))
        return 0
    print_report(Text(f"{one_line(found.title)} · {found.id}", "dim"))
    console = Console()
    lines = transcript_lines(messages, Renderer.like(console), console.width)
    write("".join(f"{line}\n" for line in lines))
    return 0


async def rename_session(
    environ: Mapping[str, str], target: Target, session: str, title: str
) -> int:
    """Rename a session."""
    async with _open(environ, target) as workspace:
        found = await find_session(workspace, session)
        await workspace.sessions.rename(found.id, title)
    print(f"Renamed {short(found.id)} to: {title}")
    return 0


async def delete_session(environ: Mapping[str, str], target: Target, session: str) -> int:
    """Delete a session."""
    async with _open(environ, target) as workspace:
        found = await find_session(workspace, session)
        await workspace.sessions.delete(found.id)
    print(f"Deleted {short(found.id)}: {one_line(found.title)}")
    return 0


# ── Formatting ──────────────────────────────────────────────────────────────────────────────────


def sessions_table(found: Sequence[Session], now: int) -> Table:
    """Return sessions as a table."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("Id", no_wrap=True)
    table.add_column("Title", ratio=1)
    table.add_column("Messages", justify="right")
    table.add_column("Last used", no_wrap=True)
    table.add_column("State", no_wrap=True)
    for session in found:
        table.add_row(
            short(session.id),
            Text(one_line(session.title or "(no title)")),
            str(session.message_count),
            ago(now - session.updated_at),
            Text("busy", "yellow") if session.is_busy else "",
        )
    return table


def ago(seconds: int) -> str:
    """Return a duration in the past, in the largest unit that fits."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {unit} ago"
    return "now" if seconds < 5 else f"{seconds} s ago"
