"""The usable providers of a workspace, and its two models, `large` and `small`.

Usable providers come from the files, the catalogue and the environment. Those that a file names
come first, in the order of the files; then those whose key is in the environment, in the order of
the catalogue: what the user wrote down counts more than a variable that happens to be set. The
first one provides the default model. Keys and addresses stay templates: no command is run here, and
no value is kept.

A selected model that is not available is replaced, with a warning: by the default of its provider,
or, if the provider does not exist, by the overall default; the small model by the large one. A built-in
provider may have models that the catalogue does not list: such a model is used, with a warning.
Without any usable provider the offline demo is used, which needs no key.
"""

from collections.abc import Mapping
from math import inf
from typing import Final, TypeAlias

from attrs import evolve, frozen

from crush_trio.config.errors import ConfigWarning, ConfigWarningKind
from crush_trio.config.expander import Expander, key_text
from crush_trio.config.known_providers import (
    COMPATIBLE,
    DEMO_PROVIDER,
    KnownProvider,
    known_providers,
    unsupported_key,
)
from crush_trio.wire.config import CatalogModel, Config, ProviderConfig, SelectedModel
from crush_trio.wire.fields import Json
from crush_trio.wire.requests import ModelType

DEMO_MODEL: Final = CatalogModel(
    id="demo", name="Offline demo", context_window=200_000, default_max_tokens=4096
)
DEMO_CONFIG: Final = ProviderConfig(
    id=DEMO_PROVIDER, name=DEMO_MODEL.name, type="openai-compat", models=(DEMO_MODEL,)
)
DEMO_CHOICE: Final = SelectedModel(model=DEMO_MODEL.id, provider=DEMO_PROVIDER)

_NOTHING: Final = SelectedModel()

Known: TypeAlias = Mapping[str, KnownProvider]


@frozen(kw_only=True)
class EnabledProvider:
    """A usable provider; its templates are not filled in."""

    config: ProviderConfig
    known: bool = False
    default_large: str = ""
    default_small: str = ""

    def model(self, model_id: str) -> CatalogModel | None:
        """Return the model with this id; any id if the provider's models are discovered later."""
        if found := self._listed(model_id):
            return found
        if model_id and self.config.discover_models:
            return CatalogModel(id=model_id, name=model_id)
        return None

    @property
    def large_model(self) -> CatalogModel | None:
        """The default model: the catalogue's, or the first."""
        models = self.config.models
        return self._listed(self.default_large) or (models[0] if models else None)

    @property
    def small_model(self) -> CatalogModel | None:
        """The catalogue's default for the small model, if the provider has it."""
        return self._listed(self.default_small)

    def _listed(self, model_id: str) -> CatalogModel | None:
        return next((model for model in self.config.models if model.id == model_id), None)


Providers: TypeAlias = Mapping[str, EnabledProvider]


@frozen(kw_only=True)
class ModelSlot:
    """A selected model, and its entry in the catalogue."""

    selected: SelectedModel
    model: CatalogModel

    @property
    def shown(self) -> SelectedModel:
        """The selected model as clients see it, with the number of tokens that it may answer with."""
        most = self.selected.max_tokens or self.model.default_max_tokens
        return evolve(self.selected, max_tokens=most)


@frozen(kw_only=True)
class Selection:
    """Both models, the providers, and warnings about replaced models."""

    large: ModelSlot
    small: ModelSlot
    providers: Providers
    warnings: tuple[ConfigWarning, ...] = ()


def select_models(
    wanted: Mapping[str, SelectedModel],
    providers: Providers,
    environment: Mapping[str, str] | None = None,
) -> Selection:
    """Return the models to use: those that are *wanted*, if *providers* have them.

    Without any usable model it is the offline demo, with a warning that says what to configure; a key
    in *environment* that cannot be used is named there.
    """
    warnings: list[ConfigWarning] = []
    providers = _add_unlisted(wanted, providers, warnings)
    large = _large(wanted.get(ModelType.LARGE, _NOTHING), providers, warnings)
    if large is None:
        large = ModelSlot(selected=DEMO_CHOICE, model=DEMO_MODEL)
        providers = {**providers, DEMO_PROVIDER: EnabledProvider(config=DEMO_CONFIG)}
        warnings.append(_demo(providers, environment or {}))
    small = _small(wanted.get(ModelType.SMALL, _NOTHING), large, providers, warnings)
    return Selection(large=large, small=small, providers=providers, warnings=tuple(warnings))


def default_small_model(provider_id: str, large: ModelSlot, providers: Providers) -> ModelSlot:
    """Return the default small model of a provider, or else the large model."""
    provider = providers.get(provider_id)
    small = None if provider is None else provider.small_model
    return large if small is None else _choice(provider_id, small)


