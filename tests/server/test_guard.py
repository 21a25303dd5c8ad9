"""Who gets in: this machine, our own pages, holders of the token. Nobody else, on any route."""

import logging

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crush_trio.server.app import Door
from crush_trio.server.guard import (
    Forbidden,
    HostForbidden,
    OriginForbidden,
    Transport,
    Unauthorized,
    check_request,
    check_scope,
)
from crush_trio.server.server import Meters
from crush_trio.server.settings import (
    TOKEN_FILE_VARIABLE,
    TOKEN_VARIABLE,
    GuardSettings,
    TokenUnusable,
    load_token,
)

OPEN = GuardSettings()
NAMED = GuardSettings(
    hosts=["Agent.example", "other.example:8443", "10.0.0.5:8765"],
    origins=["https://Panel.example"],
)
TOKEN = "a-token-of-some-length"
LOCKED = GuardSettings(token=TOKEN)
PORT = 8765


def over_tcp(settings=OPEN, host=f"127.0.0.1:{PORT}", **headers):
    check_request(settings, transport=Transport.TCP, port=PORT, host=host, **headers)


def over_unix(settings=OPEN, host="api.crush.localhost", **headers):
    check_request(settings, transport=Transport.UNIX, host=host, **headers)


# ── Host ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "host", [f"127.0.0.1:{PORT}", f"localhost:{PORT}", f"LocalHost:{PORT}", f"[::1]:{PORT}"]
)
def test_the_names_of_this_machine_with_our_port_are_ours(host):
    over_tcp(host=host)


FOREIGN_HOSTS = [
    None,
    "",
    "evil.example",
    f"evil.example:{PORT}",
    "127.0.0.1",
    "localhost",
    "127.0.0.1:80",
    f"localhost.evil.example:{PORT}",
    f"evil.localhost:{PORT}",
    f"127.0.0.1.evil.example:{PORT}",
    f"user@127.0.0.1:{PORT}",
    f"127.0.0.1:{PORT}@evil.example",
    f"127.0.0.1:{PORT}, evil.example",
    f"127.0.0.1:{PORT}/",
    f"127.0.0.1:{PORT}\n",
    f"127.0.0.1 :{PORT}",
    f"0.0.0.0:{PORT}",
    f"10.0.0.5:{PORT}",
    f"[::2]:{PORT}",
    f"[::1:{PORT}",
    f"::1:{PORT}",
    f"127.0.0.1:{PORT}0",
    "api.crush.localhost",
    "٣.0.0.1",
]


@pytest.mark.item("L48")
@pytest.mark.parametrize("host", FOREIGN_HOSTS)
def test_any_other_host_is_refused_over_tcp(host):
    with pytest.raises(HostForbidden, match="host is not allowed"):
        over_tcp(host=host)


def test_without_a_port_the_host_means_the_port_of_http():
    check_request(OPEN, transport=Transport.TCP, port=80, host="localhost")


@pytest.mark.parametrize("host", ["agent.example", "agent.EXAMPLE:1", "other.example:8443"])
def test_a_host_can_be_allowed_by_name_with_or_without_its_port(host):
    over_tcp(NAMED, host=host)


@pytest.mark.parametrize(
    "host", ["other.example", "other.example:1", "10.0.0.5", "sub.agent.example"]
)
def test_a_host_that_was_allowed_with_a_port_is_not_allowed_with_another(host):
    with pytest.raises(HostForbidden):
        over_tcp(NAMED, host=host)


@pytest.mark.parametrize("host", ["api.crush.localhost", "whatever", None])
def test_through_a_unix_socket_any_host_will_do(host):
    over_unix(host=host)


@given(st.text(max_size=40))
def test_whatever_the_headers_the_answer_is_yes_or_a_refusal(text):
    for settings in (OPEN, NAMED, LOCKED):
        for header in ("host", "origin", "authorization"):
            try:
                over_tcp(settings, **{header: text})
            except (Forbidden, Unauthorized):
                continue
            assert settings is not LOCKED, "no text but the token opens"


