"""`Forwarding`: decides where a request about a workspace that is not open here is answered.

* Another node runs the workspace: the request goes there, streams included, one hop and never two.
* No node runs it, and it was open when its last owner ended: this node claims it, opens it with the
  terms that are stored, and answers. Where a client had sent an environment, which is not stored, only
  what reads or stops opens it, for that request alone. Everything else is answered with "not found":
  clients then create the workspace again, with their environment.
* No node runs it, and it was closed: rows that only read are answered from the store.
* It belongs to another site: a node of that site decides.
* Its owner does not answer, and its lease still holds: rows that only read are answered from the store;
  other requests wait until the lease has another owner or has expired, but no longer than a lease lasts.

Nothing here holds a lock: the claim of a lease is one guarded write, and who loses it asks the winner.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from attrs import define, evolve, field, frozen
from hypercorn.typing import ASGIReceiveCallable, ASGISendCallable
from typing_extensions import override

from crush_trio.backend.backend import Backend
from crush_trio.backend.cluster.node import Node, OwnedElsewhere, Watch, open_node
from crush_trio.backend.cluster.view import own_card
from crush_trio.backend.slot import Stage
from crush_trio.backend.stored_terms import StoredTerms
from crush_trio.backend.workspace import HostedWorkspace
from crush_trio.clock import IdSource, RandomIds, SystemClock
from crush_trio.errors import RequestTooSlow, WorkspaceNotFound
from crush_trio.net.client import SAFE_METHODS, Request, open_http_client
from crush_trio.net.dial import Dialer
from crush_trio.net.errors import NetworkError
from crush_trio.nursery import open_hidden_nursery
from crush_trio.server.bodies import check_id, check_size
from crush_trio.server.cluster.errors import (
    ClusterTokenMissing,
    NotOwner,
    OwnerUnreachable,
    WorkspaceElsewhere,
)
from crush_trio.server.cluster.peers import Peers, attentive, passed_on
from crush_trio.server.cluster.pump import Pump, open_pump
from crush_trio.server.cluster.relay import Relay, unless_moved
from crush_trio.server.cluster.stored import StoredWorkspace
from crush_trio.server.guard import Caller
from crush_trio.server.hosting.reopening import Absent, is_live, may_reopen, reopen
from crush_trio.server.http.exchange import take_whole_body
from crush_trio.server.routing.call import Call, Here, Reply, checked_caller
from crush_trio.server.settings import ServerSettings
from crush_trio.server.status import usual_status
from crush_trio.store.open import open_shared_store
from crush_trio.store.shared import NodeCard, Standing
from crush_trio.wire.codec import encode
from crush_trio.wire.ids import ClientId, WorkspaceId
from crush_trio.wire.requests import WorkspaceRequest

IDLE_CONNECTIONS: Final = 16
"""How many unused connections to another node are kept."""

NOT_OWNER: Final = usual_status(NotOwner.code)
"""The status of a node that does not run the workspace of a request that was passed on to it."""

log = logging.getLogger(__name__)


@frozen
class _There:
    """Another node that answers."""

    card: NodeCard


@define(eq=False)
class Forwarding(Absent):
    """Answers requests about workspaces that other nodes run, and opens those that no node runs."""

    peers: Peers
    _backend: Backend[HostedWorkspace] = field(repr=False)
    _pump: Pump | None = field(default=None, repr=False)
    _ids: IdSource = field(factory=RandomIds, repr=False)

    @property
    def node(self) -> Node:
        """This server as a node."""
        return self.peers.node

    @override
    async def answered(
        self,
        call: Call,
        workspace_id: WorkspaceId,
        receive: ASGIReceiveCallable,
        send: ASGISendCallable,
    ) -> Here | None:
        """Have another node answer a request; or return what is to be known to answer it here.

        Raises what is wrong with the request, or why it cannot be answered now.
        """
        if is_live(call, self._backend, workspace_id):
            return Here()  # noqa: ASYNC910 - the usual case, which must cost nothing
        check_id(workspace_id, "wid")
        caller = await checked_caller(call)
        body: bytes | None = None
        while (standing := await self.node.find(workspace_id)) is not None:
            where = await self._place(call, standing)
            if isinstance(where, Here):
                return evolve(where, body=body)
            with self.node.watching(standing) as watch:
                if where is not None:
                    if body is None and call.scope["method"] not in SAFE_METHODS:
                        body = await _whole_body(call, receive)
                    request = self._passed_on(call, where.card, caller, body or b"")
                    if await self._relayed(call, watch, request, receive, send):
                        return None
                if (stored := self._stored(call, standing)) is not None:
                    return Here(body=body, stored=stored)
                if standing.owner is not None:
                    await self._wait(standing)
        return Here(body=body)

    async def created(
        self,
        call: Call,
        request: WorkspaceRequest,
        open_here: Callable[[], Awaitable[HostedWorkspace]],
    ) -> HostedWorkspace | Reply:
        """Open the workspace of a create here, or have its owner answer.

        A directory belongs to the site of this node: it is a directory of this machine.
        """
        if call.caller.forwarded:
            return await open_here()
        while True:
            standing = None
            if request.path:
                standing = await self.node.find(await self._backend.id_of(request.path))
            if standing is None or not self.node.reaches(standing):
                try:
                    return await open_here()
                except OwnedElsewhere as error:
                    standing = error.standing
            assert standing is not None
            reply = await self._ask_owner(call, standing, request)
            if reply is not None:
                return reply
            await self._wait(standing)

    # ── Deciding ────────────────────────────────────────────────────────────────────────────────

    async def _place(self, call: Call, standing: Standing) -> Here | _There | None:
        """Decide who answers: this node, another one, or none that can be asked (None).

        Opens the workspace here if that is what the request needs. What another node has passed on is
        answered here or refused.
        """
        owner, ours = standing.owner, standing.site == self.node.card.site
        if owner is not None and owner.boot != self.node.card.boot:
            if call.caller.forwarded:
                raise NotOwner
            if not self.node.reaches(standing):
                return None  # noqa: ASYNC910 - the caller has asked the store
            assert owner.node is not None
            return _There(owner.node)  # noqa: ASYNC910 - the caller has asked the store
        if not ours:
            if call.caller.forwarded:
                raise NotOwner
            return await self._at_its_site(call, standing)
        slot = self._backend.found(standing.id)
        stage = None if slot is None else slot.stage
        terms = StoredTerms.read(standing.terms)
        wanted = stage is Stage.OPENING or (stage is None and standing.wanted)
        if wanted and may_reopen(call, terms):
            return await self._open(call, standing, terms)
        stored = self._stored(call, standing) if stage is not Stage.LIVE else None
        return Here(stored=stored)  # noqa: ASYNC910 - the caller has asked the store

    async def _at_its_site(self, call: Call, standing: Standing) -> Here | _There | None:
        """Return a node of the site that has the directory."""
        for row in await self.node.peers():
            if row.card.site == standing.site:
                return _There(row.card)
        if (stored := self._stored(call, standing)) is not None:
            return Here(stored=stored)
        if standing.wanted:
            raise WorkspaceElsewhere(f"site {standing.site}: {standing.path}")
        raise WorkspaceNotFound

    def _stored(self, call: Call, standing: Standing) -> StoredWorkspace | None:
        """Return the workspace as the store has it, for a row that only reads."""
        if not call.route.stored:
            return None
        store = self.node.shared.reads(standing.number)
        return StoredWorkspace(standing.id, Path(standing.path), store)

    # ── Here ────────────────────────────────────────────────────────────────────────────────────

    async def _open(self, call: Call, standing: Standing, terms: StoredTerms) -> Here | None:
        """Open the workspace again; return None if another node was faster."""
        visitor = ClientId(self._ids.new())
        try:
            return await reopen(call, self._backend, standing.path, terms, visitor)
        except OwnedElsewhere:
            return None  # noqa: ASYNC910 - it has waited for the opening

    async def _wait(self, standing: Standing) -> None:
        """Wait until a lease whose owner does not answer moves; raise `OwnerUnreachable` if it is renewed."""
        now = await self.node.wait_moved(standing)
        if now.owner is not None and now.epoch == standing.epoch:
            raise OwnerUnreachable(now.owner.description)

    # ── There ───────────────────────────────────────────────────────────────────────────────────

    def _passed_on(self, call: Call, card: NodeCard, caller: Caller, body: bytes) -> Request:
        """Return the request of *call* as it is sent to the node of *card*."""
        scope = call.scope
        query = scope["query_string"]
        target = (scope.get("raw_path") or scope["path"].encode()).decode("latin-1")
        return self.peers.request(
            card,
            caller,
            scope["method"],
            f"{target}?{query.decode('latin-1')}" if query else target,
            headers=passed_on(scope),
            body=body,
        )

    async def _relayed(
        self,
        call: Call,
        watch: Watch,
        request: Request,
        receive: ASGIReceiveCallable,
        send: ASGISendCallable,
    ) -> bool:
        """Have another node answer; return False if it did not and the request may be sent again."""
        relay = Relay(call, self.peers, self._pump, request, receive, send, NOT_OWNER)
        done = await relay.answered(watch)
        if not done and not watch.gone:
            watch.gone = True
            log.info("owner.gone", extra={"workspace_id": watch.standing.id})
        return done

    async def _ask_owner(self, call: Call, standing: Standing, body: object) -> Reply | None:
        """Return the owner's answer to a create, which may be repeated; None if the owner is gone."""
        assert standing.owner is not None
        assert standing.owner.node is not None
        request = self.peers.request(
            standing.owner.node,
            await checked_caller(call),
            call.scope["method"],
            call.scope["path"],
            headers={"content-type": "application/json"},
            body=encode(body),
        )
        try:
            with self.node.watching(standing) as watch:
                reply = await unless_moved(watch, partial(self.peers.ask, request))
        except NetworkError:
            return None
        return None if reply is None or reply.status == NOT_OWNER else reply


