"""What is refused, where the refusal points to, and what is forgiven."""

import re
from collections.abc import Mapping

import orjson
import pytest

from crush_trio.errors import CrushError, DecodeError
from crush_trio.wire.asks import PermissionRequest
from crush_trio.wire.codec import decode, structure
from crush_trio.wire.config import Config, ModelOptions, SelectedModel, TuiOptions
from crush_trio.wire.converters import OPEN_DEPTH
from crush_trio.wire.events import AgentEvent, Envelope
from crush_trio.wire.fields import ZERO_TIME, Timestamp, wire_fields
from crush_trio.wire.integrations import LspClientInfo, McpClientInfo, McpState
from crush_trio.wire.messages import (
    EMPTY_MESSAGE,
    BinaryPart,
    FinishPart,
    FinishReason,
    Message,
    Part,
    Role,
    TextPart,
)
from crush_trio.wire.requests import (
    AgentMessage,
    Attachment,
    ConfigSetRequest,
    GrantRequest,
    McpPromptRequest,
    Scope,
    ShellRequest,
)
from crush_trio.wire.views import Session, TodoStatus


def refusal(text, cls):
    with pytest.raises(DecodeError) as caught:
        decode(text, cls)
    return caught.value.detail


@pytest.mark.parametrize(
    ("text", "cls", "detail"),
    [
        (
            '{"parts":[{"type":"text"},{"type":"text"},'
            '{"type":"shell_command","data":{"exit_code":"1"}}]}',
            Message,
            "parts[2].data.exit_code: expected an integer, got a string",
        ),
        ('{"created_at":1.0}', Message, "created_at: expected an integer, got a number"),
        ('{"created_at":1e3}', Message, "created_at: expected an integer, got a number"),
        ('{"created_at":true}', Message, "created_at: expected an integer, got a boolean"),
        (
            '{"created_at":9223372036854775808}',
            Message,
            "created_at: expected an integer of 64 bits",
        ),
        ('{"is_busy":1}', Session, "is_busy: expected a boolean, got an integer"),
        ('{"is_busy":"true"}', Session, "is_busy: expected a boolean, got a string"),
        ('{"cost":"1"}', Session, "cost: expected a number, got a string"),
        ('{"cost":true}', Session, "cost: expected a number, got a boolean"),
        ('{"title":7}', Session, "title: expected a string, got an integer"),
        ('{"title":["a"]}', Session, "title: expected a string, got a list"),
        ('{"todos":"none"}', Session, "todos: expected a list, got a string"),
        ('{"todos":{}}', Session, "todos: expected a list, got an object"),
        ('{"todos":[{},[]]}', Session, "todos[1]: expected an object, got a list"),
        (
            '{"todos":[{"status":"done"}]}',
            Session,
            "todos[0].status: unknown value 'done'; expected pending, in_progress, completed",
        ),
        ("[]", Session, "expected an object, got a list"),
        ('"s1"', Session, "expected an object, got a string"),
        ('{"scope":2}', ConfigSetRequest, "scope: unknown value 2"),
        ('{"scope":"0"}', ConfigSetRequest, "scope: expected an integer, got a string"),
        (
            '{"session_id":"s","attachments":[{"content":"not base64"}]}',
            AgentMessage,
            "attachments[0].content: expected base64",
        ),
        (
            '{"providers":{"p1":{"models":[{"context_window":0.5}]}}}',
            Config,
            "providers.p1.models[0].context_window: expected an integer, got a number",
        ),
        (
            '{"mcp":{"my server":{"timeout":"5"}}}',
            Config,
            "mcp['my server'].timeout: expected an integer, got a string",
        ),
        ('{"args":[]}', McpPromptRequest, "args: expected an object, got a list"),
        ('{"$schema":1}', Config, "['$schema']: expected a string, got an integer"),
        (
            '{"a":{"state":"ready"}}',
            Mapping[str, McpClientInfo],
            "a.state: unknown value 'ready'; expected disabled, starting, connected, error, needs auth",
        ),
        ('{"state":"ready"}', LspClientInfo, "state: expected an integer, got a string"),
        ('{"connected_at":""}', LspClientInfo, "connected_at: expected an RFC 3339 time"),
        (
            '{"type":"session","payload":{"type":"updated","payload":{"id":1}}}',
            Envelope,
            "payload.payload.id: expected a string, got an integer",
        ),
        (
            '{"type":"session","payload":{"type":"made"}}',
            Envelope,
            "payload.type: unknown value 'made'; expected created, updated, deleted",
        ),
        ('{"type":"weather","payload":{}}', Envelope, "type: unknown value 'weather'"),
        ('{"payload":{}}', Envelope, "type: unknown value ''"),
    ],
)
def test_wrong_value_is_refused_with_its_path(text, cls, detail):
    assert refusal(text, cls) == detail


