"""The routes and streams of asks, over the whole server in memory."""

from functools import partial
from pathlib import Path

import pytest
import trio
from attrs import define, evolve
from trio.testing import wait_all_tasks_blocked

from crush_trio.agent.asks.permit import UNANSWERED
from crush_trio.config.rules.rules import load_rules
from crush_trio.events import Form, Window, open_event_log
from crush_trio.server import guard
from crush_trio.store.changes import AskOpened
from crush_trio.wire.asks import PermissionRule, RuleDecision
from crush_trio.wire.ids import RunId, SessionId, ToolCallId
from tests.server.asker import WANTED, A, B, of_type, open_room, payload, words
from tests.server.sse_client import Client, fact, frames

REQUEST = of_type("permission_request")
SETTLED = ("granted", "denied")


def settled(event):
    return event["type"] == "permission_notification" and any(payload(event)[s] for s in SETTLED)


def ended(event):
    return event["type"] == "run_complete"


# ── Permissions ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.item("F2", "F4")
async def test_what_one_client_submits_another_may_allow_and_both_are_told():
    async with open_room() as room:
        await room.server.create(B)
        with await room.place.watch(A) as a, await room.place.watch(B) as b:
            await room.submit("allow?", "r1")
            permission = payload(await b.until(REQUEST))
            assert permission["params"] == {"command": "ls"}
            assert await room.grant(permission)
            assert not await room.grant(permission, "deny")
            assert payload(await a.until(ended))["text"] == "allowed"
            await b.until(ended)
            assert words(a.seen) == words(b.seen) == ["asked", "request", "granted"]


@pytest.mark.item("F2", "F5")
async def test_a_denial_reaches_the_run():
    async with open_room() as room:
        with await room.place.watch(A) as a:
            await room.submit("allow?", "r1")
            assert await room.grant(payload(await a.until(REQUEST)), "deny")
            assert payload(await a.until(ended))["text"] == "User denied permission"


async def test_the_reason_of_a_denial_reaches_the_run_and_the_other_clients():
    async with open_room() as room:
        await room.server.create(B)
        with await room.place.watch(A) as a, await room.place.watch(B) as b:
            await room.submit("allow?", "r1")
            assert await room.grant(payload(await a.until(REQUEST)), "deny", reason=" use make ")
            assert payload(await a.until(ended))["text"] == "User denied permission: use make"
            assert payload(await b.until(settled))["reason"] == "use make"


@pytest.mark.parametrize(
    ("more", "detail"),
    [
        ({"action": "allow", "reason": "why not"}, "reason is only for deny"),
        ({"action": "deny", "reason": "x" * 2001}, "reason has 2,001 characters"),
        ({"action": "deny", "reason": 7}, "reason"),
    ],
)
async def test_a_reason_is_a_short_text_for_a_denial(more, detail):
    async with open_room() as room:
        body = {"permission": {"id": "x"}, **more}
        answer = await room.place.request("POST", "/permissions/grant", body)
        assert (answer.status, answer.json()["code"]) == (400, "bad_request")
        assert detail in answer.json()["detail"]


@pytest.mark.item("L46")
async def test_an_answer_is_known_by_its_id_and_nothing_else_in_it_counts():
    async with open_room() as room:
        with await room.place.watch(A) as a:
            await room.submit("allow?", "r1")
            asked = payload(await a.until(REQUEST))
            forged = {
                "id": asked["id"],
                "session_id": "other",
                "tool_call_id": "other",
                "tool_name": "rm",
                "path": "/",
                "params": None,
            }
            assert await room.grant(forged, "allow_session")
            assert payload(await a.until(settled))["tool_call_id"] == asked["tool_call_id"]
            [grant] = await room.get("/permissions/grants")
            assert grant["tool_name"] == "bash"
            assert (grant["session_id"], grant["path"]) == (room.session, "/srv/project")


@pytest.mark.item("F6", "L15", "A20")
async def test_a_cancelled_session_withdraws_what_it_asked():
    async with open_room() as room:
        with await room.place.watch(A) as a:
            await room.submit("allow?", "r1")
            permission = payload(await a.until(REQUEST))
            assert (await room.place.cancel(room.session)).status == 200
            assert not await room.grant(permission)
            assert payload(await a.until(ended))["cancelled"]
            assert words(a.seen) == ["asked", "request", "denied withdrawn"]
            assert await room.get("/permissions") == []


