"""Every JSON example of the wire contract (§2 to §6) comes out of the server, or goes into it.

The literals are those that the codec is tested with. Here they go the whole way: an event is
published in a workspace and read from its stream, an entity is stored and asked for, a request is
sent and acted upon. Examples that take files and commands are in `test_wire_examples_configured.py`,
those of language servers, MCP servers and skills in `test_integrations.py`.
"""

import orjson
import pytest

from crush_trio import __version__
from crush_trio.events.facts import Fact, MessageChange, RunChange
from crush_trio.events.growing_message import GrowingMessage
from crush_trio.server.openapi import openapi_document
from crush_trio.server.routes import ROUTES
from crush_trio.store.changes import MessageCreated, SessionCreated, SessionEdited
from crush_trio.testing.server.server import client_id, open_test_server
from crush_trio.wire.codec import decode
from crush_trio.wire.events import Envelope, RunComplete
from crush_trio.wire.messages import Message, Role
from crush_trio.wire.runs import RunState, RunView
from crush_trio.wire.views import Session
from tests.server.scenarios import ending_of, entity, set_the_table
from tests.server.schemas import problem
from tests.wire.test_codec_examples import BODIES, EVENTS, MESSAGES, PARTS

A = client_id(1)
SAID = {example.section: example.text for example in BODIES}


def example(section):
    return orjson.loads(SAID[section])


def kind_of(text):
    return orjson.loads(text).get("type") or orjson.loads(text)["role"]


# ── Events ──────────────────────────────────────────────────────────────────────────────────────


def happened(event):
    """Return what has to happen in a workspace for clients to be sent *event*."""
    match event.entity:
        case Message() as message:
            return MessageChange(change=event.event_type, view=GrowingMessage(message).view())
        case RunComplete() as ending:
            run = RunView(
                id="ours",
                session_id=ending.session_id,
                state=RunState.COMPLETED,
                run_id=ending.run_id,
                message_id=ending.message_id,
                text=ending.text,
            )
            return RunChange(run=run)
        case other:
            return Fact(payload_type=event.payload_type, change=event.event_type, entity=other)


async def next_frame(exchange):
    """Return the bytes of the next event of a stream, without the blank lines before it."""
    read = b""
    while not read.endswith(b"\n\n") or not read.strip():
        read += await exchange.receive()
    return read.lstrip(b"\n")


@pytest.mark.item("G1", "G2")
@pytest.mark.parametrize("text", EVENTS, ids=kind_of)
async def test_an_event_reaches_the_stream_byte_for_byte(text):
    async with open_test_server() as server:
        place, _ = await set_the_table(server, A)
        with await place.watch(A) as stream:
            server.server.workspace(place.id).events.publish(happened(decode(text, Envelope)))
            assert (await next_frame(stream.exchange)).decode() == f"data: {text}\n\n"


# ── What is stored ──────────────────────────────────────────────────────────────────────────────


async def stored(server, *changes):
    """Create a workspace whose store has the session `s1` and these *changes*."""
    place = await server.create(A)
    session = decode(SAID["6.2 session"], Session)
    await server.stores.of().commit(SessionCreated(session=session), *changes)
    return place


@pytest.mark.parametrize("text", MESSAGES, ids=kind_of)
async def test_a_message_is_served_as_it_is_written(text):
    async with open_test_server() as server:
        place = await stored(server, MessageCreated(message=decode(text, Message)))
        listed = await place.request("GET", "/sessions/s1/messages")
        assert listed.body.decode() == f"[{text}]"
        of_people = await place.request("GET", "/messages/user")
        assert of_people.body == (listed.body if kind_of(text) == "user" else b"[]")


@pytest.mark.parametrize("text", PARTS, ids=kind_of)
async def test_a_part_is_served_as_it_is_written(text):
    message = Message(id="m", role=Role.ASSISTANT, session_id="s1", parts=(decode_part(text),))
    async with open_test_server() as server:
        place = await stored(server, MessageCreated(message=message))
        [served] = await place.messages("s1")
        assert orjson.dumps(served["parts"]).decode() == f"[{text}]"


def decode_part(text):
    whole = {"id": "m", "role": "assistant", "session_id": "s", "parts": [orjson.loads(text)]}
    return decode(orjson.dumps(whole), Message).parts[0]


async def test_a_session_is_served_as_it_is_written():
    async with open_test_server() as server:
        place = await stored(server)
        shown = await place.request("GET", "/sessions/s1")
        assert shown.json() == example("6.2 session")
        assert (await place.request("GET", "/sessions")).json() == [shown.json()]


