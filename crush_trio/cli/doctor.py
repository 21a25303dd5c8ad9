"""`crush-trio doctor`: is everything there that is needed, and what to do if not."""

import click

from crush_trio.cli.invocation import (
    Invocation,
    cwd_option,
    debug_option,
    directory_of,
    host_option,
    pass_invocation,
)


@click.command()
@host_option
@cwd_option
@debug_option
@pass_invocation
def doctor(invocation: Invocation, host: str | None, cwd: str) -> int:
    """Examine this installation, and the directory it is called in.

    Looks at versions, configuration, providers, the server, the data directory and the programs that
    tools use. Keys are never shown. Exit code 1 means that something has to be put right.
    """
    from crush_trio.cli.examination import examine_all

    return invocation.run(examine_all, invocation.environ, host, directory_of(cwd, host))
