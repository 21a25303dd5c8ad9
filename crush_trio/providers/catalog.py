"""The models that are known without being asked for: what they can do, and what they cost.

The facts stand in `catalog.json`, as the public price lists had them on `CATALOG_DATE`. They are
defaults: everything in here can be replaced in `crush.json`, under `providers.<id>` for an address,
a key or further models, and per model for its prices and limits. A model that is not in here works
as well; it only has no prices.

Prices are dollars per million tokens at the standard rate, of prompts of ordinary length and at the
busiest time of day, where a provider makes a difference. The cached prices are those of writing
(`in`) and of reading (`out`) a prompt cache. OpenAI's models are listed with the efforts at which
chat completions let them call tools.

How a model is to be called: what the catalogue, the provider and the user say, in that order.

Later ones win. None means that the provider decides; 0 is a choice.
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
    """How the next token is picked."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None

    def given(self, *names: str) -> dict[str, float]:
        """Return those of *names* that somebody chose."""
        return {name: value for name in names if (value := getattr(self, name)) is not None}


def sampling_of(request: ModelRequest) -> Sampling:
    """Return what the user chose, and what the catalogue has for the rest."""
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
    """Return how hard the model is to think: what the user chose, if the model has that level.

    Else the model's own default, else its first level; nothing for a model without levels.
    """
    model = request.model
    levels = model.reasoning_levels if model.can_reason else ()
    wanted = (request.chosen.reasoning_effort, model.default_reasoning_effort, *levels)
    return next((level for level in wanted if level in levels), "")


def options_of(request: ModelRequest, endpoint: Endpoint) -> dict[str, Any]:
    """Return the options that only this provider knows: catalogue < provider < user."""
    usual = request.model.options or ModelOptions()
    return merged(usual.provider_options, endpoint.options, request.chosen.provider_options)


def model_id(request: ModelRequest) -> str:
    """Return the name that the provider knows the model by."""
    return request.model.id or request.chosen.model


def merged(*layers: JsonObject) -> dict[str, Any]:
    """Return one object of several; objects within are merged, everything else is replaced."""
    result: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            both = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
            result[key] = merged(result[key], value) if both else value
    return result


CATALOG_DATE: Final = "2026-11-10"
"""The day to which the catalogue was brought up to date."""


@frozen(kw_only=True)
class Catalog:
    """The content of the file."""

    date: str
    providers: tuple[CatalogProvider, ...]


@cache
def load_catalog() -> Catalog:
    """Return the catalogue; it is read when it is first needed, and only then."""
    return decode(files("crush_trio.providers").joinpath("catalog.json").read_bytes(), Catalog)


def catalog_providers() -> tuple[CatalogProvider, ...]:
    """Return every provider, those first that are tried first if several have a key."""
    return load_catalog().providers


def catalog_provider(provider_id: str) -> CatalogProvider | None:
    """Return the provider of this id, if the catalogue has it."""
    return next((each for each in catalog_providers() if each.id == provider_id), None)


def catalog_model(provider_id: str, model_id: str) -> CatalogModel:
    """Return a model of a provider. One that is not listed has its id for a name and no prices."""
    provider = catalog_provider(provider_id)
    listed = provider.models if provider is not None else ()
    unknown = CatalogModel(id=model_id, name=model_id)
    return next((model for model in listed if model.id == model_id), unknown)
