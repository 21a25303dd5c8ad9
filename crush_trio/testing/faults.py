"""Journals that fail on cue.

`FaultyJournal` passes every call on to a real journal, except the ones a test has spoiled: those
raise, or never come back until they are cancelled, before or after the real write took place.
"""

from collections.abc import Callable
from enum import Enum

import trio
from attrs import define, field, frozen
from attrs.validators import in_

from crush_trio.runtime.accepted import AcceptedRun
from crush_trio.runtime.journal import Journal
from crush_trio.runtime.outcome import Outcome


class Moment(Enum):
    """Whether a fault strikes before the write or after it."""

    BEFORE = "before"
    AFTER = "after"


@frozen(kw_only=True)
class JournalFault:
    """What goes wrong in one journal call: *error* is raised, or, without one, the call hangs."""

    method: str = field(validator=in_(("accept", "record_prompt", "end")))
    error: Exception | None = None
    moment: Moment = Moment.BEFORE
    wanted: Callable[[AcceptedRun], bool] = lambda _run: True

    async def strike(self) -> None:
        """Raise, or wait until the caller's patience ends."""
        if self.error is not None:
            await trio.lowlevel.checkpoint()
            raise self.error
        await trio.sleep_forever()


@define(eq=False)
class FaultyJournal:
    """A journal with faults in it; `struck` tells which of them came to pass."""

    inner: Journal
    faults: tuple[JournalFault, ...] = ()
    struck: list[JournalFault] = field(factory=list, init=False)

    async def accept(self, run: AcceptedRun) -> None:
        """Store the acceptance, unless spoiled."""
        await self._strike("accept", Moment.BEFORE, run)
        await self.inner.accept(run)
        await self._strike("accept", Moment.AFTER, run)

    def retract(self, run: AcceptedRun) -> None:
        """Pass on."""
        self.inner.retract(run)

    def moved(self, run: AcceptedRun) -> None:
        """Pass on."""
        self.inner.moved(run)

    async def record_prompt(self, run: AcceptedRun) -> None:
        """Store the prompt, unless spoiled."""
        await self._strike("record_prompt", Moment.BEFORE, run)
        await self.inner.record_prompt(run)
        await self._strike("record_prompt", Moment.AFTER, run)

    async def end(self, run: AcceptedRun, outcome: Outcome) -> None:
        """Store the ending, unless spoiled."""
        await self._strike("end", Moment.BEFORE, run)
        await self.inner.end(run, outcome)
        await self._strike("end", Moment.AFTER, run)

    async def amend(self, run: AcceptedRun, outcome: Outcome) -> None:
        """Pass on."""
        await self.inner.amend(run, outcome)

    async def _strike(self, method: str, moment: Moment, run: AcceptedRun) -> None:
        for fault in self.faults:
            if (fault.method, fault.moment) == (method, moment) and fault.wanted(run):
                self.struck.append(fault)
                await fault.strike()
        await trio.lowlevel.checkpoint()
