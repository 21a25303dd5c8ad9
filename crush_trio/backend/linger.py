"""The decision to end: taken once, never taken back.

A server without workspaces waits a while for the next create and then ends. From the step that
decides it, every create is refused, so nobody can be let into a house that is being torn down (E20).
The time of the decision is a deadline that is moved by assigning to it: the one task that waits for
it lives as long as the backend.
"""

from math import inf

import trio
from attrs import define, field

from crush_trio.clock import Clock


@define(eq=False)
class Linger:
    """Waits out idle time. The owner says when it is idle and when it is not."""

    seconds: float
    _clock: Clock = field(repr=False)
    decided: trio.Event = field(factory=trio.Event, init=False, repr=False)
    """Set when the decision to end has been made."""
    _until: float = field(default=inf, init=False)
    _alarm: trio.CancelScope = field(factory=trio.CancelScope, init=False, repr=False)

    @property
    def over(self) -> bool:
        """Whether the decision has been made."""
        return self.decided.is_set()

    def begin(self) -> None:
        """Start to wait, from now; without anything to wait for, decide at once."""
        if self.seconds <= 0:
            self.decide()
        else:
            self._move(self._clock.monotonic() + self.seconds)

    def interrupt(self) -> None:
        """Stop waiting: there is work again."""
        self._move(inf)

    def decide(self) -> None:
        """End now. Deciding again does nothing."""
        self.decided.set()

    async def watch(self) -> None:
        """Decide when the time has come; returns once it is decided, by whomever."""
        await trio.lowlevel.checkpoint()
        while not self.over:
            with trio.CancelScope(deadline=self._until) as self._alarm:
                await self.decided.wait()
            # Woken for a deadline that was moved meanwhile: then the value says so.
            if self._until <= self._clock.monotonic():
                self.decide()

    def _move(self, until: float) -> None:
        self._until = until
        self._alarm.deadline = until
