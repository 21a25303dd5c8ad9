"""What a session has seen of files, and what it made of them.

Two records, both by absolute, resolved path (L21). The *read marks* say when a session last saw a
file; whoever edits one must have seen it as it is (H5). The *versions* are what a file held before
the session first changed it, and after each change (H6); clients show them as one difference.

A version is published when it is stored, and a cancel does not come in between: the store would know
of it and no reader.
"""

from pathlib import Path
from typing import Final

import trio
from attrs import define, field

from crush_trio.events.facts import Fact
from crush_trio.store.changes import FileRead
from crush_trio.tools.base import ToolError
from crush_trio.tools.workbench import Workbench
from crush_trio.wire.events import EventType, PayloadType
from crush_trio.wire.ids import FileId, SessionId

STORE_LIMIT: Final = 5.0
"""Seconds that the store may take to keep a version before the run is told that it failed."""


@define(eq=False)
class History:
    """The read marks and file versions of a workspace."""

    _bench: Workbench = field(repr=False)

    # ── Read marks ──────────────────────────────────────────────────────────────────────────────

    async def record_read(self, session_id: SessionId, path: Path, at: int) -> None:
        """Take note that a session has seen *path* as it was in the second *at*."""
        await self._bench.store.commit(FileRead(session_id=session_id, path=str(path), at=at))

    async def check_fresh(self, session_id: SessionId, path: Path, modified: int) -> None:
        """Raise a `ToolError` unless the session has seen *path* as it was last *modified*."""
        seen = await self._bench.store.last_read(session_id, str(path))
        if seen is None:
            raise ToolError(
                f"{path} has not been read in this session. View it before you change it."
            )
        if modified > seen:
            raise ToolError(
                f"{path} was changed since you last read it. View it again before you change it."
            )

    # ── Versions ────────────────────────────────────────────────────────────────────────────────

    async def keep_before(self, session_id: SessionId, path: Path, content: str) -> None:
        """Store what the file holds before a change, unless that is the newest version already.

        It is the session's first version of the file, or what somebody else made of it since the
        last one. For a file that is about to be created it is empty.
        """
        with trio.fail_after(STORE_LIMIT, shield=True):
            latest = await self._bench.store.latest_file(session_id, str(path))
            if latest is None or latest.content != content:
                await self._add(session_id, path, content)

    async def keep_after(
        self, session_id: SessionId, path: Path, content: str, modified: int
    ) -> None:
        """Store what the session has just written, and that it knows it."""
        with trio.fail_after(STORE_LIMIT, shield=True):
            await self._add(session_id, path, content)
            await self.record_read(session_id, path, modified)

    async def _add(self, session_id: SessionId, path: Path, content: str) -> None:
        file_id, now = FileId(self._bench.ids.new()), self._bench.clock.unix()
        file = await self._bench.store.add_file(file_id, session_id, str(path), content, now)
        self._bench.publish(
            Fact(payload_type=PayloadType.FILE, change=EventType.CREATED, entity=file)
        )
