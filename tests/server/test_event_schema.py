"""Every event that a native stream sends is one that `docs/events.schema.json` describes."""

import json
from pathlib import Path

import orjson
import pytest
import trio

from crush_trio.events import EventLog, Form, Position
from crush_trio.server.openapi import event_schema
from crush_trio.testing.explore.checkpoints import Gate
from crush_trio.testing.model.provider import ScriptedProvider
from crush_trio.testing.model.script import CallTool, Pause, Say, Think, text_of
from crush_trio.testing.server.server import client_id, open_test_server
from crush_trio.wire.answers import NATIVE
from crush_trio.wire.codec import decode, encode
from crush_trio.wire.events import Envelope, PayloadType
from crush_trio.wire.messages import Role
from tests.server.asker import ASKED
from tests.server.brought import open_server_with
from tests.server.schemas import problem
from tests.server.sse_client import Client, frames
from tests.server.test_run_models import CONFIG
from tests.server.test_wire_examples import happened, kind_of
from tests.wire.test_codec_examples import EVENTS

STORED = Path(__file__).parents[2] / "docs" / "events.schema.json"
SCHEMA = event_schema()
A, B = client_id(1), client_id(2)


def checked(data):
    """Check the frames of a native stream against the schema; return their names and data."""
    found = []
    for lines in frames(data):
        name, value = lines[b"event"].decode(), orjson.loads(lines[b"data"])
        event = {"event": name, "data": value}
        if b"id" in lines:
            event["id"] = lines[b"id"].decode()
        assert problem(event, {"$ref": SCHEMA["$ref"]}, SCHEMA) is None
        if name in NATIVE:
            assert encode(decode(lines[b"data"], NATIVE[name])) == lines[b"data"]
        found.append((name, value, event.get("id")))
    return found


# ── The file ────────────────────────────────────────────────────────────────────────────────────


def test_the_file_is_what_is_generated():
    again = "run: python -m crush_trio.server.openapi events > docs/events.schema.json"
    assert json.loads(STORED.read_text("utf-8")) == SCHEMA, again


async def test_the_schema_is_served():
    async with open_test_server() as server:
        answer = await server.request("GET", "/v1/events.schema.json")
    assert (answer.status, answer.json()) == (200, SCHEMA)


def test_every_reference_leads_somewhere():
    assert {ref.removeprefix("#/$defs/") for ref in references(SCHEMA)} <= SCHEMA["$defs"].keys()


def references(value):
    values = value.values() if isinstance(value, dict) else value
    if isinstance(value, dict) and isinstance(value.get("$ref"), str):
        yield value["$ref"]
    for each in values:
        if isinstance(each, dict | list):
            yield from references(each)


def test_every_event_of_both_forms_is_described():
    described = {*SCHEMA["$defs"]["NativeEvent"]["discriminator"]["mapping"]}
    assert described == {*NATIVE, *(each.value for each in PayloadType)} - {"run_complete"}


@pytest.mark.parametrize(
    "event",
    [
        {"event": "run", "data": {}, "id": "b-1"},
        {"event": "ready", "data": {"position": 5, "heartbeat": None}},
        {"event": "end", "data": {"reason": "tired"}},
        {"event": "heartbeat", "data": {}, "id": "b-1"},
        {"event": "message_delta", "id": "b-1", "data": {"id": "m", "changes": []}},
        {"event": "unheard_of", "data": {}},
    ],
    ids=lambda event: event["event"],
)
def test_another_event_does_not_fit(event):
    assert problem(event, {"$ref": SCHEMA["$ref"]}, SCHEMA) is not None


# ── What is sent ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("text", EVENTS, ids=kind_of)
def test_an_event_of_the_crush_form_is_described_in_native_form_too(text):
    log = EventLog("boot")
    cursor = log.cursor(Form.NATIVE)
    log.publish(happened(decode(text, Envelope)))
    [(name, _, _)] = checked(cursor.take().encode(Form.NATIVE))
    assert name == {"run_complete": "run"}.get(kind_of(text), kind_of(text))


