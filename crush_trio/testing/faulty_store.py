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

from collections.abc import Callable, Iterable

import trio
from attrs import define, field, frozen
from typing_extensions import override

from crush_trio.store.base import (
    Conversation,
    PendingAsk,
    Store,
    StoredEnding,
    StoredMessage,
    StoredRun,
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
from crush_trio.store.load import Load
from crush_trio.testing.faults import Moment
from crush_trio.wire.ids import FileId, MessageId, RunId, SessionId
from crush_trio.wire.messages import Message
from crush_trio.wire.native import RunView
from crush_trio.wire.views import File, Session

Changes = tuple[Change, ...]
"""What one write consists of."""


@frozen(kw_only=True, eq=False)
class StoreFault:
    """What befalls a write that has a change of one of the kinds *of* in it; of any, if none is named.

    *error* makes the exception to be raised: an exception class will do. Without it the write hangs,
    until it is cancelled or the store is healed. A write that is cancelled while it hangs *before*
    never takes place; one that hangs *after* has, and nobody is told.

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
    """Commits begun while another one of the same message was under way; must stay empty (D7)."""
    _under_way: list[Changes] = field(factory=list, init=False)
    _healed: trio.Event = field(factory=trio.Event, init=False)
    _trouble: str | None = field(default=None, init=False)

    def spoil(self, *faults: StoreFault) -> None:
        """Add faults; of several that concern a write, the first strikes."""
        self.faults.extend(faults)

    def heal(self) -> None:
        """Take all faults away and let every write go on that hangs."""
        self.faults.clear()
        self._healed.set()
        self._healed = trio.Event()

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
    def load(self) -> Load:
        """What the real store has to do, and how long that takes."""
        return self.inner.load

    @property
    @override
    def degraded(self) -> str | None:
        """What the last fault said, until a write comes through; else what *inner* says."""
        return self._trouble or self.inner.degraded

    @override
    async def commit(self, *changes: Change) -> None:
        if not changes:  # no write, hence no fault: it only waits for what was posted
            await self.inner.commit()
            return
        self.commits.append(changes)
        self.overlaps.extend((other, changes) for other in self._under_way if _meet(other, changes))
        self._under_way.append(changes)
        try:
            if (fault := self._due(Moment.BEFORE, changes)) is not None:
                await self._befall(fault)
            self._look(changes)
            await self.inner.commit(*changes)
            if self.latency:
                await trio.sleep(self.latency)
            if (fault := self._due(Moment.AFTER, changes)) is not None:
                await self._befall(fault)
        finally:
            self._under_way = [other for other in self._under_way if other is not changes]
        self._trouble = None

    @override
    def post(self, *changes: Change) -> None:
        self.posts.append(changes)
        before, after = (self._due(moment, changes) for moment in (Moment.BEFORE, Moment.AFTER))
        if before is None:
            self._look(changes)
            self.inner.post(*changes)
        match before or after:
            case None:
                self._trouble = None
            case StoreFault(error=make_error) if make_error is not None:
                self._note(make_error())

    def _due(self, moment: Moment, changes: Changes) -> StoreFault | None:
        """Return the fault that strikes now, and write down that it does."""
        for fault in self.faults:
            spent = fault.times is not None and self.struck.count(fault) >= fault.times
            if fault.moment is moment and fault.concerns(changes) and not spent:
                self.struck.append(fault)
                return fault
        return None

    async def _befall(self, fault: StoreFault) -> None:
        """Raise, or wait for better times."""
        if fault.error is None:
            await self._healed.wait()
            return
        error = fault.error()
        self._note(error)
        await trio.lowlevel.checkpoint()
        raise error

    def _note(self, error: Exception) -> None:
        self._trouble = str(error) or type(error).__name__

    def _look(self, changes: Changes) -> None:
        if self.watch is not None:
            self.watch(changes)

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
    async def conversation(self, session_id: SessionId) -> Conversation:
        return await self.inner.conversation(session_id)

    @override
    async def user_messages(self, session_id: SessionId | None = None) -> list[Message]:
        return await self.inner.user_messages(session_id)

    @override
    async def unfinished_messages(self, session_id: SessionId) -> list[Message]:
        return await self.inner.unfinished_messages(session_id)

    @override
    async def run(self, run_id: RunId) -> StoredRun:
        return await self.inner.run(run_id)

    @override
    async def runs(self, session_id: SessionId | None = None, limit: int = 100) -> list[RunView]:
        return await self.inner.runs(session_id, limit)

    @override
    async def orphaned_runs(self) -> list[StoredRun]:
        return await self.inner.orphaned_runs()

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
    """Whether two writes touch the same message."""
    return not _touched(one).isdisjoint(_touched(other))


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
