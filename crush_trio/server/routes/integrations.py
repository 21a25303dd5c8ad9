"""Routes about language servers, MCP servers and skills (wire.md §3.5, §3.9, §3.10).

Each asks the integrations of its workspace. Four of the routes accept an unknown workspace, as the Go
program does: they treat it as one without MCP servers.
"""

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Final

from crush_trio.errors import NameMissing, WorkspaceNotFound
from crush_trio.integrations.base import NO_INTEGRATIONS, McpNotFound, McpServers
from crush_trio.server.audit_notes import DOCKER_ADDED, DOCKER_REMOVED
from crush_trio.server.routes.config import WRITING
from crush_trio.server.routing import WORKSPACE, Call, Query, Route, under
from crush_trio.server.tokens import Right
from crush_trio.wire.answers import Diagnostics, PromptText
from crush_trio.wire.fields import JsonObject
from crush_trio.wire.integrations import (
    AuthUrl,
    LspClientInfo,
    McpClientInfo,
    McpPrompt,
    McpResource,
    PendingAuth,
    SkillContent,
    SkillInfo,
)
from crush_trio.wire.requests import (
    LspStartRequest,
    McpPromptRequest,
    McpResourceRequest,
    McpServerRequest,
    SkillReadRequest,
)

_NO_LOGIN: Final = "never has one: `mcp/auth` says what to configure instead of a login"
_DOCKER_ERRORS: Final = ("mcp_failed", *WRITING)


# ── Language servers and skills ─────────────────────────────────────────────────────────────────


def lsp_states(call: Call) -> Mapping[str, LspClientInfo]:
    """Return the language servers by name."""
    return call.workspace.integrations.lsp.states()


def diagnostics(call: Call) -> Diagnostics:
    """Return a language server's diagnostics by document."""
    return call.workspace.integrations.lsp.diagnostics(call.values["name"])


async def start_lsp(call: Call) -> None:
    """Start the language servers for a file."""
    await call.workspace.integrations.lsp.start(call.body.path)


async def stop_lsp(call: Call) -> None:
    """Stop every language server."""
    await call.workspace.integrations.lsp.stop()


def skills(call: Call) -> tuple[SkillInfo, ...]:
    """Return the skills."""
    return tuple(call.workspace.integrations.skills.listed())


async def read_skill(call: Call) -> SkillContent:
    """Return the text of a skill."""
    return await call.workspace.integrations.skills.read(call.body.skill_id)


# ── MCP servers ─────────────────────────────────────────────────────────────────────────────────


def _mcp(call: Call) -> McpServers:
    """Return the MCP servers of a workspace that must exist."""
    return call.workspace.integrations.mcp


def _mcp_with(call: Call, name: str, otherwise: str = "not available") -> McpServers:
    """Return the MCP servers of a workspace in which one has the *name*; raises `McpNotFound`."""
    servers = _mcp(call)
    if name not in servers.states():
        raise McpNotFound(f"mcp '{name}' {otherwise}")
    return servers


def _mcp_if_any(call: Call) -> McpServers:
    """Return the MCP servers of a workspace; an unknown workspace has none."""
    with suppress(WorkspaceNotFound):
        return _mcp(call)
    return NO_INTEGRATIONS.mcp


def mcp_states(call: Call) -> Mapping[str, McpClientInfo]:
    """Return the MCP servers by name."""
    return _mcp_if_any(call).states()


def pending_logins(call: Call) -> tuple[PendingAuth, ...]:
    """Return the MCP servers that wait for a login."""
    return tuple(_mcp(call).pending_logins())


def login_url(call: Call) -> AuthUrl:
    """Return the URL to log in at."""
    return AuthUrl(auth_url=_mcp_if_any(call).login_url(call.query["name"]))


async def log_in(call: Call) -> JsonObject:
    """Log in to an MCP server."""
    name = call.body.name
    await _mcp_with(call, name, "not found in configuration").log_in(name)
    return {}


def mcp_prompts(call: Call) -> tuple[McpPrompt, ...]:
    """Return the prompts that the MCP servers offer."""
    return tuple(_mcp(call).prompts())


async def fill_prompt(call: Call) -> PromptText:
    """Return the text of an MCP server's prompt."""
    body: McpPromptRequest = call.body
    servers = _mcp_with(call, body.client_id)
    return PromptText(prompt=await servers.prompt(body.client_id, body.prompt_id, body.args))


async def read_resource(call: Call) -> tuple[McpResource, ...]:
    """Return the contents of an MCP server's resource."""
    body: McpResourceRequest = call.body
    return tuple(await _mcp_with(call, body.name).read_resource(body.name, body.uri))


async def refresh_tools(call: Call) -> None:
    """Ask an MCP server for its tools again."""
    await _mcp(call).refresh_tools(call.body.name)


async def refresh_prompts(call: Call) -> None:
    """Ask an MCP server for its prompts again."""
    await _mcp_if_any(call).refresh_prompts(call.body.name)


