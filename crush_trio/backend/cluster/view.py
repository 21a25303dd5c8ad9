"""What people and programs are told about a cluster: its nodes, and their leases."""

import os
from collections import defaultdict
from collections.abc import Iterable
from socket import gethostname
from typing import Final

from crush_trio import __version__
from crush_trio.clock import Clock, IdSource, RandomIds, SystemClock
from crush_trio.store.shared import NodeCard, NodeRow, Standing
from crush_trio.wire.views import ClusterView, LeaseView, NodeView

_CLOCK: Final = SystemClock()
_IDS: Final = RandomIds()


def own_card(
    address: str = "", site: str = "", *, clock: Clock = _CLOCK, ids: IdSource = _IDS
) -> NodeCard:
    """Return the card of this process; without an *address* its id is the host and the process."""
    host, pid = gethostname(), os.getpid()
    return NodeCard(
        id=address or f"{host}/{pid}",
        boot=ids.new(),
        address=address,
        site=site,
        host=host,
        pid=pid,
        version=__version__,
        started_at=clock.unix(),
    )


def alone(card: NodeCard, *, draining: bool) -> ClusterView:
    """Return the answer of a server that shares its store with no other."""
    row = NodeRow(card=card, seconds=1.0, seen_seconds=0.0, draining=draining)
    return ClusterView(shared=False, node=card.id, nodes=(_node(row, ()),))


def cluster_view(
    rows: Iterable[NodeRow], standings: Iterable[Standing], *, node: str
) -> ClusterView:
    """Return how a cluster stands; *node* is the id of the one that answers."""
    held = defaultdict[str, list[LeaseView]](list)
    for standing in standings:
        if standing.owner is not None:
            held[standing.owner.boot].append(_lease(standing, standing.owner.description))
    nodes = tuple(_node(row, held.pop(row.card.boot, ())) for row in rows)
    others = tuple(lease for leases in held.values() for lease in leases)
    return ClusterView(shared=True, node=node, nodes=nodes, others=others)


def _node(row: NodeRow, leases: Iterable[LeaseView]) -> NodeView:
    card = row.card
    return NodeView(
        id=card.id,
        boot=card.boot,
        site=card.site,
        address=card.address,
        host=card.host,
        pid=card.pid,
        version=card.version,
        started_at=card.started_at,
        alive=row.alive,
        draining=row.draining,
        seen_seconds=round(max(0.0, row.seen_seconds), 3),
        leases=tuple(leases),
    )


def _lease(standing: Standing, holder: str) -> LeaseView:
    return LeaseView(
        workspace_id=standing.id,
        site=standing.site,
        path=standing.path,
        epoch=standing.epoch,
        seconds=round(standing.seconds, 3),
        holder=holder,
    )
