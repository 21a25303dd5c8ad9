"""How values are written: what is always there, what is left off, and in which words."""

from types import MappingProxyType

import orjson
import pytest

from crush_trio.plain_json import clean_text
from crush_trio.wire.asks import PermissionRequest, QuestionResponse
from crush_trio.wire.codec import (
    USER_CANCELLED,
    decode,
    decode_part,
    encode,
    encode_change,
    encode_envelope,
    encode_part,
    structure,
    unstructure,
    wrap_change,
)
from crush_trio.wire.config import (
    AgentInfo,
    Config,
    ModelOptions,
    OAuthToken,
    Options,
    ProviderConfig,
    SelectedModel,
    WorkspaceView,
)
from crush_trio.wire.events import AgentEvent, AgentEventType, EventType, PayloadType, RunComplete
from crush_trio.wire.fields import timestamp
from crush_trio.wire.integrations import (
    AuthUrl,
    LspState,
    McpClientInfo,
    McpResource,
    McpState,
    SkillsEvent,
)
from crush_trio.wire.messages import (
    EMPTY_MESSAGE,
    BinaryPart,
    FinishPart,
    FinishReason,
    Message,
    ReasoningPart,
    Role,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from crush_trio.wire.requests import AgentMessage, ConfigSetRequest, Scope, WorkspaceRequest
from crush_trio.wire.views import Session


def keys(value):
    return list(orjson.loads(encode(value)))


def data_keys(part):
    return list(orjson.loads(encode(part))["data"])


def test_message_starts_with_its_parts_even_when_there_are_none():
    assert encode(EMPTY_MESSAGE) == (
        b'{"parts":[],"id":"","role":"","session_id":"","model":"","provider":"",'
        b'"created_at":0,"updated_at":0}'
    )


def test_summary_flag_is_written_only_when_set():
    message = Message(id="m", role=Role.USER, session_id="s", is_summary_message=True)
    assert keys(message)[-1] == "is_summary_message"
    assert "is_summary_message" not in keys(EMPTY_MESSAGE)


@pytest.mark.parametrize(
    ("part", "written"),
    [
        (TextPart(text=""), ["text"]),
        (ReasoningPart(thinking=""), ["thinking", "signature"]),
        (ToolCallPart(id="", name=""), ["id", "name", "input"]),
        (ToolCallPart(id="", name="", finished=True), ["id", "name", "input", "finished"]),
        (
            ToolResultPart(tool_call_id="", name="", content=""),
            ["tool_call_id", "name", "content", "metadata", "is_error"],
        ),
        (
            ToolResultPart(tool_call_id="", name="", content="", data="QQ==", mime_type="a/b"),
            ["tool_call_id", "name", "content", "data", "mime_type", "metadata", "is_error"],
        ),
        (FinishPart(reason=FinishReason.STOP, time=0), ["reason", "time"]),
        (BinaryPart(path="", mime_type="", data=b""), ["Path", "MIMEType", "Data"]),
    ],
)
def test_part_leaves_off_only_what_may_be_absent(part, written):
    assert data_keys(part) == written


def test_values_leave_off_what_is_empty():
    assert encode(RunComplete(session_id="s")) == b'{"session_id":"s","message_id":""}'
    assert encode(AuthUrl()) == b"{}"
    assert encode(ModelOptions()) == b"{}"
    assert keys(WorkspaceRequest(path="/p")) == ["id", "path"]
    assert keys(WorkspaceView(id="w", path="/p")) == ["id", "path"]
    assert keys(AgentMessage(session_id="s", prompt="hi")) == ["session_id", "prompt"]


def test_zero_that_someone_chose_is_written():
    assert encode(ModelOptions(temperature=0, top_k=0)) == b'{"temperature":0,"top_k":0}'
    assert encode(QuestionResponse(request_id="a", yes=False)) == b'{"request_id":"a","yes":false}'
    assert encode(Options(progress=False)) == b'{"tui":{},"progress":false}'


def test_lists_that_peers_expect_are_written_empty():
    assert encode(SkillsEvent(states=())) == b'{"states":[]}'
    assert encode(()) == b"[]"


def test_config_has_what_clients_look_at_without_asking():
    assert encode(Config()) == b'{"providers":{},"options":{"tui":{}}}'


def test_permission_request_has_params_even_when_it_has_none():
    request = PermissionRequest(id="p", session_id="s", tool_call_id="t", tool_name="lsp_rename")
    assert orjson.loads(encode(request))["params"] is None


def test_agent_that_is_not_initialised_is_all_zero():
    info = orjson.loads(encode(AgentInfo()))
    assert info["is_ready"] is False
    assert info["model_cfg"] == {"model": "", "provider": ""}
    assert info["model"]["context_window"] == 0


def test_agent_event_carries_a_whole_message():
    event = orjson.loads(encode(AgentEvent(type=AgentEventType.AGENT_FINISHED)))
    assert event == {"type": "agent_finished", "message": orjson.loads(encode(EMPTY_MESSAGE))}


def test_cancelled_is_spelt_as_the_wire_does_in_finish_parts_only():
    part = FinishPart(reason=FinishReason.CANCELLED, time=1, message=USER_CANCELLED)
    assert encode(part) == (
        b'{"type":"finish","data":{"reason":"canceled","time":1,"message":"User canceled request"}}'
    )
    assert decode_part(encode(part)) == part
    assert encode(RunComplete(session_id="s", cancelled=True)).endswith(b'"cancelled":true}')


def test_states_are_numbers_for_language_servers_and_words_for_mcp_servers():
    assert encode(LspState.READY) == b"2"
    info = McpClientInfo(name="gh", state=McpState.NEEDS_AUTH, connected_at=timestamp(1))
    assert encode(info) == (
        b'{"name":"gh","state":"needs auth","connected_at":"1970-01-01T00:00:01Z"}'
    )


def test_bytes_are_padded_base64():
    assert (
        encode(McpResource(uri="u", blob=b"\x00\xff\xfe\xfd")) == b'{"uri":"u","blob":"AP/+/Q=="}'
    )
    assert orjson.loads(encode(BinaryPart(path="", mime_type="", data=b"")))["data"]["Data"] == ""


def test_json_in_a_string_is_passed_on_as_text():
    part = ToolCallPart(id="t", name="bash", input='{"command": "ls"}')
    assert orjson.loads(encode(part))["data"]["input"] == '{"command": "ls"}'


def test_objects_that_belong_to_others_survive_untouched():
    theirs = {"thinking": {"budget": 1, "ratio": 0.5, "tags": ["a", None, True]}}
    text = orjson.dumps(
        {
            "models": {"large": {"model": "m", "provider": "p", "provider_options": theirs}},
            "providers": {"p": {"extra_body": theirs, "provider_options": theirs}},
            "lsp": {"gopls": {"init_options": theirs, "options": theirs}},
            "mcp": {"gh": {"type": "http", "oauth": theirs}},
            "options": {"tui": {}},
        }
    )
    assert orjson.loads(encode(decode(text, Config))) == {**orjson.loads(text)}
    request = ConfigSetRequest(scope=Scope.WORKSPACE, key="a.b", value=theirs)
    assert decode(encode(request), ConfigSetRequest) == request


def test_any_mapping_will_do_where_a_mapping_is_asked_for():
    providers = MappingProxyType({"p": ProviderConfig(id="p")})
    written = orjson.loads(encode(Config(providers=providers)))
    assert written["providers"] == {"p": {"id": "p"}}
    assert encode(MappingProxyType({"a": SelectedModel()})) == b'{"a":{"model":"","provider":""}}'


def test_change_names_what_happened_before_the_entity():
    change = encode_change(EventType.CREATED, RunComplete(session_id="s"))
    assert change == b'{"type":"created","payload":{"session_id":"s","message_id":""}}'


def test_envelope_is_the_change_with_bytes_around_it():
    entity = RunComplete(session_id="s", text="done")
    change = encode_change(EventType.UPDATED, entity)
    whole = encode_envelope(PayloadType.RUN_COMPLETE, EventType.UPDATED, entity)
    assert wrap_change(PayloadType.RUN_COMPLETE, change) == whole
    assert whole == b'{"type":"run_complete","payload":' + change + b"}"


def test_event_is_always_one_line():
    text = "a\nb\r\nc\u2028d\x00e"
    event = encode_envelope(
        PayloadType.RUN_COMPLETE, EventType.UPDATED, RunComplete(session_id="s", text=text)
    )
    assert b"\n" not in event
    assert b"\r" not in event
    assert orjson.loads(event)["payload"]["payload"]["text"] == text


def test_unstructured_value_is_plain_and_can_be_structured_again():
    message = Message(
        id="m",
        role=Role.TOOL,
        session_id="s",
        parts=(FinishPart(reason=FinishReason.STOP, time=0),),
    )
    tree = unstructure(message)
    assert type(tree["role"]) is str
    assert type(tree["parts"][0]["data"]["reason"]) is str
    assert structure(tree, Message) == message


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("plain", "plain"),
        ("größer 😀", "größer 😀"),
        ("\ud83d\ude00", "😀"),
        ("a\ud800b", "a\ufffdb"),
        ("\udc00\ud800", "\ufffd\ufffd"),
        ("😀\ud83d", "😀\ufffd"),
    ],
)
def test_surrogate_halves_are_joined_or_replaced(text, clean):
    assert clean_text(text) == clean
    assert orjson.loads(encode_part(TextPart(text=text)))["data"]["text"] == clean


