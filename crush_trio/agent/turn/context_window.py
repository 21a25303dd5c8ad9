"""Keeps model requests within the context window: the size of a request, and shorter versions of it.

Sizes are estimates, because only the provider can count its tokens. A model whose window is not known gets
one from the provider's own error, the first time that a conversation is too long for it.

A shorter request keeps what the model needs most: the last prompt and the newest steps. Long texts in older
messages are cut first, then the oldest messages are left out. A tool call and its results stay together.
Nothing changes in the store.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import orjson
from attrs import define, evolve, field

from crush_trio.agent.turn.model import ChosenModel, estimate_request_tokens, estimate_tokens
from crush_trio.providers.base import ModelRequest, PromptMessage, Usage
from crush_trio.providers.errors import ProviderContextFull
from crush_trio.store.changes import UsageAdded
from crush_trio.wire.messages import Part, Role, TextPart, ToolResultPart

LEFT_OUT: Final = (
    "[Earlier messages are left out: the conversation is longer than the model can read.]"
)
CUT: Final = "\n[… {count} characters left out …]\n"

LONG: Final = 4000
"""Characters above which a text of an older message is cut."""

_KEPT: Final = 1500
_USABLE: Final = 0.75
"""The part of a window that a request may fill; estimates are often too low."""

_BYTES_PER_TOKEN: Final = 4
_GROWN: Final = 1.25


@define(eq=False)
class Windows:
    """The context windows of models: those of the catalogue, and those learned from errors."""

    _learned: dict[tuple[str, str], int] = field(factory=dict, init=False)

    def of(self, model: ChosenModel) -> int:
        """Return the tokens of a model's window; 0 if that is not known."""
        listed, learned = max(0, model.model.context_window), self._learned.get(_key(model), 0)
        return min(listed, learned) if listed and learned else listed or learned

    def learn(self, model: ChosenModel, request: ModelRequest, error: ProviderContextFull) -> None:
        """Record what *error* says about a model: its limit, or that *request* is beyond it."""
        self._learned[_key(model)] = error.window or size_of(request)

    def read(self, model: ChosenModel, usage: Usage) -> None:
        """Forget what was learned if the model has read more: the error named a wrong number."""
        tokens = usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens
        if tokens > self._learned.get(_key(model), tokens):
            del self._learned[_key(model)]


@define(eq=False)
class Growth:
    """Whether another summary can help a turn whose steps fill the window.

    Instructions and tools alone can fill a small window. A summary after every step would be billed and
    change nothing, so the conversation must have grown since the last one.
    """

    _summarized: bool = field(default=False, init=False)
    _then: int = field(default=0, init=False)
    """The tokens of the first full step after the summary."""

    def worth_summary(self, used: UsageAdded) -> bool:
        """Record a step that nearly fills the window; return whether a summary should follow."""
        size = (used.prompt_tokens or 0) + (used.completion_tokens or 0)
        if self._summarized and not self._then:
            self._then = size
        if self._summarized and size <= self._then * _GROWN:
            return False
        self._summarized, self._then = True, 0
        return True


def _key(model: ChosenModel) -> tuple[str, str]:
    return model.provider_id, model.selected.model


def size_of(request: ModelRequest) -> int:
    """Return the estimated tokens of a request, with its tools."""
    tools = [[tool.name, tool.description, dict(tool.parameters)] for tool in request.tools]
    written = len(orjson.dumps(tools, default=str)) if tools else 0
    return estimate_request_tokens(request) + written // _BYTES_PER_TOKEN


def is_crowded(request: ModelRequest, window: int) -> bool:
    """Whether instructions and tools alone fill *window*; then a summary of the messages cannot help."""
    return size_of(evolve(request, messages=())) >= window


def with_room(request: ModelRequest, window: int, size: int | None = None) -> ModelRequest:
    """Return *request*, of this *size* if that is known, with a limit of its answer that fits beside it.

    Servers count the limit as if it were used, and refuse requests that then exceed the *window*.
    """
    size = size_of(request) if size is None else size
    if not window or size + request.max_tokens <= window:
        return request
    left = max(window // 4, int(window * _USABLE) - size)
    return evolve(request, max_tokens=min(request.max_tokens, left))


def fitted(request: ModelRequest, window: int) -> ModelRequest:
    """Return *request*, shortened if it would not fit into *window* tokens together with its answer.

    The answer may then have a quarter of the window.
    """
    if size_of(request) + request.max_tokens <= window * _USABLE:
        return request
    answer = min(request.max_tokens, window // 4)
    request = evolve(request, max_tokens=answer)
    beside = size_of(evolve(request, messages=()))
    room = max(int(window * _USABLE) - answer - beside, window // 8)
    if estimate_request_tokens(evolve(request, system=())) <= room:
        return request
    return evolve(request, messages=_latest(request.messages, room))


def _latest(messages: Sequence[PromptMessage], room: int) -> tuple[PromptMessage, ...]:
    """Return the last prompt and as many of the newest steps as fit into *room* tokens."""
    groups = list(_groups(messages))
    asked = max((n for n, [first, *_] in enumerate(groups) if first.role is Role.USER), default=0)
    last = len(groups) - 1
    kept = {number: _cut(groups[number], room // 3) for number in {asked, last}}
    left = room - sum(_tokens(group) for group in kept.values())
    for number in range(last, -1, -1):
        if number in kept:
            continue
        group = _cut(groups[number], LONG // _BYTES_PER_TOKEN)
        left -= _tokens(group)
        if left < 0:
            break
        kept[number] = group
    note = PromptMessage(role=Role.USER, parts=(TextPart(text=LEFT_OUT),))
    whole = len(kept) == len(groups)
    chosen = [message for number in sorted(kept) for message in kept[number]]
    return tuple(chosen if whole else [note, *chosen])


def _groups(messages: Sequence[PromptMessage]) -> Iterator[list[PromptMessage]]:
    """Yield the messages in groups that belong together: an answer with the results of its calls."""
    group: list[PromptMessage] = []
    for message in messages:
        if group and message.role is not Role.TOOL:
            yield group
            group = []
        group.append(message)
    if group:
        yield group


def _tokens(group: Iterable[PromptMessage]) -> int:
    return sum(estimate_tokens(message.parts) for message in group)


def _cut(group: Sequence[PromptMessage], tokens: int) -> list[PromptMessage]:
    """Return *group* with its long texts cut, if it has more than *tokens*."""
    if _tokens(group) <= tokens:
        return list(group)
    most = max(2 * _KEPT, tokens * _BYTES_PER_TOKEN // max(1, len(group)))
    return [evolve(m, parts=tuple(_cut_part(part, most) for part in m.parts)) for m in group]


def _cut_part(part: Part, most: int) -> Part:
    match part:
        case TextPart(text=text):
            return evolve(part, text=_cut_text(text, most))
        case ToolResultPart(content=content):
            return evolve(part, content=_cut_text(content, most))
        case _:
            return part


def _cut_text(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    start, end = most * 2 // 3, most // 3
    return text[:start] + CUT.format(count=len(text) - start - end) + text[-end:]
