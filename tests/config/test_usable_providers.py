"""Which providers can be used."""

import pytest

from crush_trio.config import ConfigWarningKind
from crush_trio.config.known_providers import BY_ENVIRONMENT, known_providers
from crush_trio.config.template import parse
from crush_trio.wire.config import CatalogModel, CatalogProvider
from tests.config.homes import CATALOGUE, MODEL_A, MODEL_B, custom, texts


async def enabled(home, catalogue=CATALOGUE):
    loaded = await home.load(catalogue=catalogue)
    return list(loaded.config.providers)


# ── By environment ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("variable", "provider"),
    [
        ("OPENAI_API_KEY", "openai"),
        ("ANTHROPIC_API_KEY", "anthropic"),
        ("OPENROUTER_API_KEY", "openrouter"),
        ("GEMINI_API_KEY", "gemini"),
        ("GOOGLE_API_KEY", "gemini"),
        ("GROQ_API_KEY", "groq"),
        ("DEEPSEEK_API_KEY", "deepseek"),
        ("MISTRAL_API_KEY", "mistral"),
        ("XAI_API_KEY", "xai"),
        ("CEREBRAS_API_KEY", "cerebras"),
        ("TOGETHER_API_KEY", "together"),
        ("AI_GATEWAY_API_KEY", "vercel"),
        ("VERCEL_API_KEY", "vercel"),
    ],
)
async def test_a_key_in_the_environment_is_enough(home, variable, provider):
    home.environment[variable] = "k"
    loaded = await home.load()
    assert provider in loaded.config.providers
    resolved = (await loaded.resolve_provider(provider)).config
    assert resolved.api_key == "k"
    assert resolved.base_url.startswith("https://")
    assert variable in loaded.config.providers[provider].api_key, "what is kept is the template"


async def test_an_empty_key_is_none(home):
    home.environment["OPENAI_API_KEY"] = ""
    assert await enabled(home) == ["demo"]


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
async def test_a_variable_overrides_the_address(home, provider):
    home.environment[f"{provider.upper()}_API_KEY"] = "k"
    home.environment[f"{provider.upper()}_BASE_URL"] = "http://gateway"
    loaded = await home.load(catalogue=CATALOGUE)
    assert (await loaded.resolve_provider(provider)).config.base_url == "http://gateway"


async def test_azure_needs_an_address_besides_its_key(home):
    home.environment["AZURE_OPENAI_API_KEY"] = "k"
    assert await enabled(home) == ["demo"]
    for variable in ("AZURE_OPENAI_API_ENDPOINT", "AZURE_OPENAI_ENDPOINT"):
        home.environment[variable] = "https://mine.azure.example"
        assert await enabled(home) == ["azure", "demo"]
        del home.environment[variable]


@pytest.mark.parametrize(
    ("variable", "advice"),
    [
        ("AWS_BEARER_TOKEN_BEDROCK", "bedrock is not supported; use type anthropic"),
        ("VERTEXAI_PROJECT", "google-vertex is not supported; use type google"),
    ],
)
async def test_a_key_that_cannot_be_used_is_named_if_there_is_no_other(home, variable, advice):
    home.environment[variable] = "x"
    loaded = await home.load(catalogue=CATALOGUE)
    assert list(loaded.config.providers) == ["demo"]
    [warning] = loaded.warnings
    assert f"{variable} is set, but the provider {advice}" in warning.text
    home.environment["OPENAI_API_KEY"] = "k"
    assert (await home.load(catalogue=CATALOGUE)).warnings == ()


async def test_a_custom_provider_whose_address_is_an_unset_variable_is_left_out(home):
    entries = {"mine": custom(base_url="$NOWHERE"), "other": custom()}
    home.write(home.user_file, {"providers": entries})
    loaded = await home.load()
    assert list(loaded.config.providers) == ["other"]
    assert "no_credentials" in {warning.kind for warning in loaded.warnings}


def test_every_template_of_the_table_can_be_read():
    for known in BY_ENVIRONMENT.values():
        parse(known.key)
        parse(known.address)


def test_the_catalogue_goes_before_the_table_and_is_completed_by_it():
    known = known_providers(CATALOGUE)
    assert list(known)[:2] == ["anthropic", "openai"]
    assert known["anthropic"].base_url == "https://api.anthropic.com/v1"
    assert known["openai"].key == "$OPENAI_API_KEY"
    assert set(BY_ENVIRONMENT) <= set(known)


