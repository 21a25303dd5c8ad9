"""What has the right type and still cannot be meant: checked once, on everything merged.

A custom provider may be put together from several files, so nothing can be missing from a single one.
The error names the file that had the last word.
"""

import re
from collections.abc import Collection
from typing import Final

from crush_trio.config.errors import ConfigInvalid
from crush_trio.config.expander import Keys, key_text
from crush_trio.config.merge import Layers
from crush_trio.config.sources import Source
from crush_trio.wire.config import Config, HookConfig, ProviderConfig

LOCAL_TYPES: Final = frozenset({"litellm", "llamacpp", "lmstudio", "ollama", "omlx", "vllm"})
"""Servers that people run themselves; all of them speak `openai-compat`."""

PROVIDER_TYPES: Final = LOCAL_TYPES | {
    *("anthropic", "azure", "bedrock", "google", "google-vertex", "hyper"),
    *("openai", "openai-compat", "openrouter", "vercel"),
}
"""The types of providers that there are."""


def check_meaning(config: Config, layers: Layers[Source], known: Collection[str]) -> None:
    """Raise `ConfigInvalid` for the first provider or hook that cannot work.

    *known* are the providers of which everything but the key is known already.
    """
    for name, provider in config.providers.items():
        if problem := _provider_problem(provider, custom=name not in known):
            keys, expectation = problem
            raise _invalid(layers, ("providers", name, *keys), expectation)
    check_hooks(config, layers)


def check_hooks(config: Config, layers: Layers[Source]) -> None:
    """Raise `ConfigInvalid` for the first hook that cannot work (I11)."""
    for event, hooks in config.hooks.items():
        for index, hook in enumerate(hooks):
            if problem := _hook_problem(hook):
                keys, expectation = problem
                raise _invalid(layers, ("hooks", event, index, *keys), expectation)


def _provider_problem(provider: ProviderConfig, *, custom: bool) -> tuple[Keys, str] | None:
    if provider.type and provider.type not in PROVIDER_TYPES:
        return ("type",), f"expected one of {', '.join(sorted(PROVIDER_TYPES))}"
    for index, model in enumerate(provider.models):
        if not model.id:
            return ("models", index, "id"), "expected the id of the model, got nothing"
    if provider.disable or not custom:
        return None
    if not provider.base_url:
        return ("base_url",), "expected the address of a provider that is not built in, got nothing"
    if not provider.models and not provider.discover_models:
        return ("models",), "expected the models of a provider that is not built in, got none"
    return None


def _hook_problem(hook: HookConfig) -> tuple[Keys, str] | None:
    if not hook.command.strip():
        return ("command",), "expected a command, got nothing"
    try:
        re.compile(hook.matcher)
    except (re.error, OverflowError, RecursionError) as error:
        return ("matcher",), f"expected a regular expression: {error}"
    return None


def _invalid(layers: Layers[Source], keys: Keys, expectation: str) -> ConfigInvalid:
    """Name the file that said it, or if nobody did, the one that said the most of what is around."""
    ways = (keys[:length] for length in range(len(keys), 0, -1))
    source = next(filter(None, (layers.origin(*way) for way in ways)), None)
    return ConfigInvalid.at("" if source is None else source.path, key_text(keys), expectation)
