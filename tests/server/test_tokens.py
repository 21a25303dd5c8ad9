"""Named tokens: their file, what a server sees of it, and which token opens which route."""

import json
import os
import pwd
import stat

import pytest
import trio

from crush_trio.clock import TrioClock
from crush_trio.server.guard import Transport, Unauthorized, check_request
from crush_trio.server.routes import ROUTES
from crush_trio.server.settings import GuardSettings
from crush_trio.server.tokens import (
    ENVIRONMENT_TOKEN,
    ClientTokens,
    Right,
    RightMissing,
    TokenFile,
    TokenNameInvalid,
    TokenNameTaken,
    TokenNotFound,
    Tokens,
    TokensUnusable,
    tokens_path,
)
from crush_trio.testing.server.server import WrittenTurns, client_id, open_test_server
from crush_trio.testing.server.turns import Pause

ENVIRONMENT = "the-token-of-the-environment"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "crush" / "tokens.json"


@pytest.fixture
def file(path):
    return TokenFile(path, TrioClock())


def bearer(token):
    return [("authorization", f"Bearer {token}")]


# ── The file ────────────────────────────────────────────────────────────────────────────────────


async def test_the_file_is_private_and_has_no_token_in_it(file, path):
    token = file.add("phone", Right.WATCH, 60)
    assert len(token) >= 43
    assert token not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    [stored] = file.read()
    assert (stored.name, stored.right) == ("phone", Right.WATCH)
    assert stored.expires_at == stored.created_at + 60
    assert stored.sha256 not in repr(stored)


async def test_tokens_are_added_and_revoked_by_name(file):
    assert file.add("a", Right.ADMIN) != file.add("b", Right.ADMIN)
    with pytest.raises(TokenNameTaken, match="'a'"):
        file.add("a", Right.WATCH)
    file.revoke("a")
    assert [each.name for each in file.read()] == ["b"]
    with pytest.raises(TokenNotFound, match="'a'"):
        file.revoke("a")


@pytest.mark.parametrize("name", ["", "a b", "-a", "a\n", "ä", "x" * 65, ENVIRONMENT_TOKEN])
async def test_a_name_is_a_short_word(file, name):
    with pytest.raises(TokenNameInvalid):
        file.add(name, Right.WATCH)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda path: path.chmod(0o640), "chmod 600"),
        (lambda path: path.write_text("{"), "restore it"),
        (lambda path: path.write_text('{"tokens": [1]}'), "restore it"),
        (lambda path: (path.rename(f"{path}.x"), path.symlink_to(f"{path}.x")), "symbolic links"),
        (lambda path: (path.unlink(), path.mkdir()), "not a regular file|directory"),
    ],
)
async def test_a_file_in_doubt_is_not_used_and_the_server_stays_closed(file, path, spoil, reason):
    token, tokens = file.add("a", Right.ADMIN), Tokens(None, file, TrioClock())
    assert tokens.find(token) == ("a", Right.ADMIN)
    spoil(path)
    with pytest.raises(TokensUnusable, match=reason):
        file.read()
    assert (tokens.required, tokens.find(token)) == (True, None)
    fresh = Tokens(None, file, TrioClock())
    assert (fresh.required, fresh.find(token)) == (True, None)


def test_the_file_is_in_the_data_directory_of_the_user():
    assert str(tokens_path({"HOME": "/h"})) == "/h/.local/share/crush/tokens.json"
    assert str(tokens_path({"HOME": "/h", "CRUSH_GLOBAL_DATA": "/d"})) == "/d/tokens.json"


@pytest.mark.parametrize("environ", [{}, {"HOME": ""}, {"HOME": "relative"}])
def test_without_a_home_the_file_is_in_the_home_of_the_account(environ):
    home = pwd.getpwuid(os.getuid()).pw_dir
    assert str(tokens_path(environ)) == f"{home}/.local/share/crush/tokens.json"


# ── A server's view ─────────────────────────────────────────────────────────────────────────────


async def test_a_server_notices_every_change_of_the_file_at_once(file):
    tokens = Tokens(None, file, TrioClock())
    assert not tokens.required, "without any token everything is as it was"
    first = file.add("a", Right.WATCH)
    assert tokens.required
    assert tokens.find(first) == ("a", Right.WATCH)
    second = file.add("b", Right.ANSWER)
    file.revoke("a")
    assert (tokens.find(first), tokens.find(second)) == (None, ("b", Right.ANSWER))
    file.revoke("b")
    assert tokens.required, "revoking the last one does not open the server"
    file.path.unlink()
    assert (tokens.required, tokens.find(second)) == (True, None)


