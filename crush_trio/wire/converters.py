"""Readers (parsed JSON to wire values) and writers; the codec assigns them to types.

Readers check types and never convert: an integer is not a float without a fraction, a boolean is
not an integer. They accept what peers are known to leave out: unknown keys are skipped, and an
absent key or a null means the field's default, or the zero value of its type. So every reader
returns its zero value for None. The first value that does not fit raises a `Mismatch`, which
collects its path on the way out.

Writing cannot fail for a value that has the declared types. A string may have a lone surrogate,
from a model or a file name, which JSON cannot hold: it is replaced, but only after writing has
failed, so that ordinary text need not be searched.
"""

import binascii
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum, StrEnum
from types import NoneType
from typing import Any, Final, NewType, TypeAlias, get_args

from cattrs import Converter
from cattrs.fns import identity

from crush_trio.plain_json import shown
from crush_trio.wire.fields import ZERO_TIME, Json, WireField, is_timestamp, wire_fields


def class_writer(
    cls: type[Any], converter: Converter, *, without: str = ""
) -> Callable[[Any], dict[str, Json]]:
    """Make the writer of a wire class: its keys in order, except those that may be omitted.

    The field called *without* is skipped.
    """
    plan = []
    for field in wire_fields(cls):
        if field.name == without:
            continue
        hook = converter.get_unstructure_hook(field.type)
        plan.append(
            (
                field.name,
                field.key,
                None if hook is identity else hook,
                field.omit_empty,
                field.default,
            )
        )

    def write(value: object) -> dict[str, Json]:
        written = {}
        for name, key, hook, omit_empty, default in plan:
            item = getattr(value, name)
            if omit_empty and item == default:
                continue
            written[key] = item if hook is None else hook(item)
        return written

    return write


def write_bytes(value: bytes) -> str:
    """Write bytes as base64 with padding."""
    return binascii.b2a_base64(value, newline=False).decode("ascii")


Reader: TypeAlias = Callable[[Any, Any], Any]
"""Takes a parsed value and the type it should have; the form of a cattrs hook."""

_INT64: Final = range(-(2**63), 2**63)
_NAMES: Final[Mapping[type, str]] = {
    NoneType: "null",
    bool: "a boolean",
    int: "an integer",
    float: "a number",
    str: "a string",
    list: "a list",
    tuple: "a list",
    dict: "an object",
}

OPEN_DEPTH: Final = 100
"""How deep an open value may nest: less than the encoder's limit for the whole answer."""

FEW_VALUES: Final = 6
"""An error about an unknown value names the known ones if there are no more than this."""


class Mismatch(Exception):
    """A value does not have the expected type. `steps` is its path, innermost first."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.steps: list[str] = []

    def text(self) -> str:
        """Return the path and the reason as one line."""
        path = "".join(reversed(self.steps)).removeprefix(".")
        return f"{path}: {self.reason}" if path else self.reason


def expected(what: str, value: object) -> Mismatch:
    """Return a mismatch with the expected and the found kind; never with the value itself."""
    return Mismatch(f"expected {what}, got {_NAMES.get(type(value), 'something else')}")


def key_step(key: str) -> str:
    """Return the step of a path for *key*."""
    return f".{key}" if key.isidentifier() else f"[{shown(key)}]"


@contextmanager
def within(key: str) -> Iterator[None]:
    """Add *key* to the path of a mismatch in the body."""
    try:
        yield
    except Mismatch as mismatch:
        mismatch.steps.append(key_step(key))
        raise


def read_text(value: object, _type: object) -> str:
    """Read text; None is empty text."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise expected("a string", value)
    return value


def read_integer(value: object, _type: object) -> int:
    """Read a number without fraction or exponent, in the range of 64 bits; None is 0."""
    if value is None:
        return 0
    if type(value) is not int:
        raise expected("an integer", value)
    if value not in _INT64:
        raise Mismatch("expected an integer of 64 bits")
    return value


def read_number(value: object, _type: object) -> float:
    """Read any number. An integer stays an integer, so that it is written back the same."""
    if value is None:
        return 0
    if type(value) is not float and type(value) is not int:
        raise expected("a number", value)
    return value


def read_flag(value: object, _type: object) -> bool:
    """Read true or false; None is false."""
    if value is None:
        return False
    if not isinstance(value, bool):
        raise expected("a boolean", value)
    return value


def read_bytes(value: object, _type: object) -> bytes:
    """Read base64 in the standard alphabet, with padding; None is empty."""
    text = read_text(value, str)
    try:
        return binascii.a2b_base64(text.encode("ascii"), strict_mode=True)
    except ValueError:  # binascii.Error and UnicodeEncodeError both are
        raise Mismatch("expected base64") from None


