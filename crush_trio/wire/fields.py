"""How a field is spelt on the wire, said in its annotation.

A wire class is an attrs class whose field order is the key order of its JSON object. Most fields
need no more than that: the key is the field's name and is always written. The rest carry a marker:

* `OmitEmpty[str]` leaves the key off when the field equals its default;
* `Annotated[str, Key("Path")]` spells the key differently;
* `ObjectOrNothing` reads everything but an object as nothing.

`wire_fields` is what the codec sees of a class. It does not import the codec, so neither do values.

The few times the wire writes as text. All others are unix seconds, plain integers.

A `Timestamp` stays text in Python: peers write nanoseconds, which `datetime` would drop, and
nothing here ever computes with one.
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
"""What is written for "never": an empty string is not a time to peers."""

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
"""A JSON object whose keys are the business of someone else."""


class Marker(Enum):
    """What an annotation may ask of the codec."""

    OMIT_EMPTY = "omit empty"
    OBJECT_OR_NOTHING = "object or nothing"


@frozen
class Key:
    """The key of a field that is not called on the wire what it is called here."""

    name: str


OmitEmpty = Annotated[T, Marker.OMIT_EMPTY]
"""A field that is not written when it has its default; the default is what absence means."""

ObjectOrNothing = Annotated[JsonObject | None, Marker.OBJECT_OR_NOTHING]
"""An open object that peers are known to echo back as something else."""


@frozen(kw_only=True)
class WireField:
    """One field of a wire class: where its value is, and where that goes."""

    name: str
    key: str
    type: Any
    default: Any
    markers: tuple[object, ...]

    @property
    def required(self) -> bool:
        """Whether the constructor insists; an absent key then means the type's zero value."""
        return self.default is attrs.NOTHING

    @property
    def omit_empty(self) -> bool:
        """Whether the key is left off when the value equals the default."""
        return Marker.OMIT_EMPTY in self.markers

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
