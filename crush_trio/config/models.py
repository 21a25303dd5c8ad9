"""The two models of a workspace: `large` to work with, `small` for side work.

A selection that cannot be honoured is replaced, and a notice says by what; writing the replacement down
is the caller's choice. A model that does not exist gives way to its provider's default, a provider that
does not exist to the default of all; the small model then to the large one.
"""

from collections.abc import Mapping
from typing import Final, TypeAlias

from attrs import evolve, frozen

from crush_trio.config.demo import DEMO_CHOICE, DEMO_CONFIG, DEMO_MODEL, DEMO_PROVIDER
from crush_trio.config.enabling import EnabledProvider
from crush_trio.config.notices import Notice, NoticeKind
from crush_trio.wire.catalog import CatalogModel, SelectedModel
from crush_trio.wire.requests import ModelType

Providers: TypeAlias = Mapping[str, EnabledProvider]

_NOTHING: Final = SelectedModel()


@frozen(kw_only=True)
class ModelSlot:
    """A model that was chosen, and what is known of it."""

    selected: SelectedModel
    model: CatalogModel


@frozen(kw_only=True)
class Selection:
    """Both models, the providers they are from, and what had to be replaced."""

    large: ModelSlot
    small: ModelSlot
    providers: Providers
    notices: tuple[Notice, ...] = ()


def select_models(wanted: Mapping[str, SelectedModel], providers: Providers) -> Selection:
    """Return the models to use: those that are *wanted*, as far as *providers* have them.

    If there is nothing that could be used the offline demo is, and a notice says how to go on.
    """
    notices: list[Notice] = []
    large = _large(wanted.get(ModelType.LARGE, _NOTHING), providers, notices)
    if large is None:
        large = ModelSlot(selected=DEMO_CHOICE, model=DEMO_MODEL)
        providers = {**providers, DEMO_PROVIDER: EnabledProvider(config=DEMO_CONFIG)}
        notices.append(_demo(providers))
    small = _small(wanted.get(ModelType.SMALL, _NOTHING), large, providers, notices)
    return Selection(large=large, small=small, providers=providers, notices=tuple(notices))


def default_small_model(provider_id: str, large: ModelSlot, providers: Providers) -> SelectedModel:
    """Return the small model that goes with a provider, or else the large one there is."""
    provider = providers.get(provider_id)
    small = None if provider is None else provider.small_model
    return large.selected if small is None else _choice(provider_id, small).selected


def _large(wanted: SelectedModel, providers: Providers, notices: list[Notice]) -> ModelSlot | None:
    if found := named_model(wanted, providers):
        return found
    own = providers.get(wanted.provider)
    for provider in [*([own] if own else []), *providers.values()]:
        if model := provider.large_model:
            chosen = _choice(provider.config.id, model)
            notices += _replaced(ModelType.LARGE, wanted, chosen)
            return chosen
    return None


def _small(
    wanted: SelectedModel, large: ModelSlot, providers: Providers, notices: list[Notice]
) -> ModelSlot:
    if found := named_model(wanted, providers):
        return found
    own = providers.get(wanted.provider or large.selected.provider)
    model = None if own is None else own.small_model
    if model is None and wanted.provider:
        model = None if own is None else own.large_model
    chosen = large if own is None or model is None else _choice(own.config.id, model)
    notices += _replaced(ModelType.SMALL, wanted, chosen)
    return chosen


def named_model(wanted: SelectedModel, providers: Providers) -> ModelSlot | None:
    """Return the model that was asked for, if its provider has it; its settings made to fit."""
    provider = providers.get(wanted.provider)
    model = None if provider is None else provider.model(wanted.model)
    if model is None:
        return None
    effort = reasoning_effort(wanted.reasoning_effort, model)
    return ModelSlot(selected=evolve(wanted, reasoning_effort=effort), model=model)


def _choice(provider_id: str, model: CatalogModel) -> ModelSlot:
    """Return a model as it is chosen when nobody does: with the settings of the catalogue."""
    selected = SelectedModel(
        model=model.id,
        provider=provider_id,
        max_tokens=model.default_max_tokens,
        reasoning_effort=reasoning_effort("", model),
    )
    return ModelSlot(selected=selected, model=model)


def reasoning_effort(wanted: str, model: CatalogModel) -> str:
    """Return how hard a model is to think: as *wanted* if it can, else as it does by default."""
    levels = model.reasoning_levels
    if not model.can_reason:
        return ""
    for effort in (wanted, model.default_reasoning_effort):
        if effort and effort in levels:
            return effort
    return levels[0] if levels else ""


def _replaced(slot: ModelType, wanted: SelectedModel, chosen: ModelSlot) -> list[Notice]:
    if wanted == _NOTHING:
        return []
    used = f"{chosen.selected.provider}/{chosen.selected.model}"
    text = f"{wanted.provider}/{wanted.model} is not available; {used} is used instead"
    return [Notice(kind=NoticeKind.MODEL_REPLACED, key=f"models.{slot}", text=text)]


def _demo(providers: Providers) -> Notice:
    others = [name for name in providers if name != DEMO_PROVIDER]
    start = (
        f"no model of {', '.join(others)} is known; name one in models.large. Until then"
        if others
        else "no model is configured. Set a key such as ANTHROPIC_API_KEY or OPENAI_API_KEY in the "
        "environment, or write a provider into crush.json. Until then"
    )
    return Notice(kind=NoticeKind.DEMO, text=f"{start} the offline demo answers")
