"""What a model may do with MCP servers: the tools have names of their own, ask first, and answer within bounds."""

import base64

import orjson
import pytest
from attrs import define, field
from hypothesis import given
from hypothesis import strategies as st

from crush_trio.integrations.mcp.session import McpAnswer, McpFailure, OfferedResource, OfferedTool
from crush_trio.integrations.mcp.tools import (
    MAX_DESCRIPTION,
    MAX_MEDIA,
    MAX_MEDIA_BYTES,
    MAX_NAME_LENGTH,
    McpTool,
    tool_names,
)
from crush_trio.testing.model.provider import ScriptedProvider
from crush_trio.testing.model.script import CallTool, Say
from crush_trio.testing.server.agent import open_test_agent
from crush_trio.tools.base import Media, ToolCall, ToolError
from crush_trio.tools.shell.jobs import COLUMNS
from crush_trio.wire.codec import encode
from crush_trio.wire.integrations import McpResource
from crush_trio.wire.messages import Role
from tests.integrations.mcp_fakes import PLACE, Desks, Session, command, open_configured

# ── Schemas ─────────────────────────────────────────────────────────────────────────────────────

TEXT = {"type": "string"}
SCHEMAS = [
    ({}, {}, None),
    (
        {"$ref": "#/definitions/A", "definitions": {"A": {"properties": {"x": TEXT}}}},
        {"x": TEXT},
        None,
    ),
    ({"oneOf": [{"properties": {"a": TEXT}, "required": ["a"]}, 3]}, {"a": TEXT}, None),
    (
        {"allOf": [{"properties": {"a": TEXT}, "required": ["a"]}], "required": ["b"], "enum": [1]},
        {"a": TEXT},
        ["a", "b"],
    ),
    ({"required": True, "properties": None, "anyOf": None, "not": {}}, {}, None),
    ({"$ref": "#/nowhere", "properties": {"a": {"oneOf": [TEXT]}}}, {"a": {"oneOf": [TEXT]}}, None),
]


@pytest.mark.parametrize(("schema", "properties", "required"), SCHEMAS)
def test_the_root_of_a_schema_is_a_plain_object(schema, properties, required):
    """Providers refuse the whole request otherwise."""
    tool = McpTool("t", None, OfferedTool(name="t", schema=schema), PLACE)
    shown = tool.parameters
    assert (shown["type"], shown["properties"]) == ("object", properties)
    assert shown.get("required") == required
    assert not shown.keys() & {"oneOf", "anyOf", "allOf", "enum", "not", "$ref"}
    if "oneOf" in schema:
        assert '"required":["a"]' in shown["description"]


# ── Names ───────────────────────────────────────────────────────────────────────────────────────


def names(tools, servers=None):
    known = {server for server, _ in tools} if servers is None else servers
    return {(server, tool): name for name, server, tool in tool_names(tools, known)}


def test_a_tool_is_named_after_its_server():
    assert names([("gh", "list_issues")]) == {("gh", "list_issues"): "mcp_gh_list_issues"}


def test_a_name_that_could_be_of_two_servers_is_of_the_one_with_the_longer_name():
    """Also if that one is not connected: what a person has allowed must not change hands."""
    found = names([("a", "b_c"), ("a_b", "c")])
    assert found["a_b", "c"] == "mcp_a_b_c"
    assert found["a", "b_c"].startswith("mcp_a_b_c_")
    alone = names([("a", "b_c")], {"a", "a_b"})
    assert alone["a", "b_c"] == found["a", "b_c"]


@pytest.mark.parametrize(
    ("server", "tool"), [("my.server", "a b"), ("s" * 80, "tool"), ("s", "t" * 80), ("ü", "é/x")]
)
def test_what_providers_do_not_take_is_made_into_what_they_do(server, tool):
    [name] = names([(server, tool)]).values()
    assert len(name) <= MAX_NAME_LENGTH
    assert name.isascii()
    assert name.replace("_", "").replace("-", "").isalnum()


def test_a_server_cannot_take_the_name_of_another_ones_tool():
    victim = names([("x.y", "t")])["x.y", "t"]
    hostile = ("x", victim.removeprefix("mcp_x_"))
    found = names([("x.y", "t"), hostile])
    assert len(set(found.values())) == 2


WORDS = st.text(st.sampled_from("ab_.-"), min_size=1, max_size=6)


@given(st.sets(st.tuples(WORDS, WORDS), max_size=12))
def test_no_two_tools_have_one_name(tools):
    found = names(tools)
    assert found.keys() == tools
    assert len(set(found.values())) == len(tools)


# ── Calls ───────────────────────────────────────────────────────────────────────────────────────


