"""What a program brings along for its workspaces reaches their clients, and lives as long as they need it."""

from collections.abc import Mapping
from contextlib import asynccontextmanager

import orjson
import pytest
import trio
from attrs import define, field, frozen
from trio.lowlevel import checkpoint

from crush_trio import __version__
from crush_trio.errors import CrushError
from crush_trio.events.facts import Fact
from crush_trio.integrations.base import (
    Integrations,
    NoLanguageServers,
    NoMcpServers,
    NoSkills,
)
from crush_trio.testing.explore.checkpoints import Gate
from crush_trio.testing.server.server import WrittenTurns, client_id
from crush_trio.testing.server.turns import Do
from crush_trio.wire.answers import Diagnostics
from crush_trio.wire.codec import decode
from crush_trio.wire.config import WorkspaceView
from crush_trio.wire.events import Envelope
from crush_trio.wire.integrations import (
    LspClientInfo,
    McpClientInfo,
    McpPrompt,
    McpResource,
    PendingAuth,
    SkillContent,
    SkillInfo,
    SkillSummary,
)
from tests.server.brought import open_server_with
from tests.server.scenarios import entity
from tests.wire.test_codec_examples import BODIES, EVENTS

A, B = client_id(1), client_id(2)
SAID = {example.section: example.text for example in BODIES}


# ── The examples of the wire contract ───────────────────────────────────────────────────────────


@frozen
class ToldLanguageServers(NoLanguageServers):
    """The language servers of the examples."""

    def states(self):
        return decode(SAID["6.6 lsps"], Mapping[str, LspClientInfo])

    def diagnostics(self, name):
        assert name in self.states()
        return decode(SAID["6.6 diagnostics"], Diagnostics)


@frozen
class ToldMcpServers(NoMcpServers):
    """The MCP servers of the examples."""

    def states(self):
        return decode(SAID["6.6 mcp states"], Mapping[str, McpClientInfo])

    def prompts(self):
        return decode(SAID["6.6 mcp prompts"], tuple[McpPrompt, ...])


@frozen
class ToldSkills(NoSkills):
    """The skills of the examples."""

    def states(self):
        return decode(SAID["6.1 workspace"], WorkspaceView).skills

    def listed(self):
        return decode(SAID["6.6 skills"], tuple[SkillInfo, ...])


@asynccontextmanager
async def open_told(_surroundings):
    await checkpoint()
    yield Integrations(lsp=ToldLanguageServers(), mcp=ToldMcpServers(), skills=ToldSkills())


OUTSIDE = {
    "6.6 lsps": "/lsps",
    "6.6 diagnostics": "/lsps/gopls/diagnostics",
    "6.6 mcp states": "/mcp/states",
    "6.6 mcp prompts": "/mcp/prompts",
    "6.6 skills": "/skills",
}


@pytest.mark.parametrize("section", OUTSIDE)
async def test_what_a_workspace_has_from_outside_is_served_as_it_is_written(section):
    async with open_server_with(open_integrations=open_told) as server:
        place = await server.create(A)
        answer = await place.request("GET", OUTSIDE[section])
        assert (answer.status, answer.body.decode()) == (200, SAID[section])


async def test_a_workspace_is_served_with_its_skills_as_it_is_written():
    """Its version is ours. What its creator has in its environment is told to nobody."""
    wanted = orjson.loads(SAID["6.1 workspace"])
    async with open_server_with(open_integrations=open_told) as server:
        place = await server.create(A, wanted["path"])
        known = {"id": place.id, "version": __version__, "config": place.view["config"]}
        expected = {**wanted, **known}
        del expected["env"]
        assert place.view == expected
        assert wanted["config"].keys() <= place.view["config"].keys()


# ── What is asked for is handed on ──────────────────────────────────────────────────────────────


class Refused(CrushError):
    """An error that only the program knows."""

    code = "gone_fishing"
    message = "the server has gone fishing"


