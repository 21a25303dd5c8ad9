"""`PostgresStore`: the protocols of `store.base` on one workspace of a `PostgresDatabase`.

All changes of one `commit` or `post` are one work of the writer, hence in one transaction. Reads have
connections of their own. A read sees everything that was handed over before it (D12): it first waits
for work that was posted, or whose waiting task was cancelled.

Without the lease of its workspace a store writes nothing; see `opening`.
"""

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar, cast

import trio
from attrs import define, field
from outcome import Error
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
    TailEvent,
    Totals,
)
from crush_trio.store.changes import Change, RunMoved, TailKept, absolute, cleaned
from crush_trio.store.commit import Commit
from crush_trio.store.errors import StoreFailed, StoreUnavailable
from crush_trio.store.health import Health
from crush_trio.store.lease import Lease
from crush_trio.store.overview import SEARCH_SECONDS, FoundText, SessionOverview
from crush_trio.store.pages import PagedList
from crush_trio.store.postgres import workspaces
from crush_trio.store.postgres.database import PostgresDatabase
from crush_trio.store.postgres.statements import (
    apply,
    asks,
    event_tail,
    messages,
    overview,
    runs,
    sessions,
)
from crush_trio.store.postgres.statements.pages import PostgresPages
from crush_trio.store.postgres.transaction import (
    Finish,
    OpenWorkspace,
    ReadWork,
    Transaction,
    WriteWork,
)
from crush_trio.wire.ids import FileId, MessageId, RunId, SessionId
from crush_trio.wire.messages import Message
from crush_trio.wire.runs import RunView
from crush_trio.wire.views import File, Session, UsageDay

T = TypeVar("T")
Statements = Callable[[Transaction], Finish[T]]

CATCH_UP_SECONDS: Final = 2.0
"""Seconds that a read waits for the writer before it reads what is stored."""


