"""`MemoryStore`: a store that keeps everything in memory.

For programs that need no durability, and for tests: it satisfies all of `store.base`, runs under a
virtual clock, and passes the same conformance tests as the durable store.

Changes take effect at the call, before the first checkpoint, in the order of the calls. So a commit
whose wait is cancelled has been applied completely, as with a writer thread. Every async method has
exactly one checkpoint. (`store.memory.leased` has stores that reach their tables less directly.)

Each commit copies the tables, but not their rows: its cost grows with the number of rows.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import trio
from attrs import define, evolve, field
from outcome import capture
from typing_extensions import override

from crush_trio.errors import RunNotFound
from crush_trio.store.base import (
    Orphan,
    PendingAsk,
    Store,
    StoredConversation,
    StoredEnding,
    StoredMessage,
    StoredRun,
    TailEvent,
    Totals,
)
from crush_trio.store.changes import Change, absolute, cleaned, first_page, storable
from crush_trio.store.commit import Commit
from crush_trio.store.errors import StoreFailed
from crush_trio.store.memory.apply import apply
from crush_trio.store.memory.tables import BootRow, MemoryPages, Tables
from crush_trio.store.pages import PagedList
from crush_trio.wire.ids import FileId, MessageId, RunId, SessionId
from crush_trio.wire.messages import Message
from crush_trio.wire.runs import RunView
from crush_trio.wire.views import File, Session, UsageDay

log = logging.getLogger(__name__)

T = TypeVar("T")


@define(eq=False)
class Kept:
    """The tables that a store has now; each write replaces them."""

    tables: Tables = field(factory=Tables, repr=False)


@define(eq=False)
class MemoryStore(Store):
    """A `Store` in memory. `boot_id` is the id of the start of the program that it simulates."""

    boot_id: str = "boot"
    _kept: Kept = field(factory=Kept, repr=False)
    _trouble: str | None = field(default=None, init=False)
    _abandoned: bool = field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self._begin()

    @property
    def _tables(self) -> Tables:
        return self._kept.tables

    def _begin(self) -> None:
        """Store the row of this start of the program."""
        self._tables.boots[self.boot_id] = BootRow()

    def reopened(self, boot_id: str) -> "MemoryStore":
        """Return the store as the next start would find it if this one were killed now.

        It is a copy: later writes to this store do not show in it.
        """
        return MemoryStore(boot_id, Kept(self._tables.copy()))

    # ── Changes ─────────────────────────────────────────────────────────────────────────────────

    @property
    @override
    def degraded(self) -> str | None:
        return self._trouble

    @override
    def submit(self, *changes: Change, session: SessionId | None = None) -> Commit[Session | None]:
        return self._hand_over(partial(self._apply, changes, session))

    @override
    async def commit(self, *changes: Change) -> None:
        await self.submit(*changes).wait()

    @override
    def post(self, *changes: Change) -> None:
        self._hand_over(partial(self._apply, changes, None), awaited=False)

    @override
    def abandon(self) -> None:
        self._abandoned = True

    def _hand_over(self, work: Callable[[], T], *, awaited: bool = True) -> Commit[T]:
        """Do *work*; a failure that no task waits for is noted, until something posted succeeds."""
        commit: Commit[T] = Commit(self._lose, awaited=awaited)
        commit.settle(capture(work))
        if commit.stored and not awaited:
            self._trouble = None
        return commit

    def _check_writable(self) -> None:
        """Raise if nothing may be written any more."""
        if self._abandoned:
            raise StoreFailed

    async def _reach(self) -> None:
        """Reach the tables to read them: the only checkpoint of every read."""
        await trio.lowlevel.checkpoint()

    def _apply(self, changes: tuple[Change, ...], session_id: SessionId | None) -> Session | None:
        """Apply all of *changes* or none."""
        self._check_writable()
        tables = self._tables.copy()
        for change in changes:
            apply(tables, storable(change), self.boot_id)
        self._kept.tables = tables
        row = None if session_id is None else tables.sessions.get(session_id)
        return None if row is None else row.session

    def _lose(self, exc: BaseException) -> None:
        log.error("store.write_lost", exc_info=exc)
        self._trouble = str(exc) or type(exc).__name__

    # ── Sessions ────────────────────────────────────────────────────────────────────────────────

    @override
    async def session(self, session_id: SessionId) -> Session:
        await self._reach()
        return self._tables.session(session_id).session

    @override
    async def sessions(self) -> list[Session]:
        await self._reach()
        return self._tables.top_sessions()

    @override
    async def totals(self, session_id: SessionId) -> Totals:
        await self._reach()
        return self._tables.session(session_id).totals

    @override
    async def usage(self, since: int) -> list[UsageDay]:
        await self._reach()
        return self._tables.used_since(since)

    # ── Messages ────────────────────────────────────────────────────────────────────────────────

    @override
    async def message(self, message_id: MessageId) -> StoredMessage:
        await self._reach()
        return self._tables.message(message_id).stored()

    @override
    async def messages(self, session_id: SessionId) -> list[Message]:
        await self._reach()
        return [row.stored().message for row in self._tables.messages_of(session_id)]

    @override
    async def conversation(
        self, session_id: SessionId, run_id: RunId | None = None
    ) -> StoredConversation:
        await self._reach()
        session = self._tables.session(session_id).session
        rows = self._tables.messages_of(session_id)
        since = next((r.seq for r in rows if r.head.id == session.summary_message_id), 0)
        told = [row for row in rows if row.seq >= since and not row.withdrawn]
        told.sort(key=lambda row: run_id is not None and row.run_id == run_id)
        return StoredConversation(session=session, messages=[row.stored().message for row in told])

    @override
    async def user_messages(self, session_id: SessionId | None = None) -> list[Message]:
        await self._reach()
        return [row.stored().message for row in self._tables.user_messages(session_id)]

    @override
    async def unfinished_messages(self, session_id: SessionId) -> list[Message]:
        await self._reach()
        rows = self._tables.messages_of(session_id)
        return [row.stored().message for row in rows if not row.finished]

    @override
    async def run_messages(self, run_ids: Sequence[RunId]) -> dict[RunId, list[StoredMessage]]:
        await self._reach()
        found: dict[RunId, list[StoredMessage]] = {run_id: [] for run_id in run_ids}
        for row in sorted(self._tables.messages.values(), key=lambda row: row.seq):
            if row.run_id in found:
                found[row.run_id].append(row.stored())
        return found

    # ── Runs ────────────────────────────────────────────────────────────────────────────────────

    @override
    async def run(self, run_id: RunId) -> StoredRun:
        await self._reach()
        row = self._tables.runs.get(run_id) or self._tables.run_called(run_id)
        if row is None:
            raise RunNotFound(run_id)
        return self._tables.stored_run(row)

    @override
    async def runs(self, session_id: SessionId | None = None, limit: int = 100) -> list[RunView]:
        await self._reach()
        rows = sorted(
            self._tables.runs.values(),
            key=lambda row: (row.stored.view.accepted_at, row.stored.view.seq, row.n),
            reverse=True,
        )
        views = [row.stored.view for row in rows]
        return [view for view in views if session_id in {None, view.session_id}][:limit]

    @override
    async def orphans(self) -> list[Orphan]:
        await self._reach()
        starts = {boot_id: place for place, boot_id in enumerate(self._tables.boots)}
        found = [
            row.stored
            for row in self._tables.runs.values()
            if row.stored.boot_id != self.boot_id and not row.stored.view.state.terminal
        ]
        found.sort(key=lambda run: (starts[run.boot_id], run.view.seq))
        return [
            Orphan(run.view.id, run.view.session_id, run.view.session_id in self._tables.sessions)
            for run in found
        ]

    @override
    async def stored_runs(self, run_ids: Sequence[RunId]) -> list[StoredRun]:
        await self._reach()
        runs = self._tables.runs
        return [self._tables.stored_run(runs[run_id]) for run_id in run_ids if run_id in runs]

    @override
    async def recording(self, run_id: RunId) -> list[str]:
        await self._reach()
        found = self._tables.recordings
        return [found[key][1] for key in sorted(key for key in found if key[0] == run_id)]

    # ── Files ───────────────────────────────────────────────────────────────────────────────────

    @override
    async def add_file(
        self, file_id: FileId, session_id: SessionId, path: str, content: str, at: int
    ) -> File:
        added = partial(self._add_file, file_id, session_id, path, content, at)
        return await self._hand_over(added).wait()

    def _add_file(
        self, file_id: FileId, session_id: SessionId, path: str, content: str, at: int
    ) -> File:
        self._check_writable()
        tables = self._tables.copy()
        path = absolute(path)
        if (known := tables.files.get(file_id)) is not None:
            return known
        tables.session(session_id)
        versions = [file.version for file in tables.files.values() if file.path == path]
        file = File(
            id=file_id,
            session_id=session_id,
            path=path,
            content=cleaned(content),
            version=max(versions, default=-1) + 1,
            created_at=at,
            updated_at=at,
        )
        tables.files[file_id] = file
        self._kept.tables = tables
        return file

    @override
    async def files(self, session_id: SessionId) -> list[File]:
        await self._reach()
        return self._tables.files_of(session_id)

    @override
    async def latest_file(self, session_id: SessionId, path: str) -> File | None:
        await self._reach()
        versions = [
            file
            for file in self._tables.files.values()
            if (file.session_id, file.path) == (session_id, cleaned(path))
        ]
        return max(versions, key=lambda file: file.version, default=None)

    @override
    async def read_paths(self, session_id: SessionId) -> list[str]:
        await self._reach()
        return sorted(path for owner, path in self._tables.read_marks if owner == session_id)

    @override
    async def last_read(self, session_id: SessionId, path: str) -> int | None:
        await self._reach()
        return self._tables.read_marks.get((session_id, cleaned(path)))

    # ── Lists ───────────────────────────────────────────────────────────────────────────────────

    @override
    def pages(self, wanted: PagedList) -> MemoryPages:
        return MemoryPages(wanted, lambda: self._tables)

    # ── Asks and events ─────────────────────────────────────────────────────────────────────────

    @override
    async def pending_asks(self) -> list[PendingAsk]:
        await self._reach()
        rows = [row for row in self._tables.asks.values() if row.pending]
        rows.sort(key=lambda row: (row.ask.created_at, row.n))
        return [row.ask for row in rows]

    @override
    async def tail_after(
        self, boot_id: str, seq: int, *, limit: int = 10_000, size: int = 2**30
    ) -> list[TailEvent] | None:
        await self._reach()
        found = self._tables.tail_after(boot_id, seq, ours=self.boot_id)
        return (
            None if found is None else first_page(found, limit, size, lambda each: len(each.event))
        )

    @override
    async def endings_after(
        self, boot_id: str, seq: int, *, upto: int, limit: int = 10_000, size: int = 2**30
    ) -> list[StoredEnding] | None:
        await self._reach()
        found = self._tables.endings_after(boot_id, seq, ours=(self.boot_id, upto))
        if found is None:
            return None
        cut = map(partial(_shortened, most=size), found)
        return first_page(cut, limit, size, lambda each: len(each.run.text) + len(each.run.error))


def _shortened(ending: StoredEnding, most: int) -> StoredEnding:
    """Return *ending* without its answer, if that has more than *most* characters."""
    if len(ending.run.text) <= most:
        return ending
    return evolve(ending, run=evolve(ending.run, text=""), cut=True)
