"""The offline demo model: needs no key, and gives the same answers every time.

It understands the requests of `grammar.py` and nothing else. A new user can see a stream, a cancel, a
permission, a tool and its result without an account. It satisfies the same seam as every other provider,
and only calls tools that the request offers.

`reply` makes the answer and is plain data; the provider adds the pauses.
"""

import hashlib
import re
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import cycle, islice, takewhile
from typing import Final

import trio
from attrs import define, frozen

from crush_trio.providers.base import (
    Finished,
    ModelRequest,
    Parts,
    PromptMessage,
    ReasoningDelta,
    ReasoningEnd,
    StreamPart,
    TextDelta,
    ToolCallBegin,
    ToolCallDelta,
    ToolCallEnd,
)
from crush_trio.providers.demo.grammar import Wish, read_length, read_thought, read_wishes
from crush_trio.wire.codec import encode_part
from crush_trio.wire.ids import ToolCallId
from crush_trio.wire.messages import (
    BinaryPart,
    FinishReason,
    Role,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)

INTRODUCTION: Final = """\
I am the offline demo of crush_trio. No model is behind me, and nothing leaves this machine unless you \
ask me to fetch something. Everything else here is real: this run was stored before it was accepted, \
every word reaches all clients of the workspace, and any of them may cancel me while I speak.

To talk to a model, set a key in the environment of the server, such as `ANTHROPIC_API_KEY`, \
`OPENAI_API_KEY`, `OPENROUTER_API_KEY` or `GEMINI_API_KEY`, or describe a provider under `providers` in \
`crush.json`, a local server included. Then choose one of its models.
"""

_TRIALS: Final = (
    ("ls", "`list files`"),
    ("view", "`view README.md`"),
    ("grep", "`search for TODO`"),
    ("bash", "`` run `touch hello.txt` ``, which asks for permission"),
    ("write", "`write hello to hello.txt`"),
    ("edit", "`replace hello with goodbye in hello.txt`"),
    ("todos", "`remember tea, biscuits`"),
    ("question", "`ask me How are you?`"),
)
_ALWAYS: Final = (
    "`think about lunch` to see reasoning",
    "`long 500` to have something to cancel",
    "`tool NAME {JSON}` to call any tool with arguments of your own",
)

_PROSE: Final = """\
A task that nobody waits for is a task that nobody can stop. So every task here has a parent, and no \
parent leaves before its children have. A cancel goes down that tree like water: it reaches every branch, \
and where it has passed nothing runs any more. What was said until then is kept. Whoever asks later finds \
one ending, not two and not none. """

TITLE_TOKENS: Final = 64
"""A request without tools and with no more room than this is for a title, if it says so."""

TITLE_WIDTH: Final = 50
SHOWN_LINES: Final = 8
SHOWN_WIDTH: Final = 160
_PIECE: Final = 24
"""Characters of a call's arguments that come at once."""


# ── The provider ────────────────────────────────────────────────────────────────────────────────


@frozen
class DemoProvider:
    """A `Provider` that answers by itself, with *pace* seconds between two pieces."""

    pace: float = 0.02

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[Parts]:
        """Answer *request*; no tokens are counted."""
        await trio.lowlevel.checkpoint()
        yield _Speaking(deque(reply(request)), self.pace)


@define(eq=False)
class _Speaking:
    """An answer, piece by piece; the first one comes at once."""

    parts: deque[StreamPart]
    pace: float
    _first: bool = True

    def __aiter__(self) -> AsyncIterator[StreamPart]:
        return self

    async def __anext__(self) -> StreamPart:
        await trio.sleep(0 if self._first else self.pace)
        self._first = False
        if not self.parts:
            raise StopAsyncIteration
        return self.parts.popleft()


# ── What it says ────────────────────────────────────────────────────────────────────────────────


def reply(request: ModelRequest) -> Iterator[StreamPart]:
    """Yield the whole answer to *request*, `Finished` included."""
    if not request.tools and _mentions(request, "title") and 0 < request.max_tokens <= TITLE_TOKENS:
        yield from _spoken(request, _title(request))
    elif not request.tools and _mentions(request, "summary"):
        yield from _spoken(request, _summary(request))
    else:
        yield from _turn(request)


def _turn(request: ModelRequest) -> Iterator[StreamPart]:
    """Yield text about the tool results, then the answer to what was asked since."""
    news = _since_last_answer(request.messages)
    results = [part for m in news for part in m.parts if isinstance(part, ToolResultPart)]
    prompts = [text for message in news if (text := _prompt(message, after_tools=bool(results)))]
    said = "".join(map(_told, results))
    if results and not prompts:
        yield from _spoken(request, f"{said}A model would go on from here; a demo stops.")
        return
    last = prompts[-1] if prompts else ""
    offered = {tool.name: tool for tool in request.tools}
    wishes = read_wishes(last, offered)
    if wishes and all(wish.tool in offered for wish in wishes):
        yield from _words(said)
        yield from _calls(wishes, request)
    elif wishes:
        yield from _spoken(request, said + _not_offered(wishes, request))
    elif (subject := read_thought(last)) is not None:
        yield from _words_of_thought(subject)
        yield from _spoken(request, f"{said}I have thought about {subject}. Nothing came of it.")
    elif length := read_length(last):
        yield from _spoken(request, said + _prose(length))
    else:
        yield from _spoken(request, said + _introduction(request, prompts))


