"""The backend: keeps the workspaces of a process, decides which creates are admitted and when to end.

Every workspace has one keeper, a task of the backend, in which it is opened, lives and is closed. No
request owns any part of it, so a client that disconnects does not close a workspace. All decisions are
synchronous. A create waits for the opening, and the next one of the same directory for the closing.

Invariants between any two steps: a workspace that can be found by its id is open and claimed or kept open
by a run; a key has at most one slot; after the decision to shut down no workspace can appear.
"""

import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Generic

import trio
from attrs import define, field

from crush_trio.backend.claims import Claims, Linger, RetiredClients, client_id_of, version_notice
from crush_trio.backend.settings import (
    BackendSettings,
    OpenWorkspace,
    Resolve,
    Terms,
    W,
    WorkspaceKey,
    WorkspacePlan,
    check_path,
    resolve_key,
)
from crush_trio.backend.slot import Pending, Slot, Stage, ignore_people, runs_hold_nothing
from crush_trio.clock import Clock, SystemClock
from crush_trio.errors import (
    ChannelMismatch,
    ClientRetired,
    PathMissing,
    ServerNotIdle,
    ServerShuttingDown,
    ServerStays,
    TooManyWorkspaces,
    UnknownCommand,
    WorkspaceNotFound,
)
from crush_trio.limits import DEFAULTS, SizeLimits
from crush_trio.nursery import open_hidden_nursery
from crush_trio.wire.ids import ClientId, SessionId, WorkspaceId, workspace_id_of
from crush_trio.wire.requests import ControlCommand, WorkspaceRequest

log = logging.getLogger(__name__)


