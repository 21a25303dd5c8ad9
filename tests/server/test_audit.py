"""What requests leave in the audit, and how it is read over HTTP."""

import json

import pytest
import trio

from crush_trio.audit.file import AuditFile
from crush_trio.audit.log import AuditLog
from crush_trio.audit.record import Action
from crush_trio.clock import TrioClock
from crush_trio.server.routes import ROUTES
from crush_trio.server.settings import GuardSettings
from crush_trio.server.tokens import Right, TokenFile
from crush_trio.testing.server.server import WrittenTurns, client_id, open_test_server
from crush_trio.testing.server.turns import Pause, Say
from tests.server.asker import A, of_type, open_room, payload
from tests.server.in_process import CLIENT

SECRET = "hunter2-hunter2-hunter2"


# Records are written in a thread, and a mock clock would not wait for it.
pytestmark = pytest.mark.real_clock


@pytest.fixture
def audit(tmp_path):
    return AuditLog(AuditFile(tmp_path / "audit.jsonl"), TrioClock())


async def recorded(audit):
    """Write what was noted; return all records."""
    await audit.write_queue()
    return audit.file.read(0, 1000)


def short(record):
    return record.action.value, record.result, record.what


async def test_a_conversation_is_recorded_without_what_was_said(audit):
    async with open_room(audit=audit) as room:
        with await room.place.watch(A) as events:
            await room.submit(f"allow? {SECRET}", "r1")
            permission = payload(await events.until(of_type("permission_request")))
            assert await room.grant(permission, scope="session")
            assert not await room.grant(permission, "deny")
            await events.until(of_type("run_complete"))
            await room.submit("question?", "r2")
            batch = payload(await events.until(of_type("question_batch_request")))
            answers = [{"request_id": "go", "yes": True}]
            await room.settle("/questions/answer", {"responses": answers})
        await room.place.cancel(room.session)
        found = await recorded(audit)
    assert [short(record) for record in found] == [
        ("workspace_created", "ok", "0 variables"),
        ("sent", "ok", f"a prompt of {len(SECRET) + 7} characters"),
        ("allowed", "ok", "allow for session: execute ls"),
        ("denied", "not_pending", "deny"),
        ("sent", "ok", "a prompt of 9 characters"),
        ("answered", "ok", ""),
        ("cancelled", "ok", ""),
    ]
    created, sent, allowed, *_ = found
    assert (created.client_id, created.directory) == (A, "/srv/project")
    assert (sent.workspace_id, sent.session_id, sent.run_id) == (room.place.id, room.session, "r1")
    assert (allowed.tool, allowed.ask_id) == ("bash", permission["id"])
    assert batch["id"]
    assert SECRET not in audit.file.path.read_text()


async def test_a_prompt_whose_client_left_is_recorded_all_the_same(audit):
    turns = WrittenTurns({"think": [Say("Hm"), Pause(trio.Event())]})
    async with open_test_server(turns, audit=audit) as server:
        place = await server.create(client_id(1))
        session = await place.create_session()
        body = {"session_id": session, "prompt": "think", "run_id": "r1"}
        [hosted] = server.backend.workspaces()
        with server.driver.open("POST", f"{place.path}/agent", body) as exchange:
            while not hosted.runs.runs:
                await trio.lowlevel.checkpoint()
        await exchange.ended()
        await place.cancel(session)
        found = await recorded(audit)
    assert [record.run_id for record in found if record.action is Action.SENT] == ["r1"]


async def test_configuration_is_recorded_by_its_keys_and_never_by_its_values(audit):
    async with open_test_server(audit=audit) as server:
        place = await server.create(client_id(1))
        await place.request(
            "POST", "/config/set", {"scope": 1, "key": "options.x", "value": SECRET}
        )
        key = {"scope": 0, "provider_id": "anthropic", "kind": "string", "api_key": SECRET}
        await place.request("POST", "/config/provider-key", key)
        model = {"scope": 1, "model_type": "large", "model": {"provider": "p", "model": "m"}}
        await place.request("POST", "/config/model", model)
        await place.request("POST", "/permissions/skip", {"skip": True})
        found = await recorded(audit)
    assert [(each.action.value, each.what) for each in found[1:]] == [
        ("config_changed", "workspace: set options.x"),
        ("config_changed", "global: key of provider anthropic"),
        ("config_changed", "workspace: large model p/m"),
        ("skip_set", "on"),
    ]
    assert SECRET not in audit.file.path.read_text()


async def test_what_the_workspace_knows_to_be_secret_is_in_no_error_and_not_in_the_audit(audit):
    async with open_room(audit=audit) as room:
        [hosted] = room.server.backend.workspaces()
        hosted.config.current.secrets.learn((SECRET,))
        answer = await room.place.request("GET", f"/sessions/{SECRET}")
        await room.place.request("DELETE", f"/sessions/{SECRET}")
        *_, deleted = await recorded(audit)
    assert json.loads(answer.body)["message"].endswith("[redacted]")
    assert (deleted.action, deleted.session_id) == (Action.SESSION_DELETED, "[redacted]")


