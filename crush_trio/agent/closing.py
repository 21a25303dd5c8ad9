"""What the record of a turn needs so that it is complete, however the turn ended.

The same rules serve a run that ends now and one that a crash left behind: reasoning is closed,
tool calls are finished and answered, every message has its finish part (D15 to D18).
"""

from collections.abc import Collection, Iterable

from attrs import evolve

from crush_trio.events.growing import GrowingMessage
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
from crush_trio.wire.native import RunState

STOPPED = FinishPart(reason=FinishReason.STOP, time=0)
"""What every message ends with that no model wrote (D1)."""

TOOL_CANCELLED = "Error: user cancelled assistant tool calling"
TOOL_FAILED = "There was an error while executing the tool"


def finished(message: Message) -> Message:
    """Return *message* with the finish part that every message of its kind ends with."""
    if any(isinstance(part, FinishPart) for part in message.parts):
        return message
    return evolve(message, parts=(*message.parts, STOPPED))


def finish_of(outcome: Outcome, at: int) -> FinishPart:
    """Return the finish part of an answer that its turn did not finish itself (D18)."""
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


def close_answer(growing: GrowingMessage, outcome: Outcome, at: int) -> None:
    """Give an unfinished answer what it lacks: closed reasoning, finished calls, a finish part."""
    if growing.view().finished:
        return
    growing.close_reasoning(finished_at=at)
    for call in growing.tool_calls():
        if not call.finished:
            growing.put(evolve(call, input="{}", finished=True))
    growing.put(finish_of(outcome, at))


def missing_results(
    calls: Iterable[ToolCallPart], answered: Collection[ToolCallId], outcome: Outcome
) -> list[ToolResultPart]:
    """Return an error result for each tool call that was never answered (D17)."""
    text = TOOL_CANCELLED if outcome.state is RunState.CANCELLED else TOOL_FAILED
    return [
        ToolResultPart(tool_call_id=call.id, name=call.name, content=text, is_error=True)
        for call in calls
        if call.id not in answered
    ]


def prompt_message(run_id: RunId, submission: Submission, at: int) -> Message:
    """Return the message that a run's prompt becomes; every attachment is kept (D23a).

    It bears the run's own id, so that writing it a second time, after a write of which nobody
    knows whether it landed, is the same write.
    """
    text: tuple[Part, ...] = (TextPart(text=submission.prompt),) if submission.prompt else ()
    files = tuple(
        BinaryPart(path=a.file_path or a.file_name, mime_type=a.mime_type, data=a.content)
        for a in submission.attachments
    )
    return _message(MessageId(run_id), submission.session_id, Role.USER, (*text, *files), at)


def result_message(
    result: ToolResultPart, session_id: SessionId, message_id: MessageId, at: int
) -> Message:
    """Return the message of one tool result."""
    return _message(message_id, session_id, Role.TOOL, (result,), at)


def closing_answer(
    outcome: Outcome, session_id: SessionId, message_id: MessageId, at: int
) -> Message:
    """Return the answer of a turn that ended before it had one (A21, D20)."""
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
