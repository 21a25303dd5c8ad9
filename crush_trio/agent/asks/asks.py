"""Asks that wait for a person, and `Attendance`, which limits how long they wait without a client.

An ask is stored before it is published, waits in the task of its tool call, and ends once: it is
answered, or withdrawn because its run was stopped, or given up because no client was connected. Each of
these is one synchronous step, so of two that happen together exactly one wins.

The waiting task is parked in the ask's own `ParkingLot`, and only that decides whether the ask waits.
Trio removes a cancelled task from its lot in the same step as the cancel, and never takes back one that
was unparked. So an answer after the cancel finds no waiting task, although the cancelled task has not run
yet, and a cancel after the answer does not change the answer (F2, F6).

While an event stream is open, a person may be thinking, so an ask waits without limit. If no stream was
open for `patience` seconds without a break, the ask is given up: a run that no client watches must not
wait for ever. There is no timer task: opening or closing a stream moves the deadlines of the waiting asks
synchronously.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from math import inf
from typing import Final, Generic, Protocol, TypeVar

import trio
from attrs import define, field, frozen

from crush_trio.clock import Clock
from crush_trio.events.facts import Event, Fact
from crush_trio.store.base import AskReads, Changes, PendingAsk
from crush_trio.store.changes import AskOpened, AskResolved
from crush_trio.wire.asks import (
    PermissionNotification,
    PermissionRequest,
    QuestionNotification,
    QuestionRequest,
    QuestionResponse,
)
from crush_trio.wire.codec import encode
from crush_trio.wire.events import EventType, PayloadType
from crush_trio.wire.ids import AskId, RunId, ToolCallId

DEFAULT_PATIENCE: Final = 60.0
"""Default seconds without an open stream after which an ask is given up."""


@define(eq=False)
class Attendance:
    """Counts the open event streams of one workspace. Not thread-safe."""

    patience: float = DEFAULT_PATIENCE
    streams: int = field(default=0, init=False)
    """How many are open now."""
    _waiting: set[trio.CancelScope] = field(factory=set, init=False, repr=False)

    def arrive(self) -> None:
        """Count an opened stream; asks then wait without limit."""
        self.streams += 1
        self._move_deadlines()

    def leave(self) -> None:
        """Count a closed stream. After the last one, every ask has `patience` seconds from now."""
        self.streams -= 1
        self._move_deadlines()

    @contextmanager
    def present(self) -> Iterator[None]:
        """Count a stream that is open while the block runs."""
        self.arrive()
        try:
            yield
        finally:
            self.leave()

    @contextmanager
    def patiently(self, *, interactive: bool = True) -> Iterator[trio.CancelScope]:
        """Cancel the body once no stream was open for `patience` seconds; the scope says whether.

        If not *interactive*, the run's own client shows asks to no person, so its stream does not
        count: the body has `patience` seconds in any case.
        """
        deadline = self._deadline if interactive else trio.current_time() + self.patience
        with trio.CancelScope(deadline=deadline) as scope:
            if interactive:
                self._waiting.add(scope)
            try:
                yield scope
            finally:
                self._waiting.discard(scope)

    @property
    def _deadline(self) -> float:
        return inf if self.streams else trio.current_time() + self.patience

    def _move_deadlines(self) -> None:
        for scope in self._waiting:
            scope.deadline = self._deadline


Publish = Callable[[Event], object]
"""Publishes an event to every reader of the workspace."""

R = TypeVar("R", PermissionRequest, QuestionRequest)


class AskKind(StrEnum):
    """The kind of an ask, as stored."""

    PERMISSION = "permission"
    QUESTION = "question"


class Resolution(StrEnum):
    """How an ask ended, as stored."""

    GRANTED = "granted"
    DENIED = "denied"
    ANSWERED = "answered"
    CANCELLED = "cancelled"
    """A person declined to answer."""
    WITHDRAWN = "withdrawn"
    """Its run was stopped or interrupted."""
    UNATTENDED = "unattended"
    """No answer came in time."""


@frozen
class Ending:
    """How an ask ended, with the responses if it was a question."""

    resolution: Resolution
    responses: tuple[QuestionResponse, ...] = field(default=(), repr=False)


_WITHDRAWN: Final = Ending(Resolution.WITHDRAWN)
_UNATTENDED: Final = Ending(Resolution.UNATTENDED)


@define(eq=False)
class Ask(Generic[R]):
    """One request that waits for an answer."""

    request: R
    run_id: RunId
    _answer: Ending = field(default=_WITHDRAWN, init=False)
    _waiter: trio.lowlevel.ParkingLot = field(
        factory=trio.lowlevel.ParkingLot, init=False, repr=False
    )

    @property
    def id(self) -> AskId:
        """The request's id."""
        return self.request.id

    @property
    def waits(self) -> bool:
        """Whether a task waits for the answer."""
        return bool(self._waiter)

    def give(self, answer: Ending) -> None:
        """Wake the waiting task with *answer*."""
        self._answer = answer
        self._waiter.unpark()

    async def wait(self) -> Ending:
        """Wait for the answer. There is no checkpoint before the task is parked."""
        await self._waiter.park()
        return self._answer


