"""What the runtime asks of whoever writes runs down.

`Journal` is the seam between a run and its storage. The store satisfies it durably;
`MemoryJournal` satisfies it for programs that need no durability, and for tests.
"""

from typing import Protocol

import trio
from attrs import define, field

from crush_trio.runtime.accepted import AcceptedRun
from crush_trio.runtime.outcome import Outcome
from crush_trio.wire.ids import RunId
from crush_trio.wire.native import RunState


class Journal(Protocol):
    """Makes acceptance and ending durable, and writes the prompt of a run into its session.

    The runtime calls these from the run's own task, shielded from cancellation and bounded in
    time. A method that raises has written nothing.
    """

    async def accept(self, run: AcceptedRun) -> None:
        """Make the acceptance durable; only then is the caller told that the run is accepted."""
        ...

    def retract(self, run: AcceptedRun) -> None:
        """Undo an `accept` that failed or took too long, whenever it may land.

        The caller is told that the prompt was not accepted; it must not come back after a restart.
        Called at most once, never waits, never raises.
        """
        ...

    def moved(self, run: AcceptedRun) -> None:
        """Note that the run was queued or became active; never waits, never raises."""
        ...

    async def record_prompt(self, run: AcceptedRun) -> None:
        """Write the run's prompt into its session as a message of the user's; called once."""
        ...

    async def end(self, run: AcceptedRun, outcome: Outcome) -> None:
        """Make the ending durable, together with whatever the turn's record still lacks.

        A run that was cancelled before its prompt was recorded still gets a complete record: the
        prompt, and an answer that says it was cancelled (A21). `run.prompt_recorded` tells.
        """
        ...

    async def amend(self, run: AcceptedRun, outcome: Outcome) -> None:
        """Store the ending that is announced because `end` has failed, if that is still possible.

        Then a restart need not end the run a second time. The ending is announced in any case.
        """
        ...


@define(eq=False)
class MemoryJournal:
    """Keeps everything in memory, in the order in which it was written."""

    accepted: list[RunId] = field(factory=list, init=False)
    prompts: list[RunId] = field(factory=list, init=False)
    states: list[tuple[RunId, RunState]] = field(factory=list, init=False)
    endings: dict[RunId, Outcome] = field(factory=dict, init=False)

    async def accept(self, run: AcceptedRun) -> None:
        """Remember the acceptance."""
        await trio.lowlevel.checkpoint()
        self.accepted.append(run.id)

    def retract(self, run: AcceptedRun) -> None:
        """Forget the acceptance."""
        if run.id in self.accepted:
            self.accepted.remove(run.id)

    def moved(self, run: AcceptedRun) -> None:
        """Remember the state."""
        self.states.append((run.id, run.state))

    async def record_prompt(self, run: AcceptedRun) -> None:
        """Remember that the prompt was recorded."""
        await trio.lowlevel.checkpoint()
        self.prompts.append(run.id)

    async def end(self, run: AcceptedRun, outcome: Outcome) -> None:
        """Remember the ending; a run that never recorded its prompt gets it recorded here."""
        await trio.lowlevel.checkpoint()
        if not run.prompt_recorded:
            self.prompts.append(run.id)
        self.endings[run.id] = outcome

    async def amend(self, run: AcceptedRun, outcome: Outcome) -> None:
        """Do nothing: this journal has no disk that could have recovered meanwhile."""
        await trio.lowlevel.checkpoint()
