"""The route table is the truth about what is served, and the page about it is up to date."""

import re
from collections import Counter
from pathlib import Path

import pytest

from crush_trio.server.app import create_app
from crush_trio.server.openapi import coverage_markdown
from crush_trio.server.routes import FILES, MATCHER, ROUTES
from crush_trio.server.routing import EVENTS, REAL
from crush_trio.server.routing.quart_views import quart_app
from crush_trio.server.status import STATUS
from crush_trio.wire.codec import encode
from tests.server.in_process import CLIENT, call, open_site

PAGE = Path(__file__).parents[2] / "docs" / "wire-coverage.md"
WIRE = [route for route in ROUTES if not route.extension]
AUTOMATIC = {"HEAD", "OPTIONS"}


def test_every_route_of_the_wire_is_listed_once():
    assert (len(WIRE), len(ROUTES)) == (70, 104)
    assert set(Counter((route.method, route.path) for route in ROUTES).values()) == {1}


def test_quart_has_every_row_and_nothing_else():
    served = Counter(
        (method, re.sub(r"<(\w+)>", r"{\1}", rule.rule))
        for rule in quart_app(1).url_map.iter_rules()
        for method in rule.methods - AUTOMATIC
    )
    assert served == Counter((route.method, route.path) for route in (*ROUTES, *FILES))


@pytest.mark.parametrize(
    "route", [*ROUTES, *FILES], ids=lambda route: f"{route.method} {route.path}"
)
def test_the_matcher_and_quart_find_the_same_row(route):
    values = {name: f"a {name}" for name in route.parameters}
    path = route.path.format(**values)
    assert MATCHER.find(route.method, path) == (route, values)
    rule, found = quart_app(1).url_map.bind("host").match(path, route.method, return_rule=True)
    assert (re.sub(r"<(\w+)>", r"{\1}", rule.rule), found) == (route.path, values)


def test_a_value_may_look_like_a_parameter():
    found = MATCHER.find("GET", "/v1/workspaces/{wid}/agent")
    assert found is not None
    assert found[1] == {"wid": "{wid}"}


@pytest.mark.parametrize(
    "path",
    [
        "/x",
        "/page",
        "/page/",
        "/w/1",
        "/v1/health/",
        "/v1//health",
        "/v1/workspaces/",
        "/V1/health",
    ],
)
def test_a_path_that_is_no_row_is_found_by_neither(path):
    assert MATCHER.find("GET", path) is None
    assert not quart_app(1).url_map.bind("host").test(path, "GET")


async def test_every_row_is_answered_and_other_paths_are_not():
    async with open_site() as site:
        app = create_app(site)
        for route in ROUTES:
            values = dict.fromkeys(route.parameters, "none")
            answer = await call(app, route.method, route.path.format(**values))
            assert answer.body != b"404 page not found\n", route
            assert answer.status != 405, route
        assert (await call(app, "GET", "/v1/none")).status == 404


def test_only_rows_that_answer_json_are_direct():
    for route in ROUTES:
        assert not route.direct or route.media in {"application/json", EVENTS}


def test_the_page_is_what_the_table_prints():
    again = "run: python -m crush_trio.server.openapi > docs/wire-coverage.md"
    assert PAGE.read_text("utf-8") == coverage_markdown(), again


def test_a_route_is_real_or_says_what_it_does_instead():
    for route in WIRE:
        assert route.state == REAL or re.match("(empty|fixed) until |reads |never ", route.state)


def test_every_code_of_the_table_has_a_status():
    assert {code for route in ROUTES for code in route.codes} <= set(STATUS)


EMPTY = {
    "permissions/grant": {"permission": {"id": "p"}, "action": "allow"},
    "config/provider-key": {"kind": "string", "api_key": "key"},
    "config/model": {"model_type": "large", "model": {}},
}
ABSENT = {
    "lsps/{name}/diagnostics": "lsp_not_found",
    "mcp/auth": "mcp_not_found",
    "skills/read": "skill_not_found",
    "config/refresh-oauth": "not_configured",
}
UNBUILT = {"config/import-copilot": "does not reach GitHub Copilot"}


async def test_a_route_that_does_nothing_yet_is_neither_missing_nor_broken():
    """Its clients get a value of the right shape; of what does not exist, the word that it does not."""
    async with open_site() as site:
        app = create_app(site)
        made = await call(app, "POST", "/v1/workspaces", {"path": "/w", "client_id": CLIENT})
        wid = made.json()["id"]
        await call(app, "POST", f"/v1/workspaces/{wid}/agent/init")
        for route in ROUTES:
            if route.state != REAL:
                check_silent(route, await ask(app, route, wid))


async def ask(app, route, wid):
    body = EMPTY.get(within(route), {}) if route.body else None
    path = route.path.format(wid=wid, sid="s", name="n")
    return await call(app, route.method, path, body, {query.name: "q" for query in route.query})


def check_silent(route, answer):
    if within(route) in ABSENT:
        assert (answer.status, answer.json()["code"]) == (404, ABSENT[within(route)])
    elif within(route) in UNBUILT:
        assert (answer.status, answer.json()["code"]) == (501, "not_built")
        assert UNBUILT[within(route)] in answer.json()["message"]
    else:
        assert answer.status == route.status, (route, answer)
        assert bool(answer.body) == (route.answer is not None), (route, answer)


def within(route):
    return route.path.removeprefix("/v1/workspaces/{wid}/")


async def test_a_route_that_is_marked_real_has_something_to_say():
    """The shape of a fresh workspace, through the routes that clients start with."""
    async with open_site() as site:
        app = create_app(site)
        assert (await call(app, "GET", "/v1/version")).body == encode(site.version)
        made = await call(app, "POST", "/v1/workspaces", {"path": "/w", "client_id": CLIENT})
        listing = await call(app, "GET", "/v1/workspaces")
        assert listing.json() == [made.json()]
