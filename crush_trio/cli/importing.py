"""`crush-trio import`: take over the sessions of the Go program."""

from pathlib import Path

import click

from crush_trio.cli.invocation import (
    Invocation,
    cwd_option,
    debug_option,
    directory_of,
    pass_invocation,
)


@click.command("import")
@click.argument("path", type=click.Path(exists=True))
@click.option(
    "--root",
    metavar="DIR",
    help="Where the Go program was started, for relative paths in the file; by default the "
    "directory that contains the `.crush` of the file.",
)
@cwd_option
@debug_option
@pass_invocation
def import_sessions(invocation: Invocation, path: str, root: str | None, cwd: str) -> int:
    """Import the sessions of the Go program from PATH.

    PATH is a `crush.db`, or a directory that contains one. The file is only read. Sessions that are
    here already are left alone, so that an import can be repeated.
    """
    from crush_trio.cli.import_report import import_database

    place = None if root is None else Path(root).absolute()
    return invocation.run(import_database, invocation.environ, directory_of(cwd), path, place)
