"""The OpenAPI document says what the codec does, and the page says what the document does."""

import json
import re
from functools import cache

import pytest
from hypothesis import HealthCheck, given, settings

from crush_trio.errors import WorkspaceNotFound
from crush_trio.server.app import create_app
from crush_trio.server.openapi import Schemas, docs_page, openapi_document
from crush_trio.server.routes import ROUTES
from crush_trio.server.routing import EVENTS
from crush_trio.server.status import error_body
from crush_trio.testing import client_id, open_test_server
from crush_trio.wire.codec import decode, encode
from crush_trio.wire.messages import BinaryPart, FinishPart, FinishReason
from crush_trio.wire.requests import AgentMessage
from crush_trio.wire.views import Session
from tests.server.in_process import call, open_site
from tests.server.schemas import from_schema, problem

DOCUMENT = openapi_document("0")
SCHEMAS = DOCUMENT["components"]["schemas"]


def operation(route):
    return DOCUMENT["paths"][route.path][route.method.lower()]


def references(value):
    if isinstance(value, dict):
        if "$ref" in value:
            yield value["$ref"]
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from references(item)


# ── The document as a whole ─────────────────────────────────────────────────────────────────────


def test_every_route_is_in_the_document_and_nothing_else_is():
    described = {(m.upper(), path) for path, item in DOCUMENT["paths"].items() for m in item}
    assert described == {(route.method, route.path) for route in ROUTES}


def test_every_reference_leads_somewhere_and_every_schema_is_referred_to():
    named = {ref.removeprefix("#/components/schemas/") for ref in references(DOCUMENT)}
    assert named == set(SCHEMAS)


def test_operations_have_names_of_their_own_that_begin_with_a_verb():
    names = [operation(route)["operationId"] for route in ROUTES]
    assert len(set(names)) == len(names)
    for name in names:
        assert re.fullmatch("[a-z]+(_[a-z]+)+", name)
        assert len(name) <= 28
    assert {"submit_prompt", "cancel_session", "answer_permission", "stream_events"} < {*names}


def test_a_status_has_a_body_always_or_never():
    for route in ROUTES:
        for status, shape in route.answers.items():
            assert ("content" in operation(route)["responses"][str(status)]) == (shape is not None)
    [submit] = [route for route in ROUTES if route.name == "submit_prompt"]
    assert set(submit.answers) == {200, 202}
    assert "content" not in operation(submit)["responses"]["202"]


def test_parameters_of_queries_have_types():
    described = {
        (route.name, each["name"]): each["schema"]
        for route in ROUTES
        for each in operation(route).get("parameters", ())
    }
    assert described["stream_events", "form"] == {
        "type": "string", "enum": ["crush", "native"], "default": "crush",
    }  # fmt: skip
    assert described["list_runs", "limit"] == {
        "type": "integer", "format": "int64", "minimum": 1, "maximum": 1000, "default": 100,
    }  # fmt: skip
    assert described["cancel_session", "queue"]["enum"] == ["cancel", "keep"]
    assert described["cancel_session", "receipt"] == {"type": "boolean"}
    assert described["stream_events", "client_id"]["format"] == "uuid"


def test_the_id_to_resume_after_is_described():
    streams = [route for route in ROUTES if route.media == EVENTS]
    assert len(streams) == 2
    for stream in streams:
        [header] = [each for each in operation(stream)["parameters"] if each["in"] == "header"]
        assert (header["name"], header["required"]) == ("Last-Event-ID", False)
        assert "`<boot>-<number>`" in header["description"]


def test_every_parameter_of_a_path_is_described():
    for route in ROUTES:
        described = [p for p in operation(route).get("parameters", ()) if p["in"] == "path"]
        assert [p["name"] for p in described] == list(route.parameters)
        assert all(p["required"] for p in described)


def test_every_code_of_a_route_stands_under_its_status():
    for route in ROUTES:
        for code in route.codes:
            assert (
                f"`{code}`"
                in operation(route)["responses"][str(route.error_status(code))]["description"]
            )


# ── Shapes ──────────────────────────────────────────────────────────────────────────────────────


def test_a_key_of_an_answer_is_required_if_it_is_always_written():
    assert set(SCHEMAS["Session"]["required"]) == set(SCHEMAS["Session"]["properties"]) - {"todos"}