@define(eq=False)
class Noted(NoLanguageServers, NoMcpServers, NoSkills):
    """Everything at once: answers, and takes note of what it was asked for."""

    asked: list = field(factory=list)

    async def start(self, path):
        await self._note("start", path)

    async def stop(self):
        await self._note("stop")

    def pending_logins(self):
        return (PendingAuth(name="gh", url="https://login.invalid"),)

    def login_url(self, name):
        return f"https://login.invalid/{name}"

    async def log_in(self, name):
        await self._note("log in", name)

    async def prompt(self, name, prompt, arguments):
        await self._note("prompt", name, prompt, dict(arguments))
        return "Review it."

    async def read_resource(self, name, uri):
        if name == "fisher":
            raise Refused
        await self._note("resource", name, uri)
        return (McpResource(uri=uri, text="hello"),)

    async def refresh_tools(self, name):
        await self._note("tools", name)

    async def refresh_prompts(self, name):
        await self._note("prompts", name)

    async def refresh_resources(self, name):
        await self._note("resources", name)

    async def use_docker(self, wanted):
        await self._note("docker", wanted)
        return wanted

    async def read(self, skill_id):
        await self._note("skill", skill_id)
        about = SkillSummary(name="jq", description="JSON", source="user", builtin=False)
        return SkillContent(content=b"use it", result=about)

    async def _note(self, *what):
        await checkpoint()
        self.asked.append(what)


@define(slots=False)
class Configured:
    """The same as MCP servers, of which two are configured."""

    noted: Noted

    def __getattr__(self, name):
        return getattr(self.noted, name)

    def states(self):
        return {name: McpClientInfo(name=name) for name in ("gh", "fisher")}


def bringing(noted):
    """Return what opens the same integrations for every workspace."""

    @asynccontextmanager
    async def opened(_surroundings):
        await checkpoint()
        yield Integrations(lsp=noted, mcp=Configured(noted), skills=noted)

    return opened


HANDED_ON = [
    ("POST /lsps/start", {"path": "/a.go"}, ("start", "/a.go"), None),
    ("POST /lsps/stop", None, ("stop",), None),
    (
        "POST /skills/read",
        {"skill_id": "/x"},
        ("skill", "/x"),
        {
            "content": "dXNlIGl0",
            "result": {"name": "jq", "description": "JSON", "source": "user", "builtin": False},
        },
    ),
    ("POST /mcp/auth", {"name": "gh"}, ("log in", "gh"), {}),
    (
        "POST /mcp/get-prompt",
        {"client_id": "gh", "prompt_id": "review", "args": {"focus": "tests"}},
        ("prompt", "gh", "review", {"focus": "tests"}),
        {"prompt": "Review it."},
    ),
    (
        "POST /mcp/get-prompt",
        {"client_id": "gh", "prompt_id": "review", "args": None},
        ("prompt", "gh", "review", {}),
        {"prompt": "Review it."},
    ),
    (
        "POST /mcp/read-resource",
        {"name": "gh", "uri": "file:///a"},
        ("resource", "gh", "file:///a"),
        [{"uri": "file:///a", "text": "hello"}],
    ),
    ("POST /mcp/refresh-tools", {"name": "gh"}, ("tools", "gh"), None),
    ("POST /mcp/refresh-prompts", {"name": "gh"}, ("prompts", "gh"), None),
    ("POST /mcp/refresh-resources", {"name": "gh"}, ("resources", "gh"), None),
    ("POST /mcp/docker/enable", None, ("docker", True), None),
    ("POST /mcp/docker/disable", None, ("docker", False), None),
]


@pytest.mark.parametrize(("request_line", "body", "noted", "given"), HANDED_ON)
async def test_what_a_client_asks_for_is_asked_of_the_integrations(
    request_line, body, noted, given
):
    known = Noted()
    async with open_server_with(open_integrations=bringing(known)) as server:
        place = await server.create(A)
        answer = await place.request(*request_line.split(" "), b"" if body is None else body)
        assert answer.status == 200
        assert known.asked == [noted]
        assert (answer.json() if answer.body else None) == given


async def test_logins_that_are_under_way_are_shown():
    async with open_server_with(open_integrations=bringing(Noted())) as server:
        place = await server.create(A)
        waiting = await place.request("GET", "/mcp/pending-auth")
        assert waiting.json() == [{"name": "gh", "url": "https://login.invalid"}]
        url = await place.request("GET", "/mcp/auth-url?name=gh")
        assert url.json() == {"auth_url": "https://login.invalid/gh"}


