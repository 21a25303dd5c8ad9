"""Whatever is sent, the server says what was wrong with it and goes on.

Requests are made up from the OpenAPI document: bodies that match it, bodies that nearly do, and
bodies that are nothing at all, with ids and queries that exist, existed, or never could. Everything
is in one process, in memory and on a virtual clock, and the same from run to run.
"""

import json

import orjson
import pytest
from attrs import define, field, frozen
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from crush_trio.server.app import create_app
from crush_trio.server.openapi import openapi_document
from crush_trio.server.routes import ROUTES
from crush_trio.server.routing import EVENTS, JSON, RECEIPT, Route
from tests.server.in_process import call, open_site
from tests.server.schemas import ANYTHING, TEXT, from_schema, problem

DOCUMENT = openapi_document("0")
HERE, SESSION, CLIENT = "<workspace>", "<session>", "<client>"
"""Words that stand for what there is when the request is sent."""

SERVED = [route for route in ROUTES if route.media in {EVENTS, JSON} and route.status < 300]
"""Every route but those that answer with text: the page for people, and the numbers for Prometheus."""

MAY_FAIL = {"not_built", "server_shutting_down"}
"""The server errors that a request can cause: it asked for what is not built, or for the shutdown."""


@frozen
class Request:
    """One request; *method* is the route's own unless it is meant to be wrong."""

    route: Route = field(repr=lambda route: f"{route.method} {route.path}")
    method: str
    values: dict[str, str]
    query: dict[str, str]
    body: bytes | None


# ── Making requests up ──────────────────────────────────────────────────────────────────────────

ODD = st.sampled_from(
    ["", "..", "a/b", "%2F", "x" * 300, "\x00", "a\nb", "é$$☃", "\u2028", "\ufffd", "0", "null"]
)


def mostly(usual, unusual, one_in=8):
    """Return what is *usual*, and once in a while what is not: mistakes hide what is behind them."""
    last = one_in - 1
    return st.integers(0, last).flatmap(lambda n: unusual if n == last else usual)


NAMED = {
    "wid": mostly(st.just(HERE), st.just("gone") | ODD, one_in=16),
    "sid": mostly(st.just(SESSION), st.just("never") | ODD | TEXT),
    "session_id": mostly(st.just(SESSION), ODD | TEXT),
    "rid": mostly(st.sampled_from([f"id-{n}" for n in range(3, 8)]), ODD),
    "client_id": mostly(
        st.just(CLIENT), st.sampled_from(["{00000000-0000-4000-8000-00000000000A}", "no"]) | ODD
    ),
    "form": st.sampled_from(["crush", "native", "neither"]),
    "after": st.sampled_from(["boot.0", "boot.1", "other.7", "boot.-1", "7", "."]) | TEXT,
    "receipt": st.sampled_from(["0", "1", "2", ""]),
    "limit": st.sampled_from(["0", "1", "5", "-1", "1001", "x", ""]),
}
RAW = st.sampled_from(
    [
        b"",
        b" ",
        b"{",
        b"null",
        b"[]",
        b'"text"',
        b"\xff\xfe",
        b'{"title":"\\ud800"}',
        b'{"title":"\xc3("}',
        b"[" * 200 + b"]" * 200,
        b'{"value":' + b"[" * 110 + b"]" * 110 + b"}",
        b"9" * 400,
        b'{"session_id":1e999}',
        b'{"scope":1.0}',
        b'{"created_at":99999999999999999999}',
        b'{"id":"a","id":"b"}',
        b"NaN",
    ]
)


def written(value):
    return json.dumps(value).encode()


def at_home(body):
    """Let what a body names exist: its session, its client, its directory."""
    known = {
        "session_id": SESSION,
        "client_id": CLIENT,
        "path": "/srv",
        "id": SESSION,
        "command": "shutdown",
        "action": "allow",
    }
    return {key: known.get(key, value) for key, value in body.items()}


def bodies(route):
    schema = DOCUMENT["paths"][route.path][route.method.lower()].get("requestBody")
    if schema is None:
        return st.none() | RAW
    good = from_schema(schema["content"]["application/json"]["schema"], DOCUMENT)
    damaged = st.tuples(good, st.dictionaries(st.sampled_from(keys_of(schema)), ANYTHING))
    wrong = st.one_of(
        good.map(written),
        damaged.map(lambda pair: written({**at_home(pair[0]), **pair[1]})),
        ANYTHING.map(written),
        RAW,
        st.none(),
    )
    return mostly(good.map(at_home).map(written), wrong, one_in=3)


