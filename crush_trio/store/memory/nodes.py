"""`MemoryDatabase`: what the nodes of a cluster share, in memory; and `MemoryNodes`, one node's way to it.

For simulations and tests of many nodes in one process. It has the same rules as `store.postgres.nodes`, and
the conformance tests compare the two. Each work that a `Link` carries out is one step, as a transaction is.
"""

from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from math import inf
from typing import Final

import trio
from attrs import define, field
from typing_extensions import override

from crush_trio.clock import IdSource
from crush_trio.store.errors import LeaseLost
from crush_trio.store.lease import TAKEN, Lease
from crush_trio.store.memory.leased import DirectLink, LeasedMemoryStore, Link, read_only
from crush_trio.store.memory.store import Kept
from crush_trio.store.shared import Beat, NodeCard, NodeRow, Owner, SharedStore, Standing
from crush_trio.wire.ids import WorkspaceId, workspace_id_of

FORGOTTEN: Final = 86_400.0
"""Seconds for which a node that is gone stays in the table."""

CLOSE_SECONDS: Final = 10.0
"""Seconds that closing waits until what was posted is stored."""


@define(eq=False)
class WorkspaceRow:
    """A workspace and its lease. The lease is that of *node*, the id of a start, until *expires*."""

    number: int
    site: str
    path: str
    terms: str = ""
    wanted: bool = False
    node: str = ""
    holder: NodeCard | None = None
    epoch: int = 0
    expires: float = -inf
    kept: Kept = field(factory=Kept, repr=False)

    @property
    def id(self) -> WorkspaceId:
        """The id of the workspace."""
        return workspace_id_of(self.site, self.path)

    def belongs_to(self, lease: Lease) -> bool:
        """Whether *lease* is the newest one of the workspace, expired or not."""
        return (self.node, self.epoch) == (lease.node, lease.epoch)

    def check(self, lease: Lease) -> None:
        """Raise `LeaseLost` if another start has claimed the workspace since: the fence of every write."""
        if not self.belongs_to(lease):
            raise LeaseLost(TAKEN)


@define(eq=False)
class _NodeEntry:
    """A row of the table of nodes."""

    card: NodeCard
    expires: float
    seen: float
    draining: bool = False


@define(eq=False)
class MemoryDatabase:
    """The tables that nodes share. *now* is its own clock, which alone decides what has expired."""

    now: Callable[[], float] = trio.current_time
    nodes: dict[str, _NodeEntry] = field(factory=dict, init=False)
    workspaces: dict[int, WorkspaceRow] = field(factory=dict, init=False)

    # ── Nodes ───────────────────────────────────────────────────────────────────────────────────

    def enter(self, card: NodeCard, ttl: float) -> NodeRow | None:
        """Enter a node; return the row of another start with its id that has not expired."""
        now = self.now()
        for gone in [key for key, row in self.nodes.items() if row.expires < now - FORGOTTEN]:
            del self.nodes[gone]
        other = self.nodes.get(card.id)
        if other is not None and other.expires > now and other.card.boot != card.boot:
            return self._node_row(other)
        self.nodes[card.id] = _NodeEntry(card, now + ttl, seen=now)
        return None

    def drain(self, card: NodeCard) -> None:
        """Note that a node is about to end."""
        if (row := self._entry(card)) is not None:
            row.draining = True

    def leave(self, card: NodeCard) -> None:
        """Have the row of a node expire at once."""
        if (row := self._entry(card)) is not None:
            row.expires = row.seen = self.now()

    def node_rows(self) -> list[NodeRow]:
        """Return the table of nodes."""
        return [self._node_row(self.nodes[key]) for key in sorted(self.nodes)]

    def beat(
        self, card: NodeCard, ttl: float, leases: Sequence[Lease], watched: Collection[int]
    ) -> Beat | None:
        """Renew the row of a node, and those of its leases that are still its own."""
        row = self._entry(card)
        if row is None:
            return None
        row.seen = self.now()
        expires = row.expires = row.seen + ttl
        own = [lease.workspace for lease in leases if self.row(lease).belongs_to(lease)]
        for number in own:
            self.workspaces[number].expires = expires
        return Beat(own=frozenset(own), watched={each: self.standing(each) for each in watched})

    def _entry(self, card: NodeCard) -> _NodeEntry | None:
        row = self.nodes.get(card.id)
        return row if row is not None and row.card.boot == card.boot else None

    def _node_row(self, row: _NodeEntry) -> NodeRow:
        now = self.now()
        return NodeRow(
            card=row.card,
            seconds=row.expires - now,
            seen_seconds=now - row.seen,
            draining=row.draining,
        )

    # ── Workspaces ──────────────────────────────────────────────────────────────────────────────

    def row(self, lease: Lease) -> WorkspaceRow:
        """Return the row of the workspace of a lease."""
        return self.workspaces[lease.workspace]

    def standings(self) -> list[Standing]:
        """Return the workspaces whose leases hold."""
        found = [self.standing(number) for number in self.workspaces]
        return [each for each in found if each.owner is not None]

    def find(self, workspace_id: WorkspaceId) -> Standing | None:
        """Return how a workspace stands; None if there never was one."""
        found = [row.number for row in self.workspaces.values() if row.id == workspace_id]
        return self.standing(found[0]) if found else None

    def register(self, site: str, path: str) -> Standing:
        """Return how the workspace of a directory stands, making its row."""
        for row in self.workspaces.values():
            if (row.site, row.path) == (site, path):
                return self.standing(row.number)
        number = len(self.workspaces) + 1
        self.workspaces[number] = WorkspaceRow(number, site, path)
        return self.standing(number)

    def claim(self, number: int, card: NodeCard, ttl: float) -> int | Standing:
        """Claim a lease that has expired, and return its epoch; otherwise return how it stands."""
        row, now = self.workspaces[number], self.now()
        if row.expires > now:
            return self.standing(number)
        row.node, row.holder, row.expires = card.boot, card, now + ttl
        row.epoch += 1
        return row.epoch

    def note(self, lease: Lease, terms: str) -> None:
        """Store what a workspace was opened with, and that it is wanted."""
        row = self.row(lease)
        if row.belongs_to(lease):
            row.terms, row.wanted = terms, True

    def release(self, lease: Lease, *, wanted: bool) -> None:
        """Let a lease expire at once; the epoch stays."""
        row = self.row(lease)
        if row.belongs_to(lease):
            row.wanted, row.expires = row.wanted and wanted, -inf

    def standing(self, number: int) -> Standing:
        """Return how a workspace stands."""
        row, now, owner = self.workspaces[number], self.now(), None
        if row.holder is not None and row.expires > now:
            known = (entry.card for entry in self.nodes.values() if entry.card.boot == row.node)
            owner = Owner(boot=row.node, node=next(known, None), description=row.holder.describe())
        return Standing(
            number=number,
            id=row.id,
            site=row.site,
            path=row.path,
            terms=row.terms,
            wanted=row.wanted,
            epoch=row.epoch,
            owner=owner,
            seconds=max(0.0, row.expires - now),
        )


