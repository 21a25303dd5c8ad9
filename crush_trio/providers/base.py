"""The provider seam: a request goes in, a stream of parts comes out; and reasoning signatures.

A provider knows one wire format and nothing of sessions, runs, deadlines or retries. Those are the
caller's: it opens a stream with `async with`, reads parts until one is `Finished`, and leaves. That
closes the connection, whatever the reason for leaving; a cancel in the middle does so at once.

Some providers want a model's reasoning back in exactly the form in which it came. A reasoning part has its
text and one more string for that, its signature, of one of three kinds (the last two are stored as `replay`):

* the provider's own, which is passed on unchanged (Anthropic);
* a JSON array of everything that has to go back, text and signatures included: OpenRouter's details,
  and Anthropic's blocks when there is more than one;
* `ECHO`: the text itself goes back, in the field it came in (DeepSeek and compatible servers).

A conversation may change its provider. A signature means nothing to another provider, so each provider
sends the kinds it knows and omits the others.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Protocol, TypeAlias

import orjson
from attrs import field, frozen

from crush_trio.wire.config import CatalogModel, SelectedModel
from crush_trio.wire.fields import Json, JsonObject
from crush_trio.wire.ids import ToolCallId
from crush_trio.wire.messages import FinishReason, Part, ReasoningPart, Role


def _ignore() -> None:
    """Ignore a sign of life."""


# ── Requests ───────────────────────────────────────────────────────────────────────────────


@frozen(kw_only=True)
class ToolSpec:
    """A tool as it is described to the model; `parameters` is a JSON Schema of an object."""

    name: str
    description: str = field(repr=False)
    parameters: JsonObject = field(repr=False)


@frozen(kw_only=True)
class PromptMessage:
    """One message of the conversation so far.

    User messages have text and binary parts, assistant messages reasoning, text and tool calls,
    tool messages exactly one result. Every call in here has a result after it, and no result is
    without its call: the code that builds a prompt ensures that.
    """

    role: Role
    parts: tuple[Part, ...] = field(repr=False)


@frozen(kw_only=True)
class ModelRequest:
    """Everything that one model call depends on.

    `affinity` is a stable, random name of the conversation: requests that share it may be
    routed to the same machine. `cache` allows prompt-cache markers where a provider has them.
    """

    model: CatalogModel
    chosen: SelectedModel
    system: tuple[str, ...] = field(default=(), repr=False)
    messages: tuple[PromptMessage, ...] = field(default=(), repr=False)
    tools: tuple[ToolSpec, ...] = field(default=(), repr=False)
    max_tokens: int = 0
    """The limit of the answer in tokens; 0 leaves it to the provider."""
    affinity: str = ""
    cache: bool = True
    heard: Callable[[], None] = field(default=_ignore, eq=False, repr=False)
    """Called when bytes of the answer come, also if there is no part in them."""


# ── Answers ─────────────────────────────────────────────────────────────────────────────


@frozen
class TextDelta:
    """More text of the answer."""

    text: str


@frozen
class ReasoningDelta:
    """More of the model's reasoning."""

    text: str


@frozen
class ReasoningEnd:
    """The end of the reasoning. The provider wants *signature* back with it, if there is one.

    It covers all the reasoning so far. A model that reasons again later ends that with another
    signature, which replaces this one.
    """

    signature: str = ""


@frozen
class ToolCallBegin:
    """The beginning of a tool call; its arguments follow."""

    id: ToolCallId
    name: str


@frozen
class ToolCallDelta:
    """More of a call's arguments: JSON text, cut anywhere."""

    id: ToolCallId
    text: str


@frozen
class ToolCallEnd:
    """The end of a tool call; `input` is all of its arguments, as the model wrote them."""

    id: ToolCallId
    name: str
    input: str


@frozen(kw_only=True)
class Usage:
    """The tokens that a call used; all zero if the provider does not report them.

    `input_tokens` does not include what was read from or written to a cache. `cost` is in dollars,
    and only where the provider itself reports it.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cost: float | None = None

    @property
    def reported(self) -> bool:
        """Whether the provider reported any number."""
        return bool(
            self.input_tokens
            or self.output_tokens
            or self.cache_read_tokens
            or self.cache_write_tokens
        )


CALLS_MOST: Final = 1000
"""Tool calls that one answer may have."""

TOKENS_MOST: Final = 10**12
"""The largest number of tokens that a provider is believed; a store can add many of them."""

COST_MOST: Final = 1e9
"""The largest cost of one call, in dollars, that a provider is believed."""


def token_count(said: Json) -> int:
    """Return a number of tokens as a provider reports it; 0 for everything that cannot be one."""
    return int(said) if isinstance(said, int) and 0 <= said <= TOKENS_MOST else 0


@frozen(kw_only=True)
class Finished:
    """The end of the answer: its reason and the tokens used. The last part of every complete stream."""

    reason: FinishReason
    usage: Usage = Usage()


StreamPart: TypeAlias = (
    TextDelta
    | ReasoningDelta
    | ReasoningEnd
    | ToolCallBegin
    | ToolCallDelta
    | ToolCallEnd
    | Finished
)
"""One piece of a model's answer, in the order in which it came."""