def test_clean_text_is_not_copied():
    for text in ("plain" * 10, "größer" * 10):
        assert clean_text(text) is text


def test_surrogates_anywhere_do_not_stop_an_event():
    request = PermissionRequest(
        id="p",
        session_id="s\udc80",
        tool_call_id="t",
        tool_name="bash",
        params={"file\udcff": ["\ud800", {"a": "\ud800"}, 1]},
    )
    written = orjson.loads(encode(request))
    assert written["session_id"] == "s\ufffd"
    assert written["params"] == {"file\ufffd": ["\ufffd", {"a": "\ufffd"}, 1]}


def test_what_json_cannot_hold_is_the_callers_mistake():
    with pytest.raises(TypeError):
        encode(ConfigSetRequest(scope=Scope.GLOBAL, key="k", value=object()))


@pytest.mark.parametrize(
    "value",
    [
        OAuthToken(access_token="SECRET", refresh_token="SECRET"),
        ProviderConfig(api_key="SECRET", extra_headers={"Authorization": "SECRET"}),
        WorkspaceRequest(path="/p", env=("TOKEN=SECRET",)),
        WorkspaceView(id="w", path="/p", env=("TOKEN=SECRET",)),
    ],
)
def test_secrets_are_written_but_not_shown(value):
    assert b"SECRET" in encode(value)
    assert "SECRET" not in repr(value)


def test_session_costs_nothing_without_a_fraction():
    assert b'"cost":0,' in encode(Session(id="s"))
