"""The configuration of a workspace as clients see it, and the workspace and agent that carry it.

Clients read four of its keys without checking that they exist (`providers`, `mcp`, `lsp` and
`options` with `options.tui`), so those are always written, empty or not. Objects without a schema
of ours, such as a provider's own options, pass through unchanged. Fields that may hold a secret are
left out of `repr`. The run core does without this module: its many classes take long to make.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated

from attrs import field, frozen

from crush_trio.wire.answers import ErrorBody
from crush_trio.wire.asks import PermissionRule
from crush_trio.wire.fields import Json, JsonObject, Key, Marker, OmitEmpty
from crush_trio.wire.ids import WorkspaceId
from crush_trio.wire.integrations import SkillState


@frozen(kw_only=True)
class ModelOptions:
    """Settings of a model call. None means the provider's default; 0 is a value."""

    temperature: OmitEmpty[float | None] = None
    top_p: OmitEmpty[float | None] = None
    top_k: OmitEmpty[int | None] = None
    frequency_penalty: OmitEmpty[float | None] = None
    presence_penalty: OmitEmpty[float | None] = None
    provider_options: OmitEmpty[JsonObject] = field(factory=dict)


@frozen(kw_only=True)
class CatalogModel:
    """A model that can be selected; costs are dollars per million tokens."""

    id: str = ""
    name: str = ""
    cost_per_1m_in: float = 0
    cost_per_1m_out: float = 0
    cost_per_1m_in_cached: float = 0
    cost_per_1m_out_cached: float = 0
    context_window: int = 0
    default_max_tokens: int = 0
    can_reason: bool = False
    reasoning_levels: OmitEmpty[tuple[str, ...]] = ()
    default_reasoning_effort: OmitEmpty[str] = ""
    supports_attachments: bool = False
    options: OmitEmpty[ModelOptions | None] = None


@frozen(kw_only=True)
class SelectedModel:
    """A selected model: its id, its provider, and its settings."""

    model: str = ""
    provider: str = ""
    reasoning_effort: OmitEmpty[str] = ""
    think: OmitEmpty[bool] = False
    max_tokens: OmitEmpty[int] = 0
    temperature: OmitEmpty[float | None] = None
    top_p: OmitEmpty[float | None] = None
    top_k: OmitEmpty[int | None] = None
    frequency_penalty: OmitEmpty[float | None] = None
    presence_penalty: OmitEmpty[float | None] = None
    provider_options: OmitEmpty[JsonObject] = field(factory=dict)


@frozen(kw_only=True)
class CatalogProvider:
    """A provider of the catalogue. `api_key` is a template that names a variable, not a key."""

    name: str
    id: str
    api_key: OmitEmpty[str] = ""
    api_endpoint: OmitEmpty[str] = ""
    type: OmitEmpty[str] = ""
    default_large_model_id: OmitEmpty[str] = ""
    default_small_model_id: OmitEmpty[str] = ""
    models: OmitEmpty[tuple[CatalogModel, ...]] = ()
    default_headers: OmitEmpty[Mapping[str, str]] = field(factory=dict)


@frozen(kw_only=True)
class OAuthClient:
    """The OAuth client that a token was issued to."""

    client_id: OmitEmpty[str] = ""
    client_secret: OmitEmpty[str] = field(default="", repr=False)
    auth_url: OmitEmpty[str] = ""
    token_url: OmitEmpty[str] = ""
    auth_style: OmitEmpty[Json] = None


@frozen(kw_only=True)
class OAuthToken:
    """An OAuth token, valid until `expires_at`, unix seconds."""

    access_token: str = field(repr=False)
    refresh_token: OmitEmpty[str] = field(default="", repr=False)
    expires_in: int = 0
    expires_at: int = 0
    client: OmitEmpty[OAuthClient | None] = None


@frozen(kw_only=True)
class TokenImport:
    """A token found in another program's files; null and false if there was none."""

    token: OAuthToken | None
    success: bool


class McpTransport(StrEnum):
    """How an MCP server is reached."""

    STDIO = "stdio"
    SSE = "sse"
    HTTP = "http"


