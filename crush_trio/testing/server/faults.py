"""A journal that fails on demand.

`FaultyJournal` forwards every call to a real journal, except the ones that a test has given a fault:
those fail or hang, before or after the real write. The calls of a session keep their order, so the
ones after a call that hangs wait for it.
"""

from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from typing import Any

from attrs import define, field, frozen
from attrs.validators import in_
from outcome import Error
from typing_extensions import override

from crush_trio.runtime.accepted import AcceptedRun
from crush_trio.runtime.journal import Journal, JournalEntry
from crush_trio.runtime.outcome import Outcome
from crush_trio.store.commit import Commit
from crush_trio.store.errors import StoreFailed
from crush_trio.wire.ids import SessionId


class Moment(Enum):
    """Whether a fault occurs before the real write or after it."""

    BEFORE = "before"
    AFTER = "after"


METHODS = ("accept", "begin", "fold", "withdraw", "end")
"""The calls that can have a fault."""


@frozen(kw_only=True)
class JournalFault:
    """A fault in calls of *method*: *error* is raised; without one, the call hangs."""

    method: str = field(validator=in_(METHODS))
    error: Exception | None = None
    moment: Moment = Moment.BEFORE
    wanted: Callable[[AcceptedRun], bool] = lambda _run: True
    times: int | None = None
    """How often the fault occurs; None for every time."""


@define(eq=False)
class _Commit(Commit[Any]):
    """The commit of a call to a `FaultyJournal`."""

    entry: "_Entry"

    @override
    def _take_back(self) -> bool:
        return self.entry.inner is None


@define(eq=False)
class _Entry:
    """One call of a `FaultyJournal`, carried out as far as the faults allow."""

    journal: "FaultyJournal"
    method: str
    runs: Sequence[AcceptedRun]
    _call: Callable[[], JournalEntry] = field(repr=False)
    inner: JournalEntry | None = field(default=None, init=False)
    """The real entry, once the call was forwarded."""
    commit: Commit[Any] = field(init=False)
    _stuck_in: JournalFault | None = field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self._hand_over()

    def _hand_over(self) -> None:
        self.commit = _Commit(lambda _error: None, self)
        self._stuck_in = None
        self.journal.open.append(self)
        self.journal.advance(self.session_id)

    @property
    def session_id(self) -> SessionId:
        """The session that the call is about."""
        return self.runs[0].session_id

    def go_on(self) -> None:
        """Forward the call, if it was not yet, and settle it, unless a fault prevents it."""
        if self.commit.known or self._stuck_in in self.journal.faults:
            return
        if self.inner is None:
            if not self._passes(Moment.BEFORE):
                return
            self.inner = self._call()
        if self._passes(Moment.AFTER):
            self.commit.settle(self.inner.commit.result)

    def _passes(self, moment: Moment) -> bool:
        fault = self._stuck_in = self.journal.due(self.method, moment, self.runs)
        if fault is not None and fault.error is not None:
            self.commit.settle(Error(fault.error))
        return fault is None

    def tell(self) -> None:
        if self.inner is not None:
            self.inner.tell()

    def reduce(self, _error: Exception) -> bool:
        """Return False: nothing can be left out."""
        return False

    def again(self) -> None:
        """Retry; a write that has taken place is not repeated."""
        self._hand_over()

    @property
    def unstorable(self) -> bool:
        """False: every fault can be healed."""
        return False

    def shortened(self, _outcome: Outcome) -> JournalEntry:
        """Raise: no entry is unstorable."""
        raise AssertionError("every fault can be healed")


@define(eq=False)
class FaultyJournal:
    """A `Journal` that fails on demand; `struck` lists the faults that occurred."""

    inner: Journal
    faults: list[JournalFault] = field(factory=list, converter=list)
    struck: list[JournalFault] = field(factory=list, init=False)
    open: list[_Entry] = field(factory=list, init=False, repr=False)
    _given_up: bool = field(default=False, init=False)

    def heal(self) -> None:
        """Remove all faults and continue the calls that hang."""
        self.faults.clear()
        for session_id in dict.fromkeys(entry.session_id for entry in self.open):
            self.advance(session_id)

    def advance(self, session_id: SessionId) -> None:
        """Continue the calls of a session in their order, up to the first that hangs."""
        self.open = [entry for entry in self.open if not entry.commit.known]
        for entry in self.open:
            if entry.session_id == session_id:
                entry.go_on()
                if not entry.commit.known:
                    return

    def accept(self, run: AcceptedRun, *, begins: bool) -> JournalEntry:
        """Forward, unless a fault occurs."""
        return self._entry("accept", (run,), partial(self.inner.accept, run, begins=begins))

    def retract(self, run: AcceptedRun) -> None:
        """Forward."""
        self.inner.retract(run)

    def begin(self, run: AcceptedRun) -> JournalEntry:
        """Forward, unless a fault occurs."""
        return self._entry("begin", (run,), partial(self.inner.begin, run))

    def fold(self, runs: Sequence[AcceptedRun], into: AcceptedRun) -> JournalEntry:
        """Forward, unless a fault occurs."""
        return self._entry("fold", runs, partial(self.inner.fold, runs, into))

    def withdraw(self, runs: Sequence[AcceptedRun]) -> JournalEntry:
        """Forward, unless a fault occurs."""
        return self._entry("withdraw", runs, partial(self.inner.withdraw, runs))

    def end(self, run: AcceptedRun, outcome: Outcome) -> JournalEntry:
        """Forward, unless a fault occurs."""
        return self._entry("end", (run,), partial(self.inner.end, run, outcome))

    async def answers(self, within: float) -> bool:
        """Wait for the calls that hang, then for the real journal."""
        for entry in self.open:
            if not await entry.commit.known_within(within):
                return False
        return await self.inner.answers(within)

    def give_up(self) -> None:
        """Fail the calls that hang, and all later ones."""
        self._given_up = True
        for entry in self.open:
            entry.commit.withdraw(StoreFailed())
        self.inner.give_up()

    def due(self, method: str, moment: Moment, runs: Sequence[AcceptedRun]) -> JournalFault | None:
        """Return the fault that occurs now, if one does, and record it."""
        if self._given_up:
            return JournalFault(method=method, error=StoreFailed())
        for fault in self.faults:
            spent = fault.times is not None and self.struck.count(fault) >= fault.times
            wanted = any(fault.wanted(run) for run in runs)
            if (fault.method, fault.moment) == (method, moment) and wanted and not spent:
                self.struck.append(fault)
                return fault
        return None

    def _entry(
        self, method: str, runs: Sequence[AcceptedRun], call: Callable[[], JournalEntry]
    ) -> JournalEntry:
        return _Entry(self, method, runs, call)
