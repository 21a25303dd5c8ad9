"""Opens the place of a server in its cluster: the node, and the way to the other ones."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from socket import gethostname

from crush_trio import __version__
from crush_trio.backend.backend import Backend
from crush_trio.backend.cluster.node import Node, open_node
from crush_trio.backend.workspace import HostedWorkspace
from crush_trio.clock import RandomIds, SystemClock
from crush_trio.net.client import open_http_client
from crush_trio.server.cluster.errors import ClusterTokenMissing
from crush_trio.server.cluster.forwarding import Forwarding
from crush_trio.server.cluster.peers import Peers
from crush_trio.server.settings import ServerSettings
from crush_trio.store.open import open_shared_store
from crush_trio.store.shared import NodeCard

IDLE_CONNECTIONS = 16
"""How many unused connections to another node are kept."""


@asynccontextmanager
async def open_cluster_node(settings: ServerSettings) -> AsyncIterator[Node]:
    """Enter the cluster of the store that *settings* name; leaving releases the node's place.

    A server without an address of its own is a node, too: it holds leases, and others cannot ask it.
    """
    if settings.cluster.advertise and settings.guard.token is None:
        raise ClusterTokenMissing
    clock, ids, cluster = SystemClock(), RandomIds(), settings.cluster
    host, pid = gethostname(), os.getpid()
    card = NodeCard(
        id=cluster.advertise or f"{host}/{pid}",
        boot=ids.new(),
        address=cluster.advertise,
        site=settings.store.named_site,
        host=host,
        pid=pid,
        version=__version__,
        started_at=clock.unix(),
    )
    open_store = cluster.open_store or open_shared_store(settings.store, clock=clock, ids=ids)
    async with (
        open_store(card, cluster.lease_ttl) as shared,
        open_node(shared, clock=clock) as node,
    ):
        yield node


@asynccontextmanager
async def open_forwarding(
    settings: ServerSettings, node: Node, backend: Backend[HostedWorkspace]
) -> AsyncIterator[Forwarding]:
    """Open the connections to the other nodes."""
    async with open_http_client(settings.cluster.dial, idle_most=IDLE_CONNECTIONS) as client:
        yield Forwarding(Peers(node, client, settings.guard.token or ""), backend)