async def test_a_token_ends_at_its_time(file):
    token, tokens = file.add("a", Right.ADMIN, 60), Tokens(None, file, TrioClock())
    assert tokens.find(token) == ("a", Right.ADMIN)
    await trio.sleep(60)
    assert (tokens.find(token), tokens.required) == (None, True)


async def test_the_token_of_the_environment_has_all_rights_beside_the_others(file):
    watch, tokens = file.add("a", Right.WATCH), Tokens(ENVIRONMENT, file, TrioClock())
    assert tokens.find(ENVIRONMENT) == (ENVIRONMENT_TOKEN, Right.ADMIN)
    assert tokens.find(watch) == ("a", Right.WATCH)
    for wrong in ("", "x", watch[:-1], f"{watch}x", file.read()[0].sha256, "\udcff"):
        assert tokens.find(wrong) is None


async def test_the_owner_needs_no_token_on_the_socket_if_the_server_says_so(file, path):
    token = file.add("a", Right.WATCH)
    settings = GuardSettings(token_file=path, open_to_owner=True)

    def ask(**more):
        return check_request(settings, transport=Transport.UNIX, **more)

    assert ask(owner=True).right is Right.ADMIN
    assert ask(owner=True, authorization=f"Bearer {token}").right is Right.WATCH
    with pytest.raises(Unauthorized):
        ask(owner=False)


# ── Routes ──────────────────────────────────────────────────────────────────────────────────────

OPENING = ("POST", "/v1/workspaces")
W = "/v1/workspaces/{wid}"
WATCH = {
    OPENING,
    ("DELETE", W),
    ("POST", f"{W}/current-session"),
    ("DELETE", "/v1/clients/{client_id}"),
    ("POST", f"{W}/skills/read"),
    ("POST", "/v1/login"),
    ("POST", "/v1/logout"),
    ("POST", "/v1/render/diff"),
}
OPEN_TO_ALL = {
    ("GET", "/v1/health"),
    ("GET", "/v1/ready"),
    ("GET", "/v1/page"),
    ("POST", "/v1/login"),
    ("POST", "/v1/logout"),
}
ANSWER = {
    ("POST", f"{W}/agent"),
    ("POST", f"{W}/agent/init"),
    ("POST", f"{W}/agent/sessions/{{sid}}/cancel"),
    ("POST", f"{W}/agent/sessions/{{sid}}/prompts/clear"),
    ("POST", f"{W}/agent/sessions/{{sid}}/summarize"),
    ("PATCH", f"{W}/agent/sessions/{{sid}}/queue/{{rid}}"),
    ("DELETE", f"{W}/agent/sessions/{{sid}}/queue/{{rid}}"),
    ("POST", f"{W}/runs/{{rid}}/cancel"),
    ("POST", f"{W}/permissions/grant"),
    ("DELETE", f"{W}/permissions/grants/{{gid}}"),
    ("POST", f"{W}/questions/answer"),
    ("POST", f"{W}/questions/cancel"),
    ("POST", f"{W}/sessions"),
    ("POST", f"{W}/filetracker/read"),
    ("POST", f"{W}/mcp/get-prompt"),
    ("POST", f"{W}/mcp/read-resource"),
}


READ_BY_ADMIN = {("GET", "/v1/audit"), ("GET", f"{W}/runs/{{rid}}/capsule")}


def right_of(route):
    place = route.method, route.path
    if place in ANSWER:
        return Right.ANSWER
    reads = route.method == "GET" and place not in READ_BY_ADMIN
    return Right.WATCH if reads or place in WATCH else Right.ADMIN


def test_no_row_is_open_to_all_but_those_of_the_login():
    assert {(row.method, row.path) for row in ROUTES if row.open_to_all} == OPEN_TO_ALL


def test_every_row_has_the_right_that_it_should():
    assert {(route.method, route.path): route.right for route in ROUTES} == {
        (route.method, route.path): right_of(route) for route in ROUTES
    }


