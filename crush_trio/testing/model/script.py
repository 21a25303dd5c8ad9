"""Scripts of a scripted model, for a provider in memory and for one over HTTP.

A script is a list of answers, one per request. An answer is a list of steps: parts of the answer (any
`StreamPart`, or the short forms `Say`, `Think` and `CallTool`), and what happens between them: a
`Pause` at a gate, a `Sleep`, an error. `ScriptedProvider` plays answers on Trio's clock and without a
network; `open_model_server` plays the same answers in the formats of real providers.

```python
answers = [
    [Think("A file."), CallTool("view", {"file_path": "README.md"})],
    [Say("It is "), Pause(gate), Say("short.")],
    [Refuse(429, retry_after=2)],
]
```

`expand` turns an answer into plain steps that a player takes one by one, and adds what is missing: an
id for each call, the end of thinking, and a `Finished`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Final, Protocol, TypeAlias, TypeVar

import orjson
from attrs import define, field, frozen

from crush_trio.providers.base import (
    Finished,
    ModelRequest,
    ReasoningDelta,
    ReasoningEnd,
    StreamPart,
    TextDelta,
    ToolCallBegin,
    ToolCallDelta,
    ToolCallEnd,
)
from crush_trio.testing.server.turns import Fail, Pause, Say, Sleep
from crush_trio.wire.fields import JsonObject
from crush_trio.wire.ids import ToolCallId
from crush_trio.wire.messages import FinishReason, Role, TextPart

__all__ = [
    "PARTS",
    "Answer",
    "Asked",
    "CallTool",
    "Choice",
    "Cut",
    "Fail",
    "Garble",
    "InOrder",
    "Pause",
    "Ping",
    "PlainStep",
    "Refuse",
    "Say",
    "ScriptOver",
    "Sleep",
    "Step",
    "Think",
    "by_model",
    "by_text",
    "choice_of",
    "expand",
    "model_of",
    "text_of",
]

# ── Steps ───────────────────────────────────────────────────────────────────────────────────────


@frozen
class Think:
    """Stream *text* as a piece of reasoning; with a *signature*, it is the last piece."""

    text: str
    signature: str = ""


@frozen
class CallTool:
    """Call a tool. *arguments* are a JSON object, or text, valid JSON or not.

    The arguments are streamed in *pieces* of about the same length. The default *id* is unique in the
    script.
    """

    name: str
    arguments: JsonObject | str = field(factory=dict)
    id: str = ""
    pieces: int = 1


@frozen
class Refuse:
    """Answer with an HTTP error, or, once the answer has begun, with an error event."""

    status: int = 500
    message: str = ""
    retry_after: float | None = None


@frozen
class Cut:
    """Break off in the middle of a chunk; *tidy* ends the HTTP response correctly, but too early."""

    tidy: bool = False


@frozen
class Garble:
    """Send text that is not valid in the provider's format."""

    text: str = '{"this is": not JSON'


@frozen
class Ping:
    """Send a keep-alive, which begins the answer."""


Step: TypeAlias = (
    Say | Think | CallTool | StreamPart | Pause | Sleep | Fail | Refuse | Cut | Garble | Ping
)
"""One step of a scripted answer."""

PlainStep: TypeAlias = StreamPart | Pause | Sleep | Fail | Refuse | Cut | Garble | Ping
"""A step as `expand` yields it."""

Answer: TypeAlias = Sequence[Step]
"""The steps of the answer to one request."""

PARTS: Final = (
    TextDelta,
    ReasoningDelta,
    ReasoningEnd,
    ToolCallBegin,
    ToolCallDelta,
    ToolCallEnd,
    Finished,
)
"""The classes of `StreamPart`."""


# ── Expansion ───────────────────────────────────────────────────────────────────────────────────