def read_timestamp(value: object, _type: object) -> str:
    """Read an RFC 3339 time; None is the zero time, empty text is an error."""
    if value is None:
        return ZERO_TIME
    text = read_text(value, str)
    if not is_timestamp(text):
        raise Mismatch("expected an RFC 3339 time")
    return text


def read_enum(value: object, enum: type[Enum]) -> Enum:
    """Read one of the enum's values; None is the member for the zero value, if there is one."""
    plain = read_text(value, str) if issubclass(enum, StrEnum) else read_integer(value, int)
    try:
        return enum(plain)
    except ValueError:
        what = shown(plain) if isinstance(plain, str) else plain
        raise Mismatch(f"unknown value {what}{_instead(enum)}") from None


def _instead(enum: type[Enum]) -> str:
    """Return the values that can be written instead, if they are few words."""
    if not issubclass(enum, StrEnum) or len(enum) > FEW_VALUES:
        return ""
    return f"; expected {', '.join(filter(None, enum))}"


def read_open(value: Json, _type: object) -> Json:
    """Accept any JSON value that is not nested too deep to be written again."""
    _check_depth(value, OPEN_DEPTH)
    return value


def read_object_or_nothing(value: Json, _type: object) -> Json:
    """Read an open object; any other value is None."""
    return read_open(value, None) if isinstance(value, dict) else None


def object_at(value: Json) -> dict[str, Json]:
    """Return *value* if it is an object; None is an empty one."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise expected("an object", value)
    return value


def class_reader(cls: type[Any], converter: Converter) -> Reader:
    """Make the reader of a wire class, from the fields it declares."""
    plan = [
        (field.name, field.key, _field_reader(field, converter), field.type, field.required)
        for field in wire_fields(cls)
    ]

    def read(value: Json, _type: object) -> Json:
        source = object_at(value)
        found = {}
        for name, key, reader, type_, required in plan:
            item = source.get(key)
            if item is None and not required:
                continue
            try:
                found[name] = reader(item, type_)
            except Mismatch as mismatch:
                mismatch.steps.append(key_step(key))
                raise
        return cls(**found)

    return read


def tuple_reader(cls: Any, converter: Converter) -> Reader:  # noqa: ANN401 - an alias, not a class
    """Make the reader of `tuple[X, ...]`; None is an empty tuple."""
    item_type = get_args(cls)[0]
    read_item = converter.get_structure_hook(item_type)

    def read(value: Json, _type: object) -> tuple[Json, ...]:
        if value is None:
            return ()
        if not isinstance(value, list | tuple):
            raise expected("a list", value)
        items: list[Json] = []
        try:
            for item in value:
                items.append(read_item(item, item_type))  # noqa: PERF401 - its length is the index
        except Mismatch as mismatch:
            mismatch.steps.append(f"[{len(items)}]")
            raise
        return tuple(items)

    return read


def mapping_reader(cls: Any, converter: Converter) -> Reader:  # noqa: ANN401 - an alias, not a class
    """Make the reader of `Mapping[str, X]`; None is an empty mapping."""
    item_type = get_args(cls)[1]
    read_item = converter.get_structure_hook(item_type)

    def read(value: Json, _type: object) -> dict[str, Json]:
        items = {}
        for key, item in object_at(value).items():
            try:
                items[key] = read_item(item, item_type)
            except Mismatch as mismatch:
                mismatch.steps.append(key_step(key))
                raise
        return items

    return read


def optional_reader(cls: Any, converter: Converter) -> Reader:  # noqa: ANN401 - a union, not a class
    """Make the reader of `X | None`. An empty id is None, too."""
    inner = next(arg for arg in get_args(cls) if arg is not NoneType)
    read_inner = converter.get_structure_hook(inner)
    nothing = (None, "") if isinstance(inner, NewType) else (None,)

    def read(value: Json, _type: object) -> Json:
        return None if value in nothing else read_inner(value, inner)

    return read


def _field_reader(field: WireField, converter: Converter) -> Reader:
    if field.object_or_nothing:
        return read_object_or_nothing
    return converter.get_structure_hook(field.type)


def _check_depth(value: Json, left: int) -> None:
    children: Iterable[Json] = ()
    if isinstance(value, dict):
        children = value.values()
    elif isinstance(value, list):
        children = value
    else:
        return
    if not left:
        raise Mismatch(f"nested more than {OPEN_DEPTH} levels deep")
    for child in children:
        _check_depth(child, left - 1)
