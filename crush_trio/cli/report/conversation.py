"""The conversation of a session as lines on a screen: text, reasoning, tool calls and results.

Finished lines are released: printed once, to scroll away. The rest is redrawn. At most one text
grows at a time, and it ends when anything follows it. Running tool calls are shown below it and are
released with their result. So items are released in the order in which they end, and none waits for
an earlier one.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum, auto
from operator import attrgetter
from typing import Final, Protocol

from attrs import define, field, frozen
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from crush_trio.cli.report.results import result_lines
from crush_trio.cli.terminal.screen import Draw, DrawnLines, GrowingMarkdown, Renderer
from crush_trio.cli.terminal.text import call_title, one_line, visible
from crush_trio.client.messages import (
    GrowingMessage,
    MessageFinished,
    MessagePiece,
    MessageRestarted,
    ReasoningPiece,
    TextPiece,
    ToolCallBegun,
    ToolCallFinished,
    ToolResult,
    pieces_between,
)
from crush_trio.wire.ids import MessageId, ToolCallId
from crush_trio.wire.messages import (
    FinishReason,
    Message,
    Role,
    ShellCommandPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from crush_trio.wire.runs import RunState, RunView

REASONING_LINES: Final = 3
"""How many lines of reasoning are shown while it grows."""

CALL_LINES: Final = 5
"""How many running tool calls are shown."""


class _Kind(Enum):
    """The kind of an item. An empty line separates items, except a call from a call."""

    TEXT = auto()
    CALL = auto()
    NOTE = auto()


class _Growing(Protocol):
    """A text that may still grow."""

    message_id: MessageId

    def append(self, text: str) -> None: ...

    def advance(self, draw: Draw, width: int, room: int) -> DrawnLines: ...

    def finish(self, draw: Draw, width: int) -> tuple[str, ...]: ...


@define(eq=False)
class _GrowingText:
    """A growing answer."""

    message_id: MessageId
    _markdown: GrowingMarkdown = field(factory=GrowingMarkdown, init=False)

    def append(self, text: str) -> None:
        self._markdown.append(text)

    def advance(self, draw: Draw, width: int, room: int) -> DrawnLines:
        return self._markdown.advance(draw, width, room)

    def finish(self, draw: Draw, width: int) -> tuple[str, ...]:
        return self._markdown.finish(draw, width)


@define(eq=False)
class _GrowingReasoning:
    """Growing reasoning: its last lines while it grows, and its word count when it has ended."""

    message_id: MessageId
    _text: str = field(default="", init=False)

    def append(self, text: str) -> None:
        self._text += visible(text)

    def advance(self, draw: Draw, width: int, room: int) -> DrawnLines:
        lines = draw(Text(self._text.strip(), "dim italic"), width)
        return DrawnLines((), tuple(lines[-max(1, min(room, REASONING_LINES)) :]))

    def finish(self, draw: Draw, width: int) -> tuple[str, ...]:
        words = len(self._text.split())
        return tuple(draw(Text(f"(reasoning, {words} words)", "dim italic"), width))


@frozen(eq=False)
class _Item:
    """An item that will not change any more, and is not released yet."""

    kind: _Kind
    lines: Callable[[Draw, int], Sequence[str]]
    message_id: MessageId | None = None


@define(eq=False)
class ConversationView:
    """The conversation, as far as it is not released."""

    _items: list[_Item] = field(factory=list, init=False)
    _growing: _Growing | None = field(default=None, init=False)
    _calls: dict[ToolCallId, ToolCallPart] = field(factory=dict, init=False)
    _begun: set[MessageId] = field(factory=set, init=False)
    """The messages of which something was released."""
    _last: _Kind | None = field(default=None, init=False)
    """The kind of the item that was released last."""
    _mid_text: bool = field(default=False, init=False)
    """Whether a part of the growing text was released."""

    # ── Input ───────────────────────────────────────────────────────────────────────────────────

    def note(self, drawing: RenderableType) -> None:
        """Add a note, such as an error or a receipt."""
        self._end_text()
        self._items.append(_Item(_Kind.NOTE, _drawn(drawing)))

    def prompt(self, text: str) -> None:
        """Add a user's prompt."""
        first, *others = visible(text).strip().split("\n")
        lines = [Text.assemble(("> ", "bold cyan"), (first, "bold"))]
        self.note(Group(*lines, *(Text(f"  {line}", "bold") for line in others)))

    def tell(self, piece: MessagePiece) -> None:
        """Add a piece of a message."""
        match piece:
            case TextPiece(message_id=message_id, text=text):
                self._grow(_GrowingText, message_id, text)
            case ReasoningPiece(message_id=message_id, text=text):
                self._grow(_GrowingReasoning, message_id, text)
            case ToolCallBegun(call=call) | ToolCallFinished(call=call):
                self._end_text()
                self._calls[call.id] = call
            case ToolResult(result=result):
                self._add_result(result)
            case MessageRestarted(message_id=message_id):
                self._restart(message_id)
            case MessageFinished(finish=finish):
                self._end_text()
                if finish.reason is FinishReason.ERROR:
                    self.note(failure(finish.message, finish.details))
                elif finish.message and finish.reason is not FinishReason.CANCELLED:
                    self.note(Text(visible(finish.message), "yellow"))

    def give_up(self) -> None:
        """Drop the calls that have no result, because their run has ended."""
        self._end_text()
        self._calls.clear()

    @property
    def calling(self) -> bool:
        """Whether a tool call is running."""
        return bool(self._calls)

    def _grow(
        self, kind: type[_GrowingText | _GrowingReasoning], message_id: MessageId, text: str
    ) -> None:
        growing = self._growing
        if type(growing) is not kind or growing.message_id != message_id:
            self._end_text()
            self._growing = growing = kind(message_id)
        growing.append(text)

    def _add_result(self, result: ToolResultPart) -> None:
        self._end_text()
        call = self._calls.pop(result.tool_call_id, None)
        if call is None:
            call = ToolCallPart(id=result.tool_call_id, name=result.name)
        mark, style = ("✗", "red") if result.is_error else ("✓", "green")
        preview = Padding(Group(*result_lines(call, result)), (0, 0, 0, 2))
        self._items.append(_Item(_Kind.CALL, _drawn(Group(_titled(call, mark, style), preview))))

    def _restart(self, message_id: MessageId) -> None:
        """Drop a message that begins again; add a note if a part of it was released."""
        self._items = [item for item in self._items if item.message_id != message_id]
        if self._growing is not None and self._growing.message_id == message_id:
            self._growing, self._mid_text = None, False
        self._calls.clear()
        if message_id in self._begun:
            self.note(Text("(the model failed; it is called again)", "dim italic"))

    def _end_text(self) -> None:
        """End the growing text: something follows it."""
        if self._growing is not None:
            growing = self._growing
            self._items.append(_Item(_Kind.TEXT, growing.finish, growing.message_id))
            self._growing = None

    # ── Output ──────────────────────────────────────────────────────────────────────────────────

    def advance(self, draw: Draw, width: int, room: int) -> DrawnLines:
        """Return the lines to release since the last call, and the rest in at most *room* lines."""
        done: list[str] = []
        for item in self._items:
            lines = item.lines(draw, width)
            done += self._release(item.kind, lines, item.message_id, ended=True)
        self._items.clear()
        calls = [
            draw(_titled(call, "…", "yellow"), width)[0]
            for call in list(self._calls.values())[-CALL_LINES:]
        ]
        live: list[str] = []
        if self._growing is not None:
            shown = self._growing.advance(draw, width, room - len(calls) - 1)
            done += self._release(_Kind.TEXT, shown.done, self._growing.message_id, ended=False)
            live += shown.live
        if live and self._last is not None and not self._mid_text:
            live = ["", *live]
        elif calls and self._last is not None:
            calls = ["", *calls]
        return DrawnLines(tuple(done), tuple([*live, *calls][-max(room, 0) :]) if room > 0 else ())

    def finish(self, draw: Draw, width: int) -> tuple[str, ...]:
        """Return all lines that are not released; nothing more will be added."""
        self.give_up()
        return self.advance(draw, width, 0).done

    def _release(
        self, kind: _Kind, lines: Sequence[str], message_id: MessageId | None, *, ended: bool
    ) -> list[str]:
        """Return lines to release, with an empty line before them if the item needs one."""
        mid_text = self._mid_text and kind is _Kind.TEXT
        if kind is _Kind.TEXT:
            self._mid_text = not ended and (mid_text or bool(lines))
        if not lines:
            return []
        if message_id is not None:
            self._begun.add(message_id)
        together = mid_text or self._last is None or (kind is self._last is _Kind.CALL)
        self._last = kind
        return list(lines) if together else ["", *lines]


