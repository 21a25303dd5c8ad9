"""Questions that a model asks a person, and their answers.

A batch of questions waits as a permission does: in the scope of its run, for as long as somebody is
there, until the first answer. Batches are known by their ids and any number may wait (L17). Clients
of the Go program answer without an id. Such an answer goes to the oldest batch that has the
questions it answers, so one that comes too late does not hit the next batch.
"""

from functools import partial

from attrs import define, field

from crush_trio.agent.asks import (
    Ask,
    AskKind,
    Asks,
    Ending,
    Publish,
    Resolution,
    question_notice,
)
from crush_trio.agent.attendance import Attendance
from crush_trio.clock import Clock, IdSource
from crush_trio.events.facts import Fact
from crush_trio.store.base import Changes
from crush_trio.wire.asks import QuestionRequest, QuestionResponse
from crush_trio.wire.events import EventType, PayloadType
from crush_trio.wire.ids import NO_ASK, AskId, RunId


@define(eq=False, kw_only=True)
class Questions:
    """The questions of one workspace."""

    store: Changes = field(repr=False)
    publish: Publish = field(repr=False)
    clock: Clock = field(repr=False)
    ids: IdSource = field(repr=False)
    attendance: Attendance = field(repr=False)
    _asks: Asks[QuestionRequest] = field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self._asks = Asks(AskKind.QUESTION, self.store, self.clock, self.attendance, self._given_up)

    # ── For those who answer: synchronous ───────────────────────────────────────────────────────

    @property
    def pending(self) -> tuple[QuestionRequest, ...]:
        """What waits for an answer, oldest first."""
        return tuple(ask.request for ask in self._asks.waiting)

    def answer(self, batch_id: AskId, responses: tuple[QuestionResponse, ...]) -> bool:
        """Answer a batch; False if it does not wait, or not any more (F13).

        Without an id: the oldest batch that has every question that is answered.
        """
        ask = self._find(batch_id, responses)
        if ask is None:
            return False
        self._settle(ask, Ending(Resolution.ANSWERED, responses))
        return True

    def cancel(self, batch_id: AskId = NO_ASK) -> bool:
        """Refuse to answer a batch, or the oldest without an id; False if none waits (F14)."""
        ask = self._find(batch_id)
        if ask is None:
            return False
        self._settle(ask, Ending(Resolution.CANCELLED))
        return True

    def _find(
        self, batch_id: AskId, responses: tuple[QuestionResponse, ...] = ()
    ) -> Ask[QuestionRequest] | None:
        if batch_id != NO_ASK:
            return self._asks.find(batch_id)
        fitting = (ask for ask in self._asks.waiting if _fits(ask.request, responses))
        return next(fitting, None)

    # ── For those who ask ───────────────────────────────────────────────────────────────────────

    async def ask(self, request: QuestionRequest, run_id: RunId) -> Ending:
        """Ask, and return how that ended; a cancel withdraws the batch."""
        return await self._asks.put(request, run_id, partial(self._show, request))

    def _show(self, request: QuestionRequest) -> None:
        self.publish(
            Fact(
                payload_type=PayloadType.QUESTION_BATCH_REQUEST,
                change=EventType.CREATED,
                entity=request,
            )
        )

    def _settle(self, ask: Ask[QuestionRequest], answer: Ending) -> None:
        self.publish(question_notice(ask.id))
        self._asks.settle(ask, answer)

    def _given_up(self, request: QuestionRequest, _resolution: Resolution) -> None:
        self.publish(question_notice(request.id))


def _fits(request: QuestionRequest, responses: tuple[QuestionResponse, ...]) -> bool:
    """Whether *responses* can be meant for *request*."""
    return {response.request_id for response in responses} <= {
        question.id for question in request.questions
    }