async def refresh_resources(call: Call) -> None:
    """Ask an MCP server for its resources again."""
    await _mcp_if_any(call).refresh_resources(call.body.name)


async def use_docker(wanted: bool, call: Call) -> None:
    """Add Docker's gateway, or remove it; a change of the configuration is told to the clients (G7)."""
    await call.workspace.integrations.mcp.use_docker(wanted)


def _check_name(name: str | None) -> None:
    if not name:
        raise NameMissing


ROUTES: Final = (
    *under(
        f"{WORKSPACE}/lsps",
        Route(
            "GET",
            "",
            "Show the language servers by name.",
            lsp_states,
            name="list_language_servers",
            answer=Mapping[str, LspClientInfo],
        ),
        Route(
            "GET",
            "/{name}/diagnostics",
            "Show a language server's diagnostics by document.",
            diagnostics,
            name="get_diagnostics",
            answer=Diagnostics,
            errors=("lsp_not_found",),
        ),
        Route(
            "POST",
            "/start",
            "Start the language servers for a file.",
            start_lsp,
            name="start_language_servers",
            body=LspStartRequest,
        ),
        Route(
            "POST", "/stop", "Stop every language server.", stop_lsp, name="stop_language_servers"
        ),
        group="Language servers",
    ),
    *under(
        f"{WORKSPACE}/skills",
        Route(
            "GET", "", "List the skills.", skills, name="list_skills", answer=tuple[SkillInfo, ...]
        ),
        Route(
            "POST",
            "/read",
            "Read a skill.",
            read_skill,
            name="read_skill",
            body=SkillReadRequest,
            right=Right.WATCH,
            answer=SkillContent,
            errors=("skill_not_found",),
        ),
        group="Skills",
    ),
    *under(
        f"{WORKSPACE}/mcp",
        Route(
            "GET",
            "/states",
            "Show the MCP servers by name.",
            mcp_states,
            name="list_mcp_servers",
            answer=Mapping[str, McpClientInfo],
            needs_workspace=False,
        ),
        Route(
            "GET",
            "/pending-auth",
            "List the MCP servers that wait for a login.",
            pending_logins,
            name="list_mcp_logins",
            answer=tuple[PendingAuth, ...],
            state=_NO_LOGIN,
        ),
        Route(
            "GET",
            "/auth-url",
            "Show the URL to log in at.",
            login_url,
            name="get_mcp_login_url",
            answer=AuthUrl,
            query=(Query("name", "the server", _check_name),),
            errors=("name_missing",),
            needs_workspace=False,
            state=_NO_LOGIN,
        ),
        Route(
            "POST",
            "/auth",
            "Log in to an MCP server; answers when that is done.",
            log_in,
            name="log_in_to_mcp_server",
            body=McpServerRequest,
            answer=JsonObject,
            errors=("mcp_failed", "mcp_not_found"),
            state="never logs in: says what to configure instead",
        ),
        Route(
            "GET",
            "/prompts",
            "List the prompts that the MCP servers offer.",
            mcp_prompts,
            name="list_mcp_prompts",
            answer=tuple[McpPrompt, ...],
        ),
        Route(
            "POST",
            "/get-prompt",
            "Return the text of an MCP server's prompt.",
            fill_prompt,
            name="get_mcp_prompt",
            body=McpPromptRequest,
            right=Right.ANSWER,
            answer=PromptText,
            errors=("mcp_failed", "mcp_not_found"),
        ),
        Route(
            "POST",
            "/read-resource",
            "Read a resource of an MCP server.",
            read_resource,
            name="read_mcp_resource",
            body=McpResourceRequest,
            right=Right.ANSWER,
            answer=tuple[McpResource, ...],
            errors=("mcp_failed", "mcp_not_found"),
        ),
        Route(
            "POST",
            "/refresh-tools",
            "Ask a server for its tools again.",
            refresh_tools,
            name="refresh_mcp_tools",
            body=McpServerRequest,
        ),
        Route(
            "POST",
            "/refresh-prompts",
            "Ask a server for its prompts again.",
            refresh_prompts,
            name="refresh_mcp_prompts",
            body=McpServerRequest,
            needs_workspace=False,
        ),
        Route(
            "POST",
            "/refresh-resources",
            "Ask a server for its resources again.",
            refresh_resources,
            name="refresh_mcp_resources",
            body=McpServerRequest,
            needs_workspace=False,
        ),
        Route(
            "POST",
            "/docker/enable",
            "Add Docker's gateway.",
            partial(use_docker, True),
            name="enable_docker_mcp",
            errors=_DOCKER_ERRORS,
            audit=DOCKER_ADDED,
        ),
        Route(
            "POST",
            "/docker/disable",
            "Remove Docker's gateway.",
            partial(use_docker, False),
            name="disable_docker_mcp",
            errors=_DOCKER_ERRORS,
            audit=DOCKER_REMOVED,
        ),
        group="MCP servers",
    ),
)
