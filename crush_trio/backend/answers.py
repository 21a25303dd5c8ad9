"""`Answers`: a program's callbacks answer the permission requests and questions of its agent.

One task follows the event log and looks, whenever something about asks has happened, which of them wait.
Each is answered in a task of its own, so a slow callback holds up its own run only. If the run is
cancelled, or a grant settles the request first, the callback is cancelled.

A callback that raises, or returns something that is no answer, fails the run: the error is raised in the
task of the run, where the request waits, and is logged there with its traceback.
"""

import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

import trio
from attrs import define, field

from crush_trio.agent.asks.asks import Asks
from crush_trio.agent.part_checks import check_callback
from crush_trio.events.cursor import Cursor
from crush_trio.events.facts import Fact
from crush_trio.wire.asks import (
    GrantScope,
    PermissionAction,
    PermissionRequest,
    Question,
    QuestionRequest,
    QuestionResponse,
    QuestionType,
)
from crush_trio.wire.events import PayloadType
from crush_trio.wire.ids import AskId

log = logging.getLogger(__name__)

PermitAnswer: TypeAlias = bool | GrantScope
"""What a permission callback returns: whether it is allowed, or for which later requests too."""

Permit: TypeAlias = Callable[[PermissionRequest], PermitAnswer | Awaitable[PermitAnswer]]
"""Answers a permission request; may be an async function."""

QuestionAnswer: TypeAlias = str | bool | Sequence[str] | QuestionResponse | None
"""What a question callback returns: text, a choice or several, yes or no; None to decline."""

Answer: TypeAlias = Callable[[Question], QuestionAnswer | Awaitable[QuestionAnswer]]
"""Answers a question of the model; may be an async function."""

_ABOUT_ASKS = {
    PayloadType.PERMISSION_REQUEST,
    PayloadType.PERMISSION_NOTIFICATION,
    PayloadType.QUESTION_BATCH_REQUEST,
    PayloadType.QUESTION_BATCH_NOTIFICATION,
}
_WITH_CHOICES = {QuestionType.SINGLE_CHOICE, QuestionType.MULTI_CHOICE}
_PERMIT = (
    "permit returned {said}: return True, False or a GrantScope (ONCE, RUN, SESSION or PROJECT)"
)
_ANSWER = (
    "answer returned {said} for a question of type {type}: return {expected}, or None to decline"
)
_EXPECTED = {
    QuestionType.YES_NO: "True or False",
    QuestionType.SINGLE_CHOICE: "the id or label of a choice, or text",
    QuestionType.MULTI_CHOICE: "a list of ids or labels of choices, or text",
    QuestionType.FREE_TEXT: "text",
}


def check_callbacks(permit: object, answer: object) -> None:
    """Raise a `TypeError` for callbacks that cannot be called as `Answers` calls them."""
    if not isinstance(permit, bool):
        check_callback("permit", permit, "async def permit(request: PermissionRequest) -> bool")
    if answer is not None:
        check_callback("answer", answer, "async def answer(question: Question) -> str")


