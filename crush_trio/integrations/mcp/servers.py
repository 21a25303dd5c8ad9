"""The MCP servers that a workspace is configured with: nothing, until it is configured with some.

Most workspaces have none. So what looks after them is imported when the configuration names the first,
and up to then nobody is asked and there is nothing to wait for.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import trio
from attrs import define, field

from crush_trio.errors import WorkspaceClosing
from crush_trio.integrations.base import (
    McpServers,
    NoMcpServers,
    ServerInstructions,
    Surroundings,
)
from crush_trio.nursery import open_hidden_nursery
from crush_trio.tools.base import Tool
from crush_trio.wire.integrations import McpClientInfo, McpPrompt, McpResource, PendingAuth

if TYPE_CHECKING:
    from crush_trio.integrations.mcp.fleet import McpFleet
    from crush_trio.integrations.mcp.session import Connector

_NOBODY: Final = NoMcpServers()


@define(eq=False)
class WorkspaceMcpServers:
    """Satisfies `McpServers`, in the name of those that are configured. Made by `open_mcp_servers`."""

    _surroundings: Surroundings
    _nursery: trio.Nursery = field(repr=False)
    _connector: "Connector | None" = field(repr=False)
    _fleet: "McpFleet | None" = field(default=None, init=False)
    _closed: bool = field(default=False, init=False)

    def _now(self) -> McpServers:
        """Return who answers: the servers as they are configured at this moment."""
        if self._fleet is None:
            if not self._surroundings.live.current.config.mcp or self._closed:
                return _NOBODY
            self._fleet = self._assembled()
        self._fleet.catch_up()
        return self._fleet

    def _assembled(self) -> "McpFleet":
        from crush_trio.integrations.mcp.fleet import McpFleet
        from crush_trio.integrations.mcp.session import SdkConnector

        connector = SdkConnector() if self._connector is None else self._connector
        return McpFleet(self._surroundings, connector, self._nursery)

    # ── For clients ─────────────────────────────────────────────────────────────────────────────

    def states(self) -> Mapping[str, McpClientInfo]:
        """Return how each of them does, by name."""
        return self._now().states()

    def pending_logins(self) -> tuple[PendingAuth, ...]:
        """Return those that wait for somebody to log in."""
        return self._now().pending_logins()

    def login_url(self, name: str) -> str:
        """Return where to log in to one of them."""
        return self._now().login_url(name)

    async def log_in(self, name: str) -> None:
        """Log in to one of them; raises `McpFailed`."""
        await self._now().log_in(name)

    def prompts(self) -> tuple[McpPrompt, ...]:
        """Return the prompts that they offer."""
        return self._now().prompts()

    async def prompt(self, name: str, prompt: str, arguments: Mapping[str, str]) -> str:
        """Return a prompt of one of them, filled in with *arguments*; raises `McpFailed`."""
        return await self._now().prompt(name, prompt, arguments)

    async def read_resource(self, name: str, uri: str) -> tuple[McpResource, ...]:
        """Return what one of them has at *uri*; raises `McpFailed`."""
        return await self._now().read_resource(name, uri)

    async def refresh_tools(self, name: str) -> None:
        """Ask one of them for its tools again."""
        await self._now().refresh_tools(name)

    async def refresh_prompts(self, name: str) -> None:
        """Ask one of them for its prompts again."""
        await self._now().refresh_prompts(name)

    async def refresh_resources(self, name: str) -> None:
        """Ask one of them for its resources again."""
        await self._now().refresh_resources(name)

    async def use_docker(self, wanted: bool) -> bool:
        """Change nothing, and say so."""
        return await self._now().use_docker(wanted)

    # ── For agents ──────────────────────────────────────────────────────────────────────────────

    def tools(self) -> tuple[Tool, ...]:
        """Return what an agent can do with them now."""
        return self._now().tools()

    def instructions(self) -> tuple[ServerInstructions, ...]:
        """Return what they have to say to an agent."""
        return self._now().instructions()

    async def settled(self) -> None:
        """Wait until none of them is being started."""
        await self._now().settled()

    # ── From `open_mcp_servers` ─────────────────────────────────────────────────────────────────

    async def follow(self) -> None:
        """Have the servers follow the configuration, until there will be no newer one."""
        live = self._surroundings.live
        revision = 0
        while True:
            try:
                revision = (await live.newer_than(revision)).revision
            except WorkspaceClosing:
                return  # noqa: ASYNC910  # waiting for a newer one is a checkpoint, also when it raises
            self._now()

    def close(self) -> None:
        """Stop them all; there will be no others."""
        self._closed = True
        if self._fleet is not None:
            self._fleet.close()


@asynccontextmanager
async def open_mcp_servers(
    surroundings: Surroundings, connector: "Connector | None" = None
) -> AsyncIterator[WorkspaceMcpServers]:
    """Have the MCP servers of a workspace, as it is configured, for the length of the block.

    They are started at once and beside each other; the block does not wait for them. When it has been
    left, none is there.
    """
    async with open_hidden_nursery() as nursery:
        servers = WorkspaceMcpServers(surroundings, nursery, connector)
        # It begins with the configuration of the moment, whichever that is by then.
        nursery.start_soon(servers.follow)  # noqa: ASYNC113
        try:
            yield servers
        finally:
            servers.close()
            nursery.cancel_scope.cancel()
