"""Routes of the workspace: configuration, project set-up, language servers, MCP servers, skills."""

from collections.abc import Mapping

from attrs import frozen

from crush_trio.client.attachment import Calls
from crush_trio.client.http import segment
from crush_trio.wire.answers import NeedsInit, PromptText
from crush_trio.wire.codec import unstructure
from crush_trio.wire.config import Config, OAuthToken, SelectedModel, TokenImport
from crush_trio.wire.fields import Json, JsonObject
from crush_trio.wire.ids import SkillId
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
    ConfigCompactRequest,
    ConfigModelRequest,
    ConfigRemoveRequest,
    ConfigSetRequest,
    KeyKind,
    LspStartRequest,
    McpPromptRequest,
    McpResourceRequest,
    McpServerRequest,
    ModelType,
    ProviderKeyRequest,
    RefreshOAuthRequest,
    Scope,
    SkillReadRequest,
)


@frozen(eq=False)
class LspRoutes:
    """The language servers of a workspace."""

    _calls: Calls

    async def list(self) -> dict[str, LspClientInfo]:
        """Return the language servers by name."""
        return await self._calls.get("/lsps", dict[str, LspClientInfo])

    async def diagnostics(self, name: str) -> dict[str, tuple[JsonObject, ...]]:
        """Return a server's diagnostics by document, as the server wrote them."""
        path = f"/lsps/{segment(name)}/diagnostics"
        return await self._calls.get(path, dict[str, tuple[JsonObject, ...]])

    async def start(self, path: str) -> None:
        """Start the language servers for a file."""
        await self._calls.tell("POST", "/lsps/start", LspStartRequest(path=path))

    async def stop(self) -> None:
        """Stop every language server."""
        await self._calls.tell("POST", "/lsps/stop")


@frozen(eq=False)
class SkillRoutes:
    """The skills that a workspace knows."""

    _calls: Calls

    async def list(self) -> tuple[SkillInfo, ...]:
        """Return the skills."""
        return await self._calls.get("/skills", tuple[SkillInfo, ...])

    async def read(self, skill: SkillId) -> SkillContent:
        """Return the file of a skill; raises `SkillNotFound`."""
        return await self._calls.post(
            "/skills/read", SkillContent, SkillReadRequest(skill_id=skill)
        )


@frozen(eq=False)
class McpRoutes:
    """The MCP servers of a workspace."""

    _calls: Calls

    async def list(self) -> dict[str, McpClientInfo]:
        """Return the servers by name."""
        return await self._calls.get("/mcp/states", dict[str, McpClientInfo])

    async def pending_logins(self) -> tuple[PendingAuth, ...]:
        """Return the servers that wait for a login."""
        return await self._calls.get("/mcp/pending-auth", tuple[PendingAuth, ...])

    async def login_url(self, name: str) -> str:
        """Return where to log in to a server; empty if no login is under way."""
        return (await self._calls.get("/mcp/auth-url", AuthUrl, name=name)).auth_url

    async def log_in(self, name: str) -> None:
        """Log in to a server; waits until the user has done so."""
        await self._calls.tell("POST", "/mcp/auth", McpServerRequest(name=name))

    async def prompts(self) -> tuple[McpPrompt, ...]:
        """Return the prompts that the servers offer."""
        return await self._calls.get("/mcp/prompts", tuple[McpPrompt, ...])

    async def prompt(
        self, name: str, prompt: str, arguments: Mapping[str, str] | None = None
    ) -> str:
        """Return a prompt of a server, filled in with *arguments*."""
        body = McpPromptRequest(client_id=name, prompt_id=prompt, args=arguments or {})
        return (await self._calls.post("/mcp/get-prompt", PromptText, body)).prompt

    async def read_resource(self, name: str, uri: str) -> tuple[McpResource, ...]:
        """Return the resource of a server at *uri*."""
        body = McpResourceRequest(name=name, uri=uri)
        return await self._calls.post("/mcp/read-resource", tuple[McpResource, ...], body)

    async def refresh_tools(self, name: str) -> None:
        """Ask a server for its tools again."""
        await self._calls.tell("POST", "/mcp/refresh-tools", McpServerRequest(name=name))

    async def refresh_prompts(self, name: str) -> None:
        """Ask a server for its prompts again."""
        await self._calls.tell("POST", "/mcp/refresh-prompts", McpServerRequest(name=name))

    async def refresh_resources(self, name: str) -> None:
        """Ask a server for its resources again."""
        await self._calls.tell("POST", "/mcp/refresh-resources", McpServerRequest(name=name))

    async def enable_docker(self) -> None:
        """Add Docker's gateway."""
        await self._calls.tell("POST", "/mcp/docker/enable")

    async def disable_docker(self) -> None:
        """Remove Docker's gateway."""
        await self._calls.tell("POST", "/mcp/docker/disable")


