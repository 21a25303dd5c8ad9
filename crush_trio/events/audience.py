"""The readers of one form: what they may see, and where they wait."""

from typing import TYPE_CHECKING

import trio
from attrs import define, field

from crush_trio.events.forms import Form

if TYPE_CHECKING:
    from crush_trio.events.cursor import Batch


@define(eq=False)
class Audience:
    """All readers of a log that want their events in the same form; None is for the events themselves.

    `head` is the newest event that they may see, and `floor` the newest one that they cannot be told
    any more. Readers at the same place share a batch until the next event is published.
    """

    form: Form | None
    head: int = field(default=0, init=False)
    floor: int = field(default=0, init=False)
    batches: "dict[int, Batch]" = field(factory=dict, init=False, repr=False)
    waiting: trio.lowlevel.ParkingLot = field(
        factory=trio.lowlevel.ParkingLot, init=False, repr=False
    )
    _woken: int = field(default=0, init=False)

    def wake(self) -> None:
        """Wake the readers that wait, if there is something for them since they were woken last."""
        if self.head > self._woken:
            self._woken = self.head
            self.waiting.unpark_all()
