"""`crush-trio cancel`: stop runs, wherever they run, and see that they have stopped."""

import click

from crush_trio.cli.invocation import (
    Invocation,
    debug_option,
    host_option,
    pass_invocation,
)


@click.command()
@click.argument("target", required=False, metavar="[SESSION|RUN]")
@click.option("--all", "everything", is_flag=True, help="Stop every run of the server.")
@click.option("--keep-queue", is_flag=True, help="Leave alone the prompts that wait.")
@click.option("--json", "as_json", is_flag=True, help="Print the receipt as JSON.")
@host_option
@debug_option
@pass_invocation
def cancel(
    invocation: Invocation,
    target: str | None,
    everything: bool,
    keep_queue: bool,
    as_json: bool,
    host: str | None,
) -> int:
    """Cancel the runs of a session, or one run, and print the receipt.

    An id may be shortened to its first characters. With --keep-queue the next prompt that waits in the
    session then runs; otherwise the waiting prompts are cancelled too. The receipt says what was stopped, how long that
    took, and which processes were ended. Exit code 1 means that something was not found, or still runs.
    """
    if (target is None) != everything:
        raise click.UsageError("say which SESSION or RUN to cancel, or --all for every one")
    from crush_trio.cli.cancelling import cancel_runs

    return invocation.run(cancel_runs, invocation.environ, host, target, keep_queue, as_json)
