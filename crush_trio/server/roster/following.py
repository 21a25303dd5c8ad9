"""`Following`: keeps the rows of the workspaces of this server up to date.

It has one task for each hosted workspace, all in the nursery of one task that the backend owns. Each of them
reads the log of its workspace a few times a second, computes the rows of the sessions that something happened
to, and puts them into a `RosterTable`, which has what differs. So a session that changes a thousand times a
second costs the same as one that changes four times, and a reader gets its newest state.
"""

import logging
from collections import defaultdict
from typing import Final

import trio
from attrs import define, field

from crush_trio.backend.backend import Backend
from crush_trio.backend.workspace import HostedWorkspace
from crush_trio.errors import LogClosed
from crush_trio.events.cursor import Batch, Cursor
from crush_trio.events.facts import Fact, RunChange
from crush_trio.nursery import open_hidden_nursery
from crush_trio.server.roster.rows import asked_sessions, roster_rows, roster_workspace
from crush_trio.server.roster.table import HERE, RosterTable
from crush_trio.store.errors import StoreUnavailable
from crush_trio.wire.events import PayloadType
from crush_trio.wire.ids import SessionId, WorkspaceId
from crush_trio.wire.views import (
    Need,
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
class Following:
    """The roster as it is now, kept up to date by a task until `scope` is cancelled."""

    _backend: Backend[HostedWorkspace]
    readers: int = field(default=0, init=False)
    scope: trio.CancelScope = field(factory=trio.CancelScope, init=False, repr=False)
    table: RosterTable = field(factory=RosterTable, init=False)
    tables: list[RosterTable] = field(init=False, repr=False)
    """Where the rows are put: in `table`, and in those that have rows of other nodes, too."""
    _places: set[WorkspaceId] = field(factory=set, init=False, repr=False)
    """The workspaces that have a task which follows them."""
    _loaded: dict[WorkspaceId, trio.Event] = field(
        factory=lambda: defaultdict(trio.Event), init=False, repr=False
    )

    @tables.default
    def _only_its_own(self) -> list[RosterTable]:
        return [self.table]

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
        for table in self.tables:
            table.put_workspace(HERE, shown)
        self._ring()
        if self._loaded[shown.id].is_set():  # it was open before
            self._loaded[shown.id] = trio.Event()
        try:
            await self._follow_sessions(workspace)
        except LogClosed:
            pass
        except Exception:  # barrier: the roster is less important than the workspaces
            log.exception("roster.failed", extra={"workspace_id": workspace.id})
        self._loaded[shown.id].set()
        for table in self.tables:
            table.drop_workspace(HERE, shown.id)
        self._ring()

    async def _follow_sessions(self, workspace: HostedWorkspace) -> None:
        cursor = workspace.events.cursor()
        wanted: set[SessionId] | None = None
        while True:
            try:
                rows = await roster_rows(workspace, wanted)
                for table in self.tables:
                    table.put_sessions(HERE, workspace.id, rows, wanted)
                self._ring()
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
                rows = self.table.told_by(HERE, workspace.id).values()
                found |= {row.id for row in rows if not _ASKED.isdisjoint(row.needs)}
        return found

    def _ring(self) -> None:
        """Wake the readers."""
        for table in self.tables:
            table.changes.ring()