async def test_a_session_can_be_asked_for_what_its_event_told():
    wanted = decode(EVENTS[0], Envelope).entity
    blank = Session(id=wanted.id, title="", created_at=wanted.created_at)
    said = [
        Message(id=f"m{n}", role=Role.USER, session_id=wanted.id, created_at=wanted.created_at)
        for n in range(wanted.message_count)
    ]
    edited = SessionEdited(
        id=wanted.id,
        at=wanted.updated_at,
        title=wanted.title,
        prompt_tokens=wanted.prompt_tokens,
        completion_tokens=wanted.completion_tokens,
        cost=wanted.cost,
        todos=wanted.todos,
    )
    async with open_test_server() as server:
        place = await server.create(A)
        changes = [SessionCreated(session=blank), *(MessageCreated(message=each) for each in said)]
        await server.stores.of().commit(*changes, edited)
        shown = await place.request("GET", f"/sessions/{wanted.id}")
        assert shown.json() == entity(orjson.loads(EVENTS[0]))


async def test_a_file_is_served_as_its_event_told():
    [text] = [text for text in EVENTS if kind_of(text) == "file"]
    file = decode(text, Envelope).entity
    async with open_test_server() as server:
        place = await stored(server)
        store = server.stores.of()
        for number in range(file.version + 1):
            name = file.id if number == file.version else f"before-{number}"
            await store.add_file(name, "s1", file.path, file.content, file.created_at)
        history = (await place.request("GET", "/sessions/s1/history")).json()
        assert history[file.version] == entity(orjson.loads(text))


# ── What a workspace knows ──────────────────────────────────────────────────────────────────────


ANSWERS = [
    ("GET W/project/needs-init", '{"needs_init":false}'),
    ("GET W/permissions/skip", '{"skip":false}'),
    ("GET W/filetracker/lastread?session_id=s1&path=/abs/a.go", '"0001-01-01T00:00:00Z"'),
    ("GET W/agent/sessions/s1/prompts/queued", "0"),
    ("GET W/agent/sessions/s1/prompts/list", "[]"),
    ("GET W/sessions/s1/filetracker/files", "[]"),
    ("GET W/mcp/auth-url?name=gh", "{}"),
    ("GET /v1/config", "{}"),
]


@pytest.mark.parametrize(("request_line", "text"), ANSWERS)
async def test_a_workspace_in_which_nothing_has_happened_says_so(request_line, text):
    method, target = request_line.split(" ")
    async with open_test_server() as server:
        place = await stored(server)
        answer = await server.request(method, target.replace("W", place.path))
        assert (answer.status, answer.body.decode()) == (200, text)


async def test_the_version_has_its_keys():
    async with open_test_server() as server:
        told = (await server.request("GET", "/v1/version")).json()
        assert list(told) == list(example("3.1 version"))
        assert all(isinstance(value, str) for value in told.values())


# ── Requests ────────────────────────────────────────────────────────────────────────────────────


async def test_a_create_is_taken_at_its_word():
    body = example("2.2 create workspace")
    async with open_test_server() as server:
        made = await server.request("POST", "/v1/workspaces", SAID["2.2 create workspace"].encode())
        assert made.status == 200
        for key in ("path", "yolo", "debug", "data_dir", "channels"):
            assert made.json()[key] == body[key]


@pytest.mark.parametrize("section", ["2.3 prompt", "3.7 prompt with attachment"])
async def test_a_prompt_is_stored_as_it_was_sent(section):
    async with open_test_server() as server:
        place, session = await set_the_table(server, A)
        body = {"run_id": "r", **example(section), "session_id": session}
        with await place.watch(A) as events:
            assert (await place.request("POST", "/agent", body)).status == 202
            await events.until(ending_of(body["run_id"]))
        asked, _ = await place.messages(session)
        sent = [{"type": "text", "data": {"text": body["prompt"]}}]
        for each in body.get("attachments", ()):
            data = {"Path": each["file_path"], "MIMEType": each["mime_type"]}
            sent.append({"type": "binary", "data": {**data, "Data": each["content"]}})
        assert asked["parts"][:-1] == sent


