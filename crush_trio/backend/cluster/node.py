"""`Node`: this server as one of several that share a store.

In the process a lease is a cancel scope around its workspace. One task renews the row of the node and all
of its leases in one transaction; each renewal moves the deadlines of the scopes, counted from before it was
sent. So a node that cannot reach the store stops its workspaces before another node may claim them, and
nothing else has to ask whether it is still the owner.

A workspace whose lease was lost ends without a word: its event log closes, so streams end and clients
connect again, and the store refuses what its runs still want to write. The next owner ends the runs.
"""

import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from math import inf
from typing import Final

import trio
from attrs import define, evolve, field

from crush_trio.backend.cluster.view import cluster_view
from crush_trio.backend.settings import OpenWorkspace, WorkspacePlan
from crush_trio.backend.stored_terms import StoredTerms
from crush_trio.backend.workspace import HostedWorkspace
from crush_trio.clock import Clock
from crush_trio.errors import Unavailable
from crush_trio.nursery import open_hidden_nursery
from crush_trio.store.base import Store
from crush_trio.store.errors import LeaseLost, StoreLocked, StoreUnavailable
from crush_trio.store.lease import RENEWALS, Lease
from crush_trio.store.shared import NodeCard, NodeRow, NodeTaken, SharedStore, Standing
from crush_trio.wire.ids import WorkspaceId
from crush_trio.wire.views import ClusterView

RELEASE_SECONDS: Final = 5.0
"""Seconds that releasing a lease may take; after that it expires by itself."""

LOOKS: Final = 15
"""How often a lease is looked at while it could expire."""

LATE_RENEWALS: Final = 1
"""How many renewals of a node may reach the store after its end: it sends one at a time."""

MARGIN: Final = 0.01
"""Seconds after the end of a lease at which it is claimed."""

log = logging.getLogger(__name__)


class OwnedElsewhere(Unavailable):
    """Another node runs the workspace; the detail names it."""

    code = "owned_elsewhere"
    message = "another server runs this workspace; connect to that one"

    def __init__(self, detail: str = "", standing: Standing | None = None) -> None:
        super().__init__(detail)
        self.standing = standing


