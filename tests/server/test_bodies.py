"""Bytes of strangers: what is read, what is refused, and that neither takes long."""

import base64
import json
import time
from contextlib import suppress

import orjson
import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from crush_trio.errors import (
    BadRequest,
    ClientIdInvalid,
    ClientIdMalformed,
    ClientIdMissing,
    DecodeError,
)
from crush_trio.limits import SizeLimits
from crush_trio.server.bodies import (
    LIMITS,
    MIB,
    AttachmentTooLarge,
    BodyLimits,
    BodyTooLarge,
    IdInvalid,
    check_id,
    check_size,
    decode_body,
    parse_client_id,
    query_client_id,
)
from crush_trio.wire.converters import OPEN_DEPTH
from crush_trio.wire.requests import (
    AgentInitRequest,
    AgentMessage,
    AnswerRequest,
    ConfigSetRequest,
    CurrentSessionRequest,
    GrantRequest,
    WorkspaceRequest,
)


def body(**members):
    return orjson.dumps(members)


# ── Reading ────────────────────────────────────────────────────────────────────────────────────


def test_a_body_becomes_the_value_it_describes():
    value = decode_body(body(session_id="s", prompt="hi", unknown=1), AgentMessage)
    assert value == AgentMessage(session_id="s", prompt="hi")


def test_an_empty_body_is_a_mistake_unless_the_route_has_a_default():
    with pytest.raises(DecodeError, match="failed to decode request: the body is empty"):
        decode_body(b"", CurrentSessionRequest)


@pytest.mark.item("G13")
def test_an_absent_body_means_what_the_route_says_it_means():
    absent = AgentInitRequest()
    assert decode_body(b"", AgentInitRequest, absent=absent) is absent
    present = decode_body(b'{"interactive":true}', AgentInitRequest, absent=absent)
    assert present == AgentInitRequest(interactive=True)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"{", "line 1 column"),
        (b" ", "line 1 column"),
        (b'{"session_id":"\xff"}', "not valid UTF-8"),
        (b'\xef\xbb\xbf{"session_id":"s"}', "line 1 column"),
        (b'{"session_id":7}', "session_id: expected a string"),
        (b"[]", "expected an object"),
        (b'"text"', "expected an object"),
        (b'{"session_id":"\\ud800"}', "line 1 column"),
        (b"NaN", "line 1 column"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_reason(data, reason):
    with pytest.raises(DecodeError, match=reason):
        decode_body(data, CurrentSessionRequest)


@given(st.binary(max_size=200))
def test_whatever_the_bytes_a_body_is_read_or_refused(data):
    with suppress(BadRequest):
        decode_body(data, AgentMessage)


# ── Size ───────────────────────────────────────────────────────────────────────────────────────


def test_a_body_may_be_as_large_as_the_limit_and_no_larger():
    data = body(session_id="s")
    fits = BodyLimits(size=len(data))
    assert decode_body(data, CurrentSessionRequest, limits=fits).session_id == "s"
    with pytest.raises(BodyTooLarge) as refused:
        decode_body(data, CurrentSessionRequest, limits=BodyLimits(size=len(data) - 1))
    assert refused.value.detail == f"it has {len(data)} bytes, the limit is {len(data) - 1}"


def test_a_declared_length_can_be_refused_before_anything_is_read():
    check_size(LIMITS.size)
    with pytest.raises(BodyTooLarge):
        check_size(LIMITS.size + 1)


def test_the_limits_leave_room_for_all_attachments_and_a_long_prompt():
    assert 4 * LIMITS.sizes.attachments / 3 + LIMITS.sizes.prompt + MIB <= LIMITS.size


# ── Structure ──────────────────────────────────────────────────────────────────────────────────


def nested(levels, inner=b"1"):
    return b"[" * levels + inner + b"]" * levels


def config_value(value):
    return b'{"scope":0,"key":"k","value":' + value + b"}"


def test_nesting_is_allowed_to_the_limit_and_refused_beyond_it():
    limits = BodyLimits(depth=5)
    assert decode_body(config_value(nested(4)), ConfigSetRequest, limits=limits).value
    with pytest.raises(DecodeError, match="nested more than 5 levels deep"):
        decode_body(config_value(nested(5)), ConfigSetRequest, limits=limits)


def test_the_default_depth_refuses_nothing_that_the_wire_itself_allows():
    assert decode_body(config_value(nested(OPEN_DEPTH)), ConfigSetRequest)
    with pytest.raises(DecodeError, match=f"value: nested more than {OPEN_DEPTH}"):
        decode_body(config_value(nested(OPEN_DEPTH + 1)), ConfigSetRequest)
    with pytest.raises(DecodeError, match=f"request: nested more than {LIMITS.depth}"):
        decode_body(config_value(nested(LIMITS.depth)), ConfigSetRequest)


def test_brackets_within_strings_are_no_nesting_however_they_are_escaped():
    for text in ("[" * 500, '"' + "{" * 500, '\\"[' * 500, "\\" * 7 + "[" * 500, '\\\\"' * 300):
        assert decode_body(body(session_id="", prompt=text), AgentMessage).prompt == text


def test_nesting_after_strings_that_end_in_escapes_is_still_seen():
    for text in ("\\", '"', '\\"', "a\\\\", '\\\\\\"'):
        data = b'{"a":' + json.dumps(text).encode() + b',"b":' + nested(500) + b"}"
        with pytest.raises(DecodeError, match="nested more than"):
            decode_body(data, AgentMessage)


def test_nesting_that_never_ends_is_refused_by_its_depth():
    with pytest.raises(DecodeError, match="nested more than"):
        decode_body(b'{"a":' * 100_000, AgentMessage)


trees = st.recursive(
    st.none() | st.integers(0, 9) | st.text(alphabet='a"\\[]{},', max_size=6),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(alphabet='a"\\[{,', max_size=3), inner, max_size=4)
    ),
    max_leaves=12,
)


