"""The models that a workspace's configuration names, made reachable."""

from collections.abc import Mapping

from attrs import define, field

from crush_trio.agent.models import ChosenModel
from crush_trio.config.demo import DEMO_CONFIG
from crush_trio.config.live import Configuration
from crush_trio.providers.base import Endpoint, Provider
from crush_trio.providers.demo import DemoProvider
from crush_trio.providers.families import ANTHROPIC, Providers, takes_media_results
from crush_trio.wire.catalog import SelectedModel
from crush_trio.wire.config import ProviderConfig
from crush_trio.wire.requests import ModelType


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
