"""A run as plain text or JSON, for pipes and programs. docs/cli.md documents the formats.

Text is written once, at the end: exactly the text of the run's ending (B20). `stream-json` writes a
line per event, as it arrives.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final

import orjson
import trio
from attrs import define, field
from rich.console import Console
from rich.text import Text

from crush_trio import __version__
from crush_trio.cli.exits import ExitCode
from crush_trio.cli.options import json_text
from crush_trio.cli.report.reporter import RunEnd, RunStart, summary
from crush_trio.cli.terminal.signals import Interrupts
from crush_trio.cli.terminal.text import call_title, one_line
from crush_trio.client.events import RunEvent
from crush_trio.client.follower import Asked, Progress, RunEnded, RunPiece, Settled
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
from crush_trio.client.workspace import RemoteWorkspace
from crush_trio.wire.asks import PermissionRequest, QuestionRequest
from crush_trio.wire.codec import unstructure
from crush_trio.wire.fields import JsonObject
from crush_trio.wire.ids import ToolCallId
from crush_trio.wire.messages import FinishPart, FinishReason, ToolCallPart
from crush_trio.wire.runs import RunState

Write = Callable[[str], object]
"""Writes text to standard output."""

FORMAT_VERSION = 1
"""The version of the JSON format; increased when a change could break a program that reads it."""


@asynccontextmanager
async def _nothing() -> AsyncIterator[None]:
    await trio.lowlevel.checkpoint()
    yield


@define(eq=False)
class PlainReporter:
    """Writes the answer to standard output, and notes to *notes*.

    *quiet* leaves out the notes, except those that the answer is not whole.
    """

    _write: Write = field(repr=False)
    notes: Console = field(repr=False)
    quiet: bool = False
    interactive: bool = field(default=False, init=False)
    _calls: dict[ToolCallId, ToolCallPart] = field(factory=dict, init=False, repr=False)

    def open(self, interrupts: Interrupts) -> AbstractAsyncContextManager[None]:
        """Do nothing."""
        return _nothing()

    def opened(self, workspace: RemoteWorkspace) -> None:
        """Do nothing: asks are not answered here."""

    def began(self, start: RunStart) -> None:
        """Print hints, for example that the offline demo answers."""
        for hint in start.hints:
            self._note(Text(hint, "yellow"))

    def tell(self, piece: RunPiece) -> None:
        """Print asks and progress, and, if the notes go to a terminal, the tool calls."""
        match piece:
            case ToolCallFinished(call=call):
                self._calls[call.id] = call
            case MessageFinished(finish=finish) if lack := _lack(finish):
                self._print(Text(lack, "yellow"))
            case Asked(request=request):
                self._note(Text(f"The run waits for an answer: {_asked(request)}", "yellow"))
            case Progress(text=text):
                self._note(Text(one_line(text, 200), "dim"))
            case ToolResult(result=result) if self.notes.is_terminal:
                used = self._calls.get(result.tool_call_id)
                mark = "✗ " if result.is_error else "✓ "
                self._note(Text.assemble(mark, call_title(used) if used else result.name))

    def cancelling(self) -> None:
        """Print that the run is being cancelled."""
        self._note(Text("Cancelling the run.", "yellow"))

    def ended(self, end: RunEnd) -> None:
        """Write the answer, and errors to the notes."""
        if text := end.answer.lstrip(" \t"):
            self._write(text if text.endswith("\n") else f"{text}\n")
        for notice in end.run.notices:
            self._note(Text(one_line(notice), "yellow"))
        if end.receipt is not None:
            self._note(Text(summary(end.receipt)))
        for line in ending_lines(end):
            self._print(line)

    def _note(self, text: Text) -> None:
        if not self.quiet:
            self._print(text)

    def _print(self, text: Text) -> None:
        self.notes.print(text, highlight=False, soft_wrap=True)


_INCOMPLETE: Final = frozenset(FinishReason) - {FinishReason.ERROR, FinishReason.CANCELLED}
"""Finish reasons whose message is about the answer; errors and cancels are told with the ending."""


def _lack(finish: FinishPart) -> str:
    """Return what an answer lacks, for example its end; empty if it is whole, or told with the ending."""
    return one_line(finish.message) if finish.reason in _INCOMPLETE else ""


def _asked(request: PermissionRequest | QuestionRequest) -> str:
    if isinstance(request, PermissionRequest):
        return one_line(request.description or request.tool_name, 200)
    return one_line(" ".join(each.question for each in request.questions), 200)


def ending_lines(end: RunEnd) -> list[Text]:
    """Return the lines about a run that did not succeed: what happened, and what to do next."""
    lines = []
    if end.run.state in {RunState.ERRORED, RunState.INTERRUPTED}:
        what = one_line(end.run.error or f"the run was {end.run.state.value}")
        lines.append(Text.assemble(("The run failed: ", "bold red"), what))
    elif end.denied is not None:
        call = call_title(end.denied).plain
        lines.append(
            Text.assemble(("The run was not allowed to use ", "bold red"), one_line(call, 200))
        )
    elif end.run.state is RunState.CANCELLED:
        why = " after its timeout" if end.code == ExitCode.TIMED_OUT else ""
        lines.append(Text(f"The run was cancelled{why}.", "bold yellow"))
    if end.advice:
        lines.append(Text(f"Next: {end.advice}."))
    return lines


# ── JSON ────────────────────────────────────────────────────────────────────────────────────────


def start_object(start: RunStart) -> JsonObject:
    """Return the first line of `stream-json`."""
    return {
        "type": "start",
        "format": FORMAT_VERSION,
        "version": __version__,
        "session_id": start.session_id,
        "run_id": start.run_id,
        "directory": start.directory,
        "model": start.model_name,
        "server": start.server,
    }


def piece_object(piece: RunPiece) -> JsonObject | None:
    """Return the line of `stream-json` about a piece; None if it has none."""
    match piece:
        case RunEvent(run=run):
            return {"type": "state", "state": run.state.value}
        case Asked(request=request):
            kind = "permission" if isinstance(request, PermissionRequest) else "question"
            return {"type": "asked", "kind": kind, "request": unstructure(request)}
        case Settled(request=request, granted=granted):
            return {"type": "settled", "id": request.id, "granted": granted}
        case Progress(text=text):
            return {"type": "progress", "text": text}
        case ToolCallBegun() | RunEnded():
            return None
    return {"type": _MESSAGE_LINES[type(piece)], "message_id": piece.message_id, **_content(piece)}


_MESSAGE_LINES: Final[Mapping[type[MessagePiece], str]] = {
    TextPiece: "text",
    ReasoningPiece: "reasoning",
    ToolCallFinished: "tool_call",
    ToolResult: "tool_result",
    MessageFinished: "message_end",
    MessageRestarted: "restart",
}


def _content(piece: MessagePiece) -> JsonObject:
    """Return the keys of a line about a message, without `type` and `message_id`."""
    match piece:
        case TextPiece(text=text) | ReasoningPiece(text=text):
            return {"text": text}
        case ToolCallFinished(call=call):
            return {"id": call.id, "name": call.name, "input": _parsed(call.input)}
        case ToolResult(result=result):
            return {
                "id": result.tool_call_id,
                "name": result.name,
                "content": result.content,
                "is_error": result.is_error,
            }
        case MessageFinished(finish=finish):
            return {"reason": finish.reason.value, "error": finish.message}
    return {}


def end_object(end: RunEnd, lacks: Iterable[str] = ()) -> JsonObject:
    """Return the last line of `stream-json`; *lacks* say what the answer lacks."""
    return {
        "type": "end",
        "outcome": end.run.state.value,
        "exit_code": end.code,
        "text": end.run.text,
        "error": end.run.error,
        "denied": None if end.denied is None else end.denied.name,
        "seconds": round(end.seconds, 3),
        "receipt": None if end.receipt is None else unstructure(end.receipt),
        "notices": [*end.run.notices, *lacks],
    }


def _parsed(text: str) -> object:
    """Return the arguments of a call as JSON; text that is not valid JSON stays text."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text


