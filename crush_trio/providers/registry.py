"""The registry of provider types: wire format, default base URL, and the providers themselves.

`open_providers` owns the connections and lives as long as a workspace. The providers that it makes are
cheap: every run may have its own, and they share the connections.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Final
from urllib.parse import urlsplit

from attrs import define, evolve, field

from crush_trio.config.known_providers import UNSUPPORTED
from crush_trio.net.address import origin_of
from crush_trio.net.client import HttpClient, Transport, open_http_client
from crush_trio.net.dial import Dial, Dialer
from crush_trio.providers.anthropic.messages import MessagesProvider
from crush_trio.providers.base import Endpoint, Provider
from crush_trio.providers.errors import ProviderRefused, ProviderUnsupported, translated
from crush_trio.providers.openai.chat import ChatProvider
from crush_trio.providers.openai.request import Dialect

_PLAIN: Final = Dialect()
_ROUTER: Final = Dialect(routes=True, files=True)

DIALECTS: Final[Mapping[str, Dialect]] = {
    "openai": Dialect(openai=True, files=True),
    "azure": Dialect(openai=True, files=True, azure=True),
    "openrouter": _ROUTER,
    "vercel": _ROUTER,
    "google": Dialect(gemini=True),
    "openai-compat": _PLAIN,
    "litellm": _PLAIN,
    "llamacpp": _PLAIN,
    "lmstudio": _PLAIN,
    "ollama": _PLAIN,
    "omlx": _PLAIN,
    "vllm": _PLAIN,
}
"""The types that use the chat completions format."""

ANTHROPIC: Final = "anthropic"

BASE_URLS: Final[Mapping[str, str]] = {
    ANTHROPIC: "https://api.anthropic.com",
    "openai": "https://api.openai.com/v1",
    "openrouter": "https://openrouter.ai/api/v1",
    "vercel": "https://ai-gateway.vercel.sh/v1",
    "google": "https://generativelanguage.googleapis.com/v1beta/openai",
    "litellm": "http://localhost:4000/v1",
    "llamacpp": "http://localhost:8080/v1",
    "lmstudio": "http://localhost:1234/v1",
    "ollama": "http://localhost:11434/v1",
    "omlx": "http://localhost:8000/v1",
    "vllm": "http://localhost:8000/v1",
}
"""Default base URLs."""

Family = Callable[[Endpoint, Transport], Provider]

_GEMINI_NATIVE: Final = ("/v1", "/v1beta")


def takes_media_results(type_name: str) -> bool:
    """Whether images may be inside tool results; otherwise they follow them (D23b)."""
    return type_name == ANTHROPIC


def located(endpoint: Endpoint) -> Endpoint:
    """Return *endpoint* with its base URL completed.

    Local servers are often configured without the path that all of them have, and Gemini without that
    of its OpenAI-compatible API.
    """
    default = BASE_URLS.get(endpoint.type, "")
    given = endpoint.base_url.rstrip("/") or default
    if not given:
        raise ProviderRefused(f"the provider {endpoint.provider} has no base URL")
    parts, path = urlsplit(given), urlsplit(default).path
    native = endpoint.type == "google" and parts.path in _GEMINI_NATIVE
    if path and (not parts.path or native):
        given = parts._replace(path=path).geturl()
    return evolve(endpoint, base_url=given)


def family_of(type_name: str) -> Family:
    """Return the factory of a type's providers; raises `ProviderUnsupported`."""
    if type_name == ANTHROPIC:
        return MessagesProvider
    if type_name in DIALECTS:
        return partial(ChatProvider, dialect=DIALECTS[type_name])
    advice = UNSUPPORTED.get(type_name, "use openai-compat if it speaks chat completions")
    raise ProviderUnsupported(f"{type_name or 'no type'}; {advice}")


@define(eq=False)
class Providers:
    """Makes providers, which share the connections of one HTTP client. `open_providers` makes one."""

    http: HttpClient = field(repr=False)

    def provider(self, endpoint: Endpoint) -> Provider:
        """Return a provider for *endpoint*; raises a `ProviderError` if its settings are not usable."""
        family = family_of(endpoint.type)
        endpoint = located(endpoint)
        with translated():
            origin_of(endpoint.base_url)
        return family(endpoint, self.http)

    @property
    def idle(self) -> int:
        """How many connections wait to be used again."""
        return self.http.idle


@asynccontextmanager
async def open_providers(
    dial: Dial | None = None, *, environment: Mapping[str, str] | None = None
) -> AsyncIterator[Providers]:
    """Open the owner of the connections to models; leaving closes those that are not in use.

    *environment* names proxies and certificates; it is the workspace's, not the process's. *dial* opens
    connections instead; a test passes one that leads to a server in memory.
    """
    async with open_http_client(dial or Dialer(environment or {})) as http:
        yield Providers(http)
