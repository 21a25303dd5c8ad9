"""Routes about language servers, MCP servers and skills (wire.md §3.5, §3.9, §3.10).

This build has none of them. Each route checks what it is sent and answers with the empty value that
its clients understand.
"""

from typing import Any

import trio
from quart import Blueprint, Response, request

from crush_trio.errors import LspNotFound, NameMissing, SkillNotFound
from crush_trio.server.answers import answer, nothing, read_body
from crush_trio.server.site import Site
from crush_trio.wire.integrations import AuthUrl
from crush_trio.wire.requests import (
    LspStartRequest,
    McpPromptRequest,
    McpResourceRequest,
    McpServerRequest,
    SkillReadRequest,
)
from crush_trio.wire.views import PromptText

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
        site.opened(wid)
        return answer({})

    @group.get(f"{_BASE}/lsps/<name>/diagnostics")
    async def diagnostics(site: Site, wid: str, name: str) -> Response:
        site.opened(wid)
        raise LspNotFound(name)

    @group.post(f"{_BASE}/lsps/start")
    async def lsp_start(site: Site, wid: str) -> Response:
        site.opened(wid)
        await read_body(LspStartRequest)
        return nothing()

    @group.post(f"{_BASE}/lsps/stop")
    def lsp_stop(site: Site, wid: str) -> Response:
        site.opened(wid)
        return nothing()


def _skills(group: Blueprint) -> None:
    @group.get(f"{_BASE}/skills")
    def skills(site: Site, wid: str) -> Response:
        site.opened(wid)
        return answer([])

    @group.post(f"{_BASE}/skills/read")
    async def read_skill(site: Site, wid: str) -> Response:
        site.opened(wid)
        raise SkillNotFound((await read_body(SkillReadRequest)).skill_id)


def _mcp_reads(group: Blueprint) -> None:
    @group.get(f"{_BASE}/mcp/states")
    def states(site: Site, wid: str) -> Response:
        return answer({})

    @group.get(f"{_BASE}/mcp/pending-auth")
    def pending_auth(site: Site, wid: str) -> Response:
        site.opened(wid)
        return answer([])

    @group.get(f"{_BASE}/mcp/auth-url")
    def auth_url(site: Site, wid: str) -> Response:
        if not request.args.get("name"):
            raise NameMissing
        return answer(AuthUrl())

    @group.get(f"{_BASE}/mcp/prompts")
    def prompts(site: Site, wid: str) -> Response:
        site.opened(wid)
        return answer([])


def _mcp_actions(group: Blueprint) -> None:
    def add(
        name: str,
        body: type[Any] | None,
        empty: object,
        *,
        known: bool = True,
        changes_config: bool = False,
    ) -> None:
        """Add a route that checks its workspace and its body, and answers with *empty*."""

        async def act(site: Site, wid: str) -> Response:
            await trio.lowlevel.checkpoint()
            if known:
                site.opened(wid)
            if body is not None:
                await read_body(body)
            if changes_config:
                site.opened(wid).config_changed()
            return nothing() if empty is None else answer(empty)

        group.add_url_rule(f"{_BASE}/mcp/{name}", f"mcp_{name}", act, methods=["POST"])

    add("auth", McpServerRequest, {})
    add("get-prompt", McpPromptRequest, PromptText(prompt=""))
    add("read-resource", McpResourceRequest, [])
    add("refresh-tools", McpServerRequest, None)
    add("refresh-prompts", McpServerRequest, None, known=False)
    add("refresh-resources", McpServerRequest, None, known=False)
    add("docker/enable", None, None, changes_config=True)
    add("docker/disable", None, None, changes_config=True)
