"""Types of providers: which language, which address, which headers."""

import pytest

from crush_trio.config.checks import PROVIDER_TYPES
from crush_trio.providers.anthropic.messages import MessagesProvider
from crush_trio.providers.errors import ProviderRefused, ProviderUnsupported
from crush_trio.providers.openai.chat import ChatProvider
from crush_trio.providers.registry import (
    BASE_URLS,
    DIALECTS,
    UNSUPPORTED,
    open_providers,
    takes_media_results,
)
from tests.providers.asking import endpoint, request


async def nowhere(origin):
    raise AssertionError("nothing is sent in these tests")


async def post(type_name, base_url="", asked=None, **more):
    """Return what would be sent."""
    async with open_providers(nowhere) as providers:
        provider = providers.provider(endpoint(type_name, base_url, **more))
        return provider.post(asked or request())


# ── Types ───────────────────────────────────────────────────────────────────────────────────────


def test_every_type_that_a_configuration_may_name_is_known():
    assert {*DIALECTS, "anthropic", *UNSUPPORTED} >= PROVIDER_TYPES


@pytest.mark.parametrize("type_name", [*DIALECTS, "anthropic"])
async def test_every_type_has_a_family(type_name):
    async with open_providers(nowhere) as providers:
        provider = providers.provider(endpoint(type_name, "http://model.test/v1"))
    family = MessagesProvider if type_name == "anthropic" else ChatProvider
    assert isinstance(provider, family)


@pytest.mark.parametrize("type_name", UNSUPPORTED)
async def test_what_is_not_supported_says_what_to_use_instead(type_name):
    async with open_providers(nowhere) as providers:
        with pytest.raises(ProviderUnsupported, match="use"):
            providers.provider(endpoint(type_name, ""))


@pytest.mark.parametrize("type_name", ["", "openia"])
async def test_an_unknown_type_is_not_guessed(type_name):
    async with open_providers(nowhere) as providers:
        with pytest.raises(ProviderUnsupported, match="openai-compat"):
            providers.provider(endpoint(type_name))


@pytest.mark.item("D23b")
def test_only_anthropic_takes_pictures_in_results():
    assert takes_media_results("anthropic")
    assert not any(map(takes_media_results, DIALECTS))


# ── Addresses ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("type_name", "base_url", "url"),
    [
        ("openai", "", "https://api.openai.com/v1/chat/completions"),
        ("anthropic", "", "https://api.anthropic.com/v1/messages"),
        ("anthropic", "https://proxy.test/v1/", "https://proxy.test/v1/messages"),
        ("anthropic", "https://proxy.test/anthropic", "https://proxy.test/anthropic/v1/messages"),
        ("google", "", "https://generativelanguage.googleapis.com/v1beta/openai/chat/completions"),
        ("google", "https://g.test/v1beta", "https://g.test/v1beta/openai/chat/completions"),
        ("google", "https://g.test/own", "https://g.test/own/chat/completions"),
        ("ollama", "", "http://localhost:11434/v1/chat/completions"),
        ("ollama", "http://box:11434/", "http://box:11434/v1/chat/completions"),
        ("ollama", "http://box:11434/v2", "http://box:11434/v2/chat/completions"),
        ("openai-compat", "http://box:1/v1/", "http://box:1/v1/chat/completions"),
        ("openai-compat", "http://box:1", "http://box:1/chat/completions"),
        ("openai-compat", "http://box/v1?k=v", "http://box/v1/chat/completions?k=v"),
        ("azure", "https://me.test", "https://me.test/openai/v1/chat/completions"),
        ("azure", "https://me.test/openai/v1", "https://me.test/openai/v1/chat/completions"),
    ],
)
async def test_the_address_is_the_one_that_is_meant(type_name, base_url, url):
    assert (await post(type_name, base_url)).url == url


@pytest.mark.parametrize("name", ["api_version", "apiVersion", "api-version"])
async def test_azure_with_a_version_has_deployments(name):
    sent = await post(
        "azure", "https://me.test", request(model={"id": "my model"}), options={name: "2025-01"}
    )
    path = "/openai/deployments/my%20model/chat/completions?api-version=2025-01"
    assert sent.url == f"https://me.test{path}"
    assert sent.target == path
    assert name not in sent.body
    deployed = "https://me.test/openai/deployments/x"
    sent = await post("azure", deployed, options={name: "2025-01"})
    assert sent.url == f"{deployed}/chat/completions?api-version=2025-01"


async def test_a_provider_without_an_address_is_refused():
    async with open_providers(nowhere) as providers:
        for type_name in {*DIALECTS} - {*BASE_URLS}:
            with pytest.raises(ProviderRefused, match="base URL"):
                providers.provider(endpoint(type_name, ""))


@pytest.mark.parametrize("url", ["a.test", "ftp://a.test", "http://a:99999"])
async def test_a_base_url_that_names_no_server_is_refused_and_not_repeated(url):
    async with open_providers(nowhere) as providers:
        with pytest.raises(ProviderRefused, match="the base URL is not one of") as refused:
            providers.provider(endpoint("openai", url))
    assert url not in str(refused.value)


# ── Headers ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("type_name", "name", "value"),
    [
        ("openai", "authorization", "Bearer key-nobody-may-see"),
        ("azure", "api-key", "key-nobody-may-see"),
        ("anthropic", "x-api-key", "key-nobody-may-see"),
        ("anthropic", "anthropic-version", "2023-06-01"),
    ],
)
async def test_the_key_is_where_the_provider_looks_for_it(type_name, name, value):
    assert (await post(type_name, "https://a.test")).headers[name] == value


async def test_a_bearers_token_is_sent_as_one():
    sent = await post("anthropic", api_key="Bearer token")
    assert sent.headers["authorization"] == "Bearer token"
    assert "x-api-key" not in sent.headers


@pytest.mark.parametrize("type_name", ["ollama", "anthropic"])
async def test_without_a_key_there_is_no_header_for_it(type_name):
    headers = (await post(type_name, api_key="")).headers
    assert not headers.keys() & {"authorization", "x-api-key", "api-key"}


@pytest.mark.item("D23c")
@pytest.mark.parametrize("type_name", ["openai", "anthropic"])
async def test_two_headers_name_the_conversation(type_name):
    headers = (await post(type_name, asked=request(affinity="abc"))).headers
    assert [name for name, value in headers.items() if value == "abc"] == [
        "x-session-affinity",
        "x-session-id",
    ]
    assert headers["user-agent"].startswith("crush_trio/")
    assert not {"x-session-affinity", "x-session-id"} & (await post(type_name)).headers.keys()


async def test_headers_of_the_configuration_win_and_empty_ones_are_left_out():
    extra = {
        "Authorization": "Basic x",
        "X-Empty": "",
        "Host": "evil",
        "Content-Length": "1",
        "X-Own": "1",
    }
    headers = (await post("openai", extra_headers=extra)).headers
    assert headers["authorization"] == "Basic x"
    assert headers["x-own"] == "1"
    assert not headers.keys() & {"x-empty", "host", "content-length", "Authorization"}
