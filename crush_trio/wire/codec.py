"""The codec: wire values to JSON and back.

Everything about the JSON that the classes do not show is here: the wrapping of parts and events,
and words that differ from ours (`canceled`). One cattrs converter holds the rules for all types; it
makes the reader and writer of a class when the class is first used.

A message that is being written is encoded many times while only its last part changes. So a message
can also be put together from the bytes of its parts: `message_frame` does that, `MessageEncoder`
caches those bytes, and `escape` lets the bytes of a text grow with the text. The result is byte for
byte that of `encode`.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum, StrEnum
from types import NoneType, UnionType
from typing import Any, Final, NewType, TypeVar, Union, get_args, get_origin

import attrs
import orjson
from attrs import define, field
from cattrs import Converter

from crush_trio.errors import DecodeError
from crush_trio.plain_json import dump, shown
from crush_trio.wire import converters
from crush_trio.wire.converters import (
    Mismatch,
    Reader,
    class_writer,
    object_at,
    within,
    write_bytes,
)
from crush_trio.wire.events import ENTITIES, Entity, Envelope, EventType, PayloadType
from crush_trio.wire.fields import Json, Timestamp
from crush_trio.wire.messages import PARTS, FinishReason, Message, Part

__all__ = [
    "USER_CANCELLED",
    "MessageEncoder",
    "decode",
    "decode_part",
    "encode",
    "encode_change",
    "encode_envelope",
    "encode_part",
    "escape",
    "message_frame",
    "message_members",
    "structure",
    "unstructure",
    "wrap_change",
]

T = TypeVar("T")

USER_CANCELLED: Final = "User canceled request"
"""The finish message of a cancelled turn; clients show this text."""

_CANCELLED: Final = "canceled"


def encode(value: object) -> bytes:
    """Return the JSON of a wire value, or of a list or mapping of wire values."""
    return dump(_converter.unstructure(value))


def decode(data: bytes | str, cls: type[T]) -> T:
    """Decode a *cls* from JSON, or raise a `DecodeError` that names the path."""
    try:
        tree = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise DecodeError(_position(data, error)) from None
    return structure(tree, cls)


def structure(obj: object, cls: type[T]) -> T:
    """Make a *cls* from parsed JSON, or raise a `DecodeError` that names the path."""
    try:
        return _converter.structure(obj, cls)
    except Mismatch as mismatch:
        raise DecodeError(mismatch.text()) from None


def unstructure(value: object) -> Json:
    """Return what `encode` would write, as dicts, lists and plain values."""
    return _converter.unstructure(value)


def encode_change(event_type: EventType, entity: Entity) -> bytes:
    """Return the inner object of an event: the kind of change, and the entity.

    The type comes first, because peers keep what they have read before an error.
    """
    return b'{"type":"%b","payload":%b}' % (event_type.encode(), encode(entity))


def wrap_change(payload_type: PayloadType, change: bytes) -> bytes:
    """Return the outer object around the result of `encode_change`, without encoding that again."""
    return b'{"type":"%b","payload":%b}' % (payload_type.encode(), change)


def encode_envelope(payload_type: PayloadType, event_type: EventType, entity: Entity) -> bytes:
    """Return the JSON of a whole event."""
    return wrap_change(payload_type, encode_change(event_type, entity))


def encode_part(part: Part) -> bytes:
    """Return the JSON of one part. The text of a text or reasoning part is its first member."""
    return encode(part)


def decode_part(data: bytes | str) -> Part:
    """Decode one part from JSON; its `type` selects the class."""
    return decode(data, Part)  # type: ignore[arg-type]  # a union is no type[T]


def escape(text: str) -> bytes:
    """Return *text* as the inside of a JSON string, without the quotes.

    Pieces can be joined: `escape(a) + escape(b) == escape(a + b)` for text without surrogates.
    """
    return dump(text)[1:-1]


def message_frame(head: Message, part_bytes: Sequence[bytes]) -> bytes:
    """Return the JSON of a message made of *head* and encoded parts; ignores the head's parts."""
    return b'{"parts":[%b],%b' % (b",".join(part_bytes), message_members(head))


def message_members(head: Message) -> bytes:
    """Return the members after the parts in the JSON of a message, with the closing brace."""
    return dump(_write_head(head))[1:]


@define(eq=False)
class MessageEncoder:
    """Encodes one message many times, and of its parts only those that are new.

    A part is cached if the same object was at the same place the last time; parts are immutable, so
    its bytes are still valid. Use one encoder per message that is being written.
    """

    _known: list[tuple[Part, bytes]] = field(factory=list, init=False)

    def encode(self, message: Message) -> bytes:
        """Return exactly what `encode(message)` would."""
        known = self._known
        self._known = [
            known[index]
            if index < len(known) and known[index][0] is part
            else (part, encode_part(part))
            for index, part in enumerate(message.parts)
        ]
        return message_frame(message, [encoded for _, encoded in self._known])


def _position(data: bytes | str, error: orjson.JSONDecodeError) -> str:
    """Return where the JSON is broken; the parser gives no position for text that is not UTF-8."""
    try:
        _ = data.encode() if isinstance(data, str) else data.decode()
    except (UnicodeDecodeError, UnicodeEncodeError) as flaw:
        return f"position {flaw.start}: not valid UTF-8"
    return f"line {error.lineno} column {error.colno}: {error.msg}"


