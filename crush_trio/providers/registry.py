"""Which provider speaks which language, and where it is if nobody says otherwise.

`open_providers` is the owner of the connections. It lives as long as a workspace, and providers that
are asked of it are cheap: every run may have its own, they share what is open.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Final
from urllib.parse import urlsplit

import trio
from attrs import define, evolve, field

from crush_trio.providers.anthropic.messages import MessagesProvider
from crush_trio.providers.base import Endpoint, Provider
from crush_trio.providers.dialing import Dial, Dialer, Origin, origin_of
from crush_trio.providers.errors import ProviderRefused, ProviderUnsupported
from crush_trio.providers.exchange import Connections
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
"""The types that speak chat completions."""

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
"""Where a type is, if its configuration has no base URL."""

UNSUPPORTED: Final[Mapping[str, str]] = {
    "bedrock": "use type anthropic with a key of Anthropic's, or a LiteLLM proxy before Bedrock",
    "google-vertex": "use type google with a Gemini API key, or a LiteLLM proxy before Vertex",
    "hyper": "use the type of the provider whose models you want",
}
"""Types that exist and that nothing here speaks, and what to do instead."""

CLOSE_LIMIT: Final = 1.0
"""Seconds that closing may take; it never waits for the other side."""

Family = Callable[[Endpoint, Connections], Provider]

_GEMINI_NATIVE: Final = ("/v1", "/v1beta")


def takes_media_results(type_name: str) -> bool:
    """Whether pictures may stand in the results of tools, or have to follow them (D23b)."""
    return type_name == ANTHROPIC


def located(endpoint: Endpoint) -> Endpoint:
    """Return *endpoint* with the base URL that is meant.

    Local servers are often given without the path that all of them have, and Gemini's without that
    of its compatible side.
    """
    usual = BASE_URLS.get(endpoint.type, "")
    given = endpoint.base_url.rstrip("/") or usual
    if not given:
        raise ProviderRefused(f"the provider {endpoint.provider} has no base URL")
    parts, path = urlsplit(given), urlsplit(usual).path
    native = endpoint.type == "google" and parts.path in _GEMINI_NATIVE
    if path and (not parts.path or native):
        given = parts._replace(path=path).geturl()
    return evolve(endpoint, base_url=given)


def family_of(type_name: str) -> Family:
    """Return what makes a provider of a type; raises `ProviderUnsupported` if nothing does."""
    if type_name == ANTHROPIC:
        return MessagesProvider
    if type_name in DIALECTS:
        return partial(ChatProvider, dialect=DIALECTS[type_name])
    advice = UNSUPPORTED.get(type_name, "use openai-compat if it speaks chat completions")
    raise ProviderUnsupported(f"{type_name or 'no type'}; {advice}")


@define(eq=False)
class Providers:
    """Makes providers, and has the connections that they share. `open_providers` makes one."""

    dial: Dial = field(repr=False)
    _connections: dict[Origin, Connections] = field(factory=dict, init=False)

    def provider(self, endpoint: Endpoint) -> Provider:
        """Return a provider for *endpoint*; raises a `ProviderError` if there can be none."""
        family = family_of(endpoint.type)
        endpoint = located(endpoint)
        origin = origin_of(endpoint.base_url)
        connections = self._connections.setdefault(origin, Connections(origin, self.dial))
        return family(endpoint, connections)

    @property
    def idle(self) -> int:
        """How many connections wait to be used again."""
        return sum(connections.idle for connections in self._connections.values())

    async def aclose(self) -> None:
        """Close the connections that nobody uses, and keep none from now on."""
        await trio.lowlevel.checkpoint()
        for connections in self._connections.values():
            await connections.aclose()


@asynccontextmanager
async def open_providers(dial: Dial | None = None) -> AsyncIterator[Providers]:
    """Open the owner of all connections to models; leaving closes those that are not in use.

    *dial* is how connections are made; a test gives one that leads into its own memory.
    """
    providers = Providers(dial or Dialer())
    try:
        yield providers
    finally:
        with trio.move_on_after(CLOSE_LIMIT, shield=True):
            await providers.aclose()