@define(eq=False)
class JsonReporter:
    """Writes JSON: a line per event if *stream*, otherwise one object at the end."""

    _write: Write = field(repr=False)
    stream: bool
    interactive: bool = field(default=False, init=False)
    _start: JsonObject = field(factory=dict, init=False, repr=False)
    _lacks: list[str] = field(factory=list, init=False, repr=False)

    def open(self, interrupts: Interrupts) -> AbstractAsyncContextManager[None]:
        """Do nothing."""
        return _nothing()

    def opened(self, workspace: RemoteWorkspace) -> None:
        """Do nothing: asks are not answered here."""

    def began(self, start: RunStart) -> None:
        """Write the first line."""
        self._start = start_object(start)
        self._line(self._start)

    def tell(self, piece: RunPiece) -> None:
        """Write a line about *piece*."""
        if isinstance(piece, MessageFinished) and (lack := _lack(piece.finish)):
            self._lacks.append(lack)
        if (line := piece_object(piece)) is not None:
            self._line(line)

    def cancelling(self) -> None:
        """Do nothing: the receipt is in the last object."""

    def ended(self, end: RunEnd) -> None:
        """Write the last line, or the only object."""
        last = end_object(end, self._lacks)
        if self.stream:
            self._line(last)
        else:
            self._write(json_text({**self._start, **last, "type": "run"}))

    def _line(self, line: JsonObject) -> None:
        if self.stream:
            self._write(json_text(line))