def _write_finish_reason(reason: FinishReason) -> str:
    return _CANCELLED if reason is FinishReason.CANCELLED else reason.value


def _read_finish_reason(value: object, _type: object) -> FinishReason:
    """Read a reason; an unknown one is `UNKNOWN`, because peers may have more of them."""
    text = converters.read_text(value, str)
    if text == _CANCELLED:
        return FinishReason.CANCELLED
    try:
        return FinishReason(text)
    except ValueError:
        return FinishReason.UNKNOWN


def _is_part(cls: object) -> bool:
    return cls in PARTS.values()


def _part_writer(cls: type[Part], converter: Converter) -> Callable[[Part], Json]:
    write = class_writer(cls, converter)
    return lambda part: {"type": cls.kind, "data": write(part)}


def _read_part(value: object, _type: object) -> Json:
    """Read a part of any kind. It runs for every part of every message, so it avoids `within`."""
    source = object_at(value)
    kind = source.get("type")
    read_data = _DATA_READERS.get(kind) if isinstance(kind, str) else None
    if read_data is None:
        with within("type"):
            raise Mismatch(f"unknown part type {shown(converters.read_text(kind, str))}")
    try:
        return read_data(source.get("data"), None)
    except Mismatch as mismatch:
        mismatch.steps.append(".data")
        raise


def _read_part_or_none(value: object, cls: object) -> Json:
    return None if value is None else _read_part(value, cls)


def _read_one_kind(value: object, cls: type[Part]) -> Json:
    part = _read_part(value, Part)
    if not isinstance(part, cls):
        with within("type"):
            raise Mismatch(f"expected {cls.kind!r}, got {part.kind!r}")
    return part


def _is_envelope(cls: object) -> bool:
    return cls is Envelope


def _write_envelope(envelope: Envelope) -> Json:
    change = {"type": envelope.event_type.value, "payload": unstructure(envelope.entity)}
    return {"type": envelope.payload_type.value, "payload": change}


def _read_envelope(value: object, _type: object) -> Envelope:
    outer = object_at(value)
    with within("type"):
        payload_type = _converter.structure(outer.get("type"), PayloadType)
    with within("payload"):
        inner = object_at(outer.get("payload"))
        with within("type"):
            event_type = _converter.structure(inner.get("type"), EventType)
        with within("payload"):
            entity = _converter.structure(inner.get("payload"), ENTITIES[payload_type])
    return Envelope(payload_type=payload_type, event_type=event_type, entity=entity)


def _is_tuple(cls: Json) -> bool:
    origin: object = get_origin(cls)
    return origin is tuple and get_args(cls)[1:] == (...,)


def _is_mapping(cls: Json) -> bool:
    origin: object = get_origin(cls)
    return origin is Mapping or origin is dict


def _is_optional(cls: Json) -> bool:
    args = get_args(cls)
    return get_origin(cls) in {Union, UnionType} and len(args) == 2 and NoneType in args


def _make_converter() -> Converter:
    """Make a converter with the hooks of all types. cattrs tries the last registered hook first."""
    converter = Converter()
    for cls, reader in _PLAIN_READERS.items():
        converter.register_structure_hook(cls, reader)
    for cls, writer in _PLAIN_WRITERS.items():
        converter.register_unstructure_hook(cls, writer)
    converter.register_structure_hook_func(lambda cls: cls is Any, converters.read_open)
    converter.register_structure_hook_factory(
        lambda cls: isinstance(cls, NewType),
        lambda cls: converter.get_structure_hook(cls.__supertype__),
    )
    converter.register_structure_hook_func(lambda cls: cls is Timestamp, converters.read_timestamp)
    converter.register_structure_hook_factory(_is_tuple, converters.tuple_reader)
    converter.register_structure_hook_factory(_is_mapping, converters.mapping_reader)
    converter.register_structure_hook_factory(_is_optional, converters.optional_reader)
    converter.register_structure_hook_factory(attrs.has, converters.class_reader)
    converter.register_unstructure_hook_factory(attrs.has, class_writer)
    converter.register_structure_hook_func(_is_part, _read_one_kind)
    converter.register_unstructure_hook_factory(_is_part, _part_writer)
    converter.register_structure_hook(Part, _read_part)
    converter.register_structure_hook(Part | None, _read_part_or_none)
    # By function: for a class, cattrs would look up the types of its fields, and with them modules
    # that the run core does without.
    converter.register_structure_hook_func(_is_envelope, _read_envelope)
    converter.register_unstructure_hook_func(_is_envelope, _write_envelope)
    return converter


_PLAIN_READERS: Final[Mapping[Any, Reader]] = {
    str: converters.read_text,
    int: converters.read_integer,
    float: converters.read_number,
    bool: converters.read_flag,
    bytes: converters.read_bytes,
    StrEnum: converters.read_enum,
    IntEnum: converters.read_enum,
    FinishReason: _read_finish_reason,
}

_PLAIN_WRITERS: Final[Mapping[Any, Callable[[Any], Json]]] = {
    bytes: write_bytes,
    StrEnum: lambda member: member.value,
    IntEnum: lambda member: member.value,
    FinishReason: _write_finish_reason,
}

_converter: Final = _make_converter()
_DATA_READERS: Final[Mapping[str, Reader]] = {
    kind: converters.class_reader(cls, _converter) for kind, cls in PARTS.items()
}
_write_head: Final = class_writer(Message, _converter, without="parts")
