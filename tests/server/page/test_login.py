"""Logging in with a browser: what a cookie is worth, when it ends, and what no foreign page can do with it."""

import pytest
import trio

from crush_trio.audit.log import AuditLog
from crush_trio.clock import TrioClock
from crush_trio.server.page import login
from crush_trio.server.page.login import CODE_LIFE, COOKIE, LIFE, LINK, TRIES, TRIES_WITHIN, Logins
from crush_trio.server.settings import GuardSettings, PublicUrlInvalid
from crush_trio.server.tokens import ENVIRONMENT_TOKEN, Right, TokenFile, Tokens
from crush_trio.testing.server.server import client_id, open_test_server

TOKEN = "a-token-of-the-server"
CODE = "a-code-for-one-browser"
LOCKED = GuardSettings(token=TOKEN, login_code=CODE)
PAGE = ("x-crush-trio", "page")


class Notes(AuditLog):
    """Keeps what is recorded."""

    def __init__(self):
        super().__init__()
        self.kept = []

    def note(self, record, hide=None):
        self.kept.append(record)


@pytest.fixture
def file(tmp_path):
    return TokenFile(tmp_path / "tokens.json", TrioClock())


def named(file):
    return GuardSettings(token_file=file.path)


async def log_in(server, headers=(), **body):
    return await server.driver.request("POST", "/v1/login", body, headers=headers)


async def cookie_of(server, **body):
    """Log in, and return the header that the browser sends from then on."""
    answer = await log_in(server, **body)
    assert answer.status == 204, answer
    return "cookie", answer.headers["set-cookie"].partition(";")[0]


async def code_of(server, method, target, *headers, body=b""):
    answer = await server.driver.request(method, target, body, headers=headers)
    return answer.json()["code"] if answer.status >= 400 else answer.status


# ── What a browser is told ──────────────────────────────────────────────────────────────────────


async def test_a_server_without_tokens_needs_no_login():
    async with open_test_server() as server:
        told = (await server.request("GET", "/v1/page")).json()
        answer = await log_in(server, token="x")
    assert (told["login"], told["right"], told["logged_in"]) == (False, "admin", False)
    assert told["version"]
    assert told["directory"].startswith("/")
    assert answer.status == 204
    assert "set-cookie" not in answer.headers


async def test_a_stranger_learns_only_that_there_is_a_login():
    async with open_test_server(guard=LOCKED) as server:
        told = (await server.request("GET", "/v1/page")).json()
        assert told == {
            "login": True,
            "right": None,
            "logged_in": False,
            "version": "",
            "directory": "",
        }
        for target in ("/v1/version", "/v1/workspaces", "/v1/audit", "/v1/docs/", "/v1/metrics"):
            assert await code_of(server, "GET", target) == "unauthorized"


@pytest.mark.parametrize("right", Right)
async def test_the_cookie_has_the_right_of_the_token(file, right):
    token = file.add("phone", right)
    async with open_test_server(guard=named(file)) as server:
        cookie = await cookie_of(server, token=token)
        told = await server.driver.request("GET", "/v1/page", headers=[cookie])
        assert (told.json()["right"], told.json()["logged_in"]) == (right, True)
        assert told.json()["login"]
        assert await code_of(server, "GET", "/v1/version", cookie) == 200
        body = {"command": "none"}
        code = await code_of(server, "POST", "/v1/control", cookie, PAGE, body=body)
        assert code == ("unknown_command" if right is Right.ADMIN else "right_missing")


# ── Cookies ─────────────────────────────────────────────────────────────────────────────────────


async def test_scripts_and_other_sites_do_not_see_the_cookie():
    async with open_test_server(guard=LOCKED) as server:
        answer = await log_in(server, token=TOKEN)
    value, *rules = answer.headers["set-cookie"].split("; ")
    assert value.startswith(f"{COOKIE}=")
    assert rules == ["Path=/", f"Max-Age={LIFE}", "HttpOnly", "SameSite=Lax"]
    assert TOKEN not in value
    assert answer.headers["cache-control"] == "no-store"


PUBLIC = GuardSettings(token=TOKEN).behind("https://Agents.Example.com:443/")


