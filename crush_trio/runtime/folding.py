"""Folding: the active run takes the prompts that wait behind it into its own turn (C2, C3)."""

from collections.abc import Sequence
from typing import Protocol

import trio

from crush_trio.runtime.accepted import AcceptedRun, RunLane
from crush_trio.runtime.journal import Journal
from crush_trio.runtime.lane import Folded
from crush_trio.runtime.outcome import Outcome, Submission


class Host(Protocol):
    """What folding needs of a workspace."""

    def decide(self, run: AcceptedRun, outcome: Outcome) -> None:
        """Decide how *run* ends. It is to be handed to the journal in the same step."""
        ...

    def settle(self, run: AcceptedRun, outcome: Outcome) -> None:
        """Announce the ending of *run* and let it leave its lane."""
        ...

    def withdraw(self, runs: Sequence[AcceptedRun]) -> None:
        """End runs that were cancelled before they began."""
        ...


async def fold(
    into: AcceptedRun, lane: RunLane, journal: Journal, host: Host
) -> tuple[Submission, ...]:
    """Take the prompts that wait without a caller's run id into the turn of *into*.

    They are stored and ended when this returns; a cancel of *into* waits for that. If it fails they
    wait again, first in line, and the error is raised.
    """
    folded = lane.fold(into)
    if not folded:
        await trio.lowlevel.checkpoint()
        return ()
    taken = tuple(run.submission for run in folded)  # once they have ended, they are forgotten
    outcome = Outcome.folded(into.id)
    for run in folded:
        host.decide(run, outcome)
    entry = journal.fold(folded, into)
    try:
        await entry.commit.certain()
    except BaseException:
        host.withdraw(lane.unfold(folded))
        raise
    entry.tell()
    for run in folded:
        run.decide(Folded(into=into.id))
        host.settle(run, outcome)
    await trio.lowlevel.checkpoint()
    return taken
