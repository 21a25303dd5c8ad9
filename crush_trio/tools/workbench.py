"""`Workbench`: what the tools of one workspace share. `History`: read marks and versions of files.

A tool gets everything it uses from the workbench: the directory, the environment of its commands, the
store. Nothing is read from the process, so two workspaces in one server share nothing (L20, L21).

`History` keeps two records, both by absolute, resolved path (L21). A *read mark* says when a session
last read a file; an edit requires that the session has read the file's current content (H5).
*Versions* are the content of a file before the session first changed it, and after each change (H6);
clients show them as one diff.

Storing a version and publishing it is shielded from cancellation. Otherwise a cancel between the two
would leave a version in the store that no client was told of.
"""

import os
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
from crush_trio.tools.sandbox.settings import CommandSandbox
from crush_trio.wire.events import EventType, PayloadType
from crush_trio.wire.ids import FileId, SessionId


class ToolStore(Changes, SessionReads, FileHistory, Protocol):
    """What tools need from a store: file versions, read marks, the session's own row."""


@define(eq=False)
class Workbench:
    """One workspace, as its tools see it. `directory` and `private` are absolute and resolved.

    `private` paths hold data of the program and the user, such as keys and conversations. They may lie
    inside the directory; reading them always needs permission. `sandbox` says what commands may touch.
    """

    directory: Path
    store: ToolStore = field(repr=False)
    publish: Callable[[Event], object] = field(repr=False)
    clock: Clock = field(repr=False)
    ids: IdSource = field(repr=False)
    env: Mapping[str, str] = field(factory=dict, repr=False)
    private: tuple[Path, ...] = ()
    sandbox: CommandSandbox = field(factory=CommandSandbox, repr=False)

    def resolve(self, path: str) -> Path:
        """Return *path* absolute, with `..` and symbolic links resolved (H4)."""
        return (self.directory / self._expanded(path)).resolve()

    def _expanded(self, path: str) -> Path:
        """Return *path* with the home directory of the workspace's environment in place of `~`."""
        home = self.env.get("HOME", "")
        if home and (path == "~" or path.startswith("~/")):
            return Path(home, path[2:])
        return Path(path)

    def link_out(self, path: str, resolved: Path) -> Path | None:
        """Return *path* made absolute if it looks like one inside, but links led it elsewhere.

        That is out of the workspace, or to something private. None otherwise.
        """
        named = Path(os.path.normpath(self.directory / self._expanded(path)))
        misleading = self.inside(named) and named != resolved and not self.shared(resolved)
        return named if misleading else None

    def inside(self, path: Path) -> bool:
        """Whether a resolved path lies in the workspace."""
        return path.is_relative_to(self.directory)

    def shared(self, path: Path) -> bool:
        """Whether a resolved path lies in the workspace and is not private."""
        return self.inside(path) and not any(map(path.is_relative_to, self.private))


STORE_LIMIT: Final = 5.0
"""Seconds that the store may take to write; after that the run fails."""


@define(eq=False)
class History:
    """The read marks and file versions of a workspace."""

    _bench: Workbench = field(repr=False)

    # ── Read marks ──────────────────────────────────────────────────────────────────────────────

    async def record_read(self, session_id: SessionId, path: Path, at: int) -> None:
        """Record that a session has read *path* as it was at the Unix second *at*."""
        await self._bench.store.commit(FileRead(session_id=session_id, path=str(path), at=at))

    async def check_fresh(self, session_id: SessionId, path: Path, modified: int) -> None:
        """Raise a `ToolError` unless the session has read *path* since it was last *modified*."""
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
        """Store the content of a file before a change, unless the newest version is the same.

        This is the session's first version of the file, or what another program has written since
        the last version. For a file that is about to be created it is empty.
        """
        with trio.fail_after(STORE_LIMIT, shield=True):
            latest = await self._bench.store.latest_file(session_id, str(path))
            if latest is None or latest.content != content:
                await self._add(session_id, path, content)

    async def keep_after(
        self, session_id: SessionId, path: Path, content: str, modified: int
    ) -> None:
        """Store what the session has just written, and mark the file as read."""
        with trio.fail_after(STORE_LIMIT, shield=True):
            await self._add(session_id, path, content)
            await self.record_read(session_id, path, modified)

    async def _add(self, session_id: SessionId, path: Path, content: str) -> None:
        file_id, now = FileId(self._bench.ids.new()), self._bench.clock.unix()
        file = await self._bench.store.add_file(file_id, session_id, str(path), content, now)
        self._bench.publish(
            Fact(payload_type=PayloadType.FILE, change=EventType.CREATED, entity=file)
        )
