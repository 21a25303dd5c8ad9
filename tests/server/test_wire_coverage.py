"""The catalogue is the truth about what is served, and the page about it is up to date."""

import re
from collections import Counter
from pathlib import Path

from crush_trio.server.app import create_app, routed
from crush_trio.server.catalogue import ROUTES
from crush_trio.server.extensions import EXTENSIONS
from crush_trio.server.openapi import coverage_markdown
from crush_trio.server.routing import REAL
from crush_trio.server.status import STATUS
from crush_trio.wire.codec import encode
from tests.server.in_process import CLIENT, call, open_site

PAGE = Path(__file__).parents[2] / "docs" / "wire-coverage.md"
AUTOMATIC = {"HEAD", "OPTIONS"}


def served():
    """Return every method and path that the application answers."""
    return Counter(
        (method, re.sub(r"<(\w+)>", r"{\1}", rule.rule))
        for rule in routed().url_map.iter_rules()
        for method in rule.methods - AUTOMATIC
    )


def listed(routes):
    return Counter((route.method, route.path) for route in routes)


def test_every_route_of_the_wire_is_served_and_listed_once():
    assert len(ROUTES) == 70
    assert set(listed(ROUTES).values()) == {1}
    assert not listed(ROUTES) - served()


def test_whatever_else_is_served_is_a_listed_extension():
    assert served() - listed(ROUTES) == listed(EXTENSIONS)


def test_the_page_is_what_the_catalogue_prints():
    again = "run: python -m crush_trio.server.openapi > docs/wire-coverage.md"
    assert PAGE.read_text("utf-8") == coverage_markdown(), again


def test_a_route_is_real_or_says_what_it_does_instead():
    for route in ROUTES:
        assert route.state == REAL or re.match("(empty|fixed) until |reads |never ", route.state)


def test_every_code_of_the_catalogue_has_a_status():
    assert {code for route in ROUTES for code in route.codes} <= set(STATUS)


EMPTY = {
    "permissions/grant": {"permission": {"id": "p"}, "action": "allow"},
    "config/provider-key": {"kind": "string", "api_key": "key"},
    "config/model": {"model_type": "large", "model": {}},
}
ABSENT = {
    "lsps/{name}/diagnostics": "lsp_not_found",
    "skills/read": "skill_not_found",
    "config/refresh-oauth": "not_configured",
}


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
