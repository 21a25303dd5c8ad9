"""The end of runs that were cancelled before they began.

One cancel may withdraw thousands of waiting runs. Their endings are handed to the journal a few hundred
at a time, in the order of the lane, and announced in that order as they are stored, so that a herd of
them holds up neither the other sessions nor the readers. The lane lets no run begin before all of them
have left.
"""

from typing import Final, Protocol

import trio
from attrs import define, field

from crush_trio.runtime.accepted import AcceptedRun
from crush_trio.runtime.ending import owed
from crush_trio.runtime.journal import Journal, JournalEntry
from crush_trio.runtime.limits import Limits
from crush_trio.runtime.outcome import Outcome

TOGETHER: Final = 250
"""How many endings are written in one commit."""

ACTIVE_FIRST: Final = 1.0
"""Seconds for which the active run, if it was cancelled too, may write its ending before the others."""


class Host(Protocol):
    """What ending runs needs of their workspace."""

    @property
    def overdue(self) -> trio.Event:
        """Set when the workspace should have closed by now."""
        ...

    def decide(self, run: AcceptedRun, outcome: Outcome) -> None:
        """Decide how *run* ends. It is to be handed to the journal in the same step."""
        ...

    def settle(self, run: AcceptedRun, outcome: Outcome) -> None:
        """Announce the ending of *run* and let it leave its lane."""
        ...


@define(eq=False)
class Withdrawal:
    """Runs of one lane that a cancel withdrew, in their order.

    The endings of the first ones are handed over when it is made, in the step of the cancel. If the
    cancel hit the active run too, *after* is that one: its record ends before theirs begin.
    """

    _runs: tuple[AcceptedRun, ...]
    _journal: Journal = field(repr=False)
    _limits: Limits
    _host: Host = field(repr=False)
    _after: AcceptedRun | None = None
    _entry: JournalEntry | None = field(default=None, init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        if self._after is None:
            self._entry = self._hand_over(self._runs[:TOGETHER])

    async def end(self) -> None:  # noqa: ASYNC910  # there is a run
        """Have all endings stored and announced. The body of a task that belongs to the runs."""
        left = self._runs
        with trio.CancelScope(shield=True):
            if self._after is not None:
                with trio.move_on_after(ACTIVE_FIRST):
                    await self._after.wait_ended()
            while left:
                part, left = left[:TOGETHER], left[TOGETHER:]
                entry = self._entry or self._hand_over(part)
                self._entry = self._hand_over(left[:TOGETHER]) if left else None
                await self._announce(part, entry)

    def _hand_over(self, runs: tuple[AcceptedRun, ...]) -> JournalEntry | None:
        """Hand the endings of *runs* over, of those that were not refused by now."""
        present = [run for run in runs if not run.refused]
        for run in present:
            self._host.decide(run, Outcome.cancelled())
        return self._journal.withdraw(present) if present else None

    async def _announce(self, runs: tuple[AcceptedRun, ...], entry: JournalEntry | None) -> None:
        accepted = [run for run in runs if await run.known()]
        if entry is None:
            return  # noqa: ASYNC910  # it has waited for each run
        if not accepted:  # all of them were refused: there is nothing to end
            entry.commit.withdraw()
            return  # noqa: ASYNC910  # likewise
        stored = await owed(entry, self._limits, accepted, self._host)
        outcome = Outcome.cancelled() if stored else Outcome.interrupted()
        if stored:
            entry.tell()
        for run in accepted:
            if not stored:
                self._host.decide(run, outcome)
            self._host.settle(run, outcome)
