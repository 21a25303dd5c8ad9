"""Every JSON example of the wire contract is read and written back as the same value.

Where `exact` is set the bytes are the same too, which pins the key order. Two examples of the
contract list keys in an order of their own; for those the value is compared.
"""

from collections.abc import Mapping
from typing import Any

import orjson
import pytest
from attrs import frozen

from crush_trio.wire.answers import ErrorBody, NeedsInit, ShellResult, Version
from crush_trio.wire.codec import decode, encode, encode_envelope
from crush_trio.wire.config import AgentInfo, Config, SelectedModel, WorkspaceView
from crush_trio.wire.events import Envelope
from crush_trio.wire.fields import JsonObject
from crush_trio.wire.integrations import LspClientInfo, McpClientInfo, McpPrompt, SkillInfo
from crush_trio.wire.messages import Message, Part
from crush_trio.wire.requests import (
    AgentInitRequest,
    AgentMessage,
    AnswerRequest,
    ControlRequest,
    GrantRequest,
    WorkspaceRequest,
)
from crush_trio.wire.views import Session


@frozen
class Example:
    """A literal of the contract, the section it stands in, and what it is."""

    section: str
    cls: Any
    text: str
    exact: bool = True


BODIES = [
    Example("1 error body", ErrorBody, '{"message":"workspace not found"}'),
    Example("2.1 control", ControlRequest, '{"command":"shutdown_if_idle"}'),
    Example(
        "2.2 create workspace",
        WorkspaceRequest,
        '{"id":"","path":"/abs/cwd","yolo":true,"debug":true,"data_dir":"/abs/cwd/.crush",'
        '"version":"v0.90.0","client_id":"8d6ee4a7-7a5d-4b5b-8d0a-0a0e7a3d9b11",'
        '"env":["K=V","PATH=/usr/bin"],"channels":["server:x"]}',
    ),
    Example(
        "2.2 minimal config",
        Config,
        """{"models":{"large":{"model":"m1","provider":"p1"},"small":{"model":"m1","provider":"p1"}},
 "providers":{"p1":{"id":"p1","name":"P One","type":"openai-compat","models":[{"id":"m1","name":"M One",
   "cost_per_1m_in":0,"cost_per_1m_out":0,"cost_per_1m_in_cached":0,"cost_per_1m_out_cached":0,
   "context_window":128000,"default_max_tokens":4096,"can_reason":false,"supports_attachments":false}]}},
 "options":{"tui":{},"data_directory":"/abs/cwd/.crush","disable_metrics":true,
   "disable_provider_auto_update":true,"initialize_as":"AGENTS.md"}}""",
        exact=False,
    ),
    Example("2.3 init", AgentInitRequest, '{"interactive":false}'),
    Example(
        "2.3 create session",
        Session,
        '{"id":"","parent_session_id":"","title":"non-interactive","message_count":0,'
        '"prompt_tokens":0,"completion_tokens":0,"summary_message_id":"","cost":0,"created_at":0,'
        '"updated_at":0,"is_busy":false,"attached_clients":0}',
    ),
    Example("2.3 prompt", AgentMessage, '{"session_id":"S","run_id":"r-1","prompt":"hi"}'),
    Example(
        "3.1 version",
        Version,
        '{"version":"v0.90.0","commit":"abc","build_id":"b1","go_version":"go1.25",'
        '"platform":"linux/amd64"}',
    ),
    Example(
        "3.7 prompt with attachment",
        AgentMessage,
        '{"session_id":"S","prompt":"look","attachments":[{"file_path":"/abs/a.png",'
        '"file_name":"a.png","mime_type":"image/png","content":"iVBORw0="}]}',
    ),
    Example("3.7 shell", ShellResult, '{"output":"a\\n","exit_code":1}'),
    Example("3.8 needs init", NeedsInit, '{"needs_init":false}'),
    Example(
        "6.1 workspace",
        WorkspaceView,
        '{"id":"6e3c1c1e-0000-4000-8000-000000000000","path":"/abs/cwd","data_dir":"/abs/cwd/.crush",'
        '"version":"v0.90.0","config":{"providers":{},"options":{"tui":{}}},'
        '"env":["PATH=/usr/bin"],"skills":[{"name":"jq","path":"/x/SKILL.md","state":0}]}',
    ),
    Example(
        "6.2 session",
        Session,
        '{"id":"s1","parent_session_id":"","title":"New Session","message_count":0,'
        '"prompt_tokens":0,"completion_tokens":0,"summary_message_id":"","cost":0,'
        '"created_at":1767225600,"updated_at":1767225600,"is_busy":false,"attached_clients":0}',
    ),
    Example(
        "6.3 grant",
        GrantRequest,
        '{"permission":{"id":"pr1","session_id":"s1","tool_call_id":"tc1","tool_name":"bash",'
        '"description":"…","action":"execute","params":{"description":"","command":"ls",'
        '"working_dir":"/abs","run_in_background":false,"auto_background_after":0},"path":"/abs"},'
        '"action":"allow_session"}',
    ),
    Example(
        "6.5 answer",
        AnswerRequest,
        '{"batch_request_id":"","responses":[{"request_id":"a","selected_ids":["pg"],'
        '"fill_in_text":"","notes":{"pg":"v16"}},{"request_id":"b","yes":true}]}',
    ),
    Example(
        "6.6 lsps",
        Mapping[str, LspClientInfo],
        '{"gopls":{"name":"gopls","state":2,"diagnostic_count":3,'
        '"connected_at":"2026-01-01T00:00:00.123456789Z"}}',
    ),
    Example(
        "6.6 mcp states",
        Mapping[str, McpClientInfo],
        '{"gh":{"name":"gh","state":"connected","tool_count":12,"prompt_count":1,'
        '"connected_at":"2026-01-01T00:00:00Z"},"bad":{"error":"exec: not found","name":"bad",'
        '"state":"error","connected_at":"0001-01-01T00:00:00Z"}}',
    ),
    Example(
        "6.6 skills",
        tuple[SkillInfo, ...],
        '[{"id":"/x/jq/SKILL.md","name":"jq","description":"JSON queries","label":"user:jq",'
        '"source":"user","user_invocable":true}]',
    ),
    Example(
        "6.6 mcp prompts",
        tuple[McpPrompt, ...],
        '[{"id":"gh:review","title":"Review","prompt_id":"review","client_id":"gh",'
        '"arguments":[{"id":"focus","title":"Focus","required":true}]}]',
    ),
    Example(
        "6.6 diagnostics",
        Mapping[str, tuple[JsonObject, ...]],
        '{"file:///abs/a.go":[{"range":{"start":{"line":1,"character":0},'
        '"end":{"line":1,"character":4}},"severity":1,"source":"compiler",'
        '"message":"undefined: x"}]}',
    ),
    Example(
        "6.7 agent info",
        AgentInfo,
        '{"is_busy":false,"is_ready":true,"model":{"id":"m1","name":"M One","cost_per_1m_in":3,'
        '"cost_per_1m_out":15,"cost_per_1m_in_cached":3.75,"cost_per_1m_out_cached":0.3,'
        '"context_window":200000,"default_max_tokens":8192,"can_reason":true,'
        '"reasoning_levels":["low","medium","high"],"default_reasoning_effort":"medium",'
        '"supports_attachments":true,"options":{}},"model_cfg":{"model":"m1","provider":"p1",'
        '"reasoning_effort":"medium","max_tokens":8192}}',
    ),
    Example(
        "6.9 default small model",
        SelectedModel,
        '{"provider":"p1","model":"m1","max_tokens":4096,"reasoning_effort":"low"}',
        exact=False,
    ),
]

