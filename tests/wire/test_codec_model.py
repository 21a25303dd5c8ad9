"""Properties of the codec: for every wire class, and for messages that grow.

Values are made from what a class declares, so a class that is added is tested too.
"""

import importlib
import pkgutil
from collections.abc import Mapping
from enum import Enum
from types import NoneType, UnionType
from typing import Any, NewType, Union, get_args, get_origin

import attrs
import orjson
import pytest
from attrs import evolve
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import crush_trio.wire
from crush_trio.net.address import TcpAddress, UnixAddress
from crush_trio.plain_json import clean_text
from crush_trio.wire.codec import (
    MessageEncoder,
    decode,
    decode_part,
    encode,
    encode_change,
    encode_envelope,
    encode_part,
    escape,
    message_frame,
)
from crush_trio.wire.events import ENTITIES, Envelope, EventType
from crush_trio.wire.fields import ZERO_TIME, Key, Marker, Shown, Timestamp, WireField, wire_fields
from crush_trio.wire.messages import (
    FinishPart,
    FinishReason,
    Message,
    Part,
    ReasoningPart,
    Role,
    TextPart,
)
from crush_trio.wire.schema import Schemas

same_every_time = settings(
    derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
few_of_each = settings(same_every_time, max_examples=20)

NOT_ON_THE_WIRE = {Key, Shown, WireField, MessageEncoder, Schemas, TcpAddress, UnixAddress}

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(-1e9, 1e9) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
PLAIN = {
    str: st.text(max_size=20),
    int: st.integers(-(2**63), 2**63 - 1),
    float: st.floats(-1e9, 1e9),
    bool: st.booleans(),
    bytes: st.binary(max_size=20),
    Timestamp: st.sampled_from([ZERO_TIME, "2026-01-01T00:00:00.123456789Z"]),
    Any: json_values,
}


def values(of):
    """Return a strategy for the values of a type, as the codec sees it."""
    args = get_args(of)
    if of in PLAIN:
        return PLAIN[of]
    if isinstance(of, NewType):
        return st.text(min_size=1, max_size=8)
    if get_origin(of) is tuple:
        return st.lists(values(args[0]), max_size=2).map(tuple)
    if get_origin(of) is Mapping:
        return st.dictionaries(st.text(max_size=5), values(args[1]), max_size=2)
    if get_origin(of) in {Union, UnionType}:
        return st.one_of([st.none() if arg is NoneType else values(arg) for arg in args])
    if issubclass(of, Enum):
        return st.sampled_from(list(of))
    return st.builds(of, **{field.name: values(field.type) for field in wire_fields(of)})


def wire_classes():
    found = set()
    for module in pkgutil.iter_modules(crush_trio.wire.__path__, "crush_trio.wire."):
        members = vars(importlib.import_module(module.name)).values()
        found |= {each for each in members if isinstance(each, type) and attrs.has(each)}
    return sorted(found - NOT_ON_THE_WIRE - {Envelope}, key=lambda cls: cls.__name__)


envelopes = st.sampled_from(sorted(ENTITIES)).flatmap(
    lambda payload_type: st.builds(
        Envelope,
        payload_type=st.just(payload_type),
        event_type=st.sampled_from(EventType),
        entity=values(ENTITIES[payload_type]),
    )
)
messages = values(Message)
any_text = st.text(st.characters(exclude_categories=[]))


@pytest.mark.heavy
@pytest.mark.parametrize("cls", wire_classes(), ids=lambda cls: cls.__name__)
@few_of_each
@given(data=st.data())
def test_what_was_written_is_read_back(cls, data):
    value = data.draw(values(cls))
    assert decode(encode(value), cls) == value


@pytest.mark.parametrize("cls", wire_classes(), ids=lambda cls: cls.__name__)
def test_wire_class_is_frozen_slotted_and_built_by_keyword(cls):
    blank = cls.__new__(cls)
    assert not hasattr(blank, "__dict__")
    for field in attrs.fields(cls):
        assert field.kw_only
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            setattr(blank, field.name, None)


@pytest.mark.parametrize("cls", wire_classes(), ids=lambda cls: cls.__name__)
def test_field_that_may_be_left_off_has_a_default_that_says_nothing(cls):
    for field in wire_fields(cls):
        if Marker.OMIT_EMPTY in field.markers:
            assert not field.required
            assert not field.default


@same_every_time
@given(envelopes)
def test_event_is_read_back_and_its_pieces_make_the_whole(event):
    whole = encode(event)
    assert decode(whole, Envelope) == event
    assert encode_envelope(event.payload_type, event.event_type, event.entity) == whole
    assert encode_change(event.event_type, event.entity) in whole


@same_every_time
@given(values(Part))
def test_part_is_read_back(part):
    assert decode_part(encode_part(part)) == part


@same_every_time
@given(messages)
def test_message_put_together_from_encoded_parts_is_the_encoded_message(message):
    part_bytes = [encode_part(part) for part in message.parts]
    assert message_frame(message, part_bytes) == encode(message)
    assert message_frame(evolve(message, parts=()), part_bytes) == encode(message)


@same_every_time
@given(messages, st.lists(st.tuples(st.integers(0, 5), values(Part)), max_size=6))
def test_encoder_that_remembers_agrees_with_one_that_does_not(message, edits):
    encoder = MessageEncoder()
    assert encoder.encode(message) == encode(message)
    for place, part in edits:
        parts = message.parts
        message = evolve(message, parts=(*parts[:place], part, *parts[place + 1 :]))
        assert encoder.encode(message) == encode(message)


@same_every_time
@given(st.text(), st.text())
def test_escaped_pieces_join_to_the_escaped_whole(first, second):
    assert escape(first) + escape(second) == escape(first + second)


@same_every_time
@given(st.text())
def test_escaped_text_is_what_stands_between_the_quotes(text):
    assert orjson.loads(b'"' + escape(text) + b'"') == text
    assert b'"' + escape(text) + b'"' in encode_part(TextPart(text=text))


@same_every_time
@given(any_text)
def test_any_text_at_all_can_be_written(text):
    written = orjson.loads(encode_part(TextPart(text=text)))["data"]["text"]
    assert written == clean_text(text)
    assert escape(text) == escape(written)
    assert clean_text(written) is written


@same_every_time
@given(any_text)
def test_cleaning_changes_surrogates_only(text):
    kept = [char for char in clean_text(text) if char != "\ufffd" and ord(char) < 0x10000]
    plain = [char for char in text if char != "\ufffd" and not 0xD800 <= ord(char) <= 0xDFFF]
    assert kept == [char for char in plain if ord(char) < 0x10000]


def test_unchanged_parts_are_not_encoded_again():
    text = TextPart(text="a")
    first = Message(id="m", role=Role.ASSISTANT, session_id="s", parts=(text, text))
    encoder = MessageEncoder()
    encoder.encode(first)
    object.__setattr__(text, "text", "changed behind its back")
    grown = evolve(first, parts=(text, text, FinishPart(reason=FinishReason.STOP, time=0)))
    assert b"changed" not in encoder.encode(grown)


def test_shortened_message_is_forgotten_beyond_its_end():
    encoder = MessageEncoder()
    long = Message(
        id="m", role=Role.ASSISTANT, session_id="s", parts=(TextPart(text="a"), TextPart(text="b"))
    )
    encoder.encode(long)
    short = evolve(long, parts=long.parts[:1])
    assert encoder.encode(short) == encode(short)
    again = evolve(short, parts=(*short.parts, TextPart(text="c")))
    assert encoder.encode(again) == encode(again)


@pytest.mark.parametrize("part", [TextPart(text=""), ReasoningPart(thinking="")])
def test_text_of_a_growing_part_is_its_first_member(part):
    before, _, after = encode_part(part).partition(b'""')
    grown = evolve(part, **{attrs.fields(type(part))[0].name: 'say "hi"\n'})
    assert before + b'"' + escape('say "hi"\n') + b'"' + after == encode_part(grown)