async def test_a_provider_of_the_catalogue_has_its_models_and_headers(home):
    home.environment["ANTHROPIC_API_KEY"] = "k"
    loaded = await home.load(catalogue=CATALOGUE)
    anthropic = loaded.config.providers["anthropic"]
    assert anthropic.models == (MODEL_B, MODEL_A)
    assert anthropic.extra_headers == {"x-version": "1"}
    assert not anthropic.discover_models


async def test_models_that_nobody_knows_are_to_be_found_out(home):
    home.environment["DEEPSEEK_API_KEY"] = "k"
    loaded = await home.load(catalogue=CATALOGUE)
    assert loaded.config.providers["deepseek"].discover_models is True


async def test_a_provider_without_a_key_is_not_enabled_by_itself(home):
    local = CatalogProvider(id="local", name="Local", api_endpoint="http://localhost:1")
    assert await enabled(home, (local,)) == ["demo"]
    home.write(home.user_file, {"providers": {"local": {}}})
    assert "local" in await enabled(home, (local,))


# ── By file ─────────────────────────────────────────────────────────────────────────────────────


async def test_a_file_overrides_what_the_catalogue_says(home):
    home.environment["OTHER"] = "other-key"
    own = {"id": "a-large", "name": "Mine", "context_window": 5}
    entry = {
        "api_key": "$OTHER",
        "base_url": "http://proxy",
        "extra_headers": {"x-version": "2", "x-more": "m"},
        "models": [{"id": "new"}, own],
    }
    home.write(home.user_file, {"providers": {"anthropic": entry}})
    loaded = await home.load(catalogue=CATALOGUE)
    anthropic = (await loaded.resolve_provider("anthropic")).config
    assert (anthropic.api_key, anthropic.base_url) == ("other-key", "http://proxy")
    assert (anthropic.type, anthropic.name) == ("anthropic", "Anthropic")
    assert anthropic.extra_headers == {"x-version": "2", "x-more": "m"}
    assert anthropic.models == (
        CatalogModel(id="new"),
        CatalogModel(id="a-large", name="Mine", context_window=5),
        MODEL_B,
    )


async def test_what_is_written_down_goes_before_what_happens_to_be_set(home):
    home.environment.update(ANTHROPIC_API_KEY="k", OPENAI_API_KEY="k")
    home.write(home.user_file, {"providers": {"mine": custom()}})
    assert await enabled(home) == ["mine", "anthropic", "openai"]
    assert (await home.load(catalogue=CATALOGUE)).large.selected.provider == "mine"


async def test_a_named_provider_without_a_key_is_not_used_and_a_notice_says_what_is_missing(home):
    home.write(home.user_file, {"providers": {"anthropic": {"system_prompt_prefix": "hi"}}})
    loaded = await home.load(catalogue=CATALOGUE)
    assert list(loaded.config.providers) == ["demo"]
    [warning] = texts(loaded, ConfigWarningKind.NO_CREDENTIALS)
    assert warning.startswith(f"{home.user_file}: providers.anthropic: not used")
    assert "$ANTHROPIC_API_KEY" in warning


async def test_a_token_or_a_command_counts_as_a_key(home):
    token = {"access_token": "t", "expires_in": 1, "expires_at": 2}
    home.write(
        home.user_file,
        {"providers": {"anthropic": {"oauth": token}, "openai": {"api_key": "$(pass)"}}},
    )
    assert await enabled(home) == ["anthropic", "openai"]


async def test_a_disabled_provider_is_not_used_even_with_a_key(home):
    home.environment["OPENAI_API_KEY"] = "k"
    home.write(home.user_file, {"providers": {"openai": {"disable": True}, "x": {"disable": True}}})
    assert await enabled(home) == ["demo"]


async def test_default_providers_can_be_turned_off(home):
    home.environment["OPENAI_API_KEY"] = "k"
    home.write(
        home.user_file,
        {"options": {"disable_default_providers": True}, "providers": {"mine": custom()}},
    )
    assert await enabled(home) == ["mine"]
    home.write(home.project_file, {"providers": {"openai": {"api_key": "k"}}})
    home.trust()
    loaded = await home.load(catalogue=CATALOGUE)
    assert list(loaded.config.providers) == ["mine"]
    assert "providers.openai.base_url" in {warning.key for warning in loaded.warnings}


async def test_a_custom_provider_may_leave_its_models_to_be_found_out(home):
    entry = {"base_url": "http://localhost:1", "discover_models": True}
    home.write(home.user_file, {"providers": {"mine": entry}})
    loaded = await home.load()
    assert loaded.config.providers["mine"].discover_models is True
    assert loaded.config.providers["mine"].type == "openai-compat"