# ── Fetch metadata ─────────────────────────────────────────────────────────────────────────────

NAVIGATION = {"sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}


def fetched(site, settings=OPEN, method="GET", server=("127.0.0.1", PORT), **headers):
    """Check a request as a browser sends it; underscores in names are dashes."""
    given = {"host": f"127.0.0.1:{PORT}", "sec-fetch-site": site, **headers}
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in given.items()]
    check_scope({"server": server, "method": method, "headers": raw}, settings)


@pytest.mark.item("L48")
@pytest.mark.parametrize("server", [("127.0.0.1", PORT), None])
def test_a_request_of_a_page_of_another_site_is_refused_also_without_an_origin(server):
    for method in ("GET", "POST", "HEAD"):
        with pytest.raises(OriginForbidden, match="another site"):
            fetched("cross-site", method=method, server=server)
    with pytest.raises(OriginForbidden):
        fetched("cross-site", server=server, sec_fetch_mode="navigate", sec_fetch_dest="iframe")
    with pytest.raises(OriginForbidden):
        fetched("cross-site", server=server, method="POST", **NAVIGATION)


@pytest.mark.parametrize("site", ["same-origin", "same-site", "none", ""])
def test_a_request_of_our_page_or_of_the_address_bar_is_not(site):
    fetched(site)


def test_a_link_from_another_site_may_show_a_document():
    fetched("cross-site", **NAVIGATION)


def test_a_page_of_another_site_that_the_settings_allow_may_ask():
    fetched("cross-site", NAMED, origin="https://panel.example")
    with pytest.raises(OriginForbidden):
        fetched("cross-site", NAMED, origin="https://evil.example", **NAVIGATION)
    with pytest.raises(OriginForbidden):
        fetched("cross-site", NAMED)


# ── Origin ─────────────────────────────────────────────────────────────────────────────────────

FOREIGN_ORIGINS = [
    "https://evil.example",
    "null",
    "",
    "http://127.0.0.1",
    "http://127.0.0.1:3000",
    f"http://localhost:{PORT}",
    f"http://127.0.0.1:{PORT}/",
    f"http://127.0.0.1:{PORT}.evil.example",
    f"file://127.0.0.1:{PORT}",
    f"127.0.0.1:{PORT}",
    f"http://127.0.0.1:{PORT}, https://evil.example",
    "http://panel.example",
]


@pytest.mark.item("L48")
@pytest.mark.parametrize("origin", FOREIGN_ORIGINS)
def test_a_page_of_somebody_else_is_refused_on_both_transports(origin):
    for ask in (over_tcp, over_unix):
        with pytest.raises(OriginForbidden, match="origin is not allowed"):
            ask(NAMED, origin=origin)


@pytest.mark.parametrize("host", [f"127.0.0.1:{PORT}", f"localhost:{PORT}", f"[::1]:{PORT}"])
def test_a_page_of_ours_may_ask_the_host_it_came_from(host):
    over_tcp(host=host, origin=f"http://{host}")


def test_a_page_cannot_have_come_through_a_unix_socket():
    with pytest.raises(OriginForbidden):
        over_unix(host="api.crush.localhost", origin="http://api.crush.localhost")


def test_a_page_behind_a_proxy_that_adds_tls_is_ours_if_the_name_is():
    over_tcp(NAMED, host="agent.example", origin="https://agent.example")


@pytest.mark.parametrize("ask", [over_tcp, over_unix])
def test_an_origin_can_be_allowed_by_name(ask):
    ask(NAMED, origin="https://panel.example")


def test_a_program_sends_no_origin_and_passes():
    over_tcp(origin=None)
    over_unix(origin=None)


# ── Token ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("ask", [over_tcp, over_unix])
@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_whoever_shows_the_token_passes(ask, scheme):
    ask(LOCKED, authorization=f"{scheme} {TOKEN}")