async def test_what_waits_can_be_listed():
    async with open_room() as room:
        with await room.place.watch(A) as a:
            assert await room.get("/permissions") == []
            await room.submit("allow?", "r1")
            permission = payload(await a.until(REQUEST))
            assert await room.get("/permissions") == [permission]
            await room.grant(permission)
            assert await room.get("/permissions") == []


@pytest.mark.parametrize(
    ("scope", "asks_again"),
    [("once", True), ("run", True), ("session", False), ("project", False)],
)
async def test_a_native_client_says_how_far_its_answer_reaches(scope, asks_again):
    async with open_room() as room:
        with await room.place.watch(A) as a:
            await room.submit("allow?", "r1")
            assert await room.grant(payload(await a.until(REQUEST)), scope=scope)
            await a.until(ended)
            await room.submit("allow?", "r2")
            await wait_all_tasks_blocked()
            assert bool(await room.get("/permissions")) is asks_again
            remembered = await room.get("/permissions/grants")
            assert [grant["scope"] for grant in remembered] == [scope] * (not asks_again)


async def test_a_scope_that_is_none_is_refused():
    async with open_room() as room:
        body = {"permission": {"id": "x"}, "action": "allow", "scope": "for ever"}
        answer = await room.place.request("POST", "/permissions/grant", body)
        assert (answer.status, answer.json()["code"]) == (400, "bad_request")


async def test_a_grant_can_be_listed_and_revoked():
    async with open_room() as room:
        with await room.place.watch(A) as a:
            await room.submit("allow?", "r1")
            permission = payload(await a.until(REQUEST))
            await room.grant(permission, "allow_session")
            await a.until(ended)
            run = (await room.get("/runs/r1"))["id"]
            [grant] = await room.get("/permissions/grants")
            assert grant == {
                "id": permission["id"],
                "scope": "session",
                "session_id": room.session,
                "run_id": run,
                "tool_name": "bash",
                "action": "execute",
                "path": "/srv/project",
                "granted_at": 1767225600,
                "covers": ["= ls"],
            }
            target = f"/permissions/grants/{grant['id']}"
            assert await room.settle(target, method="DELETE")
            assert not await room.settle(target, method="DELETE")
            await room.submit("allow?", "r2")
            await a.until(REQUEST)


@pytest.mark.item("F7")
async def test_skipping_is_for_what_is_asked_later():
    async with open_room() as room:
        with await room.place.watch(A) as a:
            await room.submit("allow?", "r1")
            await a.until(REQUEST)
            await room.place.request("POST", "/permissions/skip", {"skip": True})
            other = await room.place.create_session()
            await room.submit("allow?", "r2", session_id=other)
            assert payload(await a.until(ended))["run_id"] == "r2"
            assert len(await room.get("/permissions")) == 1


@pytest.mark.item("F7")
async def test_a_workspace_that_was_created_to_skip_skips():
    async with open_room() as room:
        place = await room.server.create(A, "/srv/other", yolo=True)
        assert (await place.request("GET", "/permissions/skip")).json() == {"skip": True}


@pytest.mark.item("F7")
async def test_what_was_granted_goes_with_the_session():
    async with open_room() as room:
        with await room.place.watch(A) as a:
            await room.submit("allow?", "r1")
            await room.grant(payload(await a.until(REQUEST)), "allow_session")
            await a.until(ended)
            await room.place.request("DELETE", f"/sessions/{room.session}")
            assert await room.get("/permissions/grants") == []


@pytest.mark.item("F7")
async def test_what_was_granted_goes_with_the_workspace():
    async with open_room() as room:
        with await room.place.watch(A) as a:
            await room.submit("allow?", "r1")
            await room.grant(payload(await a.until(REQUEST)), scope="project")
            await a.until(ended)
            assert len(await room.get("/permissions/grants")) == 1
        await room.place.request("DELETE", f"?client_id={A}")
        await wait_all_tasks_blocked()
        room.place = await room.server.create(A)
        assert await room.get("/permissions/grants") == []


