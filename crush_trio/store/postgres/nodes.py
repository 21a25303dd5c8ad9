"""`PostgresNodes`: the shared store of a cluster on PostgreSQL: nodes, leases, and the stores of workspaces.

Everything a node asks about leases goes over a connection of its own, so a renewal never waits for a
long read.
"""

from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any, Final

import trio
from attrs import define, field
from typing_extensions import override

from crush_trio.clock import Clock, IdSource
from crush_trio.store.base import Store
from crush_trio.store.lease import Lease
from crush_trio.store.postgres.connection import BEGIN_SHORT, Connection
from crush_trio.store.postgres.database import PostgresDatabase, shared_database
from crush_trio.store.postgres.lease import HeldBy, Holder, claim, describe, release, renew_all
from crush_trio.store.postgres.opening import open_leased_store
from crush_trio.store.postgres.place import Place
from crush_trio.store.postgres.store import PostgresStore
from crush_trio.store.postgres.transaction import OpenWorkspace
from crush_trio.store.postgres.workspaces import WorkspaceKey, register
from crush_trio.store.shared import Beat, NodeCard, NodeRow, Owner, SharedStore, Standing
from crush_trio.wire.ids import WorkspaceId

FORGOTTEN: Final = "1 day"
"""How long a node that is gone stays in the table."""

_CARD: Final = "id, boot, address, site, host, pid, version, started_at"
_LEFT: Final = "extract(epoch FROM {} - clock_timestamp())::float8"

_ENTER: Final = f"""
    INSERT INTO nodes ({_CARD}, expires_at) VALUES (
        %(id)s, %(boot)s, %(address)s, %(site)s, %(host)s, %(pid)s, %(version)s, %(started_at)s,
        clock_timestamp() + make_interval(secs => %(ttl)s)
    )
    ON CONFLICT (id) DO UPDATE SET
        boot = excluded.boot, address = excluded.address, site = excluded.site, host = excluded.host,
        pid = excluded.pid, version = excluded.version, started_at = excluded.started_at,
        expires_at = excluded.expires_at, seen_at = clock_timestamp(), draining = false
    WHERE nodes.expires_at <= clock_timestamp() OR nodes.boot = excluded.boot
""".encode()

_FORGET: Final = f"DELETE FROM nodes WHERE expires_at < clock_timestamp() - interval '{FORGOTTEN}'"

_BEAT: Final = b"""
    UPDATE nodes
    SET expires_at = clock_timestamp() + make_interval(secs => %(ttl)s), seen_at = clock_timestamp()
    WHERE id = %(id)s AND boot = %(boot)s
"""

_DRAIN: Final = b"UPDATE nodes SET draining = true WHERE id = %(id)s AND boot = %(boot)s"

_LEAVE: Final = b"""
    UPDATE nodes SET expires_at = clock_timestamp(), seen_at = clock_timestamp()
    WHERE id = %(id)s AND boot = %(boot)s
"""

NODES: Final = f"""
    SELECT {_CARD}, {_LEFT.format("expires_at")},
        extract(epoch FROM clock_timestamp() - seen_at)::float8, draining
    FROM nodes ORDER BY id
""".encode()
"""Selects the nodes, also those that are gone for not too long."""

_STANDING: Final = f"""
    SELECT w.number, w.id, w.site, w.path, w.terms, w.wanted, l.epoch, l.node_id, l.holder,
        l.expires_at > clock_timestamp(), {_LEFT.format("greatest(l.expires_at, '1970-01-01')")},
        {", ".join(f"n.{name}" for name in _CARD.split(", "))}
    FROM workspaces AS w JOIN leases AS l ON l.workspace = w.number
        LEFT JOIN nodes AS n ON n.boot = l.node_id
"""

HELD: Final = f"{_STANDING} WHERE l.expires_at > clock_timestamp() ORDER BY w.number".encode()
"""Selects the workspaces that a node runs."""

_NOTE: Final = b"""
    UPDATE workspaces SET terms = %(terms)s, wanted = true
    FROM leases WHERE leases.workspace = number AND number = %(w)s AND node_id = %(node)s
        AND epoch = %(epoch)s
"""

_UNWANTED: Final = b"""
    UPDATE workspaces SET wanted = false
    FROM leases WHERE leases.workspace = number AND number = %(w)s AND node_id = %(node)s
        AND epoch = %(epoch)s
"""


