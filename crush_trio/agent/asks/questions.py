"""`Questions`: batches of questions to a person, and the tool `question`, by which a model asks them.

A batch waits like a permission request: in the cancel scope of its run, while a client is connected, until
the first answer. Batches have ids, and any number may wait (L17). Clients of the Go program answer without
an id. Such an answer goes to the oldest batch that has all the answered questions, so a late answer does
not hit the next batch.

The model's arguments are checked first: a batch that breaks a limit is a tool error, and nothing is
published (F11). Only interactive runs have the tool; the planner leaves it out of all others (F17).
"""

from functools import partial
from typing import Annotated, Final

import orjson
from attrs import define, evolve, field, frozen

from crush_trio.agent.asks.attendance import Attendance
from crush_trio.agent.asks.pending import (
    Ask,
    AskKind,
    Ending,
    PendingAsks,
    Publish,
    Resolution,
    question_notice,
)
from crush_trio.clock import Clock, IdSource
from crush_trio.events.facts import Fact
from crush_trio.runtime.run import Run
from crush_trio.store.base import Changes
from crush_trio.tools.base import About, BuiltIn, ToolCall, ToolError, ToolResult, read_arguments
from crush_trio.wire.asks import (
    Choice,
    Question,
    QuestionRequest,
    QuestionResponse,
    QuestionType,
)
from crush_trio.wire.events import EventType, PayloadType
from crush_trio.wire.ids import NO_ASK, AskId, QuestionId, RunId, ToolCallId


@define(eq=False, kw_only=True)
class Questions:
    """The questions of one workspace."""

    store: Changes = field(repr=False)
    publish: Publish = field(repr=False)
    clock: Clock = field(repr=False)
    ids: IdSource = field(repr=False)
    attendance: Attendance = field(repr=False)
    _asks: PendingAsks[QuestionRequest] = field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self._asks = PendingAsks(
            AskKind.QUESTION, self.store, self.clock, self.attendance, self._given_up
        )

    # ── For clients: synchronous ────────────────────────────────────────────────────────────────

    @property
    def pending(self) -> tuple[QuestionRequest, ...]:
        """The batches that wait for an answer, oldest first."""
        return tuple(ask.request for ask in self._asks.waiting)

    def answer(self, batch_id: AskId, responses: tuple[QuestionResponse, ...]) -> bool:
        """Answer a batch; False if it does not wait or no longer waits (F13).

        Without an id, the oldest batch that has all the answered questions.
        """
        ask = self._find(batch_id, responses)
        if ask is None:
            return False
        self._settle(ask, Ending(Resolution.ANSWERED, responses))
        return True

    def cancel(self, batch_id: AskId = NO_ASK) -> bool:
        """Decline to answer a batch, or the oldest without an id; False if none waits (F14)."""
        ask = self._find(batch_id)
        if ask is None:
            return False
        self._settle(ask, Ending(Resolution.CANCELLED))
        return True

    def fail(self, batch_id: AskId, error: Exception) -> bool:
        """Fail the run of a batch with *error*, because its answer failed; False if it does not wait."""
        return self._asks.fail(batch_id, error)

    def _find(
        self, batch_id: AskId, responses: tuple[QuestionResponse, ...] = ()
    ) -> Ask[QuestionRequest] | None:
        if batch_id != NO_ASK:
            return self._asks.find(batch_id)
        fitting = (ask for ask in self._asks.waiting if _fits(ask.request, responses))
        return next(fitting, None)

    # ── For the tool ────────────────────────────────────────────────────────────────────────────

    async def ask(self, request: QuestionRequest, run_id: RunId) -> Ending:
        """Ask a batch, and return its ending; a cancel withdraws the batch."""
        return await self._asks.put(request, run_id, partial(self._show, request))

    async def ask_for(
        self, run: Run, call_id: ToolCallId, questions: tuple[Question, ...]
    ) -> tuple[QuestionResponse, ...] | None:
        """Put a tool's questions to a person; None if they are not answered.

        The questions get ids of their own while they wait, because the tool's may not be unique.
        """
        known = {QuestionId(self.ids.new()): question for question in questions}
        request = QuestionRequest(
            id=AskId(self.ids.new()),
            session_id=run.session_id,
            tool_call_id=call_id,
            questions=tuple(evolve(question, id=new) for new, question in known.items()),
        )
        ending = await self.ask(request, run.id)
        if ending.resolution is not Resolution.ANSWERED:
            return None
        answered = (each for each in ending.responses if each.request_id in known)
        return tuple(evolve(each, request_id=known[each.request_id].id) for each in answered)

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
    """Whether *request* has all the questions of *responses*."""
    return {response.request_id for response in responses} <= {
        question.id for question in request.questions
    }