@pytest.mark.item("L48")
@pytest.mark.parametrize("ask", [over_tcp, over_unix])
@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        f"Basic {TOKEN}",
        TOKEN,
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}",
        f"Bearer {TOKEN.upper()}",
        f"Bearer {TOKEN}, Bearer {TOKEN}",
        "Bearer \udcff",
    ],
)
def test_without_the_token_nobody_passes_on_either_transport(ask, header):
    with pytest.raises(Unauthorized) as refused:
        ask(LOCKED, authorization=header)
    assert str(refused.value) == "a valid token is required", "and not what was wrong with it"


def test_whoever_shows_the_token_may_call_the_server_by_any_name():
    over_tcp(LOCKED, host="192.0.2.2:9702", authorization=f"Bearer {TOKEN}")
    with pytest.raises(HostForbidden):
        over_tcp(LOCKED, host="192.0.2.2:9702", authorization="Bearer wrong")


def test_a_server_without_a_token_does_not_mind_being_shown_one():
    over_tcp(OPEN, authorization="Bearer whatever")


def test_the_token_does_not_open_the_door_to_pages():
    with pytest.raises(OriginForbidden):
        over_tcp(LOCKED, origin="https://evil.example", authorization=f"Bearer {TOKEN}")


def test_settings_do_not_show_their_token_and_refuse_an_empty_one():
    assert TOKEN not in repr(LOCKED)
    with pytest.raises(TokenUnusable, match="it is empty"):
        GuardSettings(token="")


# ── Where the token comes from ─────────────────────────────────────────────────────────────────


@pytest.fixture
def token_file(tmp_path):
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    path.chmod(0o600)
    return path


def test_without_either_variable_there_is_no_token():
    assert load_token({"PATH": "/bin"}) is None


def test_the_token_can_be_a_variable():
    assert load_token({TOKEN_VARIABLE: TOKEN}) == TOKEN


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o640])
def test_the_token_can_be_the_line_of_a_private_file(token_file, mode):
    token_file.chmod(mode)
    assert load_token({TOKEN_FILE_VARIABLE: str(token_file)}) == TOKEN


@pytest.mark.parametrize("mode", [0o604, 0o644, 0o602])
def test_a_file_that_everybody_can_open_is_refused_with_the_cure(token_file, mode):
    token_file.chmod(mode)
    with pytest.raises(
        TokenUnusable, match=f"{token_file} is open to every user.*chmod"
    ) as refused:
        load_token({TOKEN_FILE_VARIABLE: str(token_file)})
    assert TOKEN not in str(refused.value)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "is empty"),
        ("\n", "is empty"),
        ("short", "at least 16 characters"),
        (f"{TOKEN}\n{TOKEN}", "letters, digits and signs only"),
        ("with some spaces in it", "letters, digits and signs only"),
        ("ä" * 20, "letters, digits and signs only"),
        ("x" * 5000, "too large"),
    ],
)
def test_a_file_without_a_proper_token_is_refused(token_file, content, reason):
    token_file.write_text(content)
    with pytest.raises(TokenUnusable, match=reason):
        load_token({TOKEN_FILE_VARIABLE: str(token_file)})


@pytest.mark.parametrize("path", ["missing", "", "a\0b"])
def test_a_file_that_cannot_be_read_is_refused(tmp_path, path):
    with pytest.raises(TokenUnusable):
        load_token({TOKEN_FILE_VARIABLE: str(tmp_path / path)})


@pytest.mark.parametrize("token", ["", "short"])
def test_a_variable_that_is_set_but_no_use_is_not_taken_for_unset(token):
    with pytest.raises(TokenUnusable, match=TOKEN_VARIABLE):
        load_token({TOKEN_VARIABLE: token})


def test_two_sources_are_one_too_many(token_file):
    with pytest.raises(TokenUnusable, match="not both"):
        load_token({TOKEN_VARIABLE: TOKEN, TOKEN_FILE_VARIABLE: str(token_file)})


