"""The seam between an agent and a model: a request goes in, a stream of parts comes out.

A provider knows one wire format and nothing of sessions, runs, deadlines or retries. Those are the
caller's: it opens a stream with `async with`, reads parts until one is `Finished`, and leaves. That
closes the connection, whatever the reason for leaving; a cancel in the middle does too, at once.

What goes back to a provider together with a thought.

Some providers want to see again what their models thought, in exactly the form in which it came. A
stored thought has its text and one more string for that, its signature, of one of three kinds:

* the provider's own, which is passed on as it is (Anthropic);
* a JSON array of everything that has to go back, text and signatures included: OpenRouter's details,
  and Anthropic's blocks when there is more than one;
* `ECHO`: the text itself goes back, under the name it came under (DeepSeek and its relatives).

A conversation may change its provider. What one of them signed means nothing to another, so everyone
takes what is his and leaves the rest.
"""

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Protocol, TypeAlias

import orjson
from attrs import field, frozen

from crush_trio.wire.config import CatalogModel, SelectedModel
from crush_trio.wire.fields import JsonObject
from crush_trio.wire.ids import ToolCallId
from crush_trio.wire.messages import FinishReason, Part, ReasoningPart, Role

# ── What is asked ───────────────────────────────────────────────────────────────────────────────


@frozen(kw_only=True)
class ToolSpec:
    """A tool as the model is told of it; `parameters` is a JSON Schema of an object."""

    name: str
    description: str = field(repr=False)
    parameters: JsonObject = field(repr=False)


@frozen(kw_only=True)
class PromptMessage:
    """One message of the conversation so far.

    User messages have text and binary parts, assistant messages reasoning, text and tool calls,
    tool messages exactly one result. Every call in here has a result after it, and no result is
    without its call: whoever builds a prompt sees to that.
    """

    role: Role
    parts: tuple[Part, ...] = field(repr=False)


@frozen(kw_only=True)
class ModelRequest:
    """Everything one model call depends on.

    `affinity` is a stable, meaningless name of the conversation: requests that share it may be
    routed to the same machine. `cache` allows prompt-cache markers where a provider has them.
    """

    model: CatalogModel
    chosen: SelectedModel
    system: tuple[str, ...] = field(default=(), repr=False)
    messages: tuple[PromptMessage, ...] = field(default=(), repr=False)
    tools: tuple[ToolSpec, ...] = field(default=(), repr=False)
    max_tokens: int = 0
    """The limit of the answer; 0 leaves it to the provider."""
    affinity: str = ""
    cache: bool = True


# ── What comes back ─────────────────────────────────────────────────────────────────────────────


@frozen
class TextDelta:
    """More of the answer."""

    text: str


@frozen
class ReasoningDelta:
    """More of what the model thinks before it answers."""

    text: str


@frozen
class ReasoningEnd:
    """The thinking is over. The provider wants *signature* back with it, if there is one.

    It stands for all the thinking so far. A model that thinks again later ends that with another
    signature, which takes the place of this one.
    """

    signature: str = ""


@frozen
class ToolCallBegin:
    """The model begins to ask for a tool; its arguments are still being written."""

    id: ToolCallId
    name: str


@frozen
class ToolCallDelta:
    """More of the arguments of a call that has begun: JSON text, cut anywhere."""

    id: ToolCallId
    text: str


@frozen
class ToolCallEnd:
    """A call is complete; `input` is all of its arguments, as the model wrote them."""

    id: ToolCallId
    name: str
    input: str


@frozen(kw_only=True)
class Usage:
    """What a call used, in tokens; all zero if the provider does not say.

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
        """Whether the provider said anything at all."""
        return bool(
            self.input_tokens
            or self.output_tokens
            or self.cache_read_tokens
            or self.cache_write_tokens
        )


@frozen(kw_only=True)
class Finished:
    """The stream is complete: why, and what it used. Always the last part, always there."""

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

Parts: TypeAlias = AsyncIterator[StreamPart]


class Provider(Protocol):
    """Streams a model's answers."""

    def stream(self, request: ModelRequest) -> AbstractAsyncContextManager[Parts]:
        """Open one answer. Entering sends the request; leaving closes the connection.

        Raises a `ProviderError`, on entering or from the iterator, for everything that can go
        wrong between here and the model. A stream that ends without `Finished` is such an error.
        """
        ...


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


ECHO: Final = "reasoning_content"
"""The field that a thought came in, and the signature of one that goes back in it."""


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
    """Return what the model thought before it wrote *message*."""
    return next((part for part in message.parts if isinstance(part, ReasoningPart)), None)