@pytest.mark.real_clock  # files are read in threads, for which a mock clock does not wait
@pytest.mark.item("L48")
@pytest.mark.parametrize("given", [None, "wrong", *Right])
async def test_a_token_opens_the_routes_of_its_right_and_no_other(file, path, given):
    made = {right: file.add(right.value, right) for right in Right}
    headers = [] if given is None else bearer(made.get(given, "wrong"))
    async with open_test_server(guard=GuardSettings(token_file=path)) as server:
        for route in ROUTES:
            if route.open_to_all:
                continue
            target = route.path.format(**dict.fromkeys(route.parameters, "none"))
            if route.name == "stream_page_events":
                target += "?session=none"  # a mistake: the stream itself would not end
            methods = [route.method, "HEAD"] if route.method == "GET" else [route.method]
            for method in methods:
                answer = await server.driver.request(method, target, headers=headers)
                code = answer.json().get("code") if answer.body[:1] == b"{" else None
                if given is None or given == "wrong":
                    assert answer.status == 401, route
                elif not given.covers(right_of(route)):
                    assert answer.status == 403, route
                    assert method == "HEAD" or code == "right_missing"
                elif (route.method, route.path) != OPENING or given is Right.ADMIN:
                    assert answer.status not in {401, 403}, route
        refused = await server.driver.request("GET", "/v1/none", headers=headers)
        assert refused.status == (401 if given in {None, "wrong"} else 404)


@pytest.mark.real_clock
async def test_the_refusal_says_which_right_is_missing(file, path):
    token = file.add("phone", Right.WATCH)
    async with open_test_server(guard=GuardSettings(token_file=path)) as server:
        answer = await server.driver.request(
            "POST", "/v1/control", {"command": "shutdown"}, headers=bearer(token)
        )
    told = json.loads(answer.body)
    assert told["code"] == "right_missing"
    assert told["message"].endswith("phone may watch, and this needs admin")


@pytest.mark.real_clock
async def test_a_watcher_joins_what_is_open_and_opens_nothing(file, path, tmp_path):
    admin, watch = file.add("a", Right.ADMIN), file.add("w", Right.WATCH)
    folder = str(tmp_path)
    async with open_test_server(guard=GuardSettings(token_file=path)) as server:

        async def create(token, **more):
            body = {"path": folder, "client_id": client_id(2), **more}
            return await server.driver.request(
                "POST", "/v1/workspaces", body, headers=bearer(token)
            )

        refused = await create(watch)
        assert (refused.status, refused.json()["code"]) == (403, "right_missing")
        opened = await create(admin)
        joined = await create(watch, yolo=True, env=["A=1"], data_dir="/elsewhere")
        assert joined.json()["id"] == opened.json()["id"]
        [hosted] = server.backend.workspaces()
        assert not hosted.plan.terms.yolo


@pytest.mark.real_clock
async def test_a_run_that_does_not_ask_needs_an_administrator(file, path, tmp_path):
    admin, answer = file.add("a", Right.ADMIN), file.add("phone", Right.ANSWER)
    gate = trio.Event()
    turns = WrittenTurns({"wait": [Pause(gate)]})
    async with open_test_server(turns, guard=GuardSettings(token_file=path)) as server:

        async def ask(method, target, body, token):
            return await server.driver.request(method, target, body, headers=bearer(token))

        async def send(token, prompt, **more):
            body = {"session_id": session, "prompt": prompt, **more}
            return await ask("POST", f"{place}/agent", body, token)

        opening = {"path": str(tmp_path), "client_id": client_id(1)}
        opened = await ask("POST", "/v1/workspaces", opening, admin)
        place = f"/v1/workspaces/{opened.json()['id']}"
        await ask("POST", f"{place}/agent/init", b"", answer)
        made = await ask("POST", f"{place}/sessions", {"title": "t"}, answer)
        session = made.json()["id"]
        for policy in ({"mode": "allow"}, {"mode": "ask", "allow_list": ["bash"]}):
            refused = await send(answer, "hello", permissions=policy)
            assert (refused.status, refused.json()["code"]) == (403, "right_missing")
            assert "phone may answer" in refused.json()["message"]
            assert "needs admin" in refused.json()["message"]
        for policy in ({"mode": "ask"}, {"mode": "deny"}):
            assert (await send(answer, "wait", permissions=policy)).status == 202
        allowed = await send(admin, "mine", run_id="mine", permissions={"mode": "allow"})
        assert allowed.status == 202
        queued = (await ask("GET", f"{place}/agent/sessions/{session}/queue", b"", answer)).json()
        own, foreign = (f"{place}/agent/sessions/{session}/queue/{each['id']}" for each in queued)
        refused = await ask("PATCH", foreign, {"prompt": "rm -rf"}, answer)
        assert (refused.status, refused.json()["code"]) == (403, "right_missing")
        assert (await ask("PATCH", foreign, {"index": 0}, answer)).status == 200
        assert (await ask("PATCH", own, {"prompt": "other"}, answer)).status == 200
        gate.set()


