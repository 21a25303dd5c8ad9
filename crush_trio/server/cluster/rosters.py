"""`PeerRosters`: the rosters of the other nodes, read from their event streams while a client reads the roster here.

Each other node has a task that reads the node's own roster as a page would. So a change is here as soon as that
node tells it, and nothing is asked while nothing happens. Which nodes there are is looked up as often as
leases are renewed.
"""

import logging
from typing import Final

import trio
from attrs import define, field

from crush_trio.errors import DecodeError
from crush_trio.net.errors import NetworkError
from crush_trio.net.sse import SseDecoder, SseEvent
from crush_trio.nursery import open_hidden_nursery
from crush_trio.server.cluster.errors import AnotherAnswered
from crush_trio.server.cluster.peers import ANSWER_MOST, Peers
from crush_trio.server.guard import Caller
from crush_trio.server.roster.table import RosterTable
from crush_trio.server.sse import HEARTBEAT
from crush_trio.server.tokens import ENVIRONMENT_TOKEN, Right
from crush_trio.store.errors import StoreUnavailable
from crush_trio.store.lease import RENEWALS
from crush_trio.store.shared import NodeCard
from crush_trio.wire.codec import decode
from crush_trio.wire.views import (
    Roster,
    RosterChange,
    RosterSessionChange,
    RosterWorkspaceChange,
)

RETRY: Final = 1.0
"""Seconds before a node whose stream ended is asked again."""

REFUSED: Final = 30.0
"""Seconds before a node that refuses to tell its roster is asked again."""

SILENCE: Final = 2.5 * HEARTBEAT
"""Seconds without a word after which a stream counts as broken."""

_READER: Final = Caller(right=Right.WATCH, token=ENVIRONMENT_TOKEN)
"""Who reads the roster of another node: all readers here share what comes."""

log = logging.getLogger(__name__)


@define(eq=False)
class _Known:
    """Sets an event once each of the first nodes has told its roster, or failed to."""

    event: trio.Event
    waiting: set[str] = field(factory=set)

    def done(self, node_id: str) -> None:
        """Note that a node need not be waited for."""
        self.waiting.discard(node_id)
        if not self.waiting:
            self.event.set()


@define(eq=False)
class PeerRosters:
    """The rosters of the other nodes. An `Elsewhere`."""

    _peers: Peers

    async def follow(self, table: RosterTable, known: trio.Event) -> None:
        """Keep the rows of the other nodes in *table* until cancelled; set *known* once they are there."""
        followed: dict[str, trio.CancelScope] = {}
        async with open_hidden_nursery() as nursery:
            first: _Known | None = None
            while True:
                cards = await self._cards(followed)
                if first is None:
                    first = _Known(known, set(cards))
                    first.done("")
                for node_id in followed.keys() - cards.keys():
                    followed.pop(node_id).cancel()
                for node_id, card in cards.items():
                    if card is not None and node_id not in followed:
                        followed[node_id] = trio.CancelScope()
                        nursery.start_soon(
                            self._follow_node, card, table, followed[node_id], first, name=node_id
                        )
                await trio.sleep(self._peers.node.shared.ttl / RENEWALS)

    async def _cards(self, followed: dict[str, trio.CancelScope]) -> dict[str, NodeCard | None]:
        """Return the other nodes; those that are *followed* if the store cannot be read."""
        try:
            return {row.card.id: row.card for row in await self._peers.node.peers()}
        except StoreUnavailable:
            return dict.fromkeys(followed)  # noqa: ASYNC910 - the store has been asked

    async def _follow_node(
        self, card: NodeCard, table: RosterTable, scope: trio.CancelScope, known: _Known
    ) -> None:
        """Keep the rows of one node in *table* until *scope* is cancelled, because the node is gone."""
        with scope:
            while True:
                pause = RETRY
                try:
                    pause = await self._read(card, table, known)
                except AnotherAnswered as error:
                    log.warning("roster.refused", extra={"node": card.id, "error": str(error)})
                    pause = REFUSED
                except (NetworkError, DecodeError) as error:
                    log.info("roster.broke", extra={"node": card.id, "error": str(error)})
                finally:
                    known.done(card.id)
                    table.put_all(card.id, (), ())
                    table.changes.ring()
                await trio.sleep(pause)

    async def _read(self, card: NodeCard, table: RosterTable, known: _Known) -> float:
        """Read the stream of a node to its end; return the seconds until it may be asked again."""
        request = self._peers.request(card, _READER, "GET", "/v1/events")
        async with self._peers.open(request) as response:
            if response.status != 200:
                log.warning("roster.refused", extra={"node": card.id, "status": response.status})
                return REFUSED
            decoder = SseDecoder(ANSWER_MOST)
            while True:
                data = b""
                with trio.move_on_after(SILENCE):
                    data = await response.receive()
                if not data:
                    return RETRY
                for event in decoder.feed(data):
                    _apply(card.id, table, event)
                    known.done(card.id)
                table.changes.ring()


def _apply(source: str, table: RosterTable, event: SseEvent) -> None:
    """Put what an event tells into *table*."""
    match event.name:
        case "roster":
            roster = decode(event.data, Roster)
            table.put_all(source, roster.workspaces, roster.sessions)
        case "roster_workspace":
            place = decode(event.data, RosterWorkspaceChange)
            if place.type is RosterChange.DELETED:
                table.drop_workspace(source, place.payload.id)
            else:
                table.put_workspace(source, place.payload)
        case "roster_session":
            change = decode(event.data, RosterSessionChange)
            row, gone = change.payload, change.type is RosterChange.DELETED
            table.put_sessions(source, row.workspace_id, () if gone else (row,), {row.id})