async def test_a_silent_stream_sends_what_is_described(autojump_clock, nursery):
    client, log = Client(), EventLog("boot")
    nursery.start_soon(client.taking(log, heartbeat=1))
    await trio.sleep(1.5)
    client.drain.end_streams()
    await trio.sleep(1)
    told = b"".join(client.sent).removeprefix(b"retry: 1000\n")
    assert [name for name, _, _ in checked(told)] == ["ready", "heartbeat", "end"]


async def read(stream, until):
    """Read a stream up to an event for which *until* is true; return what was read, checked."""
    data = b""
    with trio.fail_after(20):
        while True:
            piece = await stream.exchange.receive()
            assert piece, data
            data += piece.removeprefix(b"retry: 1000\n")
            if data.endswith(b"\n\n"):
                found = checked(data)
                if any(until(name, value) for name, value, _ in found):
                    return found


def ended(run_id):
    return lambda name, value: (
        name == "run" and value.get("run_id") == run_id and value.get("ended_at")
    )


def is_new(name):
    return lambda found, _value: found == name


class Script:
    """What the model answers: a file, a question, and a text that does not end."""

    def __init__(self):
        self.gate = Gate()

    def __call__(self, request):
        if not request.tools:
            return [Say("A title")]
        done = any(message.role is Role.TOOL for message in request.messages)
        match text_of(request):
            case "write" if not done:
                call = CallTool("write", {"file_path": "a.txt", "content": "A"}, id="c1")
                return [Think("Which file?"), Say("This one."), call]
            case "ask":
                return [CallTool("question", ASKED, id="c2")]
            case "wait":
                return [Say("Well"), Pause(self.gate)]
        return [Say("Done.")]


@pytest.mark.real_clock  # configurations and files are read in threads
async def test_a_run_with_tools_asks_a_cancel_and_a_resume_sends_what_is_described(tmp_path):
    user_file = tmp_path / ".config" / "crush" / "crush.json"
    user_file.parent.mkdir(parents=True)
    user_file.write_bytes(orjson.dumps(CONFIG))
    script, seen = Script(), []
    brought = {"open_config": None, "make_turn": None, "home": tmp_path}
    async with open_server_with(**brought, providers={"p1": ScriptedProvider(script)}) as server:
        place = await server.create(A, str(tmp_path / "work"))
        session = await place.create_session()

        async def submit(prompt):
            body = {"session_id": session, "prompt": prompt, "run_id": prompt, "interactive": True}
            assert (await place.request("POST", "/agent", body)).status == 202

        form = "&form=native&interactive=1"
        with await place.watch(A, form) as stream:
            await submit("write")
            seen += await read(stream, is_new("permission_request"))
            [asked] = (await place.request("GET", "/permissions")).json()
            with await place.watch(B, form) as late:
                [(name, asks, _), *_] = await read(late, is_new("ready"))
                assert (name, asks["permissions"]) == ("asks", [asked])
            grant = {"permission": {"id": asked["id"]}, "action": "allow"}
            answer = await place.request("POST", "/permissions/grant", grant)
            assert answer.json() == {"resolved": True}
            seen += await read(stream, ended("write"))
            await submit("ask")
            seen += await read(stream, is_new("question_batch_request"))
            await place.request("POST", "/questions/cancel")
            seen += await read(stream, ended("ask"))
            await submit("wait")
            await script.gate.reached()
            target = f"/agent/sessions/{session}/cancel?receipt=1"
            [hit] = (await place.request("POST", target)).json()["hits"]
            assert hit["ended"] == "cancelled"
            seen += await read(stream, ended("wait"))
        places = [place for _, _, place in seen if place]
        with await place.watch(A, f"{form}&after={places[0]}") as again:
            assert [each for _, _, each in await read(again, ended("wait")) if each] == places
        with await place.watch(A, f"{form}&after={Position(boot='old', seq=1)}") as lost:
            names = [name for name, _, _ in await read(lost, is_new("resync"))]
            assert names[-1] == "resync"
            await place.request("DELETE", f"?client_id={A}")
    assert {name for name, _, _ in seen} == {
        *("asks", "ready", "run", "message", "message_delta", "session", "file"),
        *("permission_request", "permission_notification"),
        *("question_batch_request", "question_batch_notification", "agent_event"),
    }
