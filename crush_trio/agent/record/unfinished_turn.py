"""The messages and parts that complete a turn: its prompt, error results, finish parts.

The rules are the same for a run that ends now and for one that a crash interrupted: reasoning is closed,
tool calls are finished and have results, every message has its finish part (D15 to D18).
"""

from collections.abc import Collection, Iterable

from attrs import evolve

from crush_trio.events.growing_message import FixedPart, GrowingMessage, MessageView
from crush_trio.runtime.outcome import Outcome, Submission
from crush_trio.wire.codec import USER_CANCELLED
from crush_trio.wire.ids import MessageId, RunId, SessionId, ToolCallId
from crush_trio.wire.messages import (
    BinaryPart,
    FinishPart,
    FinishReason,
    Message,
    Part,
    Role,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from crush_trio.wire.runs import RunState

STOPPED = FinishPart(reason=FinishReason.STOP, time=0)
"""The finish part of messages that no model wrote (D1)."""

TOOL_CANCELLED = "Error: user cancelled assistant tool calling"
TOOL_FAILED = "There was an error while executing the tool"


def finished(message: Message) -> Message:
    """Return *message* with a finish part; unchanged if it has one."""
    if any(isinstance(part, FinishPart) for part in message.parts):
        return message
    return evolve(message, parts=(*message.parts, STOPPED))


def finish_of(outcome: Outcome, at: int) -> FinishPart:
    """Return the finish part of an answer that its turn did not finish (D18)."""
    match outcome.state:
        case RunState.CANCELLED:
            return FinishPart(reason=FinishReason.CANCELLED, time=at, message=USER_CANCELLED)
        case RunState.ERRORED:
            return FinishPart(
                reason=FinishReason.ERROR,
                time=at,
                message=outcome.title or "Provider Error",
                details=outcome.error,
            )
        case RunState.INTERRUPTED:
            return FinishPart(
                reason=FinishReason.ERROR, time=at, message="Interrupted", details=outcome.error
            )
        case _:
            return FinishPart(reason=FinishReason.UNKNOWN, time=at)


def close_answer(
    growing: GrowingMessage, outcome: Outcome, at: int, shown: MessageView | None = None
) -> MessageView | None:
    """Complete an unfinished answer: close reasoning and tool calls, add a finish part.

    *shown* is the answer as readers know it. If they do not know all its calls as finished, return the
    answer without its finish part: it is published before the results of the calls.
    """
    if growing.view().finished:
        return None
    growing.close_reasoning(finished_at=at)
    for call in growing.tool_calls():
        if not call.finished:
            growing.put(evolve(call, input="{}", finished=True))
    known = _finished_calls(shown) if shown else set()
    called = None
    if shown and any(call.id not in known for call in growing.tool_calls()):
        called = growing.view(at)
    growing.put(finish_of(outcome, at))
    return called


def _finished_calls(view: MessageView) -> set[ToolCallId]:
    parts = (each.part for each in view.parts if isinstance(each, FixedPart))
    return {part.id for part in parts if isinstance(part, ToolCallPart) and part.finished}


def missing_results(
    calls: Iterable[ToolCallPart], answered: Collection[ToolCallId], outcome: Outcome
) -> list[ToolResultPart]:
    """Return an error result for each tool call without a result (D17)."""
    text = TOOL_CANCELLED if outcome.state is RunState.CANCELLED else TOOL_FAILED
    return [
        ToolResultPart(tool_call_id=call.id, name=call.name, content=text, is_error=True)
        for call in calls
        if call.id not in answered
    ]


def prompt_message(run_id: RunId, submission: Submission, at: int) -> Message:
    """Return the message of a run's prompt, with every attachment (D23a).

    Its first part is the text, also if that is empty: clients of the Go program expect one.
    Its id is the run's id, so that writing it again, after a write whose result is unknown, is
    idempotent.
    """
    text = TextPart(text=submission.prompt)
    files: tuple[Part, ...] = tuple(
        BinaryPart(path=a.file_path or a.file_name, mime_type=a.mime_type, data=a.content)
        for a in submission.attachments
    )
    return _message(MessageId(run_id), submission.session_id, Role.USER, (text, *files), at)


def result_message(
    result: ToolResultPart, session_id: SessionId, message_id: MessageId, at: int
) -> Message:
    """Return the message of one tool result."""
    return _message(message_id, session_id, Role.TOOL, (result,), at)


def closing_answer(
    outcome: Outcome, session_id: SessionId, message_id: MessageId, at: int
) -> Message:
    """Return the answer of a turn that ended without one (A21, D20)."""
    return _message(message_id, session_id, Role.ASSISTANT, (finish_of(outcome, at),), at)


def _message(
    message_id: MessageId, session_id: SessionId, role: Role, parts: tuple[Part, ...], at: int
) -> Message:
    return finished(
        Message(
            id=message_id,
            session_id=session_id,
            role=role,
            parts=parts,
            created_at=at,
            updated_at=at,
        )
    )
