"""A conversation on a screen: what is finished scrolls away, what is not is drawn again.

At any time there is at most one text that grows; it ends as soon as anything else is said. Calls of
tools are below it for as long as they take, and join what is finished with their result. So lines
are let go in the order in which things end, and nothing has to wait for something before it.
"""

from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Final, Protocol

from attrs import define, field, frozen
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from crush_trio.cli.terminal.screen import Draw, GrowingMarkdown, Shown
from crush_trio.cli.terminal.text import call_title, one_line, result_preview, visible
from crush_trio.client.messages import (
    MessageFinished,
    MessagePiece,
    MessageRestarted,
    ReasoningPiece,
    TextPiece,
    ToolCallBegun,
    ToolCallFinished,
    ToolResult,
)
from crush_trio.wire.ids import MessageId, ToolCallId
from crush_trio.wire.messages import FinishReason, ToolCallPart, ToolResultPart

THOUGHT_LINES: Final = 3
"""How much of a thought is shown while it is being thought."""

CALL_LINES: Final = 5
"""How many of the calls that are under way are shown."""


class _Kind(Enum):
    """What follows what: things of one close kind stand together, all others apart."""

    TEXT = auto()
    CALL = auto()
    NOTE = auto()


class _Growing(Protocol):
    """A text that has not ended."""

    message_id: MessageId

    def append(self, text: str) -> None: ...

    def advance(self, draw: Draw, width: int, room: int) -> Shown: ...

    def finish(self, draw: Draw, width: int) -> tuple[str, ...]: ...


@define(eq=False)
class _Saying:
    """What is said."""

    message_id: MessageId
    _markdown: GrowingMarkdown = field(factory=GrowingMarkdown, init=False)

    def append(self, text: str) -> None:
        self._markdown.append(text)

    def advance(self, draw: Draw, width: int, room: int) -> Shown:
        return self._markdown.advance(draw, width, room)

    def finish(self, draw: Draw, width: int) -> tuple[str, ...]:
        return self._markdown.finish(draw, width)


@define(eq=False)
class _Thinking:
    """What is thought: the last lines while it lasts, and then how much it was."""

    message_id: MessageId
    _text: str = field(default="", init=False)

    def append(self, text: str) -> None:
        self._text += visible(text)

    def advance(self, draw: Draw, width: int, room: int) -> Shown:
        lines = draw(Text(self._text.strip(), "dim italic"), width)
        return Shown((), tuple(lines[-max(1, min(room, THOUGHT_LINES)) :]))

    def finish(self, draw: Draw, width: int) -> tuple[str, ...]:
        words = len(self._text.split())
        return tuple(draw(Text(f"(thought for {words} words)", "dim italic"), width))


@frozen(eq=False)
class _Said:
    """Something that will not change any more, and has not been let go yet."""

    kind: _Kind
    lines: Callable[[Draw, int], Sequence[str]]
    message_id: MessageId | None = None


