"""The arguments of a tool: one attrs class says what they are, for the model and for us.

From the class comes the JSON Schema that the model is given, and into it goes what the model sends.
A field says what it is for in its annotation, `Annotated[str, About("…")]`; a field without default
is required. What does not fit is told to the model in one sentence, never guessed at.

What the tools of this package have in common: how a model is told of them.

A tool names the class of its arguments, and its description stands in `<name>.md` beside its module.
Both are the same for every run, and a model is told of every tool in every step, so what is made of
them is made once.
"""

from enum import Enum
from functools import cache
from importlib.resources import files
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Final, NewType, TypeVar, Union, get_args, get_origin

import attrs
import orjson
from attrs import frozen

from crush_trio.errors import DecodeError
from crush_trio.tools.base import ToolError
from crush_trio.wire.codec import structure
from crush_trio.wire.fields import Json, JsonObject, wire_fields

A = TypeVar("A", bound=attrs.AttrsInstance)

_PLAIN: Final[dict[Any, str]] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
}


@frozen
class About:
    """What an argument is for, in words for the model."""

    text: str


def schema_of(cls: type[Any]) -> dict[str, Json]:
    """Return the JSON Schema of the arguments *cls*, complete in itself."""
    annotations = {each.name: each.type for each in attrs.fields(cls)}
    fields = wire_fields(cls)
    schema: dict[str, Json] = {
        "type": "object",
        "properties": {each.key: _schema(annotations[each.name]) for each in fields},
        "required": [each.key for each in fields if each.required],
        "additionalProperties": False,
    }
    return schema


def _schema(shape: Any) -> dict[str, Json]:  # noqa: ANN401 - a class, an alias or a union
    if get_origin(shape) is Annotated:
        about = [mark.text for mark in shape.__metadata__ if isinstance(mark, About)]
        return _schema(shape.__origin__) | ({"description": about[0]} if about else {})
    if isinstance(shape, NewType):
        return _schema(shape.__supertype__)
    if shape in _PLAIN:
        return {"type": _PLAIN[shape]}
    origin, args = get_origin(shape), get_args(shape)
    if origin is tuple:
        return {"type": "array", "items": _schema(args[0])}
    if origin in {Union, UnionType}:
        return _schema(next(arg for arg in args if arg is not NoneType))
    if issubclass(shape, Enum):
        return {"type": "string", "enum": [member.value for member in shape]}
    return schema_of(shape)


def read_arguments(text: str, cls: type[A]) -> A:
    """Return the model's arguments as a *cls*; raise a `ToolError` that says what is wrong.

    Unknown arguments are ignored: models add some now and then, and mean nothing by it.
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


INVALID_JSON: Final = "the arguments of this tool call were not valid JSON"
"""What a model is told whose arguments could not be read at all (D14b)."""


class BuiltIn:
    """A tool of ours, less what it does: `run` is all that it lacks to be a `Tool`."""

    __slots__ = ()

    name: ClassVar[str]
    parallel: ClassVar[bool] = False
    arguments: ClassVar[type[Any]]

    @property
    def description(self) -> str:
        """What the model is told."""
        return _described(type(self).__module__.rpartition(".")[0], self.name)

    @property
    def parameters(self) -> JsonObject:
        """The schema of the arguments."""
        return _cached_schema(self.arguments)  # type: ignore[arg-type]  # mypy: a class is not Hashable


@cache
def _described(package: str, name: str) -> str:
    return files(package).joinpath(f"{name}.md").read_text(encoding="utf-8").strip()


@cache
def _cached_schema(arguments: type[Any]) -> JsonObject:
    return schema_of(arguments)
