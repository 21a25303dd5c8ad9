"""`crush-trio replay`: replay a recorded run and compare."""

from pathlib import Path

import click

from crush_trio.cli.options import Invocation, debug_option, pass_invocation, write


@click.command()
@click.argument(
    "file", metavar="FILE", type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@debug_option
@pass_invocation
def replay(invocation: Invocation, file: Path) -> int:
    """Replay a recorded run from FILE, offline, and compare.

    The run is played through the agent and the server of this version, without network, processes or
    files, on a virtual clock. The exit code is 1 if it does something else than was recorded; the
    first difference is printed.
    """
    import trio

    from crush_trio.testing.capsule import replay as play

    # A replay has a Trio loop and a clock of its own, so it runs in a thread.
    result = invocation.run(trio.to_thread.run_sync, play, file)
    write(f"{result}\n")
    return 0 if result.same else 1