CANCELLED: Final = "User cancelled this question"
"""The tool error if a person declined to answer (F14)."""

SKIPPED: Final = "User skipped this question"
"""The answer of a question that a person left out."""

UNATTENDED: Final = "No answer: no client was connected for {seconds:g} seconds"
"""The tool error if the batch was given up because no client was connected."""

UNASKABLE: Final = "Questions are not available in this run"
"""The tool error in a run that is not interactive."""

QUESTIONS: Final = range(1, 6)
CHOICES: Final = range(2, 6)
QUESTION_BYTES: Final = 240
DESCRIPTION_BYTES: Final = 600
CHOICE_BYTES: Final = 200

CONFIRM_TITLE: Final = "Send these answers?"
CONFIRM_DESCRIPTION: Final = "You can go back and change any of them."

_WITH_CHOICES: Final = {QuestionType.SINGLE_CHOICE, QuestionType.MULTI_CHOICE}


# ── Arguments ───────────────────────────────────────────────────────────────────────────────────


@frozen(kw_only=True)
class AskedChoice:
    """One choice of a question, as the model writes it."""

    id: Annotated[str, About("what you get back if it is chosen; unique within the question")]
    label: Annotated[str, About("what the person reads, at most 200 bytes")]
    description: Annotated[str, About("more about it, at most 200 bytes")] = ""


@frozen(kw_only=True)
class AskedQuestion:
    """One question, as the model writes it."""

    type: QuestionType
    question: Annotated[str, About("the question itself, at most 240 bytes")]
    description: Annotated[str, About("what depends on the answer, at most 600 bytes")]
    choices: Annotated[
        tuple[AskedChoice, ...], About("two to five, for the two types with choices")
    ] = ()
    label: Annotated[str, About("a word or two for the question")] = ""
    id: Annotated[str, About("what you know the answer by; made up if left out")] = ""


@frozen(kw_only=True)
class QuestionArguments:
    """The arguments of `question`."""

    questions: Annotated[tuple[AskedQuestion, ...], About("one to five questions")]
    confirm_title: Annotated[str, About("the heading above all answers, before they are sent")] = ""
    confirm_description: Annotated[str, About("a line below that heading")] = ""


def read_questions(text: str) -> QuestionArguments:
    """Parse the model's arguments; raise a `ToolError` that names the first broken limit."""
    asked = read_arguments(_usual_form(text), QuestionArguments)
    if len(asked.questions) not in QUESTIONS:
        raise ToolError(f"{len(asked.questions)} questions: ask at least 1 and at most 5")
    for number, question in enumerate(asked.questions, 1):
        _check_question(f"question {number}", question)
    named = [question.id for question in asked.questions if question.id]
    if len(set(named)) < len(named):
        raise ToolError("two questions have the same id")
    return asked


def _usual_form(text: str) -> str:
    """Correct common mistakes of models in the arguments.

    `questions` may be JSON text instead of a list, and `choices` may be called `options` (F17).
    """
    try:
        tree = orjson.loads(text)
        if isinstance(tree.get("questions"), str):
            tree["questions"] = orjson.loads(tree["questions"])
        for question in tree["questions"]:
            if "options" in question and "choices" not in question:
                question["choices"] = question.pop("options")
    except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError):
        return text  # `read_arguments` reports the error
    return orjson.dumps(tree).decode()


