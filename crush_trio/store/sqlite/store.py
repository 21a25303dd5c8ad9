"""`SqliteStore`: the protocols of `store.base` on a `Database`.

All changes of one `commit` or `post` are one work of the writer, hence one transaction. Reads have
connections of their own. A read sees everything that was handed over before it (D12): it first
waits for work that was posted, or whose waiting task was cancelled. Without such work the writer is
not involved. Events that are kept for a later start do not count: they are posted all the time, and
only `tail_after` and `endings_after` could tell the difference, which wait for the writer
themselves.
"""

import sqlite3
from collections.abc import AsyncIterator, Collection, Hashable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final, Literal, TypeVar

import trio
from attrs import define, field
from typing_extensions import override

from crush_trio.clock import Clock, IdSource, RandomIds, SystemClock
from crush_trio.errors import SessionNotFound
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
from crush_trio.store.changes import Change, RunMoved, TailKept, absolute, cleaned
from crush_trio.store.commit import Commit
from crush_trio.store.errors import StoreUnavailable
from crush_trio.store.overview import SEARCH_SECONDS, FoundText, SessionOverview
from crush_trio.store.pages import PagedList
from crush_trio.store.sqlite.database import BUSY_TIMEOUT, Database, open_database
from crush_trio.store.sqlite.statements import (
    apply,
    event_tail,
    messages,
    overview,
    runs,
    sessions,
)
from crush_trio.store.sqlite.statements.pages import SqlitePages
from crush_trio.store.sqlite.writer import Work
from crush_trio.wire.ids import FileId, MessageId, RunId, SessionId
from crush_trio.wire.messages import Message
from crush_trio.wire.runs import RunView
from crush_trio.wire.views import File, Session, UsageDay

T = TypeVar("T")

CATCH_UP_SECONDS: Final = 2.0
"""Seconds that a read waits for the writer before it reads what is stored."""

_CLOCK: Final = SystemClock()
_IDS: Final = RandomIds()