async def test_refused_requests_are_recorded_with_what_is_known_of_their_sender(audit, tmp_path):
    tokens = TokenFile(tmp_path / "tokens.json")
    watch = [("authorization", f"Bearer {tokens.add('phone', Right.WATCH)}")]
    guard = GuardSettings(token_file=tokens.path)
    async with open_test_server(audit=audit, guard=guard) as server:
        await server.driver.request("GET", "/v1/workspaces")
        await server.driver.request("POST", "/v1/control", b"{}", headers=watch)
        found = await recorded(audit)
    assert [(each.action, each.result, each.token, each.what) for each in found] == [
        (Action.REFUSED, "unauthorized", "", "GET /v1/workspaces"),
        (Action.REFUSED, "right_missing", "phone", "POST /v1/control"),
    ]


async def test_clients_name_themselves_and_tokens_are_named(audit, tmp_path):
    tokens = TokenFile(tmp_path / "tokens.json")
    token = tokens.add("desk", Right.ADMIN)
    headers = [("authorization", f"Bearer {token}"), ("X-Crush-Client-Id", CLIENT)]
    guard = GuardSettings(token_file=tokens.path)
    async with open_test_server(audit=audit, guard=guard) as server:
        await server.driver.request("POST", "/v1/control", {"command": "x"}, headers=headers)
        [found] = await recorded(audit)
    assert (found.client_id, found.token, found.result) == (CLIENT, "desk", "unknown_command")
    assert token not in audit.file.path.read_text()


@pytest.mark.real_clock
async def test_who_only_joins_a_workspace_is_not_said_to_have_opened_it_with_yolo(audit, tmp_path):
    tokens = TokenFile(tmp_path / "tokens.json")
    admin, watch = (
        [("authorization", f"Bearer {tokens.add(right, right)}")]
        for right in (Right.ADMIN, Right.WATCH)
    )
    (tmp_path / "work").mkdir()
    body = {"path": str(tmp_path / "work"), "yolo": True, "env": ["A=1"]}
    async with open_test_server(audit=audit, guard=GuardSettings(token_file=tokens.path)) as server:
        for number, headers in enumerate((admin, watch), 1):
            made = {**body, "client_id": client_id(number)}
            answer = await server.driver.request("POST", "/v1/workspaces", made, headers=headers)
            assert answer.status == 200
        found = await recorded(audit)
    assert [(each.token, each.what) for each in found] == [
        ("admin", "yolo, 1 variables"),
        ("watch", "joined"),
    ]


async def test_records_are_read_with_a_cursor(audit):
    async with open_test_server(audit=audit) as server:
        place = await server.create(client_id(1))
        for on in (True, False, True):
            await place.request("POST", "/permissions/skip", {"skip": on})
        await recorded(audit)

        async def asked(query):
            answer = await server.request("GET", f"/v1/audit{query}")
            return [record["seq"] for record in answer.json()]

        assert await asked("") == [1, 2, 3, 4]
        assert await asked("?limit=2") == [3, 4]
        assert await asked("?after=0&limit=2") == [1, 2]
        assert await asked("?after=2") == [3, 4]
        assert await asked("?after=4") == []
        for query in ("?after=x", "?after=-1", "?limit=0", "?limit=1001"):
            assert (await server.request("GET", f"/v1/audit{query}")).status == 400


async def test_a_broken_audit_fails_no_request_and_is_seen(audit, caplog):
    audit.file.path.mkdir()
    async with open_test_server(audit=audit) as server:
        assert (await server.request("GET", "/v1/health")).body == b""
        place = await server.create(client_id(1))
        await audit.write_queue()
        assert (await place.request("POST", "/permissions/skip", {"skip": True})).status == 200
        health = await server.request("GET", "/v1/health")
        assert health.status == 200
        [problem] = json.loads(health.body)["problems"]
        assert problem["code"] == "audit_failed"
        assert "Is a directory" in problem["message"]
        metrics = (await server.request("GET", "/v1/metrics")).body.decode()
        assert "crush_trio_audit_degraded 1.0" in metrics
    assert [each.message for each in caplog.records].count("audit.failed") == 1


def test_every_row_that_changes_something_for_good_is_audited():
    """Those without a record leave nothing behind, or are followed by one that has a record."""
    unrecorded = {
        (route.method, route.path.removeprefix("/v1/workspaces/{wid}"))
        for route in ROUTES
        if route.audit is None and route.method != "GET"
    }
    assert unrecorded == {
        ("POST", "/current-session"),
        ("POST", "/agent/init"),
        ("POST", "/agent/update"),
        ("POST", "/sessions"),
        ("POST", "/filetracker/read"),
        ("POST", "/config/refresh-oauth"),
        ("POST", "/config/import-copilot"),
        ("POST", "/lsps/start"),
        ("POST", "/lsps/stop"),
        ("POST", "/skills/read"),
        ("POST", "/v1/render/diff"),
        ("POST", "/mcp/auth"),
        ("POST", "/mcp/get-prompt"),
        ("POST", "/mcp/read-resource"),
        ("POST", "/mcp/refresh-tools"),
        ("POST", "/mcp/refresh-prompts"),
        ("POST", "/mcp/refresh-resources"),
    }
