"""Keys that a client sets for providers, above all for those that a project describes."""

from contextlib import asynccontextmanager

import orjson
import pytest

from crush_trio.config.errors import ConfigWarningKind
from crush_trio.config.live import open_live_config
from crush_trio.config.trust.answers import TrustAnswer
from crush_trio.errors import ProviderKeyInvalid
from crush_trio.wire.requests import Scope
from tests.config.homes import CATALOGUE, custom, texts

pytestmark = pytest.mark.item("I.2")

THEIRS = {
    "first": custom(api_key="$NOT_SET"),
    "openai": {"api_key": "$NOT_SET"},
    "last": custom(),
}
BOTH = pytest.mark.parametrize("scope", list(Scope))


@asynccontextmanager
async def opened(home, directory=None):
    async with open_live_config(home.places(directory), catalogue=CATALOGUE) as live:
        yield live


async def key_of(loaded, provider):
    return (await loaded.resolve_provider(provider)).config.api_key


@BOTH
@pytest.mark.parametrize("provider", THEIRS)
async def test_a_key_for_a_projects_provider_counts_and_removes_none(home, scope, provider):
    home.write(home.project_file, {"providers": THEIRS})
    home.trust()
    async with opened(home) as live:
        before = set(live.current.config.providers)
        assert await live.set_provider_key(scope, provider, "string", "sk-mine")
        assert set(live.current.config.providers) == before | {provider}
        assert await key_of(live.current, provider) == "sk-mine"
        assert live.current.large.selected.provider == "first", "the order stays"
    assert not home.data_file.exists()
    assert orjson.loads(home.own_file.read_bytes())["providers"] == {
        provider: {"api_key": "sk-mine"}
    }
    elsewhere = home.root / "elsewhere"
    elsewhere.mkdir()
    assert provider not in (await home.load(elsewhere, catalogue=CATALOGUE)).config.providers


@BOTH
async def test_a_key_for_another_provider_leaves_the_projects_alone(home, scope):
    home.write(home.project_file, {"providers": THEIRS})
    home.trust()
    async with opened(home) as live:
        await live.set_provider_key(scope, "anthropic", "string", "sk-mine")
        assert {"first", "last", "anthropic"} <= set(live.current.config.providers)
    assert home.data_file.exists() is (scope is Scope.GLOBAL), "it is no matter of the project"


@BOTH
async def test_a_project_that_is_no_longer_trusted_can_be_opened_with_the_key(home, scope):
    home.write(home.project_file, {"providers": {"first": custom()}})
    async with opened(home) as live:
        with pytest.raises(ProviderKeyInvalid, match=r"trust the project: crush-trio trust"):
            await live.set_provider_key(scope, "first", "string", "k")
        await live.answer_wishes(live.current.wishes, TrustAnswer.ONCE)
        await live.set_provider_key(scope, "first", "string", "k")
        assert await key_of(live.current, "first") == "k"
    async with opened(home) as live:  # what was trusted once is not any more
        assert list(live.current.config.providers) == ["demo"]
        [warning] = texts(live.current, ConfigWarningKind.NO_CREDENTIALS)
        assert "providers.first: not used" in warning
        await live.answer_wishes(live.current.wishes, TrustAnswer.ALWAYS)
        assert await key_of(live.current, "first") == "k"


async def test_a_key_for_nobody_is_refused_with_advice(home):
    async with opened(home) as live:
        with pytest.raises(ProviderKeyInvalid, match=r"describe it in crush\.json with base_url"):
            await live.set_provider_key(Scope.GLOBAL, "nobody", "string", "k")
    assert not home.data_file.exists()


async def test_a_key_for_a_provider_without_an_address_is_refused_with_advice(home):
    async with opened(home) as live:
        with pytest.raises(
            ProviderKeyInvalid, match=r"set providers\.azure\.base_url, or its variable"
        ):
            await live.set_provider_key(Scope.GLOBAL, "azure", "string", "k")
        assert not home.data_file.exists()
        await live.set(Scope.GLOBAL, "providers.azure.base_url", "https://mine.azure.example")
        await live.set_provider_key(Scope.GLOBAL, "azure", "string", "k")
        assert "azure" in live.current.providers


@pytest.mark.parametrize("key", ["a$b", "p$", '$5 "bill"', r"\$x\\", "${", "a${HOME}b", "$(", "}"])
async def test_a_dollar_within_a_key_is_a_part_of_it(home, key):
    async with opened(home) as live:
        await live.set_provider_key(Scope.GLOBAL, "openai", "string", f" {key}\n")
        assert await key_of(live.current, "openai") == key
    assert await key_of(await home.load(catalogue=CATALOGUE), "openai") == key


async def test_a_key_may_be_where_to_find_it(home):
    home.environment["MINE"] = "sk-mine"
    async with opened(home) as live:
        await live.set_provider_key(Scope.GLOBAL, "openai", "string", "$MINE")
        assert await key_of(live.current, "openai") == "sk-mine"


@pytest.mark.parametrize("key", ["two\nlines", "n\0ul", "ключ"])
async def test_a_key_that_cannot_be_sent_is_refused_with_advice(home, key):
    async with opened(home) as live:
        with pytest.raises(ProviderKeyInvalid, match="copy it again, and only it"):
            await live.set_provider_key(Scope.GLOBAL, "openai", "string", key)
    assert not home.data_file.exists()