OAUTH = '{"access_token":"t","expires_in":1,"expires_at":2}'
ACCEPTED = [
    ("POST /v1/control", SAID["2.1 control"], 409),
    ("POST /v1/control", '{"command":"shutdown"}', 409),
    ("POST W/agent/init", SAID["2.3 init"], 200),
    ("POST W/agent/init", '{"interactive":true}', 200),
    ("POST W/sessions", SAID["2.3 create session"], 200),
    ("POST W/sessions", '{"title":"New Session"}', 200),
    ("PUT W/sessions/s1", SAID["6.2 session"], 200),
    (f"POST W/current-session?client_id={A}", '{"session_id":"s1"}', 200),
    (f"POST W/current-session?client_id={A}", '{"session_id":""}', 200),
    ("POST W/filetracker/read", '{"session_id":"s1","path":"/abs/a.go"}', 200),
    ("POST W/lsps/start", '{"path":"/abs/a.go"}', 200),
    ("POST W/permissions/skip", '{"skip":true}', 200),
    ("POST W/permissions/grant", SAID["6.3 grant"], 200),
    ("POST W/questions/answer", SAID["6.5 answer"], 200),
    ("POST W/agent/sessions/s1/shell", '{"session_id":"","command":"true"}', 200),
    ("POST W/config/set", '{"scope":1,"key":"options.tui.compact_mode","value":true}', 200),
    ("POST W/config/remove", '{"scope":1,"key":"options.tui.compact_mode"}', 200),
    (
        "POST W/config/model",
        f'{{"scope":1,"model_type":"large","model":{SAID["6.9 default small model"]}}}',
        400,  # it is understood, but there is no such provider here
    ),
    ("POST W/config/compact", '{"scope":1,"enabled":true}', 200),
    (
        "POST W/config/provider-key",
        '{"scope":1,"provider_id":"p1","kind":"string","api_key":"k"}',
        200,
    ),
    (
        "POST W/config/provider-key",
        f'{{"scope":1,"provider_id":"p1","kind":"oauth","api_key":{OAUTH}}}',
        200,
    ),
    ("POST W/skills/read", '{"skill_id":"/x/jq/SKILL.md"}', 404),
]


@pytest.mark.parametrize(("request_line", "text", "status"), ACCEPTED)
async def test_a_request_is_understood(request_line, text, status):
    method, target = request_line.split(" ")
    async with open_test_server() as server:
        place = await stored(server)
        with await place.watch(A):
            target = target.replace("W", place.path)
            answer = await server.request(method, target, text.encode())
            assert answer.status == status, answer


# ── What is announced ───────────────────────────────────────────────────────────────────────────

DOCUMENT = openapi_document(__version__)
ANNOUNCED = {
    "2.1 control": "POST /v1/control",
    "2.2 create workspace": "POST /v1/workspaces",
    "2.2 minimal config": "GET W/config",
    "2.3 init": "POST W/agent/init",
    "2.3 create session": "POST W/sessions",
    "2.3 prompt": "POST W/agent",
    "3.1 version": "GET /v1/version",
    "3.7 prompt with attachment": "POST W/agent",
    "3.7 shell": "POST W/agent/sessions/{sid}/shell",
    "3.8 needs init": "GET W/project/needs-init",
    "6.1 workspace": "GET W",
    "6.2 session": "GET W/sessions/{sid}",
    "6.3 grant": "POST W/permissions/grant",
    "6.5 answer": "POST W/questions/answer",
    "6.6 lsps": "GET W/lsps",
    "6.6 mcp states": "GET W/mcp/states",
    "6.6 skills": "GET W/skills",
    "6.6 mcp prompts": "GET W/mcp/prompts",
    "6.6 diagnostics": "GET W/lsps/{name}/diagnostics",
    "6.7 agent info": "GET W/agent",
    "6.9 default small model": "GET W/agent/default-small-model",
}


READ_IN_PART = {
    "2.3 create session": lambda said: {"title": said["title"]},
    "6.3 grant": lambda said: said | {"permission": {"id": said["permission"]["id"]}},
}
"""What is used of bodies that peers fill with more; the document describes no more than that."""


def route_of(section):
    method, path = ANNOUNCED[section].replace("W", "/v1/workspaces/{wid}").split(" ")
    return next(route for route in ROUTES if (route.method, route.path) == (method, path))


@pytest.mark.parametrize("section", ANNOUNCED)
def test_the_published_document_describes_an_example(section):
    route = route_of(section)
    operation = DOCUMENT["paths"][route.path][route.method.lower()]
    sent = route.body is not None and section != "3.7 shell"
    place = operation["requestBody"] if sent else operation["responses"][str(route.status)]
    [media] = place["content"].values()
    said = example(section)
    assert (
        problem(READ_IN_PART.get(section, lambda said: said)(said), media["schema"], DOCUMENT)
        is None
    )


def test_no_example_is_left_out():
    """The error body is the one example that is no route's own; every refusal has it."""
    assert {*SAID} - {*ANNOUNCED} == {"1 error body"}


@pytest.mark.parametrize("text", EVENTS, ids=kind_of)
def test_an_event_is_what_the_stream_announces(text):
    route = next(route for route in ROUTES if route.path.endswith("/events"))
    operation = DOCUMENT["paths"][route.path]["get"]
    [media] = operation["responses"]["200"]["content"].values()
    assert problem(orjson.loads(text), media["x-event-schema"], DOCUMENT) is None