PARTS = [
    '{"type":"text","data":{"text":"Hello"}}',
    '{"type":"reasoning","data":{"thinking":"Let me see","signature":"","started_at":1767225601,'
    '"finished_at":1767225603}}',
    '{"type":"tool_call","data":{"id":"tc1","name":"bash","input":"{\\"command\\":\\"ls\\"}",'
    '"finished":true}}',
    '{"type":"tool_result","data":{"tool_call_id":"tc1","name":"bash","content":"a\\nb",'
    '"metadata":"{\\"output\\":\\"a\\\\nb\\"}","is_error":false}}',
    '{"type":"finish","data":{"reason":"end_turn","time":1767225605}}',
    '{"type":"image_url","data":{"url":"https://example.org/a.png","detail":"low"}}',
    '{"type":"binary","data":{"Path":"a.png","MIMEType":"image/png","Data":"iVBORw0="}}',
    '{"type":"shell_command","data":{"command":"ls","output":"a\\n","exit_code":0}}',
]

MESSAGES = [
    '{"parts":[{"type":"text","data":{"text":"fix it"}},{"type":"binary","data":{"Path":"shot.png",'
    '"MIMEType":"image/png","Data":"iVBORw0="}},{"type":"finish","data":{"reason":"stop",'
    '"time":0}}],"id":"m1","role":"user","session_id":"s1","model":"","provider":"",'
    '"created_at":1767225600,"updated_at":1767225600}',
    '{"parts":[{"type":"reasoning","data":{"thinking":"…","signature":"","started_at":1767225601,'
    '"finished_at":1767225602}},{"type":"text","data":{"text":"Running."}},{"type":"tool_call",'
    '"data":{"id":"tc1","name":"bash","input":"{\\"command\\":\\"ls\\",\\"description\\":\\"list\\"}",'
    '"finished":true}},{"type":"finish","data":{"reason":"tool_use","time":1767225603}}],"id":"m2",'
    '"role":"assistant","session_id":"s1","model":"m1","provider":"p1","created_at":1767225601,'
    '"updated_at":1767225603}',
    '{"parts":[{"type":"tool_result","data":{"tool_call_id":"tc1","name":"bash","content":"a.go",'
    '"metadata":"{\\"start_time\\":1767225603000,\\"end_time\\":1767225603100,\\"output\\":\\"a.go\\",'
    '\\"description\\":\\"list\\",\\"working_directory\\":\\"/abs\\"}","is_error":false}},'
    '{"type":"finish","data":{"reason":"stop","time":0}}],"id":"m3","role":"tool",'
    '"session_id":"s1","model":"","provider":"","created_at":1767225603,"updated_at":1767225603}',
]