@define(eq=False)
class PostgresNodes(SharedStore):
    """The tables of a cluster, as one of its nodes uses them. Made by `open_postgres_nodes`."""

    card: NodeCard
    ttl: float
    _database: PostgresDatabase = field(repr=False)
    _clock: Clock = field(repr=False)
    _ids: IdSource = field(repr=False)

    # ── Nodes ───────────────────────────────────────────────────────────────────────────────────

    @override
    async def enter(self) -> NodeRow | None:
        def work(connection: Connection) -> NodeRow | None:
            connection.execute(BEGIN_SHORT.encode())
            connection.execute(_FORGET.encode())
            values = {name: getattr(self.card, name) for name in _CARD.split(", ")}
            entered = connection.execute(_ENTER, {**values, "ttl": self.ttl}).rowcount
            rows = connection.execute(NODES).fetchall()
            connection.execute(b"COMMIT")
            if entered:
                return None
            return next(read_node(row) for row in rows if row[0] == self.card.id)

        return await self._database.keeper.call(work)

    @override
    async def drain(self) -> None:
        await self._database.keeper.call(lambda c: _once(c, _DRAIN, self._own))

    @override
    async def leave(self) -> None:
        await self._database.keeper.call(lambda c: _once(c, _LEAVE, self._own))

    @override
    async def nodes(self) -> list[NodeRow]:
        rows = await self._database.readers.call(lambda c: c.execute(NODES).fetchall())
        return [read_node(row) for row in rows]

    @override
    async def beat(self, leases: Sequence[Lease], watched: Collection[int]) -> Beat | None:
        def work(connection: Connection) -> Beat | None:
            connection.execute(BEGIN_SHORT.encode())
            present = connection.execute(_BEAT, {**self._own, "ttl": self.ttl}).rowcount
            own = renew_all(connection, self.card.boot, leases, self.ttl) if present else set()
            found = []
            if watched:
                query = f"{_STANDING} WHERE w.number = ANY(%(numbers)s)".encode()
                found = connection.execute(query, {"numbers": list(watched)}).fetchall()
            connection.execute(b"COMMIT")
            if not present:
                return None
            standings = map(read_standing, found)
            return Beat(own=frozenset(own), watched={each.number: each for each in standings})

        return await self._database.keeper.call(work)

    @property
    def _own(self) -> dict[str, str]:
        return {"id": self.card.id, "boot": self.card.boot}

    # ── Workspaces ──────────────────────────────────────────────────────────────────────────────

    @override
    async def standings(self) -> list[Standing]:
        rows = await self._database.readers.call(lambda c: c.execute(HELD).fetchall())
        return [read_standing(row) for row in rows]

    @override
    async def find(self, workspace_id: WorkspaceId) -> Standing | None:
        query = f"{_STANDING} WHERE w.id = %(id)s".encode()
        rows = await self._database.readers.call(
            lambda c: c.execute(query, {"id": workspace_id}).fetchall()
        )
        return read_standing(rows[0]) if rows else None

    @override
    async def register(self, path: str, at: int) -> Standing:
        key = WorkspaceKey(site=self.card.site, path=path)

        def work(connection: Connection) -> Standing:
            return _standing_of(connection, register(connection, key, at))

        return await self._database.keeper.call(work)

    @override
    async def claim(self, number: int) -> Lease | Standing:
        attempt = partial(
            claim,
            workspace=number,
            node=self.card.boot,
            holder=self._holder,
            sent=trio.current_time(),
            ttl=self.ttl,
        )

        def work(connection: Connection) -> Lease | Standing:
            claimed = attempt(connection)
            return _standing_of(connection, number) if isinstance(claimed, HeldBy) else claimed

        return await self._database.keeper.call(work)

    @override
    async def note(self, lease: Lease, terms: str) -> None:
        values = {"w": lease.workspace, "node": lease.node, "epoch": lease.epoch, "terms": terms}
        await self._database.keeper.call(lambda c: _once(c, _NOTE, values))

    @override
    async def release(self, lease: Lease, *, wanted: bool) -> None:
        values = {"w": lease.workspace, "node": lease.node, "epoch": lease.epoch}

        def work(connection: Connection) -> None:
            if not wanted:
                _once(connection, _UNWANTED, values)
            release(connection, lease)

        await self._database.keeper.call(work)

    @property
    def _holder(self) -> Holder:
        card = self.card
        return Holder(host=card.host, pid=card.pid, version=card.version, started=card.started_at)

    # ── Stores ──────────────────────────────────────────────────────────────────────────────────

    @override
    def open(self, lease: Lease) -> AbstractAsyncContextManager[Store]:
        return open_leased_store(self._database, lease, clock=self._clock, ids=self._ids)

    @override
    def reads(self, number: int) -> Store:
        lease = Lease(workspace=number, node="", epoch=0, ttl=self.ttl, deadline=0.0)
        lease.lost()
        return PostgresStore(self._database, OpenWorkspace(number=number, boot_id="", lease=lease))


def _once(connection: Connection, statement: bytes, values: dict[str, Any]) -> None:
    """Run one statement in a transaction of its own."""
    connection.execute(BEGIN_SHORT.encode())
    connection.execute(statement, values)
    connection.execute(b"COMMIT")


def _standing_of(connection: Connection, number: int) -> Standing:
    query = f"{_STANDING} WHERE w.number = %(w)s".encode()
    row = connection.execute(query, {"w": number}).fetchone()
    assert row is not None, "a workspace keeps its row"
    return read_standing(row)


def _card(values: Sequence[Any]) -> NodeCard:
    return NodeCard(**dict(zip(_CARD.split(", "), values, strict=True)))


def read_node(row: Sequence[Any]) -> NodeRow:
    """Return a row of `NODES`."""
    *card, seconds, seen_seconds, draining = row
    return NodeRow(card=_card(card), seconds=seconds, seen_seconds=seen_seconds, draining=draining)


def read_standing(row: Sequence[Any]) -> Standing:
    """Return a row of `HELD`."""
    number, identity, site, path, terms, wanted, epoch, boot, holder, holds, seconds, *card = row
    node = None if card[0] is None else _card(card)
    told = describe(holder) if node is None else node.describe()
    return Standing(
        number=number,
        id=WorkspaceId(identity),
        site=site,
        path=path,
        terms=terms,
        wanted=wanted,
        epoch=epoch,
        owner=Owner(boot=boot, node=node, description=told) if holds else None,
        seconds=max(0.0, seconds),
    )


@asynccontextmanager
async def open_postgres_nodes(
    url: str, card: NodeCard, *, ttl: float, clock: Clock, ids: IdSource
) -> AsyncIterator[PostgresNodes]:
    """Open the shared store at *url* for the node of *card*; the schema is migrated if need be."""
    place = Place.of(url)
    async with shared_database(place, make_id=lambda: card.boot, clock=clock) as database:
        yield PostgresNodes(card, ttl, database, clock, ids)