@define(eq=False)
class Conversation:
    """What was said and done, as far as it has not been let go."""

    _said: list[_Said] = field(factory=list, init=False)
    _growing: _Growing | None = field(default=None, init=False)
    _calls: dict[ToolCallId, ToolCallPart] = field(factory=dict, init=False)
    _shown: set[MessageId] = field(factory=set, init=False)
    """The messages of which something was let go."""
    _last: _Kind | None = field(default=None, init=False)
    """What was let go last."""
    _within: bool = field(default=False, init=False)
    """Whether something was let go of the text that grows."""

    # ── What happens ────────────────────────────────────────────────────────────────────────────

    def note(self, drawing: RenderableType) -> None:
        """Say something in between."""
        self._seal()
        self._said.append(_Said(_Kind.NOTE, _drawn(drawing)))

    def prompt(self, text: str) -> None:
        """Show what somebody asked."""
        first, *others = visible(text).strip().split("\n")
        lines = [Text.assemble(("> ", "bold cyan"), (first, "bold"))]
        self.note(Group(*lines, *(Text(f"  {line}", "bold") for line in others)))

    def tell(self, piece: MessagePiece) -> None:
        """Show what is new about a message."""
        match piece:
            case TextPiece(message_id=message_id, text=text):
                self._grow(_Saying, message_id, text)
            case ReasoningPiece(message_id=message_id, text=text):
                self._grow(_Thinking, message_id, text)
            case ToolCallBegun(call=call) | ToolCallFinished(call=call):
                self._seal()
                self._calls[call.id] = call
            case ToolResult(result=result):
                self._answered(result)
            case MessageRestarted(message_id=message_id):
                self._restart(message_id)
            case MessageFinished(finish=finish):
                self._seal()
                if finish.reason is FinishReason.ERROR:
                    self.note(failure(finish.message, finish.details))

    def give_up(self) -> None:
        """Forget the calls that have no result: their run has ended."""
        self._seal()
        self._calls.clear()

    @property
    def calling(self) -> bool:
        """Whether a tool is at work."""
        return bool(self._calls)

    def _grow(self, kind: type[_Saying | _Thinking], message_id: MessageId, text: str) -> None:
        growing = self._growing
        if type(growing) is not kind or growing.message_id != message_id:
            self._seal()
            self._growing = growing = kind(message_id)
        growing.append(text)

    def _answered(self, result: ToolResultPart) -> None:
        self._seal()
        call = self._calls.pop(result.tool_call_id, None)
        if call is None:
            call = ToolCallPart(id=result.tool_call_id, name=result.name)
        mark, style = ("✗", "red") if result.is_error else ("✓", "green")
        preview = Padding(Group(*result_preview(result)), (0, 0, 0, 2))
        self._said.append(_Said(_Kind.CALL, _drawn(Group(_titled(call, mark, style), preview))))

    def _restart(self, message_id: MessageId) -> None:
        """Forget what is known of a message; if some of it was let go, say so."""
        self._said = [said for said in self._said if said.message_id != message_id]
        if self._growing is not None and self._growing.message_id == message_id:
            self._growing, self._within = None, False
        self._calls.clear()
        if message_id in self._shown:
            self.note(Text("(the model failed, and begins again)", "dim italic"))

    def _seal(self) -> None:
        """Let the text that grows end: something else comes after it."""
        if self._growing is not None:
            growing = self._growing
            self._said.append(_Said(_Kind.TEXT, growing.finish, growing.message_id))
            self._growing = None

    # ── How it looks ────────────────────────────────────────────────────────────────────────────

    def advance(self, draw: Draw, width: int, room: int) -> Shown:
        """Return what is finished since the last time, and the rest in *room* lines at most."""
        done: list[str] = []
        for said in self._said:
            lines = said.lines(draw, width)
            done += self._let_go(said.kind, lines, said.message_id, ended=True)
        self._said.clear()
        calls = [
            draw(_titled(call, "…", "yellow"), width)[0]
            for call in list(self._calls.values())[-CALL_LINES:]
        ]
        live: list[str] = []
        if self._growing is not None:
            shown = self._growing.advance(draw, width, room - len(calls) - 1)
            done += self._let_go(_Kind.TEXT, shown.done, self._growing.message_id, ended=False)
            live += shown.live
        if live and self._last is not None and not self._within:
            live = ["", *live]
        elif calls and self._last is not None:
            calls = ["", *calls]
        return Shown(tuple(done), tuple([*live, *calls][-max(room, 0) :]) if room > 0 else ())

    def finish(self, draw: Draw, width: int) -> tuple[str, ...]:
        """Return everything that was not let go yet; nothing more will come."""
        self.give_up()
        return self.advance(draw, width, 0).done

    def _let_go(
        self, kind: _Kind, lines: Sequence[str], message_id: MessageId | None, *, ended: bool
    ) -> list[str]:
        """Return lines that are let go now, with an empty one before them where one belongs."""
        within = self._within and kind is _Kind.TEXT
        if kind is _Kind.TEXT:
            self._within = not ended and (within or bool(lines))
        if not lines:
            return []
        if message_id is not None:
            self._shown.add(message_id)
        together = within or self._last is None or (kind is self._last is _Kind.CALL)
        self._last = kind
        return list(lines) if together else ["", *lines]


def _drawn(drawing: RenderableType) -> Callable[[Draw, int], Sequence[str]]:
    return lambda draw, width: draw(drawing, width)


def _titled(call: ToolCallPart, mark: str, style: str) -> Text:
    title = Text.assemble((f"{mark} ", style), call_title(call))
    title.no_wrap, title.overflow = True, "ellipsis"
    return title


def failure(message: str, details: str = "") -> RenderableType:
    """Return how a failure is shown: what, and below it why."""
    head = Text.assemble(("✗ ", "red"), (one_line(message or "failed"), "bold red"))
    return Group(head, Text(visible(details), "red")) if details else head
