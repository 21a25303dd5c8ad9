"""The rows of leases: claiming, renewing and releasing them. Each function is one short transaction.

What a lease is, and what its owner may believe at what time, is `store.lease`.
"""

import json
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import psycopg
from attrs import asdict, frozen

from crush_trio.store.lease import TTL, Lease
from crush_trio.store.postgres.connection import BEGIN_SHORT, WRITER_PREFIX, Connection


@frozen(kw_only=True)
class Holder:
    """The process that holds a lease; `started` is in unix seconds."""

    host: str
    pid: int
    version: str
    started: int

    def row(self) -> str:
        """Return what is stored of it."""
        return json.dumps(asdict(self))


@frozen(kw_only=True)
class HeldBy:
    """Who holds a lease, and how much longer if it is not renewed."""

    holder: str
    """What the row says, in the form of `Holder.row`."""
    seconds: float
    expires: str
    """The end of the lease by the clock of the database; another one after each renewal."""

    def describe(self) -> str:
        """Return one line about the holder, for people."""
        return describe(self.holder)


def describe(row: str) -> str:
    """Return one line about the holder of a lease, given what its row says."""
    try:
        holder = Holder(**json.loads(row))
    except (ValueError, TypeError):
        return "an unknown process"
    since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(holder.started))
    return f"process {holder.pid} on {holder.host}, version {holder.version}, started {since}"


_CLAIM: Final = b"""
    WITH free AS (
        SELECT workspace FROM leases WHERE workspace = %(w)s AND expires_at <= clock_timestamp()
        FOR NO KEY UPDATE SKIP LOCKED
    )
    UPDATE leases SET
        node_id = %(node)s,
        epoch = epoch + 1,
        expires_at = clock_timestamp() + make_interval(secs => %(ttl)s),
        holder = %(holder)s
    FROM free WHERE leases.workspace = free.workspace
    RETURNING epoch
"""
"""Waits for nobody: a node renews all its leases over the same connection."""

_END_WRITES: Final = b"""
    SELECT pg_terminate_backend(pid)
    FROM leases JOIN pg_stat_activity ON application_name = %(prefix)s || node_id
    WHERE workspace = %(w)s AND xact_start < expires_at
        AND expires_at < clock_timestamp() - make_interval(secs => %(late)s)
        AND datname = current_database() AND pid <> pg_backend_pid()
"""

LATE_SHARE: Final = 0.1
"""The share of its time for which an expired lease may still be locked by a transaction of its owner."""

_HELD: Final = b"""
    SELECT holder, extract(epoch FROM expires_at - clock_timestamp())::float8, expires_at::text
    FROM leases WHERE workspace = %(w)s
"""

_RENEW: Final = b"""
    UPDATE leases SET expires_at = clock_timestamp() + make_interval(secs => %(ttl)s)
    WHERE workspace = %(w)s AND node_id = %(node)s AND epoch = %(epoch)s AND expires_at > '-infinity'
"""
"""A lease that was released is not renewed: a renewal that was cut off may be carried out late."""

_RELEASE: Final = b"""
    UPDATE leases SET expires_at = '-infinity'
    WHERE workspace = %(w)s AND node_id = %(node)s AND epoch = %(epoch)s
"""


_RENEW_ALL: Final = b"""
    WITH own AS (
        SELECT workspace FROM leases
        JOIN unnest(%(workspaces)s::bigint[], %(epochs)s::bigint[]) AS given (number, epoch)
        ON workspace = given.number AND leases.epoch = given.epoch
        WHERE node_id = %(node)s AND expires_at > '-infinity'
        ORDER BY workspace FOR UPDATE OF leases
    )
    UPDATE leases SET expires_at = clock_timestamp() + make_interval(secs => %(ttl)s)
    FROM own WHERE leases.workspace = own.workspace
    RETURNING leases.workspace
"""
"""Locks in the order in which the writer does, so that the two never wait for each other."""


def claim(
    connection: Connection,
    workspace: int,
    node: str,
    holder: Holder,
    *,
    sent: float,
    ttl: float = TTL,
) -> Lease | HeldBy:
    """Claim the lease of a workspace if it has expired, in a transaction of its own.

    *sent* is a time before this call, from which the lease counts. The result of one that has expired and
    cannot be claimed has 0 seconds: a transaction of its owner is still open. That is ended soon after, so
    that the next attempt succeeds.
    """
    values = {"w": workspace, "node": node, "ttl": ttl, "holder": holder.row()}
    connection.execute(BEGIN_SHORT.encode())
    claimed = connection.execute(_CLAIM, values).fetchone()
    held = connection.execute(_HELD, values).fetchone()
    connection.execute(b"COMMIT")
    if claimed is not None:
        return Lease(workspace=workspace, node=node, epoch=claimed[0], ttl=ttl, deadline=sent + ttl)
    assert held is not None, "a workspace has a lease"
    if held[1] <= 0:
        _end_writes(connection, workspace, ttl)
    return HeldBy(holder=held[0], seconds=max(0.0, held[1]), expires=held[2])


def _end_writes(connection: Connection, workspace: int, ttl: float) -> None:
    """End the transactions of a former owner that are open although its lease has expired.

    They hold its lease. Time limits of the database do not end them: none runs in a pipeline whose client
    was suspended, or is gone without a word, before the pipeline was complete.
    """
    values = {"w": workspace, "prefix": WRITER_PREFIX, "late": ttl * LATE_SHARE}
    with suppress(psycopg.errors.InsufficientPrivilege):  # another user's
        connection.execute(_END_WRITES, values)


def renew(connection: Connection, lease: Lease) -> bool:
    """Renew the row of *lease* in a transaction of its own; return False if it is another's.

    A lease that has expired is renewed as well if no server has claimed it since. The caller tells the
    lease: `Lease.renewed` with a time before this call, or `Lease.lost`.
    """
    connection.execute(BEGIN_SHORT.encode())
    renewed = connection.execute(_RENEW, _values(lease)).rowcount
    connection.execute(b"COMMIT")
    return renewed == 1


def renew_all(connection: Connection, node: str, leases: Sequence[Lease], ttl: float) -> set[int]:
    """Renew the rows of *leases* of one node in the present transaction; return those that are its own."""
    if not leases:
        return set()
    values = {
        "node": node,
        "ttl": ttl,
        "workspaces": [lease.workspace for lease in leases],
        "epochs": [lease.epoch for lease in leases],
    }
    return {row[0] for row in connection.execute(_RENEW_ALL, values).fetchall()}


def release(connection: Connection, lease: Lease) -> None:
    """Let the lease expire at once; the epoch stays. Does nothing for a lease that is lost."""
    connection.execute(BEGIN_SHORT.encode())
    connection.execute(_RELEASE, _values(lease))
    connection.execute(b"COMMIT")


def _values(lease: Lease) -> dict[str, object]:
    return {"w": lease.workspace, "node": lease.node, "epoch": lease.epoch, "ttl": lease.ttl}
