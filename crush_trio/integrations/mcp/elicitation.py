"""Elicitation: what an MCP server asks of the user during a call, as questions, and the answer.

The server sends a JSON Schema of an object with plain values. Each property becomes one question: a
boolean is yes or no, an enumeration a choice, a list of enumerated values several choices, everything
else free text. A text that does not fit the schema is asked for again, with the reason. Texts of a server
are untrusted: they are bounded, and the question begins with the name of the server.
"""

import logging
import math
from collections.abc import Mapping
from typing import Final

import trio
from attrs import evolve, field, frozen

from crush_trio.config.errors import printable
from crush_trio.integrations.mcp.session import (
    Elicitation,
    ElicitationAction,
    ElicitationAnswer,
)
from crush_trio.tools.base import AskPerson
from crush_trio.wire.asks import Choice, Question, QuestionResponse, QuestionType
from crush_trio.wire.fields import Json, JsonObject
from crush_trio.wire.ids import QuestionId

MAX_TEXT: Final = 240
MAX_DESCRIPTION: Final = 600
"""Maximum characters of a question and of its description, as for a model's questions."""

MOST_QUESTIONS: Final = 20
MOST_CHOICES: Final = 100
"""Maximum questions of one elicitation, and choices of one question; with more, nothing is asked."""

log = logging.getLogger(__name__)

_WHOLE: Final = QuestionId("")
"""The id of the question that is asked if the schema has no properties."""


class Misfit(Exception):
    """An answer does not fit the schema; the text says what is expected."""


async def put_to_user(server: str, asked: Elicitation, ask: AskPerson | None) -> ElicitationAnswer:
    """Ask the user what *server* wants to know; `CANCEL` if there is no user, they decline, or it is too much."""
    await trio.lowlevel.checkpoint()
    if ask is None:
        return ElicitationAnswer()
    form = Form(server, asked)
    questions = form.questions()
    most = max(len(each.choices) for each in questions)
    if len(questions) > MOST_QUESTIONS or most > MOST_CHOICES:
        extra = {"server": server, "questions": len(questions), "choices": most}
        log.warning("mcp.elicitation_too_long", extra=extra)
        return ElicitationAnswer()
    content: dict[str, Json] = {}
    while questions:
        responses = await ask(questions)
        if responses is None:
            return ElicitationAnswer()
        said = {each.request_id: each for each in responses}
        if _WHOLE in {each.id for each in questions}:
            agreed = _WHOLE in said and said[_WHOLE].yes is True
            action = ElicitationAction.ACCEPT if agreed else ElicitationAction.DECLINE
            return ElicitationAnswer(action=action)
        again = []
        for question in questions:
            try:
                value = form.value(question.id, said.get(question.id))
            except Misfit as misfit:
                about = f"{misfit}. {question.description}"
                again.append(evolve(question, description=about[:MAX_DESCRIPTION].strip()))
            else:
                if value is not None:
                    content[question.id] = value
        questions = tuple(again)
    return ElicitationAnswer(action=ElicitationAction.ACCEPT, content=content)


@frozen
class Form:
    """The questions of one elicitation."""

    server: str
    asked: Elicitation = field(repr=False)

    @property
    def _properties(self) -> Mapping[str, JsonObject]:
        found = self.asked.schema.get("properties")
        found = found if isinstance(found, dict) else {}
        return {name: each for name, each in found.items() if name and isinstance(each, dict)}

    def questions(self) -> tuple[Question, ...]:
        """Return the questions, at least one."""
        if self.asked.url or not self._properties:
            return (
                Question(
                    id=_WHOLE,
                    type=QuestionType.YES_NO,
                    question=self._text(self.asked.message),
                    description=printable(self.asked.url, MAX_DESCRIPTION),
                ),
            )
        return tuple(self._question(name, wanted) for name, wanted in self._properties.items())

    def _text(self, said: str) -> str:
        """Return the text of a question, which begins with who asks: the rest is the server's."""
        return printable(f"{self.server} (MCP server): {said}", MAX_TEXT)

    def _question(self, name: str, wanted: JsonObject) -> Question:
        title = wanted.get("title") if isinstance(wanted.get("title"), str) else name
        alone = len(self._properties) == 1
        text = self.asked.message if alone else f"{title}: {self.asked.message}"
        about = wanted.get("description")
        choices = _choices(wanted)
        kind = QuestionType.FREE_TEXT
        if wanted.get("type") == "boolean":
            kind = QuestionType.YES_NO
        elif choices:
            several = wanted.get("type") == "array"
            kind = QuestionType.MULTI_CHOICE if several else QuestionType.SINGLE_CHOICE
        return Question(
            id=QuestionId(name),
            type=kind,
            label=printable(str(title), MAX_TEXT),
            question=self._text(text),
            description=printable(about if isinstance(about, str) else "", MAX_DESCRIPTION),
            choices=choices,
        )

    def value(self, name: str, said: QuestionResponse | None) -> Json:
        """Return the value of a property; None if the user left it out. Raises `Misfit`."""
        wanted = self._properties[name]
        value = None if said is None else _value(wanted, said)
        required = self.asked.schema.get("required")
        if value is None and isinstance(required, list) and name in required:
            raise Misfit("An answer is required")
        return value


def _value(wanted: JsonObject, said: QuestionResponse) -> Json:
    if wanted.get("type") == "boolean":
        return said.yes
    if choices := _choices(wanted):
        known = [each.id for each in choices]
        chosen = [each for each in said.selected_ids if each in known]
        if wanted.get("type") == "array":
            return chosen or None
        return chosen[0] if chosen else None
    text = (said.fill_in_text or "").strip()
    if not text:
        return None
    try:
        match wanted.get("type"):
            case "integer":
                return int(text)
            case "number" if math.isfinite(number := float(text)):
                return number
            case "number":
                raise Misfit(f"A finite number is expected, not {text[:40]!r}")
    except ValueError:
        raise Misfit(f"A number is expected, not {text[:40]!r}") from None
    return text


def _choices(wanted: JsonObject) -> tuple[Choice, ...]:
    """Return the values that an enumeration allows, in any of the protocol's forms."""
    items = wanted.get("items")
    source = items if wanted.get("type") == "array" and isinstance(items, dict) else wanted
    named = source.get("oneOf") or source.get("anyOf")
    if isinstance(named, list):
        titled = [
            (each.get("const"), each.get("title")) for each in named if isinstance(each, dict)
        ]
    else:
        values, names = source.get("enum"), source.get("enumNames")
        values = values if isinstance(values, list) else []
        names = names if isinstance(names, list) and len(names) == len(values) else values
        titled = list(zip(values, names, strict=True))
    return tuple(
        Choice(id=value, label=printable(str(title or value), MAX_TEXT))
        for value, title in titled
        if isinstance(value, str)
    )
