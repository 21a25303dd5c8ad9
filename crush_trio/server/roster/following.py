"""`RosterDesk`: keeps the roster up to date while pages read it, and does nothing while none does.

The first reader starts a `Following`, the last one to leave ends it. It has one task for each hosted
workspace, all in the nursery of one task that the backend owns. Each of them reads the log of its
workspace a few times a second, computes the rows of the sessions that something happened to, and puts
those that differ into `RosterChanges`. So a session that changes a thousand times a second costs the same
as one that changes four times, and a reader gets its newest state.
"""

import logging
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

import trio
from attrs import define, evolve, field

from crush_trio.backend.backend import Backend
from crush_trio.backend.workspace import HostedWorkspace
from crush_trio.errors import LogClosed
from crush_trio.events.cursor import Batch, Cursor
from crush_trio.events.facts import Fact, RunChange
from crush_trio.nursery import open_hidden_nursery
from crush_trio.server.roster.changes import RosterChanges
from crush_trio.server.roster.rows import asked_sessions, roster_rows, roster_workspace
from crush_trio.store.errors import StoreUnavailable
from crush_trio.wire.codec import encode
from crush_trio.wire.events import PayloadType
from crush_trio.wire.ids import SessionId, WorkspaceId
from crush_trio.wire.views import (
    Need,
    Roster,
    RosterChange,
    RosterSession,
    RosterSessionChange,
    RosterWorkspace,
    RosterWorkspaceChange,
    Session,
)

PACE: Final = 0.25
"""Seconds between two looks at a workspace."""

LOAD_LIMIT: Final = 1.0
"""Seconds that a new reader waits for the sessions of all workspaces; the others follow as changes."""

_RETRY: Final = 1.0
"""Seconds before a store that could not be read is asked again."""

_ASKS: Final = frozenset(
    {
        PayloadType.PERMISSION_REQUEST,
        PayloadType.PERMISSION_NOTIFICATION,
        PayloadType.QUESTION_BATCH_REQUEST,
        PayloadType.QUESTION_BATCH_NOTIFICATION,
    }
)
_ASKED: Final = frozenset({Need.PERMISSION, Need.QUESTION})

log = logging.getLogger(__name__)


@define(eq=False)
class RosterDesk:
    """Where pages read the roster of a server."""

    _backend: Backend[HostedWorkspace]
    _following: "Following | None" = field(default=None, init=False, repr=False)

    @property
    def followed(self) -> bool:
        """Whether anybody reads."""
        return self._following is not None

    @contextmanager
    def reading(self, roster: Roster) -> Iterator["RosterReader"]:
        """Follow the roster during the block; *roster* has what does not change."""
        following = self._following
        if following is None:
            following = self._following = Following(self._backend)
            following.start()
        following.readers += 1
        try:
            yield RosterReader(following, roster)
        finally:
            following.readers -= 1
            if not following.readers:
                self._following = None
                following.scope.cancel()


