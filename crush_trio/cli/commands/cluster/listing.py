"""`crush-trio cluster`: list the servers of a database, and the workspaces that each of them runs."""

from collections.abc import Iterable, Mapping

import click
import trio
from rich.table import Table
from rich.text import Text

from crush_trio.backend.cluster.view import cluster_view
from crush_trio.cli.options import (
    Invocation,
    debug_option,
    host_option,
    json_option,
    json_text,
    pass_invocation,
    print_report,
    write,
)
from crush_trio.cli.report.reporter import count
from crush_trio.cli.server_link import finds_server, open_link
from crush_trio.cli.terminal.text import one_line
from crush_trio.store.open import StoreSettings, read_cluster
from crush_trio.wire.codec import unstructure
from crush_trio.wire.views import ClusterView, LeaseView, NodeView

NO_SERVER = "No server is running. Name one with --host, or the database with --store\n"


@click.command()
@host_option
@click.option(
    "--store",
    metavar="URL",
    help="Ask this database itself, which also tells when no server is left.",
)
@json_option
@debug_option
@pass_invocation
def cluster(invocation: Invocation, host: str | None, store: str | None, as_json: bool) -> int:
    """List the servers that share a database, and what each runs.

    Any of them answers for all. A server with a store of its own is the only one.
    """
    return invocation.run(print_cluster, invocation.environ, host, store, as_json)


async def print_cluster(
    environ: Mapping[str, str], host: str | None, store: str | None, as_json: bool
) -> int:
    """Print the servers of a database; starts none."""
    await trio.lowlevel.checkpoint()
    if store is not None:
        nodes, standings = await read_cluster(StoreSettings(store))
        view = cluster_view(nodes, standings, node="")
    elif host is None and not await finds_server(environ):
        write(json_text(None) if as_json else NO_SERVER)
        return 0
    else:
        async with open_link(host, environ, start=False) as link:
            view = await link.client.cluster()
    if as_json:
        write(json_text(unstructure(view), indent=True))
    else:
        print_report(cluster_table(view))
    return 0


def cluster_table(view: ClusterView) -> Table:
    """Return the servers as a table, each with its workspaces below."""
    table = Table.grid(padding=(0, 1))
    for node in view.nodes:
        mark, style = _state(node)
        head = Text(one_line(node.id), "bold")
        if node.id == view.node and len(view.nodes) > 1:
            head.append(" (answers)", "not bold")
        table.add_row(Text(mark, style), head, Text(one_line(_about(node))))
        _add_leases(table, node.leases)
    if view.others:
        table.add_row(Text("!", "yellow"), Text("no servers", "bold"), Text("other processes"))
        _add_leases(table, view.others, holder=True)
    if not view.nodes:
        table.add_row("", "no server has used this database in the last day", "")
    elif not view.shared:
        table.add_row("", "", Text("its store is its own; it shares no workspace", "italic"))
    return table


def _state(node: NodeView) -> tuple[str, str]:
    if not node.alive:
        return "✗", "red"
    return ("!", "yellow") if node.draining else ("✓", "green")


def _about(node: NodeView) -> str:
    """Return one line about a server."""
    state = "draining" if node.draining else "alive"
    seen = f"{state if node.alive else 'gone'}, seen {node.seen_seconds:.0f} s ago"
    where = f"process {node.pid} on {node.host}, version {node.version}"
    site = f"site {node.site}, " if node.site else ""
    unreachable = "" if node.address or not node.site else ", the others cannot ask it"
    return f"{seen}, {site}{where}, {count(len(node.leases), 'workspace')}{unreachable}"


def _add_leases(table: Table, leases: Iterable[LeaseView], *, holder: bool = False) -> None:
    for lease in leases:
        told = f"epoch {lease.epoch}, {lease.seconds:.0f} s left, {lease.path}"
        told += f" of site {lease.site}, {lease.holder}" if holder else ""
        table.add_row("", Text(f"  {lease.workspace_id}"), Text(one_line(told)))
