"""Two seams of the runtime: the journal, which stores runs, and the metrics hooks.

`Journal` stores every change of a run, in the order of the changes. The agent satisfies it with a
durable store; `MemoryJournal` is for programs that need no durability, and for tests.

`RunMeter` is called when a run is accepted and when it ends. Values that can be read at any time,
such as the number of active runs, have no hook.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import trio
from attrs import define, field
from outcome import Value

from crush_trio.runtime.accepted import AcceptedRun
from crush_trio.runtime.outcome import Outcome
from crush_trio.store.commit import Commit
from crush_trio.wire.ids import RunId


class JournalEntry(Protocol):
    """One write that was handed to a journal, and the events to publish once it is stored."""

    @property
    def commit(self) -> Commit[Any]:
        """The write itself."""
        ...

    def tell(self) -> None:
        """Publish the events of what was written; called once, after it is stored."""
        ...

    def reduce(self, error: Exception) -> bool:
        """Remove the part that can never be written, according to *error*, and write the rest.

        Returns False, and does nothing, if there is no such part.
        """
        ...

    def again(self) -> None:
        """Hand the same write over again, after it has failed."""
        ...

    @property
    def unstorable(self) -> bool:
        """Whether the write has failed in a way that does not pass: it would fail again."""
        ...

    def shortened(self, outcome: Outcome) -> "JournalEntry":
        """Write *outcome*, which is decided now, with a record of only what was stored before.

        Called for the ending of an active run that was unstorable.
        """
        ...


class Journal(Protocol):
    """Makes acceptances, turns and endings durable.

    Every synchronous method hands its entry over before it returns, never waits and never raises.
    Entries are written in the order in which they were handed over, each completely or not at all.
    """

    def accept(self, run: AcceptedRun, *, begins: bool) -> JournalEntry:
        """Write the acceptance. The caller is answered only after it is stored.

        *begins* means that the run has the turn already: its prompt is written in the same commit,
        as a message of its session.
        """
        ...

    def retract(self, run: AcceptedRun) -> None:
        """Undo an acceptance that failed or took too long, even if it is written later.

        The caller was told that the prompt was not accepted, so it must not run after a restart.
        """
        ...

    def begin(self, run: AcceptedRun) -> JournalEntry:
        """Write that the run is active, and its prompt unless that was written on acceptance."""
        ...

    def fold(self, runs: Sequence[AcceptedRun], into: AcceptedRun) -> JournalEntry:
        """Write the prompts of *runs* into the turn of *into*, and the endings of *runs*."""
        ...

    def withdraw(self, runs: Sequence[AcceptedRun]) -> JournalEntry:
        """Write the endings of *runs* of one session, which were cancelled before they began.

        Each gets a complete record: the prompt, and an answer that says it was cancelled (A21).
        Runs whose acceptance was refused are skipped.
        """
        ...

    def end(self, run: AcceptedRun, outcome: Outcome) -> JournalEntry:
        """Write the ending of an active run, and what its turn has not stored yet."""
        ...

    async def answers(self, within: float) -> bool:
        """Whether the store answers a write *within* so many seconds."""
        ...

    def give_up(self) -> None:
        """Fail all writes that are not stored yet, and all later ones: the workspace must close."""
        ...


@define(eq=False)
class ImmediateEntry:
    """A `JournalEntry` that takes effect at once and cannot fail: it needs no store."""

    _note: Callable[[], None] = field(repr=False)
    _publish: Callable[[], None] = field(default=lambda: None, repr=False)
    commit: Commit[None] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._note()
        self.commit = Commit(lambda _error: None)
        self.commit.settle(Value(None))

    def tell(self) -> None:
        """Publish the events, if there are any."""
        self._publish()

    def reduce(self, error: Exception) -> bool:
        """Raise: an immediate entry cannot have failed."""
        raise AssertionError("an immediate entry does not fail") from error

    def again(self) -> None:
        """Raise: an immediate entry cannot have failed."""
        raise AssertionError("an immediate entry does not fail")

    @property
    def unstorable(self) -> bool:
        """False: an immediate entry cannot have failed."""
        return False

    def shortened(self, outcome: Outcome) -> JournalEntry:
        """Raise: an immediate entry cannot have failed."""
        raise AssertionError("an immediate entry does not fail")


@define(eq=False)
class MemoryJournal:
    """Keeps everything in memory, in the order in which it was written."""

    accepted: list[RunId] = field(factory=list, init=False)
    prompts: list[RunId] = field(factory=list, init=False)
    """The runs whose prompts were written: as messages, or in the record of a cancel."""
    endings: dict[RunId, Outcome] = field(factory=dict, init=False)

    def accept(self, run: AcceptedRun, *, begins: bool) -> JournalEntry:
        """Remember the acceptance."""

        def note() -> None:
            self.accepted.append(run.id)
            if begins:
                self.prompts.append(run.id)

        return ImmediateEntry(note)

    def retract(self, run: AcceptedRun) -> None:
        """Forget the acceptance."""
        for names in (self.accepted, self.prompts):
            if run.id in names:
                names.remove(run.id)

    def begin(self, run: AcceptedRun) -> JournalEntry:
        """Remember the prompt."""
        return ImmediateEntry(lambda: self._remember_prompt(run))

    def fold(self, runs: Sequence[AcceptedRun], into: AcceptedRun) -> JournalEntry:
        """Remember the prompts and the endings."""
        return ImmediateEntry(lambda: self._end(runs, Outcome.folded(into.id)))

    def withdraw(self, runs: Sequence[AcceptedRun]) -> JournalEntry:
        """Remember the endings, and the prompts that they are about."""
        return ImmediateEntry(lambda: self._end(runs, Outcome.cancelled()))

    def end(self, run: AcceptedRun, outcome: Outcome) -> JournalEntry:
        """Remember the ending."""
        return ImmediateEntry(lambda: self._end((run,), outcome))

    async def answers(self, within: float) -> bool:
        """Return True: everything is remembered at once."""
        await trio.lowlevel.checkpoint()
        return within > 0

    def give_up(self) -> None:
        """Do nothing: everything is remembered at once."""

    def _end(self, runs: Sequence[AcceptedRun], outcome: Outcome) -> None:
        for run in runs:
            self._remember_prompt(run)
            self.endings[run.id] = outcome

    def _remember_prompt(self, run: AcceptedRun) -> None:
        if run.id not in self.prompts:
            self.prompts.append(run.id)


class RunMeter(Protocol):
    """Metrics hooks of a workspace.

    Both are called in the middle of a step: they must only count.
    """

    def run_accepted(self, run: AcceptedRun) -> None:
        """Count a run that was accepted just now."""
        ...

    def run_ended(self, run: AcceptedRun) -> None:
        """Count a run that has ended; it has no outcome if its acceptance could not be stored."""
        ...


@define(eq=False)
class _NoMeter:
    """A `RunMeter` that does nothing, the default."""

    def run_accepted(self, run: AcceptedRun) -> None:
        pass

    def run_ended(self, run: AcceptedRun) -> None:
        pass


NO_METER: Final[RunMeter] = _NoMeter()
"""Metrics hooks that do nothing."""