def test_a_key_of_a_body_is_required_if_it_has_no_default():
    assert "required" not in SCHEMAS["SessionCreate"]
    assert "todos" not in SCHEMAS["SessionUpdate"]["required"]
    assert SCHEMAS["AgentMessage"]["required"] == ["session_id", "prompt"]


def test_a_body_has_the_types_that_its_route_accepts():
    grant = SCHEMAS["GrantRequest"]["properties"]
    assert grant["permission"] == {"$ref": "#/components/schemas/PermissionReference"}
    assert SCHEMAS["PermissionReference"]["required"] == ["id"]
    assert grant["action"] == {"$ref": "#/components/schemas/PermissionAction"}
    command = SCHEMAS["ControlRequest"]["properties"]["command"]
    assert command == {"$ref": "#/components/schemas/ControlCommand"}


def test_a_key_that_is_left_out_instead_of_null_is_never_null():
    run = SCHEMAS["RunView"]
    assert run["properties"]["run_id"] == {"type": "string"}
    assert "run_id" not in run["required"]


def test_keys_and_values_are_spelt_as_the_wire_spells_them():
    binary = Schemas()
    binary.of(BinaryPart)
    data = binary.components["BinaryPartData"]["properties"]
    assert list(data) == ["Path", "MIMEType", "Data"]
    assert data["Data"] == {"type": "string", "contentEncoding": "base64"}
    finish = Schemas()
    finish.of(FinishPart)
    written = encode(list(FinishReason))
    assert finish.components["FinishReason"]["enum"] == json.loads(written)
    assert SCHEMAS["LspClientInfo"]["properties"]["connected_at"]["format"] == "date-time"
    assert SCHEMAS["LspState"]["enum"] == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("union", ["Part", "Envelope", "NativeEvent"])
def test_the_members_of_a_union_have_names_and_say_which_one_they_are(union):
    union = SCHEMAS[union]
    key, mapping = union["discriminator"]["propertyName"], union["discriminator"]["mapping"]
    assert [ref["$ref"] for ref in union["oneOf"]] == list(mapping.values())
    for value, ref in mapping.items():
        member = SCHEMAS[ref.rpartition("/")[2]]
        assert member["properties"][key] == {"type": "string", "const": value, "enum": [value]}
        assert key in member["required"]
    assert "oneOf" not in {key for name in mapping.values() for key in SCHEMAS[name[21:]]}


def test_no_object_is_without_a_name():
    def inline(schema):
        values = schema.values() if isinstance(schema, dict) else schema
        found = isinstance(schema, dict) and "properties" in schema
        return found or any(inline(each) for each in values if isinstance(each, dict | list))

    for name, schema in SCHEMAS.items():
        members = {**schema, "properties": None, "each": [*schema.get("properties", {}).values()]}
        del members["properties"]
        assert not inline(members), name


def test_a_part_fits_its_own_kind_only():
    part = SCHEMAS["Part"]
    text = {"type": "text", "data": {"text": "hello"}}
    assert problem(text, part, DOCUMENT) is None
    assert problem({**text, "type": "finish"}, part, DOCUMENT) is not None


def test_the_body_of_an_error_matches_its_schema():
    assert problem(json.loads(error_body(WorkspaceNotFound())), SCHEMAS["Error"], DOCUMENT) is None


def answer_schema(route):
    [media] = operation(route)["responses"][str(route.status)]["content"].values()
    return media.get("x-event-schema", media["schema"])


def test_a_remark_is_described_beside_an_answer_without_a_body():
    [health] = [route for route in ROUTES if route.remark is not None]
    told = operation(health)["responses"]["200"]
    assert "content" not in told
    assert told["x-remark-schema"] == {"$ref": "#/components/schemas/Health"}


@cache
def made_up(route, what):
    if what == "body":
        [media] = operation(route)["requestBody"]["content"].values()
        return from_schema(media["schema"], DOCUMENT)
    return from_schema(answer_schema(route), DOCUMENT)


def shapes(what):
    """Return a route for each different shape, so that none is tried twice."""
    found = {str(getattr(route, what)): route for route in ROUTES if getattr(route, what)}
    return [pytest.param(route, id=f"{route.method} {route.path}") for route in found.values()]


