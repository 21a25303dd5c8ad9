"""`crush-trio sessions`: list the sessions of a directory; show, rename, summarise or delete one.

And `crush-trio ps`, which lists the sessions of all directories that a server hosts.
"""

import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import click
import trio
from rich.console import Console
from rich.table import Table
from rich.text import Text

from crush_trio.cli.import_hint import ImportHint, import_hint, workspace_hint
from crush_trio.cli.names import find_session
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
from crush_trio.cli.server_link import finds_server, open_directory, open_link
from crush_trio.cli.terminal.screen import Renderer
from crush_trio.cli.terminal.text import one_line
from crush_trio.client.workspace import RemoteWorkspace
from crush_trio.clock import SystemClock
from crush_trio.wire.codec import unstructure
from crush_trio.wire.views import Roster, RosterSession, Session, SessionGroup

_RUNS: Final = 1000
"""The most runs of a session that are asked for."""


@click.group(invoke_without_command=True)
@host_option
@cwd_option
@json_option
@debug_option
@click.pass_context
def sessions(context: click.Context, host: str | None, cwd: str, as_json: bool) -> int:
    """List the sessions of a directory; show or change one.

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
@click.pass_context
def summarize(context: click.Context, session: str) -> int:
    """Summarise a session, so that it goes on with a short history; print the summary."""
    invocation = context.ensure_object(Invocation)
    return invocation.run(summarize_session, invocation.environ, context.meta["target"], session)


@sessions.command()
@click.argument("session", metavar="ID")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@click.pass_context
def delete(context: click.Context, session: str, yes: bool) -> int:
    """Delete a session with all its messages; its runs are cancelled first."""
    if not yes:
        _confirm(f"Delete the session {session} and all its messages?")
    invocation = context.ensure_object(Invocation)
    return invocation.run(delete_session, invocation.environ, context.meta["target"], session)


def _confirm(question: str) -> None:
    """Ask a question; raises `click.Abort` if the answer is no."""
    try:
        agreed = click.confirm(question)
    except click.Abort:
        if sys.stdin is not None and sys.stdin.isatty():
            raise
        click.echo()
        raise click.UsageError(
            "not confirmed, so nothing was deleted; in scripts use --yes"
        ) from None
    if not agreed:
        raise click.Abort


@asynccontextmanager
async def _open(environ: Mapping[str, str], target: Target) -> AsyncIterator[RemoteWorkspace]:
    host, directory = target
    async with (
        open_link(host, environ, start=True) as link,
        open_directory(link, directory, environ, init=False) as workspace,
    ):
        yield workspace


async def list_sessions(environ: Mapping[str, str], target: Target, as_json: bool) -> int:
    """Print the sessions of a directory."""
    found, hint = await _sessions(environ, target)
    if as_json:
        write(json_text([unstructure(session) for session in found], indent=True))
    elif found:
        print_report(sessions_table(found, SystemClock().unix()))
    else:
        write("There are no sessions here yet. Start one with: crush-trio run PROMPT\n")
    if hint and not as_json:
        print_report(Text(hint.line, "yellow"))
    return 0


async def _sessions(
    environ: Mapping[str, str], target: Target
) -> tuple[Sequence[Session], ImportHint | None]:
    """Return the sessions of a directory, without making a database in one that has none, and the hint."""
    host, directory = target
    await trio.lowlevel.checkpoint()
    served = host is not None or await finds_server(environ)
    if not served:
        # Not at the top: most listings come from a server, and this imports half of one.
        from crush_trio.cli.configuration import configuration_of, has_data

        if not await has_data(Path(directory), environ):
            config = await configuration_of(Path(directory), environ)
            return (), await import_hint(config.data_dir, directory)
    async with (
        open_link(host, environ, start=True) as link,
        open_directory(link, directory, environ, init=False) as workspace,
    ):
        return await workspace.sessions.list(), await workspace_hint(link, workspace)


async def show_session(
    environ: Mapping[str, str], target: Target, session: str, as_json: bool
) -> int:
    """Print the messages of a session."""
    async with _open(environ, target) as workspace:
        found = await find_session(workspace, session)
        messages = await workspace.sessions.messages(found.id)
        runs = await workspace.runs.list(found.id, limit=_RUNS)
    if as_json:
        parts = {"session": found, "messages": messages, "runs": runs}
        write(json_text({name: unstructure(part) for name, part in parts.items()}, indent=True))
        return 0
    print_report(_on_one_row(Text(f"{found.id} · {one_line(found.title)}", "dim")))
    console = Console()
    lines = transcript_lines(messages, runs, Renderer.like(console), console.width)
    write("".join(f"{line}\n" for line in lines))
    return 0


async def rename_session(
    environ: Mapping[str, str], target: Target, session: str, title: str
) -> int:
    """Rename a session."""
    async with _open(environ, target) as workspace:
        found = await find_session(workspace, session)
        await workspace.sessions.rename(found.id, title)
    write(f"Renamed {short(found.id)} to: {title}\n")
    return 0


async def summarize_session(environ: Mapping[str, str], target: Target, session: str) -> int:
    """Summarise a session, and print the summary."""
    async with _open(environ, target) as workspace:
        found = await find_session(workspace, session)
        await workspace.summarize(found.id)
        messages = await workspace.sessions.messages(found.id)
    summaries = [message for message in messages if message.is_summary_message]
    if not summaries:
        write(f"There is nothing to summarise in {short(found.id)}.\n")
        return 0
    console = Console()
    lines = transcript_lines(summaries[-1:], (), Renderer.like(console), console.width)
    write("".join(f"{line}\n" for line in lines))
    return 0


async def delete_session(environ: Mapping[str, str], target: Target, session: str) -> int:
    """Delete a session."""
    async with _open(environ, target) as workspace:
        found = await find_session(workspace, session)
        await workspace.sessions.delete(found.id)
    write(f"Deleted {short(found.id)}: {one_line(found.title)}\n")
    return 0


# ── All sessions of a server ────────────────────────────────────────────────────────────────────


@click.command()
@host_option
@json_option
@debug_option
@click.pass_context
def ps(context: click.Context, host: str | None, as_json: bool) -> int:
    """List all sessions of a server, those that need you first."""
    invocation = context.ensure_object(Invocation)
    return invocation.run(print_roster, invocation.environ, host, as_json)


async def print_roster(environ: Mapping[str, str], host: str | None, as_json: bool) -> int:
    """Print the sessions of all workspaces that a server hosts; starts no server."""
    await trio.lowlevel.checkpoint()
    if host is None and not await finds_server(environ):
        nothing = json_text({"workspaces": [], "recent": [], "sessions": []}, indent=True)
        write(nothing if as_json else "No server is running. Start one with: crush-trio serve\n")
        return 0
    async with open_link(host, environ, start=False) as link:
        roster = await link.client.roster()
    if as_json:
        write(json_text(unstructure(roster), indent=True))
    elif roster.sessions:
        print_report(roster_table(roster, SystemClock().unix()))
    else:
        write("The server hosts no session at the moment.\n")
    return 0


_GROUPS: Final = {
    SessionGroup.NEEDS_YOU: ("Needs you", "bold yellow"),
    SessionGroup.WORKING: ("Working", "bold green"),
    SessionGroup.IDLE: ("Idle", "bold"),
}


def roster_table(roster: Roster, now: int) -> Table:
    """Return the sessions of a roster as a table in three groups."""
    names = {workspace.id: workspace.name for workspace in roster.workspaces}
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("Id", no_wrap=True)
    table.add_column("Directory", no_wrap=True, overflow="ellipsis")
    table.add_column("Title", ratio=1, no_wrap=True, overflow="ellipsis")
    table.add_column("State", no_wrap=True)
    table.add_column("Queue", justify="right")
    table.add_column("Cost", justify="right")
    table.add_column("Last used", no_wrap=True)
    for group, (heading, style) in _GROUPS.items():
        rows = [row for row in roster.sessions if row.group is group]
        if rows:
            table.add_row(Text(heading, style))
        for row in rows:
            table.add_row(
                short(row.id),
                Text(one_line(names.get(row.workspace_id, ""))),
                Text(one_line(row.title or "(no title)")),
                _state(row, now),
                str(row.queue or ""),
                f"${row.cost:.2f}" if row.cost else "",
                ago(now - row.updated_at),
            )
    return table


def _state(row: RosterSession, now: int) -> str:
    """Return what a session needs, and for how long its run has been active."""
    told = [need.value for need in row.needs]
    if row.run is not None:
        told.append(f"{max(0, now - row.run.started_at)} s")
    return ", ".join(told)


# ── Formatting ──────────────────────────────────────────────────────────────────────────────────


def sessions_table(found: Sequence[Session], now: int) -> Table:
    """Return sessions as a table."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("Id", no_wrap=True)
    table.add_column("Title", ratio=1, no_wrap=True, overflow="ellipsis")
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


def _on_one_row(text: Text) -> Text:
    """Return *text* cut off at the width of the terminal."""
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def ago(seconds: int) -> str:
    """Return a duration in the past, in the largest unit that fits."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {unit} ago"
    return "now" if seconds < 5 else f"{seconds} s ago"