def depth_of(tree):
    if not isinstance(tree, dict | list):
        return 0
    items = tree.values() if isinstance(tree, dict) else tree
    return 1 + max(map(depth_of, items), default=0)


@given(trees)
def test_the_depth_seen_before_parsing_is_the_depth_there_is_after_it(tree):
    data, depth = json.dumps({"value": tree}).encode(), 1 + depth_of(tree)
    decode_body(data, ConfigSetRequest, limits=BodyLimits(depth=depth))
    with pytest.raises(DecodeError, match=f"more than {depth - 1} levels"):
        decode_body(data, ConfigSetRequest, limits=BodyLimits(depth=depth - 1))


@pytest.mark.parametrize("item", [b"[]", b"{}", b"0", b'""', b'"ab"', b'[{"a":[]}]'])
def test_more_values_than_anybody_needs_are_refused_before_they_take_memory(item):
    with pytest.raises(BodyTooLarge, match="more than 200000 strings, brackets and commas"):
        decode_body(b"[" + b",".join([item] * 300_000) + b"]", ConfigSetRequest)


def test_as_many_values_as_the_limit_are_read():
    data = config_value(b"[0,0]")
    strings, brackets, commas = 4, 4, 3
    limits = BodyLimits(marks=strings + brackets + commas)
    assert decode_body(data, ConfigSetRequest, limits=limits).value == [0, 0]
    with pytest.raises(BodyTooLarge):
        decode_body(data, ConfigSetRequest, limits=evolve(limits, marks=limits.marks - 1))


@pytest.mark.parametrize("filling", [b"[],", b'\\"', b"\\", b"1", b'"', b"[", b" ", b'"a":'])
def test_no_body_takes_time_out_of_proportion_to_its_size(filling):
    data = (b'{"prompt":"' + filling * (4 * MIB // len(filling)))[: 4 * MIB]
    began = time.perf_counter()
    with pytest.raises(BadRequest):
        decode_body(data, AgentMessage)
    assert time.perf_counter() - began < 5, "anything quadratic would need hours"


# ── Attachments ────────────────────────────────────────────────────────────────────────────────


def submission(*sizes):
    attachments = [
        {"file_path": "p", "file_name": "n", "mime_type": "text/plain", "content": content}
        for content in (base64.b64encode(bytes(size)).decode() for size in sizes)
    ]
    return body(session_id="s", prompt="look", attachments=attachments)


def test_attachments_as_large_as_the_limits_are_taken():
    limits = BodyLimits(sizes=SizeLimits(attachment=10, attachments=25))
    value = decode_body(submission(10, 10, 5), AgentMessage, limits=limits)
    assert [len(each.content) for each in value.attachments] == [10, 10, 5]


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ((3, 11), "number 2 has 11 bytes, the limit is 10"),
        ((10, 10, 6), "together they have 26 bytes, the limit is 25"),
    ],
)
def test_a_larger_attachment_or_sum_is_refused_by_name(sizes, reason):
    limits = BodyLimits(sizes=SizeLimits(attachment=10, attachments=25))
    with pytest.raises(AttachmentTooLarge, match=reason):
        decode_body(submission(*sizes), AgentMessage, limits=limits)