async def test_an_error_of_the_program_is_told_in_its_own_words():
    async with open_server_with(open_integrations=bringing(Noted())) as server:
        place = await server.create(A)
        answer = await place.request("POST", "/mcp/read-resource", {"name": "fisher", "uri": "u"})
        assert answer.status == 500
        assert answer.json() == {"message": Refused.message, "code": Refused.code}


UNCHECKED = ["GET /mcp/states", "GET /mcp/auth-url?name=gh", "POST /mcp/refresh-prompts"]


@pytest.mark.parametrize("request_line", [*UNCHECKED, "POST /mcp/refresh-resources"])
async def test_a_workspace_that_is_not_there_has_nothing_from_outside(request_line):
    method, target = request_line.split(" ")
    known = Noted()
    async with open_server_with(open_integrations=bringing(known)) as server:
        await server.create(A)
        body = {"name": "gh"} if method == "POST" else b""
        answer = await server.request(method, f"/v1/workspaces/none{target}", body)
        assert (answer.status, answer.body) == (200, b"{}" if method == "GET" else b"")
        assert known.asked == []


# ── How long they live ──────────────────────────────────────────────────────────────────────────


@define(eq=False)
class Watched:
    """Opens integrations, one by one, and remembers when, for whom, and when they were closed."""

    given: dict = field(factory=dict)
    log: list = field(factory=list)

    @asynccontextmanager
    async def open(self, surroundings):
        await checkpoint()
        self.given[str(surroundings.directory)] = surroundings
        surroundings.publish(happening())
        self.log.append("opened")
        try:
            yield Integrations()
        finally:
            surroundings.publish(happening())
            self.log.append("closed")


def happening():
    """Return the fact that the contract has as its example of a skills event."""
    [text] = [text for text in EVENTS if "skills_event" in text]
    event = decode(text, Envelope)
    return Fact(payload_type=event.payload_type, change=event.event_type, entity=event.entity)


@pytest.mark.item("I8")
async def test_what_one_workspace_publishes_reaches_its_clients_and_no_others():
    watched = Watched()
    async with open_server_with(open_integrations=watched.open) as server:
        here, there = await server.create(A, "/here"), await server.create(B, "/there")
        assert {each.workspace_id for each in watched.given.values()} == {here.id, there.id}
        with await here.watch(A) as mine, await there.watch(B) as others:
            watched.given["/here"].publish(happening())
            await there.create_session()
            told = await mine.next()
            assert told["type"] == "skills_event"
            assert [state["name"] for state in entity(told)["states"]] == ["jq", ""]
            assert (await others.next())["type"] == "session"


async def test_integrations_outlive_the_runs_of_their_workspace():
    watched, gate = Watched(), Gate("working")

    async def work(_run):
        try:
            await gate.wait()
        finally:
            with trio.CancelScope(shield=True):
                await checkpoint()
            watched.log.append("run ended")

    turns = WrittenTurns({"go": [Do(work)]})
    async with open_server_with(open_integrations=watched.open, make_turn=turns) as server:
        place = await server.create(A)
        await place.submit(await place.create_session(), "go")
        await gate.reached()
        await server.request("DELETE", f"/v1/clients/{A}")
    assert watched.log == ["opened", "run ended", "closed"]


async def test_a_workspace_whose_integrations_cannot_be_opened_is_refused_and_can_be_tried_again():
    watched = Watched()

    @asynccontextmanager
    async def opened(surroundings):
        if not watched.log:
            watched.log.append("failed")
            raise Refused
        async with watched.open(surroundings) as integrations:
            yield integrations

    async with open_server_with(open_integrations=opened) as server:
        body = {"path": "/here", "client_id": A}
        refused = await server.request("POST", "/v1/workspaces", body)
        assert (refused.status, refused.json()["code"]) == (500, Refused.code)
        await server.create(A, "/here")
        assert watched.log == ["failed", "opened"]
