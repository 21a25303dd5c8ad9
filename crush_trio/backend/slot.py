"""Slots: the life of one directory's workspace, from its first create until it has closed.

A slot is there from the first create until the workspace has closed, so there are never two
workspaces on one directory, not even for the time that the old one needs to end (L33). Creates that
come while it opens wait for that one opening. All of its life happens in one task, its keeper; what
others do to it is synchronous.
"""

import logging
from collections.abc import Callable
from enum import Enum
from math import inf
from typing import Generic

import trio
from attrs import define, field
from outcome import Error, Outcome, Value, capture

from crush_trio.backend.claims import Claims, TearDown, WakeAt
from crush_trio.backend.settings import OpenWorkspace, Terms, W, WorkspacePlan
from crush_trio.clock import Clock
from crush_trio.errors import ServerShuttingDown, WorkspaceClosing
from crush_trio.wire.ids import ClientId
from crush_trio.wire.requests import WorkspaceRequest

log = logging.getLogger(__name__)


@define(eq=False)
class Pending:
    """A create that has been admitted and not been answered."""

    client_id: ClientId
    request: WorkspaceRequest
    terms: Terms
    retired: bool = field(default=False, init=False)
    """Whether the client said goodbye meanwhile."""


class Stage(Enum):
    """Where a slot is in its life. It goes forward only."""

    OPENING = "opening"
    LIVE = "live"
    CLOSING = "closing"


@define(eq=False)
class _Reply(Generic[W]):
    """The place where a waiting create finds its answer; None tells it to look again."""

    _outcome: Outcome[W | None] = field(factory=lambda: Value(None), init=False)
    _given: trio.Event = field(factory=trio.Event, init=False)

    def give(self, outcome: Outcome[W | None]) -> None:
        """Answer, unless there is an answer already."""
        if not self._given.is_set():
            self._outcome = outcome
            self._given.set()

    async def wait(self) -> W | None:
        """Wait for the answer; raises it if it is an error."""
        await self._given.wait()
        return self._outcome.unwrap()


def _shielded() -> trio.CancelScope:
    return trio.CancelScope(shield=True)


def runs_hold_nothing(_: object) -> bool:
    """A run does not keep its workspace open: it is cancelled when the last client goes (E12)."""
    return False


def ignore_people(_: object, _count: int, _expected: bool) -> None:
    """Do nothing: the workspaces ask nothing of people."""


