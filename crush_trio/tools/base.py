"""What a tool is: `Tool`, `ToolCall`, `ToolResult`, `ToolError`, permissions; and `BuiltIn`, a base class.

A tool returns content, or raises `ToolError`, which the model sees and may act on. Any other
exception fails the run (H1). A tool runs in the task of its call, inside the run's cancel scope, so a
cancel reaches it; everything it started must have ended when `Tool.run` returns or raises.

A built-in tool declares its arguments as an attrs class. The JSON Schema of the class is sent to the
model, and the model's arguments are decoded into it. A field is documented in its annotation,
`Annotated[str, About("…")]`; a field without default is required. Arguments that do not match the class
become a `ToolError` of one sentence; nothing is guessed. The description of a tool is the file `<name>.md`
in the folder of its module. Schema and description are the same for every run and are needed in every
step, so both are cached.
"""

from collections.abc import Callable, Iterable
from enum import Enum
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Final,
    NewType,
    Protocol,
    TypeVar,
    Union,
    get_args,
    get_origin,
)

import attrs
import orjson
from attrs import field, frozen

from crush_trio.errors import DecodeError
from crush_trio.wire.asks import Question, QuestionResponse
from crush_trio.wire.codec import structure
from crush_trio.wire.fields import Json, JsonObject, wire_fields
from crush_trio.wire.ids import MessageId, RunId, SessionId, ToolCallId

# ── Results ─────────────────────────────────────────────────────────────────────────────────────


@frozen(kw_only=True)
class Media:
    """An image, or another file that is not text."""

    data: bytes = field(repr=False)
    mime_type: str


Metadata = dict[str, Json]
"""The metadata of a tool result, for clients."""


@frozen(kw_only=True)
class ToolResult:
    """The result of a tool call. `metadata` is for clients; the model does not see it.

    `stop_turn` ends the turn with this step, because the call was refused. The remaining calls of the
    step are not made. The content then belongs to the run's answer, which is all that some clients show
    of a run, unless the refusal was `by_person`: that person knows. `more_media` is only set beside
    `media`.
    """

    content: str = ""
    is_error: bool = False
    stop_turn: bool = False
    media: Media | None = None
    more_media: tuple[Media, ...] = ()
    metadata: JsonObject = field(factory=dict, repr=False)
    by_person: bool = False


class ToolError(Exception):
    """Raised by a tool to return an error result that the model sees (H1)."""

    def __init__(
        self,
        content: str,
        *,
        stop_turn: bool = False,
        metadata: JsonObject | None = None,
        by_person: bool = False,
    ) -> None:
        super().__init__(content)
        self.result = ToolResult(
            content=content,
            is_error=True,
            stop_turn=stop_turn,
            metadata=metadata or {},
            by_person=by_person,
        )


# ── Permission ──────────────────────────────────────────────────────────────────────────────────


@frozen(kw_only=True)
class Wanted:
    """A request for permission: what a tool wants to do (F10).

    `path` is what the action touches, absolute and resolved. `denied` is the metadata of the result
    if permission is denied: the change that was not made (F5). `always` asks a person although a grant,
    a hook or a list of allowed tools would settle it; only the user's skip mode asks nothing. `allowed`
    is for what the configuration allows without asking, unless a rule is against it or it names what is
    always asked about, such as `.git`.
    """

    action: str
    description: str
    params: JsonObject | None = field(repr=False)
    path: Path
    denied: JsonObject = field(factory=dict, repr=False)
    always: bool = False
    allowed: bool = False


LEAVE_SANDBOX: Final = "leave_sandbox"
"""The action of a command that leaves the sandbox. No grant covers it."""


class Permit(Protocol):
    """Asks for permission on behalf of one tool call."""

    async def __call__(self, wanted: Wanted, /) -> None:
        """Return if *wanted* is allowed, else raise a `ToolError` that stops the turn."""
        ...


# ── Calls and tools ─────────────────────────────────────────────────────────────────────────────


class AskPerson(Protocol):
    """Puts questions to a person on behalf of one tool call."""

    async def __call__(
        self, questions: tuple[Question, ...], /
    ) -> tuple[QuestionResponse, ...] | None:
        """Return the answers; None if the person declines or no person can answer."""
        ...