@define(eq=False)
class Answers:
    """Answers the asks of one workspace by callbacks."""

    asks: Asks
    permit: Permit | bool
    answer: Answer | None
    _answering: dict[AskId, trio.CancelScope] = field(factory=dict, init=False, repr=False)

    async def serve(self, cursor: Cursor, nursery: trio.Nursery) -> None:
        """Answer everything that is asked; the callbacks run in *nursery*."""
        async for batch in cursor:
            if batch.resync is not None or any(
                isinstance(event, Fact) and event.payload_type in _ABOUT_ASKS
                for event in batch.events
            ):
                self._match(nursery)

    def _match(self, nursery: trio.Nursery) -> None:
        """Begin to answer what is newly asked, and stop answering what no longer waits."""
        waiting: dict[AskId, PermissionRequest | QuestionRequest] = {}
        if callable(self.permit):
            waiting |= {each.id: each for each in self.asks.permissions.pending}
        if self.answer is not None:
            waiting |= {each.id: each for each in self.asks.questions.pending}
        for gone in self._answering.keys() - waiting.keys():
            self._answering.pop(gone).cancel()
        for ask_id, request in waiting.items():
            if ask_id not in self._answering:
                scope = self._answering[ask_id] = trio.CancelScope()
                nursery.start_soon(self._settle, request, scope, name=f"answer {ask_id}")

    async def _settle(
        self, request: PermissionRequest | QuestionRequest, scope: trio.CancelScope
    ) -> None:
        with scope:
            if isinstance(request, PermissionRequest):
                await self._settle_permission(request)
            else:
                await self._settle_questions(request)

    async def _settle_permission(self, request: PermissionRequest) -> None:
        permissions = self.asks.permissions
        await trio.lowlevel.checkpoint()
        assert callable(self.permit)
        try:
            said = await _result(self.permit(request))
            if not isinstance(said, bool | GrantScope) or said is GrantScope.ALWAYS:
                raise TypeError(_PERMIT.format(said=_shown(said)))
        except Exception as error:  # noqa: BLE001  # barrier: it fails the run that asks, and is logged there
            _told(permissions.fail(request.id, error), request, error)
            return
        if said is False:
            permissions.answer(request.id, PermissionAction.DENY)
        else:
            scope = GrantScope.ONCE if said is True else said
            permissions.answer(request.id, PermissionAction.ALLOW, scope)

    async def _settle_questions(self, request: QuestionRequest) -> None:
        questions = self.asks.questions
        await trio.lowlevel.checkpoint()
        assert self.answer is not None
        responses = []
        try:
            for question in request.questions:
                said = await _result(self.answer(question))
                if said is None:
                    questions.cancel(request.id)
                    return
                responses.append(_response(question, said))
        except Exception as error:  # noqa: BLE001  # barrier: it fails the run that asks, and is logged there
            _told(questions.fail(request.id, error), request, error)
            return
        questions.answer(request.id, tuple(responses))


def _told(raised: bool, request: PermissionRequest | QuestionRequest, error: Exception) -> None:
    """Log an error of a callback whose request was withdrawn meanwhile, so that no run can fail with it."""
    if not raised:
        extra = {"session_id": request.session_id}
        log.error("ask.callback_failed: %s", error, extra=extra, exc_info=error)


async def _result(said: object) -> object:
    """Return what a callback returned, awaited if it was async."""
    return await said if inspect.isawaitable(said) else said  # noqa: ASYNC910  # callers have a checkpoint


def _response(question: Question, said: object) -> QuestionResponse:
    """Return the answer to *question*; raises a `TypeError` for what is no answer to it."""
    match said:
        case QuestionResponse():
            return said
        case bool() if question.type is QuestionType.YES_NO:
            return QuestionResponse(request_id=question.id, yes=said)
        case str() if question.type is QuestionType.FREE_TEXT:
            return QuestionResponse(request_id=question.id, fill_in_text=said)
        case str() if question.type in _WITH_CHOICES:
            return _chosen(question, [said])
        case list() | tuple() if question.type is QuestionType.MULTI_CHOICE:
            if all(isinstance(each, str) for each in said):
                return _chosen(question, said)
    raise TypeError(
        _ANSWER.format(
            said=_shown(said), type=question.type.value, expected=_EXPECTED[question.type]
        )
    )


def _chosen(question: Question, said: Sequence[str]) -> QuestionResponse:
    """Return the choices of these ids or labels; other text is what the person wrote instead."""
    ids = {choice.label: choice.id for choice in question.choices}
    ids |= {choice.id: choice.id for choice in question.choices}
    return QuestionResponse(
        request_id=question.id,
        selected_ids=tuple(ids[each] for each in said if each in ids),
        fill_in_text="\n".join(each for each in said if each not in ids) or None,
    )


def _shown(said: object) -> str:
    return "None" if said is None else f"{said!s:.40} ({type(said).__name__})"