def _large(
    wanted: SelectedModel, providers: Providers, warnings: list[ConfigWarning]
) -> ModelSlot | None:
    if found := named_model(wanted, providers):
        return found
    own = providers.get(wanted.provider)
    for provider in [*([own] if own else []), *providers.values()]:
        if model := provider.large_model:
            chosen = _choice(provider.config.id, model)
            warnings += _replaced(ModelType.LARGE, wanted, chosen)
            return chosen
    return None


def _small(
    wanted: SelectedModel, large: ModelSlot, providers: Providers, warnings: list[ConfigWarning]
) -> ModelSlot:
    if found := named_model(wanted, providers):
        return found
    own = providers.get(wanted.provider or large.selected.provider)
    model = None if own is None else own.small_model
    if model is None and wanted.provider:
        model = None if own is None else own.large_model
    chosen = large if own is None or model is None else _choice(own.config.id, model)
    warnings += _replaced(ModelType.SMALL, wanted, chosen)
    return chosen


def named_model(wanted: SelectedModel, providers: Providers) -> ModelSlot | None:
    """Return the *wanted* model if its provider has it, with a reasoning effort that it supports."""
    provider = providers.get(wanted.provider)
    model = None if provider is None else provider.model(wanted.model)
    if model is None:
        return None
    effort = reasoning_effort(wanted.reasoning_effort, model)
    return ModelSlot(selected=evolve(wanted, reasoning_effort=effort), model=model)


def unlisted_model(wanted: SelectedModel, providers: Providers) -> ModelSlot | None:
    """Return the *wanted* model of a built-in provider whose catalogue may be older than the model."""
    built_in = wanted.provider in providers and wanted.provider in known_providers(())
    if not (built_in and wanted.model):
        return None
    return ModelSlot(selected=wanted, model=CatalogModel(id=wanted.model, name=wanted.model))


def _choice(provider_id: str, model: CatalogModel) -> ModelSlot:
    """Return a model with the default settings of the catalogue."""
    selected = SelectedModel(
        model=model.id,
        provider=provider_id,
        max_tokens=model.default_max_tokens,
        reasoning_effort=reasoning_effort("", model),
    )
    return ModelSlot(selected=selected, model=model)


def reasoning_effort(wanted: str, model: CatalogModel) -> str:
    """Return the *wanted* reasoning effort if the model supports it, else its default."""
    levels = model.reasoning_levels
    if not model.can_reason:
        return ""
    for effort in (wanted, model.default_reasoning_effort):
        if effort and effort in levels:
            return effort
    return levels[0] if levels else ""


def _replaced(slot: ModelType, wanted: SelectedModel, chosen: ModelSlot) -> list[ConfigWarning]:
    if wanted == _NOTHING:
        return []
    used = f"{chosen.selected.provider}/{chosen.selected.model}"
    text = f"{wanted.provider}/{wanted.model} is not available; {used} is used instead"
    return [ConfigWarning(kind=ConfigWarningKind.MODEL_REPLACED, key=f"models.{slot}", text=text)]


def _add_unlisted(
    wanted: Mapping[str, SelectedModel], providers: Providers, warnings: list[ConfigWarning]
) -> Providers:
    """Return *providers* with the selected models of built-in ones that the catalogue does not list.

    The provider may well have them: clients select models of a catalogue of their own.
    """
    found = dict(providers)
    for slot, choice in wanted.items():
        provider = found.get(choice.provider)
        if provider is None or not provider.known or not choice.model:
            continue
        if provider.model(choice.model) is None:
            new = CatalogModel(id=choice.model, name=choice.model)
            entry = evolve(provider.config, models=(*provider.config.models, new))
            found[choice.provider] = evolve(provider, config=entry)
            warnings.append(_unlisted(slot, choice))
    return found


def _unlisted(slot: str, choice: SelectedModel) -> ConfigWarning:
    text = (
        f"{choice.provider}/{choice.model} is not in the catalogue and is used as it is named; its "
        f"limits and prices can be written into providers.{choice.provider}.models"
    )
    return ConfigWarning(kind=ConfigWarningKind.MODEL_UNLISTED, key=f"models.{slot}", text=text)


def _demo(providers: Providers, environment: Mapping[str, str]) -> ConfigWarning:
    unsupported = unsupported_key(environment)
    others = [name for name in providers if name != DEMO_PROVIDER]
    start = (
        f"no model of {', '.join(others)} is known; name one in models.large. Until then"
        if others
        else f"no model is configured. {unsupported}. Until then"
        if unsupported
        else "no model is configured. Set a key such as ANTHROPIC_API_KEY or OPENAI_API_KEY in the "
        "environment, or write a provider into crush.json. Until then"
    )
    return ConfigWarning(kind=ConfigWarningKind.DEMO, text=f"{start} the offline demo answers")