@define(eq=False)
class HeldLease:
    """A lease of this node and the scope around its workspace. A `WorkspaceLease`."""

    lease: Lease
    _shared: SharedStore = field(repr=False)
    scope: trio.CancelScope = field(factory=trio.CancelScope, init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self.lease.on_lost = self.scope.cancel
        self.follow()

    def open_store(self) -> AbstractAsyncContextManager[Store]:
        """Open the store of the workspace."""
        return self._shared.open(self.lease)

    def renewed(self, sent: float) -> None:
        """Note that a renewal sent at this time has succeeded."""
        self.lease.renewed(sent)
        self.follow()

    def follow(self) -> None:
        """Have the scope end when the owner has to stop."""
        self.scope.deadline = self.lease.stop_at


@define(eq=False)
class Watch:
    """A workspace of another node, looked at for as long as requests to its owner are under way."""

    standing: Standing
    changed: trio.Event = field(factory=trio.Event, init=False, repr=False)
    """Set when it has another owner or none."""
    gone: bool = field(default=False, init=False)
    """Whether a request has found that the owner does not answer; that is logged once."""
    users: int = field(default=0, init=False)


@define(eq=False)
class NodeMeters:
    """What a node has done so far, for its metrics."""

    takeovers: int = field(default=0, init=False)
    """Workspaces opened here that were open when their last owner ended, in order or not."""
    lost: int = field(default=0, init=False)
    """Leases that could not be renewed in time, or that another node had taken."""
    renewals: Counter[bool] = field(factory=Counter, init=False)
    """Attempts to renew the node's row and leases, by whether the store has answered."""
    forwarded: Counter[str] = field(factory=Counter, init=False)
    """Requests that were passed on, by what came of them: `answer`, `stream` or `failed`."""
    streams: int = field(default=0, init=False)
    """Event streams that are being passed on now."""

    @contextmanager
    def streaming(self) -> Iterator[None]:
        """Count a stream while it is passed on."""
        self.streams += 1
        try:
            yield
        finally:
            self.streams -= 1


@define(eq=False)
class Node:
    """This server as a node of a cluster. Made by `open_node`."""

    shared: SharedStore
    _clock: Clock = field(repr=False)
    meters: NodeMeters = field(factory=NodeMeters, init=False, repr=False)
    trouble: str | None = field(default=None, init=False)
    """Why the leases could not be renewed the last time; None if they were."""
    _held: dict[int, HeldLease] = field(factory=dict, init=False, repr=False)
    _watched: dict[int, Watch] = field(factory=dict, init=False, repr=False)

    @property
    def card(self) -> NodeCard:
        """What this node tells the others about itself."""
        return self.shared.card

    @property
    def leases(self) -> tuple[Lease, ...]:
        """The leases that this node holds."""
        return tuple(held.lease for held in self._held.values())

    # ── Looking ─────────────────────────────────────────────────────────────────────────────────

    async def find(self, workspace_id: WorkspaceId) -> Standing | None:
        """Return how a workspace stands; None if there never was one."""
        return await self.shared.find(workspace_id)

    def is_former(self, standing: Standing) -> bool:
        """Whether a former start of this node holds the lease, which will expire."""
        owner = standing.owner
        return owner is not None and owner.node is not None and owner.node.id == self.card.id

    def reaches(self, standing: Standing) -> bool:
        """Whether another node owns the workspace that can be asked."""
        owner = standing.owner
        return owner is not None and bool(owner.address) and not self.is_former(standing)

    async def peers(self) -> list[NodeRow]:
        """Return the other nodes that are alive and can be reached."""
        rows = await self.shared.nodes()
        return [
            row for row in rows if row.alive and row.card.address and row.card.id != self.card.id
        ]

    async def wait_moved(self, standing: Standing) -> Standing:
        """Wait until a lease has another owner or none, or would have expired; return how it stands then.

        Meant for an owner that does not answer: it may have released the lease a moment ago, so this
        looks more often than leases are renewed.
        """
        ends = trio.current_time() + standing.seconds + MARGIN
        while True:
            left = ends - trio.current_time()
            await trio.sleep(max(MARGIN, min(left, self.shared.ttl / LOOKS)))
            now = await self.find(standing.id) or standing
            if now.owner is None or now.epoch != standing.epoch or left <= 0:
                return now

    async def view(self) -> ClusterView:
        """Return all nodes and their leases, as the store has them."""
        rows, standings = await self.shared.nodes(), await self.shared.standings()
        return cluster_view(rows, standings, node=self.card.id)

    async def tell_draining(self) -> None:  # noqa: ASYNC910 - it waits for the store
        """Let people and other nodes see that this one is about to end, if the store can be reached."""
        await trio.lowlevel.checkpoint()
        with suppress(StoreUnavailable):
            await self.shared.drain()

    @contextmanager
    def watching(self, standing: Standing) -> Iterator[Watch]:
        """Look at a workspace of another node during the block; `Watch.changed` tells that it moved."""
        watch = self._watched.get(standing.number)
        if watch is None or watch.standing.epoch != standing.epoch:
            watch = self._watched[standing.number] = Watch(standing)
        watch.users += 1
        try:
            yield watch
        finally:
            watch.users -= 1
            if not watch.users and self._watched.get(standing.number) is watch:
                del self._watched[standing.number]

    # ── Renewing ────────────────────────────────────────────────────────────────────────────────

    async def keep(self) -> None:
        """Renew the row of this node and its leases for ever. Raises `NodeTaken` if the row is another's."""
        interval = self.shared.ttl / RENEWALS
        while True:
            sent = trio.current_time()
            renewed = await self._beat(sent)
            self.meters.renewals[renewed] += 1
            await trio.sleep_until(sent + (interval if renewed else interval / 5))

    async def _beat(self, sent: float) -> bool:
        """Renew everything once; return False if the store did not answer."""
        asked = tuple(self._held.values())
        try:
            beat = await self.shared.beat([held.lease for held in asked], tuple(self._watched))
            if beat is None:
                await self._enter_again()
                return False
        except StoreUnavailable as error:
            if self.trouble is None:
                log.warning("node.not_renewed", extra={"error": str(error)})
            self.trouble = str(error)
            return False  # noqa: ASYNC910 - the caller waits next
        if self.trouble is not None:
            log.info("node.renewed")
            self.trouble = None
        for held in asked:
            if held.lease.workspace in beat.own:
                held.renewed(sent)
            else:
                held.lease.lost()
        for number, standing in beat.watched.items():
            self._note(number, standing)
        return True

    def _note(self, number: int, standing: Standing) -> None:
        watch = self._watched.get(number)
        if watch is not None and (standing.owner is None or standing.epoch != watch.standing.epoch):
            del self._watched[number]
            watch.changed.set()

    async def _enter_again(self) -> None:
        """Enter the table of nodes again: our row was removed, or another process has our id."""
        other = await self.shared.enter()
        if other is not None:
            raise NodeTaken(other.card.describe())

    # ── Holding ─────────────────────────────────────────────────────────────────────────────────

    def leased(
        self, open_workspace: OpenWorkspace[HostedWorkspace], *, wanted: Callable[[], bool]
    ) -> OpenWorkspace[HostedWorkspace]:
        """Return an opener that holds the lease of each workspace while it is open.

        Opening raises `OwnedElsewhere` if another node runs the workspace. *wanted* says, when a
        workspace closes, whether another node is to open it for the next request.
        """

        @asynccontextmanager
        async def opened(plan: WorkspacePlan) -> AsyncIterator[HostedWorkspace]:
            began = False
            async with self._holding(plan, wanted) as held:
                async with open_workspace(evolve(plan, lease=held)) as workspace:
                    began = True
                    if not plan.terms.visit:
                        await self.shared.note(held.lease, StoredTerms.of(plan.terms).text())
                    try:
                        yield workspace
                    finally:
                        if held.scope.cancel_called:
                            self.meters.lost += 1
                            disown(workspace)
            if held.scope.cancelled_caught:
                log.warning("workspace.lease_lost", extra={"workspace_id": plan.id})
                if not began:
                    raise LeaseLost

        return opened

    @asynccontextmanager
    async def _holding(
        self, plan: WorkspacePlan, wanted: Callable[[], bool]
    ) -> AsyncIterator[HeldLease]:
        """Hold the lease of a workspace during the block, which is cancelled if the lease is lost."""
        standing = await self.shared.register(plan.key, self._clock.unix())
        held = HeldLease(await self._claim(standing), self.shared)
        self._held[held.lease.workspace] = held
        self.meters.takeovers += standing.wanted
        try:
            with held.scope:
                yield held
        finally:
            del self._held[held.lease.workspace]
            with trio.move_on_after(RELEASE_SECONDS, shield=True), suppress(StoreUnavailable):
                await self.shared.release(held.lease, wanted=wanted() or plan.terms.visit)

    async def _claim(self, standing: Standing) -> Lease:
        """Claim a lease; raise `OwnedElsewhere`, or `StoreLocked` for an owner that cannot be asked.

        An owner without an address lives if it renews its lease; otherwise the lease expires.
        """
        expires = None
        while True:
            found = await self.shared.claim(standing.number)
            if isinstance(found, Lease):
                return found
            if found.owner is None:  # a transaction of the last owner is still open
                await trio.sleep(self.shared.ttl / LOOKS)
                continue
            if self.reaches(found):
                raise OwnedElsewhere(found.owner.description, found)
            ends = trio.current_time() + found.seconds
            if expires is not None and ends > expires + self.shared.ttl / LOOKS:
                raise StoreLocked(f"{found.path} of site {found.site}: {found.owner.description}")
            expires = ends if expires is None else expires
            await trio.sleep(min(found.seconds + MARGIN, self.shared.ttl / LOOKS))


def disown(workspace: HostedWorkspace) -> None:
    """Have a workspace whose lease was lost end without a word: the next owner ends its runs."""
    workspace.events.close()
    workspace.runs.hurry()


@asynccontextmanager
async def open_node(shared: SharedStore, *, clock: Clock) -> AsyncIterator[Node]:
    """Enter the table of nodes for the length of the block, and keep the leases of this node.

    Waits for a former start with the same id to expire. Raises `NodeTaken` if it renews its row twice, so
    that it certainly lives: one renewal may have been under way when it was killed.
    """
    expires, renewals = inf, 0
    while (other := await shared.enter()) is not None:
        ends = trio.current_time() + other.seconds
        if ends > expires + shared.ttl / LOOKS:
            renewals += 1
            if renewals > LATE_RENEWALS:
                raise NodeTaken(other.card.describe())
        expires = ends
        log.info("node.waits", extra={"node": other.card.id, "seconds": other.seconds})
        await trio.sleep(max(MARGIN, min(other.seconds + MARGIN, shared.ttl / LOOKS)))
    node = Node(shared, clock)
    log.info("node.entered", extra={"node": node.card.id, "site": node.card.site})
    try:
        async with open_hidden_nursery() as nursery:
            nursery.start_soon(node.keep, name="node")
            yield node
            nursery.cancel_scope.cancel()
    finally:
        with trio.move_on_after(RELEASE_SECONDS, shield=True), suppress(StoreUnavailable):
            await shared.leave()
