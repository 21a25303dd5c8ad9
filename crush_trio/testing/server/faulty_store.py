"""A store that fails on cue, and keeps book of what it was given.

`FaultyStore` stands before a real store and passes everything on, except the writes that a test has
spoiled: those raise, or do not come back, before or after the real write took place. Which writes,
a `StoreFault` says: those with a change of some kind in them. Reads are never spoiled.

```python
store = FaultyStore(MemoryStore(), [StoreFault(of=(RunEnded,), error=DiskFull)])
async with open_durable_workspace(store, make_turn) as workspace:
    ...
    assert workspace.degraded is not None
    store.heal()
```

Where nothing is spoiled it adds no checkpoint of its own: a store in memory applies a commit in the
very step of the call, with this one before it as without.
"""

import logging
from collections.abc import Callable, Iterable, Sequence

import trio
from attrs import define, field, frozen
from outcome import Error, Value
from typing_extensions import override

from crush_trio.store.base import (
    Orphan,
    PendingAsk,
    Store,
    StoredConversation,
    StoredEnding,
    StoredMessage,
    StoredRun,
    StoreLoad,
    StoreWarning,
    TailEvent,
    Totals,
)
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
from crush_trio.store.pages import PagedList, Pages
from crush_trio.testing.server.faults import Moment
from crush_trio.wire.ids import FileId, MessageId, RunId, SessionId
from crush_trio.wire.messages import Message
from crush_trio.wire.runs import RunView
from crush_trio.wire.views import File, Session

log = logging.getLogger(__name__)

Changes = tuple[Change, ...]
"""What one write consists of."""


@frozen(kw_only=True, eq=False)
class StoreFault:
    """What befalls a write that has a change of one of the kinds *of* in it; of any, if none is named.

    *error* makes the exception to be raised: an exception class will do. Without it the write hangs,
    until it is withdrawn or the store is healed, and all later writes hang behind it. A write that is
    withdrawn while it hangs *before* never takes place; one that hangs *after* has taken place.

    Nobody waits for a post. One that would raise is reported by `degraded`, one that would hang is
    not; struck before, either is lost.
    """

    of: tuple[type[object], ...] = ()
    error: Callable[[], Exception] | None = None
    moment: Moment = Moment.BEFORE
    times: int | None = None
    """How often it strikes; None for every time."""
    wanted: Callable[[Change], bool] = lambda _change: True
    """Which changes of those kinds it is about."""

    def concerns(self, changes: Changes) -> bool:
        """Whether a write of *changes* is one that this fault is about."""
        return any(
            (not self.of or isinstance(change, self.of)) and self.wanted(change)
            for change in changes
        )


@define(eq=False)
class _Write(Commit[Session | None]):
    """One write to a `FaultyStore`, taken as far as the faults let it."""

    store: "FaultyStore"
    changes: Changes
    session: SessionId | None
    _inner: Commit[Session | None] | None = field(default=None, init=False)
    """The real write, once it has taken place."""
    _passed: trio.Event = field(factory=trio.Event, init=False)
    """Set when no fault is in the way of the answer any more."""
    _stuck_in: StoreFault | None = field(default=None, init=False)
    _answer_at: float = field(default=0.0, init=False)

    @property
    def hangs(self) -> bool:
        """Whether a fault is in the way, and with it in that of all writes that come later."""
        return not self._passed.is_set()

    def go_on(self) -> None:
        """Do the write, unless it was done, and note its result, unless a fault is in the way."""
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
        """Whether no fault strikes at *moment*; one with an error ends the write."""
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
        """Wait for the faults to pass, and then for the answer, which takes its time."""
        await self._passed.wait()
        if not self.known:
            await trio.sleep_until(self._answer_at)
            self._answer()

    @override
    def _take_back(self) -> bool:
        return self._inner is None