@frozen(eq=False)
class ConfigRoutes:
    """The configuration. `scope` says which file a change goes to; keys are dotted paths."""

    _calls: Calls

    async def get(self) -> Config:
        """Return the configuration, without its secrets."""
        return await self._calls.get("/config", Config)

    async def set(self, key: str, value: Json, scope: Scope = Scope.WORKSPACE) -> None:
        """Set the value at a key; the value is plain JSON."""
        body = ConfigSetRequest(scope=scope, key=key, value=value)
        await self._calls.tell("POST", "/config/set", body)

    async def remove(self, key: str, scope: Scope = Scope.WORKSPACE) -> None:
        """Remove a key."""
        await self._calls.tell("POST", "/config/remove", ConfigRemoveRequest(scope=scope, key=key))

    async def select_model(
        self,
        model: SelectedModel,
        model_type: ModelType = ModelType.LARGE,
        scope: Scope = Scope.WORKSPACE,
    ) -> None:
        """Select the model to work with, or the one for side work."""
        body = ConfigModelRequest(scope=scope, model_type=model_type, model=model)
        await self._calls.tell("POST", "/config/model", body)

    async def compact(self, enabled: bool, scope: Scope = Scope.WORKSPACE) -> None:
        """Switch the compact view of the terminal client."""
        body = ConfigCompactRequest(scope=scope, enabled=enabled)
        await self._calls.tell("POST", "/config/compact", body)

    async def provider_key(
        self, provider: str, key: str | OAuthToken, scope: Scope = Scope.GLOBAL
    ) -> None:
        """Store the key of a provider, or the token of an account with it."""
        kind = KeyKind.OAUTH if isinstance(key, OAuthToken) else KeyKind.STRING
        body = ProviderKeyRequest(
            scope=scope, provider_id=provider, kind=kind.value, api_key=unstructure(key)
        )
        await self._calls.tell("POST", "/config/provider-key", body)

    async def refresh_oauth(self, provider: str, scope: Scope = Scope.GLOBAL) -> None:
        """Renew the token of an account."""
        body = RefreshOAuthRequest(scope=scope, provider_id=provider)
        await self._calls.tell("POST", "/config/refresh-oauth", body)

    async def import_copilot(self) -> TokenImport:
        """Import the token of another program, if it has one."""
        return await self._calls.post("/config/import-copilot", TokenImport)


@frozen(eq=False)
class ProjectRoutes:
    """Project set-up."""

    _calls: Calls

    async def needs_init(self) -> bool:
        """Return whether the project was never set up."""
        return (await self._calls.get("/project/needs-init", NeedsInit)).needs_init

    async def mark_initialized(self) -> None:
        """Record that the project is set up."""
        await self._calls.tell("POST", "/project/init")

    async def init_prompt(self) -> str:
        """Return the prompt that sets the project up."""
        return (await self._calls.get("/project/init-prompt", PromptText)).prompt
