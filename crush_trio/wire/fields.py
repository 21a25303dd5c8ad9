"""Annotations of wire fields: how each is written as JSON; and timestamps.

A wire class is an attrs class whose field order is the key order of its JSON object. By default the
key is the field's name and is always written. Other fields have a marker:

* `OmitEmpty[str]` omits the key if the field equals its default;
* `Annotated[str, Key("Path")]` sets another key;
* `ObjectOrNothing` reads everything but an object as None;
* `Annotated[str, Shown(Action)]` is described as an `Action` and read as any text.

`wire_fields` returns the fields of a class for the codec. This module does not import the codec, so
values do not either.

Most times on the wire are unix seconds. The few that are text are a `Timestamp`, which stays text
in Python: peers write nanoseconds, which `datetime` would drop, and nothing computes with them.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import Enum
from typing import Annotated, Any, Final, NewType, TypeAlias, TypeVar, get_origin

import attrs
from attrs import frozen

Timestamp = NewType("Timestamp", str)
"""A point in time in RFC 3339 form, such as `2026-01-01T00:00:00Z`."""

ZERO_TIME: Final = Timestamp("0001-01-01T00:00:00Z")
"""The time for "never": peers do not accept an empty string as a time."""

_RFC3339: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?(Z|[+-][0-9]{2}:[0-9]{2})"
)


def timestamp(unix: int) -> Timestamp:
    """Return the RFC 3339 form of *unix* seconds; 0 is "never" and gives `ZERO_TIME`."""
    if not unix:
        return ZERO_TIME
    return Timestamp(datetime.fromtimestamp(unix, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))


def is_timestamp(text: str) -> bool:
    """Whether *text* names a time that exists, in RFC 3339 form."""
    if _RFC3339.fullmatch(text) is None:
        return False
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


T = TypeVar("T")

Json: TypeAlias = Any
"""Any JSON value, kept as it was written: objects are dicts, arrays are lists."""

JsonObject: TypeAlias = Mapping[str, Any]
"""A JSON object without a schema of ours."""


class Marker(Enum):
    """Markers of an annotation, for the codec."""

    OMIT_EMPTY = "omit empty"
    OBJECT_OR_NOTHING = "object or nothing"


@frozen
class Key:
    """The JSON key of a field, if it is not the field's name."""

    name: str


@frozen
class Shown:
    """The type that documents give a field, where the codec reads more than a client should send."""

    type: Any


OmitEmpty = Annotated[T, Marker.OMIT_EMPTY]
"""A field that is not written if it has its default; an absent key is read as the default."""

ObjectOrNothing = Annotated[JsonObject | None, Marker.OBJECT_OR_NOTHING]
"""An open object that some peers send back as something else, which is read as None."""


@frozen(kw_only=True)
class WireField:
    """One field of a wire class: its name in Python, its JSON key, type, default and markers."""

    name: str
    key: str
    type: Any
    default: Any
    markers: tuple[object, ...]

    @property
    def required(self) -> bool:
        """Whether the field has no default; an absent key then means the type's zero value."""
        return self.default is attrs.NOTHING

    @property
    def omit_empty(self) -> bool:
        """Whether the key is omitted if the value equals the default."""
        return Marker.OMIT_EMPTY in self.markers

    @property
    def shown(self) -> Any:  # noqa: ANN401 - as `type`
        """The type that documents give it."""
        return next((each.type for each in self.markers if isinstance(each, Shown)), self.type)

    @property
    def object_or_nothing(self) -> bool:
        """Whether anything but an object is read as None."""
        return Marker.OBJECT_OR_NOTHING in self.markers


_FACTORY: Final[Any] = attrs.Factory  # a class, which its stub declares as a function


def wire_fields(cls: type[attrs.AttrsInstance]) -> tuple[WireField, ...]:
    """Return the fields of *cls* in key order, with the markers of their annotations."""
    return tuple(_wire_field(attribute) for attribute in attrs.fields(cls))


def _wire_field(attribute: "attrs.Attribute[Any]") -> WireField:
    plain: Any = attribute.type
    markers: tuple[object, ...] = ()
    if get_origin(plain) is Annotated:
        plain, markers = plain.__origin__, plain.__metadata__
    keys = [marker.name for marker in markers if isinstance(marker, Key)]
    default = attribute.default
    if isinstance(default, _FACTORY):
        default = default.factory()
    return WireField(
        name=attribute.name,
        key=keys[0] if keys else attribute.name,
        type=plain,
        default=default,
        markers=markers,
    )