@pytest.mark.parametrize(
    ("guard", "headers", "secure"),
    [
        (LOCKED, [], False),
        (PUBLIC, [], True),
        (PUBLIC, [("origin", "https://agents.example.com")], True),
        (GuardSettings(token=TOKEN).behind("http://10.0.0.1:8080"), [], False),
    ],
)
async def test_the_cookie_is_for_tls_alone_if_the_page_comes_through_it(guard, headers, secure):
    async with open_test_server(guard=guard) as server:
        answer = await log_in(server, headers, token=TOKEN)
    assert answer.headers["set-cookie"].endswith("; Secure") is secure


def test_a_plain_page_of_this_machine_keeps_its_cookie_beside_a_public_one():
    assert login.is_secure("https://a.example", "http", "https://a.example")
    assert login.is_secure(None, "https", None)
    assert not login.is_secure("https://a.example", "http", "http://127.0.0.1:8080")


async def test_wrong_cookies_are_no_token():
    async with open_test_server(guard=LOCKED) as server:
        _, good = await cookie_of(server, token=TOKEN)
        for wrong in (
            "",
            COOKIE,
            f"{COOKIE}=",
            f"{good}x",
            f"x{good}",
            "other=1",
            f"{COOKIE}={TOKEN}",
        ):
            assert await code_of(server, "GET", "/v1/version", ("cookie", wrong)) == "unauthorized"
        many = f"{COOKIE}=x; {good}; theme=dark"
        assert await code_of(server, "GET", "/v1/version", ("cookie", many)) == 200


async def test_a_bearer_token_is_asked_first_and_needs_no_header():
    async with open_test_server(guard=LOCKED) as server:
        cookie = await cookie_of(server, token=TOKEN)
        wrong, right = (("authorization", f"Bearer {each}") for each in ("wrong", TOKEN))
        assert await code_of(server, "GET", "/v1/version", cookie, wrong) == "unauthorized"
        body = {"command": "none"}
        code = await code_of(server, "POST", "/v1/control", cookie, right, body=body)
        assert code == "unknown_command"
        basic = ("authorization", "Basic eDp5")
        assert await code_of(server, "GET", "/v1/version", cookie, basic) == 200


# ── What foreign pages can do ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("headers", [[], [("x-crush-trio", "other")], [PAGE, PAGE]])
@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("POST", "/v1/control"),
        ("POST", "/v1/logout"),
        ("POST", "/v1/login"),
        ("DELETE", "/v1/clients/x"),
    ],
)
async def test_a_change_with_the_cookie_needs_the_header_of_the_page(method, target, headers):
    notes = Notes()
    async with open_test_server(guard=LOCKED, audit=notes) as server:
        cookie = await cookie_of(server, token=TOKEN)
        assert await code_of(server, method, target, cookie, *headers, body={}) == "csrf"
        assert notes.kept[-1].result == "csrf"
        assert await code_of(server, "GET", "/v1/version", cookie) == 200


@pytest.mark.parametrize("site", ["same-site", "cross-site"])
async def test_a_cookie_that_a_foreign_page_makes_a_browser_send_counts_for_nothing(site):
    link = [
        ("sec-fetch-site", site),
        ("sec-fetch-mode", "navigate"),
        ("sec-fetch-dest", "document"),
    ]
    async with open_test_server(guard=LOCKED) as server:
        cookie = await cookie_of(server, token=TOKEN)
        assert await code_of(server, "GET", "/v1/version", cookie, *link) == "unauthorized"
        for ours in ("same-origin", "none"):
            headers = (cookie, ("sec-fetch-site", ours))
            assert await code_of(server, "GET", "/v1/version", *headers) == 200


async def test_a_foreign_page_cannot_log_a_browser_in():
    async with open_test_server(guard=LOCKED) as server:
        for headers in ([("origin", "https://evil.example")], [("sec-fetch-site", "cross-site")]):
            answer = await log_in(server, headers, token=TOKEN)
            assert answer.status == 403
            assert "set-cookie" not in answer.headers


# ── Ends ────────────────────────────────────────────────────────────────────────────────────────


async def test_logging_out_ends_the_session_and_no_other():
    async with open_test_server(guard=LOCKED) as server:
        one, other = await cookie_of(server, token=TOKEN), await cookie_of(server, token=TOKEN)
        answer = await server.driver.request("POST", "/v1/logout", headers=[one, PAGE])
        assert answer.status == 204
        assert answer.headers["set-cookie"].startswith(f"{COOKIE}=; Path=/; Max-Age=0;")
        assert await code_of(server, "GET", "/v1/version", one) == "unauthorized"
        assert await code_of(server, "GET", "/v1/version", other) == 200
        again = await server.driver.request("POST", "/v1/logout", headers=[one])
        assert again.status == 204


