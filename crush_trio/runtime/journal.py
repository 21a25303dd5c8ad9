"""What the runtime asks of a journal: to write runs down, in the order in which they change.

`Journal` is the seam between the runs and their storage. The store satisfies it durably;
`MemoryJournal` satisfies it for programs that need no durability, and for tests.

Who counts the runs of a workspace, if anybody does.

A run is told twice: when it is accepted and when it is over. What can be seen by looking, such as how
many are active now, is not told to anybody.
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


class RunMeter(Protocol):
    """Is told of every run. Both methods are called in the midst of a step: they only count."""

    def run_accepted(self, run: AcceptedRun) -> None:
        """*run* was accepted just now."""
        ...

    def run_ended(self, run: AcceptedRun) -> None:
        """*run* is over; without an outcome if its acceptance could not be stored."""
        ...


@define(eq=False)
class _Nobody:
    """Satisfies `RunMeter`, for a workspace that nobody looks at."""

    def run_accepted(self, run: AcceptedRun) -> None:
        pass

    def run_ended(self, run: AcceptedRun) -> None:
        pass


NOBODY: Final[RunMeter] = _Nobody()
"""Counts nothing."""


class JournalEntry(Protocol):
    """Something that was handed to a journal: whether it is stored, and what is to be told of it."""

    @property
    def commit(self) -> Commit[Any]:
        """The write itself."""
        ...

    def tell(self) -> None:
        """Publish what was written; called once, when it is stored."""
        ...

    def reduce(self, error: Exception) -> bool:
        """Leave out what can never be written, as *error* says, and hand over the rest.

        Returns whether there was something to leave out.
        """
        ...

    def again(self) -> None:
        """Hand it over once more, after the write has failed."""
        ...


class Journal(Protocol):
    """Makes acceptances, turns and endings durable.

    Every method hands its entry over in the step in which it is called, never waits and never raises.
    Entries are written in the order in which they were handed over, each as a whole or not at all.
    """

    def accept(self, run: AcceptedRun, *, begins: bool) -> JournalEntry:
        """Write the acceptance; only when it is stored is the caller told that the run is accepted.

        *begins* says that nothing is in the way of the run: its prompt is written along, as a
        message of its session.
        """
        ...

    def retract(self, run: AcceptedRun) -> None:
        """Undo an acceptance that failed or took too long, whenever it may land.

        The caller is told that the prompt was not accepted; it must not come back after a restart.
        """
        ...

    def begin(self, run: AcceptedRun) -> JournalEntry:
        """Write that it is the run's turn, and its prompt, unless that was written on acceptance."""
        ...

    def fold(self, runs: Sequence[AcceptedRun], into: AcceptedRun) -> JournalEntry:
        """Write the prompts of *runs* into the turn of *into*, and that they end with it."""
        ...

    def withdraw(self, runs: Sequence[AcceptedRun]) -> JournalEntry:
        """Write the endings of *runs* of one session, which were cancelled before they began.

        Each gets a complete record: the prompt, and an answer that says it was cancelled (A21).
        Runs whose acceptance was refused are passed over.
        """
        ...

    def end(self, run: AcceptedRun, outcome: Outcome) -> JournalEntry:
        """Write the ending of an active run, with whatever the record of its turn still lacks."""
        ...

    async def answers(self, within: float) -> bool:
        """Whether a write would be answered *within* so many seconds."""
        ...

    def give_up(self) -> None:
        """Fail what is not stored yet, and all that comes later: the workspace has to close."""
        ...


@define(eq=False)
class Noted:
    """A `JournalEntry` that is a fact as soon as it is handed over."""

    _note: Callable[[], None] = field(repr=False)
    _publish: Callable[[], None] = field(default=lambda: None, repr=False)
    commit: Commit[None] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._note()
        self.commit = Commit(lambda _error: None)
        self.commit.settle(Value(None))

    def tell(self) -> None:
        """Publish what there is to be told."""
        self._publish()

    def reduce(self, error: Exception) -> bool:
        """Refuse: a note cannot have failed."""
        raise AssertionError("a note does not fail") from error

    def again(self) -> None:
        """Refuse: a note cannot have failed."""
        raise AssertionError("a note does not fail")


@define(eq=False)
class MemoryJournal:
    """Keeps everything in memory, in the order in which it was written."""

    accepted: list[RunId] = field(factory=list, init=False)
    prompts: list[RunId] = field(factory=list, init=False)
    """The runs whose prompts became messages, or the record of a cancel."""
    endings: dict[RunId, Outcome] = field(factory=dict, init=False)

    def accept(self, run: AcceptedRun, *, begins: bool) -> JournalEntry:
        """Remember the acceptance."""

        def note() -> None:
            self.accepted.append(run.id)
            if begins:
                self.prompts.append(run.id)

        return Noted(note)

    def retract(self, run: AcceptedRun) -> None:
        """Forget the acceptance."""
        for names in (self.accepted, self.prompts):
            if run.id in names:
                names.remove(run.id)

    def begin(self, run: AcceptedRun) -> JournalEntry:
        """Remember the prompt."""
        return Noted(lambda: self._remember_prompt(run))

    def fold(self, runs: Sequence[AcceptedRun], into: AcceptedRun) -> JournalEntry:
        """Remember the prompts and the endings."""
        return Noted(lambda: self._end(runs, Outcome.folded(into.id)))

    def withdraw(self, runs: Sequence[AcceptedRun]) -> JournalEntry:
        """Remember the endings, and the prompts that they are about."""
        return Noted(lambda: self._end(runs, Outcome.cancelled()))

    def end(self, run: AcceptedRun, outcome: Outcome) -> JournalEntry:
        """Remember the ending."""
        return Noted(lambda: self._end((run,), outcome))

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