# ── Rules ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.item("F19")
async def test_rules_are_added_listed_and_removed():
    async with open_room() as room:
        assert await room.get("/permissions/rules") == []
        rule = {"decision": "deny", "tool": "bash", "pattern": "git push *"}
        added = (await room.place.request("POST", "/permissions/rules", rule)).json()
        assert added == {**rule, "id": added["id"], "file": added["file"], "removable": True}
        assert (await room.place.request("POST", "/permissions/rules", rule)).json() == added
        assert await room.get("/permissions/rules") == [added]
        target = f"/permissions/rules/{added['id']}"
        assert await room.settle(target, method="DELETE")
        assert not await room.settle(target, method="DELETE")
        assert await room.get("/permissions/rules") == []


@pytest.mark.item("F19")
@pytest.mark.parametrize(
    ("rule", "code"),
    [
        ({"decision": "allow", "tool": "bash", "pattern": "sh *"}, "config_invalid"),
        ({"decision": "allow", "tool": "bash"}, "config_invalid"),
        ({"decision": "maybe", "tool": "bash"}, "bad_request"),
        ({"decision": "ask"}, "config_invalid"),
    ],
)
async def test_a_wrong_rule_is_refused_and_the_error_says_what_is_expected(rule, code):
    async with open_room() as room:
        answer = await room.place.request("POST", "/permissions/rules", rule)
        assert (answer.status, answer.json()["code"]) == (400, code)
        assert await room.get("/permissions/rules") == []


@pytest.mark.item("F19")
async def test_a_rule_in_a_file_of_the_user_is_not_removed():
    async with open_room() as room:
        config = room.opened.config
        found = load_rules(
            [PermissionRule(decision=RuleDecision.DENY, tool="bash")], Path("/etc/x")
        )
        config.current = evolve(config.current, rules=found)
        [rule] = await room.get("/permissions/rules")
        answer = await room.place.request("DELETE", f"/permissions/rules/{rule['id']}")
        assert (answer.status, answer.json()["code"]) == (409, "rule_elsewhere")
        assert "/etc/x" in answer.json()["message"]


@pytest.mark.item("F19")
async def test_an_answer_for_always_is_a_rule_and_settles_what_waits_like_it():
    async with open_room() as room:
        other = await room.place.create_session()
        with await room.place.watch(A) as a:
            await room.submit("allow?", "r1")
            asked = payload(await a.until(REQUEST))
            await room.submit("allow?", "r2", session_id=other)
            await a.until(REQUEST)
            assert await room.grant(asked, scope="always")
            assert not await room.grant(asked, scope="always")
            await a.until(ended)
            await a.until(ended)
            assert [await room.text(run) for run in ("r1", "r2")] == ["allowed", "allowed"]
        [rule] = await room.get("/permissions/rules")
        assert (rule["decision"], rule["pattern"]) == ("allow", "= ls")
        assert rule["directory"] == "/srv/project"
        assert await room.get("/permissions/grants") == []
        await room.submit("allow?", "r3", permissions={"mode": "deny"})
        await wait_all_tasks_blocked()
        assert await room.text("r3") == "allowed"
        assert await room.settle(f"/permissions/rules/{rule['id']}", method="DELETE")
        await room.submit("allow?", "r4", permissions={"mode": "deny"})
        await wait_all_tasks_blocked()
        assert (await room.text("r4")).startswith("Permission denied")


@pytest.mark.item("F19")
async def test_what_no_rule_can_allow_keeps_waiting_for_another_answer(monkeypatch):
    monkeypatch.setattr("tests.server.asker.WANTED", evolve(WANTED, params={"command": "sh -c x"}))
    async with open_room() as room:
        with await room.place.watch(A) as a:
            await room.submit("allow?", "r1")
            asked = payload(await a.until(REQUEST))
            body = {"permission": asked, "action": "allow", "scope": "always"}
            answer = await room.place.request("POST", "/permissions/grant", body)
            assert (answer.status, answer.json()["code"]) == (400, "rule_not_possible")
            assert await room.grant(asked, "allow_session")
            [grant] = await room.get("/permissions/grants")
            assert grant["covers"] == ["= sh -c x"]