async def test_a_revoked_token_ends_its_sessions(file):
    kept, lost = file.add("laptop", Right.ADMIN), file.add("phone", Right.ADMIN)
    async with open_test_server(guard=named(file)) as server:
        laptop, phone = await cookie_of(server, token=kept), await cookie_of(server, token=lost)
        file.revoke("phone")
        assert await code_of(server, "GET", "/v1/version", phone) == "unauthorized"
        assert await code_of(server, "GET", "/v1/version", laptop) == 200


async def test_what_a_cookie_is_worth_is_looked_up_each_time(file):
    token = file.add("phone", Right.WATCH)
    tokens = Tokens(None, TokenFile(file.path), TrioClock())
    logins = Logins(tokens)
    name, value = logins.open_with_token(token)
    assert name == "phone"
    assert logins.find(f"{COOKIE}={value}") == ("phone", Right.WATCH)
    file.revoke("phone")
    assert logins.find(f"{COOKIE}={value}") is None


async def test_a_session_ends_with_its_token_and_after_thirty_days(file, autojump_clock):
    short, long = file.add("short", Right.ADMIN, 60), file.add("long", Right.ADMIN)
    logins = Logins(Tokens(None, file, TrioClock()))
    one, other = logins.open_with_token(short)[1], logins.open_with_token(long)[1]
    await trio.sleep(61)
    assert logins.find(f"{COOKIE}={one}") is None
    assert logins.find(f"{COOKIE}={other}") == ("long", Right.ADMIN)
    await trio.sleep(LIFE)
    assert logins.find(f"{COOKIE}={other}") is None


async def test_there_is_a_bound_on_sessions_and_the_oldest_go_first(monkeypatch):
    monkeypatch.setattr(login, "_SESSIONS_MOST", 3)
    logins = Logins(Tokens(TOKEN))
    values = [logins.open_with_token(TOKEN)[1] for _ in range(5)]
    found = [logins.find(f"{COOKIE}={value}") is not None for value in values]
    assert found == [False, False, True, True, True]


async def test_an_event_stream_ends_when_its_browser_logs_out(autojump_clock):
    async with open_test_server(guard=LOCKED) as server:
        admin = ("authorization", f"Bearer {TOKEN}")
        body = {"path": "/srv/project", "client_id": client_id(1)}
        made = await server.driver.request("POST", "/v1/workspaces", body, headers=[admin])
        cookie = await cookie_of(server, token=TOKEN)
        target = f"/v1/workspaces/{made.json()['id']}/events?client_id={client_id(1)}&form=native"
        with server.driver.open("GET", target, headers=[cookie]) as stream:
            assert await stream.head() == 200
            await server.driver.request("POST", "/v1/logout", headers=[cookie, PAGE])
            with trio.fail_after(60):
                await stream.answer()


# ── Codes ───────────────────────────────────────────────────────────────────────────────────────


async def test_a_code_opens_one_session_with_all_rights():
    notes = Notes()
    async with open_test_server(guard=LOCKED, audit=notes) as server:
        assert (await log_in(server, code="wrong")).status == 401
        cookie = await cookie_of(server, code=CODE)
        told = await server.driver.request("GET", "/v1/page", headers=[cookie])
        assert told.json()["right"] == "admin"
        assert (await log_in(server, code=CODE)).status == 401
        assert (await log_in(server, code="")).status == 401
    assert [(each.action, each.result, each.token, each.what) for each in notes.kept] == [
        ("logged_in", "unauthorized", "", "with a code"),
        ("logged_in", "ok", LINK, "with a code"),
        ("logged_in", "unauthorized", "", "with a code"),
        ("logged_in", "unauthorized", "", "with a token"),
    ]


async def test_a_code_is_for_ten_minutes(autojump_clock):
    for wait, opened in ((CODE_LIFE - 1, True), (CODE_LIFE, False)):
        logins = Logins(Tokens(TOKEN, clock=TrioClock()), CODE)
        await trio.sleep(wait)
        assert (logins.open_with_code(CODE) is not None) is opened


