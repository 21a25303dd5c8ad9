"""The model catalogue: capabilities, limits and prices; and the options of a model call.

The data is in `catalog.json`, as the public price lists had them on `CATALOG_DATE`. They are
defaults: all of them can be replaced in `crush.json`, under `providers.<id>` for an address, a key or
further models, and per model for its prices and limits. A model that is not listed works as well; it
only has no prices.

Prices are dollars per million tokens at the standard rate, of prompts of ordinary length and at the
busiest time of day, where a provider makes a difference. The cached prices are those of writing
(`in`) and of reading (`out`) a prompt cache. OpenAI's models are listed with the efforts at which
chat completions let them call tools.

The options of a call come from the catalogue, the provider's configuration and the user's choice; later
ones win. None means that the provider decides; 0 is a choice.
"""

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Final

from attrs import asdict, frozen

from crush_trio.providers.base import Endpoint, ModelRequest
from crush_trio.wire.codec import decode
from crush_trio.wire.config import CatalogModel, CatalogProvider, ModelOptions
from crush_trio.wire.fields import JsonObject


@frozen(kw_only=True)
class Sampling:
    """Sampling parameters."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None

    def given(self, *names: str) -> dict[str, float]:
        """Return those of *names* that are set."""
        return {name: value for name in names if (value := getattr(self, name)) is not None}


def sampling_of(request: ModelRequest) -> Sampling:
    """Return the user's sampling parameters, completed from the catalogue."""
    usual = request.model.options or ModelOptions()
    return Sampling(
        **{
            name: own
            if (own := getattr(request.chosen, name)) is not None
            else getattr(usual, name)
            for name in asdict(Sampling())
        }
    )


def effort_of(request: ModelRequest) -> str:
    """Return the reasoning effort: the user's choice, if the model has that level.

    Else the model's own default, else its first level; nothing for a model without levels.
    """
    model = request.model
    levels = model.reasoning_levels if model.can_reason else ()
    wanted = (request.chosen.reasoning_effort, model.default_reasoning_effort, *levels)
    return next((level for level in wanted if level in levels), "")


def options_of(request: ModelRequest, endpoint: Endpoint) -> dict[str, Any]:
    """Return the provider-specific options: catalogue < provider < user."""
    usual = request.model.options or ModelOptions()
    return merged(usual.provider_options, endpoint.options, request.chosen.provider_options)


def model_id(request: ModelRequest) -> str:
    """Return the provider's name of the model."""
    return request.model.id or request.chosen.model


def merged(*layers: JsonObject) -> dict[str, Any]:
    """Merge objects; nested objects are merged, everything else is replaced by later ones."""
    result: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            both = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
            result[key] = merged(result[key], value) if both else value
    return result


CATALOG_DATE: Final = "2026-11-10"
"""The date of the catalogue's last update."""


@frozen(kw_only=True)
class Catalog:
    """The content of the file."""

    date: str
    providers: tuple[CatalogProvider, ...]


@cache
def load_catalog() -> Catalog:
    """Return the catalogue; it is read once, when it is first needed."""
    return decode(files("crush_trio.providers").joinpath("catalog.json").read_bytes(), Catalog)


def catalog_providers() -> tuple[CatalogProvider, ...]:
    """Return all providers, in the order in which they are tried if several have a key."""
    return load_catalog().providers


def catalog_provider(provider_id: str) -> CatalogProvider | None:
    """Return the provider of this id, if the catalogue has it."""
    return next((each for each in catalog_providers() if each.id == provider_id), None)


def catalog_model(provider_id: str, model_id: str) -> CatalogModel:
    """Return a model of a provider. One that is not listed is named by its id and has no prices."""
    provider = catalog_provider(provider_id)
    listed = provider.models if provider is not None else ()
    unknown = CatalogModel(id=model_id, name=model_id)
    return next((model for model in listed if model.id == model_id), unknown)