# ── Policies ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.item("L16")
@pytest.mark.parametrize(
    ("policy", "text"),
    [
        ({"mode": "allow"}, "allowed"),
        (
            {"mode": "deny"},
            "Permission denied: the permission policy of this run does not allow it",
        ),
        ({"mode": "deny", "allow_list": ["bash:execute"]}, "allowed"),
        ({"allow_list": ["bash"]}, "allowed"),
    ],
)
async def test_a_submission_says_what_its_run_may_do(policy, text):
    async with open_room() as room:
        await room.submit("allow?", "r1", permissions=policy)
        await wait_all_tasks_blocked()
        assert await room.text("r1") == text


async def test_a_policy_that_is_none_is_refused():
    async with open_room() as room:
        body = {"session_id": room.session, "prompt": "x", "permissions": {"mode": "perhaps"}}
        answer = await room.place.request("POST", "/agent", body)
        assert (answer.status, answer.json()["code"]) == (400, "bad_request")


async def test_a_policy_does_not_make_a_repetition_another_run():
    async with open_room() as room:
        await room.submit("allow?", "r1", permissions={"mode": "allow"})
        await room.submit("allow?", "r1", permissions={"mode": "deny"})
        await wait_all_tasks_blocked()
        assert await room.text("r1") == "allowed"


@pytest.mark.item("L16")
async def test_a_run_that_nobody_watches_does_not_wait_for_ever():
    async with open_room() as room:
        await room.submit("allow?", "r1", when_unclaimed="continue")
        await trio.sleep(59)
        assert (await room.get("/runs/r1"))["state"] == "active"
        await trio.sleep(2)
        run = await room.server.stores.of().run(RunId("r1"))
        assert run.view.text == "Permission denied: no client was connected for 60 seconds"


@pytest.mark.item("L16")
async def test_a_stream_is_somebody_for_as_long_as_it_is_open():
    async with open_room() as room:
        await room.submit("allow?", "r1", when_unclaimed="continue")
        with await room.place.watch(A) as a:
            assert room.opened.asks.permissions.attendance.streams == 1
            await trio.sleep(500)
            permission = payload(await a.until(REQUEST))
        await a.exchange.ended()
        assert room.opened.asks.permissions.attendance.streams == 0
        await trio.sleep(59)
        assert await room.grant(permission)
        await wait_all_tasks_blocked()
        run = await room.server.stores.of().run(RunId("r1"))
        assert run.view.text == "allowed"


@pytest.mark.item("L16", "F21")
async def test_what_no_one_can_answer_is_denied_at_once_with_the_reason_in_the_answer():
    async with open_room() as room:
        with await room.place.watch(
            A, "&interactive=1"
        ) as a:  # that is said in the native form only
            began = trio.current_time()
            await room.submit("allow?", "r1", interactive=False)
            assert payload(await a.until(ended))["text"] == UNANSWERED
            assert trio.current_time() == began


@pytest.mark.item("F21")
@pytest.mark.parametrize("how", ["current session", "interactive stream"])
async def test_a_run_without_a_person_waits_for_a_person_at_another_client(how):
    async with open_room() as room:
        await room.server.create(B)
        query = "&form=native&interactive=1" if how == "interactive stream" else ""
        with await room.place.watch(A) as a:
            with await room.place.watch(B, query):
                if how == "current session":
                    target = f"/current-session?client_id={B}"
                    answer = await room.place.request("POST", target, {"session_id": room.session})
                    assert answer.status == 200
                await room.submit("allow?", "r1", interactive=False)
                request = payload(await a.until(of_type("permission_request")))
                await trio.sleep(1000)
                assert await room.grant(request)
                assert payload(await a.until(ended))["text"] == "allowed"
            await wait_all_tasks_blocked()
            await room.submit("allow?", "r2", interactive=False)
            assert payload(await a.until(ended))["text"] == UNANSWERED


@define(eq=False)
class CommandOfTheAgent:
    """The peer of a connection that a command of the agent has opened."""

    suspect = True
    uid = None

    def is_foreign(self):
        return False

    async def is_own_process(self):
        await trio.lowlevel.checkpoint()
        return True


