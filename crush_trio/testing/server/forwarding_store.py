"""A store that forwards every call to another store: the base of stores that change some calls."""

from collections.abc import Collection, Sequence

from attrs import define
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
from crush_trio.store.changes import Change
from crush_trio.store.commit import Commit
from crush_trio.store.overview import FoundText, SessionOverview
from crush_trio.store.pages import PagedList, Pages
from crush_trio.wire.ids import FileId, MessageId, RunId, SessionId
from crush_trio.wire.messages import Message
from crush_trio.wire.runs import RunView
from crush_trio.wire.views import File, Session, UsageDay


@define(eq=False)
class ForwardingStore(Store):
    """A `Store` whose calls all go to *inner*."""

    inner: Store

    @property
    @override
    def boot_id(self) -> str:
        return self.inner.boot_id

    @property
    @override
    def load(self) -> StoreLoad:
        """That of *inner*."""
        return self.inner.load

    @override
    async def measure(self) -> None:
        await self.inner.measure()

    @property
    @override
    def warning(self) -> StoreWarning | None:
        """That of *inner*."""
        return self.inner.warning

    @property
    @override
    def degraded(self) -> str | None:
        """That of *inner*."""
        return self.inner.degraded

    # ── Changes ─────────────────────────────────────────────────────────────────────────────────

    @override
    def submit(self, *changes: Change, session: SessionId | None = None) -> Commit[Session | None]:
        return self.inner.submit(*changes, session=session)

    @override
    async def commit(self, *changes: Change) -> None:
        await self.inner.commit(*changes)

    @override
    def post(self, *changes: Change) -> None:
        self.inner.post(*changes)

    @override
    def abandon(self) -> None:
        self.inner.abandon()

    # ── Reads ───────────────────────────────────────────────────────────────────────────────────

    @override
    async def session(self, session_id: SessionId) -> Session:
        return await self.inner.session(session_id)

    @override
    async def sessions(self) -> list[Session]:
        return await self.inner.sessions()

    @override
    async def overview(
        self, session_ids: Collection[SessionId] | None = None
    ) -> list[SessionOverview]:
        return await self.inner.overview(session_ids)

    @override
    async def search(self, text: str, limit: int) -> list[FoundText]:
        return await self.inner.search(text, limit)

    @override
    async def totals(self, session_id: SessionId) -> Totals:
        return await self.inner.totals(session_id)

    @override
    async def usage(self, since: int) -> list[UsageDay]:
        return await self.inner.usage(since)

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
    async def check(self) -> None:
        await self.inner.check()

    @override
    async def orphans(self) -> list[Orphan]:
        return await self.inner.orphans()

    @override
    async def stored_runs(self, run_ids: Sequence[RunId]) -> list[StoredRun]:
        return await self.inner.stored_runs(run_ids)

    @override
    async def recording(self, run_id: RunId) -> list[str]:
        return await self.inner.recording(run_id)

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