EVENTS = [
    '{"type":"session","payload":{"type":"updated","payload":{"id":"0b6f","parent_session_id":"",'
    '"title":"Fix bug","message_count":4,"prompt_tokens":1200,"completion_tokens":85,'
    '"summary_message_id":"","cost":0.0123,"todos":[{"content":"Run tests","status":"in_progress",'
    '"active_form":"Running tests"}],"created_at":1767225600,"updated_at":1767225660,'
    '"is_busy":false,"attached_clients":0}}}',
    '{"type":"message","payload":{"type":"created","payload":{"parts":[],"id":"m2",'
    '"role":"assistant","session_id":"s1","model":"m1","provider":"p1","created_at":1767225601,'
    '"updated_at":1767225601}}}',
    '{"type":"message","payload":{"type":"updated","payload":{"parts":[{"type":"text",'
    '"data":{"text":"Hel"}}],"id":"m2","role":"assistant","session_id":"s1","model":"m1",'
    '"provider":"p1","created_at":1767225601,"updated_at":1767225601}}}',
    '{"type":"file","payload":{"type":"created","payload":{"id":"f1","session_id":"s1",'
    '"path":"/abs/a.go","content":"package a\\n","version":1,"created_at":1767225602,'
    '"updated_at":1767225602}}}',
    '{"type":"permission_request","payload":{"type":"created","payload":{"id":"pr1",'
    '"session_id":"s1","tool_call_id":"tc1","tool_name":"bash",'
    '"description":"Execute command: ls","action":"execute","params":{"description":"list",'
    '"command":"ls","working_dir":"/abs","run_in_background":false,"auto_background_after":0},'
    '"path":"/abs"}}}',
    '{"type":"permission_notification","payload":{"type":"created","payload":{"tool_call_id":"tc1",'
    '"granted":true,"denied":false}}}',
    '{"type":"question_batch_request","payload":{"type":"created","payload":{"id":"q1",'
    '"session_id":"s1","tool_call_id":"tc2","questions":[{"id":"a","type":"single_choice",'
    '"label":"DB","question":"Which DB?","description":"Pick one","choices":[{"id":"pg",'
    '"label":"Postgres","description":"server"},{"id":"sl","label":"SQLite"}]}],'
    '"confirm_title":"Ready?","confirm_description":"Check answers"}}}',
    '{"type":"question_batch_notification","payload":{"type":"created",'
    '"payload":{"batch_id":"q1"}}}',
    '{"type":"agent_event","payload":{"type":"created","payload":{"type":"agent_finished",'
    '"message":{"parts":[],"id":"","role":"","session_id":"","model":"","provider":"",'
    '"created_at":0,"updated_at":0},"session_id":"s1","session_title":"Fix bug"}}}',
    '{"type":"agent_event","payload":{"type":"created","payload":{"error":"boom","type":"error",'
    '"message":{"parts":[],"id":"","role":"","session_id":"","model":"","provider":"",'
    '"created_at":0,"updated_at":0},"run_id":"r1","session_id":"s1"}}}',
    '{"type":"run_complete","payload":{"type":"updated","payload":{"session_id":"s1",'
    '"run_id":"r1","message_id":"m2","text":"Hello!"}}}',
    '{"type":"run_complete","payload":{"type":"updated","payload":{"session_id":"S","run_id":"R",'
    '"message_id":"M","text":"Hello!"}}}',
    '{"type":"config_changed","payload":{"type":"updated","payload":{"workspace_id":"w1"}}}',
    '{"type":"skills_event","payload":{"type":"updated","payload":{"states":[{"name":"jq",'
    '"path":"/x/SKILL.md","state":0},{"name":"","path":"/y/SKILL.md","state":1,'
    '"error":"bad front matter"}]}}}',
    '{"type":"mcp_event","payload":{"type":"updated","payload":{"type":"state_changed",'
    '"name":"gh","state":"connected","tool_count":12}}}',
    '{"type":"mcp_event","payload":{"type":"updated","payload":{"error":"dial refused",'
    '"type":"state_changed","name":"gh","state":"error"}}}',
    '{"type":"lsp_event","payload":{"type":"updated","payload":{"type":"diagnostics_changed",'
    '"name":"gopls","state":2,"diagnostic_count":3}}}',
    '{"type":"update_available","payload":{"type":"updated","payload":{"current_version":"v0.90.0",'
    '"latest_version":"v0.91.0","is_development":false}}}',
]

EXAMPLES = [
    *BODIES,
    *(Example(f"4.4 {orjson.loads(text)['type']}", Envelope, text) for text in EVENTS),
    *(Example(f"5 {orjson.loads(text)['type']} part", Part, text) for text in PARTS),
    *(Example(f"5 {orjson.loads(text)['role']} message", Message, text) for text in MESSAGES),
]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.section)
def test_contract_example_is_written_as_it_was_read(example):
    written = encode(decode(example.text, example.cls))
    assert orjson.loads(written) == orjson.loads(example.text)
    if example.exact:
        assert written.decode() == example.text


@pytest.mark.parametrize("text", EVENTS, ids=lambda text: orjson.loads(text)["type"])
def test_event_encoded_from_its_three_pieces_is_the_whole_event(text):
    event = decode(text, Envelope)
    assert encode_envelope(event.payload_type, event.event_type, event.entity).decode() == text