@pytest.mark.item("L48")
async def test_a_command_of_the_agent_that_follows_a_workspace_holds_it_not_and_is_no_person(
    monkeypatch,
):
    async with open_room() as room:
        [hosted] = room.server.backend.workspaces()
        attendance = hosted.asks.permissions.attendance
        claims = room.server.backend.clients()
        with monkeypatch.context() as patch:
            patch.setattr(guard, "peer_of", lambda _scope: CommandOfTheAgent())
            for target in (
                f"/v1/workspaces/{hosted.id}/events?client_id={B}&form=native&interactive=1",
                f"/v1/events?workspace={hosted.id}&client_id={B}&interactive=1",
            ):
                with room.server.driver.open("GET", target) as stream:
                    assert await stream.head() == 200
                    assert await stream.receive()
                    assert room.server.backend.clients() == claims
                    assert attendance.streams == 0
                    assert attendance.refuses(interactive=False)


@pytest.mark.item("F21")
@pytest.mark.parametrize(("how", "seconds"), [("retired", 0), ("disconnected", 10)])
async def test_a_run_without_a_person_waits_no_longer_than_a_person_may_come_back(how, seconds):
    async with open_room() as room:
        await room.server.create(B)
        with await room.place.watch(A) as a:
            with await room.place.watch(B, "&form=native&interactive=1") as b:
                await room.submit("allow?", "r1", interactive=False)
                await a.until(of_type("permission_request"))
                began = trio.current_time()
                if how == "retired":
                    await room.server.request("DELETE", f"/v1/clients/{B}")
            await b.exchange.ended()
            assert payload(await a.until(ended))["text"] == UNANSWERED
            assert trio.current_time() - began == pytest.approx(seconds)


@pytest.mark.item("F21")
async def test_whether_a_stream_is_interactive_is_one_or_zero():
    async with open_room() as room:
        target = f"/events?client_id={A}&form=native&interactive=yes"
        answer = await room.place.request("GET", target)
        assert (answer.status, answer.json()["code"]) == (400, "bad_request")


# ── Questions ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.item("F13")
@pytest.mark.parametrize("named", [True, False])
async def test_what_one_client_submits_another_may_answer_and_both_are_told(named):
    async with open_room() as room:
        await room.server.create(B)
        with await room.place.watch(A) as a, await room.place.watch(B) as b:
            await room.submit("question?", "r1")
            batch = payload(await b.until(of_type("question_batch_request")))
            assert await room.get("/questions") == [batch]
            body = {
                "batch_request_id": batch["id"] if named else "",
                "responses": [{"request_id": "go", "yes": True}],
            }
            assert await room.settle("/questions/answer", body)
            assert not await room.settle("/questions/answer", body)
            notice = payload(await a.until(of_type("question_batch_notification")))
            assert notice == {"batch_id": batch["id"]}
            assert payload(await a.until(ended))["text"] == "Q1: Go on?\nUser answered: yes"
            assert await room.get("/questions") == []


@pytest.mark.item("F14")
@pytest.mark.parametrize("named", [True, False])
async def test_a_batch_can_be_refused(named):
    async with open_room() as room:
        with await room.place.watch(A) as a:
            await room.submit("question?", "r1")
            batch = payload(await a.until(of_type("question_batch_request")))
            body = {"batch_request_id": batch["id"]} if named else b""
            assert await room.settle("/questions/cancel", body)
            assert not await room.settle("/questions/cancel", body)
            assert payload(await a.until(ended))["text"] == "User cancelled this question"


@pytest.mark.item("F14", "A20")
async def test_a_cancelled_session_withdraws_its_questions():
    async with open_room() as room:
        with await room.place.watch(A) as a:
            await room.submit("question?", "r1")
            await a.until(of_type("question_batch_request"))
            await room.place.cancel(room.session)
            await a.until(of_type("question_batch_notification"))
            assert not await room.settle("/questions/cancel")


# ── Streams ─────────────────────────────────────────────────────────────────────────────────────


