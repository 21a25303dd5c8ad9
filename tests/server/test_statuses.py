"""Which request gets which status and which code: the table of the wire (wire.md §1, contract E.6).

Where the Go program answers 500 to an ordinary mistake of the client, we say what it is (L34).
"""

import orjson
import pytest
import trio

from crush_trio import __version__
from crush_trio.backend.settings import BackendSettings
from crush_trio.client.http import refusal
from crush_trio.server.bodies import LIMITS
from crush_trio.testing.explore.checkpoints import Gate
from crush_trio.testing.server.server import WrittenTurns, client_id, open_test_server
from crush_trio.testing.server.turns import Pause
from tests.server.scenarios import AT_ONCE, ending_of, set_the_table

A, B, RETIRED = client_id(1), client_id(2), client_id(3)
MIB = 1024 * 1024


def body_of(**fields):
    return orjson.dumps(fields)


ASKED = {"id": "p", "params": {}}
_NO_DIRECTORY = "path is not a usable directory: "
_DECODE = "failed to decode request"
GOOD_AGENT = body_of(session_id="S", prompt="hi")

# `W` in a target is an open workspace of A, whose agent is ready and in which the session `S` is
# busy with the run `taken`; `C` is one whose agent is not, and `X` one that takes no runs any more.
# A holds them without a stream.
TABLE = [
    # The body cannot be read.
    ("POST /v1/workspaces", b"{", 400, "bad_request", "failed to decode request"),
    ("POST /v1/workspaces", b"", 400, "bad_request", "failed to decode request"),
    ("POST /v1/control", b"nonsense", 400, "bad_request", "failed to decode request"),
    ("POST W/agent", b"[]", 400, "bad_request", "failed to decode request"),
    ("POST W/agent", b'{"prompt": 5}', 400, "bad_request", "failed to decode request"),
    ("POST W/agent/init", b"{", 400, "bad_request", "failed to decode request"),
    ("POST W/sessions", b"{", 400, "bad_request", "failed to decode request"),
    ("PUT W/sessions/S", b"{", 400, "bad_request", "failed to decode request"),
    *(
        (
            "PUT W/sessions/S",
            body_of(id="S", **{name: -1}),
            400,
            "bad_request",
            f"{_DECODE}: {name}",
        )
        for name in ("prompt_tokens", "completion_tokens", "cost")
    ),
    ("POST W/config/set", b"{", 400, "bad_request", "failed to decode request"),
    ("POST W/permissions/skip", b'{"skip": "yes"}', 400, "bad_request", "failed to decode"),
    ("POST W/permissions/grant", b"{", 400, "bad_request", "failed to decode request"),
    ("POST W/questions/answer", b"{", 400, "bad_request", "failed to decode request"),
    ("POST W/mcp/auth", b"{", 400, "bad_request", "failed to decode request"),
    ("POST W/skills/read", b"{", 400, "bad_request", "failed to decode request"),
    ("POST W/lsps/start", b"{", 400, "bad_request", "failed to decode request"),
    ("POST W/filetracker/read", b"{", 400, "bad_request", "failed to decode request"),
    (f"POST W/current-session?client_id={A}", b"{", 400, "bad_request", "failed to decode"),
    # A workspace is a directory of the server's machine.
    *(
        ("POST /v1/workspaces", body_of(path=path, client_id=A), 400, "path_invalid", _NO_DIRECTORY)
        for path in ("here", "./here", "~", "~/here")
    ),
    # Who asks is not said, or not well.
    ("GET W/events", b"", 400, "client_id_missing", "client_id is required"),
    ("GET W/events?client_id=me", b"", 400, "client_id_malformed", "client_id is not a valid UUID"),
    ("DELETE W", b"", 400, "client_id_missing", "client_id is required"),
    ("DELETE W?client_id=me", b"", 400, "client_id_malformed", "client_id is not a valid UUID"),
    ("POST W/current-session", b"{}", 400, "client_id_missing", "client_id is required"),
    ("POST W/current-session?client_id=x", b"{}", 400, "client_id_malformed", "client_id is not"),
    ("POST /v1/workspaces", body_of(path="/x"), 400, "client_id_invalid", "invalid client_id"),
    (
        "POST /v1/workspaces",
        body_of(path="/x", client_id="me"),
        400,
        "client_id_invalid",
        "invalid client_id",
    ),
    ("DELETE /v1/clients/me", b"", 400, "client_id_invalid", "invalid client_id"),
    # What is asked for is wrong.
    ("POST /v1/workspaces", body_of(client_id=A), 400, "path_missing", "path is required"),
    ("POST /v1/workspaces", b"{}", 400, "path_missing", "path is required"),
    ("POST /v1/control", body_of(command="dance"), 400, "unknown_command", "unknown command"),
    (
        "POST W/permissions/grant",
        body_of(permission=ASKED, action="perhaps"),
        400,
        "permission_action_invalid",
        "invalid permission action",
    ),
    (
        "POST W/config/provider-key",
        body_of(provider_id="p", kind="magic", api_key="k"),
        400,
        "provider_key_invalid",
        "invalid provider key",
    ),
    ("GET W/mcp/auth-url", b"", 400, "name_missing", "name is required"),
    ("POST W/agent", body_of(session_id="S", prompt=""), 400, "prompt_empty", "prompt is empty"),
    ("POST W/agent", body_of(prompt="hi"), 400, "session_missing", "session id is missing"),
    # What it is about is not there.
    ("GET /v1/workspaces/none", b"", 404, "workspace_not_found", "workspace not found"),
    ("GET /v1/workspaces/none/agent", b"", 404, "workspace_not_found", "workspace not found"),
    ("POST /v1/workspaces/none/agent", GOOD_AGENT, 404, "workspace_not_found", "workspace not"),
    (f"GET /v1/workspaces/none/events?client_id={A}", b"", 404, "workspace_not_found", "workspace"),
    (
        f"POST /v1/workspaces/none/current-session?client_id={A}",
        b"{}",
        404,
        "workspace_not_found",
        "workspace not found",
    ),
    ("GET W/lsps/gopls/diagnostics", b"", 404, "lsp_not_found", "LSP client not found"),
    ("GET W/sessions/none", b"", 404, "session_not_found", "session not found"),
    ("PUT W/sessions/none", body_of(id="none"), 404, "session_not_found", "session not found"),
    ("DELETE W/sessions/none", b"", 404, "session_not_found", "session not found"),
    ("GET W/agent/sessions/none", b"", 404, "session_not_found", "session not found"),
    ("POST W/skills/read", body_of(skill_id="none"), 404, "skill_not_found", "skill not found"),
    # It is not in that state.
    (
        f"POST W/current-session?client_id={A}",
        body_of(session_id="S"),
        409,
        "client_not_attached",
        "client not attached",
    ),
    (
        f"POST W/current-session?client_id={B}",
        body_of(session_id="S"),
        409,
        "client_not_attached",
        "client not attached",
    ),
    ("POST W/agent/sessions/S/summarize", b"", 409, "session_busy", "session is currently"),
    (
        "POST W/agent",
        body_of(session_id="S", prompt="another", run_id="taken"),
        409,
        "run_id_taken",
        "run id already names another run",
    ),
    ("POST X/agent", GOOD_AGENT, 409, "workspace_closing", "workspace closing"),
    (
        "POST /v1/control",
        body_of(command="shutdown"),
        409,
        "server_not_idle",
        "server is hosting live workspaces",
    ),
    (
        "POST /v1/workspaces",
        body_of(path="/srv/project", client_id=B, channels=["server:x"]),
        409,
        "channel_mismatch",
        "channel opt-in mismatch",
    ),
    (
        "POST /v1/workspaces",
        body_of(path="/srv/project", client_id=RETIRED),
        409,
        "client_retired",
        "client has been retired",
    ),
    # It is too much.
    ("POST W/agent", b" " * (LIMITS.size + 1), 413, "body_too_large", "request body is too large"),
    ("POST W/agent", b"[" + b"[]," * LIMITS.marks, 413, "body_too_large", "request body is too"),
]


