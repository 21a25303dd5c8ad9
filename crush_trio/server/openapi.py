"""The interface as an OpenAPI 3.1 document, made from the catalogue and the wire classes.

No shape is written down a second time: keys, types, defaults and what may be left out come from the
same fields that the codec reads, and the values of an enum are what the codec writes for them.

Answers and bodies are described apart. In an answer a key is required if it is always written. In a
body it is required if leaving it out is a mistake or hardly useful; the server forgives even that,
and reads an absent key or a null as the zero value. A class that is both has two schemas, and that
of the body ends in `Input`.
"""

from collections.abc import Iterable, Mapping
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Final, NewType, Union, get_args, get_origin

import attrs
from attrs import define, field

from crush_trio.server.catalogue import CATALOGUE
from crush_trio.server.extensions import EXTENSIONS
from crush_trio.server.route import EVENTS, JSON, Route
from crush_trio.server.status import STATUS
from crush_trio.wire.codec import unstructure
from crush_trio.wire.events import ENTITIES, Envelope, EventType
from crush_trio.wire.fields import Json, WireField, wire_fields
from crush_trio.wire.messages import PARTS, Part
from crush_trio.wire.times import Timestamp

Schema = dict[str, Json]
"""A JSON Schema, or a piece of an OpenAPI document."""

