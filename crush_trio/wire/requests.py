"""Request bodies. Each class is the body of the routes that its docstring names.

Peers that send a whole `views.Session` to create or to update one are understood: keys that a class
here does not have are ignored. Fields whose wrong values have an error text of their own (a
permission action, a control command, the kind of a key) are plain text here, `Shown` as what the
route accepts.
"""

from collections.abc import Mapping
from enum import IntEnum, StrEnum
from typing import Annotated

from attrs import field, frozen

from crush_trio.wire.asks import (
    GrantScope,
    PermissionAction,
    PermissionPolicy,
    PermissionRequest,
    QuestionResponse,
)
from crush_trio.wire.config import SelectedModel
from crush_trio.wire.fields import Json, OmitEmpty, Shown
from crush_trio.wire.ids import (
    NO_ASK,
    NO_CLIENT,
    NO_SESSION,
    NO_WORKSPACE,
    AskId,
    ClientId,
    MessageId,
    RunId,
    SessionId,
    SkillId,
    WorkspaceId,
)
from crush_trio.wire.runs import WhenBusy, WhenUnclaimed
from crush_trio.wire.views import Todo


class Scope(IntEnum):
    """Which configuration file a change goes to."""

    GLOBAL = 0
    WORKSPACE = 1


class ModelType(StrEnum):
    """The two models that a workspace selects: one for the work, one for titles and the like."""

    LARGE = "large"
    SMALL = "small"


class ControlCommand(StrEnum):
    """Commands for the whole server."""

    SHUTDOWN = "shutdown"
    SHUTDOWN_IF_IDLE = "shutdown_if_idle"


class CancelQueue(StrEnum):
    """What happens to the queued prompts when a session is cancelled."""

    CANCEL = "cancel"
    KEEP = "keep"


class KeyKind(StrEnum):
    """The kind of a provider key: text, or an OAuth token."""

    STRING = "string"
    OAUTH = "oauth"


@frozen(kw_only=True)
class ControlRequest:
    """`POST control`: a command for the whole server."""

    command: Annotated[str, Shown(ControlCommand)]


@frozen(kw_only=True)
class WorkspaceRequest:
    """`POST workspaces`: host this directory for this client.

    `id` is sent empty and ignored; `version` is the client's. A directory that does not exist is
    created only with `create`. The environment is left out of `repr`.
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
    """`POST current-session`: the session that the client shows; an empty id for none."""

    session_id: SessionId


@frozen(kw_only=True)
class SessionCreate:
    """`POST sessions`: a new session; without a title it is untitled until its first prompt."""

    title: str = ""


@frozen(kw_only=True)
class SessionUpdate:
    """`PUT sessions/{sid}`: what a client may change of a session. An absent key empties what is stored."""

    id: SessionId
    title: str
    prompt_tokens: int
    completion_tokens: int
    summary_message_id: MessageId
    cost: float
    todos: OmitEmpty[tuple[Todo, ...]] = ()


@frozen(kw_only=True)
class FileReadRequest:
    """`POST filetracker/read`: the client has read this file."""

    session_id: SessionId
    path: str


@frozen(kw_only=True)
class LspStartRequest:
    """`POST lsps/start`: start the language servers for this file."""

    path: str


@frozen(kw_only=True)
class PermissionSkip:
    """`POST permissions/skip`, and the answer to its GET: whether asking is skipped."""

    skip: bool


@frozen(kw_only=True)
class PermissionReference:
    """The permission request that is answered. Other keys of the request may be sent, too."""

    id: AskId


@frozen(kw_only=True)
class GrantRequest:
    """`POST permissions/grant`: the answer to a permission request, of which only the id is used.

    `scope` and `reason` are extensions: for which later requests an `allow` counts, too; and why a `deny`
    was given, which the model is told.
    """

    permission: Annotated[PermissionRequest, Shown(PermissionReference)]
    action: Annotated[str, Shown(PermissionAction)]
    scope: OmitEmpty[GrantScope | None] = None
    reason: OmitEmpty[str] = ""


@frozen(kw_only=True)
class AnswerRequest:
    """`POST questions/answer`; an empty batch id means the batch that waits."""

    batch_request_id: AskId = NO_ASK
    responses: tuple[QuestionResponse, ...]


@frozen(kw_only=True)
class RefusalRequest:
    """`POST questions/cancel`; without a body it means the batch that waits."""

    batch_request_id: OmitEmpty[AskId] = NO_ASK


@frozen(kw_only=True)
class Attachment:
    """A file attached to a prompt."""

    file_path: str
    file_name: str
    mime_type: str
    content: bytes = field(repr=False)


@frozen(kw_only=True)
class AgentMessage:
    """`POST agent`: a submission. Its last six fields are extensions of the crush wire."""

    session_id: SessionId
    run_id: OmitEmpty[RunId | None] = None
    prompt: str
    attachments: OmitEmpty[tuple[Attachment, ...]] = ()
    when_busy: OmitEmpty[WhenBusy | None] = None
    when_unclaimed: OmitEmpty[WhenUnclaimed | None] = None
    permissions: OmitEmpty[PermissionPolicy | None] = None
    interactive: OmitEmpty[bool | None] = None
    model: OmitEmpty[SelectedModel | None] = None
    record: OmitEmpty[bool] = False


@frozen(kw_only=True)
class AgentInitRequest:
    """`POST agent/init`: whether the client shows asks to a person."""

    interactive: bool = False


@frozen(kw_only=True)
class ShellRequest:
    """`POST agent/sessions/{sid}/shell`; the session in the path overrides the one in the body."""

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
    kind: Annotated[str, Shown(KeyKind)]
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
    """`POST mcp/auth` and `mcp/refresh-*`: the MCP server."""

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


@frozen(kw_only=True)
class LoginRequest:
    """`POST login`: a token, or a one-time code."""

    token: OmitEmpty[str] = field(default="", repr=False)
    code: OmitEmpty[str] = field(default="", repr=False)


@frozen(kw_only=True)
class DiffRequest:
    """`POST render/diff`: the content of a file before and after a change; the path tells its language."""

    path: OmitEmpty[str] = ""
    old: OmitEmpty[str] = ""
    new: str
