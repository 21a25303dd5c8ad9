"""Models behind OpenAI's chat completions, and behind everything that speaks like them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import quote

from attrs import field, frozen

from crush_trio.providers.base import Endpoint, ModelRequest, Parts
from crush_trio.providers.chat_prompt import OUR_OPTIONS, Dialect, chat_body
from crush_trio.providers.chat_reading import ChatReading
from crush_trio.providers.exchange import Connections
from crush_trio.providers.posting import Post, headers_for, joined, open_parts, secrets_of
from crush_trio.providers.settings import model_id, options_of


@frozen
class ChatProvider:
    """Satisfies `Provider`. The base URL of *endpoint* is what comes before `/chat/completions`."""

    endpoint: Endpoint
    connections: Connections = field(repr=False)
    dialect: Dialect

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[Parts]:
        """Open one answer; see `Provider.stream`."""
        secrets = secrets_of(self.endpoint)
        reading = ChatReading(prefix=f"call_{len(request.messages)}", secrets=secrets)
        async with open_parts(self.connections, self.post(request), reading, secrets) as parts:
            yield parts

    def post(self, request: ModelRequest) -> Post:
        """Return what is sent for *request*."""
        key = self.endpoint.api_key
        own = {"api-key": key} if self.dialect.azure else {"authorization": f"Bearer {key}"}
        return Post(
            url=self._azure_url(request) if self.dialect.azure else self._url,
            headers=headers_for(self.endpoint, request, own if key else {}),
            body=chat_body(request, self.endpoint, self.dialect),
        )

    @property
    def _url(self) -> str:
        return joined(self.endpoint.base_url, "/chat/completions")

    def _azure_url(self, request: ModelRequest) -> str:
        """Return the address at Azure.

        With an API version among the options, each model is a deployment and has a path of its own;
        without one, the address is the newer one, which needs none.
        """
        options = options_of(request, self.endpoint)
        version = next((str(options[name]) for name in OUR_OPTIONS if options.get(name)), "")
        if not version:
            above = "" if self.endpoint.base_url.rstrip("/").endswith("/v1") else "/openai/v1"
            return joined(self.endpoint.base_url, f"{above}/chat/completions")
        above = "" if "/deployments/" in self.endpoint.base_url else "/openai/deployments/"
        model = quote(model_id(request), safe="") if above else ""
        query = f"api-version={quote(version, safe='')}"
        return joined(self.endpoint.base_url, f"{above}{model}/chat/completions", query)