@define(eq=False)
class PostgresStore(Store):
    """A `Store` in a database of many workspaces. Made by `opening.open_postgres_store`."""

    database: PostgresDatabase
    workspace: OpenWorkspace
    health: Health = field(factory=Health)
    _abandoned: bool = field(default=False, init=False)
    _unwatched: int = field(default=0, init=False)
    """The number of the newest work that reads must see and that no task waits for."""
    _unwatched_messages: int = field(default=0, init=False)
    """The same for reads of messages, which do not depend on the states of runs."""

    @property
    def lease(self) -> Lease:
        """The right to write the workspace."""
        return self.workspace.lease

    @override
    async def check(self) -> None:
        await self._read(workspaces.read_all)

    # ── Changes ─────────────────────────────────────────────────────────────────────────────────

    @property
    @override
    def boot_id(self) -> str:
        return self.workspace.boot_id

    @property
    @override
    def degraded(self) -> str | None:
        return self.health.degraded or self.database.writer.trouble

    @property
    @override
    def load(self) -> StoreLoad:
        return StoreLoad(
            pending=self.workspace.pending,
            size=self.database.size,
            database=self.database.place.label,
            commits=self.workspace.commits,
        )

    @override
    async def measure(self) -> None:
        await self.database.measure()

    @override
    def submit(self, *changes: Change, session: SessionId | None = None) -> Commit[Session | None]:
        return self._hand_over(partial(_applied, changes, session))[0]

    @override
    async def commit(self, *changes: Change) -> None:
        await self._transact(partial(_applied, changes, None))

    @override
    def post(self, *changes: Change) -> None:
        _, number = self._hand_over(partial(_applied, changes, None), awaited=False)
        if not all(isinstance(change, TailKept) for change in changes):
            self._unwatched = max(self._unwatched, number)
        if not all(isinstance(change, TailKept | RunMoved) for change in changes):
            self._unwatched_messages = max(self._unwatched_messages, number)

    @override
    def abandon(self) -> None:
        self._abandoned = True
        self.database.writer.abandon_workspace(self.workspace)

    def _hand_over(
        self, statements: Statements[T], *, awaited: bool = True
    ) -> tuple[Commit[T], int]:
        """Hand a work over to the writer, unless this process may not write the workspace now.

        Returns the commit and its number; 0 if it was refused.
        """
        refusal: StoreUnavailable | None = self.lease.refusal(trio.current_time())
        if self._abandoned:
            refusal = StoreFailed(f"{self.database.place.label}: its workspace has closed")
        if refusal is not None:
            refused: Commit[T] = Commit(self.health.lost, awaited=awaited)
            self.health.failed("write" if awaited else "post", refusal)
            refused.settle(Error(refusal))
            return refused, 0
        work = WriteWork(self.workspace, statements)
        self.workspace.pending += 1
        request = self.database.writer.hand_over(work, self.health, awaited=awaited)
        # Its result is what the `Finish` of the work returns.
        return cast("Commit[T]", request), request.number

    async def _transact(self, statements: Statements[T]) -> T:
        """Run a work in the writer; reads after a cancelled wait still see its result."""
        request, number = self._hand_over(statements)
        try:
            return await request.wait()
        except trio.Cancelled:
            self._unwatched = max(self._unwatched, number)
            self._unwatched_messages = self._unwatched
            raise

    async def flush(self) -> None:  # noqa: ASYNC910  # a refusal was waited for too
        """Wait until everything that was handed over is stored, or refused."""
        with suppress(StoreUnavailable):
            await self._hand_over(_nothing)[0].wait()

    async def begin(self, holder: str, at: int) -> None:
        """Store the row of this start of the program: the first write of every store."""
        await self._transact(partial(workspaces.add_boot, holder=holder, at=at))

    async def _read(self, work: ReadWork[T]) -> T:
        """Run *work* on a read connection, after all work that was handed over before."""
        if self._unwatched > self.database.writer.answered:
            await self._catch_up()
        return await self._read_now(work)

    async def _read_now(self, work: ReadWork[T]) -> T:
        return await self.database.readers.read(self.workspace.number, work, self.health)

    async def _read_in_turn(self, work: ReadWork[T]) -> T:
        return await self.database.readers.read_in_turn(self.workspace.number, work, self.health)

    async def _catch_up(self) -> bool:  # noqa: ASYNC910  # a refusal was waited for too
        """Wait until the writer has answered all earlier work; return False if that took too long.

        While the database does not answer, this ends, so a read does not wait for ever.
        """
        with trio.move_on_after(CATCH_UP_SECONDS) as patience, suppress(StoreUnavailable):
            # If the writer fails, the read goes on: it sees what is stored.
            await self._hand_over(_nothing)[0].wait()
        return not patience.cancelled_caught  # noqa: ASYNC910  # likewise

    # ── Sessions ────────────────────────────────────────────────────────────────────────────────

    @override
    async def session(self, session_id: SessionId) -> Session:
        return await self._read(lambda t: sessions.read_session(t, session_id))

    @override
    async def sessions(self) -> list[Session]:
        return await self._read(sessions.read_sessions)

    @override
    async def overview(
        self, session_ids: Collection[SessionId] | None = None
    ) -> list[SessionOverview]:
        return await self._read(lambda t: overview.read_overview(t, session_ids))

    @override
    async def search(self, text: str, limit: int) -> list[FoundText]:
        work = partial(overview.search, text=text, limit=limit, seconds=SEARCH_SECONDS)
        return await self._read_in_turn(work)

    @override
    async def totals(self, session_id: SessionId) -> Totals:
        return await self._read(lambda t: sessions.read_totals(t, session_id))

    @override
    async def usage(self, since: int) -> list[UsageDay]:
        return await self._read(lambda t: sessions.read_usage(t, since))

    # ── Messages ────────────────────────────────────────────────────────────────────────────────

    @override
    async def message(self, message_id: MessageId) -> StoredMessage:
        return await self._read(lambda t: messages.read_message(t, message_id))

    @override
    async def messages(self, session_id: SessionId) -> list[Message]:
        return await self._read(lambda t: messages.read_messages(t, session_id))

    @override
    async def conversation(
        self, session_id: SessionId, run_id: RunId | None = None
    ) -> StoredConversation:
        if self._unwatched_messages > self.database.writer.answered:
            await self._catch_up()
        return await self._read_now(lambda t: _conversation(t, session_id, run_id))

    @override
    async def user_messages(self, session_id: SessionId | None = None) -> list[Message]:
        return await self._read(lambda t: messages.read_user_messages(t, session_id))

    @override
    async def unfinished_messages(self, session_id: SessionId) -> list[Message]:
        return await self._read(lambda t: messages.read_unfinished(t, session_id))

    @override
    async def run_messages(self, run_ids: Sequence[RunId]) -> dict[RunId, list[StoredMessage]]:
        return await self._read(lambda t: messages.read_run_messages(t, run_ids))

    # ── Runs ────────────────────────────────────────────────────────────────────────────────────

    @override
    async def run(self, run_id: RunId) -> StoredRun:
        return await self._read(lambda t: runs.read_run(t, run_id))

    @override
    async def runs(self, session_id: SessionId | None = None, limit: int = 100) -> list[RunView]:
        return await self._read(lambda t: runs.read_runs(t, session_id, limit))

    @override
    async def orphans(self) -> list[Orphan]:
        return await self._read(lambda t: runs.read_orphans(t, self.boot_id))

    @override
    async def stored_runs(self, run_ids: Sequence[RunId]) -> list[StoredRun]:
        return await self._read(lambda t: runs.read_stored(t, run_ids))

    @override
    async def recording(self, run_id: RunId) -> list[str]:
        return await self._read(lambda t: runs.read_recording(t, run_id))

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
        return await self._transact(lambda t: sessions.add_file(t, file))

    @override
    async def files(self, session_id: SessionId) -> list[File]:
        return await self._read(lambda t: sessions.read_files(t, session_id))

    @override
    async def latest_file(self, session_id: SessionId, path: str) -> File | None:
        return await self._read(lambda t: sessions.read_latest(t, session_id, cleaned(path)))

    @override
    async def read_paths(self, session_id: SessionId) -> list[str]:
        return await self._read(lambda t: sessions.read_paths(t, session_id))

    @override
    async def last_read(self, session_id: SessionId, path: str) -> int | None:
        return await self._read(lambda t: sessions.read_mark(t, session_id, cleaned(path)))

    # ── Lists ───────────────────────────────────────────────────────────────────────────────────

    @override
    def pages(self, wanted: PagedList) -> PostgresPages:
        return PostgresPages(wanted, self._read, self._read_in_turn)

    # ── Asks and events ─────────────────────────────────────────────────────────────────────────

    @override
    async def pending_asks(self) -> list[PendingAsk]:
        return await self._read(asks.read_pending)

    @override
    async def tail_after(
        self, boot_id: str, seq: int, *, limit: int = 10_000, size: int = 2**30
    ) -> list[TailEvent] | None:
        if not await self._catch_up():
            return None
        ours = self.boot_id
        return await self._read(
            lambda t: event_tail.read_tail_after(t, boot_id, seq, ours, limit, size)
        )

    @override
    async def endings_after(
        self, boot_id: str, seq: int, *, upto: int, limit: int = 10_000, size: int = 2**30
    ) -> list[StoredEnding] | None:
        await self._catch_up()
        ours = self.boot_id, upto
        return await self._read(
            lambda t: event_tail.read_endings_after(t, boot_id, seq, ours, limit, size)
        )


def _applied(
    changes: tuple[Change, ...], session_id: SessionId | None, transaction: Transaction
) -> Finish[Session | None]:
    apply(transaction, changes)
    if session_id is None:
        return _none
    return sessions.find_session(transaction, session_id)


def _nothing(_: Transaction) -> Finish[None]:
    return _none


def _none() -> None:
    """Return nothing: the result of most works."""


def _conversation(
    transaction: Transaction, session_id: SessionId, run_id: RunId | None
) -> StoredConversation:
    session = sessions.read_session(transaction, session_id)
    told = messages.read_for_model(transaction, session_id, session.summary_message_id, run_id)
    return StoredConversation(session=session, messages=told)
