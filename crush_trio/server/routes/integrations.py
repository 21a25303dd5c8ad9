"""Routes about language servers, MCP servers and skills (wire.md §3.5, §3.9, §3.10).

Each asks the integrations of its workspace. Four of the routes know no unknown workspace: to them it
is one that has nothing.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from quart import Blueprint, Response, request

from crush_trio.errors import NameMissing, WorkspaceNotFound
from crush_trio.integrations.base import NO_INTEGRATIONS, McpServers
from crush_trio.server.answers import answer, nothing, read_body
from crush_trio.server.server import Site
from crush_trio.wire.integrations import AuthUrl
from crush_trio.wire.requests import (
    LspStartRequest,
    McpPromptRequest,
    McpResourceRequest,
    McpServerRequest,
    SkillReadRequest,
)
from crush_trio.wire.views import PromptText

B = TypeVar("B")

_BASE = "/v1/workspaces/<wid>"


def routes() -> Blueprint:
    """Return the routes of this group."""
    group = Blueprint("integrations", __name__)
    _lsp(group)
    _skills(group)
    _mcp_reads(group)
    _mcp_actions(group)
    return group


def _lsp(group: Blueprint) -> None:
    @group.get(f"{_BASE}/lsps")
    def lsps(site: Site, wid: str) -> Response:
        return answer(site.opened(wid).integrations.lsp.states())

    @group.get(f"{_BASE}/lsps/<name>/diagnostics")
    def diagnostics(site: Site, wid: str, name: str) -> Response:
        return answer(site.opened(wid).integrations.lsp.diagnostics(name))

    @group.post(f"{_BASE}/lsps/start")
    async def lsp_start(site: Site, wid: str) -> Response:
        servers = site.opened(wid).integrations.lsp
        await servers.start((await read_body(LspStartRequest)).path)
        return nothing()

    @group.post(f"{_BASE}/lsps/stop")
    async def lsp_stop(site: Site, wid: str) -> Response:
        await site.opened(wid).integrations.lsp.stop()
        return nothing()


def _skills(group: Blueprint) -> None:
    @group.get(f"{_BASE}/skills")
    def skills(site: Site, wid: str) -> Response:
        return answer(site.opened(wid).integrations.skills.listed())

    @group.post(f"{_BASE}/skills/read")
    async def read_skill(site: Site, wid: str) -> Response:
        known = site.opened(wid).integrations.skills
        return answer(await known.read((await read_body(SkillReadRequest)).skill_id))


def _mcp_reads(group: Blueprint) -> None:
    @group.get(f"{_BASE}/mcp/states")
    def states(site: Site, wid: str) -> Response:
        return answer(_anywhere(site, wid).states())

    @group.get(f"{_BASE}/mcp/pending-auth")
    def pending_auth(site: Site, wid: str) -> Response:
        return answer(_mcp(site, wid).pending_logins())

    @group.get(f"{_BASE}/mcp/auth-url")
    def auth_url(site: Site, wid: str) -> Response:
        name = request.args.get("name")
        if not name:
            raise NameMissing
        return answer(AuthUrl(auth_url=_anywhere(site, wid).login_url(name)))

    @group.get(f"{_BASE}/mcp/prompts")
    def prompts(site: Site, wid: str) -> Response:
        return answer(_mcp(site, wid).prompts())


def _mcp_actions(group: Blueprint) -> None:
    def add(
        name: str,
        body: type[B],
        act: Callable[[McpServers, B], Awaitable[object]],
        find: Callable[[Site, str], McpServers] = _mcp,
    ) -> None:
        """Add a route that reads its body, acts, and answers with what that gave, if anything."""

        async def handle(site: Site, wid: str) -> Response:
            servers = find(site, wid)
            given = await act(servers, await read_body(body))
            return nothing() if given is None else answer(given)

        group.add_url_rule(f"{_BASE}/mcp/{name}", f"mcp_{name}", handle, methods=["POST"])

    add("auth", McpServerRequest, _log_in)
    add("get-prompt", McpPromptRequest, _prompt)
    add("read-resource", McpResourceRequest, lambda mcp, of: mcp.read_resource(of.name, of.uri))
    add("refresh-tools", McpServerRequest, lambda mcp, of: mcp.refresh_tools(of.name))
    add(
        "refresh-prompts", McpServerRequest, lambda mcp, of: mcp.refresh_prompts(of.name), _anywhere
    )
    add(
        "refresh-resources",
        McpServerRequest,
        lambda mcp, of: mcp.refresh_resources(of.name),
        _anywhere,
    )

    @group.post(f"{_BASE}/mcp/docker/enable")
    async def docker_enable(site: Site, wid: str) -> Response:
        return await _use_docker(site, wid, True)

    @group.post(f"{_BASE}/mcp/docker/disable")
    async def docker_disable(site: Site, wid: str) -> Response:
        return await _use_docker(site, wid, False)


def _mcp(site: Site, wid: str) -> McpServers:
    """Return the MCP servers of a workspace that must be there."""
    return site.opened(wid).integrations.mcp


def _anywhere(site: Site, wid: str) -> McpServers:
    """Return the MCP servers of a workspace; one that is not there has none."""
    with suppress(WorkspaceNotFound):
        return _mcp(site, wid)
    return NO_INTEGRATIONS.mcp


async def _log_in(mcp: McpServers, wanted: McpServerRequest) -> object:
    await mcp.log_in(wanted.name)
    return {}


async def _prompt(mcp: McpServers, wanted: McpPromptRequest) -> object:
    return PromptText(prompt=await mcp.prompt(wanted.client_id, wanted.prompt_id, wanted.args))


async def _use_docker(site: Site, wid: str, wanted: bool) -> Response:
    """Add Docker's gateway, or remove it; the clients are told if that made a difference (G7)."""
    opened = site.opened(wid)
    if await opened.integrations.mcp.use_docker(wanted):
        opened.config_changed()
    return nothing()
