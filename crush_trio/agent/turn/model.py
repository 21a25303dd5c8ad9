"""The model of a run: which one, on whose account, and how to reach it.

Chosen anew when a run begins, from the configuration as it is then. A prompt that waited in a queue
runs on what was selected meanwhile (L29, L40).

What a model call used and cost, and how full that leaves the context.

A session has gauges (how much the context holds now) and totals (what was spent in all, L44). A call
sets the former and adds to the latter, in one change and column by column, so that a title that is
made at the same time loses nothing and overwrites nothing (D26, D27).

The models that a workspace's configuration names, made reachable.
"""

from collections.abc import Iterable, Mapping
from typing import Protocol

from attrs import define, field, frozen

from crush_trio.config.live import Configuration
from crush_trio.config.models import DEMO_CONFIG
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
    """A model that can be asked.

    `flat_rate` providers cost nothing per token. `media_results` says whether pictures may stand
    in the results of tools; elsewhere they have to follow in a message of the user's (D23b).
    """

    provider: Provider = field(repr=False)
    model: CatalogModel
    selected: SelectedModel
    flat_rate: bool = False
    media_results: bool = False
    system_prompt_prefix: str = ""

    @property
    def provider_id(self) -> str:
        """The provider's name in the configuration."""
        return self.selected.provider

    @property
    def max_tokens(self) -> int:
        """The limit of one answer: what was selected, or what the catalogue has; 0 for none."""
        return self.selected.max_tokens or self.model.default_max_tokens


class ModelSource(Protocol):
    """Where models come from: the configuration, or a test."""

    async def choose(self, slot: ModelType, instead: SelectedModel | None = None) -> ChosenModel:
        """Return the model of *slot* as it is configured now, or the one that is wanted *instead*.

        Raises a `CrushError` if there is none.
        """
        ...


_LARGE_WINDOW = 200_000
_LARGE_RESERVE = 20_000
_SMALL_RESERVE = 0.2


def cost_of(usage: Usage, chosen: ChosenModel) -> float:
    """Return the dollars of one call; what the provider itself reports wins (D27).

    The catalogue's cached prices are those of writing (`in`) and of reading (`out`) a cache.
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
    """Return what a step adds to its session.

    A provider that says nothing is estimated, for the gauges only: an estimate costs nothing
    (D27a). Of a partial report the missing half leaves its gauge alone.
    """
    if not usage.reported:
        return UsageAdded(
            id=session_id,
            at=at,
            prompt_tokens=estimate_request(request),
            completion_tokens=estimate(answer.parts),
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
    """Return what a call beside the conversation adds: to the totals, not to the gauges (L44)."""
    return UsageAdded(
        id=session_id,
        at=at,
        spent_prompt_tokens=usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens,
        spent_completion_tokens=usage.output_tokens,
        cost=cost_of(usage, chosen),
    )


def nearly_full(model: CatalogModel, prompt_tokens: int, completion_tokens: int) -> bool:
    """Whether a context has so little room left that it should be summarised (D29)."""
    window = model.context_window
    if window <= 0:
        return False
    remaining = window - (prompt_tokens + completion_tokens)
    reserve = _LARGE_RESERVE if window > _LARGE_WINDOW else window * _SMALL_RESERVE
    return remaining <= reserve


# ── Estimates ───────────────────────────────────────────────────────────────────────────────────


def estimate_request(request: ModelRequest) -> int:
    """Return about how many tokens a request is."""
    said = sum(_tokens(text) for text in request.system)
    return said + sum(_message_tokens(message) for message in request.messages)


def _message_tokens(message: PromptMessage) -> int:
    return _tokens(message.role) + estimate(message.parts)


def estimate(parts: Iterable[Part]) -> int:
    """Return about how many tokens some parts are: a quarter of their bytes, piece by piece."""
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


@define(eq=False)
class ConfiguredModels:
    """Satisfies `ModelSource`. Keys are resolved each time: one that was renewed is used at once."""

    live: Configuration
    providers: Providers = field(repr=False)
    own: Mapping[str, Provider] = field(factory=dict, repr=False)
    """What the program brought along, by the id that the configuration gives it."""
    demo: Provider = field(factory=DemoProvider, repr=False)

    async def choose(self, slot: ModelType, instead: SelectedModel | None = None) -> ChosenModel:
        """Return the model of *slot*, or the one *instead*, with a provider that can be asked."""
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
        )

    def _provider(self, config: ProviderConfig) -> Provider:
        if config.id in self.own:
            return self.own[config.id]
        if config == DEMO_CONFIG:
            return self.demo
        return self.providers.provider(
            Endpoint(
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
    """Return what proves who we are: a key, or a token that somebody has signed in for."""
    if config.oauth is None:
        return config.api_key
    token = config.oauth.access_token
    return f"Bearer {token}" if config.type == ANTHROPIC else token