_PLAIN: Final[Mapping[Any, Schema]] = {
    str: {"type": "string"},
    int: {"type": "integer", "format": "int64"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    bytes: {"type": "string", "contentEncoding": "base64"},
    Any: {},
    Timestamp: {"type": "string", "format": "date-time"},
}

_ABOUT: Final = (
    "Agents that work in directories, for any number of clients. Unknown keys of a body are ignored; "
    "an absent key or a null means the zero value of its type. Integers are written without fraction. "
    "An error has a sentence for people and a code for programs; a path or a method that does not "
    "exist is answered with plain text."
)

_ERROR: Final[Schema] = {
    "type": "object",
    "description": "What went wrong: a sentence for people, a code for programs.",
    "properties": {
        "message": {"type": "string"},
        "code": {"type": "string", "enum": sorted(STATUS)},
    },
    "required": ["message", "code"],
}


@define(eq=False)
class Schemas:
    """The schemas of the types of one direction, each wire class once and by reference.

    With *others* these are the schemas of bodies, and names that others have taken are avoided.
    """

    others: "Schemas | None" = None
    components: dict[str, Schema] = field(factory=dict, init=False)

    def of(self, shape: Any) -> Schema:  # noqa: ANN401 - a class, an alias or a union
        """Return the schema of a type; what it is made of is added to `components`."""
        if shape in _PLAIN:
            return dict(_PLAIN[shape])
        if shape == Part:
            return self._ref("Part", self._any_part)
        if isinstance(shape, str):  # a class names itself, before it exists
            return {"$ref": f"#/components/schemas/{shape}"}
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
        taken = self.others is not None and cls.__name__ in self.others.components
        return f"{cls.__name__}Input" if taken and not issubclass(cls, Enum) else cls.__name__

    def _ref(self, name: str, make: Any) -> Schema:  # noqa: ANN401
        if name not in self.components:
            self.components[name] = {}  # a class may be found in itself
            self.components[name] = make()
        return {"$ref": f"#/components/schemas/{name}"}

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
        return not each.omit_empty if self.others is None else each.required

    def _any_part(self) -> Schema:
        """Return the union of all parts; each is wrapped, and its `type` says which it is."""
        refs = {kind: self.of(cls) for kind, cls in PARTS.items()}
        mapping = {kind: ref["$ref"] for kind, ref in refs.items()}
        return {
            "oneOf": [*refs.values()],
            "discriminator": {"propertyName": "type", "mapping": mapping},
        }

    def _envelope(self) -> Schema:
        """Return the union of all events: what kind of thing, what happened to it, and the thing."""
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


def openapi_document(version: str) -> Schema:
    """Return the document that describes every route of the catalogue."""
    answers = Schemas()
    groups = {**CATALOGUE, "Extensions": EXTENSIONS}
    for route in _all(groups):
        if route.answer is not None:
            answers.of(route.answer)
    bodies = Schemas(answers)
    paths: dict[str, Schema] = {}
    for tag, group in groups.items():
        for route in group:
            operation = _operation(route, tag, answers, bodies)
            paths.setdefault(route.path, {})[route.method.lower()] = operation
    schemas = {**bodies.components, **answers.components, "Error": _ERROR}
    return {
        "openapi": "3.1.0",
        "info": {"title": "crush_trio", "version": version, "description": _ABOUT},
        "tags": [{"name": name} for name in groups],
        "paths": paths,
        "components": {
            "schemas": dict(sorted(schemas.items())),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }


def _operation(route: Route, tag: str, answers: Schemas, bodies: Schemas) -> Schema:
    operation: Schema = {
        "tags": [tag],
        "summary": route.about,
        "operationId": _operation_id(route),
        "x-state": route.state,
    }
    if parameters := _parameters(route):
        operation["parameters"] = parameters
    if route.body is not None:
        operation["requestBody"] = {
            "required": not route.body_optional,
            "content": {JSON: {"schema": bodies.of(route.body)}},
        }
    operation["responses"] = {str(route.status): _answer(route, answers), **_errors(route)}
    return operation


def _operation_id(route: Route) -> str:
    """Return a name for the route: its method and path, with nothing in it that is no letter."""
    words = route.path.removeprefix("/v1").replace("-", "/").replace(".", "/").split("/")
    return "_".join([route.method.lower(), *(word.strip("{}") for word in words if word)]) + (
        "_page" if route.path.endswith("/") else ""
    )


def _parameters(route: Route) -> list[Schema]:
    text = {"type": "string"}
    found: list[Schema] = [
        {"name": name, "in": "path", "required": True, "schema": text} for name in route.parameters
    ]
    found += [
        {
            "name": query.name,
            "in": "query",
            "required": query.required,
            "description": query.about,
            "schema": text,
        }
        for query in route.query
    ]
    if route.media == EVENTS:
        about = "the id of the last event that was read, to go on from there"
        found.append(
            {"name": "Last-Event-ID", "in": "header", "description": about, "schema": text}
        )
    return found


def _answer(route: Route, answers: Schemas) -> Schema:
    if route.answer is None:
        return {"description": "Done; there is no body."}
    schema = answers.of(route.answer)
    if route.media == EVENTS:
        about = "Server-sent events; the data of each is one JSON object."
        content: Schema = {"schema": {"type": "string"}, "x-event-schema": schema}
        return {"description": about, "content": {EVENTS: content}}
    about = "Done; there is not always a body." if route.answer_optional else "Done."
    return {"description": about, "content": {route.media: {"schema": schema}}}


def _errors(route: Route) -> Schema:
    """Return the answers that report a failure: one for each status, with its codes."""
    content = {JSON: {"schema": {"$ref": "#/components/schemas/Error"}}}
    by_status: dict[str, list[str]] = {}
    for code in route.codes:
        by_status.setdefault(str(int(STATUS[code])), []).append(f"`{code}`")
    found: Schema = {
        status: {"description": ", ".join(codes), "content": content}
        for status, codes in by_status.items()
    }
    about = "Refused before any route saw it, or failed in here."
    return {**found, "default": {"description": about, "content": content}}


def _all(groups: Mapping[str, Iterable[Route]]) -> Iterable[Route]:
    return (route for group in groups.values() for route in group)


def _closed(**properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": [*properties]}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _about(cls: type) -> Schema:
    """Return the description of a class: the first paragraph of its docstring."""
    first = (cls.__doc__ or "").strip().split("\n\n")[0]
    return {"description": " ".join(first.split())}