def _check_question(where: str, question: AskedQuestion) -> None:
    _check_text(f"the text of {where}", question.question, QUESTION_BYTES)
    _check_text(f"the description of {where}", question.description, DESCRIPTION_BYTES)
    if question.type not in _WITH_CHOICES:
        return
    if len(question.choices) not in CHOICES:
        raise ToolError(f"{where} has {len(question.choices)} choices: offer 2 to 5")
    ids = [choice.id for choice in question.choices]
    if not all(ids) or len(set(ids)) < len(ids):
        raise ToolError(f"each choice of {where} needs an id of its own")
    for choice in question.choices:
        _check_text(f"the label of choice {choice.id} of {where}", choice.label, CHOICE_BYTES)
        about = f"the description of choice {choice.id} of {where}"
        _check_text(about, choice.description, CHOICE_BYTES, required=False)


def _check_text(what: str, text: str, most: int, *, required: bool = True) -> None:
    if required and not text.strip():
        raise ToolError(f"{what} is missing")
    if len(text.encode()) > most:
        raise ToolError(f"{what} has {len(text.encode())} bytes: at most {most} are allowed")


# ── Answers ─────────────────────────────────────────────────────────────────────────────────────


def answers_text(request: QuestionRequest, responses: tuple[QuestionResponse, ...]) -> str:
    """Return the answers as text for the model, question by question (F15).

    Clients parse this text to show the answers, so its form is part of the wire.
    """
    by_question = {response.request_id: response for response in responses}
    return "\n\n".join(
        f"Q{number}: {question.question}\n{_answer_text(question, by_question.get(question.id))}"
        for number, question in enumerate(request.questions, 1)
    )


def _answer_text(question: Question, response: QuestionResponse | None) -> str:
    if response is None:
        return SKIPPED
    lines = []
    if question.type is QuestionType.YES_NO and response.yes is not None:
        lines.append(f"User answered: {'yes' if response.yes else 'no'}")
    if response.selected_ids:
        lines.append(f"User selected: {orjson.dumps(response.selected_ids).decode()}")
    if response.fill_in_text:
        lines.append(f"User provided: {response.fill_in_text}")
    answer = "\n".join(lines or [SKIPPED])
    choices = {choice.id for choice in question.choices}
    notes = [
        f"- [{about}]: {note}" if about in choices else f"- {note}"
        for about, note in response.notes.items()
        if note
    ]
    return "\n".join((answer, "", "Notes:", *notes)) if notes else answer


# ── The tool ────────────────────────────────────────────────────────────────────────────────────


@define(eq=False)
class QuestionTool(BuiltIn):
    """The tool `question`: asks a person and waits for the answers."""

    name = "question"
    arguments = QuestionArguments

    _questions: Questions = field(repr=False)

    async def run(self, call: ToolCall, /) -> ToolResult:
        """Ask, and return the answers; if the person declines, the turn ends."""
        if not call.interactive:
            raise ToolError(UNASKABLE)
        request = self._request(call, read_questions(call.input))
        ending = await self._questions.ask(request, call.run_id)
        match ending.resolution:
            case Resolution.ANSWERED:
                return ToolResult(content=answers_text(request, ending.responses))
            case Resolution.CANCELLED:
                raise ToolError(CANCELLED, stop_turn=True, by_person=True)
            case _:
                patience = self._questions.attendance.patience
                raise ToolError(UNATTENDED.format(seconds=patience), stop_turn=True)

    def _request(self, call: ToolCall, asked: QuestionArguments) -> QuestionRequest:
        """Return the request for clients, with generated ids and confirmation if missing (F12)."""
        several = len(asked.questions) > 1
        return QuestionRequest(
            id=AskId(self._new_id()),
            session_id=call.session_id,
            tool_call_id=call.id,
            questions=tuple(map(self._shown, asked.questions)),
            confirm_title=asked.confirm_title or (CONFIRM_TITLE if several else ""),
            confirm_description=asked.confirm_description
            or (CONFIRM_DESCRIPTION if several else ""),
        )

    def _shown(self, asked: AskedQuestion) -> Question:
        choices = asked.choices if asked.type in _WITH_CHOICES else ()
        return Question(
            id=QuestionId(asked.id or self._new_id()),
            type=asked.type,
            label=asked.label,
            question=asked.question,
            description=asked.description,
            choices=tuple(
                Choice(id=choice.id, label=choice.label, description=choice.description)
                for choice in choices
            ),
        )

    def _new_id(self) -> str:
        return self._questions.ids.new()