# ── In front of an application ─────────────────────────────────────────────────────────────────

UNIX = None
TCP = ("127.0.0.1", PORT)


def scope_of(server, *headers, kind="http", method="GET"):
    pairs = [(name.encode(), value.encode("latin-1")) for name, value in headers]
    return {"type": kind, "path": "/v1/x", "method": method, "server": server, "headers": pairs}


@pytest.mark.parametrize(
    ("server", "host", "refusal"),
    [
        (TCP, f"127.0.0.1:{PORT}", None),
        (TCP, "evil.example", HostForbidden),
        (TCP, f"127.0.0.1:{PORT + 1}", HostForbidden),
        (UNIX, "api.crush.localhost", None),
        (("/run/crush.sock", None), "api.crush.localhost", None),
    ],
)
def test_a_scope_says_which_transport_it_came_through(server, host, refusal):
    scope = scope_of(server, ("Host", host))
    if refusal is None:
        check_scope(scope, OPEN)
    else:
        with pytest.raises(refusal):
            check_scope(scope, OPEN)


@pytest.mark.parametrize(
    "headers",
    [
        [("host", f"127.0.0.1:{PORT}"), ("host", f"127.0.0.1:{PORT}")],
        [("host", f"127.0.0.1:{PORT}"), ("host", "evil.example")],
        [("host", f"127.0.0.1:{PORT}"), *[("origin", f"http://127.0.0.1:{PORT}")] * 2],
    ],
)
def test_a_header_that_is_there_twice_never_passes(headers):
    with pytest.raises(Forbidden):
        check_scope(scope_of(TCP, *headers), OPEN)


async def ask(settings, scope):
    """Return what the application saw and what the client was sent."""
    seen, sent = [], []

    async def app(scope, receive, send):
        seen.append({key: scope[key] for key in scope if key != "crush_trio.request"})

    async def receive():
        raise AssertionError("the body is not read")

    async def send(event):
        sent.append(event)

    await Door(app, Meters(), settings)(scope, receive, send)
    return seen, sent


async def test_what_may_pass_reaches_the_application_untouched():
    scope = scope_of(UNIX, ("host", "api.crush.localhost"))
    assert await ask(OPEN, scope) == ([scope], [])


async def test_the_start_of_the_application_is_no_request():
    scope = {"type": "lifespan"}
    assert await ask(LOCKED, scope) == ([scope], [])


@pytest.mark.parametrize(
    ("settings", "headers", "status", "code"),
    [
        (OPEN, [("host", "evil.example")], 403, "host_forbidden"),
        (OPEN, [("host", f"localhost:{PORT}"), ("origin", "null")], 403, "origin_forbidden"),
        (LOCKED, [("host", f"localhost:{PORT}")], 401, "unauthorized"),
    ],
)
async def test_a_refused_request_is_answered_and_the_application_never_sees_it(
    settings, headers, status, code, caplog
):
    with caplog.at_level(logging.WARNING, "crush_trio.server.app"):
        seen, [start, body] = await ask(settings, scope_of(TCP, *headers))
    assert seen == []
    assert start["status"] == status
    assert orjson.loads(body["body"])["code"] == code
    assert not body["more_body"]
    assert [record.code for record in caplog.records] == [code]


async def test_a_preflight_gets_no_permission():
    scope = scope_of(
        TCP,
        ("host", f"localhost:{PORT}"),
        ("origin", "https://evil.example"),
        ("access-control-request-method", "POST"),
        method="OPTIONS",
    )
    seen, [start, _] = await ask(OPEN, scope)
    assert (seen, start["status"]) == ([], 403)
    assert [name for name, _ in start["headers"] if name.startswith(b"access-control")] == []


async def test_a_refused_websocket_is_closed_before_it_opens():
    scope = scope_of(TCP, ("host", "evil.example"), kind="websocket")
    seen, sent = await ask(OPEN, scope)
    assert (seen, [event["type"] for event in sent]) == ([], ["websocket.close"])