@define(eq=False)
class SqliteStore(Store):
    """A `Store` in one SQLite file. Made by `open_sqlite_store`."""

    _database: Database
    _unwatched: int = field(default=0, init=False)
    """The number of the newest work that reads must see and that no task waits for."""
    _unwatched_messages: int = field(default=0, init=False)
    """The same for reads of messages, which do not depend on the states of runs."""

    @property
    def path(self) -> Path:
        """The database file."""
        return self._database.path

    @override
    async def check(self) -> None:
        await self._database.check()

    # ── Changes ─────────────────────────────────────────────────────────────────────────────────

    @property
    @override
    def boot_id(self) -> str:
        return self._database.boot_id

    @property
    @override
    def degraded(self) -> str | None:
        return self._database.degraded

    @property
    @override
    def warning(self) -> StoreWarning | None:
        return self._database.warning

    @property
    @override
    def load(self) -> StoreLoad:
        return self._database.load

    @override
    def submit(self, *changes: Change, session: SessionId | None = None) -> Commit[Session | None]:
        return self._database.submit(self._applying(changes, session))

    @override
    async def commit(self, *changes: Change) -> None:
        await self._transact(self._applying(changes, None))

    @override
    def post(self, *changes: Change) -> None:
        number = self._database.post(self._applying(changes, None))
        if not all(isinstance(change, TailKept) for change in changes):
            self._unwatched = number
        if not all(isinstance(change, TailKept | RunMoved) for change in changes):
            self._unwatched_messages = number

    @override
    def abandon(self) -> None:
        self._database.abandon()

    def _applying(
        self, changes: tuple[Change, ...], session_id: SessionId | None
    ) -> Work[Session | None]:
        boot_id = self.boot_id

        def work(connection: sqlite3.Connection) -> Session | None:
            apply(connection, changes, boot_id)
            if session_id is None:
                return None
            with suppress(SessionNotFound):
                return sessions.read_session(connection, session_id)
            return None

        return work

    async def _transact(self, work: Work[T]) -> T:
        """Run *work* in the writer; reads after a cancelled wait still see its result."""
        request = self._database.submit(work)
        try:
            return await request.wait()
        except trio.Cancelled:
            self._unwatched = max(self._unwatched, request.number)
            self._unwatched_messages = self._unwatched
            raise

    async def _read(self, work: Work[T]) -> T:
        """Run *work* on a read connection, after all work that was handed over before."""
        if self._unwatched > self._database.answered:
            await self._catch_up()
        return await self._database.read(work)

    async def _read_soon(self, key: Hashable, work: Work[T]) -> T:
        """Run a short *work* like `_read`, in a group with others; *key* identifies what it reads."""
        if self._unwatched > self._database.answered:
            await self._catch_up()
        return await self._database.read_soon(key, work)

    async def _catch_up(self) -> bool:  # noqa: ASYNC910  # a refusal was waited for too
        """Wait until the writer has answered all earlier work; return False if that took too long.

        While another program locks the database, what is stored can still be read, so a read does
        not wait for ever.
        """
        with trio.move_on_after(CATCH_UP_SECONDS) as patience, suppress(StoreUnavailable):
            # If the writer fails, the read goes on: it sees what is stored.
            await self._database.transact(lambda _: None)
        return not patience.cancelled_caught  # noqa: ASYNC910  # likewise

    # ── Sessions ────────────────────────────────────────────────────────────────────────────────

    @override
    async def session(self, session_id: SessionId) -> Session:
        return await self._read(lambda c: sessions.read_session(c, session_id))

    @override
    async def sessions(self) -> list[Session]:
        return await self._read(sessions.read_sessions)

    @override
    async def overview(
        self, session_ids: Collection[SessionId] | None = None
    ) -> list[SessionOverview]:
        return await self._read(lambda c: overview.read_overview(c, session_ids))

    @override
    async def search(self, text: str, limit: int) -> list[FoundText]:
        work = partial(overview.search, text=text, limit=limit, seconds=SEARCH_SECONDS)
        return await self._database.read_in_turn(work)

    @override
    async def totals(self, session_id: SessionId) -> Totals:
        return await self._read(lambda c: sessions.read_totals(c, session_id))

    @override
    async def usage(self, since: int) -> list[UsageDay]:
        return await self._read(lambda c: sessions.read_usage(c, since))

    # ── Messages ────────────────────────────────────────────────────────────────────────────────

    @override
    async def message(self, message_id: MessageId) -> StoredMessage:
        return await self._read(lambda c: messages.read_message(c, message_id))

    @override
    async def messages(self, session_id: SessionId) -> list[Message]:
        return await self._read(lambda c: messages.read_messages(c, session_id))

    @override
    async def conversation(
        self, session_id: SessionId, run_id: RunId | None = None
    ) -> StoredConversation:
        if self._unwatched_messages > self._database.answered:
            await self._catch_up()
        return await self._database.read(lambda c: _conversation(c, session_id, run_id))

    @override
    async def user_messages(self, session_id: SessionId | None = None) -> list[Message]:
        return await self._read(lambda c: messages.read_user_messages(c, session_id))

    @override
    async def unfinished_messages(self, session_id: SessionId) -> list[Message]:
        return await self._read(lambda c: messages.read_unfinished(c, session_id))

    @override
    async def run_messages(self, run_ids: Sequence[RunId]) -> dict[RunId, list[StoredMessage]]:
        return await self._read(lambda c: messages.read_run_messages(c, run_ids))

    # ── Runs ────────────────────────────────────────────────────────────────────────────────────

    @override
    async def run(self, run_id: RunId) -> StoredRun:
        return await self._read(lambda c: runs.read_run(c, run_id))

    @override
    async def runs(self, session_id: SessionId | None = None, limit: int = 100) -> list[RunView]:
        return await self._read(lambda c: runs.read_runs(c, session_id, limit))

    @override
    async def orphans(self) -> list[Orphan]:
        return await self._read(lambda c: runs.read_orphans(c, self.boot_id))

    @override
    async def stored_runs(self, run_ids: Sequence[RunId]) -> list[StoredRun]:
        return await self._read(lambda c: runs.read_stored(c, run_ids))

    @override
    async def recording(self, run_id: RunId) -> list[str]:
        return await self._read(lambda c: runs.read_recording(c, run_id))

    # ── Files ───────────────────────────────────────────────────────────────────────────────────

    @override
    async def add_file(
        self, file_id: FileId, session_id: SessionId, path: str, content: str, at: int
    ) -> File:
        file = File(
            id=file_id,
            session_id=session_id,
            path=absolute(path),
            content=cleaned(content),
            created_at=at,
            updated_at=at,
        )
        return await self._transact(lambda c: sessions.add_file(c, file))

    @override
    async def files(self, session_id: SessionId) -> list[File]:
        return await self._read(lambda c: sessions.read_files(c, session_id))

    @override
    async def latest_file(self, session_id: SessionId, path: str) -> File | None:
        return await self._read(lambda c: sessions.read_latest(c, session_id, cleaned(path)))

    @override
    async def read_paths(self, session_id: SessionId) -> list[str]:
        return await self._read(lambda c: sessions.read_paths(c, session_id))

    @override
    async def last_read(self, session_id: SessionId, path: str) -> int | None:
        return await self._read(lambda c: sessions.read_mark(c, session_id, cleaned(path)))

    # ── Lists ───────────────────────────────────────────────────────────────────────────────────

    @override
    def pages(self, wanted: PagedList) -> SqlitePages:
        return SqlitePages(wanted, self._read_soon, self._database.read_in_turn)

    # ── Asks and events ─────────────────────────────────────────────────────────────────────────

    @override
    async def pending_asks(self) -> list[PendingAsk]:
        return await self._read(runs.read_pending)

    @override
    async def tail_after(
        self, boot_id: str, seq: int, *, limit: int = 10_000, size: int = 2**30
    ) -> list[TailEvent] | None:
        if not await self._catch_up():
            return None
        ours = self.boot_id
        return await self._read(
            lambda c: event_tail.read_tail_after(c, boot_id, seq, ours, limit, size)
        )

    @override
    async def endings_after(
        self, boot_id: str, seq: int, *, upto: int, limit: int = 10_000, size: int = 2**30
    ) -> list[StoredEnding] | None:
        await self._catch_up()
        ours = self.boot_id, upto
        return await self._read(
            lambda c: event_tail.read_endings_after(c, boot_id, seq, ours, limit, size)
        )


def _conversation(
    connection: sqlite3.Connection, session_id: SessionId, run_id: RunId | None
) -> StoredConversation:
    session = sessions.read_session(connection, session_id)
    told = messages.read_for_model(connection, session_id, session.summary_message_id, run_id)
    return StoredConversation(session=session, messages=told)


@asynccontextmanager
async def open_sqlite_store(
    directory: Path,
    *,
    synchronous: Literal["NORMAL", "FULL"] = "NORMAL",
    busy_timeout: float = BUSY_TIMEOUT,
    clock: Clock = _CLOCK,
    ids: IdSource = _IDS,
) -> AsyncIterator[SqliteStore]:
    """Open the store in *directory* for this process alone; see `open_database`.

    Leaving the block writes all posted changes before it closes the file.
    """
    async with open_database(
        directory, synchronous=synchronous, busy_timeout=busy_timeout, clock=clock, ids=ids
    ) as database:
        yield SqliteStore(database)
