"""One step's answer, while the model writes it.

Takes the parts of a stream into the assistant message of the step, one message per step (D13), and
keeps what has to be done afterwards: the tool calls that are complete.
"""

import orjson
from attrs import define, field

from crush_trio.agent.transcript import OpenMessage
from crush_trio.providers.base import (
    Finished,
    ReasoningDelta,
    ReasoningEnd,
    StreamPart,
    TextDelta,
    ToolCallBegin,
    ToolCallDelta,
    ToolCallEnd,
)
from crush_trio.runtime.outcome import Completion
from crush_trio.wire.ids import ToolCallId
from crush_trio.wire.messages import Message, TextPart, ToolCallPart


@define(eq=False)
class Answer:
    """Satisfies `providers.conversing.Sink`."""

    opened: OpenMessage
    calls: list[ToolCallPart] = field(factory=list, init=False)
    """The calls that are complete, in the order in which the model completed them."""
    unreadable: set[ToolCallId] = field(factory=set, init=False)
    """Those of them whose arguments were no JSON object; they were stored with none (D14b)."""
    _begun: dict[ToolCallId, str] = field(factory=dict, init=False)
    _thinking: bool = field(default=False, init=False)

    async def take(self, part: StreamPart) -> None:  # noqa: ASYNC910  # the stream is what waits
        """Add one part. Text is paced by the transcript; everything else is stored at once."""
        match part:
            case TextDelta(text=text):
                await self._end_thinking()
                self.opened.append_text(text)
            case ReasoningDelta(text=text):
                self._thinking = True
                self.opened.append_reasoning(text)
            case ReasoningEnd(signature=signature):
                self._thinking = False
                await self.opened.close_reasoning(signature or None)
            case ToolCallBegin(id=call_id, name=name):
                await self._end_thinking()
                self._begun[call_id] = name
                await self.opened.put_tool_call(ToolCallPart(id=call_id, name=name))
            case ToolCallEnd():
                await self._end_thinking()
                await self._complete(part)
            case Finished():
                await self._end_thinking()
            case ToolCallDelta():
                pass  # viewers are shown arguments when they are complete

    async def reset(self) -> None:
        """Forget everything before the model is asked again (D14a)."""
        self.calls.clear()
        self.unreadable.clear()
        self._begun.clear()
        self._thinking = False
        await self.opened.reset()

    async def drop_incomplete(self) -> None:  # noqa: ASYNC910  # mostly there is none
        """Complete the calls that the model began and never ended, with no arguments (D16)."""
        for call_id, name in self._begun.items():
            part = ToolCallPart(id=call_id, name=name, input="{}", finished=True)
            await self.opened.put_tool_call(part)

    def message(self) -> Message:
        """The message as it is now."""
        return self.opened.message()

    def said(self) -> Completion:
        """Return what a run would tell of this answer: the message and its text (B2)."""
        message = self.opened.message()
        texts = (part.text for part in message.parts if isinstance(part, TextPart))
        return Completion(message_id=message.id, text=next(texts, ""))

    async def _complete(self, end: ToolCallEnd) -> None:
        arguments = end.input or "{}"
        if not _is_object(arguments):
            arguments = "{}"
            self.unreadable.add(end.id)
        call = ToolCallPart(id=end.id, name=end.name, input=arguments, finished=True)
        self._begun.pop(end.id, None)
        self.calls.append(call)
        await self.opened.put_tool_call(call)

    async def _end_thinking(self) -> None:  # noqa: ASYNC910  # most parts end nothing
        if self._thinking:
            self._thinking = False
            await self.opened.close_reasoning()


def _is_object(text: str) -> bool:
    try:
        return isinstance(orjson.loads(text), dict)
    except orjson.JSONDecodeError:
        return False
