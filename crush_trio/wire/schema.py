"""JSON Schemas of wire classes, made from the same fields that the codec uses.

Keys, types and optional keys come from the classes, and the values of an enum from the codec. An
absent key means the zero value of its type; in documents for generators no `default` says so, because
they take one for a promise that the key is there.

Generators make classes of named schemas only, and choose between them by a discriminator. So every
object has a name, also those that the codec wraps around a value: a `TextPart` has a `TextPartData`,
a `SessionEnvelope` has a `SessionChange`, which is also the data of the native event
`NativeSessionEvent`. A value that is always the same is an `enum` beside the `const`, which older
tools do not know.
"""

from collections.abc import Callable, Container, Mapping
from enum import Enum, IntEnum
from functools import partial
from types import NoneType, UnionType
from typing import Any, Final, NewType, TypeAlias, Union, get_args, get_origin

import attrs
from attrs import define, field

from crush_trio.wire.answers import NATIVE, UNNUMBERED
from crush_trio.wire.codec import unstructure
from crush_trio.wire.events import (
    ENTITIES,
    Entity,
    Envelope,
    EventType,
    PayloadType,
)
from crush_trio.wire.fields import Json, Timestamp, WireField, wire_fields
from crush_trio.wire.messages import PARTS

Schema: TypeAlias = dict[str, Json]
"""A JSON Schema, or a part of a document with schemas."""

COMPONENTS: Final = "#/components/schemas/"
"""The path of the schemas in an OpenAPI document."""

_PARTS: Final = frozenset(PARTS.values())

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
    is *taken* gets the suffix `Input`. With *defaults*, for files that people write, a key has its
    default, and null for "not set".
    """

    incoming: bool = False
    defaults: bool = False
    taken: Container[str] = ()
    place: str = COMPONENTS
    components: dict[str, Schema] = field(factory=dict, init=False)

    def of(self, shape: Any) -> Schema:  # noqa: ANN401 - a class, an alias or a union
        """Return the schema of a type; add the classes that it refers to to `components`."""
        if shape in _PLAIN:
            return dict(_PLAIN[shape])
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
            schema = self._not_null(args)
            return _or_null(schema) if NoneType in args else schema
        return self._ref(self._name(shape), lambda: self._class(shape))

    def native_event(self) -> Schema:
        """Return the union of all events of the native form: each with its name, id and data."""
        changes = {each.value: each for each in PayloadType if each is not PayloadType.RUN_COMPLETE}
        names = [*NATIVE, *changes]
        refs = {name: self._ref(_native_name(name), partial(self._native, name)) for name in names}
        return self._ref("NativeEvent", lambda: _one_of("event", refs))

    def _native(self, name: str) -> Schema:
        """Return the schema of one native event, as a reader of server-sent events sees it."""
        cls = NATIVE.get(name)
        data = self._change(ENTITIES[PayloadType(name)]) if cls is None else self.of(cls)
        place = {} if name in UNNUMBERED else {"id": dict(_EVENT_ID)}
        schema = _closed(event=_constant(name), **place, data=data)
        if name == "ready":  # a reader that has lost its place gets it from the resync that follows
            schema["required"] = ["event", "data"]
        return schema

    def _not_null(self, args: tuple[Any, ...]) -> Schema:
        """Return the schema of what is in a union beside None: one type, or the parts."""
        kinds = [arg for arg in args if arg is not NoneType]
        if _PARTS.issuperset(kinds):
            return self._ref("Part", self._any_part)
        return self.of(kinds[0])

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
            schema = {**_about(cls), "type": _PLAIN[type(values[0])]["type"], "enum": values}
            if issubclass(cls, IntEnum):
                schema["x-enum-varnames"] = [member.name for member in cls]
            return schema
        if cls is Envelope:
            refs = {kind.value: self._wrapped(kind) for kind in ENTITIES}
            return {**_about(cls), **_one_of("type", refs)}
        if cls in _PARTS:
            data = self._ref(f"{self._name(cls)}Data", lambda: self._object(cls))
            return {**_about(cls), **_closed(type=_constant(cls.kind), data=data)}
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
        if self.defaults:
            schema = self.of(each.shown)
            if each.omit_empty and each.default not in (None, (), {}):
                schema["default"] = unstructure(each.default)
            return schema
        if each.omit_empty and each.default is None:  # it is left out instead of null
            return self._not_null(get_args(each.shown) or (each.shown,))
        return self.of(each.shown)

    def _is_required(self, each: WireField) -> bool:
        return each.required if self.incoming else not each.omit_empty

    def _any_part(self) -> Schema:
        """Return the union of all parts, with `type` as the discriminator."""
        return _one_of("type", {kind: self.of(cls) for kind, cls in PARTS.items()})

    def _wrapped(self, kind: PayloadType) -> Schema:
        """Return the schema of an envelope with one kind of payload."""
        entity = ENTITIES[kind]
        change = self._change(entity)
        return self._ref(
            f"{entity.__name__}Envelope",
            lambda: _closed(type=_constant(kind.value), payload=change),
        )

    def _change(self, entity: type[Entity]) -> Schema:
        """Return the schema of the inner object of an envelope."""
        event_type, payload = self.of(EventType), self.of(entity)
        return self._ref(
            f"{entity.__name__}Change", lambda: _closed(type=event_type, payload=payload)
        )


_EVENT_ID: Final[Schema] = {
    "type": "string",
    "description": "The place after this event, `<boot>-<number>`; send it to resume.",
}


def _native_name(name: str) -> str:
    return f"Native{name.title().replace('_', '').removesuffix('Event')}Event"


def _constant(value: str) -> Schema:
    return {"type": "string", "const": value, "enum": [value]}


def _one_of(key: str, refs: Mapping[str, Schema]) -> Schema:
    """Return the union of named schemas, of which *key* says which one a value has."""
    mapping = {value: ref["$ref"] for value, ref in refs.items()}
    return {
        "oneOf": [*refs.values()],
        "discriminator": {"propertyName": key, "mapping": mapping},
    }


def _closed(**properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": [*properties]}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _about(cls: type) -> Schema:
    """Return the description of a class: the first paragraph of its docstring."""
    first = (cls.__doc__ or "").strip().split("\n\n")[0]
    return {"description": " ".join(first.split())}