async def _whole_body(call: Call, receive: ASGIReceiveCallable) -> bytes:
    """Return the body of a request; raises `BodyTooLarge` and `RequestTooSlow`."""
    body = take_whole_body(call.scope)  # type: ignore[arg-type]
    if body is not None:
        return body  # noqa: ASYNC910 - all of it was here
    for name, value in call.scope["headers"]:
        if bytes(name).lower() == b"content-length" and value.isdigit():
            check_size(int(value[:18]), call.server.bodies)  # before the client has sent all of it
    data, more = bytearray(), True
    while more:
        event: Mapping[str, Any] = await receive()
        if event["type"] != "http.request":
            raise RequestTooSlow
        data += event.get("body", b"")
        more = event.get("more_body", False)
        check_size(len(data), call.server.bodies)
    return bytes(data)  # noqa: ASYNC910 - it has waited for the body


# ── Opening ─────────────────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def open_cluster_node(settings: ServerSettings) -> AsyncIterator[Node]:
    """Enter the cluster of the store that *settings* name; leaving releases the node's place.

    A server without an address of its own is a node, too: it holds leases, and others cannot ask it.
    """
    if settings.cluster.advertise and settings.guard.token is None:
        raise ClusterTokenMissing
    clock, ids, cluster = SystemClock(), RandomIds(), settings.cluster
    card = own_card(cluster.advertise, settings.store.named_site, clock=clock, ids=ids)
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
    """Open the connections to the other nodes; they are told when the backend is about to end."""

    async def tell_end() -> None:
        await backend.wait_shutdown()
        await node.tell_draining()

    dial = attentive(settings.cluster.dial or Dialer())
    async with (
        open_pump() as pump,
        open_http_client(dial, idle_most=IDLE_CONNECTIONS) as client,
        open_hidden_nursery() as nursery,
    ):
        nursery.start_soon(tell_end)
        yield Forwarding(Peers(node, client, settings.guard.token or ""), backend, pump)
        nursery.cancel_scope.cancel()
