"""The MCP servers that a workspace is configured with: nothing, until it is configured with some.

Most workspaces have none. So what looks after them is imported when the configuration names the first,
and up to then nobody is asked and there is nothing to wait for.

The MCP servers of one workspace, all together (I.4).

One task per name owns the server of that name, and the next one if the configuration changes: the
old one is gone before the new one begins, and what the old one was about to do has no way to matter
any more. What is to be there is decided in one step, without waiting, whenever there is a new
configuration. Servers start beside each other, and nobody waits for that but runs at which no person
sits.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

import trio
from attrs import define, evolve, field

from crush_trio.config.snapshot import LoadedConfig
from crush_trio.errors import WorkspaceClosing
from crush_trio.integrations.base import (
    McpFailed,
    McpServers,
    NoMcpServers,
    ServerInstructions,
    Surroundings,
)
from crush_trio.integrations.mcp.server import McpServer, Plan, event
from crush_trio.integrations.mcp.session import Connector, Listing, McpFailure, Target
from crush_trio.integrations.mcp.tools import ListResourcesTool, ReadResourceTool, server_tools
from crush_trio.nursery import open_hidden_nursery
from crush_trio.tools.base import Tool
from crush_trio.tools.shell.environment import unattended_env
from crush_trio.wire.config import McpServerConfig
from crush_trio.wire.events import McpEventType
from crush_trio.wire.integrations import (
    McpClientInfo,
    McpPrompt,
    McpResource,
    McpState,
    PendingAuth,
)

INSTRUCTIONS: Final = 8 * 1024
"""Characters of what one server tells models about itself."""

_NO_LOGIN: Final = (
    "it answers only those who have logged in, which cannot be done from here; configure a header or "
    "an oauth_token for it"
)


@define(eq=False)
class McpFleet:
    """Satisfies `McpServers`. Its tasks are in the nursery of `open_mcp_servers`."""

    _surroundings: Surroundings
    _connector: Connector = field(repr=False)
    _nursery: trio.Nursery = field(repr=False)
    _config: LoadedConfig = field(init=False, repr=False)
    _servers: dict[str, McpServer] = field(factory=dict, init=False)
    _kept: set[str] = field(factory=set, init=False)
    """The names that a task looks after; for a while also such as are not wanted any more."""
    _closed: bool = field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self._config = self._surroundings.live.current
        self._arrange()

    # ── What is there ───────────────────────────────────────────────────────────────────────────

    def states(self) -> Mapping[str, McpClientInfo]:
        """Return how each of them does, by name."""
        return {name: server.info for name, server in sorted(self._servers.items())}

    def prompts(self) -> tuple[McpPrompt, ...]:
        """Return the prompts that they offer."""
        return tuple(
            prompt for _, server in sorted(self._servers.items()) for prompt in server.offer.prompts
        )

    def tools(self) -> tuple[Tool, ...]:
        """Return the tools of those that are connected, and what reads resources if there are any."""
        if not self._servers:
            return ()
        directory = self._surroundings.directory
        return (
            *server_tools(self._servers.values(), directory),
            ListResourcesTool(self.server, directory),
            ReadResourceTool(self.server, directory),
        )

    def instructions(self) -> tuple[ServerInstructions, ...]:
        """Return what those that are connected have to say to models."""
        said = ((name, each.offer.instructions) for name, each in sorted(self._servers.items()))
        return tuple(
            ServerInstructions(server=name, text=text[:INSTRUCTIONS]) for name, text in said if text
        )

    async def settled(self) -> None:
        """Wait until none of them is being started; each has a time limit for that."""
        await trio.lowlevel.checkpoint()
        while starting := [each for each in self._servers.values() if each.starting]:
            await starting[0].settled()

    # ── What can be asked of one ────────────────────────────────────────────────────────────────

    async def prompt(self, name: str, prompt: str, arguments: Mapping[str, str]) -> str:
        """Return a prompt of one of them, filled in with *arguments*; raises `McpFailed`."""
        try:
            server = self.server(name)
            return await server.use_briefly(lambda session: session.prompt(prompt, arguments))
        except McpFailure as failure:
            raise _failed(name, failure) from None

    async def read_resource(self, name: str, uri: str) -> tuple[McpResource, ...]:
        """Return what one of them has at *uri*; raises `McpFailed`."""
        try:
            server = self.server(name)
            return await server.use_briefly(lambda session: session.read(uri))
        except McpFailure as failure:
            raise _failed(name, failure) from None

    async def refresh_tools(self, name: str) -> None:
        """Ask one of them for its tools again."""
        await self._refresh(name, Listing.TOOLS)

    async def refresh_prompts(self, name: str) -> None:
        """Ask one of them for its prompts again."""
        await self._refresh(name, Listing.PROMPTS)

    async def refresh_resources(self, name: str) -> None:
        """Ask one of them for its resources again."""
        await self._refresh(name, Listing.RESOURCES)

    async def _refresh(self, name: str, listing: Listing) -> None:
        await trio.lowlevel.checkpoint()
        server = self._servers.get(name)
        if server is not None:
            await server.refresh(listing)

    def server(self, name: str) -> McpServer:
        """Return one of them; raises `McpFailure` if there is none of the name."""
        try:
            return self._servers[name]
        except KeyError:
            raise McpFailure("no server of this name is configured") from None

    # ── Logging in ──────────────────────────────────────────────────────────────────────────────

    def pending_logins(self) -> tuple[PendingAuth, ...]:
        """Return nothing: where to log in is not found out."""
        return ()

    def login_url(self, name: str) -> str:
        """Return nothing: no login is ever under way."""
        return ""

    async def log_in(self, name: str) -> None:
        """Say what to do instead, to a server that wants it; raises `McpFailed`."""
        await trio.lowlevel.checkpoint()
        server = self._servers.get(name)
        if server is not None and server.info.state is McpState.NEEDS_AUTH:
            raise _failed(name, McpFailure(_NO_LOGIN))

    async def use_docker(self, wanted: bool) -> bool:
        """Change nothing: Docker's gateway is a server like any other, and configured like one."""
        await trio.lowlevel.checkpoint()
        return False

    # ── Following the configuration ─────────────────────────────────────────────────────────────

    def catch_up(self) -> None:
        """Arrange the servers as the configuration of this moment wants it.

        Whoever hears that a server has failed may have the configuration read again. That alone is no
        reason to try again, or the two would never come to rest.
        """
        if self._closed or self._surroundings.live.current.revision == self._config.revision:
            return
        known, self._config = self._config, self._surroundings.live.current
        changed = self._config.config != known.config or self._config.env != known.env
        self._arrange(retry=changed)

    def _arrange(self, *, retry: bool = False) -> None:
        """Stop what is not wanted any more, start what is; leave alone what is there already."""
        wanted = {name: self._plan(name, entry) for name, entry in self._config.config.mcp.items()}
        for name in sorted(self._servers.keys() - wanted.keys()):
            self._drop(name)
        for name, plan in wanted.items():
            present = self._servers.get(name)
            if present is None or present.plan != plan:
                self._put(plan)
            elif retry:
                present.retry()

    def _put(self, plan: Plan) -> None:
        if plan.name in self._servers:
            self._servers[plan.name].stop()
        self._servers[plan.name] = McpServer(
            plan=plan,
            connector=self._connector,
            publish=self._surroundings.publish,
            clock=self._surroundings.clock,
        )
        if plan.name not in self._kept:
            self._kept.add(plan.name)
            self._nursery.start_soon(self._keep, plan.name, name=f"MCP server {plan.name}")

    def _drop(self, name: str) -> None:
        server = self._servers.pop(name)
        server.stop()
        gone = McpClientInfo(name=name, state=McpState.DISABLED)
        self._surroundings.publish(event(McpEventType.STATE_CHANGED, gone))

    async def _keep(self, name: str) -> None:
        """Have the servers of one name live, one after the other, for as long as there is one."""
        await trio.lowlevel.checkpoint()
        while name in self._servers:
            await self._servers[name].live()
        self._kept.remove(name)

    def close(self) -> None:
        """Stop them all for good, also those that nobody has begun to look after."""
        self._closed = True
        for server in self._servers.values():
            server.stop()

    # ── Plans ───────────────────────────────────────────────────────────────────────────────────

    def _plan(self, name: str, entry: McpServerConfig) -> Plan:
        config = self._config
        return Plan(
            name=name,
            entry=entry,
            refused=_refused(config, name),
            env=config.env,
            resolve=partial(config.resolve_mcp, name),
            target=partial(self._target, config, name),
        )

    def _target(self, config: LoadedConfig, name: str, entry: McpServerConfig) -> Target:
        return Target(
            name=name,
            config=_with_token(entry),
            directory=self._surroundings.directory,
            environment=unattended_env({**config.environment, **entry.env}),
            clock=self._surroundings.clock,
        )


def _refused(config: LoadedConfig, name: str) -> str:
    """Return why a server must not be started; nothing if it is the user's word that it is."""
    if config.may_run("mcp", name):
        return ""
    sources = config.expander.layers.contributors("mcp", name)
    stranger = next(each for each in sources if not each.may_run)
    return f"not started, {stranger.how_to_trust(config.places.data_file)}"


def _with_token(entry: McpServerConfig) -> McpServerConfig:
    """Return a server with its token among the headers, unless it has a header for that."""
    token = "" if entry.oauth_token is None else entry.oauth_token.access_token
    if not token or any(name.lower() == "authorization" for name in entry.headers):
        return entry
    return evolve(entry, headers={**entry.headers, "Authorization": f"Bearer {token}"})


def _failed(name: str, failure: McpFailure) -> McpFailed:
    return McpFailed(f"{name}: {failure}")


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