def test_a_file_of_the_size_that_the_terminal_client_allows_is_taken():
    assert decode_body(submission(5 * MIB), AgentMessage)


# ── Ids ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("text", ["", "s", "m1$$call_2", "ä", "x" * 256, "a b/c"])
def test_an_ordinary_id_passes(text):
    check_id(text, "session_id")


@pytest.mark.parametrize(
    "text", ["a\nb", "\0", "\x7f", "\x85", "a\r", "\t", "\u2028", "\udcff", "x\x1b[31m"]
)
def test_an_id_that_could_break_a_line_or_cannot_be_stored_is_refused(text):
    with pytest.raises(IdInvalid, match="invalid id: session_id holds a control character"):
        check_id(text, "session_id")


def test_an_id_that_is_too_long_is_refused_without_being_repeated():
    with pytest.raises(IdInvalid) as refused:
        check_id("x" * 257, "run_id")
    assert str(refused.value) == "invalid id: run_id has 257 characters, the limit is 256"


LONG = "x" * 257


@pytest.mark.parametrize(
    ("cls", "members", "field"),
    [
        (AgentMessage, {"session_id": LONG}, "session_id"),
        (AgentMessage, {"session_id": "s", "run_id": LONG}, "run_id"),
        (CurrentSessionRequest, {"session_id": "a\nb"}, "session_id"),
        (GrantRequest, {"permission": {"id": LONG}}, "id"),
        (GrantRequest, {"permission": {"session_id": LONG}}, "session_id"),
        (AnswerRequest, {"batch_request_id": LONG}, "batch_request_id"),
        (AnswerRequest, {"responses": [{}, {"request_id": LONG}]}, "request_id"),
    ],
)
def test_every_id_in_a_body_is_checked_however_deep(cls, members, field):
    with pytest.raises(IdInvalid, match=f": {field} "):
        decode_body(body(**members), cls)


def test_the_name_a_model_gave_to_a_tool_call_may_be_long():
    members = {"permission": {"id": "p", "tool_call_id": LONG}, "action": "allow"}
    assert decode_body(body(**members), GrantRequest).permission.tool_call_id == LONG


def test_limits_can_be_set_for_one_server():
    limits = evolve(LIMITS, id_length=3)
    with pytest.raises(IdInvalid):
        decode_body(body(session_id="four"), CurrentSessionRequest, limits=limits)


# ── Client ids ─────────────────────────────────────────────────────────────────────────────────

CANONICAL = "6e3c1c1e-0a1b-4c2d-8e3f-0123456789ab"
SPELLINGS = [
    CANONICAL,
    CANONICAL.upper(),
    CANONICAL.replace("-", ""),
    "{" + CANONICAL + "}",
    "urn:uuid:" + CANONICAL,
    "URN:UUID:" + CANONICAL.upper(),
]
NOT_UUIDS = [
    "x",
    CANONICAL[:-1],
    CANONICAL + "0",
    CANONICAL.replace("-", "_"),
    "{" + CANONICAL,
    "{" + CANONICAL.replace("-", "") + "}",
    "urn:uuid:" + CANONICAL.replace("-", ""),
    "6e3c1c1e0a1b-4c2d-8e3f-0123456789ab0",
    CANONICAL + "\n",
    " " + CANONICAL,
    "٣" * 32,
    "_" * 32,
    "g" * 32,
    "a" * 100_000,
]


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_spelling_of_a_uuid_is_the_same_client(spelling):
    assert parse_client_id(spelling) == query_client_id(spelling) == CANONICAL


@pytest.mark.parametrize("text", NOT_UUIDS)
def test_what_is_not_a_uuid_is_refused_by_the_words_of_its_place(text):
    with pytest.raises(ClientIdInvalid, match="invalid client_id: it is not a UUID"):
        parse_client_id(text)
    with pytest.raises(ClientIdMalformed, match=r"^client_id is not a valid UUID$"):
        query_client_id(text)


@pytest.mark.parametrize("text", [None, ""])
def test_a_client_id_missing_from_a_query_has_an_error_of_its_own(text):
    with pytest.raises(ClientIdMissing, match=r"^client_id is required$"):
        query_client_id(text)


def test_a_client_id_missing_from_a_body_is_an_invalid_one():
    request = decode_body(body(path="/p"), WorkspaceRequest)
    with pytest.raises(ClientIdInvalid, match=r"^invalid client_id: it is missing$"):
        parse_client_id(request.client_id)


@given(st.uuids())
def test_any_uuid_is_read_as_the_standard_library_writes_it(value):
    assert parse_client_id(value.hex) == parse_client_id(value.urn) == str(value)