class ReportProcesses(Protocol):
    """Records process ids for the stop receipt of the cancel that ends a call."""

    def __call__(self, stopped: Iterable[int], left: Iterable[int] = ()) -> None:
        """Add the processes *stopped* because the call was, and those that could not be stopped."""
        ...


@frozen(kw_only=True)
class ToolCall:
    """One call of a tool: its ids, its input, and its way to ask for permission.

    `message_id` is the assistant message that made the call. `images` says whether the model accepts
    images. `ask` is None if the run has no person to ask. `progress` shows clients a short text about
    how far a long call is.
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
    ask: AskPerson | None = field(default=None, repr=False)
    progress: Callable[[str], None] = field(default=lambda text: None, repr=False)


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


# ── Built-in tools ──────────────────────────────────────────────────────────────────────────────

INVALID_JSON: Final = "the arguments of this tool call were not valid JSON"
"""The error result for arguments that are not JSON (D14b)."""

A = TypeVar("A", bound=attrs.AttrsInstance)


@frozen
class About:
    """The description of an argument, for the model."""

    text: str


class BuiltIn:
    """Base class of the built-in tools. A subclass adds `run` and is then a `Tool`."""

    __slots__ = ()

    name: ClassVar[str]
    parallel: ClassVar[bool] = False
    arguments: ClassVar[type[Any]]

    @property
    def description(self) -> str:
        """The text of `<name>.md` beside the tool's module."""
        return _read_description(type(self).__module__.rpartition(".")[0], self.name)

    @property
    def parameters(self) -> JsonObject:
        """The JSON Schema of the arguments."""
        return _cached_schema(self.arguments)  # type: ignore[arg-type]  # mypy: a class is not Hashable


def read_arguments(text: str, cls: type[A]) -> A:
    """Return the model's arguments as a *cls*; raise a `ToolError` that says what is wrong.

    Unknown arguments are ignored, because models sometimes add meaningless ones.
    """
    try:
        value = orjson.loads(text or "{}")
    except orjson.JSONDecodeError as exc:
        raise ToolError(INVALID_JSON) from exc
    if not isinstance(value, dict):
        raise ToolError("the arguments are not a JSON object")
    required = (each for each in wire_fields(cls) if each.required)
    missing = [each.key for each in required if value.get(each.key) is None]
    if missing:
        raise ToolError(f"{missing[0]} is required")
    try:
        return structure(value, cls)
    except DecodeError as exc:
        raise ToolError(f"invalid arguments: {exc.detail}") from exc


def schema_of(cls: type[Any]) -> dict[str, Json]:
    """Return the JSON Schema of the arguments class *cls*, without references."""
    attrs.resolve_types(cls, include_extras=True)  # annotations may be text
    fields = wire_fields(cls)
    annotations = {each.name: each.type for each in attrs.fields(cls)}
    schema: dict[str, Json] = {
        "type": "object",
        "properties": {each.key: _schema(annotations[each.name]) for each in fields},
        "required": [each.key for each in fields if each.required],
        "additionalProperties": False,
    }
    return schema


@cache
def _read_description(package: str, name: str) -> str:
    return files(package).joinpath(f"{name}.md").read_text(encoding="utf-8").strip()


@cache
def _cached_schema(arguments: type[Any]) -> JsonObject:
    return schema_of(arguments)


_PLAIN: Final[dict[Any, str]] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
}


def _schema(shape: Any) -> dict[str, Json]:  # noqa: ANN401 - a class, an alias or a union
    if get_origin(shape) is Annotated:
        about = [mark.text for mark in shape.__metadata__ if isinstance(mark, About)]
        return _schema(shape.__origin__) | ({"description": about[0]} if about else {})
    if isinstance(shape, NewType):
        return _schema(shape.__supertype__)
    if shape in _PLAIN:
        return {"type": _PLAIN[shape]}
    origin, args = get_origin(shape), get_args(shape)
    if origin in {tuple, list}:
        return {"type": "array", "items": _schema(args[0])}
    if origin in {Union, UnionType}:
        return _schema(next(arg for arg in args if arg is not NoneType))
    if issubclass(shape, Enum):
        return {"type": "string", "enum": [member.value for member in shape]}
    return schema_of(shape)
