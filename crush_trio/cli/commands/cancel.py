"""`crush-trio cancel`: cancel runs in any workspace of a server, and print the receipt.

It needs a running server: an embedded one would have no runs.
"""

from collections.abc import Mapping

import click
from rich.console import Group, RenderableType
from rich.text import Text

from crush_trio.cli.names import find_run, match_id
from crush_trio.cli.options import (
    Invocation,
    debug_option,
    host_option,
    json_text,
    pass_invocation,
    print_report,
    write,
)
from crush_trio.cli.report.reporter import merged, receipt_table, summary
from crush_trio.cli.server_link import open_link
from crush_trio.client.client import Client
from crush_trio.client.workspace import RemoteWorkspace
from crush_trio.errors import RunNotFound
from crush_trio.wire.answers import ReceiptView
from crush_trio.wire.codec import unstructure
from crush_trio.wire.ids import SessionId

_LISTED = 1000
"""How many runs of a workspace are read; runs that have not ended are among the newest."""


@click.command()
@click.argument("target", required=False, metavar="[SESSION|RUN]")
@click.option("--all", "everything", is_flag=True, help="Cancel every run of the server.")
@click.option("--keep-queue", is_flag=True, help="Do not cancel queued prompts.")
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
    """Cancel the runs of a session, or one run; print the receipt.

    An id may be shortened to its first characters. Queued prompts of a session are cancelled too; with
    --keep-queue they stay, and the next one runs. The receipt says which runs ended, how long that
    took, and which processes were stopped. Exit code 1 means that something was not found or still runs.
    """
    if (target is None) != everything:
        raise click.UsageError("name a SESSION or RUN to cancel, or use --all for every run")

    return invocation.run(cancel_runs, invocation.environ, host, target, keep_queue, as_json)


async def cancel_runs(
    environ: Mapping[str, str],
    host: str | None,
    target: str | None,
    keep_queue: bool,
    as_json: bool,
) -> int:
    """Cancel the session or run *target*, or all runs, and print the receipt; return the exit code."""
    async with open_link(host, environ, start=False) as link:
        receipts = await _cancel_everywhere(link.client, target, keep_queue=keep_queue)
    if target is not None and not receipts:
        raise RunNotFound(f"{target!r} is neither a session nor a run of this server")
    receipt = merged(receipts)
    if as_json:
        write(json_text(unstructure(receipt), indent=True))
    else:
        print_report(receipt_report(receipt))
    return 0 if receipt.complete else 1


def receipt_report(receipt: ReceiptView) -> RenderableType:
    """Return a receipt as a table and a sentence."""
    table = [receipt_table(receipt)] if receipt.hits else []
    return Group(*table, Text(summary(receipt)))


async def _cancel_everywhere(
    client: Client, target: str | None, *, keep_queue: bool
) -> list[ReceiptView]:
    receipts = []
    for hosted in await client.workspaces():
        async with client.open_workspace(hosted.path, init=False) as workspace:
            if target is None:
                receipts += await _cancel_all(workspace, keep_queue=keep_queue)
            else:
                receipts += await _cancel_named(workspace, target, keep_queue=keep_queue)
    return receipts


async def _cancel_all(workspace: RemoteWorkspace, *, keep_queue: bool) -> list[ReceiptView]:
    runs = await workspace.runs.list(limit=_LISTED)
    busy = dict.fromkeys(run.session_id for run in runs if not run.state.terminal)
    return [await workspace.cancel(session_id, keep_queue=keep_queue) for session_id in busy]


async def _cancel_named(
    workspace: RemoteWorkspace, target: str, *, keep_queue: bool
) -> list[ReceiptView]:
    """Cancel the session or run with this id; return no receipt if the workspace has neither."""
    sessions = await workspace.sessions.list()
    session = match_id(target, (each.id for each in sessions))
    if session is not None:
        return [await workspace.cancel(SessionId(session), keep_queue=keep_queue)]
    run = find_run(target, await workspace.runs.list(limit=_LISTED))
    return [] if run is None else [await workspace.runs.cancel(run)]