@define(eq=False)
class Slot(Generic[W]):
    """One directory's workspace: opening, live or closing. The backend decides on admission."""

    plan: WorkspacePlan
    claims: Claims = field(repr=False)
    _clock: Clock = field(repr=False)
    _close_limit: float = field(repr=False)
    _keeps_open: Callable[[W], bool] = field(repr=False)
    _note_people: Callable[[W, int, bool], None] = field(repr=False)
    stage: Stage = field(default=Stage.OPENING, init=False)
    _workspace: W | None = field(default=None, init=False, repr=False)
    _life: trio.CancelScope = field(factory=_shielded, init=False, repr=False)
    """Cancelled when no create wants the opening any more, and when the closing takes too long.

    Nothing else cancels a workspace. A backend that is cancelled closes its slots, and each of them
    ends in its own order, runs before their store, within the limit of any closing.
    """
    _alarm: trio.CancelScope = field(factory=trio.CancelScope, init=False, repr=False)
    """Around the keeper's wait; its deadline is the next end of a claim's window."""
    _unwanted: trio.Event = field(factory=trio.Event, init=False, repr=False)
    _closing_since: float = field(default=0.0, init=False, repr=False)
    _gone: trio.Event = field(factory=trio.Event, init=False, repr=False)
    _waiting: dict[Pending, _Reply[W]] = field(factory=dict, init=False, repr=False)

    @property
    def workspace(self) -> W:
        """The workspace; there is one as soon as the slot has been live."""
        assert self._workspace is not None
        return self._workspace

    # ── For creates ─────────────────────────────────────────────────────────────────────────────

    def takes(self, pending: Pending) -> bool:
        """Whether a create can join the workspace as it is now."""
        ended = self.plan.terms.visit and not pending.terms.visit
        return self.stage is Stage.LIVE and not ended

    async def settle(self, pending: Pending) -> W | None:
        """Wait until the slot has opened or is gone; None tells the caller to look again.

        A visit ends when a create comes that is none.
        """
        if self.stage is Stage.OPENING:
            return await self._join(pending)
        self.close()
        await self._wait_gone()
        return None

    async def _join(self, pending: Pending) -> W | None:
        """Wait for the opening, as one of the creates that want it.

        A create that is cancelled leaves. When no create is left that asked for the terms of the
        plan, the opening is given up: a workspace has the terms of a client that was admitted, not
        of one that disconnected.
        """
        reply = self._waiting[pending] = _Reply()
        try:
            return await reply.wait()
        finally:
            del self._waiting[pending]
            if not any(other.terms == self.plan.terms for other in self._waiting):
                self.abandon()

    async def _wait_gone(self) -> None:
        """Wait for the closing, but not for ever: past its limit, for as long again."""
        with trio.move_on_at(self._closing_since + 2 * self._close_limit):
            await self._gone.wait()
        if not self._gone.is_set():
            raise WorkspaceClosing

    # ── Synchronous steps ───────────────────────────────────────────────────────────────────────

    def follow(self) -> None:
        """Do what the claims ask for. Called in the same step as any change of a claim."""
        if self.stage is not Stage.LIVE:
            return
        self._note_people(self.workspace, self.claims.people, self.claims.expects_people)
        match self.claims.next_step:
            case WakeAt(deadline=deadline):
                self._alarm.deadline = deadline
            case TearDown() if self._keeps_open(self.workspace):
                self._alarm.deadline = inf
            case TearDown():
                self.close()

    def close(self) -> None:
        """Admit no more creates and have the keeper close the workspace. Happens once (E11)."""
        if self.stage is Stage.CLOSING:
            return
        self.stage = Stage.CLOSING
        self._closing_since = self._clock.monotonic()
        self._life.deadline = self._closing_since + self._close_limit
        self._unwanted.set()

    def abandon(self) -> None:
        """Give up an opening; creates that still wait for it look again."""
        if self.stage is Stage.OPENING:
            self.close()
            self._life.cancel()
            self._answer(lambda _: None)

    def _answer(self, decide: Callable[[Pending], W | None]) -> None:
        """Answer the creates that wait, in the order they came."""
        for pending, reply in self._waiting.items():
            reply.give(capture(decide, pending))

    # ── The keeper ──────────────────────────────────────────────────────────────────────────────

    async def keep(
        self,
        open_workspace: OpenWorkspace[W],
        let_in: Callable[[Pending], W | None],
    ) -> None:
        """Open the workspace, keep it for as long as it is wanted, close it."""
        try:
            await self._open(open_workspace, let_in)
        finally:
            self.close()
            self._gone.set()
            for reply in self._waiting.values():  # unanswered only if the keeper was cancelled
                reply.give(Error(ServerShuttingDown()))

    async def _open(
        self,
        open_workspace: OpenWorkspace[W],
        let_in: Callable[[Pending], W | None],
    ) -> None:
        """Open the workspace, wait while it is live, and close it, behind a barrier.

        A failure of one workspace is the answer to the creates that wait for it, or is logged. It does
        not reach the other workspaces.
        """
        await trio.lowlevel.checkpoint()
        try:
            with self._life:
                async with open_workspace(self.plan) as workspace:
                    await self._live(workspace, let_in)
            self._note_closed()
        except Exception as exc:  # noqa: BLE001 - a workspace may fail in any way at all
            self._fail(exc)

    async def _live(self, workspace: W, let_in: Callable[[Pending], W | None]) -> None:
        """Admit the creates that wait, and wait until nothing holds the workspace any more."""
        try:
            await trio.lowlevel.checkpoint()
            if self.stage is Stage.OPENING:
                self.stage, self._workspace = Stage.LIVE, workspace
                log.info("workspace.opened", extra={"workspace_id": self.plan.id})
                self._answer(let_in)
                if not self.claims.clients:  # all of them were refused, or left meanwhile
                    self.close()
            while not self._unwanted.is_set():
                with trio.CancelScope(deadline=self._alarm.deadline) as self._alarm:
                    await self._unwanted.wait()
                self._expire()
        finally:
            self.close()  # also when the workspace fell over by itself

    def _expire(self) -> None:
        """Drop the claims whose time is over, if it is: the deadline may have moved meanwhile."""
        for client_id in self.claims.expire(self._clock.monotonic()):
            extra = {"workspace_id": self.plan.id, "client_id": client_id}
            log.info("claim.expired", extra=extra)
        self.follow()

    def _note_closed(self) -> None:
        seconds = self._clock.monotonic() - self._closing_since
        extra = {"workspace_id": self.plan.id, "seconds": seconds}
        if self._workspace is None:
            log.info("workspace.abandoned", extra=extra)
        elif self._life.cancel_called:
            log.error("workspace.close_forced", extra=extra)
        else:
            log.info("workspace.closed", extra=extra)

    def _fail(self, error: Exception) -> None:
        """Answer a failed opening: the error for all creates with the terms of the plan (E7).

        Creates with other terms look again: with those the opening may work.
        """
        if self.stage is not Stage.OPENING:
            log.error("workspace.failed", extra={"workspace_id": self.plan.id}, exc_info=error)
            return
        self.close()
        for pending, reply in self._waiting.items():
            same = pending.terms == self.plan.terms
            reply.give(Error(error) if same else Value(None))
