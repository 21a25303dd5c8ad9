"""Arguments and descriptions of the built-in tools.

An attrs class declares the arguments of a tool. Its JSON Schema is sent to the model, and the model's
arguments are decoded into it. A field is documented in its annotation, `Annotated[str, About("…")]`; a
field without default is required. Arguments that do not match the class become a `ToolError` of one
sentence; nothing is guessed.

The description of a tool is the file `<name>.md` in the folder of its module. Schema and description
are the same for every run and are needed in every step, so both are cached.
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


INVALID_JSON: Final = "the arguments of this tool call were not valid JSON"
"""The error result for arguments that are not JSON (D14b)."""


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


@cache
def _read_description(package: str, name: str) -> str:
    return files(package).joinpath(f"{name}.md").read_text(encoding="utf-8").strip()


@cache
def _cached_schema(arguments: type[Any]) -> JsonObject:
    return schema_of(arguments)


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
    annotations = {each.name: each.type for each in attrs.fields(cls)}
    fields = wire_fields(cls)
    schema: dict[str, Json] = {
        "type": "object",
        "properties": {each.key: _schema(annotations[each.name]) for each in fields},
        "required": [each.key for each in fields if each.required],
        "additionalProperties": False,
    }
    return schema


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
    if origin is tuple:
        return {"type": "array", "items": _schema(args[0])}
    if origin in {Union, UnionType}:
        return _schema(next(arg for arg in args if arg is not NoneType))
    if issubclass(shape, Enum):
        return {"type": "string", "enum": [member.value for member in shape]}
    return schema_of(shape)
