"""What the tools of one workspace share.

Everything a tool touches is in here, explicitly: the directory it works in, the environment of its
commands, the store. Nothing is taken from the process: two workspaces in one server have nothing in
common (L20, L21).

What a session has seen of files, and what it made of them.

Two records, both by absolute, resolved path (L21). The *read marks* say when a session last saw a
file; whoever edits one must have seen it as it is (H5). The *versions* are what a file held before
the session first changed it, and after each change (H6); clients show them as one difference.

A version is published when it is stored, and a cancel does not come in between: the store would know
of it and no reader.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Protocol

import trio
from attrs import define, field

from crush_trio.clock import Clock, IdSource
from crush_trio.events.facts import Event, Fact
from crush_trio.store.base import Changes, FileHistory, SessionReads
from crush_trio.store.changes import FileRead
from crush_trio.tools.base import ToolError
from crush_trio.wire.events import EventType, PayloadType
from crush_trio.wire.ids import FileId, SessionId


class ToolStore(Changes, SessionReads, FileHistory, Protocol):
    """What tools need of a store: file versions, read marks, the session's own row."""


@define(eq=False)
class Workbench:
    """One workspace, as its tools see it. `directory` is absolute and resolved, and so is `private`.

    What is `private` is not the project's but the program's and the user's: keys, conversations. It may
    lie inside the directory, and nobody gets to see it without asking.
    """

    directory: Path
    store: ToolStore = field(repr=False)
    publish: Callable[[Event], object] = field(repr=False)
    clock: Clock = field(repr=False)
    ids: IdSource = field(repr=False)
    env: Mapping[str, str] = field(factory=dict, repr=False)
    private: tuple[Path, ...] = ()

    def resolve(self, path: str) -> Path:
        """Return where *path* really leads: absolute, `..` and links followed (H4)."""
        return (self.directory / self._expanded(path)).resolve()

    def _expanded(self, path: str) -> Path:
        """Return *path* with the home directory of the workspace's environment in place of `~`."""
        home = self.env.get("HOME", "")
        if home and (path == "~" or path.startswith("~/")):
            return Path(home, path[2:])
        return Path(path)

    def inside(self, path: Path) -> bool:
        """Whether a resolved path lies in the workspace."""
        return path.is_relative_to(self.directory)

    def shared(self, path: Path) -> bool:
        """Whether a resolved path lies in the workspace and is not private."""
        return self.inside(path) and not any(map(path.is_relative_to, self.private))


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
