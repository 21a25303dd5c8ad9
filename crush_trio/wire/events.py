"""Events of the event stream, and the entities that only events carry.

An event on the wire is an `Envelope`: the type of its payload, the kind of change, and the entity.
`ENTITIES` has the class of each payload type.
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
    """The kind of entity of an event."""

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
    """What an agent reports."""

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
    """A report of a workspace's agent.

    `message` is empty but must be complete: otherwise peers cannot decode the rest of the event.
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
    """The ending of a run. `text` is the whole answer: messages may arrive after this event."""

    session_id: SessionId
    run_id: OmitEmpty[RunId | None] = None
    message_id: MessageId = NO_MESSAGE
    text: OmitEmpty[str] = ""
    error: OmitEmpty[str] = ""
    cancelled: OmitEmpty[bool] = False


@frozen(kw_only=True)
class ConfigChanged:
    """The configuration of a workspace has changed."""

    workspace_id: WorkspaceId


@frozen(kw_only=True)
class SkillsEvent:
    """The skills were searched again; `states` has all that were found."""

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
"""The payload of an event."""

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
"""The entity class of each payload type."""


@frozen(kw_only=True)
class Envelope:
    """One event: the type of its payload, the kind of change, and the entity."""

    payload_type: PayloadType
    event_type: EventType
    entity: Entity
