"""`crush-trio sessions`: the conversations of a directory."""

import click

from crush_trio.cli.invocation import (
    Invocation,
    cwd_option,
    debug_option,
    directory_of,
    host_option,
)

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
    from crush_trio.cli.session_commands import list_sessions

    invocation = context.ensure_object(Invocation)
    return invocation.run(list_sessions, invocation.environ, context.meta["place"], as_json)


@sessions.command("list")
@json_option
@click.pass_context
def list_command(context: click.Context, as_json: bool) -> int:
    """List the sessions, the last used first."""
    from crush_trio.cli.session_commands import list_sessions

    invocation = context.ensure_object(Invocation)
    return invocation.run(list_sessions, invocation.environ, context.meta["place"], as_json)


@sessions.command()
@click.argument("session", metavar="ID")
@json_option
@click.pass_context
def show(context: click.Context, session: str, as_json: bool) -> int:
    """Print the messages of a session."""
    from crush_trio.cli.session_commands import show_session

    invocation = context.ensure_object(Invocation)
    place = context.meta["place"]
    return invocation.run(show_session, invocation.environ, place, session, as_json)


@sessions.command()
@click.argument("session", metavar="ID")
@click.argument("title", nargs=-1, required=True)
@click.pass_context
def rename(context: click.Context, session: str, title: tuple[str, ...]) -> int:
    """Give a session another title."""
    from crush_trio.cli.session_commands import rename_session

    invocation = context.ensure_object(Invocation)
    place = context.meta["place"]
    return invocation.run(rename_session, invocation.environ, place, session, " ".join(title))


@sessions.command()
@click.argument("session", metavar="ID")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.pass_context
def delete(context: click.Context, session: str, yes: bool) -> int:
    """Delete a session with everything in it; its runs are stopped first."""
    from crush_trio.cli.session_commands import delete_session

    if not yes:
        click.confirm(f"Delete the session {session} and everything in it?", abort=True)
    invocation = context.ensure_object(Invocation)
    return invocation.run(delete_session, invocation.environ, context.meta["place"], session)
