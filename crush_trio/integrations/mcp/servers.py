"""`WorkspaceMcpServers`: the MCP servers of one workspace, as its configuration names them (I.4).

One task per name owns the server of that name, and its successor if the configuration changes: the old
server has ended before the new one starts. Which servers there are is decided synchronously for each new
configuration. Servers start concurrently; only runs without a person at a client wait for them.

Most workspaces have no MCP server. The `mcp` package, which takes a second to import, is loaded by the
first connection (`session.py`).
"""

import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

import trio
from attrs import define, evolve, field

from crush_trio.config.snapshot import LoadedConfig
from crush_trio.errors import WorkspaceClosing
from crush_trio.integrations.base import McpFailed, ServerInstructions, Surroundings
from crush_trio.integrations.mcp.plan import McpServerPlan
from crush_trio.integrations.mcp.server import McpServer, mcp_event
from crush_trio.integrations.mcp.session import (
    Connector,
    ListKind,
    McpFailure,
    McpTarget,
    SdkConnector,
)
from crush_trio.integrations.mcp.tools import ListResourcesTool, ReadResourceTool, server_tools
from crush_trio.nursery import open_hidden_nursery
from crush_trio.tools.base import Tool
from crush_trio.tools.shell.environment import unattended_env
from crush_trio.wire.config import McpServerConfig
from crush_trio.wire.integrations import (
    McpClientInfo,
    McpEventType,
    McpPrompt,
    McpResource,
    McpState,
    PendingAuth,
)
from crush_trio.wire.requests import Scope

MAX_INSTRUCTIONS: Final = 8 * 1024
"""Characters of a server's instructions that are passed to a model."""

_NO_LOGIN: Final = (
    "it answers only those who have logged in, which cannot be done from here; configure a header or "
    "an oauth_token for it"
)


_DOCKER: Final = "docker"
_DOCKER_GATEWAY: Final = {
    "type": "stdio",
    "command": _DOCKER,
    "args": ["mcp", "gateway", "run"],
}
_NO_DOCKER: Final = (
    "the program is not installed; install Docker with its MCP Toolkit, then try again"
)


@asynccontextmanager
async def open_mcp_servers(
    surroundings: Surroundings, connector: Connector | None = None
) -> AsyncIterator["WorkspaceMcpServers"]:
    """Open the MCP servers of a workspace; when the block has been left, none of them runs.

    They start at once and concurrently; the block does not wait for them.
    """
    async with open_hidden_nursery() as nursery:
        servers = WorkspaceMcpServers(surroundings, connector or SdkConnector(), nursery)
        # It begins with the configuration that is current when the task starts.
        nursery.start_soon(servers.follow)  # noqa: ASYNC113
        try:
            yield servers
        finally:
            servers.close()
            nursery.cancel_scope.cancel()