@define(eq=False)
class Caller:
    """Calls the tools of a workspace like a model does, and lets everything pass."""

    place: object
    wanted: list = field(factory=list)

    async def permit(self, wanted):
        self.wanted.append(wanted)

    async def __call__(self, name, arguments="{}", *, images=True):
        tools = {tool.name: tool for tool in self.place.servers.tools()}
        call = ToolCall(
            id="c",
            name=name,
            input=arguments,
            session_id="s",
            run_id="r",
            message_id="m",
            permit=self.permit,
            images=images,
        )
        return await tools[name].run(call)


@define(eq=False)
class Answering(Session):
    """A session whose one tool answers as it is told."""

    async def call(self, tool, arguments, _context=None):
        answer = self.desk.answer
        if isinstance(answer, Exception):
            raise answer
        return answer


def answering(monkeypatch, answer):
    """Have every server answer every call with *answer*."""
    desks = Desks()
    monkeypatch.setattr("tests.integrations.mcp_fakes.Session", Answering)
    monkeypatch.setattr("tests.integrations.mcp_fakes.Desk.answer", answer, raising=False)
    return desks


@pytest.mark.item("H mcp_*")
async def test_a_call_is_put_before_a_person_with_its_arguments_as_an_object():
    async with open_configured(a=command()) as place:
        await place.servers.settled()
        caller = Caller(place)
        result = await caller("mcp_a_add", '{"x": [1]}')
        assert (result.content, result.is_error) == ("add did it", False)
        [wanted] = caller.wanted
        assert (wanted.action, wanted.params, wanted.path) == ("execute", {"x": [1]}, PLACE)
        assert wanted.description == "Run add of the MCP server a"
        assert place.desks["a"].log[-1] == ("call", "add", {"x": [1]})


async def test_a_tool_is_described_in_its_servers_words_within_bounds():
    desks = Desks()
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
    desks["a"].tools = [
        OfferedTool(name="add", description="d" * 9000, schema=schema),
        OfferedTool(name="bare"),
    ]
    async with open_configured(desks, a=command()) as place:
        await place.servers.settled()
        add, bare, *_ = place.servers.tools()
        assert (len(add.description), add.parameters, add.parallel) == (
            MAX_DESCRIPTION,
            schema,
            False,
        )
        assert bare.description == "bare of the MCP server a"
        assert bare.parameters == {"type": "object", "properties": {}}


@pytest.mark.parametrize("arguments", ["{", "[1]", '"x"'])
async def test_arguments_that_are_no_object_are_refused_before_anybody_is_asked(arguments):
    async with open_configured(a=command()) as place:
        await place.servers.settled()
        caller = Caller(place)
        with pytest.raises(ToolError):
            await caller("mcp_a_add", arguments)
        assert caller.wanted == []


@pytest.mark.item("H mcp_*")
@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (McpAnswer(text="no such table", is_error=True), "no such table"),
        (McpAnswer(is_error=True), "the MCP server a says that this went wrong"),
        (McpFailure("the connection is closed"), "the MCP server a: the connection is closed"),
    ],
)
async def test_what_goes_wrong_is_an_error_that_the_model_sees(monkeypatch, answer, told):
    async with open_configured(answering(monkeypatch, answer), a=command()) as place:
        await place.servers.settled()
        with pytest.raises(ToolError) as caught:
            await Caller(place)("mcp_a_add")
        assert caught.value.result.content == told


PNG = b"\x89PNG\r\n\x1a\n"
DOT = Media(data=PNG, mime_type="image/png")


@pytest.mark.item("H mcp_*")
@pytest.mark.parametrize(
    ("answer", "images", "content", "media"),
    [
        (McpAnswer(text="a dot", media=(DOT,)), True, "a dot", DOT),
        (
            McpAnswer(text="a dot", media=(DOT,)),
            False,
            "a dot\n(It also returned image/png, 8 bytes, which this model cannot take.)",
            None,
        ),
        (
            McpAnswer(media=(Media(data=b"x", mime_type="video/mp4"),)),
            True,
            "(It also returned video/mp4, 1 bytes, which cannot be shown.)",
            None,
        ),
        (
            McpAnswer(media=(Media(data=b"x" * (MAX_MEDIA_BYTES + 1), mime_type="image/png"),)),
            True,
            f"(It also returned image/png, {MAX_MEDIA_BYTES + 1} bytes: more than can be shown.)",
            None,
        ),
        (McpAnswer(media=(Media(data=PNG, mime_type="image/jpeg"),)), True, "", DOT),
        (
            McpAnswer(media=(Media(data=b"<svg/>", mime_type="image/svg+xml"),)),
            True,
            "(It also returned image/svg+xml, 6 bytes, which is not a PNG, JPEG, GIF or WebP picture.)",
            None,
        ),
        (McpAnswer(), True, "(no output)", None),
    ],
)
async def test_a_picture_is_shown_to_a_model_that_can_look(
    monkeypatch, answer, images, content, media
):
    async with open_configured(answering(monkeypatch, answer), a=command()) as place:
        await place.servers.settled()
        result = await Caller(place)("mcp_a_add", images=images)
        assert (result.content, result.media) == (content, media)


