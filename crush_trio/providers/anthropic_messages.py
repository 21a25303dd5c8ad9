"""Models behind Anthropic's messages."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from attrs import field, frozen

from crush_trio.providers.base import Endpoint, ModelRequest, Parts
from crush_trio.providers.exchange import Connections
from crush_trio.providers.messages_prompt import messages_body
from crush_trio.providers.messages_reading import MessagesReading
from crush_trio.providers.posting import Post, headers_for, joined, open_parts, secrets_of

API_VERSION: Final = "2023-06-01"


@frozen
class MessagesProvider:
    """Satisfies `Provider`. The base URL of *endpoint* is what comes before `/v1/messages`."""

    endpoint: Endpoint
    connections: Connections = field(repr=False)

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[Parts]:
        """Open one answer; see `Provider.stream`."""
        secrets = secrets_of(self.endpoint)
        reading = MessagesReading(secrets=secrets)
        async with open_parts(self.connections, self.post(request), reading, secrets) as parts:
            yield parts

    def post(self, request: ModelRequest) -> Post:
        """Return what is sent for *request*."""
        own = {"anthropic-version": API_VERSION, **self._login()}
        above = "" if self.endpoint.base_url.rstrip("/").endswith("/v1") else "/v1"
        return Post(
            url=joined(self.endpoint.base_url, f"{above}/messages"),
            headers=headers_for(self.endpoint, request, own),
            body=messages_body(request, self.endpoint),
        )

    def _login(self) -> dict[str, str]:
        """Return the header with the key. One that says that it is a bearer's token is sent as one."""
        key = self.endpoint.api_key
        if key.lower().startswith("bearer "):
            return {"authorization": key}
        return {"x-api-key": key}