@define(eq=False)
class WorkspaceMcpServers:
    """Satisfies `McpServers`. Made by `open_mcp_servers`, in whose nursery its tasks run.

    Every method first adopts the current configuration, so that an answer never lags behind a change
    which the task in `follow` has not seen yet.
    """

    _surroundings: Surroundings
    _connector: Connector = field(repr=False)
    _nursery: trio.Nursery = field(repr=False)
    _config: LoadedConfig | None = field(default=None, init=False, repr=False)
    """The configuration that the servers follow; None until one names a server."""
    _servers: dict[str, McpServer] = field(factory=dict, init=False)
    _kept: set[str] = field(factory=set, init=False)
    """The names that have a task; until its server has ended, also a name that was removed."""
    _closed: bool = field(default=False, init=False)

    # ── For clients ─────────────────────────────────────────────────────────────────────────────

    def states(self) -> Mapping[str, McpClientInfo]:
        """Return the state of each server, by name."""
        self._catch_up()
        return {name: server.info for name, server in sorted(self._servers.items())}

    def prompts(self) -> tuple[McpPrompt, ...]:
        """Return the prompts of all servers."""
        self._catch_up()
        return tuple(
            prompt for _, server in sorted(self._servers.items()) for prompt in server.offer.prompts
        )

    async def prompt(self, name: str, prompt: str, arguments: Mapping[str, str]) -> str:
        """Return a prompt of a server, filled in with *arguments*; raises `McpFailed`."""
        await trio.lowlevel.checkpoint()
        self._catch_up()
        if self._config is None:
            return ""
        try:
            server = self.server(name)
            return await server.use_briefly(lambda session: session.prompt(prompt, arguments))
        except McpFailure as failure:
            raise _failed(name, failure) from None

    async def read_resource(self, name: str, uri: str) -> tuple[McpResource, ...]:
        """Return the contents of the resource at *uri*; raises `McpFailed`."""
        await trio.lowlevel.checkpoint()
        self._catch_up()
        if self._config is None:
            return ()
        try:
            server = self.server(name)
            return await server.use_briefly(lambda session: session.read(uri))
        except McpFailure as failure:
            raise _failed(name, failure) from None

    async def refresh_tools(self, name: str) -> None:
        """Ask a server for its tools again."""
        await self._refresh(name, ListKind.TOOLS)

    async def refresh_prompts(self, name: str) -> None:
        """Ask a server for its prompts again."""
        await self._refresh(name, ListKind.PROMPTS)

    async def refresh_resources(self, name: str) -> None:
        """Ask a server for its resources again."""
        await self._refresh(name, ListKind.RESOURCES)

    async def _refresh(self, name: str, kind: ListKind) -> None:
        self._catch_up()
        await trio.lowlevel.checkpoint()
        server = self._servers.get(name)
        if server is not None:
            await server.refresh(kind)

    def pending_logins(self) -> tuple[PendingAuth, ...]:
        """Return nothing: interactive login is not supported."""
        self._catch_up()
        return ()

    def login_url(self, name: str) -> str:
        """Return nothing: interactive login is not supported."""
        self._catch_up()
        return ""

    async def log_in(self, name: str) -> None:
        """Raise `McpFailed` with advice if the server needs a login; else do nothing."""
        self._catch_up()
        await trio.lowlevel.checkpoint()
        server = self._servers.get(name)
        if server is not None and server.info.state is McpState.NEEDS_AUTH:
            raise _failed(name, McpFailure(_NO_LOGIN))

    async def use_docker(self, wanted: bool) -> bool:
        """Add Docker's gateway to the user's configuration or remove it; return whether it changed.

        Raises `McpFailed` without Docker, or if another file than the one that we write has it.
        """
        live, key = self._surroundings.live, f"mcp.{_DOCKER}"
        if wanted:
            path = live.current.environment.get("PATH", "")
            if await trio.to_thread.run_sync(partial(shutil.which, _DOCKER, path=path)) is None:
                raise _failed(_DOCKER, McpFailure(_NO_DOCKER))
            return await live.set(Scope.GLOBAL, key, _DOCKER_GATEWAY)
        changed = await live.remove(Scope.GLOBAL, key)
        if (source := live.current.origin("mcp", _DOCKER)) is not None:
            raise _failed(
                _DOCKER, McpFailure(f"it is configured in {source.path}; remove it there")
            )
        return changed

    # ── For agents ──────────────────────────────────────────────────────────────────────────────

    def tools(self) -> tuple[Tool, ...]:
        """Return the tools of the servers, and the two tools for resources.

        A server that was connected keeps its tools when it fails: their next use starts it again. One
        that could not be started is tried again, at most as often as its pauses allow.
        """
        self._catch_up()
        if not self._servers:
            return ()
        for each in self._servers.values():
            each.revive()
        directory = self._surroundings.directory
        return (
            *server_tools(self._servers.values(), directory),
            ListResourcesTool(self.server, directory),
            ReadResourceTool(self.server, directory),
        )

    def instructions(self) -> tuple[ServerInstructions, ...]:
        """Return the instructions of the connected servers, by name."""
        self._catch_up()
        given = ((name, each.offer.instructions) for name, each in sorted(self._servers.items()))
        return tuple(
            ServerInstructions(server=name, text=text[:MAX_INSTRUCTIONS])
            for name, text in given
            if text
        )

    async def settled(self) -> None:  # noqa: ASYNC910  # a run without MCP servers does not yield here
        """Wait until each server has started or failed; each has a time limit for that.

        One that failed and that another run has tried again meanwhile is not waited for twice.
        """
        self._catch_up()
        if self._config is not None:
            await trio.lowlevel.checkpoint()
        known = set[McpServer]()
        while new := [
            each for each in self._servers.values() if each.starting and each not in known
        ]:
            known |= {*new}
            for each in new:
                await each.settled()

    def server(self, name: str) -> McpServer:
        """Return a server; raises `McpFailure` if none has the name."""
        self._catch_up()
        try:
            return self._servers[name]
        except KeyError:
            raise McpFailure("no server of this name is configured") from None

    # ── Following the configuration ─────────────────────────────────────────────────────────────

    async def follow(self) -> None:
        """Adopt every new configuration until the workspace closes: a task of `open_mcp_servers`."""
        live = self._surroundings.live
        revision = 0
        while True:
            try:
                revision = (await live.newer_than(revision)).revision
            except WorkspaceClosing:
                return  # noqa: ASYNC910  # waiting for a newer one is a checkpoint, also when it raises
            self._catch_up()

    def _catch_up(self) -> None:
        """Adopt the current configuration: stop, start and retry servers as it says.

        Failed servers are retried only if the configuration really changed. A client may reload the
        configuration whenever a server fails; retrying on every reload would never end.
        """
        known, current = self._config, self._surroundings.live.current
        if self._closed or (known is None and not current.config.mcp):
            return
        if known is None:
            self._config = current
            self._arrange(current, retry=False)
        elif current.revision != known.revision:
            self._config = current
            changed = current.config != known.config or current.env != known.env
            self._arrange(current, retry=changed)

    def _arrange(self, config: LoadedConfig, *, retry: bool) -> None:
        """Stop servers that are no longer configured and start new ones; keep the unchanged."""
        wanted = {name: self._plan(config, name) for name in config.config.mcp}
        for name in sorted(self._servers.keys() - wanted.keys()):
            self._drop(name)
        for name, plan in wanted.items():
            present = self._servers.get(name)
            if present is None or present.plan != plan:
                self._put(plan)
            elif retry:
                present.retry()

    def _put(self, plan: McpServerPlan) -> None:
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
        self._surroundings.publish(mcp_event(McpEventType.STATE_CHANGED, gone))

    async def _keep(self, name: str) -> None:
        """Run the servers of one name, one after the other, until the name is removed."""
        await trio.lowlevel.checkpoint()
        while name in self._servers:
            await self._servers[name].live()
        self._kept.remove(name)

    def close(self) -> None:
        """Stop all servers for good, also those whose task has not begun."""
        self._closed = True
        for server in self._servers.values():
            server.stop()

    # ── Plans ───────────────────────────────────────────────────────────────────────────────────

    def _plan(self, config: LoadedConfig, name: str) -> McpServerPlan:
        return McpServerPlan(
            name=name,
            entry=config.config.mcp[name],
            refused=_refused(config, name),
            env=config.env,
            resolve=partial(config.resolve_mcp, name),
            target=partial(self._target, config, name),
        )

    def _target(self, config: LoadedConfig, name: str, entry: McpServerConfig) -> McpTarget:
        return McpTarget(
            name=name,
            config=_with_token(entry),
            directory=self._surroundings.directory,
            environment=unattended_env({**config.environment, **entry.env}),
            clock=self._surroundings.clock,
            sandbox=self._surroundings.sandbox,
        )


def _refused(config: LoadedConfig, name: str) -> str:
    """Return why a server must not be started; empty if the user configured or trusts it."""
    if config.may_run("mcp", name):
        return ""
    sources = config.expander.layers.contributors("mcp", name)
    untrusted = next(each for each in sources if not each.may_run)
    return f"not started, {untrusted.how_to_trust}"


def _with_token(entry: McpServerConfig) -> McpServerConfig:
    """Return an entry with its token in the headers, unless it has an Authorization header."""
    token = "" if entry.oauth_token is None else entry.oauth_token.access_token
    if not token or any(name.lower() == "authorization" for name in entry.headers):
        return entry
    return evolve(entry, headers={**entry.headers, "Authorization": f"Bearer {token}"})


def _failed(name: str, failure: McpFailure) -> McpFailed:
    return McpFailed(f"{name}: {failure}")