@define(eq=False)
class MemoryNodes(SharedStore):
    """The tables of a cluster in memory, as one of its nodes uses them."""

    card: NodeCard
    ttl: float
    _database: MemoryDatabase = field(repr=False)
    _ids: IdSource = field(repr=False)
    _link: Link = field(factory=DirectLink, repr=False)

    # ── Nodes ───────────────────────────────────────────────────────────────────────────────────

    @override
    async def enter(self) -> NodeRow | None:
        return await self._link.call(lambda: self._database.enter(self.card, self.ttl))

    @override
    async def drain(self) -> None:
        await self._link.call(lambda: self._database.drain(self.card))

    @override
    async def leave(self) -> None:
        await self._link.call(lambda: self._database.leave(self.card))

    @override
    async def nodes(self) -> list[NodeRow]:
        return await self._link.call(self._database.node_rows)

    @override
    async def beat(self, leases: Sequence[Lease], watched: Collection[int]) -> Beat | None:
        return await self._link.call(
            lambda: self._database.beat(self.card, self.ttl, leases, watched)
        )

    # ── Workspaces ──────────────────────────────────────────────────────────────────────────────

    @override
    async def standings(self) -> list[Standing]:
        return await self._link.call(self._database.standings)

    @override
    async def find(self, workspace_id: WorkspaceId) -> Standing | None:
        return await self._link.call(lambda: self._database.find(workspace_id))

    @override
    async def register(self, path: str, at: int) -> Standing:
        return await self._link.call(lambda: self._database.register(self.card.site, path))

    @override
    async def claim(self, number: int) -> Lease | Standing:
        sent = trio.current_time()
        found = await self._link.call(lambda: self._database.claim(number, self.card, self.ttl))
        if isinstance(found, Standing):
            return found
        return Lease(
            workspace=number,
            node=self.card.boot,
            epoch=found,
            ttl=self.ttl,
            deadline=sent + self.ttl,
        )

    @override
    async def note(self, lease: Lease, terms: str) -> None:
        await self._link.call(lambda: self._database.note(lease, terms))

    @override
    async def release(self, lease: Lease, *, wanted: bool) -> None:
        await self._link.call(lambda: self._database.release(lease, wanted=wanted))

    # ── Stores ──────────────────────────────────────────────────────────────────────────────────

    @override
    @asynccontextmanager
    async def open(self, lease: Lease) -> AsyncIterator[LeasedMemoryStore]:
        """Open the store of the workspace of *lease*; leaving writes everything that was posted."""
        row = self._database.row(lease)
        store = LeasedMemoryStore(
            self._ids.new(),
            row.kept,
            lease=lease,
            fence=lambda: row.check(lease),
            link=self._link,
        )
        await store.begin()
        try:
            yield store
        finally:
            with trio.move_on_after(CLOSE_SECONDS, shield=True):
                await store.flush()

    @override
    def reads(self, number: int) -> LeasedMemoryStore:
        lease = Lease(workspace=number, node="", epoch=0, ttl=self.ttl, deadline=0.0)
        lease.lost()
        return read_only(self._database.workspaces[number].kept, lease, self._link)
