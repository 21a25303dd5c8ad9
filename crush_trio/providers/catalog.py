"""The models that are known without being asked for: what they can do, and what they cost.

The facts stand in `catalog.json`, as the public price lists had them on `CATALOG_DATE`. They are
defaults: everything in here can be replaced in `crush.json`, under `providers.<id>` for an address,
a key or further models, and per model for its prices and limits. A model that is not in here works
as well; it only has no prices.

Prices are dollars per million tokens at the standard rate, of prompts of ordinary length and at the
busiest time of day, where a provider makes a difference. The cached prices are those of writing
(`in`) and of reading (`out`) a prompt cache. OpenAI's models are listed with the efforts at which
chat completions let them call tools.
"""

from functools import cache
from importlib.resources import files
from typing import Final

from attrs import frozen

from crush_trio.wire.catalog import CatalogModel, CatalogProvider
from crush_trio.wire.codec import decode

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
