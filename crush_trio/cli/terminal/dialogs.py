"""Dialogs for permissions and questions: their text, and what keys do in them.

Plain data. A dialog has a body, which is printed once and scrolls away, and an input line in the
footer. `press` returns the answer when a key completes it.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, TypeAlias

import orjson
from attrs import define, field, frozen
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from crush_trio.cli.terminal.editor import Layout, LineEditor, layout
from crush_trio.cli.terminal.keyboard import Key
from crush_trio.cli.terminal.text import diff_lines, every_character, one_line, visible
from crush_trio.tools.files.text import difference
from crush_trio.wire.asks import (
    TRUST_TOOL,
    GrantScope,
    PermissionRequest,
    Question,
    QuestionRequest,
    QuestionResponse,
    QuestionType,
)

if TYPE_CHECKING:
    from crush_trio.wire.fields import Json

BODY_LINES: Final = 200
"""How many lines of a change or a command are shown in a permission dialog."""

_INDENTED: Final = orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS

PERMISSION_LINE: Final = "Allow this? [y] once  [s] for this session  [a] always  [n] no "
TRUST_LINE: Final = "Trust it? [y] while this workspace is open  [s] always  [n] no "


@frozen
class Allow:
    """Grants a permission: once, for the whole session, or always."""

    scope: GrantScope


@frozen
class Deny:
    """Denies a permission."""


@frozen
class AnswerQuestions:
    """Answers a batch of questions."""

    responses: tuple[QuestionResponse, ...]


@frozen
class DeclineQuestions:
    """Leaves a batch of questions unanswered."""


DialogAnswer: TypeAlias = Allow | Deny | AnswerQuestions | DeclineQuestions
"""An answer to an ask."""


# ── Permissions ─────────────────────────────────────────────────────────────────────────────────

_PERMISSION_KEYS: Final[Mapping[str, DialogAnswer]] = {
    "y": Allow(GrantScope.ONCE),
    "s": Allow(GrantScope.SESSION),
    "a": Allow(GrantScope.ALWAYS),
    "n": Deny(),
}


@define(eq=False)
class PermissionDialog:
    """Asks whether a tool may do something."""

    request: PermissionRequest

    def body(self) -> RenderableType:
        """Return what is asked for: the command, the change, or the arguments."""
        request = self.request
        tool, action = (
            every_character(request.tool_name),
            one_line(every_character(request.action or "run")),
        )
        title = Text.assemble(
            ("? ", "bold yellow"), (tool, "bold"), f" asks for permission: {action}"
        )
        where = (
            [Text(f"in {one_line(every_character(request.path))}", "dim")] if request.path else []
        )
        details = Padding(Group(*permission_details(request), *where), (0, 0, 0, 2))
        return Group(title, details)

    def bottom(self, width: int) -> Layout:
        """Return the input line."""
        trust = self.request.tool_name == TRUST_TOOL
        return layout(TRUST_LINE if trust else PERMISSION_LINE, "", 0, width)

    def press(self, key: Key) -> DialogAnswer | None:
        """Return the answer of a key; None for keys without one."""
        if key.name == "escape":
            return Deny()
        return _PERMISSION_KEYS.get(key.text.lower()) if key.name == "text" else None


def permission_details(request: PermissionRequest) -> list[Text]:
    """Return what the user must see before allowing a request."""
    params: Mapping[str, Json] = request.params or {}
    if request.tool_name == TRUST_TOOL:
        return _limited(every_character(request.description), "bold")
    old, new = params.get("old_content", ""), params.get("new_content")
    if isinstance(old, str) and isinstance(new, str):
        name = every_character(str(params.get("file_path", "")))
        diff = difference(old, new).unified(name)
        return [Text(name, "bold"), *diff_lines(diff, BODY_LINES)]
    if isinstance(command := params.get("command"), str):
        return _limited(every_character(command), "bold")
    lines = [Text(one_line(every_character(request.description)))] if request.description else []
    if not params:
        return lines
    return lines + _limited(
        every_character(orjson.dumps(dict(params), option=_INDENTED).decode()), "bold"
    )


def _limited(text: str, style: str) -> list[Text]:
    lines = text.split("\n")
    shown = [Text(line, style) for line in lines[:BODY_LINES]]
    rest = len(lines) - BODY_LINES
    return [*shown, Text(f"… {rest} more lines", "bold red")] if rest > 0 else shown


# ── Questions ───────────────────────────────────────────────────────────────────────────────────


@define(eq=False)
class QuestionDialog:
    """A batch of questions of a model: typed in one after the other, and sent together."""

    request: QuestionRequest
    _editor: LineEditor = field(factory=LineEditor, init=False)
    _given: list[QuestionResponse] = field(factory=list, init=False)

    @property
    def _question(self) -> Question:
        return self.request.questions[len(self._given)]

    def body(self) -> RenderableType:
        """Return the questions with their choices."""
        return Group(*(line for question in self.request.questions for line in _asked(question)))

    def bottom(self, width: int) -> Layout:
        """Return the input line."""
        lead = f"{one_line(self._question.question, max(8, width // 2))} {_hint(self._question)} "
        return layout(lead, self._editor.text, self._editor.cursor, width)

    def press(self, key: Key) -> DialogAnswer | None:
        """Edit the answer; the last one completes the batch, Escape declines it."""
        if key.name == "escape":
            return DeclineQuestions()
        if key.name != "enter":
            self._editor.press(key.name, key.text)
            return None
        response = read_response(self._question, self._editor.text.strip())
        if response is None:
            return None
        self._editor.take()
        self._given.append(response)
        if len(self._given) < len(self.request.questions):
            return None
        return AnswerQuestions(tuple(self._given))


def _asked(question: Question) -> list[Text]:
    lines = [Text.assemble(("? ", "bold yellow"), (visible(question.question), "bold"))]
    if question.description:
        lines.append(Text(f"  {visible(question.description)}", "dim"))
    for number, choice in enumerate(question.choices, 1):
        about = f" — {one_line(choice.description)}" if choice.description else ""
        lines.append(Text(f"  {number}. {one_line(choice.label)}{about}"))
    return lines


def _hint(question: Question) -> str:
    match question.type:
        case QuestionType.YES_NO:
            return "[y/n]"
        case QuestionType.SINGLE_CHOICE:
            return "[number]"
        case QuestionType.MULTI_CHOICE:
            return "[numbers]"
    return ">"


def read_response(question: Question, text: str) -> QuestionResponse | None:
    """Return the response that *text* gives to a question; None if it is not valid."""
    match question.type:
        case QuestionType.YES_NO:
            if text.lower() not in {"y", "yes", "n", "no"}:
                return None
            return QuestionResponse(request_id=question.id, yes=text.lower()[0] == "y")
        case QuestionType.FREE_TEXT:
            return QuestionResponse(request_id=question.id, fill_in_text=text)
    numbers = text.replace(",", " ").split()
    if not all(each.isdecimal() and 0 < int(each) <= len(question.choices) for each in numbers):
        return None
    if question.type is QuestionType.SINGLE_CHOICE and len(numbers) != 1:
        return None
    chosen = tuple(question.choices[int(each) - 1].id for each in numbers)
    return QuestionResponse(request_id=question.id, selected_ids=chosen)


Dialog: TypeAlias = PermissionDialog | QuestionDialog
"""A dialog for an ask."""


def dialog_for(request: PermissionRequest | QuestionRequest) -> Dialog:
    """Return the dialog for an ask."""
    if isinstance(request, PermissionRequest):
        return PermissionDialog(request)
    return QuestionDialog(request)


_REACH: Final = {GrantScope.SESSION: "for this session", GrantScope.ALWAYS: "always"}


def answer_text(answer: DialogAnswer) -> Text:
    """Return the line that is shown when an answer was given."""
    match answer:
        case Allow(scope=scope):
            return Text(f"✓ allowed {_REACH.get(scope, 'once')}", "green")
        case Deny():
            return Text("✗ denied", "red")
        case DeclineQuestions():
            return Text("✗ not answered", "red")
        case AnswerQuestions():
            return Text("✓ answered", "green")
