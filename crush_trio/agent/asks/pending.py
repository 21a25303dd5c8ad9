"""Pending asks: permission requests and questions that wait for a person, each in the scope of its run.

An ask is stored before clients hear of it, waits where its tool call stands, and ends once: answered,
withdrawn because its run was stopped, or given up because no person was there. Each of these is one
synchronous step, so two that come together have a winner and a loser, never two winners.

The waiter stands in a parking lot of its own, and that alone says whether the ask still waits. Trio
takes a cancelled task out of its lot in the step of the cancel, and never takes back one that was
unparked. So an answer after the cancel finds no waiter, although the cancelled task has not run yet, and
a cancel after the answer changes nothing about the answer (F2, F6).
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Final, Generic, TypeVar

import trio
from attrs import define, field, frozen

from crush_trio.agent.asks.attendance import Attendance
from crush_trio.agent.record.recording import current_recording
from crush_trio.clock import Clock
from crush_trio.events.facts import Event, Fact
from crush_trio.runtime.timeline import timed
from crush_trio.store.base import Changes
from crush_trio.store.changes import AskOpened, AskResolved
from crush_trio.wire.asks import (
    PermissionNotification,
    PermissionRequest,
    QuestionNotification,
    QuestionRequest,
    QuestionResponse,
)
from crush_trio.wire.codec import encode, unstructure
from crush_trio.wire.events import EventType, PayloadType
from crush_trio.wire.ids import AskId, RunId, ToolCallId
from crush_trio.wire.runs import SpanKind

Publish = Callable[[Event], object]
"""Publishes an event to every reader of the workspace."""

R = TypeVar("R", PermissionRequest, QuestionRequest)


class AskKind(StrEnum):
    """What is asked, as the store records it."""

    PERMISSION = "permission"
    QUESTION = "question"


class Resolution(StrEnum):
    """How an ask ended, as the store records it."""

    GRANTED = "granted"
    DENIED = "denied"
    ANSWERED = "answered"
    CANCELLED = "cancelled"
    """A person would not answer."""
    WITHDRAWN = "withdrawn"
    """Its run was stopped, or died."""
    UNATTENDED = "unattended"
    """No person was there to answer."""


@frozen
class Ending:
    """How an ask ended, with the answers of a person who was asked for some."""

    resolution: Resolution
    responses: tuple[QuestionResponse, ...] = field(default=(), repr=False)
    given: str = ""
    """What a person answered: `deny`, or the scope of a grant; empty if no person did."""
    reason: str = ""
    """Why a person denied it, as that person said; the model is told."""


_WITHDRAWN: Final = Ending(Resolution.WITHDRAWN)
_UNATTENDED: Final = Ending(Resolution.UNATTENDED)


@define(eq=False)
class Ask(Generic[R]):
    """One request that waits for its answer."""

    request: R
    run_id: RunId
    _answer: Ending = field(default=_WITHDRAWN, init=False)
    _failure: Exception | None = field(default=None, init=False, repr=False)
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
        """Let the waiter go on with *answer*."""
        self._answer = answer
        self._waiter.unpark()

    def fail(self, error: Exception) -> None:
        """Raise *error* in the waiter: what was to answer has failed."""
        self._failure = error
        self._waiter.unpark()

    async def wait(self) -> Ending:
        """Wait for the answer. No checkpoint lies before the waiting itself."""
        await self._waiter.park()
        if self._failure is not None:
            raise self._failure
        return self._answer


# ── The pending asks of a workspace ─────────────────────────────────────────────────────────────


@define(eq=False)
class PendingAsks(Generic[R]):
    """The asks of one kind that wait in a workspace.

    *given_up* tells the clients that a request they have heard of ended without an answer.
    """

    kind: AskKind
    store: Changes = field(repr=False)
    clock: Clock = field(repr=False)
    attendance: Attendance = field(repr=False)
    given_up: Callable[[R, Resolution], None] = field(repr=False)
    _shown: dict[AskId, Ask[R]] = field(factory=dict, init=False)

    # ── Answering: synchronous ──────────────────────────────────────────────────────────────────

    @property
    def waiting(self) -> tuple[Ask[R], ...]:
        """The asks that can be answered, oldest first."""
        return tuple(ask for ask in self._shown.values() if ask.waits)

    def find(self, ask_id: AskId) -> Ask[R] | None:
        """Return an ask that can be answered; None if there is none of that id, or no longer."""
        ask = self._shown.get(ask_id)
        return ask if ask is not None and ask.waits else None

    def settle(self, ask: Ask[R], answer: Ending) -> None:
        """Answer an ask that waits. The last thing to be done about an answer (F4)."""
        del self._shown[ask.id]
        ask.give(answer)

    def fail(self, ask_id: AskId, error: Exception) -> bool:
        """Fail the run of an ask that waits with *error*; False if it does not wait, or no longer."""
        ask = self.find(ask_id)
        if ask is not None:
            ask.fail(error)
        return ask is not None

    # ── Asking ──────────────────────────────────────────────────────────────────────────────────

    async def put(
        self,
        request: R,
        run_id: RunId,
        show: Callable[[], Ending | None],
        *,
        interactive: bool = True,
    ) -> Ending:
        """Ask, and return how that ended: with an answer, or given up because no person was there.

        *show* is called once the request is stored. It publishes the request, or settles it by
        itself if that has become possible meanwhile. A cancel withdraws the request.
        """
        if (recording := current_recording()) is not None:
            recording.asks(request.id)
        ask = Ask(request, run_id)
        ending = _WITHDRAWN
        try:
            await self._store(ask)
            ending = show() or await self._wait(ask, interactive)
            return ending
        finally:
            self._end(ask, ending.resolution)
            if (recording := current_recording()) is not None:
                recording.add("answer", ask=unstructure(request), **unstructure(ending))

    async def _wait(self, ask: Ask[R], interactive: bool) -> Ending:
        self._shown[ask.id] = ask
        about = getattr(ask.request, "tool_name", "")  # a question is about no tool
        with (
            timed(SpanKind.ASK, self.kind, about),
            self.attendance.of(interactive=interactive).patiently(),
        ):
            return await ask.wait()
        return _UNATTENDED

    async def _store(self, ask: Ask[R]) -> None:
        """Make the ask durable, however long that takes. If it is cut short it may be so all the same."""
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
        """Store how the ask ended; publish that too, unless a client has answered it."""
        self.store.post(AskResolved(id=ask.id, resolution=resolution, at=self.clock.unix()))
        if self._shown.pop(ask.id, None) is not None:
            self.given_up(ask.request, resolution)


# ── Notices ─────────────────────────────────────────────────────────────────────────────────────


def permission_notice(
    tool_call_id: ToolCallId, resolution: Resolution | None = None, reason: str = ""
) -> Fact:
    """Return the notice of where a permission request stands; without a *resolution*, it is asked."""
    granted = resolution is Resolution.GRANTED
    return Fact(
        payload_type=PayloadType.PERMISSION_NOTIFICATION,
        change=EventType.CREATED,
        entity=PermissionNotification(
            tool_call_id=tool_call_id,
            granted=granted,
            denied=resolution is not None and not granted,
            withdrawn=resolution is Resolution.WITHDRAWN,
            reason=reason,
        ),
    )


def question_notice(batch_id: AskId) -> Fact:
    """Return the notice that a batch of questions waits no longer, for whatever reason."""
    return Fact(
        payload_type=PayloadType.QUESTION_BATCH_NOTIFICATION,
        change=EventType.CREATED,
        entity=QuestionNotification(batch_id=batch_id),
    )
