"""`crush-trio attach`: a session as it lives, and a place to take part."""

import click

from crush_trio.cli.invocation import (
    Invocation,
    cwd_option,
    debug_option,
    directory_of,
    host_option,
    is_interactive,
    pass_invocation,
)


@click.command()
@click.argument("session", required=False, metavar="[SESSION]")
@host_option
@cwd_option
@click.option("--new", is_flag=True, help="Begin a new session.")
@debug_option
@pass_invocation
def attach(
    invocation: Invocation, session: str | None, host: str | None, cwd: str, new: bool
) -> int:
    """Watch SESSION live and take part in it; by default the last one of the directory.

    Type and press Enter to prompt, also while others do. Alt-Enter begins a new line. What the agent
    asks is answered here. Escape or Ctrl-C cancels what runs. Ctrl-D leaves.

    Without a server, one is started that ends when you leave.
    """
    if session is not None and new:
        raise click.UsageError("--new begins a session of its own; leave out SESSION")
    if not is_interactive(invocation.environ):
        raise click.UsageError(
            "this needs a terminal; in scripts use: crush-trio run --session ID PROMPT"
        )
    from crush_trio.cli.attached import attach_to

    place = host, directory_of(cwd, host)
    return invocation.run(attach_to, invocation.environ, place, session, new)
