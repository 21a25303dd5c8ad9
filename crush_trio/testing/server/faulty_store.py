"""A store that fails on demand, and records what was written to it.

`FaultyStore` forwards everything to a real store, except the writes that a test has given a fault:
those raise or hang, before or after the real write. A `StoreFault` names the writes by the kinds of
change in them. Reads never fail.

```python
store = FaultyStore(MemoryStore(), [StoreFault(of=(RunEnded,), error=DiskFull)])
async with open_recorded_runs(store, make_turn) as recorded:
    ...
    assert store.degraded is not None
    store.heal()
```

Without faults it adds no checkpoint of its own: a store in memory behind it still applies a commit
within the call.
"""

import logging
from collections.abc import Callable, Iterable

import trio
from attrs import define, field, frozen
from outcome import Error, Value
from typing_extensions import override

from crush_trio.store.changes import (
    Change,
    MessageCreated,
    MessageDeleted,
    MessageFinished,
    PartPut,
    PartsCut,
    TextAppended,
)
from crush_trio.store.commit import Commit
from crush_trio.store.errors import StoreFailed
from crush_trio.testing.server.faults import Moment
from crush_trio.testing.server.forwarding_store import ForwardingStore
from crush_trio.wire.ids import MessageId, SessionId
from crush_trio.wire.views import Session

log = logging.getLogger(__name__)

Changes = tuple[Change, ...]
"""The changes of one write."""


@frozen(kw_only=True, eq=False)
class StoreFault:
    """A fault in writes that have a change of one of the kinds *of*; in all writes, if *of* is empty.

    *error* makes the exception to raise, such as an exception class. Without it the write hangs until
    it is withdrawn or the store is healed, and all later writes hang behind it. A write that is
    withdrawn while it hangs *before* never takes place; one that hangs *after* has taken place.

    A post has no caller to raise in: `degraded` reports its error, and nothing reports that it hangs.
    With a fault *before*, it is lost.
    """

    of: tuple[type[object], ...] = ()
    error: Callable[[], Exception] | None = None
    moment: Moment = Moment.BEFORE
    times: int | None = None
    """How often the fault occurs; None for every time."""
    wanted: Callable[[Change], bool] = lambda _change: True
    """Restricts the fault to some changes of those kinds."""

    def concerns(self, changes: Changes) -> bool:
        """Whether this fault applies to a write of *changes*."""
        return any(
            (not self.of or isinstance(change, self.of)) and self.wanted(change)
            for change in changes
        )


@define(eq=False)
class _Write(Commit[Session | None]):
    """One write to a `FaultyStore`, carried out as far as the faults allow."""

    store: "FaultyStore"
    changes: Changes
    session: SessionId | None
    _inner: Commit[Session | None] | None = field(default=None, init=False)
    """The real write, once it was submitted."""
    _passed: trio.Event = field(factory=trio.Event, init=False)
    """Set when no fault holds the answer back any more."""
    _stuck_in: StoreFault | None = field(default=None, init=False)
    _answer_at: float = field(default=0.0, init=False)

    @property
    def hangs(self) -> bool:
        """Whether a fault holds this write back, and so all later ones."""
        return not self._passed.is_set()

    def go_on(self) -> None:
        """Submit the write, if it was not yet, and settle its result, unless a fault prevents it."""
        if self._passed.is_set() or self._stuck_in in self.store.faults:
            return
        if self._inner is None:
            if not self._passes(Moment.BEFORE):
                return
            self.store.look(self.changes)
            self._inner = self.store.inner.submit(*self.changes, session=self.session)
            self._answer_at = trio.current_time() + self.store.latency
        if self._passes(Moment.AFTER):
            self._passed.set()
            if not self.store.latency:
                self._answer()

    def _passes(self, moment: Moment) -> bool:
        """Whether no fault occurs at *moment*; one with an error ends the write."""
        fault = self.store.due(moment, self.changes)
        if fault is None:
            return True
        self._stuck_in = fault
        if fault.error is not None:
            error = fault.error()
            self.store.note(error)
            self.settle(Error(error))
        return False

    def _answer(self) -> None:
        assert self._inner is not None
        self.settle(self._inner.result)

    @override
    def settle(self, result: Value[Session | None] | Error) -> None:
        if not self.known:
            self._passed.set()
            super().settle(result)
            self.store.answered(self, result)

    @override
    async def _until_known(self) -> None:
        """Wait until no fault holds the answer back, and then for the latency."""
        await self._passed.wait()
        if not self.known:
            await trio.sleep_until(self._answer_at)
            self._answer()

    @override
    def _take_back(self) -> bool:
        return self._inner is None


