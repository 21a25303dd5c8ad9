"""Leases: the right to run a workspace, for a time.

A workspace of a shared store has one lease. A claim adds 1 to its epoch, and succeeds only if the lease
before has expired by the clock of the store. The owner renews it several times before it expires, and every
write checks node and epoch. So a process that was suspended and wakes up after its lease has gone writes
nothing.

`Lease` decides about times and never waits: it is a pure state machine.
"""

from collections.abc import Callable
from typing import Final

from attrs import define, field

from crush_trio.store.errors import LeaseLost

TTL: Final = 15.0
"""Seconds for which a lease is claimed."""

RENEWALS: Final = 3
"""How often a lease is renewed before it would expire."""

STOP_SHARE: Final = 0.2
"""The last part of a lease, in which its owner stops: commands have that time to end."""

TAKEN: Final = "another server has taken the workspace over"
_LATE: Final = (
    "its lease ran out because it could not be renewed in time; writing goes on when the database can"
    " be reached, unless another server takes the workspace over first"
)


def _ignore() -> None:
    """Do nothing: there is no one to tell."""


@define(eq=False, kw_only=True)
class Lease:
    """The lease of a workspace as its owner sees it. Pure: times are given, nothing is waited for.

    `deadline` counts from before the claim or the renewal was sent, so it comes before the store's own,
    whatever the network does. Until then no other node can have the workspace.
    """

    workspace: int
    """The number of the workspace in the shared store."""
    node: str
    """The id of the start of the program that holds it."""
    epoch: int
    ttl: float = TTL
    deadline: float
    on_lost: Callable[[], None] = field(default=_ignore, repr=False)
    """Called once, when the lease is known to be gone for good."""
    _taken: bool = field(default=False, init=False)

    @property
    def interval(self) -> float:
        """Seconds between two renewals."""
        return self.ttl / RENEWALS

    @property
    def stop_at(self) -> float:
        """The time at which the owner stops, so that it has ended when the lease expires."""
        return self.deadline - self.ttl * STOP_SHARE

    @property
    def taken(self) -> bool:
        """Whether the lease is known to be gone for good."""
        return self._taken

    def holds(self, now: float) -> bool:
        """Whether no other node can have the workspace at this time."""
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
        """Note that another node has claimed the workspace: this lease never holds again."""
        if not self._taken:
            self._taken = True
            self.on_lost()

    def refusal(self, now: float) -> LeaseLost | None:
        """Return the error for a write at this time; None if the lease holds."""
        if self.holds(now):
            return None
        return LeaseLost(TAKEN if self._taken else _LATE)
