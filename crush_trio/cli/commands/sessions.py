"""`crush-trio sessions`: the conversations of a directory.

What `crush-trio sessions` does.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeAlias

import click
import orjson
from rich.console import Console
from rich.table import Table
from rich.text import Text

from crush_trio.cli.options import (
    Invocation,
    cwd_option,
    debug_option,
    directory_of,
    host_option,
    print_report,
    write,
)
from crush_trio.cli.report.conversation import Conversation
from crush_trio.cli.report.reporter import short
from crush_trio.cli.server_link import find_session, has_data, open_directory, open_server
from crush_trio.cli.terminal.screen import Renderer
from crush_trio.cli.terminal.text import one_line
from crush_trio.client.messages import GrowingMessage, pieces_between
from crush_trio.client.workspace import RemoteWorkspace
from crush_trio.clock import SystemClock
from crush_trio.wire.codec import unstructure
from crush_trio.wire.messages import Message, Role, ShellCommandPart, TextPart
from crush_trio.wire.views import Session

Place: TypeAlias = tuple[str | None, str]
"""The address of a server, None for the usual one, and a directory."""


@asynccontextmanager
async def _open(environ: Mapping[str, str], place: Place) -> AsyncIterator[RemoteWorkspace]:
    host, directory = place
    async with (
        open_server(host, environ, embed=True) as reached,
        open_directory(reached, directory, environ, init=False) as workspace,
    ):
        yield workspace


async def list_sessions(environ: Mapping[str, str], place: Place, as_json: bool) -> int:
    """Print the sessions of a directory."""
    found = await _sessions(environ, place)
    if as_json:
        _print_json([unstructure(session) for session in found])
    elif found:
        print_report(sessions_table(found, SystemClock().unix()))
    else:
        print("There are no sessions here yet. Begin one with: crush-trio run PROMPT")
    return 0


async def _sessions(environ: Mapping[str, str], place: Place) -> Sequence[Session]:
    """Return the sessions of a directory; one that has none yet is left as it is."""
    host, directory = place
    async with open_server(host, environ, embed=True) as reached:
        if reached.embedded and not await has_data(Path(directory), environ):
            return ()
        async with open_directory(reached, directory, environ, init=False) as workspace:
            return await workspace.sessions.list()


async def show_session(
    environ: Mapping[str, str], place: Place, session: str, as_json: bool
) -> int:
    """Print the messages of a session."""
    async with _open(environ, place) as workspace:
        found = await find_session(workspace, session)
        messages = await workspace.sessions.messages(found.id)
    if as_json:
        _print_json({"session": unstructure(found), "messages": unstructure(messages)})
        return 0
    print_report(Text(f"{one_line(found.title)} · {found.id}", "dim"))
    console = Console()
    lines = transcript_lines(messages, Renderer.like(console), console.width)
    write("".join(f"{line}\n" for line in lines))
    return 0


async def rename_session(environ: Mapping[str, str], place: Place, session: str, title: str) -> int:
    """Give a session another title."""
    async with _open(environ, place) as workspace:
        found = await find_session(workspace, session)
        await workspace.sessions.rename(found.id, title)
    print(f"{short(found.id)} is now called {title}")
    return 0


async def delete_session(environ: Mapping[str, str], place: Place, session: str) -> int:
    """Delete a session."""
    async with _open(environ, place) as workspace:
        found = await find_session(workspace, session)
        await workspace.sessions.delete(found.id)
    print(f"Deleted {short(found.id)}: {one_line(found.title)}")
    return 0


def _print_json(value: object) -> None:
    write(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode() + "\n")


# ── How it looks ────────────────────────────────────────────────────────────────────────────────


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
    """Return how long ago something was, in the largest unit that fits."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {unit} ago"
    return "now" if seconds < 5 else f"{seconds} s ago"


def transcript_lines(
    messages: Sequence[Message], renderer: Renderer, width: int
) -> tuple[str, ...]:
    """Return a conversation that has been, as lines."""
    conversation = Conversation()
    for message in messages:
        show_message(conversation, message)
    return conversation.finish(renderer.lines, width)


def show_message(conversation: Conversation, message: Message) -> None:
    """Show a whole message: what a person said, or what an agent said and did."""
    if message.role is Role.USER:
        conversation.prompt(prompt_text(message))
        return
    for piece in pieces_between(None, GrowingMessage(message).view()):
        conversation.tell(piece)


def prompt_text(message: Message) -> str:
    """Return what a person said, or the command that was run instead."""
    said = [part.text for part in message.parts if isinstance(part, TextPart)]
    ran = [f"$ {part.command}" for part in message.parts if isinstance(part, ShellCommandPart)]
    return "\n".join([*said, *ran])


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group(invoke_without_command=True)
@host_option
@cwd_option
@json_option
@debug_option
@click.pass_context
def sessions(context: click.Context, host: str | None, cwd: str, as_json: bool) -> int:
    """List the sessions of a directory, or show, rename or delete one.

    Every ID may be shortened to its first characters.
    """
    context.meta["place"] = host, directory_of(cwd, host)
    if context.invoked_subcommand is not None:
        return 0

    invocation = context.ensure_object(Invocation)
    return invocation.run(list_sessions, invocation.environ, context.meta["place"], as_json)


@sessions.command("list")
@json_option
@click.pass_context
def list_command(context: click.Context, as_json: bool) -> int:
    """List the sessions, the last used first."""

    invocation = context.ensure_object(Invocation)
    return invocation.run(list_sessions, invocation.environ, context.meta["place"], as_json)


@sessions.command()
@click.argument("session", metavar="ID")
@json_option
@click.pass_context
def show(context: click.Context, session: str, as_json: bool) -> int:
    """Print the messages of a session."""

    invocation = context.ensure_object(Invocation)
    place = context.meta["place"]
    return invocation.run(show_session, invocation.environ, place, session, as_json)


@sessions.command()
@click.argument("session", metavar="ID")
@click.argument("title", nargs=-1, required=True)
@click.pass_context
def rename(context: click.Context, session: str, title: tuple[str, ...]) -> int:
    """Give a session another title."""

    invocation = context.ensure_object(Invocation)
    place = context.meta["place"]
    return invocation.run(rename_session, invocation.environ, place, session, " ".join(title))


@sessions.command()
@click.argument("session", metavar="ID")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.pass_context
def delete(context: click.Context, session: str, yes: bool) -> int:
    """Delete a session with everything in it; its runs are stopped first."""

    if not yes:
        click.confirm(f"Delete the session {session} and everything in it?", abort=True)
    invocation = context.ensure_object(Invocation)
    return invocation.run(delete_session, invocation.environ, context.meta["place"], session)
