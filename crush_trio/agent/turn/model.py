"""`ChosenModel`: the model of a run, chosen from the configuration; and its usage, cost and context size.

The model is chosen when a run begins. A queued prompt runs on the model that was selected meanwhile (L29,
L40).

A session has gauges (tokens in the context now) and totals (tokens and cost spent so far, L44). A call sets
the gauges and adds to the totals, in one change and column by column, so that a title made at the same
time neither loses nor overwrites anything (D26, D27).
"""

from collections.abc import Iterable, Mapping
from typing import Protocol

from attrs import define, field, frozen

from crush_trio.config.live import Configuration
from crush_trio.config.models import DEMO_CONFIG, call_limits
from crush_trio.providers.base import Endpoint, ModelRequest, PromptMessage, Provider, Usage
from crush_trio.providers.demo.provider import DemoProvider
from crush_trio.providers.registry import ANTHROPIC, Providers, takes_media_results
from crush_trio.store.changes import UsageAdded
from crush_trio.wire.config import CatalogModel, ProviderConfig, SelectedModel
from crush_trio.wire.ids import SessionId
from crush_trio.wire.messages import (
    BinaryPart,
    Message,
    Part,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from crush_trio.wire.requests import ModelType


@frozen(kw_only=True)
class ChosenModel:
    """A model and its provider, ready to be called.

    `flat_rate` providers cost nothing per token. `media_results` says whether tool results may
    contain images; if not, images follow in a user message (D23b).
    """

    provider: Provider = field(repr=False)
    model: CatalogModel
    selected: SelectedModel
    flat_rate: bool = False
    media_results: bool = False
    system_prompt_prefix: str = ""
    limits: Mapping[str, float] = field(factory=dict)
    """The time limits of `providers.<id>.limits`, in seconds."""

    @property
    def provider_id(self) -> str:
        """The provider's name in the configuration."""
        return self.selected.provider

    @property
    def max_tokens(self) -> int:
        """The token limit of one answer: selected, or from the catalogue; 0 for none."""
        return self.selected.max_tokens or self.model.default_max_tokens


class ModelSource(Protocol):
    """Chooses models: from the configuration, or in a test."""

    async def choose(self, slot: ModelType, instead: SelectedModel | None = None) -> ChosenModel:
        """Return the currently configured model of *slot*, or the one given as *instead*.

        Raises a `CrushError` if there is none.
        """
        ...


@define(eq=False)
class ConfiguredModels:
    """The models of a workspace's configuration. Keys are resolved each time, so renewed ones apply."""

    live: Configuration
    providers: Providers = field(repr=False)
    own: Mapping[str, Provider] = field(factory=dict, repr=False)
    """Providers of the embedding program, by their id in the configuration."""
    demo: Provider = field(factory=DemoProvider, repr=False)

    async def choose(self, slot: ModelType, instead: SelectedModel | None = None) -> ChosenModel:
        """Return the model of *slot*, or *instead*, with its provider."""
        config = self.live.current
        chosen = config.slot(slot) if instead is None else config.named_model(instead)
        resolved = await config.resolve_provider(chosen.selected.provider)
        provider = resolved.config
        return ChosenModel(
            provider=self._provider(provider),
            model=chosen.model,
            selected=chosen.selected,
            flat_rate=provider.flat_rate,
            media_results=takes_media_results(provider.type),
            system_prompt_prefix=provider.system_prompt_prefix,
            limits=call_limits(provider),
        )

    def _provider(self, config: ProviderConfig) -> Provider:
        if config.id in self.own:
            return self.own[config.id]
        if config == DEMO_CONFIG:
            return self.demo
        connect = call_limits(config).get("connect")
        given = {} if connect is None else {"connect_limit": connect}
        return self.providers.provider(
            Endpoint(
                **given,
                provider=config.id,
                type=config.type,
                base_url=config.base_url,
                api_key=_key(config),
                extra_headers=config.extra_headers,
                extra_body=config.extra_body,
                options=config.provider_options,
            )
        )


def _key(config: ProviderConfig) -> str:
    """Return the API key, or the OAuth token if there is one."""
    if config.oauth is None:
        return config.api_key
    token = config.oauth.access_token
    return f"Bearer {token}" if config.type == ANTHROPIC else token


_LARGE_WINDOW = 200_000
_LARGE_RESERVE = 20_000
_SMALL_RESERVE = 0.2


def cost_of(usage: Usage, chosen: ChosenModel) -> float:
    """Return the cost of one call in dollars; the provider's own figure has precedence (D27).

    The catalogue's cached prices are for writing (`in`) and for reading (`out`) the cache.
    """
    if chosen.flat_rate:
        return 0.0
    if usage.cost is not None:
        return usage.cost
    model = chosen.model
    per_million = (
        usage.input_tokens * model.cost_per_1m_in
        + usage.output_tokens * model.cost_per_1m_out
        + usage.cache_write_tokens * model.cost_per_1m_in_cached
        + usage.cache_read_tokens * model.cost_per_1m_out_cached
    )
    return per_million / 1_000_000


def step_usage(
    session_id: SessionId,
    usage: Usage,
    chosen: ChosenModel,
    request: ModelRequest,
    answer: Message,
    at: int,
) -> UsageAdded:
    """Return the usage that a step adds to its session.

    If the provider reports nothing, the gauges are estimated and the totals stay unchanged (D27a).
    If it reports only one figure, the gauge of the other stays unchanged.
    """
    if not usage.reported:
        return UsageAdded(
            id=session_id,
            at=at,
            prompt_tokens=estimate_request_tokens(request),
            completion_tokens=estimate_tokens(answer.parts),
        )
    read = usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens
    return UsageAdded(
        id=session_id,
        at=at,
        prompt_tokens=read or None,
        completion_tokens=usage.output_tokens or None,
        spent_prompt_tokens=read,
        spent_completion_tokens=usage.output_tokens,
        cost=cost_of(usage, chosen),
    )


def side_usage(session_id: SessionId, usage: Usage, chosen: ChosenModel, at: int) -> UsageAdded:
    """Return the usage of a call outside the conversation: totals only, no gauges (L44)."""
    return UsageAdded(
        id=session_id,
        at=at,
        spent_prompt_tokens=usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens,
        spent_completion_tokens=usage.output_tokens,
        cost=cost_of(usage, chosen),
    )


def nearly_full(window: int, prompt_tokens: int, completion_tokens: int) -> bool:
    """Whether a context is so full that the session should be summarised (D29)."""
    if window <= 0:
        return False
    remaining = window - (prompt_tokens + completion_tokens)
    reserve = _LARGE_RESERVE if window > _LARGE_WINDOW else window * _SMALL_RESERVE
    return remaining <= reserve


# ── Estimates ───────────────────────────────────────────────────────────────────────────────────


def estimate_request_tokens(request: ModelRequest) -> int:
    """Return the estimated tokens of a request."""
    said = sum(_tokens(text) for text in request.system)
    return said + sum(_message_tokens(message) for message in request.messages)


def _message_tokens(message: PromptMessage) -> int:
    return _tokens(message.role) + estimate_tokens(message.parts)


def estimate_tokens(parts: Iterable[Part]) -> int:
    """Return the estimated tokens of parts: a quarter of their bytes, rounded up for each text."""
    return sum(_tokens(text) for part in parts for text in _texts(part))


def _texts(part: Part) -> tuple[str, ...]:
    match part:
        case TextPart(text=text):
            return (text,)
        case ReasoningPart(thinking=thinking):
            return (thinking,)
        case ToolCallPart(name=name, input=arguments):
            return (name, arguments)
        case ToolResultPart(content=content, mime_type=mime_type):
            return (content, mime_type)
        case BinaryPart(path=path, mime_type=mime_type):
            return (path, mime_type)
        case _:
            return ()


def _tokens(text: str) -> int:
    return -(-len(text.encode("utf-8", errors="replace")) // 4)