async def test_several_pictures_are_shown_and_what_is_too_many_is_told(monkeypatch):
    answer = McpAnswer(text="dots", media=(DOT,) * (MAX_MEDIA + 2))
    async with open_configured(answering(monkeypatch, answer), a=command()) as place:
        await place.servers.settled()
        result = await Caller(place)("mcp_a_add")
        assert (result.media, result.more_media) == (DOT, (DOT,) * (MAX_MEDIA - 1))
        assert result.content == f"dots\n(It also returned more than {MAX_MEDIA} images, left out.)"


async def test_several_pictures_reach_the_models_next_request_and_the_wire(monkeypatch):
    answer = McpAnswer(text="dots", media=(DOT, DOT, DOT))
    async with open_configured(answering(monkeypatch, answer), a=command()) as place:
        await place.servers.settled()
        model = ScriptedProvider([[CallTool("mcp_a_add")], [Say("three dots")]])
        async with open_test_agent(model, place.servers.tools()) as bench:
            bench.permissions.skip = True
            assert (await bench.accept("look", run_id="r").wait()).text == "three dots"
            stored = await bench.messages()
    shown = [part for part in model.requests[1].messages[-1].parts if hasattr(part, "mime_type")]
    assert [(each.mime_type, each.data) for each in shown] == [("image/png", PNG)] * 3
    [sent] = [each for each in stored if each.role is Role.TOOL]
    part = orjson.loads(encode(sent))["parts"][0]
    picture = {"data": base64.b64encode(PNG).decode(), "mime_type": "image/png"}
    assert part["data"]["more_media"] == [picture] * 2
    assert picture.items() <= part["data"].items()


async def test_a_long_answer_is_cut_in_the_middle(monkeypatch):
    answer = McpAnswer(text="\n".join(f"line {number}" for number in range(20_000)))
    async with open_configured(answering(monkeypatch, answer), a=command()) as place:
        await place.servers.settled()
        content = (await Caller(place)("mcp_a_add")).content
        assert len(content) < COLUMNS + 300
        assert content.startswith("line 0\n")
        assert "lines truncated" in content
        assert "line 19999\n(The answer has 208889 characters, too many to show" in content


# ── Resources ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.item("H list_mcp_resources")
async def test_resources_are_listed_one_per_line():
    desks = Desks()
    desks["a"].resources = [
        OfferedResource(uri="u://1", name="one", description="the\nfirst", mime_type="text/plain"),
        OfferedResource(uri="u://2"),
    ]
    async with open_configured(desks, a=command(), b=command()) as place:
        caller = Caller(place)
        result = await caller("list_mcp_resources", '{"mcp_name": "a"}')
        assert result.content == "u://1: one, the first, text/plain\nu://2:"
        [wanted] = caller.wanted
        assert (wanted.action, wanted.params) == ("list", {"mcp_name": "a"})
        empty = await caller("list_mcp_resources", '{"mcp_name": "b"}')
        assert empty.content == "(It has none.)"


@pytest.mark.item("H read_mcp_resource")
async def test_a_resource_is_read():
    async with open_configured(a=command()) as place:
        caller = Caller(place)
        result = await caller("read_mcp_resource", '{"mcp_name": "a", "uri": "u://1"}')
        assert result.content == "hello"
        [wanted] = caller.wanted
        assert (wanted.action, wanted.params) == ("read", {"mcp_name": "a", "uri": "u://1"})
        with pytest.raises(ToolError, match="uri is required"):
            await caller("read_mcp_resource", '{"mcp_name": "a"}')


async def test_the_first_data_of_a_resource_is_shown_beside_its_texts(monkeypatch):
    parts = (
        McpResource(uri="u", text="one"),
        McpResource(uri="u", blob=PNG, mime_type="image/png"),
        McpResource(uri="u", text="two"),
    )

    async def read(_session, _uri):
        return parts

    monkeypatch.setattr(Session, "read", read)
    async with open_configured(a=command()) as place:
        result = await Caller(place)("read_mcp_resource", '{"mcp_name": "a", "uri": "u"}')
        assert (result.content, result.media) == ("one\ntwo", DOT)


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("list_mcp_resources", '{"mcp_name": "nobody"}'),
        ("read_mcp_resource", '{"mcp_name": "nobody", "uri": "u"}'),
    ],
)
async def test_a_server_that_is_not_there_has_no_resources(tool, arguments):
    async with open_configured(a=command()) as place:
        with pytest.raises(ToolError, match="nobody: no server of this name is configured"):
            await Caller(place)(tool, arguments)