@pytest.mark.parametrize(
    ("text", "detail"),
    [
        ('{"type":"video","data":{}}', "type: unknown part type 'video'"),
        ('{"data":{"text":"a"}}', "type: unknown part type ''"),
        ("null", "type: unknown part type ''"),
        ('{"type":3}', "type: expected a string, got an integer"),
        ('{"type":"text","data":"a"}', "data: expected an object, got a string"),
    ],
)
def test_part_of_no_known_kind_is_refused(text, detail):
    assert refusal(text, Part) == detail


def test_asking_for_one_kind_of_part_refuses_the_others():
    assert decode('{"type":"text","data":{"text":"a"}}', TextPart) == TextPart(text="a")
    assert (
        refusal('{"type":"image_url","data":{}}', TextPart)
        == "type: expected 'text', got 'image_url'"
    )


def test_refusal_is_the_error_that_routes_translate():
    with pytest.raises(CrushError) as caught:
        decode('{"id":1}', Session)
    assert caught.value.code == "bad_request"
    assert str(caught.value) == "failed to decode request: id: expected a string, got an integer"
    assert caught.value.__cause__ is None


def test_refusal_shows_no_more_than_a_stretch_of_what_was_sent():
    detail = refusal(orjson.dumps({"role": "x" * 1000}), Message)
    assert detail.startswith(f"role: unknown value '{'x' * 40}…'; expected ")
    assert len(refusal(orjson.dumps({"mcp": {"k " * 500: 1}}), Config)) < 100


@pytest.mark.parametrize(
    ("data", "position"),
    [
        pytest.param(b"", "line 1 column 1", id="empty"),
        pytest.param(b'{"id":', "line 1 column 7", id="cut off"),
        pytest.param(b'{"id":"a"}\n{', "line 2 column 1", id="two documents"),
        pytest.param(b'{"id":"\xff"}', "position 7", id="not UTF-8"),
        pytest.param('{"id":"\ud800"}', "position 7", id="not Unicode"),
        pytest.param(b'{"id":"\\ud800"}', "line 1 column (8|14)", id="half a surrogate pair"),
        pytest.param(b"[" * 100_000, "line 1 column 1026", id="too deep"),
    ],
)
def test_broken_json_is_refused_with_its_position(data, position):
    assert re.match(f"{position}: ", refusal(data, Session))  # older orjson: behind the escape


def test_open_value_may_nest_only_as_deep_as_it_can_be_written_again():
    def nested(depth):
        return b'{"value":' + b"[" * depth + b"]" * depth + b"}"

    assert decode(nested(OPEN_DEPTH), ConfigSetRequest).value
    assert refusal(nested(OPEN_DEPTH + 1), ConfigSetRequest) == (
        f"value: nested more than {OPEN_DEPTH} levels deep"
    )


def test_unknown_keys_are_skipped():
    body = '{"id":"s1","colour":"red","todos":[{"content":"a","weight":3}]}'
    session = decode(body, Session)
    assert (session.id, session.todos[0].content) == ("s1", "a")