@define(eq=False)
class Asks(Generic[R]):
    """The asks of one kind that wait in a workspace.

    *given_up* notifies the clients that a published request ended without an answer.
    """

    kind: AskKind
    store: Changes = field(repr=False)
    clock: Clock = field(repr=False)
    attendance: Attendance = field(repr=False)
    given_up: Callable[[R, Resolution], None] = field(repr=False)
    _shown: dict[AskId, Ask[R]] = field(factory=dict, init=False)

    # ── For answers: synchronous ────────────────────────────────────────────────────────────────

    @property
    def waiting(self) -> tuple[Ask[R], ...]:
        """The asks that can be answered, oldest first."""
        return tuple(ask for ask in self._shown.values() if ask.waits)

    def find(self, ask_id: AskId) -> Ask[R] | None:
        """Return an ask that can be answered; None if the id is unknown or it no longer waits."""
        ask = self._shown.get(ask_id)
        return ask if ask is not None and ask.waits else None

    def settle(self, ask: Ask[R], answer: Ending) -> None:
        """Answer a waiting ask. To be called after the answer was published (F4)."""
        del self._shown[ask.id]
        ask.give(answer)

    # ── For tool calls ──────────────────────────────────────────────────────────────────────────

    async def put(
        self,
        request: R,
        run_id: RunId,
        show: Callable[[], Ending | None],
        *,
        interactive: bool = True,
    ) -> Ending:
        """Store and publish a request, and wait for its ending.

        *show* is called once the request is stored. It publishes the request, or returns an ending
        if a rule settles it meanwhile. A cancel withdraws the request.
        """
        ask = Ask(request, run_id)
        ending = _WITHDRAWN
        try:
            await self._store(ask)
            ending = show() or await self._wait(ask, interactive)
            return ending
        finally:
            self._end(ask, ending.resolution)

    async def _wait(self, ask: Ask[R], interactive: bool) -> Ending:
        self._shown[ask.id] = ask
        with self.attendance.patiently(interactive=interactive):
            return await ask.wait()
        return _UNATTENDED

    async def _store(self, ask: Ask[R]) -> None:
        """Store the ask. After a cancel it may be stored nevertheless."""
        await self.store.commit(
            AskOpened(
                id=ask.id,
                kind=self.kind,
                session_id=ask.request.session_id,
                run_id=ask.run_id,
                tool_call_id=ask.request.tool_call_id,
                payload=encode(ask.request).decode(),
                at=self.clock.unix(),
            )
        )

    def _end(self, ask: Ask[R], resolution: Resolution) -> None:
        """Store how the ask ended; notify the clients unless one of them ended it."""
        self.store.post(AskResolved(id=ask.id, resolution=resolution, at=self.clock.unix()))
        if self._shown.pop(ask.id, None) is not None:
            self.given_up(ask.request, resolution)


# ── Notices ─────────────────────────────────────────────────────────────────────────────────────


def permission_notice(tool_call_id: ToolCallId, resolution: Resolution | None = None) -> Fact:
    """Return the event about a permission request: asked, or settled if *resolution* is given."""
    granted = resolution is Resolution.GRANTED
    return Fact(
        payload_type=PayloadType.PERMISSION_NOTIFICATION,
        change=EventType.CREATED,
        entity=PermissionNotification(
            tool_call_id=tool_call_id,
            granted=granted,
            denied=resolution is not None and not granted,
            withdrawn=resolution is Resolution.WITHDRAWN,
        ),
    )


def question_notice(batch_id: AskId) -> Fact:
    """Return the event that a batch of questions no longer waits."""
    return Fact(
        payload_type=PayloadType.QUESTION_BATCH_NOTIFICATION,
        change=EventType.CREATED,
        entity=QuestionNotification(batch_id=batch_id),
    )


# ── After a crash ───────────────────────────────────────────────────────────────────────────────


class AskStore(Changes, AskReads, Protocol):
    """What withdrawing asks needs from a store."""


async def withdraw_orphans(
    store: AskStore, publish: Publish, clock: Clock
) -> tuple[PendingAsk, ...]:
    """Withdraw every ask that an earlier start of the program left waiting; return them.

    Runs before any run is accepted, so every pending ask has lost its task.
    """
    orphans = await store.pending_asks()
    now = clock.unix()
    if orphans:
        await store.commit(
            *(AskResolved(id=o.id, resolution=Resolution.WITHDRAWN, at=now) for o in orphans)
        )
    for orphan in orphans:
        publish(_withdrawn(orphan))
    return tuple(orphans)


def _withdrawn(ask: PendingAsk) -> Fact:
    if ask.kind == AskKind.QUESTION:
        return question_notice(ask.id)
    return permission_notice(ask.tool_call_id, Resolution.WITHDRAWN)