@frozen(kw_only=True)
class ProviderConfig:
    """One provider: its address and key, and the models that may be selected."""

    id: OmitEmpty[str] = ""
    name: OmitEmpty[str] = ""
    base_url: OmitEmpty[str] = ""
    type: OmitEmpty[str] = ""
    api_key: OmitEmpty[str] = field(default="", repr=False)
    oauth: OmitEmpty[OAuthToken | None] = None
    disable: OmitEmpty[bool] = False
    system_prompt_prefix: OmitEmpty[str] = ""
    extra_headers: OmitEmpty[Mapping[str, str]] = field(factory=dict, repr=False)
    extra_body: OmitEmpty[JsonObject] = field(factory=dict, repr=False)
    provider_options: OmitEmpty[JsonObject] = field(factory=dict, repr=False)
    aws_auth_refresh: OmitEmpty[str] = ""
    flat_rate: OmitEmpty[bool] = False
    discover_models: OmitEmpty[bool | None] = None
    models: OmitEmpty[tuple[CatalogModel, ...]] = ()
    limits: OmitEmpty[Mapping[str, Json]] = field(factory=dict)
    """Time limits of model calls in seconds, or `"none"`: `connect`, `first`, `idle`, `turn`."""


@frozen(kw_only=True)
class McpServerConfig:
    """One MCP server: a command or a URL; `timeout` is in seconds."""

    type: McpTransport = McpTransport.STDIO
    command: OmitEmpty[str] = ""
    args: OmitEmpty[tuple[str, ...]] = ()
    env: OmitEmpty[Mapping[str, str]] = field(factory=dict, repr=False)
    url: OmitEmpty[str] = ""
    headers: OmitEmpty[Mapping[str, str]] = field(factory=dict, repr=False)
    disabled: OmitEmpty[bool] = False
    disabled_tools: OmitEmpty[tuple[str, ...]] = ()
    enabled_tools: OmitEmpty[tuple[str, ...]] = ()
    timeout: OmitEmpty[int] = 0
    oauth: OmitEmpty[Json] = None
    oauth_client_id: OmitEmpty[str] = ""
    oauth_client_secret: OmitEmpty[str] = field(default="", repr=False)
    oauth_callback_port: OmitEmpty[int] = 0
    oauth_token: OmitEmpty[OAuthToken | None] = None
    sandbox: OmitEmpty[bool] = False


@frozen(kw_only=True)
class LspServerConfig:
    """One language server and the files it is for; `timeout` is in seconds."""

    disabled: OmitEmpty[bool] = False
    command: OmitEmpty[str] = ""
    args: OmitEmpty[tuple[str, ...]] = ()
    env: OmitEmpty[Mapping[str, str]] = field(factory=dict, repr=False)
    filetypes: OmitEmpty[tuple[str, ...]] = ()
    root_markers: OmitEmpty[tuple[str, ...]] = ()
    init_options: OmitEmpty[JsonObject] = field(factory=dict)
    options: OmitEmpty[JsonObject] = field(factory=dict)
    timeout: OmitEmpty[int] = 0
    sandbox: OmitEmpty[bool] = False


@frozen(kw_only=True)
class ListingLimits:
    """Limits of a directory listing. None is the default."""

    max_depth: OmitEmpty[int | None] = None
    max_items: OmitEmpty[int | None] = None


@frozen(kw_only=True)
class TuiOptions:
    """How the terminal client looks."""

    compact_mode: OmitEmpty[bool] = False
    diff_mode: OmitEmpty[str] = ""
    completions: OmitEmpty[ListingLimits | None] = None
    transparent: OmitEmpty[bool | None] = None
    scrollbar: OmitEmpty[str] = ""


@frozen(kw_only=True)
class Attribution:
    """How commits name the agent."""

    trailer_style: OmitEmpty[str] = ""
    co_authored_by: OmitEmpty[bool | None] = None
    generated_with: OmitEmpty[bool | None] = None


