"""`open_hosting`: opens what a server serves, its backend and its place in a cluster, for `run` and for ASGI.

With a store that several servers share, the server is a node: it enters the table of nodes before it
answers anything, and its workspaces hold leases. Otherwise nothing of a cluster is imported.
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from attrs import field, frozen

from crush_trio import __version__
from crush_trio.audit.log import AuditLog
from crush_trio.backend.backend import Backend, open_backend
from crush_trio.backend.settings import OpenWorkspace
from crush_trio.backend.workspace import HostedWorkspace, keeps_open, note_people
from crush_trio.server.hosting.register import Register
from crush_trio.server.hosting.reopening import Reopening
from crush_trio.server.roster.recent import RecentDirectories
from crush_trio.server.server import Meters, Server, metered
from crush_trio.server.settings import AdvertiseInvalid, ServerSettings

if TYPE_CHECKING:
    from crush_trio.backend.cluster.node import Node


@asynccontextmanager
async def open_hosting(
    settings: ServerSettings, open_workspace: OpenWorkspace[HostedWorkspace], audit: AuditLog
) -> AsyncIterator[Server]:
    """Open a backend whose workspaces are opened by *open_workspace*, and yield its server.

    Leaving the block closes every workspace, and then leaves the cluster. Raises what keeps a node
    from entering it: `NodeTaken`, a `StoreUnavailable`, `ClusterTokenMissing`; and `AdvertiseInvalid` for an
    address without a shared store, with which the others would wait for it in vain.
    """
    async with AsyncExitStack() as stack:
        node: Node | None = None
        ending = _Ending()
        if settings.clustered:
            from crush_trio.server.cluster.forwarding import open_cluster_node

            node = await stack.enter_async_context(open_cluster_node(settings))
            open_workspace = node.leased(open_workspace, wanted=ending.decided)
        elif settings.cluster.advertise:
            raise AdvertiseInvalid(
                "its store is its own; set CRUSH_TRIO_STORE to the PostgreSQL that all servers share, or"
                " leave --advertise out"
            )
        register = None
        if settings.register is not None and settings.store.scheme == "sqlite":
            register = Register(settings.register)
            open_workspace = register.noted(open_workspace, ending=ending.decided)
        meters = Meters()
        backend = await stack.enter_async_context(
            open_backend(
                metered(open_workspace, meters),
                settings=settings.backend,
                sizes=settings.sizes,
                version=__version__,
                keeps_open=keeps_open,
                note_people=note_people,
                site=settings.store.named_site,
            )
        )
        ending.of.append(backend)
        server = Server(
            backend, meters=meters, audit=audit, recent=RecentDirectories(settings.recent)
        )
        if node is not None:
            from crush_trio.server.cluster.forwarding import open_forwarding
            from crush_trio.server.cluster.rosters import PeerRosters

            server.card = node.card
            server.absent = server.cluster = await stack.enter_async_context(
                open_forwarding(settings, node, backend)
            )
            server.roster.elsewhere = PeerRosters(server.cluster.peers)
        elif register is not None:
            server.absent = Reopening(register, backend)
        yield server


@frozen
class _Ending:
    """Whether workspaces close because the server ends; known before there is a backend."""

    of: list[Backend[HostedWorkspace]] = field(factory=list)

    def decided(self) -> bool:
        """Whether the server is ending, so that other nodes should open its workspaces."""
        return any(backend.shutting_down for backend in self.of)