@define(eq=False)
class Backend(Generic[W]):
    """Keeps the workspaces of a process. Made by `open_backend` only."""

    version: str
    settings: BackendSettings
    sizes: SizeLimits
    _open_workspace: OpenWorkspace[W] = field(repr=False)
    _keepers: trio.Nursery = field(repr=False)
    _resolve: Resolve = field(repr=False)
    _clock: Clock = field(repr=False)
    site: str
    """The site of its workspaces in a shared store; their ids depend on it."""
    _keeps_open: Callable[[W], bool] = field(repr=False)
    _note_people: Callable[[W, int, bool], None] = field(repr=False)
    _linger: Linger = field(repr=False)
    _retired: RetiredClients = field(repr=False)
    _slots: dict[WorkspaceKey, Slot[W]] = field(factory=dict, init=False, repr=False)
    _by_id: dict[WorkspaceId, Slot[W]] = field(factory=dict, init=False, repr=False)
    _pending: dict[Pending, None] = field(factory=dict, init=False, repr=False)
    draining: bool = field(default=False, init=False)
    """Whether creates are refused: the server is about to end."""
    _changed: trio.lowlevel.ParkingLot = field(
        factory=trio.lowlevel.ParkingLot, init=False, repr=False
    )

    # ── Finding ─────────────────────────────────────────────────────────────────────────────────

    def workspace(self, workspace_id: WorkspaceId) -> W:
        """Return a hosted workspace, or raise `WorkspaceNotFound`."""
        return self._live_slot(workspace_id).workspace

    def workspaces(self) -> tuple[W, ...]:
        """Every hosted workspace, oldest first."""
        return tuple(slot.workspace for slot in self._live)

    async def wait_change(self) -> None:
        """Wait until a workspace has opened or closed."""
        await self._changed.park()

    def start_soon(self, serve: Callable[[], Awaitable[object]], name: str) -> None:
        """Start a task that the backend owns. *serve* must end when the backend shuts down."""
        self._keepers.start_soon(serve, name=name)

    def clients(self) -> frozenset[ClientId]:
        """Every client that has a claim."""
        return frozenset(client for slot in self._live for client in slot.claims.clients)

    @property
    def idle(self) -> bool:
        """Whether there is no workspace and no create in progress (E19).

        A workspace that is closing still counts: until it has let go of its directory, the program
        that takes over could not open it.
        """
        return not self._slots and not self._pending

    @property
    def shutting_down(self) -> bool:
        """Whether the decision to end has been made. It is never taken back (E20)."""
        return self._linger.over

    async def wait_shutdown(self) -> None:
        """Wait for the decision to end; the program then leaves the block of `open_backend`."""
        await self._linger.decided.wait()

    async def id_of(self, path: str) -> WorkspaceId:
        """Return the id of the workspace of a directory, open or not; raises `PathInvalid`."""
        check_path(path)
        return workspace_id_of(self.site, await self._resolve(path))

    def found(self, workspace_id: WorkspaceId) -> Slot[W] | None:
        """Return a workspace that is open, opening or closing here."""
        return self._by_id.get(workspace_id)

    @property
    def _live(self) -> list[Slot[W]]:
        return [slot for slot in self._by_id.values() if slot.stage is Stage.LIVE]

    def _live_slot(self, workspace_id: WorkspaceId) -> Slot[W]:
        slot = self._by_id.get(workspace_id)
        if slot is None or slot.stage is not Stage.LIVE:
            raise WorkspaceNotFound
        return slot

    # ── Creating ────────────────────────────────────────────────────────────────────────────────

    async def create(self, request: WorkspaceRequest, *, visit: bool = False) -> W:
        """Give the client a claim on the workspace of its directory, opening it if need be.

        Creates of one directory that come together share one opening. A directory whose workspace
        is closing is opened anew once that is done. A create that fails or is cancelled before its
        answer leaves nothing behind; a claim whose answer is never read ends with the create grace.
        A *visit* is joined by other visits only, see `Terms`.
        """
        with self._admitted(request, visit) as pending:
            key = await self._resolve(request.path)
            while not (slot := self._slot(key, pending)).takes(pending):
                if (workspace := await slot.settle(pending)) is not None:
                    return workspace
            return self._enter(slot, pending)

    @contextmanager
    def _admitted(self, request: WorkspaceRequest, visit: bool) -> Iterator[Pending]:
        """Check a create (E1, E23) and count it as in progress for the length of the block."""
        if not request.path:
            raise PathMissing
        check_path(request.path)
        pending = Pending(client_id_of(request.client_id), request, Terms.of(request, visit=visit))
        self._check_admission(pending)
        self._pending[pending] = None
        self._linger.interrupt()
        try:
            yield pending
        finally:
            del self._pending[pending]
            self._linger_if_idle()

    def _check_admission(self, pending: Pending) -> None:
        """Refuse a create for what has become true of the server or its client, in this order."""
        if self.shutting_down or self.draining:
            raise ServerShuttingDown
        if pending.retired or self._retired.has(pending.client_id, self._clock.monotonic()):
            raise ClientRetired

    def _slot(self, key: WorkspaceKey, pending: Pending) -> Slot[W]:
        """Return the slot of the key; if there is none, start a keeper that opens a workspace."""
        self._check_admission(pending)
        slot = self._slots.get(key)
        if slot is None:
            if len(self._slots) >= self.sizes.workspaces:  # one that closes has not freed its place
                raise TooManyWorkspaces(f"the limit is {self.sizes.workspaces}")
            slot = self._new_slot(key, pending)
            self._slots[key] = self._by_id[slot.plan.id] = slot
            self._keepers.start_soon(self._keep, slot, name=f"workspace {slot.plan.id}")
        return slot

    def _new_slot(self, key: WorkspaceKey, pending: Pending) -> Slot[W]:
        plan = WorkspacePlan(
            id=workspace_id_of(self.site, key),
            key=key,
            path=pending.request.path,
            terms=pending.terms,
            created_by=pending.client_id,
        )
        claims, limit = Claims(self.settings.graces), self.settings.close_limit
        return Slot(plan, claims, self._clock, limit, self._keeps_open, self._note_people)

    async def _keep(self, slot: Slot[W]) -> None:
        try:
            await slot.keep(self._open_workspace, partial(self._enter_first, slot))
        finally:
            del self._slots[slot.plan.key], self._by_id[slot.plan.id]
            self._changed.unpark_all()
            self._linger_if_idle()

    def _enter_first(self, slot: Slot[W], pending: Pending) -> W | None:
        """Admit a create that waited for the opening; None tells it to look again.

        The first to be admitted must have asked for the terms of the plan. Otherwise a client would
        be bound by the terms of one that was never admitted.
        """
        self._changed.unpark_all()
        if pending.terms != slot.plan.terms and not slot.claims.clients:
            return None
        if not slot.takes(pending):
            return None
        return self._enter(slot, pending)

    def _enter(self, slot: Slot[W], pending: Pending) -> W:
        """Give a create its claim on an open workspace; the first client's terms stay (E3, E4).

        Admission is checked again here, because opening takes time (E8).
        """
        self._check_admission(pending)
        differences = slot.plan.terms.differences(pending.terms)
        if "channels" in differences:
            raise ChannelMismatch
        extra = {"workspace_id": slot.plan.id, "client_id": pending.client_id}
        if differences:
            log.debug("workspace.terms_ignored", extra={**extra, "differences": differences})
        if notice := version_notice(pending.request.version, self.version):
            log.warning("client.version_differs", extra={**extra, "notice": notice})
        slot.claims.create(pending.client_id, self._clock.monotonic())
        slot.follow()
        return slot.workspace

    # ── Claims ──────────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def attach(
        self, workspace_id: WorkspaceId, client_id: str, *, attended: bool = False
    ) -> Iterator[W]:
        """Hold the workspace by a stream for the length of the block.

        *attended* says that a person at the client can answer asks.
        Entering and leaving are synchronous: a handler that is cancelled when its client hangs up
        still counts its stream out (T12). After the workspace is gone, leaving does nothing.
        """
        client = client_id_of(client_id)
        slot = self._live_slot(workspace_id)
        stream = slot.claims.attach(client, attended=attended)
        slot.follow()
        try:
            yield slot.workspace
        finally:
            slot.claims.detach(stream, self._clock.monotonic())
            slot.follow()

    def release(self, workspace_id: WorkspaceId, client_id: str) -> None:
        """Give up a client's claim; its open streams still hold it. Unknown ones are fine (E13)."""
        client = client_id_of(client_id)
        slot = self._by_id.get(workspace_id)
        if slot is not None:
            slot.claims.release(client)
            slot.follow()

    def set_current_session(
        self,
        workspace_id: WorkspaceId,
        client_id: str,
        session_id: SessionId,
        *,
        answers: bool = True,
    ) -> None:
        """Note what an attached client looks at (E15); raises `ClientNotAttached` otherwise.

        *answers* says whether the client may answer asks.
        """
        client = client_id_of(client_id)
        slot = self._live_slot(workspace_id)
        slot.claims.select(client, session_id, answers=answers)
        slot.follow()

    def attached_clients(self, workspace_id: WorkspaceId, session_id: SessionId) -> int:
        """How many clients look at the session (E16)."""
        return self._live_slot(workspace_id).claims.attached(session_id)

    def attached_by_session(self, workspace_id: WorkspaceId) -> Counter[SessionId]:
        """How many clients look at each session now; for lists of many sessions."""
        return self._live_slot(workspace_id).claims.attached_clients()

    def retire(self, client_id: str) -> None:
        """Drop every claim of the client and refuse its later creates (E18).

        The id is remembered because a create already on the wire may arrive after this call, and
        HTTP gives no order between the two. Creates in progress find out when they are answered.
        """
        client = client_id_of(client_id)
        self._retired.add(client, self._clock.monotonic())
        for pending in self._pending:
            pending.retired = pending.retired or pending.client_id == client
        for slot in self._live:
            slot.claims.retire(client)
            slot.follow()

    def reconsider(self, workspace_id: WorkspaceId) -> None:
        """Look again whether anything holds the workspace, after an answer of `keeps_open` changed."""
        slot = self._by_id.get(workspace_id)
        if slot is not None:
            slot.follow()

    # ── Ending ──────────────────────────────────────────────────────────────────────────────────

    def control(self, command: str) -> None:
        """Obey a control command: both there are ask for a shutdown, if idle (E21).

        `shutdown_if_idle` comes from a client that would rather start a server of its own. A server
        that is not `replaceable` raises `ServerStays`, whatever its idle time: the time ends an idle
        server, not the wish of a client.
        """
        try:
            wanted = ControlCommand(command)
        except ValueError:
            raise UnknownCommand(command) from None
        if wanted is ControlCommand.SHUTDOWN_IF_IDLE and not self.settings.replaceable:
            raise ServerStays
        self.shutdown_if_idle()

    def shutdown_if_idle(self) -> None:
        """Decide to end, or raise `ServerNotIdle` and change nothing."""
        if not self.idle:
            raise ServerNotIdle
        self._linger.decide()

    def close(self) -> None:
        """End: refuse every create, and close every workspace whatever claims it has."""
        self._linger.decide()
        for slot in self._slots.values():
            slot.abandon()
            slot.close()

    def _linger_if_idle(self) -> None:
        if self.idle and not self.shutting_down:
            self._linger.begin()


