"""JSON Schemas of wire classes, made from the same fields that the codec uses.

Keys, types, defaults and optional keys come from the classes, and the values of an enum from the
codec.
"""

from collections.abc import Callable, Container, Mapping
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Final, NewType, TypeAlias, Union, get_args, get_origin

import attrs
from attrs import define, field

from crush_trio.wire.codec import unstructure
from crush_trio.wire.events import ENTITIES, Envelope, EventType
from crush_trio.wire.fields import Json, Timestamp, WireField, wire_fields
from crush_trio.wire.messages import PARTS, Part

Schema: TypeAlias = dict[str, Json]
"""A JSON Schema, or a part of a document with schemas."""

COMPONENTS: Final = "#/components/schemas/"
"""The path of the schemas in an OpenAPI document."""

_PLAIN: Final[Mapping[Any, Schema]] = {
    str: {"type": "string"},
    int: {"type": "integer", "format": "int64"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    bytes: {"type": "string", "contentEncoding": "base64"},
    Any: {},
    Timestamp: {"type": "string", "format": "date-time"},
}


@define(eq=False)
class Schemas:
    """The schemas of the types of one direction, each wire class once and by reference.

    For outgoing values, a key is required if it is always written. With *incoming*, a key is
    required if its field has no default, although the codec accepts its absence. A class whose name
    is *taken* gets the suffix `Input`.
    """

    incoming: bool = False
    taken: Container[str] = ()
    place: str = COMPONENTS
    components: dict[str, Schema] = field(factory=dict, init=False)

    def of(self, shape: Any) -> Schema:  # noqa: ANN401 - a class, an alias or a union
        """Return the schema of a type; add the classes that it refers to to `components`."""
        if shape in _PLAIN:
            return dict(_PLAIN[shape])
        if shape == Part:
            return self._ref("Part", self._any_part)
        if isinstance(shape, str):  # a class that refers to itself, by a string annotation
            return {"$ref": f"{self.place}{shape}"}
        if isinstance(shape, NewType):
            return self.of(shape.__supertype__)
        origin, args = get_origin(shape), get_args(shape)
        if origin is tuple:
            return {"type": "array", "items": self.of(args[0])}
        if origin is Mapping:
            return {"type": "object", "additionalProperties": self.of(args[1])}
        if origin in {Union, UnionType}:
            return _or_null(self.of(next(arg for arg in args if arg is not NoneType)))
        return self._ref(self._name(shape), lambda: self._class(shape))

    def _name(self, cls: type) -> str:
        taken = cls.__name__ in self.taken and not issubclass(cls, Enum)
        return f"{cls.__name__}Input" if taken else cls.__name__

    def _ref(self, name: str, make: Callable[[], Schema]) -> Schema:
        if name not in self.components:
            self.components[name] = {}  # a class may contain itself
            self.components[name] = make()
        return {"$ref": f"{self.place}{name}"}

    def _class(self, cls: type[Any]) -> Schema:
        if issubclass(cls, Enum):
            values = [unstructure(member) for member in cls]
            return {**_about(cls), "type": _PLAIN[type(values[0])]["type"], "enum": values}
        if cls is Envelope:
            return self._envelope()
        if cls in PARTS.values():
            wrapped = {"type": {"const": cls.kind}, "data": self._object(cls)}
            return {**_about(cls), "type": "object", "properties": wrapped, "required": [*wrapped]}
        return {**_about(cls), **self._object(cls)}

    def _object(self, cls: type[attrs.AttrsInstance]) -> Schema:
        fields = wire_fields(cls)
        schema: Schema = {
            "type": "object",
            "properties": {each.key: self._field(each) for each in fields},
        }
        if required := [each.key for each in fields if self._is_required(each)]:
            schema["required"] = required
        return schema

    def _field(self, each: WireField) -> Schema:
        schema = self.of(each.type)
        if each.omit_empty and each.default not in (None, (), {}):
            schema["default"] = unstructure(each.default)
        return schema

    def _is_required(self, each: WireField) -> bool:
        return each.required if self.incoming else not each.omit_empty

    def _any_part(self) -> Schema:
        """Return the union of all parts, with `type` as the discriminator."""
        refs = {kind: self.of(cls) for kind, cls in PARTS.items()}
        mapping = {kind: ref["$ref"] for kind, ref in refs.items()}
        return {
            "oneOf": [*refs.values()],
            "discriminator": {"propertyName": "type", "mapping": mapping},
        }

    def _envelope(self) -> Schema:
        """Return the union of all events."""
        change = self.of(EventType)
        return {
            **_about(Envelope),
            "oneOf": [
                _closed(
                    type={"const": payload_type.value},
                    payload=_closed(type=change, payload=self.of(entity)),
                )
                for payload_type, entity in ENTITIES.items()
            ],
        }


def _closed(**properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": [*properties]}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _about(cls: type) -> Schema:
    """Return the description of a class: the first paragraph of its docstring."""
    first = (cls.__doc__ or "").strip().split("\n\n")[0]
    return {"description": " ".join(first.split())}
