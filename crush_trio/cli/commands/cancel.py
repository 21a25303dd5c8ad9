"""`crush-trio cancel`: stop runs, wherever they run, and see that they have stopped.

What `crush-trio cancel` does: find the runs that are meant in any workspace, and stop them.

Only a server that is running has anything to cancel, so none is started for it.
"""

from collections.abc import Mapping

import click
import orjson
from rich.console import Group, RenderableType
from rich.text import Text

from crush_trio.cli.options import (
    Invocation,
    debug_option,
    host_option,
    pass_invocation,
    print_report,
    write,
)
from crush_trio.cli.report.reporter import merged, receipt_table, summary
from crush_trio.cli.server_link import find_run, match_id, open_server
from crush_trio.client.client import Client
from crush_trio.client.workspace import RemoteWorkspace
from crush_trio.errors import RunNotFound
from crush_trio.wire.codec import unstructure
from crush_trio.wire.ids import SessionId
from crush_trio.wire.runs import ReceiptView

_REMEMBERED = 1000
"""How many runs of a workspace are looked at; those that have not ended are the newest."""


async def cancel_runs(
    environ: Mapping[str, str],
    host: str | None,
    target: str | None,
    keep_queue: bool,
    as_json: bool,
) -> int:
    """Cancel what *target* names, or everything, and print the receipt; return the exit code."""
    async with open_server(host, environ, embed=False) as reached:
        receipts = await _cancel_everywhere(reached.client, target, keep_queue=keep_queue)
    if target is not None and not receipts:
        raise RunNotFound(f"{target!r} is neither a session nor a run of this server")
    receipt = merged(receipts)
    if as_json:
        write(orjson.dumps(unstructure(receipt), option=orjson.OPT_INDENT_2).decode() + "\n")
    else:
        print_report(receipt_report(receipt))
    return 0 if receipt.complete else 1


def receipt_report(receipt: ReceiptView) -> RenderableType:
    """Return a receipt for people."""
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
    runs = await workspace.runs.list(limit=_REMEMBERED)
    busy = dict.fromkeys(run.session_id for run in runs if not run.state.terminal)
    return [await workspace.cancel(session_id, keep_queue=keep_queue) for session_id in busy]


async def _cancel_named(
    workspace: RemoteWorkspace, target: str, *, keep_queue: bool
) -> list[ReceiptView]:
    """Cancel the session or the run of this name; no receipt if the workspace has neither."""
    sessions = await workspace.sessions.list()
    session = match_id(target, (each.id for each in sessions))
    if session is not None:
        return [await workspace.cancel(SessionId(session), keep_queue=keep_queue)]
    run = find_run(target, await workspace.runs.list(limit=_REMEMBERED))
    return [] if run is None else [await workspace.runs.cancel(run)]


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

    return invocation.run(cancel_runs, invocation.environ, host, target, keep_queue, as_json)