CHECKS = settings(
    max_examples=15,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.mark.parametrize("route", shapes("body"))
def test_a_body_that_matches_its_schema_can_be_read(route):
    @CHECKS
    @given(made_up(route, "body"))
    def check(body):
        decode(json.dumps(body), route.body)

    check()


@pytest.mark.parametrize("route", shapes("answer"))
def test_whatever_is_answered_matches_the_schema(route):
    @CHECKS
    @given(made_up(route, "answer"))
    def check(value):
        written = json.loads(encode(decode(json.dumps(value), route.answer)))
        assert problem(written, answer_schema(route), DOCUMENT) is None

    check()


def test_the_checker_finds_what_is_wrong():
    good = json.loads(encode(Session(id="s")))
    schema = SCHEMAS["Session"]
    assert problem(good, schema, DOCUMENT) is None
    assert "without" in problem({"id": "s"}, schema, DOCUMENT)
    assert "no integer" in problem({**good, "created_at": 1.5}, schema, DOCUMENT)
    assert "not described" in problem({**good, "extra": 1}, schema, DOCUMENT)


# ── What is served ──────────────────────────────────────────────────────────────────────────────


async def test_the_document_is_served():
    async with open_site() as site:
        answer = await call(create_app(site), "GET", "/v1/openapi.json")
        assert (answer.status, answer.media) == (200, "application/json")
        assert answer.json() == openapi_document(site.version.version)
        assert answer.json()["openapi"] == "3.1.0"


async def test_the_page_is_served_and_needs_nothing_from_elsewhere():
    async with open_site() as site:
        answer = await call(create_app(site), "GET", "/v1/docs/")
        assert (answer.status, answer.media) == (200, "text/html; charset=utf-8")
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        page = answer.body.decode()
        assert not re.search(r"<script|<link|<img|\bsrc=|https?:|@import|url\(", page)


async def test_the_page_is_found_without_its_last_slash_too():
    async with open_site() as site:
        answer = await call(create_app(site), "GET", "/v1/docs")
        assert (answer.status, answer.headers["location"]) == (308, "/v1/docs/")


def test_the_page_shows_every_route_and_every_shape_and_its_links_lead_somewhere():
    page = docs_page(DOCUMENT)
    for route in ROUTES:
        assert f"</span> {route.path}</code>" in page
    targets = set(re.findall(r"<details id=(\w+)>", page))
    assert set(SCHEMAS) < targets
    assert set(re.findall(r"href=#(\w+)", page)) <= targets


def test_the_page_takes_no_text_for_markup():
    hostile = {**DOCUMENT, "info": {**DOCUMENT["info"], "title": "<b>&"}}
    assert "<title>&lt;b&gt;&amp;</title>" in docs_page(hostile)


def test_the_stream_is_described_by_its_events():
    for route in ROUTES:
        if route.media == EVENTS:
            assert answer_schema(route) == {"$ref": "#/components/schemas/Envelope"}
            media = operation(route)["responses"]["200"]["content"][EVENTS]
            assert media["x-native-event-schema"] == {"$ref": "#/components/schemas/NativeEvent"}


def test_a_body_that_may_be_left_out_is_marked_so():
    optional = [
        route.path
        for route in ROUTES
        if route.body is not None and not operation(route)["requestBody"]["required"]
    ]
    assert optional == [
        "/v1/workspaces/{wid}/sessions",
        "/v1/workspaces/{wid}/agent/init",
        "/v1/workspaces/{wid}/questions/cancel",
        "/v1/workspaces/{wid}/agent/sessions/{sid}/queue/{rid}",
        "/v1/login",
    ]
    assert decode(b"{}", AgentMessage).prompt == ""


async def test_a_session_needs_a_title_at_most_and_a_whole_one_is_understood():
    async with open_test_server() as server:
        place = await server.create(client_id(1))
        whole = json.loads(encode(Session(id="mine", title="whole", cost=5)))
        for body, title in [({"title": "short"}, "short"), (b"", ""), (whole, "whole")]:
            created = await place.request("POST", "/sessions", body)
            assert (created.status, created.json()["title"]) == (200, title)
            assert (created.json()["id"] != "mine", created.json()["cost"]) == (True, 0)