async def native(room, more=""):
    """Open a native stream and return the frames of what it has sent so far, and the stream."""
    watcher = await room.place.watch(B, f"&form=native{more}")
    await wait_all_tasks_blocked()
    piece = await watcher.exchange.receive()
    return frames(piece), watcher


def named(found):
    return [frame[b"event"].decode() for frame in found]


async def test_a_crush_client_that_attaches_is_shown_what_waits():
    async with open_room() as room:
        with await room.place.watch(A) as a:
            await room.submit("allow?", "r1")
            permission = payload(await a.until(REQUEST))
            other = await room.place.create_session()
            await room.submit("question?", "r2", session_id=other)
            batch = payload(await a.until(of_type("question_batch_request")))
            told = len(a.seen)
            with await room.place.watch(B) as b:
                assert payload(await b.next()) == permission
                assert payload(await b.next()) == batch
                assert await room.grant(permission)
                await b.until(settled)
                await a.until(settled)
                assert len([e for e in a.seen[told:] if REQUEST(e)]) == 0


async def test_a_native_client_that_attaches_is_told_everything_that_waits_before_its_place():
    async with open_room() as room:
        found, watcher = await native(room)
        watcher.hang_up()
        assert named(found) == ["asks", "ready"]
        assert found[0][b"data"] == b'{"permissions":[],"questions":[]}'
        with await room.place.watch(A) as a:
            await room.submit("allow?", "r1")
            permission = payload(await a.until(REQUEST))
            found, watcher = await native(room)
            watcher.hang_up()
            assert named(found) == ["asks", "ready"]
            assert permission["id"].encode() in found[0][b"data"]
            assert b"id" not in found[0]


async def test_a_native_client_that_resumes_hears_of_an_ask_once():
    async with open_room() as room:
        found, watcher = await native(room)
        place = found[-1][b"id"].decode()
        watcher.hang_up()
        await room.submit("allow?", "r1")
        await wait_all_tasks_blocked()
        found, watcher = await native(room, f"&after={place}")
        rest = frames(await watcher.exchange.receive())
        watcher.hang_up()
        heard = named([*found, *rest])
        assert (heard.count("permission_request"), heard.count("asks")) == (1, 0)


async def test_a_native_client_that_lost_its_place_is_told_what_waits_with_its_new_one():
    async with open_room() as room:
        await room.submit("allow?", "r1")
        await wait_all_tasks_blocked()
        found, watcher = await native(room, "&after=nowhere-7")
        rest = frames(await watcher.exchange.receive())
        watcher.hang_up()
        assert named(found) == ["ready"]
        assert named(rest) == ["asks", "resync"]
        [permission] = await room.get("/permissions")
        assert permission["id"].encode() in rest[0][b"data"]


@pytest.mark.parametrize("form", Form)
async def test_a_reader_that_falls_behind_is_told_what_waits_when_it_gets_a_new_place(form):
    told = {Form.NATIVE: b"event: asks\ndata: {}\n\n", Form.CRUSH: b"data: {}\n\n"}[form]
    async with trio.open_nursery() as nursery:
        async with open_event_log("boot", window=Window(events=10)) as log:
            client, asked = Client(), []

            def asks():
                asked.append(log.head)
                return told

            cursor = log.cursor(form)
            for _ in range(100):
                log.publish(fact())
            nursery.start_soon(partial(client.take, log, cursor, asks=asks))
            await trio.sleep(1)
            log.publish(fact())
            await trio.sleep(1)
            _, first, second = client.sent
            assert first.startswith(told)
            assert told not in second
            assert asked == [100]


# ── After a crash ───────────────────────────────────────────────────────────────────────────────


async def test_what_a_crash_left_waiting_is_withdrawn_when_the_workspace_is_opened_again():
    async with open_room() as room:
        row = AskOpened(
            id="left",
            kind="permission",
            session_id=SessionId(room.session),
            run_id=RunId("r"),
            tool_call_id=ToolCallId("c"),
            payload="{}",
            at=1,
        )
        await room.server.stores.of().commit(row)
        await room.place.request("DELETE", f"?client_id={A}")
        await wait_all_tasks_blocked()
        await room.server.create(A)
        assert await room.server.stores.of().pending_asks() == []