def test_absent_keys_are_zero():
    assert decode("{}", Message) == EMPTY_MESSAGE
    assert decode("{}", Session) == Session(id="")
    assert decode("{}", ConfigSetRequest) == ConfigSetRequest(
        scope=Scope.GLOBAL, key="", value=None
    )
    assert decode("{}", GrantRequest).permission == PermissionRequest(
        id="", session_id="", tool_call_id="", tool_name=""
    )
    assert decode("{}", LspClientInfo).connected_at == ZERO_TIME
    assert decode("{}", McpClientInfo).state is McpState.DISABLED
    assert decode("{}", Config).options.tui == TuiOptions()


@pytest.mark.parametrize("cls", [Message, Session, AgentMessage, Attachment, ShellRequest, Config])
def test_null_is_the_same_as_absent(cls):
    absent = decode("{}", cls)
    assert structure({field.key: None for field in wire_fields(cls)}, cls) == absent
    assert decode("null", cls) == absent


def test_null_is_the_default_where_that_is_not_the_zero():
    assert decode('{"todos":[{"status":null}]}', Session).todos[0].status is TodoStatus.PENDING
    assert decode('{"state":null}', McpClientInfo).state is McpState.DISABLED


def test_null_in_a_list_or_mapping_is_the_zero_of_its_items():
    assert decode('{"todos":[null]}', Session).todos[0].status is TodoStatus.PENDING
    assert decode('{"args":{"a":null}}', McpPromptRequest).args == {"a": ""}


def test_number_written_as_an_integer_is_good_for_a_float():
    assert decode('{"temperature":1}', SelectedModel).temperature == 1


def test_zero_that_someone_chose_is_not_absence():
    assert decode('{"temperature":0}', ModelOptions).temperature == 0
    assert decode("{}", ModelOptions).temperature is None


def test_empty_run_id_is_no_run_id():
    assert decode('{"session_id":"s","run_id":"","prompt":"a"}', AgentMessage).run_id is None


@pytest.mark.parametrize("params", ['"{}"', "[1]", "7", "null"])
def test_grant_is_read_whatever_became_of_its_params(params):
    text = f'{{"permission":{{"id":"pr1","params":{params}}},"action":"allow"}}'
    permission = decode(text, GrantRequest).permission
    assert (permission.id, permission.params) == ("pr1", None)


def test_binary_data_may_be_null_or_empty():
    for data in ("null", '""'):
        part = decode(f'{{"type":"binary","data":{{"Path":"a","Data":{data}}}}}', Part)
        assert part == BinaryPart(path="a", mime_type="", data=b"")


@pytest.mark.parametrize("data", ["iVBORw0", "iVBO Rw0=", "iVBORw0=\n", "_-8=", "é==="])
def test_base64_must_be_standard_and_padded(data):
    text = orjson.dumps({"type": "binary", "data": {"Data": data}})
    assert refusal(text, Part) == "data.Data: expected base64"


def test_binary_part_is_not_read_by_our_own_key_names():
    part = decode('{"type":"binary","data":{"path":"a","mime_type":"b","data":"iVBORw0="}}', Part)
    assert part == BinaryPart(path="", mime_type="", data=b"")


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ('"canceled"', FinishReason.CANCELLED),
        ('"stop"', FinishReason.STOP),
        ('"invented_later"', FinishReason.UNKNOWN),
        ("null", FinishReason.UNKNOWN),
    ],
)
def test_finish_reason_is_read_in_the_words_of_the_wire(word, reason):
    part = decode(f'{{"type":"finish","data":{{"reason":{word},"time":1}}}}', Part)
    assert part == FinishPart(reason=reason, time=1)


def test_agent_event_without_message_gets_the_empty_one():
    event = decode('{"type":"error","error":"boom"}', AgentEvent)
    assert event.message == EMPTY_MESSAGE
    assert event.message.role is Role.UNSET


def test_bare_values_are_read_too():
    assert decode("2", int) == 2
    assert decode('["a","b"]', tuple[str, ...]) == ("a", "b")
    assert decode("null", tuple[str, ...]) == ()
    assert decode('{"a":{"command":"ls"}}', dict[str, ShellRequest])["a"].command == "ls"
    assert decode('"0001-01-01T00:00:00Z"', Timestamp) == ZERO_TIME