@pytest.mark.real_clock
@pytest.mark.item("F21")
@pytest.mark.parametrize("right", [Right.WATCH, Right.ANSWER])
async def test_only_who_may_answer_is_a_person_that_asks_wait_for(file, path, tmp_path, right):
    admin, headers = bearer(file.add("a", Right.ADMIN)), bearer(file.add("p", right))
    made = {"path": str(tmp_path), "client_id": client_id(1)}
    async with open_test_server(guard=GuardSettings(token_file=path)) as server:
        await server.driver.request("POST", "/v1/workspaces", made, headers=admin)
        [hosted] = server.backend.workspaces()
        place, attendance = f"/v1/workspaces/{hosted.id}", hosted.asks.permissions.attendance

        async def refused(number, more=""):
            target = f"{place}/events?client_id={client_id(number)}{more}"
            with server.driver.open("GET", target, headers=headers) as stream:
                assert await stream.head() == 200
                if not more:
                    select = f"{place}/current-session?client_id={client_id(number)}"
                    body = {"session_id": "s"}
                    await server.driver.request("POST", select, body, headers=headers)
                return attendance.refuses(interactive=False)

        assert await refused(2) is (right is Right.WATCH)
        server.backend.retire(client_id(2))
        assert await refused(3, "&form=native&interactive=1") is (right is Right.WATCH)


@pytest.mark.real_clock
async def test_a_client_is_retired_by_its_own_token_or_an_administrator(file, path, tmp_path):
    admin, watch = file.add("a", Right.ADMIN), file.add("w", Right.WATCH)
    other = file.add("o", Right.ANSWER)
    async with open_test_server(guard=GuardSettings(token_file=path)) as server:

        async def ask(method, target, token, body=b""):
            answer = await server.driver.request(method, target, body, headers=bearer(token))
            return answer.json().get("code") if answer.status == 403 else answer.status

        async def create(token, number):
            body = {"path": str(tmp_path), "client_id": client_id(number)}
            return await ask("POST", "/v1/workspaces", token, body)

        def clients():
            return server.backend.clients()

        assert [await create(admin, 1), await create(other, 2), await create(watch, 3)] == [200] * 3
        place = f"/v1/workspaces/{server.backend.workspaces()[0].id}"
        for number in (1, 2):
            for method, target in [
                ("DELETE", f"/v1/clients/{client_id(number)}"),
                ("DELETE", f"{place}?client_id={client_id(number)}"),
                ("GET", f"{place}/events?client_id={client_id(number)}"),
            ]:
                assert await ask(method, target, watch) == "right_missing"
            assert await create(watch, number) == "right_missing"
        assert clients() == {client_id(1), client_id(2), client_id(3)}
        assert await ask("DELETE", f"/v1/clients/{client_id(3)}", watch) == 200
        assert await ask("DELETE", f"/v1/clients/{client_id(3)}", watch) == 200, "again is fine"
        assert await ask("DELETE", f"/v1/clients/{client_id(2)}", admin) == 200
        assert clients() == {client_id(1)}


def test_clients_without_a_claim_are_forgotten_when_there_are_many():
    held = {"1"}
    clients = ClientTokens(lambda: held)
    for number in range(5000):
        clients.check(str(number), "a", Right.WATCH)
    assert len(clients._tokens) <= 1002
    with pytest.raises(RightMissing, match="belongs to another token"):
        clients.check("1", "b", Right.WATCH)
    clients.check("1", "b", Right.ADMIN)


async def test_the_stream_of_a_revoked_token_ends_before_its_next_event(file, path, tmp_path):
    admin, watch = file.add("a", Right.ADMIN), file.add("w", Right.WATCH)
    body = {"path": str(tmp_path), "client_id": client_id(1)}
    async with open_test_server(guard=GuardSettings(token_file=path)) as server:
        made = await server.driver.request("POST", "/v1/workspaces", body, headers=bearer(admin))
        place = f"/v1/workspaces/{made.json()['id']}"
        target = f"{place}/events?client_id={client_id(2)}&form=native"
        with server.driver.open("GET", target, headers=bearer(watch)) as stream:
            assert b"event: ready" in await stream.receive()
            [hosted] = server.backend.workspaces()
            assert hosted.asks.permissions.attendance.streams == 0, "a watcher cannot answer"
            session = {"title": "while it is valid"}
            await server.driver.request("POST", f"{place}/sessions", session, headers=bearer(admin))
            assert b"while it is valid" in await stream.receive()
            file.revoke("w")
            session = {"title": "afterwards"}
            await server.driver.request("POST", f"{place}/sessions", session, headers=bearer(admin))
            assert await stream.receive() == b""