async def open_states(server):
    """Bring a server into the states that the table is about; return what its targets mean."""
    place, session = await set_the_table(server, A)
    raw = await server.create(A, "/srv/raw", init=False)
    assert (await server.request("DELETE", f"/v1/clients/{RETIRED}")).status == 200
    assert (await place.submit(session, "busy", "taken")).status == 202
    closing = await server.create(A, "/srv/closing")
    server.server.workspace(closing.id).runs.close()
    return {"W": place.path, "C": raw.path, "X": closing.path, "/S": f"/{session}"}, session


def case_id(case):
    request, body, status, code, _ = case
    return f"{request}-{body[:12].decode(errors='replace')}-{status}-{code}"


@pytest.mark.item("E1", "E4", "E15", "E21", "E23", "A1", "A2", "F2", "G8")
@pytest.mark.parametrize("case", TABLE, ids=case_id)
async def test_a_refusal_has_its_status_its_code_and_its_words(case):
    request, body, status, code, words = case
    gate = Gate("busy")
    async with open_test_server(WrittenTurns({"busy": [Pause(gate)]})) as server:
        meanings, session = await open_states(server)
        await gate.reached()
        method, target = request.split(" ")
        for letter, meaning in meanings.items():
            target = target.replace(letter, meaning)
        answer = await server.request(method, target, body.replace(b'"S"', f'"{session}"'.encode()))
        assert (answer.status, answer.json()["code"]) == (status, code)
        assert str(refusal(status, answer.body)).startswith(words)
        assert answer.headers["content-type"] == "application/json"
        assert (await server.request("GET", "/v1/health")).status == 200


