"""What clients send. Each class is the body of the routes its docstring names.

Two bodies are elsewhere because they are also answers: `views.Session` creates and updates a
session. Fields whose wrong values have an error text of their own (a permission action, a control
command, the kind of a key) are plain text here; the route judges them and says which one it was.
"""

from collections.abc import Mapping
from enum import IntEnum, StrEnum

from attrs import field, frozen

from crush_trio.wire.asks import (
    GrantScope,
    PermissionPolicy,
    PermissionRequest,
    QuestionResponse,
)
from crush_trio.wire.config import SelectedModel
from crush_trio.wire.fields import Json, OmitEmpty
from crush_trio.wire.ids import (
    NO_ASK,
    NO_CLIENT,
    NO_SESSION,
    NO_WORKSPACE,
    AskId,
    ClientId,
    RunId,
    SessionId,
    SkillId,
    WorkspaceId,
)
from crush_trio.wire.runs import WhenBusy, WhenUnclaimed


class Scope(IntEnum):
    """Which configuration file a change goes to."""

    GLOBAL = 0
    WORKSPACE = 1


class ModelType(StrEnum):
    """The two models a workspace selects: one to work with, one for side work."""

    LARGE = "large"
    SMALL = "small"


class ControlCommand(StrEnum):
    """What a client may ask of the whole server."""

    SHUTDOWN = "shutdown"
    SHUTDOWN_IF_IDLE = "shutdown_if_idle"


class KeyKind(StrEnum):
    """What a provider key is: text, or an OAuth token."""

    STRING = "string"
    OAUTH = "oauth"


@frozen(kw_only=True)
class ControlRequest:
    """`POST control`: a `ControlCommand`."""

    command: str


@frozen(kw_only=True)
class WorkspaceRequest:
    """`POST workspaces`: host this directory for this client.

    `id` is sent empty and ignored; `version` is the client's. A directory that does not exist is made
    only if `create` says so. The environment stays out of `repr`.
    """

    id: WorkspaceId = NO_WORKSPACE
    path: str
    yolo: OmitEmpty[bool] = False
    debug: OmitEmpty[bool] = False
    data_dir: OmitEmpty[str] = ""
    version: OmitEmpty[str] = ""
    client_id: OmitEmpty[ClientId] = NO_CLIENT
    env: OmitEmpty[tuple[str, ...]] = field(default=(), repr=False)
    channels: OmitEmpty[tuple[str, ...]] = ()
    create: OmitEmpty[bool] = False


@frozen(kw_only=True)
class CurrentSessionRequest:
    """`POST current-session`: what the client looks at; an empty id for nothing."""

    session_id: SessionId


@frozen(kw_only=True)
class FileReadRequest:
    """`POST filetracker/read`: the client has seen this file."""

    session_id: SessionId
    path: str


@frozen(kw_only=True)
class LspStartRequest:
    """`POST lsps/start`: start what understands this file."""

    path: str


@frozen(kw_only=True)
class PermissionSkip:
    """`POST permissions/skip`, and the answer to its GET: whether nobody is asked at all."""

    skip: bool


@frozen(kw_only=True)
class GrantRequest:
    """`POST permissions/grant`: a `PermissionAction`. Only the permission's id is to be trusted.

    `scope` is ours alone; it says how far an `allow` reaches.
    """

    permission: PermissionRequest
    action: str
    scope: OmitEmpty[GrantScope | None] = None


@frozen(kw_only=True)
class AnswerRequest:
    """`POST questions/answer`; clients leave the batch id empty and mean the one that waits."""

    batch_request_id: AskId = NO_ASK
    responses: tuple[QuestionResponse, ...]


@frozen(kw_only=True)
class RefusalRequest:
    """`POST questions/cancel`; clients of the Go program send no body and mean the one that waits."""

    batch_request_id: OmitEmpty[AskId] = NO_ASK


@frozen(kw_only=True)
class Attachment:
    """A file that goes with a prompt."""

    file_path: str
    file_name: str
    mime_type: str
    content: bytes = field(repr=False)


@frozen(kw_only=True)
class AgentMessage:
    """`POST agent`: a submission as the wire spells it. Its last five are ours alone."""

    session_id: SessionId
    run_id: OmitEmpty[RunId | None] = None
    prompt: str
    attachments: OmitEmpty[tuple[Attachment, ...]] = ()
    when_busy: OmitEmpty[WhenBusy | None] = None
    when_unclaimed: OmitEmpty[WhenUnclaimed | None] = None
    permissions: OmitEmpty[PermissionPolicy | None] = None
    interactive: OmitEmpty[bool | None] = None
    model: OmitEmpty[SelectedModel | None] = None


@frozen(kw_only=True)
class AgentInitRequest:
    """`POST agent/init`: whether a person is there to be asked."""

    interactive: bool = False


@frozen(kw_only=True)
class ShellRequest:
    """`POST agent/sessions/{sid}/shell`; the session in the path wins over the one in here."""

    session_id: SessionId = NO_SESSION
    command: str
    term_width: OmitEmpty[int] = 0


@frozen(kw_only=True)
class ConfigSetRequest:
    """`POST config/set`: any value at a dotted key."""

    scope: Scope
    key: str
    value: Json


@frozen(kw_only=True)
class ConfigRemoveRequest:
    """`POST config/remove`."""

    scope: Scope
    key: str


@frozen(kw_only=True)
class ConfigModelRequest:
    """`POST config/model`: select a model."""

    scope: Scope
    model_type: ModelType
    model: SelectedModel


@frozen(kw_only=True)
class ConfigCompactRequest:
    """`POST config/compact`: the terminal client's compact mode."""

    scope: Scope
    enabled: bool


@frozen(kw_only=True)
class ProviderKeyRequest:
    """`POST config/provider-key`: text or an `OAuthToken` object, as `kind` says."""

    scope: Scope
    provider_id: str
    kind: str
    api_key: Json = field(repr=False)


@frozen(kw_only=True)
class RefreshOAuthRequest:
    """`POST config/refresh-oauth`."""

    scope: Scope
    provider_id: str


@frozen(kw_only=True)
class SkillReadRequest:
    """`POST skills/read`."""

    skill_id: SkillId


@frozen(kw_only=True)
class McpServerRequest:
    """`POST mcp/auth` and `mcp/refresh-*`: the server they are about."""

    name: str


@frozen(kw_only=True)
class McpPromptRequest:
    """`POST mcp/get-prompt`; `client_id` is the MCP server's name."""

    client_id: str
    prompt_id: str
    args: Mapping[str, str] = field(factory=dict)


@frozen(kw_only=True)
class McpResourceRequest:
    """`POST mcp/read-resource`."""

    name: str
    uri: str
