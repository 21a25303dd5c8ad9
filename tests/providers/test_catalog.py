"""The catalogue: its file is whole, and what it says of providers and models fits together."""

import re
from importlib.resources import files

import orjson
import pytest

from crush_trio.config.known_providers import BY_ENVIRONMENT
from crush_trio.providers.catalog import (
    CATALOG_DATE,
    catalog_model,
    catalog_provider,
    catalog_providers,
    load_catalog,
)
from crush_trio.wire.codec import unstructure
from crush_trio.wire.config import CatalogModel

PROVIDERS = pytest.mark.parametrize("provider", catalog_providers(), ids=lambda each: each.id)
MODELS = pytest.mark.parametrize(
    "model",
    [
        pytest.param(model, id=f"{provider.id}:{model.id}")
        for provider in catalog_providers()
        for model in provider.models
    ],
)
LOCAL = {"ollama", "lmstudio", "llamacpp"}
TYPES = {"anthropic", "openai", "openai-compat", "openrouter", "google", "azure"}


def test_nothing_in_the_file_is_misspelt_or_missing():
    written = orjson.loads(files("crush_trio.providers").joinpath("catalog.json").read_bytes())
    assert unstructure(load_catalog()) == written
    assert written["date"] == CATALOG_DATE


def test_it_is_read_once():
    assert load_catalog() is load_catalog()


def test_the_providers_that_people_ask_for_are_there():
    ids = [provider.id for provider in catalog_providers()]
    assert len(set(ids)) == len(ids)
    assert set(ids) >= {"anthropic", "openai", "openrouter", "gemini", "groq", "deepseek"}
    assert set(ids) >= {"mistral", "xai", "cerebras", "azure", *LOCAL}


@PROVIDERS
def test_a_provider_can_be_reached_and_holds_no_key(provider):
    assert provider.type in TYPES
    assert provider.name
    template = r"\$\{[A-Z_]+:-\$[A-Z_]+\}$"
    assert re.match(rf"https://|http://localhost:\d+/v1$|{template}", provider.api_endpoint)
    if provider.id in LOCAL:
        assert (provider.api_key, provider.models) == ("", ())
    else:
        assert re.fullmatch(r"\$[A-Z_]+|\$\{[A-Z_]+:-\$[A-Z_]+\}", provider.api_key)


@PROVIDERS
def test_the_environment_knows_a_provider_under_the_same_key_and_address(provider):
    if provider.id not in LOCAL:
        known = BY_ENVIRONMENT[provider.id]
        assert (known.key, known.base_url) == (provider.api_key, provider.api_endpoint)
        assert (known.type, known.name) == (provider.type, provider.name)


@PROVIDERS
def test_default_models_are_listed(provider):
    ids = [model.id for model in provider.models]
    assert len(set(ids)) == len(ids)
    defaults = {provider.default_large_model_id, provider.default_small_model_id}
    assert defaults <= (set(ids) or {""})


@MODELS
def test_a_model_has_a_window_and_an_answer_fits_into_it(model):
    assert model.name
    assert 16_000 <= model.default_max_tokens <= model.context_window // 2


@MODELS
def test_prices_are_plausible(model):
    assert 0 < model.cost_per_1m_in < model.cost_per_1m_out <= 100
    assert 0 < model.cost_per_1m_out_cached <= model.cost_per_1m_in
    assert model.cost_per_1m_in_cached in {0, 1.25 * model.cost_per_1m_in}


@MODELS
def test_efforts_belong_to_models_that_reason(model):
    assert model.can_reason or not model.reasoning_levels
    assert len(set(model.reasoning_levels)) == len(model.reasoning_levels)
    assert model.default_reasoning_effort in {"", *model.reasoning_levels}


def test_a_model_is_found_by_its_provider_and_id():
    assert catalog_model("anthropic", "claude-sonnet-5-5").cost_per_1m_out == 10
    assert catalog_provider("anthropic").models


@pytest.mark.parametrize(
    ("provider", "model"),
    [("anthropic", "gpt-6-sol"), ("ollama", "qwen3:8b"), ("nobody", "nothing")],
)
def test_an_unknown_model_works_without_prices(provider, model):
    assert catalog_model(provider, model) == CatalogModel(id=model, name=model)


def test_an_unknown_provider_is_none():
    assert catalog_provider("nobody") is None
