"""Events of the event stream, and the entities that only events carry.

An event of the crush form is an `Envelope`: the type of its payload, the kind of change, and the
entity. `ENTITIES` has the class of each payload type. The native form sends the inner object of an
envelope under the payload type's name, and the events of `answers.NATIVE`, which only that form has.
"""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Final, TypeAlias

from attrs import frozen
from typing_extensions import override

from crush_trio.wire.asks import (
    PermissionNotification,
    PermissionRequest,
    QuestionNotification,
    QuestionRequest,
)
from crush_trio.wire.fields import OmitEmpty
from crush_trio.wire.ids import NO_MESSAGE, MessageId, RunId, SessionId, WorkspaceId
from crush_trio.wire.messages import EMPTY_MESSAGE, Message
from crush_trio.wire.views import File, Session

if TYPE_CHECKING:
    from crush_trio.wire.integrations import LspEvent, McpEvent, SkillsEvent


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
class UpdateAvailable:
    """A newer version exists."""

    current_version: str
    latest_version: str
    is_development: bool = False


Entity: TypeAlias = (
    "Session | Message | File | PermissionRequest | PermissionNotification | QuestionRequest"
    " | QuestionNotification | AgentEvent | RunComplete | ConfigChanged | SkillsEvent | McpEvent"
    " | LspEvent | UpdateAvailable"
)
"""The payload of an event."""

_ENTITIES: Final[Mapping[PayloadType, "type[Entity]"]] = {
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
    PayloadType.UPDATE_AVAILABLE: UpdateAvailable,
}


@cache
def _integration_events() -> Mapping[PayloadType, "type[Entity]"]:
    """Return the entities that the run core has no use for; their module is imported on demand."""
    from crush_trio.wire.integrations import LspEvent, McpEvent, SkillsEvent

    return {
        PayloadType.SKILLS_EVENT: SkillsEvent,
        PayloadType.MCP_EVENT: McpEvent,
        PayloadType.LSP_EVENT: LspEvent,
    }


class _Entities(Mapping[PayloadType, "type[Entity]"]):
    """The type of `ENTITIES`."""

    @override
    def __getitem__(self, payload_type: PayloadType) -> "type[Entity]":
        found = _ENTITIES.get(payload_type)
        return _integration_events()[payload_type] if found is None else found

    @override
    def __iter__(self) -> Iterator[PayloadType]:
        return iter(PayloadType)

    @override
    def __len__(self) -> int:
        return len(PayloadType)


ENTITIES: Final = _Entities()
"""The entity class of each payload type."""


@frozen(kw_only=True)
class Envelope:
    """One event: the type of its payload, the kind of change, and the entity."""

    payload_type: PayloadType
    event_type: EventType
    entity: Entity