_FIELDS: Final[Mapping[type[Any], Mapping[str, type]]] = {
    TextDelta: {"text": str},
    ReasoningDelta: {"text": str},
    ReasoningEnd: {"signature": str},
    ToolCallBegin: {"id": str, "name": str},
    ToolCallDelta: {"id": str, "text": str},
    ToolCallEnd: {"id": str, "name": str, "input": str},
    Finished: {"reason": FinishReason, "usage": Usage},
}


def check_part(part: object) -> None:
    """Raise a `TypeError` for what is no part, or has a field of another type than it says.

    A text of bytes, for instance, could not be stored, and then the ending of its run could not be either.
    """
    fields = next((each for kind, each in _FIELDS.items() if isinstance(part, kind)), None)
    if fields is None:
        raise TypeError(
            f"the provider gave a {type(part).__name__} as a part: write `yield TextDelta(…)` for text"
        )
    for name, kind in fields.items():
        value = getattr(part, name)
        if not isinstance(value, kind):
            raise TypeError(
                f"the provider gave a {type(part).__name__} whose {name} is a {type(value).__name__}, "
                f"not a {kind.__name__}"
            )


Parts: TypeAlias = AsyncIterator[StreamPart]
"""The parts of one answer, in order; the last one is `Finished`."""


class Provider(Protocol):
    """Streams a model's answers."""

    def stream(self, request: ModelRequest) -> AbstractAsyncContextManager[Parts]:
        """Open one answer. Entering sends the request; leaving closes the connection.

        Raises a `ProviderError`, on entering or from the iterator, for everything that can go
        wrong between here and the model. A stream that ends without `Finished` is such an error.
        """
        ...


def open_answer(provider: Provider, request: ModelRequest) -> AbstractAsyncContextManager[Parts]:
    """Call `stream`; raise a `TypeError` if what it returns cannot be entered."""
    opened = provider.stream(request)
    if not hasattr(opened, "__aenter__") or not hasattr(opened, "__aexit__"):
        raise TypeError(
            f"stream of the provider returned a {type(opened).__name__}: write `@asynccontextmanager` above "
            "`async def stream(self, request)` and yield an async iterator of parts in it, once"
        )
    return opened


@frozen(kw_only=True)
class Endpoint:
    """How to reach a provider, all templates resolved. What may be secret stays out of `repr`."""

    provider: str
    type: str
    base_url: str = ""
    api_key: str = field(default="", repr=False)
    extra_headers: Mapping[str, str] = field(factory=dict, repr=False)
    extra_body: JsonObject = field(factory=dict, repr=False)
    options: JsonObject = field(factory=dict, repr=False)
    connect_limit: float = 30.0
    """Seconds that a connection to the provider may take."""


ECHO: Final = "reasoning_content"
"""The name of a field with reasoning, and the signature of reasoning that goes back in it."""


def pack(blocks: Iterable[JsonObject]) -> str:
    """Return the signature that holds *blocks*."""
    return orjson.dumps([dict(block) for block in blocks]).decode()


def unpack(signature: str, *types: str) -> list[dict[str, Any]]:
    """Return the blocks in *signature* whose type begins with one of *types*, if it holds any."""
    if not signature.startswith("["):
        return []
    try:
        blocks = orjson.loads(signature)
    except orjson.JSONDecodeError:
        return []
    return [b for b in blocks if isinstance(b, dict) and str(b.get("type")).startswith(types)]


def is_plain(signature: str) -> bool:
    """Whether *signature* is a provider's own."""
    return bool(signature) and signature != ECHO and not signature.startswith("[")


def reasoning_in(message: PromptMessage) -> ReasoningPart | None:
    """Return the reasoning in *message*, if there is any."""
    return next((part for part in message.parts if isinstance(part, ReasoningPart)), None)