def expand(answer: Answer, number: int = 1) -> Iterator[PlainStep]:
    """Yield the plain steps of *answer*, the *number*th of its script.

    The last one is the first `Finished` or error in it. Without either, a `Finished` is added, whose
    reason depends on whether a tool was called.
    """
    thinking, called = False, False
    for step in _plain(answer, number):
        if thinking and _ends_thinking(step):
            yield ReasoningEnd()
        thinking = isinstance(step, ReasoningDelta) or (thinking and not isinstance(step, PARTS))
        called = called or isinstance(step, ToolCallBegin)
        yield step
        if isinstance(step, Finished | Fail | Refuse | Cut):
            return
    if thinking:
        yield ReasoningEnd()
    yield Finished(reason=FinishReason.TOOL_USE if called else FinishReason.END_TURN)


def _ends_thinking(step: PlainStep) -> bool:
    return isinstance(step, PARTS) and not isinstance(step, ReasoningDelta | ReasoningEnd)


def _plain(answer: Answer, number: int) -> Iterator[PlainStep]:
    calls = count(1)
    for step in answer:
        match step:
            case Say(text=text):
                yield TextDelta(text)
            case Think(text=text, signature=signature):
                yield ReasoningDelta(text)
                if signature:
                    yield ReasoningEnd(signature)
            case CallTool():
                yield from _call(step, step.id or f"call_{number}_{next(calls)}")
            case _:
                yield step


def _call(step: CallTool, name: str) -> Iterator[PlainStep]:
    given, call = step.arguments, ToolCallId(name)
    text = given if isinstance(given, str) else orjson.dumps(given).decode()
    yield ToolCallBegin(call, step.name)
    for piece in _pieces(text, step.pieces):
        yield ToolCallDelta(call, piece)
    yield ToolCallEnd(call, step.name, text)


def _pieces(text: str, number: int) -> Iterator[str]:
    size = max(1, -(-len(text) // max(1, number)))
    return (text[start : start + size] for start in range(0, len(text), size))


# ── Choosing answers ────────────────────────────────────────────────────────────────────────────

R = TypeVar("R")

Choice: TypeAlias = Callable[[R], Answer]
"""Returns the answer to a request."""


class ScriptOver(AssertionError):
    """A model got more requests than its script has answers."""


@define(eq=False)
class InOrder:
    """Returns the answers in order, for any requests."""

    answers: Sequence[Answer]
    _given: "count[int]" = field(factory=count, init=False)

    def __call__(self, request: object) -> Answer:
        """Return the next answer."""
        number = next(self._given)
        if number >= len(self.answers):
            raise ScriptOver(
                f"the script has {len(self.answers)} answers, and {request} is one more"
            )
        return self.answers[number]


class Asked(Protocol):
    """A request as a scripted server receives it."""

    @property
    def model_id(self) -> str:
        """The id of the requested model."""
        ...

    @property
    def text(self) -> str:
        """The text of the last user message."""
        ...


def by_model(answers: Mapping[str, Sequence[Answer]]) -> Choice[ModelRequest | Asked]:
    """Choose by the id of the model; each model has its own script."""
    return _by(model_of, answers)


def by_text(answers: Mapping[str, Sequence[Answer]]) -> Choice[ModelRequest | Asked]:
    """Choose by the text of the last user message; all steps of a turn share a script."""
    return _by(text_of, answers)


def model_of(request: ModelRequest | Asked) -> str:
    """Return the id of the requested model."""
    return request.model.id if isinstance(request, ModelRequest) else request.model_id


def text_of(request: ModelRequest | Asked) -> str:
    """Return the text of the last user message."""
    if not isinstance(request, ModelRequest):
        return request.text
    spoken = [message for message in request.messages if message.role is Role.USER]
    parts = spoken[-1].parts if spoken else ()
    return "".join(part.text for part in parts if isinstance(part, TextPart))


def _by(key: Callable[[R], str], answers: Mapping[str, Sequence[Answer]]) -> Choice[R]:
    scripts = {name: InOrder(script) for name, script in answers.items()}

    def choose(request: R) -> Answer:
        name = key(request)
        if name not in scripts:
            raise ScriptOver(f"the script has no answer to {name!r}")
        return scripts[name](request)

    return choose


def choice_of(script: Iterable[Answer] | Choice[R]) -> Choice[R]:
    """Return a script as a function; a list returns its answers in order."""
    return script if callable(script) else InOrder(tuple(script))
