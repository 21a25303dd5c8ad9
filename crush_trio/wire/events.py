"""What the event stream carries, around and beside the entities of other modules.

An event on the wire is an `Envelope`: the type of payload, what happened to it, and the entity
itself. `ENTITIES` says which entity each payload type carries.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, TypeAlias

from attrs import frozen

from crush_trio.wire.asks import (
    PermissionNotification,
    PermissionRequest,
    QuestionNotification,
    QuestionRequest,
)
from crush_trio.wire.fields import OmitEmpty
from crush_trio.wire.ids import NO_MESSAGE, MessageId, RunId, SessionId, WorkspaceId
from crush_trio.wire.integrations import LspState, McpState, SkillState
from crush_trio.wire.messages import EMPTY_MESSAGE, Message
from crush_trio.wire.views import File, Session


class EventType(StrEnum):
    """What happened to an entity."""

    CREATED = "created"
    UPDATED = "updated"
    DELETED = "deleted"


class PayloadType(StrEnum):
    """What kind of entity an event is about."""

    SESSION = "session"
    MESSAGE = "message"
    FILE = "file"
    PERMISSION_REQUEST = "permission_request"
    PERMISSION_NOTIFICATION = "permission_notification"
    QUESTION_BATCH_REQUEST = "question_batch_request"
    QUESTION_BATCH_NOTIFICATION = "question_batch_notification"
    AGENT_EVENT = "agent_event"
    RUN_COMPLETE = "run_complete"
    CONFIG_CHANGED = "config_changed"
    SKILLS_EVENT = "skills_event"
    MCP_EVENT = "mcp_event"
    LSP_EVENT = "lsp_event"
    UPDATE_AVAILABLE = "update_available"


class AgentEventType(StrEnum):
    """What an agent has to report."""

    AGENT_FINISHED = "agent_finished"
    ERROR = "error"
    RE_AUTHENTICATE = "re_authenticate"
    AWS_SSO_AUTH = "aws_sso_auth"
    AWS_SSO_AUTH_RESULT = "aws_sso_auth_result"
    RESPONSE = "response"
    SUMMARIZE = "summarize"


class McpEventType(StrEnum):
    """What changed about an MCP server."""

    STATE_CHANGED = "state_changed"
    TOOLS_LIST_CHANGED = "tools_list_changed"
    PROMPTS_LIST_CHANGED = "prompts_list_changed"
    RESOURCES_LIST_CHANGED = "resources_list_changed"


class LspEventType(StrEnum):
    """What changed about a language server."""

    STATE_CHANGED = "state_changed"
    DIAGNOSTICS_CHANGED = "diagnostics_changed"


@frozen(kw_only=True)
class AgentEvent:
    """Something the agent of a workspace did, or needs.

    `message` carries nothing but must be whole: peers lose the rest of the event over one that is
    not.
    """

    error: OmitEmpty[str] = ""
    type: AgentEventType
    message: Message = EMPTY_MESSAGE
    run_id: OmitEmpty[RunId | None] = None
    session_id: OmitEmpty[SessionId | None] = None
    session_title: OmitEmpty[str] = ""
    progress: OmitEmpty[str] = ""
    done: OmitEmpty[bool] = False
    aws_sso_command: OmitEmpty[str] = ""
    aws_sso_url: OmitEmpty[str] = ""


@frozen(kw_only=True)
class RunComplete:
    """The one ending of a run. `text` is the whole answer: messages may arrive after this."""

    session_id: SessionId
    run_id: OmitEmpty[RunId | None] = None
    message_id: MessageId = NO_MESSAGE
    text: OmitEmpty[str] = ""
    error: OmitEmpty[str] = ""
    cancelled: OmitEmpty[bool] = False


@frozen(kw_only=True)
class ConfigChanged:
    """The configuration of a workspace is no longer what was read before."""

    workspace_id: WorkspaceId


@frozen(kw_only=True)
class SkillsEvent:
    """The skills were looked for again; all that were found."""

    states: tuple[SkillState, ...]


@frozen(kw_only=True)
class McpEvent:
    """Something changed about an MCP server."""

    error: OmitEmpty[str] = ""
    type: McpEventType
    name: str
    state: McpState = McpState.DISABLED
    tool_count: OmitEmpty[int] = 0
    prompt_count: OmitEmpty[int] = 0
    resource_count: OmitEmpty[int] = 0


@frozen(kw_only=True)
class LspEvent:
    """Something changed about a language server."""

    error: OmitEmpty[str] = ""
    type: LspEventType
    name: str
    state: LspState
    diagnostic_count: OmitEmpty[int] = 0


@frozen(kw_only=True)
class UpdateAvailable:
    """A newer version exists."""

    current_version: str
    latest_version: str
    is_development: bool = False


Entity: TypeAlias = (
    Session
    | Message
    | File
    | PermissionRequest
    | PermissionNotification
    | QuestionRequest
    | QuestionNotification
    | AgentEvent
    | RunComplete
    | ConfigChanged
    | SkillsEvent
    | McpEvent
    | LspEvent
    | UpdateAvailable
)
"""What an event can be about."""

ENTITIES: Final[Mapping[PayloadType, type[Entity]]] = {
    PayloadType.SESSION: Session,
    PayloadType.MESSAGE: Message,
    PayloadType.FILE: File,
    PayloadType.PERMISSION_REQUEST: PermissionRequest,
    PayloadType.PERMISSION_NOTIFICATION: PermissionNotification,
    PayloadType.QUESTION_BATCH_REQUEST: QuestionRequest,
    PayloadType.QUESTION_BATCH_NOTIFICATION: QuestionNotification,
    PayloadType.AGENT_EVENT: AgentEvent,
    PayloadType.RUN_COMPLETE: RunComplete,
    PayloadType.CONFIG_CHANGED: ConfigChanged,
    PayloadType.SKILLS_EVENT: SkillsEvent,
    PayloadType.MCP_EVENT: McpEvent,
    PayloadType.LSP_EVENT: LspEvent,
    PayloadType.UPDATE_AVAILABLE: UpdateAvailable,
}
"""The entity each payload type carries."""


@frozen(kw_only=True)
class Envelope:
    """One event: what kind of thing, what happened to it, and the thing."""

    payload_type: PayloadType
    event_type: EventType
    entity: Entity
