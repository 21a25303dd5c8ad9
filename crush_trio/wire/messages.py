"""Messages and the parts they are made of.

A message is a list of parts and what there is to know about the whole. The wire wraps every part
as `{"type": …, "data": …}`; the wrapping is the codec's, the name that goes into it is `kind`.

A part is immutable: a message that grows gets a new part in the place of the old one, which is
what allows the bytes of all the other parts to be kept.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, ClassVar, Final, TypeAlias

from attrs import field, frozen

from crush_trio.wire.fields import Key, OmitEmpty
from crush_trio.wire.ids import MessageId, SessionId, ToolCallId


class Role(StrEnum):
    """Who speaks. `UNSET` is only found in the placeholder of an `AgentEvent`."""

    UNSET = ""
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"
    SYSTEM = "system"


class FinishReason(StrEnum):
    """Why a message ended. `STOP` closes every message that no model wrote.

    Values are our spelling; the codec knows the wire's. A reason it does not know is `UNKNOWN`.
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
    """What the speaker says."""

    kind: ClassVar[str] = "text"

    text: str


@frozen(kw_only=True)
class ReasoningPart:
    """What a model thought before it spoke; times are unix seconds, 0 while they have not come."""

    kind: ClassVar[str] = "reasoning"

    thinking: str
    signature: str = ""
    started_at: OmitEmpty[int] = 0
    finished_at: OmitEmpty[int] = 0


@frozen(kw_only=True)
class ToolCallPart:
    """A tool the model asks for. `input` is JSON text, complete once `finished`."""

    kind: ClassVar[str] = "tool_call"

    id: ToolCallId
    name: str
    input: str = ""
    type: OmitEmpty[str] = ""
    finished: OmitEmpty[bool] = False


@frozen(kw_only=True)
class ToolResultPart:
    """What a tool answered. `data` is base64 text of media, `metadata` JSON text for the viewer."""

    kind: ClassVar[str] = "tool_result"

    tool_call_id: ToolCallId
    name: str
    content: str
    data: OmitEmpty[str] = ""
    mime_type: OmitEmpty[str] = ""
    metadata: str = ""
    is_error: bool = False


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
    """A picture that is somewhere else."""

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
"""A piece of a message."""

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
"""The class of each kind of part. A kind that is not here makes a whole message unreadable."""


@frozen(kw_only=True)
class Message:
    """A stored utterance; times are unix seconds."""

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
"""A message that says nothing, for places where peers insist on one."""