@define(eq=False)
class FaultyStore(Store):
    """A `Store` with faults in it, all of them before *inner*.

    *latency* is how many seconds a commit takes from the write to its answer. *watch* is called with
    each write just before it takes place; a copy of *inner* made there is what a kill at that moment
    would leave behind.
    """

    inner: Store
    faults: list[StoreFault] = field(factory=list, converter=list)
    latency: float = 0.0
    watch: Callable[[Changes], None] | None = None
    commits: list[Changes] = field(factory=list, init=False)
    """What was to be committed, in the order of the calls, whatever became of it."""
    posts: list[Changes] = field(factory=list, init=False)
    """What was posted, likewise."""
    struck: list[StoreFault] = field(factory=list, init=False)
    """The faults that came to pass, in that order."""
    overlaps: list[tuple[Changes, Changes]] = field(factory=list, init=False)
    """Commits that build on one of the same message that was still under way; must stay empty (D7).

    One that writes the message anew, or takes it away, does not build on what is stored.
    """
    _under_way: list["_Write"] = field(factory=list, init=False)
    _trouble: str | None = field(default=None, init=False)

    def spoil(self, *faults: StoreFault) -> None:
        """Add faults; of several that concern a write, the first strikes."""
        self.faults.extend(faults)

    def heal(self) -> None:
        """Take all faults away and let every write go on that hangs."""
        self.faults.clear()
        self.advance()

    @property
    def under_way(self) -> int:
        """How many commits have been given and not answered."""
        return len(self._under_way)

    def committed(self, *kinds: type[object]) -> list[Change]:
        """Return the changes of some *kinds* that commits were asked for, in order."""
        return [change for commit in self.commits for change in commit if isinstance(change, kinds)]

    # ── Changes ─────────────────────────────────────────────────────────────────────────────────

    @property
    @override
    def boot_id(self) -> str:
        return self.inner.boot_id

    @property
    @override
    def load(self) -> StoreLoad:
        """What the real store has to do, and how long that takes."""
        return self.inner.load

    @property
    @override
    def warning(self) -> StoreWarning | None:
        """What *inner* says."""
        return self.inner.warning

    @property
    @override
    def degraded(self) -> str | None:
        """What the last fault said, until a write comes through; else what *inner* says."""
        return self._trouble or self.inner.degraded

    @override
    def submit(self, *changes: Change, session: SessionId | None = None) -> Commit[Session | None]:
        if changes:  # else it only waits for what was given before
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
        """Take the writes as far as they come, in their order: none passes one that hangs."""
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
        """Return the fault that strikes now, and write down that it does."""
        for fault in self.faults:
            spent = fault.times is not None and self.struck.count(fault) >= fault.times
            if fault.moment is moment and fault.concerns(changes) and not spent:
                self.struck.append(fault)
                return fault
        return None

    def note(self, error: BaseException) -> None:
        """Take note of trouble."""
        self._trouble = str(error) or type(error).__name__

    def look(self, changes: Changes) -> None:
        """Let the test look at a write that is about to take place."""
        if self.watch is not None and changes:
            self.watch(changes)

    def answered(self, write: "_Write", result: Value[Session | None] | Error) -> None:
        """Take note that a write has its answer."""
        self._under_way = [other for other in self._under_way if other is not write]
        if isinstance(result, Value):
            self._trouble = None
        self.advance()

    def _lose(self, error: BaseException) -> None:
        self.note(error)
        log.error("store.write_lost", exc_info=error)

    # ── Everything else is passed on ────────────────────────────────────────────────────────────

    @override
    async def session(self, session_id: SessionId) -> Session:
        return await self.inner.session(session_id)

    @override
    async def sessions(self) -> list[Session]:
        return await self.inner.sessions()

    @override
    async def totals(self, session_id: SessionId) -> Totals:
        return await self.inner.totals(session_id)

    @override
    async def message(self, message_id: MessageId) -> StoredMessage:
        return await self.inner.message(message_id)

    @override
    async def messages(self, session_id: SessionId) -> list[Message]:
        return await self.inner.messages(session_id)

    @override
    async def conversation(
        self, session_id: SessionId, run_id: RunId | None = None
    ) -> StoredConversation:
        return await self.inner.conversation(session_id, run_id)

    @override
    async def user_messages(self, session_id: SessionId | None = None) -> list[Message]:
        return await self.inner.user_messages(session_id)

    @override
    async def unfinished_messages(self, session_id: SessionId) -> list[Message]:
        return await self.inner.unfinished_messages(session_id)

    @override
    async def run_messages(self, run_ids: Sequence[RunId]) -> dict[RunId, list[StoredMessage]]:
        return await self.inner.run_messages(run_ids)

    @override
    async def run(self, run_id: RunId) -> StoredRun:
        return await self.inner.run(run_id)

    @override
    async def runs(self, session_id: SessionId | None = None, limit: int = 100) -> list[RunView]:
        return await self.inner.runs(session_id, limit)

    @override
    async def orphans(self) -> list[Orphan]:
        return await self.inner.orphans()

    @override
    async def stored_runs(self, run_ids: Sequence[RunId]) -> list[StoredRun]:
        return await self.inner.stored_runs(run_ids)

    @override
    async def add_file(
        self, file_id: FileId, session_id: SessionId, path: str, content: str, at: int
    ) -> File:
        return await self.inner.add_file(file_id, session_id, path, content, at)

    @override
    async def files(self, session_id: SessionId) -> list[File]:
        return await self.inner.files(session_id)

    @override
    async def latest_file(self, session_id: SessionId, path: str) -> File | None:
        return await self.inner.latest_file(session_id, path)

    @override
    async def read_paths(self, session_id: SessionId) -> list[str]:
        return await self.inner.read_paths(session_id)

    @override
    async def last_read(self, session_id: SessionId, path: str) -> int | None:
        return await self.inner.last_read(session_id, path)

    @override
    def pages(self, wanted: PagedList) -> Pages:
        return self.inner.pages(wanted)

    @override
    async def pending_asks(self) -> list[PendingAsk]:
        return await self.inner.pending_asks()

    @override
    async def tail_after(
        self, boot_id: str, seq: int, *, limit: int = 10_000, size: int = 2**30
    ) -> list[TailEvent] | None:
        return await self.inner.tail_after(boot_id, seq, limit=limit, size=size)

    @override
    async def endings_after(
        self, boot_id: str, seq: int, *, upto: int, limit: int = 10_000, size: int = 2**30
    ) -> list[StoredEnding] | None:
        return await self.inner.endings_after(boot_id, seq, upto=upto, limit=limit, size=size)


def _meet(one: Iterable[Change], other: Iterable[Change]) -> bool:
    """Whether a write builds on what an earlier one does to the same message."""
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