@pytest.mark.item("E20", "E23")
async def test_a_server_that_decided_to_end_refuses_creates_before_anything_else():
    async with open_test_server(settings=AT_ONCE) as server:
        await server.request("DELETE", f"/v1/clients/{RETIRED}")
        stopped = await server.request("POST", "/v1/control", {"command": "shutdown"})
        assert (stopped.status, stopped.body) == (200, b"")
        for client in (A, RETIRED):
            body = {"path": "/p", "client_id": client}
            late = await server.request("POST", "/v1/workspaces", body)
            assert (late.status, late.json()["code"]) == (503, "server_shutting_down")
            assert late.json()["message"] == "server is shutting down"


@pytest.mark.item("L33")
async def test_a_create_on_a_directory_that_will_not_close_waits_long_and_is_then_told_so():
    """The workspace before it has a run that neither ends nor can be made to."""
    gate = Gate("never opened")

    async def stubborn(_run):
        with trio.CancelScope(shield=True):
            await gate.wait()

    limits = BackendSettings(close_limit=5)
    async with open_test_server(lambda _: stubborn, settings=limits) as server:
        place, session = await set_the_table(server, A)
        await place.submit(session, "hi")
        await gate.reached()
        await server.request("DELETE", f"/v1/clients/{A}")
        assert (await place.request("GET")).status == 404
        before = trio.current_time()
        late = await server.request(
            "POST", "/v1/workspaces", {"path": "/srv/project", "client_id": B}
        )
        assert (late.status, late.json()["code"]) == (409, "workspace_closing")
        assert trio.current_time() - before == 2 * limits.close_limit
        gate.open()


@pytest.mark.item("E9", "L41")
async def test_whoever_creates_a_workspace_is_told_the_version_of_the_server_whatever_its_own():
    async with open_test_server() as server:
        for client, version in ((A, "v0.0.1"), (B, __version__)):
            place = await server.create(client, version=version)
            assert place.view["version"] == __version__
        assert (await server.request("GET", "/v1/version")).json()["version"] == __version__
        assert (await place.request("GET")).json()["version"] == __version__


@pytest.mark.item("E13")
async def test_what_is_silent_about_things_it_does_not_know():
    async with open_test_server() as server:
        for method, target in (
            ("DELETE", f"/v1/workspaces/none?client_id={A}"),
            ("DELETE", f"/v1/clients/{B}"),
            ("GET", "/v1/workspaces/none/mcp/states"),
            ("GET", "/v1/workspaces/none/mcp/auth-url?name=x"),
        ):
            assert (await server.request(method, target)).status == 200, target
        place, _ = await set_the_table(server, A)
        assert (await place.cancel("none")).status == 200
        assert await place.messages("none") == []


@pytest.mark.item("A3", "B7")
async def test_a_prompt_for_a_session_that_is_not_there_is_accepted_and_ends_with_an_error():
    async with open_test_server() as server:
        place, _ = await set_the_table(server, A)
        with await place.watch(A) as events:
            assert (await place.submit("none", "hi", "r1")).status == 202
            ending = await events.until(ending_of("r1"))
            assert "session not found" in ending["payload"]["payload"]["error"]


@pytest.mark.parametrize(
    ("method", "target", "status"),
    [
        ("GET", "/nothing", 404),
        ("GET", "/v1/nothing", 404),
        ("GET", "/v1/health/", 404),
        ("POST", "/v1/health", 405),
        ("DELETE", "/v1/workspaces", 405),
    ],
)
async def test_unknown_routes_and_methods_are_answered_like_the_go_program_does(
    method, target, status
):
    async with open_test_server() as server:
        answer = await server.request(method, target)
    assert answer.status == status
    assert answer.headers["content-type"].startswith("text/plain")
    if status == 404:
        assert answer.body == b"404 page not found\n"
    else:
        assert answer.headers["allow"]


@pytest.mark.parametrize("target", ["/v1/health", "/v1/version", "/v1/workspaces"])
async def test_what_can_be_read_can_be_asked_for_its_head(target):
    """The application answers as to a GET; leaving out the body is the business of the transport."""
    async with open_test_server() as server:
        head, whole = [await server.request(method, target) for method in ("HEAD", "GET")]
    assert (head.status, head.headers) == (200, whole.headers)


