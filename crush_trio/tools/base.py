"""Protocols and values of tools: `Tool`, `ToolCall`, `ToolResult`, `ToolError`, permissions.

A tool returns content, or raises `ToolError`, which the model sees and may act on. Any other
exception fails the run (H1). A tool runs in the task of its call, inside the run's cancel scope, so a
cancel reaches it; everything it started must have ended when `Tool.run` returns or raises.
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
    """An image, or another file that is not text."""

    data: bytes = field(repr=False)
    mime_type: str


@frozen(kw_only=True)
class ToolResult:
    """The result of a tool call. `metadata` is for clients; the model does not see it.

    `stop_turn` ends the turn with this step, because a person denied the call. The remaining calls of
    the step are not made.
    """

    content: str = ""
    is_error: bool = False
    stop_turn: bool = False
    media: Media | None = None
    metadata: JsonObject = field(factory=dict, repr=False)


class ToolError(Exception):
    """Raised by a tool to return an error result that the model sees (H1)."""

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
    """A request for permission: what a tool wants to do (F10).

    `path` is what the action touches, absolute and resolved. `denied` is the metadata of the result
    if permission is denied: the change that was not made (F5).
    """

    action: str
    description: str
    params: JsonObject | None = field(repr=False)
    path: Path
    denied: JsonObject = field(factory=dict, repr=False)


class Permit(Protocol):
    """Asks for permission on behalf of one tool call."""

    async def __call__(self, wanted: Wanted, /) -> None:
        """Return if *wanted* is allowed, else raise a `ToolError` that stops the turn."""
        ...


# ── Calls ───────────────────────────────────────────────────────────────────────────────────────


class ReportProcesses(Protocol):
    """Records process ids for the stop receipt of the cancel that ends a call."""

    def __call__(self, stopped: Iterable[int], left: Iterable[int] = ()) -> None:
        """Add the processes *stopped* because the call was, and those that could not be stopped."""
        ...


@frozen(kw_only=True)
class ToolCall:
    """One call of a tool: its ids, its input, and its way to ask for permission.

    `message_id` is the assistant message that made the call. `images` says whether the model accepts
    images.
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
    reaped: ReportProcesses = field(default=lambda stopped, left=(): None, repr=False)


class Tool(Protocol):
    """A tool that a model may call."""

    @property
    def name(self) -> str:
        """The name by which the model calls it."""
        ...

    @property
    def parallel(self) -> bool:
        """Whether it may run concurrently with other calls of its step (∥ in H).

        True for tools that only read, and for those that change nothing another call could see.
        """
        ...

    @property
    def description(self) -> str:
        """What the tool does and when to use it; text for the model."""
        ...

    @property
    def parameters(self) -> JsonObject:
        """The JSON Schema of its arguments."""
        ...

    async def run(self, call: ToolCall, /) -> ToolResult:
        """Execute the call. Raises `ToolError` for an error that the model can act on."""
        ...


Metadata = dict[str, Json]
"""The metadata of a tool result, for clients."""