def _spoken(request: ModelRequest, text: str) -> Iterator[StreamPart]:
    """Yield *text* and the end of the answer; a word counts as a token of the limit."""
    words = list(_words(text))
    limit = request.max_tokens or len(words)
    yield from words[:limit]
    cut_off = len(words) > limit
    yield Finished(reason=FinishReason.MAX_TOKENS if cut_off else FinishReason.END_TURN)


def _words(text: str) -> Iterator[StreamPart]:
    return (TextDelta(word) for word in re.findall(r"\s*\S+", text))


def _words_of_thought(subject: str) -> Iterator[StreamPart]:
    text = (
        f"I am asked to think about {subject}. I turn it over, and over again. It stays what it is."
    )
    for word in text.split(" "):
        yield ReasoningDelta(f"{word} ")
    yield ReasoningEnd()


def _prose(length: int) -> str:
    return " ".join(islice(cycle(_PROSE.split()), length))


def _introduction(request: ModelRequest, prompts: Sequence[str]) -> str:
    offered = {tool.name for tool in request.tools}
    trials = [*(text for tool, text in _TRIALS if tool in offered), *_ALWAYS]
    tries = "\n".join(f"* {trial}" for trial in trials)
    asked = " And then: ".join(f"“{prompt}”" for prompt in prompts)
    echo = f"\n\nYou asked: {asked}" if asked else ""
    return f"{INTRODUCTION}\nUntil then, try one of these:\n\n{tries}{echo}"


# ── Tools ───────────────────────────────────────────────────────────────────────────────────────


def _calls(wishes: Iterable[Wish], request: ModelRequest) -> Iterator[StreamPart]:
    """Yield tool calls, with ids that are unique in the session."""
    digest = hashlib.sha256(request.affinity.encode())
    for message in request.messages:
        for part in message.parts:
            digest.update(encode_part(part))
    for number, wish in enumerate(wishes, 1):
        call = ToolCallId(f"demo_{digest.hexdigest()[:12]}_{number}")
        yield ToolCallBegin(call, wish.tool)
        for start in range(0, len(wish.arguments), _PIECE):
            yield ToolCallDelta(call, wish.arguments[start : start + _PIECE])
        yield ToolCallEnd(call, wish.tool, wish.arguments)
    yield Finished(reason=FinishReason.TOOL_USE)


def _not_offered(wishes: Iterable[Wish], request: ModelRequest) -> str:
    names = [tool.name for tool in request.tools]
    missing = ", ".join(f"`{wish.tool}`" for wish in wishes if wish.tool not in names)
    there = ", ".join(f"`{name}`" for name in names) or "none"
    return f"There is no {missing} in this run. The tools I am offered: {there}."


def _told(result: ToolResultPart) -> str:
    """Return the length and the beginning of a tool's answer."""
    lines = result.content.splitlines()
    verb = "reports an error" if result.is_error else "has answered"
    amount = "1 line" if len(lines) == 1 else f"{len(lines)} lines"
    quote = "".join(f"    {line[:SHOWN_WIDTH]}\n" for line in lines[:SHOWN_LINES])
    more = "    …\n" if len(lines) > SHOWN_LINES else ""
    return f"The tool `{result.name}` {verb}, {amount}:\n\n{quote}{more}\n"


# ── What it is told ─────────────────────────────────────────────────────────────────────────────


def _since_last_answer(messages: Sequence[PromptMessage]) -> list[PromptMessage]:
    backwards = takewhile(lambda message: message.role is not Role.ASSISTANT, reversed(messages))
    return list(backwards)[::-1]


def _prompt(message: PromptMessage, *, after_tools: bool = False) -> str:
    """Return the text that the user wrote, without reminders in tags and without files."""
    if message.role is not Role.USER:
        return ""
    if after_tools and any(isinstance(part, BinaryPart) for part in message.parts):
        return ""
    text = "".join(part.text for part in message.parts if isinstance(part, TextPart)).strip()
    if text.startswith("<") and text.endswith(">"):
        return ""
    return text.partition("\n\n<file ")[0]


def _mentions(request: ModelRequest, word: str) -> bool:
    return any(word in text.lower() for text in request.system)


def _title(request: ModelRequest) -> str:
    """Return the first words of the prompt."""
    prompts = [text for message in request.messages if (text := _prompt(message))]
    title = ""
    for word in prompts[-1].split() if prompts else ():
        if len(title) + len(word) >= TITLE_WIDTH:
            break
        title = f"{title} {word}".strip()
    return title or "Offline demo"


def _summary(request: ModelRequest) -> str:
    """Return a summary that only counts: a demo does not understand."""
    prompts = [text for message in request.messages if (text := _prompt(message))]
    calls = [p.name for m in request.messages for p in m.parts if isinstance(p, ToolCallPart)]
    asked = "\n".join(f"* {prompt}" for prompt in prompts)
    used = ", ".join(dict.fromkeys(calls)) or "none"
    return f"The user said:\n\n{asked}\n\nTools that were called, {len(calls)} times: {used}."