async def test_an_options_request_is_answered_with_the_methods_unless_its_id_is_impossible():
    async with open_test_server() as server:
        fine = await server.request("OPTIONS", "/v1/workspaces/none/agent")
        wrong = await server.request("OPTIONS", f"/v1/workspaces/{'x' * 300}/agent")
    assert set(fine.headers["allow"].split(", ")) == {"GET", "HEAD", "OPTIONS", "POST"}
    assert (wrong.status, wrong.json()["code"]) == (400, "id_invalid")


# ── Nonsense ────────────────────────────────────────────────────────────────────────────────────

DEEP = b'{"scope":0,"key":"k","value":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
BAD_ID = {"session_id": "s\n\x00", "prompt": "hi"}
LONG_ID = {"session_id": "s" * 10_000, "prompt": "hi"}
LARGE = {"file_path": "a", "mime_type": "text/plain", "content": "QUFB" * (2 * MIB)}

NONSENSE = {
    "not JSON": ("/agent", b"hello"),
    "cut short": ("/agent", b'{"session_id": "s", "prompt": "'),
    "two values": ("/agent", b'{"session_id":"s","prompt":"a"}{}'),
    "not UTF-8": ("/agent", b'{"session_id":"s","prompt":"\xff\xfe"}'),
    "half a surrogate pair": ("/agent", rb'{"session_id":"s\ud800","prompt":"hi"}'),
    "UTF-16": ("/agent", '{"session_id":"s","prompt":"a"}'.encode("utf-16")),
    "a number for text": ("/agent", b'{"session_id":"s","prompt":1}'),
    "a list for text": ("/sessions", b'{"title":[]}'),
    "text for a list": ("/agent", b'{"session_id":"s","prompt":"a","attachments":"x"}'),
    "text for a flag": ("/config/compact", b'{"scope":0,"enabled":"true"}'),
    "a fraction for a whole": ("/config/compact", b'{"scope":1.5,"enabled":true}'),
    "not a number": ("/config/compact", b'{"scope":NaN,"enabled":true}'),
    "bad base64": ("/agent", b'{"session_id":"s","prompt":"a","attachments":[{"content":"%"}]}'),
    "a null body": ("/agent", b"null"),
    "deep nesting": ("/config/set", DEEP),
    "an id of control characters": ("/agent", orjson.dumps(BAD_ID)),
    "an endless id": ("/agent", orjson.dumps(LONG_ID)),
    "a huge attachment": (
        "/agent",
        orjson.dumps({"session_id": "s", "prompt": "a", "attachments": [LARGE]}),
    ),
    "a huge body": ("/agent", b'"' + b"a" * LIMITS.size + b'"'),
}


@pytest.mark.parametrize("name", NONSENSE)
async def test_nonsense_is_refused_with_a_message_and_the_server_is_well_afterwards(name):
    target, body = NONSENSE[name]
    async with open_test_server() as server:
        place, session = await set_the_table(server, A)
        answer = await place.request("POST", target, body)
        assert 400 <= answer.status < 500, answer
        assert answer.json()["message"]
        with await place.watch(A) as events:
            assert (await place.submit(session, "hi", "r1")).status == 202
            await events.until(ending_of("r1"))
        assert [run.run_id for run in await server.stores.of().runs()] == ["r1"]


ABSURD = ["x" * 5000, "%00", "%ff%fe", "..", "a%2Fb", "%0a%0d", "💥".encode().hex(), "%F0%9F%92%A5"]


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("GET", "/v1/workspaces/{name}"),
        ("DELETE", "/v1/clients/{name}"),
        ("GET", "{place}/sessions/{name}"),
        ("GET", "{place}/agent/sessions/{name}"),
    ],
)
async def test_absurd_ids_in_a_path_name_nothing(method, target):
    async with open_test_server() as server:
        place, _ = await set_the_table(server, A)
        for name in ABSURD:
            answer = await server.request(method, target.format(place=place.path, name=name))
            assert answer.status in {400, 404}, name
            assert answer.body
        assert (await place.request("GET")).status == 200


async def test_many_bad_requests_at_once_disturb_nobody():
    async with open_test_server() as server:
        place, session = await set_the_table(server, A)
        with await place.watch(A) as events:
            async with trio.open_nursery() as nursery:
                for target, body in NONSENSE.values():
                    nursery.start_soon(place.request, "POST", target, body[:MIB])
                nursery.start_soon(place.submit, session, "hi", "r1")
            await events.until(ending_of("r1"))