async def test_without_a_code_none_is_right():
    assert Logins(Tokens(TOKEN)).open_with_code("") is None


# ── Tries ───────────────────────────────────────────────────────────────────────────────────────


async def test_a_login_that_fails_is_in_the_audit_without_what_was_given():
    notes = Notes()
    async with open_test_server(guard=LOCKED, audit=notes) as server:
        await log_in(server, token="a-wrong-token")
        await log_in(server, token=TOKEN)
    assert [(each.action, each.result, each.token) for each in notes.kept] == [
        ("logged_in", "unauthorized", ""),
        ("logged_in", "ok", ENVIRONMENT_TOKEN),
    ]
    assert "a-wrong-token" not in repr(notes.kept)


async def test_guessing_is_stopped_for_a_while(autojump_clock):
    async with open_test_server(guard=LOCKED) as server:
        for _ in range(TRIES):
            assert (await log_in(server, token="wrong")).status == 401
        refused = await log_in(server, token=TOKEN)
        assert (refused.status, refused.json()["code"]) == (429, "too_many_logins")
        assert "retry-after" in refused.headers
        await trio.sleep(TRIES_WITHIN + 1)
        assert (await log_in(server, token=TOKEN)).status == 204


async def test_tries_are_counted_by_peer_and_for_a_bounded_number_of_them(monkeypatch):
    logins = Logins(Tokens(TOKEN))
    for _ in range(TRIES):
        logins.note_failed("10.0.0.1")
    logins.check_tries("10.0.0.2")
    with pytest.raises(login.TooManyLogins):
        logins.check_tries("10.0.0.1")
    monkeypatch.setattr(login, "_PEERS_MOST", 5)
    for number in range(20):
        logins.note_failed(f"10.0.1.{number}")
    assert len(logins._failed) <= 6


@pytest.mark.parametrize(
    ("client", "name"),
    [
        (("10.0.0.1", 1234), "10.0.0.1"),
        (("2001:db8::1", 1), "2001:db8::/64"),
        (("fe80::1%eth0", 1), "fe80::/64"),
        (("odd", 1), "odd"),
        (None, ""),
    ],
)
def test_a_peer_is_an_address_or_a_network(client, name):
    assert login.peer_name({"client": client}) == name


async def test_a_stranger_cannot_send_a_large_body():
    async with open_test_server(guard=LOCKED) as server:
        large = await log_in(server, token="x" * 5000)
        assert (large.status, large.json()["code"]) == (413, "body_too_large")
        chunked = await log_in(server, [("transfer-encoding", "chunked")], token="x")
        assert chunked.status == 413
        known = [("authorization", f"Bearer {TOKEN}")]
        assert (await log_in(server, known, token="x" * 5000)).status == 401


# ── The public address ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("url", "origin", "host"),
    [
        ("https://agents.example.com", "https://agents.example.com", "agents.example.com"),
        ("https://Agents.example.com:443/", "https://agents.example.com", "agents.example.com"),
        ("http://10.0.0.5:8080", "http://10.0.0.5:8080", "10.0.0.5:8080"),
        ("http://[fd00::1]:8080", "http://[fd00::1]:8080", "[fd00::1]:8080"),
    ],
)
def test_a_public_address_is_a_host_and_an_origin_of_ours(url, origin, host):
    settings = GuardSettings().behind(url)
    assert (settings.public_url, settings.origins, settings.hosts) == (origin, {origin}, {host})


@pytest.mark.parametrize(
    "url",
    [
        "",
        "agents.example.com",
        "ftp://a",
        "https://",
        "https://a/b",
        "https://a?b",
        "https://a#b",
        "https://u:p@a",
        "https://a:b",
        "https://a b",
        "https://*.example.com",
    ],
)
def test_other_addresses_are_refused(url):
    with pytest.raises(PublicUrlInvalid):
        GuardSettings().behind(url)


async def test_the_page_behind_a_proxy_may_use_the_server():
    async with open_test_server(guard=PUBLIC) as server:
        ours = [("origin", "https://agents.example.com"), ("sec-fetch-site", "same-origin")]
        assert (await log_in(server, ours, token=TOKEN)).status == 204
        other = [("origin", "https://other.example.com"), ("sec-fetch-site", "same-site")]
        assert (await log_in(server, other, token=TOKEN)).status == 403