# ── Time limits ──────────────────────────────────────────────────────────────────────────────────

CALL_LIMITS: Final = ("connect", "first", "idle", "turn")
"""The names under `providers.<id>.limits`: a connection, the first part of an answer, silence within
it, and the whole call with its retries."""


def seconds_of(value: Json) -> float | None:
    """Return a configured limit in seconds, infinity for `"none"`; None if it is not valid."""
    if value == "none":
        return inf
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if number and 0 < value < inf else None


def call_limits(config: ProviderConfig) -> dict[str, float]:
    """Return the limits that a provider's configuration sets, in seconds."""
    read = {name: seconds_of(value) for name, value in config.limits.items()}
    return {name: value for name, value in read.items() if value is not None}


# ── Usable providers ─────────────────────────────────────────────────────────────────────────────


@frozen(kw_only=True)
class EnabledProviders:
    """The usable providers, and warnings about those that are not."""

    providers: Mapping[str, EnabledProvider]
    warnings: tuple[ConfigWarning, ...] = ()


def enable_providers(config: Config, known: Known, expander: Expander) -> EnabledProviders:
    """Return the providers of *config* and of *known* that have credentials."""
    providers: dict[str, EnabledProvider] = {}
    warnings: list[ConfigWarning] = []
    for name, entry in config.providers.items():
        built_in = known.get(name)
        provider = _named(name, entry, built_in)
        if entry.disable:
            continue
        if _has_credentials(provider, built_in, expander):
            providers[name] = provider
        else:
            warnings.append(_not_usable(name, built_in, expander, has_address=bool(entry.base_url)))
    for name, built_in in known.items():
        if name in config.providers or not built_in.key:
            continue
        provider = _named(name, ProviderConfig(), built_in)
        if _has_credentials(provider, built_in, expander):
            providers[name] = provider
    return EnabledProviders(providers=providers, warnings=tuple(warnings))


def _named(name: str, entry: ProviderConfig, built_in: KnownProvider | None) -> EnabledProvider:
    """Return the provider of a file, completed from the built-in one."""
    if built_in is None:
        config = evolve(entry, id=name, name=entry.name or name, type=entry.type or COMPATIBLE)
        return EnabledProvider(config=config)
    models = _with_catalogue(entry.models, built_in.models)
    config = evolve(
        entry,
        id=name,
        name=entry.name or built_in.name,
        type=entry.type or built_in.type,
        api_key=entry.api_key or built_in.key,
        base_url=entry.base_url or built_in.address,
        extra_headers={**built_in.headers, **entry.extra_headers},
        models=models,
        discover_models=entry.discover_models if models else entry.discover_models is not False,
    )
    return EnabledProvider(
        config=config,
        known=True,
        default_large=built_in.default_large,
        default_small=built_in.default_small,
    )


def _with_catalogue(
    own: tuple[CatalogModel, ...], catalogue: tuple[CatalogModel, ...]
) -> tuple[CatalogModel, ...]:
    """Return the models of a file, then those of the catalogue that the file does not replace."""
    replaced = {model.id for model in own}
    return (*own, *(model for model in catalogue if model.id not in replaced))


def _has_credentials(
    provider: EnabledProvider, built_in: KnownProvider | None, expander: Expander
) -> bool:
    """Whether a built-in provider has a key and an address; a custom one may need no key.

    A custom one has no address only if its file was not trusted to set it.
    """
    config = provider.config
    way = ("providers", config.id)
    if config.base_url and not expander.may_have_value(config.base_url, *way, "base_url"):
        return False
    if built_in is None:
        return bool(config.base_url)
    if config.oauth is not None or (
        config.api_key and expander.may_have_value(config.api_key, *way, "api_key")
    ):
        return True
    return not config.api_key


def _not_usable(
    name: str, built_in: KnownProvider | None, expander: Expander, *, has_address: bool
) -> ConfigWarning:
    source = expander.layers.origin("providers", name)
    text = "not used: no file that is trusted here says its address; set base_url and models"
    if built_in is not None or has_address:
        known = () if built_in is None else (built_in.key, built_in.address)
        given = (text for text in known if "$" in text)
        text = f"not used: its key or address is empty; {', or '.join(['set them here', *given])}"
    return ConfigWarning(
        kind=ConfigWarningKind.NO_CREDENTIALS,
        file=None if source is None else source.path,
        key=key_text(("providers", name)),
        text=text,
    )
