"""Leases: the right to write a workspace, for a time.

A workspace has one row in `leases`. It is claimed by one guarded UPDATE, which adds 1 to the epoch, and
only if the lease before has expired by the clock of the database. The owner renews it several times
before it expires, and every write transaction checks node and epoch. So a process that was suspended
and wakes up after its lease has gone writes nothing.

`Lease` decides about times and never waits; each function below is one short transaction.
"""

import json
import time
from collections.abc import Callable
from typing import Final

from attrs import asdict, define, field, frozen

from crush_trio.store.errors import LeaseLost
from crush_trio.store.postgres.connection import BEGIN_SHORT, Connection

TTL: Final = 15.0
"""Seconds for which a lease is claimed."""

RENEWALS: Final = 3
"""How often a lease is renewed before it would expire."""

TAKEN: Final = "another server has taken the workspace over"
_LATE: Final = (
    "its lease ran out because it could not be renewed in time; writing goes on when the database can"
    " be reached, unless another server takes the workspace over first"
)


@define(eq=False, kw_only=True)
class Lease:
    """The lease of a workspace as its owner sees it. Pure: times are given, nothing is waited for.

    `deadline` is a time of the monotonic clock. It counts from before the claim or the renewal was
    sent, so it comes before the database's own, whatever the network does. Until then no other server
    can have the workspace.
    """

    workspace: int
    node: str
    epoch: int
    ttl: float = TTL
    deadline: float
    _taken: bool = field(default=False, init=False)

    @property
    def interval(self) -> float:
        """Seconds between two renewals."""
        return self.ttl / RENEWALS

    @property
    def taken(self) -> bool:
        """Whether the lease is known to be gone for good."""
        return self._taken

    def holds(self, now: float) -> bool:
        """Whether no other server can have the workspace at this time."""
        return not self._taken and now < self.deadline

    def pause(self, now: float) -> float:
        """Return the seconds until the next renewal has to be sent.

        After one that failed they are fewer, so that there is time for several more.
        """
        due = self.deadline - self.ttl + self.interval
        return max(due - now, self.interval / 5)

    def renewed(self, sent: float) -> None:
        """Note that a renewal that was sent at this time has succeeded."""
        if not self._taken:
            self.deadline = max(self.deadline, sent + self.ttl)

    def lost(self) -> None:
        """Note that another server has claimed the workspace: this lease never holds again."""
        self._taken = True

    def refusal(self, now: float) -> LeaseLost | None:
        """Return the error for a write at this time; None if the lease holds."""
        if self.holds(now):
            return None
        return LeaseLost(TAKEN if self._taken else _LATE)


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
        try:
            holder = Holder(**json.loads(self.holder))
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


def claim(
    connection: Connection,
    workspace: int,
    node: str,
    holder: Holder,
    *,
    ttl: float = TTL,
    now: Callable[[], float] = time.monotonic,
) -> Lease | HeldBy:
    """Claim the lease of a workspace if it has expired, in a transaction of its own."""
    sent = now()
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


def release(connection: Connection, lease: Lease) -> None:
    """Let the lease expire at once; the epoch stays. Does nothing for a lease that is lost."""
    connection.execute(BEGIN_SHORT.encode())
    connection.execute(_RELEASE, _values(lease))
    connection.execute(b"COMMIT")


def _values(lease: Lease) -> dict[str, object]:
    return {"w": lease.workspace, "node": lease.node, "epoch": lease.epoch, "ttl": lease.ttl}
