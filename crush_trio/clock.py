"""`Clock` and `IdSource`: the sources of time and of ids.

Code that needs the time takes a `Clock`, and code that makes ids takes an `IdSource`. Production
uses the system's; tests pass counters, so that a failing test prints the same ids and times
whenever it is replayed.
"""

import time
import uuid
from itertools import count
from typing import Protocol

import trio
from attrs import define, field


class Clock(Protocol):
    """Two kinds of time: timestamps for people and deadlines for the scheduler."""

    def unix(self) -> int:
        """Seconds since the epoch, as the wire and the store record them."""
        ...

    def monotonic(self) -> float:
        """Seconds on the scheduler's clock; virtual under a test's mock clock."""
        ...


class IdSource(Protocol):
    """Makes the ids of runs, messages, asks and everything else."""

    def new(self) -> str:
        """Return an id that this source has not returned before."""
        ...


@define(eq=False)
class SystemClock:
    """The machine's clock for timestamps, Trio's clock for durations."""

    def unix(self) -> int:
        """Return whole seconds since the epoch."""
        return int(time.time())  # noqa: TID251

    def monotonic(self) -> float:
        """Return Trio's current time; callable only inside `trio.run`."""
        return trio.current_time()


@define(eq=False)
class RandomIds:
    """Random version 4 UUIDs in canonical form."""

    def new(self) -> str:
        """Return a fresh UUID."""
        return str(uuid.uuid4())  # noqa: TID251


@define(eq=False)
class TrioClock:
    """Both kinds of time from Trio's clock, so that virtual time moves timestamps, too."""

    epoch: int = 1_767_225_600

    def unix(self) -> int:
        """Return the epoch plus the whole seconds Trio's clock has counted."""
        return self.epoch + int(trio.current_time())

    def monotonic(self) -> float:
        """Return Trio's current time."""
        return trio.current_time()


def unix_offset(clock: Clock) -> float:
    """Return what to add to a time of *clock*'s `monotonic` to get seconds since the epoch.

    The system's clock gives it exactly; any other one counts whole seconds.
    """
    if isinstance(clock, SystemClock):
        return time.time() - trio.current_time()  # noqa: TID251
    return clock.unix() - int(clock.monotonic())


@define(eq=False)
class CountingIds:
    """`prefix-1`, `prefix-2`, …: the same ids in every replay of a test."""

    prefix: str = "id"
    _next: "count[int]" = field(factory=lambda: count(1), init=False)

    def new(self) -> str:
        """Return the next id."""
        return f"{self.prefix}-{next(self._next)}"