@frozen(kw_only=True)
class Options:
    """Other options. None is the default."""

    context_paths: OmitEmpty[tuple[str, ...]] = ()
    global_context_paths: OmitEmpty[tuple[str, ...]] = ()
    skills_paths: OmitEmpty[tuple[str, ...]] = ()
    tui: TuiOptions = TuiOptions()
    debug: OmitEmpty[bool] = False
    debug_lsp: OmitEmpty[bool] = False
    disable_auto_summarize: OmitEmpty[bool] = False
    data_directory: OmitEmpty[str] = ""
    disabled_tools: OmitEmpty[tuple[str, ...]] = ()
    disable_provider_auto_update: OmitEmpty[bool] = False
    disable_default_providers: OmitEmpty[bool] = False
    attribution: OmitEmpty[Attribution | None] = None
    disable_metrics: OmitEmpty[bool] = False
    initialize_as: OmitEmpty[str] = ""
    auto_lsp: OmitEmpty[bool | None] = None
    progress: OmitEmpty[bool | None] = None
    notifications: OmitEmpty[str] = ""
    disabled_skills: OmitEmpty[tuple[str, ...]] = ()


@frozen(kw_only=True)
class PermissionsConfig:
    """Tools that need no permission, as `tool` or `tool:action`, and the user's rules."""

    allowed_tools: OmitEmpty[tuple[str, ...]] = ()
    rules: OmitEmpty[tuple[PermissionRule, ...]] = ()


@frozen(kw_only=True)
class SearchLimits:
    """The time limit of a search, in nanoseconds. None is the default."""

    timeout: OmitEmpty[int | None] = None


@frozen(kw_only=True)
class ToolsConfig:
    """Limits of single tools."""

    ls: OmitEmpty[ListingLimits | None] = None
    grep: OmitEmpty[SearchLimits | None] = None
    glob: OmitEmpty[SearchLimits | None] = None


@frozen(kw_only=True)
class HookConfig:
    """A command to run when an event matches; `timeout` is in seconds.

    `type` is `command` for hooks in the nested form of Claude Code; no other type is run.
    """

    name: OmitEmpty[str] = ""
    matcher: OmitEmpty[str] = ""
    command: str = ""
    timeout: OmitEmpty[int] = 0
    sandbox: OmitEmpty[bool] = False
    type: OmitEmpty[str] = ""


@frozen(kw_only=True)
class Config:
    """The whole configuration. `models` and `recent_models` are keyed `large` and `small`."""

    schema: Annotated[str, Key("$schema"), Marker.OMIT_EMPTY] = ""
    models: OmitEmpty[Mapping[str, SelectedModel]] = field(factory=dict)
    recent_models: OmitEmpty[Mapping[str, tuple[SelectedModel, ...]]] = field(factory=dict)
    providers: Mapping[str, ProviderConfig] = field(factory=dict)
    mcp: OmitEmpty[Mapping[str, McpServerConfig]] = field(factory=dict)
    lsp: OmitEmpty[Mapping[str, LspServerConfig]] = field(factory=dict)
    options: Options = Options()
    permissions: OmitEmpty[PermissionsConfig | None] = None
    tools: OmitEmpty[ToolsConfig | None] = None
    hooks: OmitEmpty[Mapping[str, tuple[HookConfig, ...]]] = field(factory=dict)
    env: OmitEmpty[Mapping[str, str]] = field(factory=dict, repr=False)


@frozen(kw_only=True)
class WorkspaceView:
    """A hosted workspace; `version` is the server's. The environment is left out of `repr`."""

    id: WorkspaceId
    path: str
    yolo: OmitEmpty[bool] = False
    debug: OmitEmpty[bool] = False
    data_dir: OmitEmpty[str] = ""
    version: OmitEmpty[str] = ""
    config: OmitEmpty[Config | None] = None
    env: OmitEmpty[tuple[str, ...]] = field(default=(), repr=False)
    channels: OmitEmpty[tuple[str, ...]] = ()
    skills: OmitEmpty[tuple[SkillState, ...]] = ()
    degraded: OmitEmpty[str] = ""
    """A sentence about what is wrong with its store; empty if nothing is."""
    warnings: OmitEmpty[tuple[ErrorBody, ...]] = ()
    """Warnings about it, such as those of its configuration."""


@frozen(kw_only=True)
class AgentInfo:
    """Whether the agent is ready, and its model. A server of the Go program without a provider sends zeros."""

    is_busy: bool = False
    is_ready: bool = False
    model: CatalogModel = field(factory=CatalogModel)
    model_cfg: SelectedModel = field(factory=SelectedModel)
