"""`StepAnswer`: writes the parts of a model's stream into the assistant message of a step.

There is one message per step (D13). The complete tool calls are collected, to be run afterwards.
"""

from collections.abc import Callable, Collection, Iterator
from itertools import count

import orjson
import trio
from attrs import define, field

from crush_trio.agent.record.message import OpenMessage
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
    is_plain,
)
from crush_trio.runtime.outcome import Completion
from crush_trio.wire.ids import ToolCallId
from crush_trio.wire.messages import Message, TextPart, ToolCallPart


@define(eq=False)
class AnswerBudget:
    """Counts the bytes of one message against a limit."""

    limit: int = DEFAULTS.answer
    _used: int = field(default=0, init=False)

    def fitting(self, text: str) -> str:
        """Count *text*; return the part of it that is within the limit."""
        size, left = byte_size(text), max(0, self.limit - self._used)
        self._used += size
        return (
            text if size <= left else text.encode(errors="replace")[:left].decode(errors="ignore")
        )

    def check(self) -> None:
        """Raise `AnswerTooLong` if the limit is exceeded."""
        if self._used > self.limit:
            raise AnswerTooLong(f"it has more than {shown_bytes(self.limit)}")

    def reset(self) -> None:
        """Count from the beginning."""
        self._used = 0


@define(eq=False)
class StepAnswer:
    """The answer of one step. Satisfies `providers.call.Sink`.

    Raises `AnswerTooLong` for a part that exceeds the limit; the text within it has been added.

    Calls keep the model's ids, unless the conversation already has a call with that id (*taken*):
    some servers count from zero in every answer.
    """

    opened: OpenMessage
    taken: Collection[ToolCallId] = field(default=(), repr=False)
    budget: AnswerBudget = field(factory=AnswerBudget, kw_only=True)
    stored: trio.Event | None = field(default=None, kw_only=True, repr=False)
    """Set once the message is stored; its first part waits for that. None if it is stored."""
    begun: Callable[[], None] = field(default=lambda: None, kw_only=True, repr=False)
    """Called with each part, after it was added."""
    calls: list[ToolCallPart] = field(factory=list, init=False)
    """The complete calls, in the order of their completion."""
    unreadable: set[ToolCallId] = field(factory=set, init=False)
    """The calls whose arguments were not a JSON object; they are stored with none (D14b)."""
    _begun: dict[ToolCallId, str] = field(factory=dict, init=False)
    _ids: dict[ToolCallId, ToolCallId] = field(factory=dict, init=False)
    _written: dict[ToolCallId, int] = field(factory=dict, init=False)
    """The characters of each call's arguments that were received and counted."""
    _thinking: bool = field(default=False, init=False)

    async def take(self, part: StreamPart) -> None:  # noqa: ASYNC910  # the stream is what waits
        """Add one part. Text is stored at the message's pace; everything else at once."""
        if self.stored is not None and not self.stored.is_set():
            await self.stored.wait()
        match part:
            case TextDelta(text=text):
                await self._end_thinking()
                self.opened.append_text(self.budget.fitting(text))
            case ReasoningDelta(text=text):
                self._thinking = True
                self.opened.append_reasoning(self.budget.fitting(text))
            case ReasoningEnd(signature=signature):
                self._count(signature)
                self._thinking = False
                if is_plain(signature) or not signature:
                    await self.opened.close_reasoning(signature or None)
                else:  # clients of the Go program expect signatures of some models only
                    await self.opened.close_reasoning("", signature)
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
            case ToolCallDelta(id=call_id, text=text):  # clients see arguments when complete
                self._written[call_id] = self._written.get(call_id, 0) + len(text)
                self._count(text)
        self.begun()
        self.budget.check()

    async def reset(self) -> None:
        """Discard everything before a retry (D14a)."""
        self.calls.clear()
        self.unreadable.clear()
        self._begun.clear()
        self._ids.clear()
        self._written.clear()
        self.budget.reset()
        self._thinking = False
        await self.opened.reset()

    async def drop_incomplete(self) -> None:  # noqa: ASYNC910  # mostly there is none
        """Complete the calls that the model did not finish, without arguments (D16)."""
        for call_id, name in self._begun.items():
            part = ToolCallPart(id=call_id, name=name, input="{}", finished=True)
            await self.opened.put_tool_call(part)

    def message(self) -> Message:
        """Return the current message."""
        return self.opened.message()

    def said(self) -> Completion:
        """Return the completion of a run that ends with this answer: message id and text (B2)."""
        message = self.opened.message()
        texts = (part.text for part in message.parts if isinstance(part, TextPart))
        return Completion(message_id=message.id, text=next(texts, ""))

    def _count(self, *texts: str) -> None:
        """Count texts that cannot be cut; raise `AnswerTooLong` if they exceed the limit."""
        for text in texts:
            self.budget.fitting(text)
        self.budget.check()

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
        """Return the stored id of a call: the model's, with a suffix if it is taken."""
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
