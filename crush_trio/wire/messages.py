"""Messages and their parts.

On the wire every part is wrapped as `{"type": …, "data": …}`; the codec does that, with `kind` as
the type.

A part is immutable: a growing message gets a new part in place of the old one, so the encoded bytes
of all other parts can be reused.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, ClassVar, Final, TypeAlias

from attrs import field, frozen

from crush_trio.wire.fields import Key, OmitEmpty
from crush_trio.wire.ids import MessageId, SessionId, ToolCallId


class Role(StrEnum):
    """The author of a message. `UNSET` is only used in the empty message of an `AgentEvent`."""

    UNSET = ""
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"
    SYSTEM = "system"


class FinishReason(StrEnum):
    """Why a message ended. `STOP` is the reason of messages that no model wrote.

    The values are our spelling; the codec translates to the wire's. An unknown reason is `UNKNOWN`.
    """

    END_TURN = "end_turn"
    MAX_TOKENS = "max_tokens"
    TOOL_USE = "tool_use"
    CANCELLED = "cancelled"
    ERROR = "error"
    CONTENT_FILTER = "content_filter"
    UNKNOWN = "unknown"
    STOP = "stop"


@frozen(kw_only=True)
class TextPart:
    """The text of a message."""

    kind: ClassVar[str] = "text"

    text: str


@frozen(kw_only=True)
class ReasoningPart:
    """A model's reasoning before its answer; times are unix seconds, 0 if not known yet.

    `replay` has what the provider wants back with it if that is not a signature. Only this program
    sends and reads it.
    """

    kind: ClassVar[str] = "reasoning"

    thinking: str
    signature: str = ""
    started_at: OmitEmpty[int] = 0
    finished_at: OmitEmpty[int] = 0
    replay: OmitEmpty[str] = ""


@frozen(kw_only=True)
class ToolCallPart:
    """A call of a tool by the model. `input` is JSON text, complete once `finished`."""

    kind: ClassVar[str] = "tool_call"

    id: ToolCallId
    name: str
    input: str = ""
    type: OmitEmpty[str] = ""
    finished: OmitEmpty[bool] = False


@frozen(kw_only=True)
class ResultMedia:
    """One more image or audio of a tool result, as base64 text."""

    data: str
    mime_type: str


@frozen(kw_only=True)
class ToolResultPart:
    """The result of a tool. `data` is media as base64 text, `metadata` is JSON text for viewers.

    If there are several images, `more_media` has those after the first.
    """

    kind: ClassVar[str] = "tool_result"

    tool_call_id: ToolCallId
    name: str
    content: str
    data: OmitEmpty[str] = ""
    mime_type: OmitEmpty[str] = ""
    metadata: str = ""
    is_error: bool = False
    more_media: OmitEmpty[tuple[ResultMedia, ...]] = ()

    @property
    def media(self) -> tuple[ResultMedia, ...]:
        """All images and audio of the result."""
        if not self.data:
            return ()
        return (ResultMedia(data=self.data, mime_type=self.mime_type), *self.more_media)


@frozen(kw_only=True)
class FinishPart:
    """The end of a message; `message` is the short text for people, `details` the long one."""

    kind: ClassVar[str] = "finish"

    reason: FinishReason
    time: int
    message: OmitEmpty[str] = ""
    details: OmitEmpty[str] = ""


@frozen(kw_only=True)
class ImageUrlPart:
    """A picture by its URL."""

    kind: ClassVar[str] = "image_url"

    url: str
    detail: OmitEmpty[str] = ""


@frozen(kw_only=True)
class BinaryPart:
    """An attached file that is not text."""

    kind: ClassVar[str] = "binary"

    path: Annotated[str, Key("Path")]
    mime_type: Annotated[str, Key("MIMEType")]
    data: Annotated[bytes, Key("Data")] = field(repr=False)


@frozen(kw_only=True)
class ShellCommandPart:
    """A command the user ran, and what it printed."""

    kind: ClassVar[str] = "shell_command"

    command: str
    output: str
    exit_code: int


Part: TypeAlias = (
    TextPart
    | ReasoningPart
    | ToolCallPart
    | ToolResultPart
    | FinishPart
    | ImageUrlPart
    | BinaryPart
    | ShellCommandPart
)
"""A part of a message."""

PARTS: Final[Mapping[str, type[Part]]] = {
    part.kind: part
    for part in (
        TextPart,
        ReasoningPart,
        ToolCallPart,
        ToolResultPart,
        FinishPart,
        ImageUrlPart,
        BinaryPart,
        ShellCommandPart,
    )
}
"""The class of each kind of part. A message with a part of another kind cannot be decoded."""


@frozen(kw_only=True)
class Message:
    """A message of a session; times are unix seconds."""

    parts: tuple[Part, ...] = ()
    id: MessageId
    role: Role
    session_id: SessionId
    model: str = ""
    provider: str = ""
    created_at: int = 0
    updated_at: int = 0
    is_summary_message: OmitEmpty[bool] = False


EMPTY_MESSAGE: Final = Message(id=MessageId(""), role=Role.UNSET, session_id=SessionId(""))
"""An empty message, for places where peers require one."""