def _drawn(drawing: RenderableType) -> Callable[[Draw, int], Sequence[str]]:
    return lambda draw, width: draw(drawing, width)


def _titled(call: ToolCallPart, mark: str, style: str) -> Text:
    title = Text.assemble((f"{mark} ", style), call_title(call))
    title.no_wrap, title.overflow = True, "ellipsis"
    return title


def failure(message: str, details: str = "") -> RenderableType:
    """Return a failure: the message, and the details below it."""
    head = Text.assemble(("✗ ", "red"), (one_line(message or "failed"), "bold red"))
    return Group(head, Text(visible(details), "red")) if details else head


# ── Stored conversations ────────────────────────────────────────────────────────────────────────


def transcript_lines(
    messages: Sequence[Message], runs: Iterable[RunView], renderer: Renderer, width: int
) -> tuple[str, ...]:
    """Return the stored messages of a session as lines, with the ending of each run."""
    conversation = ConversationView()
    for each in with_endings(messages, runs):
        if isinstance(each, Message):
            show_message(conversation, each)
        elif (note := ending_note(each)) is not None:
            conversation.give_up()
            conversation.note(note)
    return conversation.finish(renderer.lines, width)


def with_endings(
    messages: Sequence[Message], runs: Iterable[RunView]
) -> Iterator[Message | RunView]:
    """Yield messages, and each ended run where it ended: before the prompt that follows it.

    A run that has no message of its own is placed by the time of its ending.
    """
    ended = sorted((run for run in runs if run.state.terminal), key=attrgetter("ended_at"))
    own = {run.message_id: run for run in ended if run.message_id}
    others = deque(run for run in ended if not run.message_id)
    passed: list[RunView] = []
    for message in messages:
        if message.role is Role.USER:
            while others and others[0].ended_at < message.created_at:
                passed.append(others.popleft())
            yield from passed
            passed.clear()
        yield message
        if message.id in own:
            passed.append(own[message.id])
    yield from (*passed, *others)