@asynccontextmanager
async def open_backend(
    open_workspace: OpenWorkspace[W],
    *,
    settings: BackendSettings | None = None,
    sizes: SizeLimits = DEFAULTS,
    version: str = "",
    resolve: Resolve = resolve_key,
    keeps_open: Callable[[W], bool] = runs_hold_nothing,
    note_people: Callable[[W, int, bool], None] = ignore_people,
    clock: Clock | None = None,
    site: str = "",
) -> AsyncIterator[Backend[W]]:
    """Open a backend whose workspaces are opened by *open_workspace*.

    *sizes* limits how many there are, and what a server over the backend takes from its clients.

    *keeps_open* is asked about a workspace that has no claim left and may hold it, until
    `Backend.reconsider` is called: the place for runs that are to go on without clients. *note_people*
    is told at how many clients of a workspace a person can answer asks, and whether one that lost its
    stream may come back, after each change of a claim.
    *site* is part of what the ids of workspaces are made of.
    Leaving the block closes every workspace and waits for that; an exception of the caller's leaves the
    block as it is.
    """
    settings = BackendSettings() if settings is None else settings
    clock = SystemClock() if clock is None else clock
    async with open_hidden_nursery() as keepers:
        linger = Linger(settings.idle_linger, clock)
        backend = Backend(
            version,
            settings,
            sizes,
            open_workspace,
            keepers,
            resolve,
            clock,
            site,
            keeps_open,
            note_people,
            linger,
            RetiredClients(settings.retired_for),
        )
        if settings.idle_from_start:
            linger.begin()
        keepers.start_soon(linger.watch)
        try:
            yield backend
        finally:
            backend.close()
