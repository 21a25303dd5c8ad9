"""What a tool is, what it is given, and what it answers.

A tool answers with content, or with an error that the model sees and may act on (`ToolError`), or it
raises anything else, and the run fails (H1). It runs in the task of its call, inside the run's scope:
a cancel reaches it like everything else, and what it started must be gone when it has left.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from attrs import field, frozen

from crush_trio.wire.fields import Json, JsonObject
from crush_trio.wire.ids import MessageId, RunId, SessionId, ToolCallId

# ── Answers ─────────────────────────────────────────────────────────────────────────────────────


@frozen(kw_only=True)
class Media:
    """A picture, or another file that is no text."""

    data: bytes = field(repr=False)
    mime_type: str


@frozen(kw_only=True)
class ToolResult:
    """What a tool answers. `metadata` is for viewers; the model does not see it.

    `stop_turn` ends the turn with this step: a person said no, and the model must not go on. The
    calls of the step that come behind are not made.
    """

    content: str = ""
    is_error: bool = False
    stop_turn: bool = False
    media: Media | None = None
    metadata: JsonObject = field(factory=dict, repr=False)


class ToolError(Exception):
    """Raised by a tool to answer with an error that the model sees (H1)."""

    def __init__(
        self, content: str, *, stop_turn: bool = False, metadata: JsonObject | None = None
    ) -> None:
        super().__init__(content)
        self.result = ToolResult(
            content=content, is_error=True, stop_turn=stop_turn, metadata=metadata or {}
        )


# ── Permission ──────────────────────────────────────────────────────────────────────────────────


@frozen(kw_only=True)
class Wanted:
    """What a tool wants to do, for a person to judge (F10).

    `path` is what the action touches, absolute and resolved. `denied` is metadata for the result
    of a denial: the change that did not happen (F5).
    """

    action: str
    description: str
    params: JsonObject | None = field(repr=False)
    path: Path
    denied: JsonObject = field(factory=dict, repr=False)


class Permit(Protocol):
    """Asks for permission, in the name of one tool call."""

    async def __call__(self, wanted: Wanted, /) -> None:
        """Return if *wanted* is allowed. Raise a `ToolError` that stops the turn if it is not."""
        ...


# ── Calls ───────────────────────────────────────────────────────────────────────────────────────


class Reaped(Protocol):
    """Takes note of processes, for the receipt of the cancel that stops a call."""

    def __call__(self, stopped: Iterable[int], left: Iterable[int] = ()) -> None:
        """Add those that had to be *stopped* because the call was, and those that could not be."""
        ...


@frozen(kw_only=True)
class ToolCall:
    """One call of a tool: for whom, and what it may see and ask.

    `message_id` is the assistant message that made the call. `images` says whether the model can
    look at pictures.
    """

    id: ToolCallId
    name: str
    input: str = field(repr=False)
    session_id: SessionId
    run_id: RunId
    message_id: MessageId
    permit: Permit = field(repr=False)
    images: bool = False
    interactive: bool = True
    reaped: Reaped = field(default=lambda stopped, left=(): None, repr=False)


class Tool(Protocol):
    """Something that a model may do."""

    @property
    def name(self) -> str:
        """What the model calls it."""
        ...

    @property
    def parallel(self) -> bool:
        """Whether it may run beside other calls of its step (∥ in H).

        True of tools that only look, and of those that change nothing another call could see.
        """
        ...

    @property
    def description(self) -> str:
        """What the tool does and when to use it, in words for the model."""
        ...

    @property
    def parameters(self) -> JsonObject:
        """The JSON Schema of its arguments."""
        ...

    async def run(self, call: ToolCall, /) -> ToolResult:
        """Do it. Raises `ToolError` for what the model should know and can act on."""
        ...


Metadata = dict[str, Json]
"""What a tool tells the viewers."""