def ending_note(run: RunView) -> RenderableType | None:
    """Return how a run ended, on one line; None if another run has absorbed it."""
    spent = f" after {run.ended_at - run.started_at} s" if run.started_at and run.ended_at else ""
    match run.state:
        case RunState.COMPLETED:
            return Text(f"(completed{spent})", "dim")
        case RunState.CANCELLED:
            return Text(f"(cancelled{spent})", "yellow")
        case RunState.INTERRUPTED:
            return Text("(interrupted: the server was restarted)", "yellow")
        case RunState.ERRORED if run.message_id:  # the message has the error
            return Text(f"(failed{spent})", "red")
        case RunState.ERRORED:
            return failure(run.error)
    return None


def show_message(conversation: ConversationView, message: Message) -> None:
    """Add a whole message: a user's prompt, or the pieces of an answer."""
    if message.role is Role.USER:
        conversation.prompt(prompt_text(message))
        return
    for piece in pieces_between(None, GrowingMessage(message).view()):
        conversation.tell(piece)


def prompt_text(message: Message) -> str:
    """Return the text of a user's message, and the shell commands in it."""
    texts = [part.text for part in message.parts if isinstance(part, TextPart)]
    commands = [f"$ {part.command}" for part in message.parts if isinstance(part, ShellCommandPart)]
    return "\n".join([*texts, *commands])
