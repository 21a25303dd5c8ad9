"""A workspace in its place: being opened, hosted, or being closed.

A `Slot` is what stands under one key. It is there from the first create until the workspace behind
it has closed, so there are never two workspaces on one directory, not even for the time that the
old one needs to end (L33). Creates that come while it opens wait for that one opening.
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from enum import Enum
from typing import Generic, Protocol, TypeVar

import trio
from attrs import define, field, fields_dict, frozen
from outcome import Error, Outcome, Value, capture

from crush_trio.backend.claims import Claims
from crush_trio.backend.keys import WorkspaceKey
from crush_trio.clock import Clock
from crush_trio.errors import ServerShuttingDown, WorkspaceClosing
from crush_trio.wire.ids import ClientId, SessionId, WorkspaceId
from crush_trio.wire.requests import WorkspaceRequest

W = TypeVar("W")
W_co = TypeVar("W_co", covariant=True)


@frozen(kw_only=True)
class Terms:
    """What a client asks of the workspace it creates. The environment stays out of `repr`."""

    yolo: bool = False
    debug: bool = False
    data_dir: str = ""
    env: tuple[str, ...] = field(default=(), repr=False)
    channels: tuple[str, ...] = ()

    @classmethod
    def of(cls, request: WorkspaceRequest) -> "Terms":
        """Return the terms of a create, as they were sent."""
        return cls(**{name: getattr(request, name) for name in fields_dict(cls)})

    def differences(self, other: "Terms") -> tuple[str, ...]:
        """Name what differs. No values: an environment has secrets in it."""
        return tuple(
            name for name in fields_dict(Terms) if getattr(self, name) != getattr(other, name)
        )


@frozen(kw_only=True)
class WorkspacePlan:
    """All that is known of a workspace before it is opened, and that stays so."""

    id: WorkspaceId
    key: WorkspaceKey
    path: str
    """The directory as its first client spelt it."""
    terms: Terms
    created_by: ClientId


class OpenWorkspace(Protocol[W_co]):
    """Opens the actual thing. Leaving the block closes it, in bounded time."""

    def __call__(self, plan: WorkspacePlan, /) -> AbstractAsyncContextManager[W_co]:
        """Return the block in which the workspace of *plan* is open."""
        ...


@define(eq=False)
class Hosted(Generic[W]):
    """A workspace that clients can use: what was opened, on which terms, and who holds it."""

    plan: WorkspacePlan
    opened: W
    claims: Claims = field(repr=False)

    @property
    def id(self) -> WorkspaceId:
        """The id under which clients reach it."""
        return self.plan.id

    @property
    def terms(self) -> Terms:
        """The terms of the first client, which hold for everyone (E3)."""
        return self.plan.terms

    def attached_clients(self, session_id: SessionId) -> int:
        """How many clients look at the session (E16)."""
        return self.claims.attached(session_id)


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
    """The place where a waiting create finds its answer."""

    _outcome: Outcome[Hosted[W] | None] = field(factory=lambda: Value(None), init=False)
    _given: trio.Event = field(factory=trio.Event, init=False)

    @property
    def given(self) -> bool:
        return self._given.is_set()

    def give(self, outcome: Outcome[Hosted[W] | None]) -> None:
        self._outcome = outcome
        self._given.set()

    async def wait(self) -> Hosted[W] | None:
        await self._given.wait()
        return self._outcome.unwrap()


@define(eq=False)
class Slot(Generic[W]):
    """What stands under one key, from its first create until it has closed."""

    plan: WorkspacePlan
    _clock: Clock = field(repr=False)
    _close_limit: float = field(repr=False)
    stage: Stage = field(default=Stage.OPENING, init=False)
    hosted: Hosted[W] | None = field(default=None, init=False)
    scope: trio.CancelScope = field(factory=trio.CancelScope, init=False, repr=False)
    """Around the whole life of the workspace: cut short when nobody wants the opening to go on,
    and when the closing takes too long."""
    alarm: trio.CancelScope = field(factory=trio.CancelScope, init=False, repr=False)
    """Around the keeper's wait: its deadline is the next end of a claim's window."""
    unwanted: trio.Event = field(factory=trio.Event, init=False, repr=False)
    """Set when the workspace is to close."""
    closing_since: float = field(default=0.0, init=False)
    _gone: trio.Event = field(factory=trio.Event, init=False, repr=False)
    _waiting: dict[Pending, _Reply[W]] = field(factory=dict, init=False, repr=False)

    async def settle(self, pending: Pending) -> Hosted[W] | None:
        """Wait until this slot has opened or is gone; None tells the caller to look again."""
        if self.stage is Stage.OPENING:
            return await self._join(pending)
        await self._wait_gone()
        return None

    async def _join(self, pending: Pending) -> Hosted[W] | None:
        """Wait for the opening, as one of those who want it.

        A create that is cancelled leaves. When nobody is left who asked for these very terms, the
        opening is given up: a workspace has the terms of a client that got in, not of one that
        hung up.
        """
        reply = self._waiting[pending] = _Reply()
        try:
            return await reply.wait()
        finally:
            del self._waiting[pending]
            if self.stage is Stage.OPENING and not self._wanted:
                self.abandon()

    @property
    def _wanted(self) -> bool:
        return any(pending.terms == self.plan.terms for pending in self._waiting)

    async def _wait_gone(self) -> None:
        """Wait for the closing, but not for ever: past its limit, for as long again."""
        with trio.move_on_at(self.closing_since + 2 * self._close_limit):
            await self._gone.wait()
        if not self._gone.is_set():
            raise WorkspaceClosing

    # ── The slot's life ─────────────────────────────────────────────────────────────────────────

    def go_live(self, hosted: Hosted[W], decide: Callable[[Pending], Hosted[W] | None]) -> None:
        """Let clients in: those who wait are answered by *decide*, in the order they came."""
        self.stage = Stage.LIVE
        self.hosted = hosted
        for pending, reply in self._waiting.items():
            reply.give(capture(decide, pending))

    def begin_closing(self) -> bool:
        """Let nobody in any more and have the keeper close; False if that was so already."""
        if self.stage is Stage.CLOSING:
            return False
        self.stage = Stage.CLOSING
        self.closing_since = self._clock.monotonic()
        self.scope.deadline = self.closing_since + self._close_limit
        self.unwanted.set()
        return True

    def abandon(self) -> None:
        """Give up the opening; whoever still waits has to look again."""
        self.begin_closing()
        self.scope.cancel()
        for reply in self._waiting.values():
            reply.give(Value(None))

    def fail(self, error: Exception) -> None:
        """Answer a failed opening: the same to all who asked for the same (E7).

        Others may have more luck with their own terms and look again.
        """
        self.begin_closing()
        for pending, reply in self._waiting.items():
            same = pending.terms == self.plan.terms
            reply.give(Error(error) if same else Value(None))

    def end(self) -> None:
        """Wake everyone who waited for this slot to go, in whichever way it went."""
        self.begin_closing()
        self._gone.set()
        for reply in self._waiting.values():
            if not reply.given:
                reply.give(Error(ServerShuttingDown()))