def keys_of(body):
    ref = body["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
    return [*DOCUMENT["components"]["schemas"][ref]["properties"]]


def requests_for(route):
    queries = {query.name: NAMED.get(query.name, TEXT | ODD) for query in route.query}
    values = {name: NAMED.get(name, TEXT | ODD) for name in route.parameters}
    own = st.just(route.method)
    other = st.sampled_from(["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
    return st.builds(
        Request,
        route=st.just(route),
        method=mostly(own, other, one_in=20),
        values=st.fixed_dictionaries(values),
        query=st.fixed_dictionaries({}, optional=queries),
        body=bodies(route),
    )


REQUESTS = st.sampled_from(SERVED).flatmap(requests_for)


# ── Sending them ────────────────────────────────────────────────────────────────────────────────


@define
class Target:
    """An application with a workspace, an agent and a session in it, as long as it lets us."""

    app: object
    clients: int = 0
    known: dict[str, str] = field(factory=dict)

    async def prepare(self):
        """Make again whatever the requests so far have done away with; the server may be ending."""
        here = f"/v1/workspaces/{self.known.get(HERE, 'none')}"
        session = f"{here}/sessions/{self.known.get(SESSION, 'none')}"
        if (await call(self.app, "GET", session)).status == 200:
            return
        self.clients += 1
        client = f"00000000-0000-4000-8000-{self.clients:012d}"
        made = await call(self.app, "POST", "/v1/workspaces", {"path": "/srv", "client_id": client})
        if made.status == 503:
            return
        assert made.status == 200, made
        here = f"/v1/workspaces/{made.json()['id']}"
        await call(self.app, "POST", f"{here}/agent/init")
        session = await call(self.app, "POST", f"{here}/sessions", {"title": "fuzz"})
        self.known = {HERE: made.json()["id"], SESSION: session.json()["id"], CLIENT: client}

    def real(self, text):
        return self.known.get(text, text)

    async def send(self, request):
        values = {name: self.real(value) for name, value in request.values.items()}
        query = {name: self.real(value) for name, value in request.query.items()}
        body = request.body
        for word, value in self.known.items():
            body = body and body.replace(word.encode(), value.encode())
        return await call(
            self.app, request.method, request.route.path.format(**values), body, query
        )


def check(request, answer):
    """Check that an answer is one that the document announces."""
    route = request.route
    if request.method != route.method:
        assert answer.status < 500, answer
    elif leads_elsewhere(request):
        assert answer.status in {200, 202, 308, 400, 404, 405, 409}, answer
    elif answer.status >= 300:
        assert answer.media == JSON, answer
        told = answer.json()
        assert problem(told, {"$ref": "#/components/schemas/Error"}, DOCUMENT) is None
        assert told["message"]
        assert route.error_status(told["code"]) == answer.status
        assert told["code"] in route.codes, (told, route.codes)
        assert answer.status < 500 or told["code"] in MAY_FAIL, told
    else:
        assert answer.status in route.answers
        check_shape(route, answer)


def leads_elsewhere(request):
    """Whether a value makes the path that of another route, or of none: it is no single segment."""
    return any(not value or "/" in value or "\\" in value for value in request.values.values())


def check_shape(route, answer):
    if route.answers[answer.status] is None or route.media == EVENTS:
        assert route.media == EVENTS or not answer.body
        return
    if RECEIPT in route.query and not answer.body:  # none was asked for
        return
    [media] = DOCUMENT["paths"][route.path][route.method.lower()]["responses"][str(answer.status)][
        "content"
    ].values()
    assert problem(orjson.loads(answer.body), media["schema"], DOCUMENT) is None


@pytest.mark.explored
@settings(
    max_examples=30,
    phases=[Phase.generate],
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(st.lists(REQUESTS, min_size=10, max_size=25))
async def test_no_request_gets_an_answer_that_is_not_announced(requests):
    async with open_site() as site:
        target = Target(create_app(site))
        for request in requests:
            await target.prepare()
            check(request, await target.send(request))
        assert (await call(target.app, "GET", "/v1/health")).status == 200
