"""A store that keeps everything in memory and forgets it with the process.

For programs that need no durability, and for tests: it satisfies the whole of `store.base`, runs
under a virtual clock, and passes the same conformance tests as the durable one.

Changes take effect at the call, before the first checkpoint, in the order of the calls. So a commit
whose wait is cancelled has been applied, as a whole; that is also what becomes of one that was handed
to a writer thread. Every async method has exactly one checkpoint.

Each commit copies the tables, though not their rows: its cost grows with what the store holds.
"""

import logging
from functools import partial
from typing import TypeVar

import trio
from attrs import define, evolve, field
from outcome import Error, Outcome, capture
from typing_extensions import override

from crush_trio.errors import RunNotFound
from crush_trio.store._applying import apply
from crush_trio.store._rules import absolute, admitted, cleaned, page
from crush_trio.store._tables import BootRow, Tables
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
from crush_trio.store.changes import Change
from crush_trio.wire.ids import FileId, MessageId, RunId, SessionId
from crush_trio.wire.messages import Message, Role
from crush_trio.wire.native import RunView
from crush_trio.wire.views import File, Session

log = logging.getLogger(__name__)

T = TypeVar("T")


@define(eq=False)
class MemoryStore(Store):
    """A `Store` without a disk. `boot_id` names the start of the program it stands for."""

    boot_id: str = "boot"
    _tables: Tables = field(factory=Tables, repr=False)
    _trouble: str | None = field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self._tables.boots[self.boot_id] = BootRow()

    def reopened(self, boot_id: str) -> "MemoryStore":
        """Return the store as the next start finds it if this one is killed right now.

        It has a copy of everything, so that nothing this store does later shows in it.
        """
        return MemoryStore(boot_id, self._tables.copy())

    # ── Changes ─────────────────────────────────────────────────────────────────────────────────

    @property
    @override
    def degraded(self) -> str | None:
        return self._trouble

    @override
    async def commit(self, *changes: Change) -> None:
        await self._deliver(capture(self._apply, changes))

    @override
    def post(self, *changes: Change) -> None:
        try:
            self._apply(changes)
        except Exception as exc:  # noqa: BLE001  # whatever it is, the caller does not wait for it
            self._lose(exc)
        else:
            self._trouble = None

    def _apply(self, changes: tuple[Change, ...]) -> None:
        """Apply all of *changes* or none."""
        tables = self._tables.copy()
        for change in changes:
            apply(tables, admitted(change), self.boot_id)
        self._tables = tables

    async def _deliver(self, result: Outcome[T]) -> T:
        """Hand over a result that is already a fact."""
        try:
            await trio.lowlevel.checkpoint()
        except trio.Cancelled:
            if isinstance(result, Error):
                self._lose(result.error)  # nobody else is left to hear of it
            raise
        return result.unwrap()

    def _lose(self, exc: BaseException) -> None:
        log.error("store.write_lost", exc_info=exc)
        self._trouble = str(exc) or type(exc).__name__

    # ── Sessions ────────────────────────────────────────────────────────────────────────────────

    @override
    async def session(self, session_id: SessionId) -> Session:
        await trio.lowlevel.checkpoint()
        return self._tables.session(session_id).session

    @override
    async def sessions(self) -> list[Session]:
        await trio.lowlevel.checkpoint()
        rows = [row for row in self._tables.sessions.values() if not row.session.parent_session_id]
        rows.sort(key=lambda row: (row.session.updated_at, row.n), reverse=True)
        return [row.session for row in rows]

    @override
    async def totals(self, session_id: SessionId) -> Totals:
        await trio.lowlevel.checkpoint()
        return self._tables.session(session_id).totals

    # ── Messages ────────────────────────────────────────────────────────────────────────────────

    @override
    async def message(self, message_id: MessageId) -> StoredMessage:
        await trio.lowlevel.checkpoint()
        return self._tables.message(message_id).stored()

    @override
    async def messages(self, session_id: SessionId) -> list[Message]:
        await trio.lowlevel.checkpoint()
        return [row.stored().message for row in self._tables.messages_of(session_id)]

    @override
    async def conversation(self, session_id: SessionId) -> Conversation:
        await trio.lowlevel.checkpoint()
        session = self._tables.session(session_id).session
        rows = self._tables.messages_of(session_id)
        summary = [row.seq for row in rows if row.head.id == session.summary_message_id]
        messages = [row.stored().message for row in rows if not summary or row.seq >= summary[0]]
        return Conversation(session=session, messages=messages)

    @override
    async def user_messages(self, session_id: SessionId | None = None) -> list[Message]:
        await trio.lowlevel.checkpoint()
        if session_id is None:
            rows = list(self._tables.messages.values())
            rows.sort(key=lambda row: (row.head.created_at, row.n), reverse=True)
        else:
            rows = self._tables.messages_of(session_id)[::-1]
        return [row.stored().message for row in rows if row.head.role is Role.USER]

    @override
    async def unfinished_messages(self, session_id: SessionId) -> list[Message]:
        await trio.lowlevel.checkpoint()
        rows = self._tables.messages_of(session_id)
        return [row.stored().message for row in rows if not row.finished]

    # ── Runs ────────────────────────────────────────────────────────────────────────────────────

    @override
    async def run(self, run_id: RunId) -> StoredRun:
        await trio.lowlevel.checkpoint()
        row = self._tables.runs.get(run_id) or self._tables.run_called(run_id)
        if row is None:
            raise RunNotFound(run_id)
        return row.stored

    @override
    async def runs(self, session_id: SessionId | None = None, limit: int = 100) -> list[RunView]:
        await trio.lowlevel.checkpoint()
        rows = sorted(
            self._tables.runs.values(),
            key=lambda row: (row.stored.view.accepted_at, row.stored.view.seq, row.n),
            reverse=True,
        )
        views = [row.stored.view for row in rows]
        return [view for view in views if session_id in {None, view.session_id}][:limit]

    @override
    async def orphaned_runs(self) -> list[StoredRun]:
        await trio.lowlevel.checkpoint()
        starts = {boot_id: place for place, boot_id in enumerate(self._tables.boots)}
        orphans = [
            row.stored
            for row in self._tables.runs.values()
            if row.stored.boot_id != self.boot_id and not row.stored.view.state.terminal
        ]
        return sorted(orphans, key=lambda run: (starts[run.boot_id], run.view.seq))

    # ── Files ───────────────────────────────────────────────────────────────────────────────────

    @override
    async def add_file(
        self, file_id: FileId, session_id: SessionId, path: str, content: str, at: int
    ) -> File:
        return await self._deliver(capture(self._add_file, file_id, session_id, path, content, at))

    def _add_file(
        self, file_id: FileId, session_id: SessionId, path: str, content: str, at: int
    ) -> File:
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
        self._tables = tables
        return file

    @override
    async def files(self, session_id: SessionId) -> list[File]:
        await trio.lowlevel.checkpoint()
        found = [file for file in self._tables.files.values() if file.session_id == session_id]
        return sorted(found, key=lambda file: (file.path, file.version))

    @override
    async def latest_file(self, session_id: SessionId, path: str) -> File | None:
        await trio.lowlevel.checkpoint()
        versions = [
            file
            for file in self._tables.files.values()
            if (file.session_id, file.path) == (session_id, cleaned(path))
        ]
        return max(versions, key=lambda file: file.version, default=None)

    @override
    async def read_paths(self, session_id: SessionId) -> list[str]:
        await trio.lowlevel.checkpoint()
        return sorted(path for owner, path in self._tables.read_marks if owner == session_id)

    @override
    async def last_read(self, session_id: SessionId, path: str) -> int | None:
        await trio.lowlevel.checkpoint()
        return self._tables.read_marks.get((session_id, cleaned(path)))

    # ── Asks and events ─────────────────────────────────────────────────────────────────────────

    @override
    async def pending_asks(self) -> list[PendingAsk]:
        await trio.lowlevel.checkpoint()
        rows = [row for row in self._tables.asks.values() if row.pending]
        rows.sort(key=lambda row: (row.ask.created_at, row.n))
        return [row.ask for row in rows]

    @override
    async def tail_after(
        self, boot_id: str, seq: int, *, limit: int = 10_000, size: int = 2**30
    ) -> list[TailEvent] | None:
        await trio.lowlevel.checkpoint()
        found = self._tables.tail_after(boot_id, seq, ours=self.boot_id)
        return None if found is None else page(found, limit, size, lambda each: len(each.event))

    @override
    async def endings_after(
        self, boot_id: str, seq: int, *, upto: int, limit: int = 10_000, size: int = 2**30
    ) -> list[StoredEnding] | None:
        await trio.lowlevel.checkpoint()
        found = self._tables.endings_after(boot_id, seq, ours=(self.boot_id, upto))
        if found is None:
            return None
        cut = map(partial(_shortened, most=size), found)
        return page(cut, limit, size, lambda each: len(each.run.text) + len(each.run.error))


def _shortened(ending: StoredEnding, most: int) -> StoredEnding:
    """Return *ending* without its answer, if that has more than *most* characters."""
    if len(ending.run.text) <= most:
        return ending
    return evolve(ending, run=evolve(ending.run, text=""), cut=True)
