"""The rows of leases: claiming, renewing and releasing them. Each function is one short transaction.

What a lease is, and what its owner may believe at what time, is `store.lease`.
"""

import json
import time
from collections.abc import Sequence
from typing import Final

from attrs import asdict, frozen

from crush_trio.store.lease import TTL, Lease
from crush_trio.store.postgres.connection import BEGIN_SHORT, Connection


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
    UPDATE leases SET
        node_id = %(node)s,
        epoch = epoch + 1,
        expires_at = clock_timestamp() + make_interval(secs => %(ttl)s),
        holder = %(holder)s
    WHERE workspace = %(w)s AND expires_at <= clock_timestamp()
    RETURNING epoch
"""

_HELD: Final = b"""
    SELECT holder, extract(epoch FROM expires_at - clock_timestamp())::float8, expires_at::text
    FROM leases WHERE workspace = %(w)s
"""

_RENEW: Final = b"""
    UPDATE leases SET expires_at = clock_timestamp() + make_interval(secs => %(ttl)s)
    WHERE workspace = %(w)s AND node_id = %(node)s AND epoch = %(epoch)s
"""

_RELEASE: Final = b"""
    UPDATE leases SET expires_at = '-infinity'
    WHERE workspace = %(w)s AND node_id = %(node)s AND epoch = %(epoch)s
"""


_RENEW_ALL: Final = b"""
    WITH own AS (
        SELECT workspace FROM leases
        JOIN unnest(%(workspaces)s::bigint[], %(epochs)s::bigint[]) AS given (number, epoch)
        ON workspace = given.number AND leases.epoch = given.epoch
        WHERE node_id = %(node)s
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

    *sent* is a time before this call, from which the lease counts.
    """
    values = {"w": workspace, "node": node, "ttl": ttl, "holder": holder.row()}
    connection.execute(BEGIN_SHORT.encode())
    claimed = connection.execute(_CLAIM, values).fetchone()
    held = connection.execute(_HELD, values).fetchone()
    connection.execute(b"COMMIT")
    if claimed is not None:
        return Lease(workspace=workspace, node=node, epoch=claimed[0], ttl=ttl, deadline=sent + ttl)
    assert held is not None, "a workspace has a lease"
    return HeldBy(holder=held[0], seconds=max(0.0, held[1]), expires=held[2])


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
