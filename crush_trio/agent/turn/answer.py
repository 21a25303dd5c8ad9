"""One step's answer, while the model writes it.

Takes the parts of a stream into the assistant message of the step, one message per step (D13), and
keeps what has to be done afterwards: the tool calls that are complete.
"""

from collections.abc import Collection, Iterator
from itertools import count

import orjson
from attrs import define, field

from crush_trio.agent.record.message_writer import OpenMessage
from crush_trio.errors import AnswerTooLong
from crush_trio.limits import DEFAULTS, byte_size, shown_bytes
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
class Room:
    """How much a model may say in one message, in bytes, and how much of that is used."""

    limit: int = DEFAULTS.answer
    _used: int = field(default=0, init=False)

    def fitting(self, text: str) -> str:
        """Count *text*; return as much of it as there is room for."""
        size, left = byte_size(text), max(0, self.limit - self._used)
        self._used += size
        return (
            text if size <= left else text.encode(errors="replace")[:left].decode(errors="ignore")
        )

    def check(self) -> None:
        """Raise `AnswerTooLong` if more was said than there is room for."""
        if self._used > self.limit:
            raise AnswerTooLong(f"it has more than {shown_bytes(self.limit)}")

    def reset(self) -> None:
        """Count from the beginning."""
        self._used = 0


@define(eq=False)
class Answer:
    """Satisfies `providers.conversing.Sink`.

    Raises `AnswerTooLong` for the part that there is no room for; what fits of it has been added.

    Calls keep the ids that the model gave them, unless the conversation has such a call already:
    there are servers that count from zero in every answer. *taken* are the ids of before.
    """

    opened: OpenMessage
    taken: Collection[ToolCallId] = field(default=(), repr=False)
    room: Room = field(factory=Room, kw_only=True)
    calls: list[ToolCallPart] = field(factory=list, init=False)
    """The calls that are complete, in the order in which the model completed them."""
    unreadable: set[ToolCallId] = field(factory=set, init=False)
    """Those of them whose arguments were no JSON object; they were stored with none (D14b)."""
    _begun: dict[ToolCallId, str] = field(factory=dict, init=False)
    _ids: dict[ToolCallId, ToolCallId] = field(factory=dict, init=False)
    _written: dict[ToolCallId, int] = field(factory=dict, init=False)
    """The characters of the arguments of each call that have arrived, and were counted."""
    _thinking: bool = field(default=False, init=False)

    async def take(self, part: StreamPart) -> None:  # noqa: ASYNC910  # the stream is what waits
        """Add one part. Text is paced by the transcript; everything else is stored at once."""
        match part:
            case TextDelta(text=text):
                await self._end_thinking()
                self.opened.append_text(self.room.fitting(text))
            case ReasoningDelta(text=text):
                self._thinking = True
                self.opened.append_reasoning(self.room.fitting(text))
            case ReasoningEnd(signature=signature):
                self._count(signature)
                self._thinking = False
                await self.opened.close_reasoning(signature or None)
            case ToolCallBegin(id=call_id, name=name):
                self._count(call_id, name)
                await self._end_thinking()
                own = self._own(call_id)
                self._begun[own] = name
                await self.opened.put_tool_call(ToolCallPart(id=own, name=name))
            case ToolCallEnd(id=call_id, input=arguments):
                self._count(arguments[self._written.get(call_id, 0) :])
                await self._end_thinking()
                await self._complete(part)
            case Finished():
                await self._end_thinking()
            case ToolCallDelta(id=call_id, text=text):  # viewers are shown them when complete
                self._written[call_id] = self._written.get(call_id, 0) + len(text)
                self._count(text)
        self.room.check()

    async def reset(self) -> None:
        """Forget everything before the model is asked again (D14a)."""
        self.calls.clear()
        self.unreadable.clear()
        self._begun.clear()
        self._ids.clear()
        self._written.clear()
        self.room.reset()
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

    def _count(self, *texts: str) -> None:
        """Count what is kept whole or not at all."""
        for text in texts:
            self.room.fitting(text)
        self.room.check()

    async def _complete(self, end: ToolCallEnd) -> None:
        arguments = end.input or "{}"
        own = self._own(end.id)
        if not _is_object(arguments):
            arguments = "{}"
            self.unreadable.add(own)
        call = ToolCallPart(id=own, name=end.name, input=arguments, finished=True)
        self._begun.pop(own, None)
        self.calls.append(call)
        await self.opened.put_tool_call(call)

    def _own(self, call_id: ToolCallId) -> ToolCallId:
        """Return the id under which a call is kept: the model's, or one like it that is free."""
        if call_id not in self._ids:
            free = (ToolCallId(f"{call_id}{suffix}") for suffix in _suffixes())
            self._ids[call_id] = next(each for each in free if each not in self.taken)
        return self._ids[call_id]

    async def _end_thinking(self) -> None:  # noqa: ASYNC910  # most parts end nothing
        if self._thinking:
            self._thinking = False
            await self.opened.close_reasoning()


def _suffixes() -> Iterator[str]:
    yield ""
    yield from (f"-{number}" for number in count(2))


def _is_object(text: str) -> bool:
    try:
        return isinstance(orjson.loads(text), dict)
    except orjson.JSONDecodeError:
        return False