@define(eq=False)
class Following:
    """The roster as it is now, kept up to date by a task until `scope` is cancelled."""

    _backend: Backend[HostedWorkspace]
    readers: int = field(default=0, init=False)
    scope: trio.CancelScope = field(factory=trio.CancelScope, init=False, repr=False)
    changes: RosterChanges = field(factory=RosterChanges, init=False, repr=False)
    workspaces: dict[WorkspaceId, RosterWorkspace] = field(factory=dict, init=False)
    sessions: dict[WorkspaceId, dict[SessionId, RosterSession]] = field(
        factory=lambda: defaultdict(dict), init=False, repr=False
    )
    _places: set[WorkspaceId] = field(factory=set, init=False, repr=False)
    """The workspaces that have a task which follows them."""
    _loaded: dict[WorkspaceId, trio.Event] = field(
        factory=lambda: defaultdict(trio.Event), init=False, repr=False
    )

    _whole: tuple[int, Roster, bytes] | None = field(default=None, init=False, repr=False)
    """The last whole roster, with its version and what does not change."""

    def start(self) -> None:
        """Start the task, unless the server is about to end."""
        if self._backend.shutting_down:
            self.scope.cancel()
        else:
            self._backend.start_soon(self._run, name="roster")

    async def loaded(self) -> None:
        """Wait until the sessions of all workspaces are there, for a limited time."""
        await trio.lowlevel.checkpoint()
        with trio.move_on_after(LOAD_LIMIT):
            for workspace in self._backend.workspaces():
                if not self.scope.cancel_called:
                    await self._loaded[workspace.id].wait()

    async def _run(self) -> None:
        """Follow every workspace until there is no reader, or the backend shuts down."""
        with self.scope:
            async with open_hidden_nursery() as nursery:
                nursery.start_soon(self._end_with_backend)
                while True:
                    for workspace in self._backend.workspaces():
                        if workspace.id not in self._places:
                            self._places.add(workspace.id)
                            nursery.start_soon(self._follow_place, workspace, name="roster of one")
                    await self._backend.wait_change()

    async def _follow_place(self, workspace: HostedWorkspace) -> None:
        """Follow a workspace, and if it was opened again before its end was noticed, that one next."""
        place, current = workspace.id, workspace
        while True:
            await self._follow(current)
            later = [each for each in self._backend.workspaces() if each.id == place]
            if not later or later[0] is current:
                break
            current = later[0]
        self._places.discard(place)

    async def _end_with_backend(self) -> None:
        await self._backend.wait_shutdown()
        self.scope.cancel()

    async def _follow(self, workspace: HostedWorkspace) -> None:  # noqa: ASYNC910 - a store was read
        """Keep the rows of one workspace up to date until it has closed; a failure is logged."""
        shown = roster_workspace(workspace)
        self.workspaces[shown.id] = shown
        self._put_workspace(shown, RosterChange.UPDATED)
        if self._loaded[shown.id].is_set():  # it was open before
            self._loaded[shown.id] = trio.Event()
        try:
            await self._follow_sessions(workspace)
        except LogClosed:
            pass
        except Exception:  # barrier: the roster is less important than the workspaces
            log.exception("roster.failed", extra={"workspace_id": workspace.id})
        self._loaded[shown.id].set()
        del self.workspaces[shown.id]
        for session_id in self.sessions.pop(shown.id, {}):
            self.changes.forget((shown.id, session_id))
        self._put_workspace(shown, RosterChange.DELETED)

    async def _follow_sessions(self, workspace: HostedWorkspace) -> None:
        cursor = workspace.events.cursor()
        wanted: set[SessionId] | None = None
        while True:
            try:
                rows = await roster_rows(workspace, wanted)
                self._show(workspace.id, rows, wanted)
                self._loaded[workspace.id].set()
                await trio.sleep(PACE)
                wanted = await self._touched(workspace, cursor)
            except StoreUnavailable:
                if workspace.events.closed:
                    return  # noqa: ASYNC910 - the store was asked
                wanted = None
                await trio.sleep(_RETRY)

    async def _touched(self, workspace: HostedWorkspace, cursor: Cursor) -> set[SessionId] | None:
        """Wait until something happens to sessions, and return them; None if it could be any."""
        while True:
            batch = await cursor.read()
            touched = set[SessionId]()
            while not batch.endings and batch.resync is None:
                touched |= self._sessions_of(batch, workspace)
                if not batch.more:
                    break
                batch = cursor.take()
            if batch.resync is not None:
                return None
            if touched:
                await workspace.family.learn(touched)
                return {workspace.family.root(session_id) for session_id in touched}
            await trio.sleep(0 if batch.endings else PACE)

    def _sessions_of(self, batch: Batch, workspace: HostedWorkspace) -> set[SessionId]:
        """Return the sessions whose rows may differ after the events of *batch*."""
        found = set[SessionId]()
        for entry in batch.entries:
            topic = entry.topic
            if topic is PayloadType.MESSAGE:
                if not entry.grows and (owner := entry.owner) is not None:
                    found.add(owner)
            elif topic is None or topic is PayloadType.SESSION:
                match entry.event:
                    case RunChange(run=run):
                        found.add(run.session_id)
                    case Fact(entity=Session(id=session_id)):
                        found.add(session_id)
            elif topic in _ASKS:
                found |= asked_sessions(workspace).keys()
                rows = self.sessions[workspace.id].values()
                found |= {row.id for row in rows if not _ASKED.isdisjoint(row.needs)}
        return found

    # ── Showing ─────────────────────────────────────────────────────────────────────────────────

    def _show(
        self, place: WorkspaceId, rows: list[RosterSession], wanted: set[SessionId] | None
    ) -> None:
        """Put what differs among the rows of the *wanted* sessions, None for all of a workspace."""
        shown = self.sessions[place]
        there = {row.id for row in rows}
        asked = set(shown) if wanted is None else wanted & shown.keys()
        for row in rows:
            if shown.get(row.id) != row:
                shown[row.id] = row
                self._put_session(row, RosterChange.UPDATED)
        for session_id in asked - there:
            self._put_session(shown.pop(session_id), RosterChange.DELETED)
        self.changes.ring()

    def _put_session(self, row: RosterSession, change: RosterChange) -> None:
        make = partial(_frame, b"roster_session", RosterSessionChange(type=change, payload=row))
        self.changes.put((row.workspace_id, row.id), make, gone=change is RosterChange.DELETED)

    def _put_workspace(self, shown: RosterWorkspace, change: RosterChange) -> None:
        told = RosterWorkspaceChange(type=change, payload=shown)
        make = partial(_frame, b"roster_workspace", told)
        self.changes.put(shown.id, make, gone=change is RosterChange.DELETED)
        self.changes.ring()

    def whole(self, fixed: Roster) -> bytes:
        """Return the event with the whole roster; readers who come together share it."""
        known = self._whole
        if known is None or known[:2] != (self.changes.version, fixed):
            rows = (row for each in self.sessions.values() for row in each.values())
            roster = evolve(
                fixed,
                workspaces=tuple(self.workspaces.values()),
                sessions=tuple(sorted(rows, key=lambda row: row.updated_at, reverse=True)),
            )
            known = self._whole = self.changes.version, fixed, _frame(b"roster", roster)
        return known[2]


def _frame(name: bytes, data: object) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name, encode(data))


@define(eq=False)
class RosterReader:
    """One reader of the roster; what a stream sends beside the events of a workspace."""

    _following: Following
    _fixed: Roster
    _seen: int = field(default=0, init=False)

    async def loaded(self) -> None:
        """Wait until there is a roster to read."""
        await self._following.loaded()

    @property
    def news(self) -> bool:
        """Whether the roster has changed since it was read."""
        return self._following.changes.version > self._seen

    def whole(self) -> bytes:
        """Return the event with the whole roster."""
        self._seen = self._following.changes.version
        return self._following.whole(self._fixed)

    def take(self) -> bytes:
        """Return the changes since the roster was read last."""
        changes = self._following.changes
        found, self._seen = changes.since(self._seen), changes.version
        return self.whole() if found is None else found

    @contextmanager
    def wakes(self, scope: trio.CancelScope) -> Iterator[None]:
        """Have a change of the roster cancel *scope* during the block."""
        with self._following.changes.wakes(scope):
            yield