@define(eq=False)
class FaultyStore(ForwardingStore):
    """A `Store` whose writes to *inner* fail on demand.

    *latency* is the time in seconds from a commit's write to its answer. *watch* is called with each
    write just before it takes place; a copy of *inner* made there is what a kill at that moment would
    leave behind.
    """

    faults: list[StoreFault] = field(factory=list, converter=list)
    latency: float = 0.0
    watch: Callable[[Changes], None] | None = None
    commits: list[Changes] = field(factory=list, init=False)
    """The changes of each commit, in the order of the calls, whether it succeeded or not."""
    posts: list[Changes] = field(factory=list, init=False)
    """The changes of each post, likewise."""
    struck: list[StoreFault] = field(factory=list, init=False)
    """The faults that occurred, in that order."""
    overlaps: list[tuple[Changes, Changes]] = field(factory=list, init=False)
    """Pairs of commits of one message of which the second builds on the first before it has ended.

    Must stay empty (D7). A commit that rewrites or deletes the message does not build on the first.
    """
    _under_way: list["_Write"] = field(factory=list, init=False)
    _trouble: str | None = field(default=None, init=False)

    def spoil(self, *faults: StoreFault) -> None:
        """Add faults; if several apply to a write, the first occurs."""
        self.faults.extend(faults)

    def heal(self) -> None:
        """Remove all faults and continue the writes that hang."""
        self.faults.clear()
        self.advance()

    @property
    def under_way(self) -> int:
        """How many commits have no answer yet."""
        return len(self._under_way)

    def committed(self, *kinds: type[object]) -> list[Change]:
        """Return the changes of the given *kinds* in all commits, in order."""
        return [change for commit in self.commits for change in commit if isinstance(change, kinds)]

    # ── Changes ─────────────────────────────────────────────────────────────────────────────────

    @property
    @override
    def degraded(self) -> str | None:
        """The error of the last fault, until a write succeeds; otherwise that of *inner*."""
        return self._trouble or self.inner.degraded

    @override
    def submit(self, *changes: Change, session: SessionId | None = None) -> Commit[Session | None]:
        if changes:  # without changes it only waits for earlier writes
            self.commits.append(changes)
        self.overlaps.extend(
            (other.changes, changes) for other in self._under_way if _meet(other.changes, changes)
        )
        return self._hand_over(_Write(self._lose, self, changes, session))

    def _hand_over(self, write: "_Write") -> "_Write":
        self._under_way.append(write)
        self.advance()
        return write

    def advance(self) -> None:
        """Continue the writes in their order, up to the first that hangs."""
        for write in list(self._under_way):
            write.go_on()
            if write.hangs:
                return

    @override
    async def commit(self, *changes: Change) -> None:
        await self.submit(*changes).wait()

    @override
    def abandon(self) -> None:
        for write in list(self._under_way):
            write.withdraw(StoreFailed())
        self.inner.abandon()

    @override
    def post(self, *changes: Change) -> None:
        self.posts.append(changes)
        if any(write.hangs for write in self._under_way):
            self._hand_over(_Write(self._lose, self, changes, None, awaited=False))
            return
        before, after = (self.due(moment, changes) for moment in (Moment.BEFORE, Moment.AFTER))
        if before is None:
            self.look(changes)
            self.inner.post(*changes)
        match before or after:
            case None:
                self._trouble = None
            case StoreFault(error=make_error) if make_error is not None:
                self.note(make_error())

    # ── For the writes themselves ───────────────────────────────────────────────────────────────

    def due(self, moment: Moment, changes: Changes) -> StoreFault | None:
        """Return the fault that occurs now, if one does, and record it."""
        for fault in self.faults:
            spent = fault.times is not None and self.struck.count(fault) >= fault.times
            if fault.moment is moment and fault.concerns(changes) and not spent:
                self.struck.append(fault)
                return fault
        return None

    def note(self, error: BaseException) -> None:
        """Record an error for `degraded`."""
        self._trouble = str(error) or type(error).__name__

    def look(self, changes: Changes) -> None:
        """Call *watch* with a write that is about to take place."""
        if self.watch is not None and changes:
            self.watch(changes)

    def answered(self, write: "_Write", result: Value[Session | None] | Error) -> None:
        """Remove a write that has its answer, and continue the others."""
        self._under_way = [other for other in self._under_way if other is not write]
        if isinstance(result, Value):
            self._trouble = None
        self.advance()

    def _lose(self, error: BaseException) -> None:
        self.note(error)
        log.error("store.write_lost", exc_info=error)


def _meet(one: Iterable[Change], other: Iterable[Change]) -> bool:
    """Whether the write *other* builds on what the earlier *one* does to the same message."""
    anew = {c.message_id for c in other if isinstance(c, PartsCut) and c.length == 0}
    deleted = {c.id for c in other if isinstance(c, MessageDeleted)}
    return not _touched(one).isdisjoint(_touched(other) - anew - deleted)


def _touched(changes: Iterable[Change]) -> set[MessageId]:
    touched = set()
    for change in changes:
        match change:
            case MessageCreated(message=message):
                touched.add(message.id)
            case MessageDeleted(id=message_id):
                touched.add(message_id)
            case (
                PartPut(message_id=message_id)
                | TextAppended(message_id=message_id)
                | PartsCut(message_id=message_id)
                | MessageFinished(message_id=message_id)
            ):
                touched.add(message_id)
    return touched
