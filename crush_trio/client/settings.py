"""The configuration of a workspace, and setting up its project."""

from attrs import frozen

from crush_trio.client.calls import Calls
from crush_trio.wire.catalog import OAuthToken, SelectedModel, TokenImport
from crush_trio.wire.codec import unstructure
from crush_trio.wire.config import Config
from crush_trio.wire.fields import Json
from crush_trio.wire.requests import (
    ConfigCompactRequest,
    ConfigModelRequest,
    ConfigRemoveRequest,
    ConfigSetRequest,
    KeyKind,
    ModelType,
    ProviderKeyRequest,
    RefreshOAuthRequest,
    Scope,
)
from crush_trio.wire.views import NeedsInit, PromptText


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
        """Take over the token of another program, if it has one."""
        return await self._calls.post("/config/import-copilot", TokenImport)


@frozen(eq=False)
class ProjectRoutes:
    """Whether an agent has been introduced to the project."""

    _calls: Calls

    async def needs_init(self) -> bool:
        """Return whether the project was never set up."""
        return (await self._calls.get("/project/needs-init", NeedsInit)).needs_init

    async def mark_initialized(self) -> None:
        """Note that it is set up."""
        await self._calls.tell("POST", "/project/init")

    async def init_prompt(self) -> str:
        """Return the prompt that sets it up."""
        return (await self._calls.get("/project/init-prompt", PromptText)).prompt
