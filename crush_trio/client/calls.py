"""Requests to the routes of one workspace.

A workspace that is gone, because its server was restarted or took the client for lost, is created
again and the request repeated. That is safe for every request: one that was answered with "there is
no such workspace" has done nothing.
"""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio
from attrs import define, field

from crush_trio.client.keeping import Keeper
from crush_trio.client.link import Query
from crush_trio.errors import WorkspaceNotFound

T = TypeVar("T")


@define(eq=False)
class Calls:
    """What the groups of routes are made of. Paths are those below the workspace."""

    keeper: Keeper = field(repr=False)

    async def get(self, path: str, answer: type[T], **query: str) -> T:
        """Read something."""
        return await self.ask("GET", path, answer, query=query)

    async def post(self, path: str, answer: type[T], body: object = None) -> T:
        """Have something done, and return what came of it."""
        return await self.ask("POST", path, answer, body=body)

    async def ask(
        self,
        method: str,
        path: str,
        answer: type[T],
        *,
        body: object = None,
        query: Query | None = None,
    ) -> T:
        """Send a request and return its answer."""
        keeper = self.keeper
        return await self._sent(
            lambda: keeper.link.ask(method, keeper.path(path), answer, body=body, query=query)
        )

    async def tell(
        self, method: str, path: str, body: object = None, query: Query | None = None
    ) -> bytes:
        """Send a request that is answered with success, and most of the time with nothing else."""
        keeper = self.keeper
        return await self._sent(
            lambda: keeper.link.tell(method, keeper.path(path), body=body, query=query)
        )

    async def _sent(self, send: Callable[[], Awaitable[T]]) -> T:
        """Send; if the workspace is gone, send again once it is back, whoever brought it back."""
        if self.keeper.picture.closed:
            raise trio.ClosedResourceError("the workspace has been left")
        asked = self.keeper.id
        try:
            return await send()
        except WorkspaceNotFound:
            if self.keeper.id == asked:
                await self.keeper.create()
            return await send()
