"""The client has the whole interface: every route is reached by one method, and by one only."""

import re
from contextlib import asynccontextmanager
from inspect import iscoroutinefunction
from urllib.parse import parse_qsl, urlsplit

import attrs
import pytest

from crush_trio.client.attachment import Calls, Keeper
from crush_trio.client.client import Client
from crush_trio.client.http import AnswerGarbled, ApiError, open_link
from crush_trio.client.state import Picture
from crush_trio.client.workspace import RemoteWorkspace
from crush_trio.clock import CountingIds
from crush_trio.errors import CrushError
from crush_trio.net.address import parse_address
from crush_trio.server.bodies import decode_body
from crush_trio.server.routes import ROUTES
from crush_trio.testing.server.client import MemoryTransport, open_test_client
from crush_trio.testing.server.server import client_id, open_test_server
from crush_trio.wire.asks import (
    PermissionAction,
    PermissionRequest,
    PermissionRule,
    QuestionResponse,
    RuleDecision,
)
from crush_trio.wire.config import OAuthToken, SelectedModel, WorkspaceView
from crush_trio.wire.requests import WorkspaceRequest
from crush_trio.wire.views import Session
from tests.client.fake_transport import FakeTransport, answered

FOR_PEOPLE = {("GET", "/v1/docs"), ("GET", "/v1/docs/"), ("GET", "/v1/events")}
"""Pages to look at, and the stream of such a page."""

FOR_BROWSERS = {
    ("GET", "/v1/page"),
    ("POST", "/v1/login"),
    ("POST", "/v1/logout"),
    ("POST", "/v1/render/diff"),
    ("GET", "/v1/workspaces/{wid}/sessions/{sid}/messages/{mid}/rendered"),
}
"""What a page does in place of a token, which programs have; and HTML, which only a page shows."""

BY_OPENING = {
    ("POST", "/v1/workspaces"),
    ("GET", "/v1/workspaces/{wid}/events"),
    ("DELETE", "/v1/workspaces/{wid}"),
}
"""What `open_workspace` does at its beginning, all the time, and at its end."""

ASKED = PermissionRequest(id="p", session_id="s", tool_call_id="t", tool_name="bash")
RULE = PermissionRule(decision=RuleDecision.ASK, tool="bash")
ANSWER = QuestionResponse(request_id="q", yes=True)
TOKEN = OAuthToken(access_token="secret")
SELECTED = SelectedModel(model="m", provider="p")

CLIENT_CALLS = {
    "health": lambda c: c.health(),
    "ready": lambda c: c.ready(),
    "version": lambda c: c.version(),
    "server_config": lambda c: c.server_config(),
    "openapi": lambda c: c.openapi(),
    "config_schema": lambda c: c.config_schema(),
    "event_schema": lambda c: c.event_schema(),
    "metrics": lambda c: c.metrics(),
    "cluster": lambda c: c.cluster(),
    "audit": lambda c: c.audit(after=1, limit=2),
    "usage": lambda c: c.usage(days=7),
    "workspaces": lambda c: c.workspaces(),
    "roster": lambda c: c.roster(),
    "search": lambda c: c.search("text", limit=2),
    "shutdown": lambda c: c.shutdown(),
    "retire": lambda c: c.retire(),
}

WORKSPACE_CALLS = {
    "submit": lambda w: w.submit("hello", session="s"),
    "cancel": lambda w: w.cancel("s"),
    "summarize": lambda w: w.summarize("s"),
    "shell": lambda w: w.shell("s", "ls", width=80),
    "show": lambda w: w.show(),
    "select": lambda w: w.select("s"),
    "providers": lambda w: w.providers(),
    "prompts": lambda w: w.prompts(),
    "tasks": lambda w: w.tasks(),
    "agent.info": lambda w: w.agent.info(),
    "agent.init": lambda w: w.agent.init(interactive=True),
    "agent.update": lambda w: w.agent.update(),
    "agent.default_small_model": lambda w: w.agent.default_small_model("p"),
    "agent.session": lambda w: w.agent.session("s"),
    "config.get": lambda w: w.config.get(),
    "config.set": lambda w: w.config.set("options.debug", True),
    "config.remove": lambda w: w.config.remove("options.debug"),
    "config.select_model": lambda w: w.config.select_model(SELECTED),
    "config.compact": lambda w: w.config.compact(True),
    "config.provider_key": lambda w: w.config.provider_key("p", "key"),
    "config.refresh_oauth": lambda w: w.config.refresh_oauth("p"),
    "config.import_copilot": lambda w: w.config.import_copilot(),
    "lsp.list": lambda w: w.lsp.list(),
    "lsp.diagnostics": lambda w: w.lsp.diagnostics("pyright"),
    "lsp.start": lambda w: w.lsp.start("a.py"),
    "lsp.stop": lambda w: w.lsp.stop(),
    "mcp.list": lambda w: w.mcp.list(),
    "mcp.pending_logins": lambda w: w.mcp.pending_logins(),
    "mcp.login_url": lambda w: w.mcp.login_url("n"),
    "mcp.log_in": lambda w: w.mcp.log_in("n"),
    "mcp.prompts": lambda w: w.mcp.prompts(),
    "mcp.prompt": lambda w: w.mcp.prompt("n", "p", {"a": "b"}),
    "mcp.read_resource": lambda w: w.mcp.read_resource("n", "file:///a"),
    "mcp.refresh_tools": lambda w: w.mcp.refresh_tools("n"),
    "mcp.refresh_prompts": lambda w: w.mcp.refresh_prompts("n"),
    "mcp.refresh_resources": lambda w: w.mcp.refresh_resources("n"),
    "mcp.enable_docker": lambda w: w.mcp.enable_docker(),
    "mcp.disable_docker": lambda w: w.mcp.disable_docker(),
    "permissions.pending": lambda w: w.permissions.pending(),
    "permissions.answer": lambda w: w.permissions.answer(ASKED, PermissionAction.ALLOW),
    "permissions.grants": lambda w: w.permissions.grants(),
    "permissions.revoke": lambda w: w.permissions.revoke("g"),
    "permissions.rules": lambda w: w.permissions.rules(),
    "permissions.add_rule": lambda w: w.permissions.add_rule(RULE),
    "permissions.remove_rule": lambda w: w.permissions.remove_rule("0a1b"),
    "permissions.skipping": lambda w: w.permissions.skipping(),
    "permissions.skip": lambda w: w.permissions.skip(True),
    "project.needs_init": lambda w: w.project.needs_init(),
    "project.mark_initialized": lambda w: w.project.mark_initialized(),
    "project.init_prompt": lambda w: w.project.init_prompt(),
    "questions.pending": lambda w: w.questions.pending(),
    "questions.answer": lambda w: w.questions.answer("b", [ANSWER]),
    "questions.cancel": lambda w: w.questions.cancel("b"),
    "queue.list": lambda w: w.queue.list("s"),
    "queue.edit": lambda w: w.queue.edit("s", "r", prompt="other"),
    "queue.delete": lambda w: w.queue.delete("s", "r"),
    "queue.clear": lambda w: w.queue.clear("s"),
    "queue.count": lambda w: w.queue.count("s"),
    "queue.prompts": lambda w: w.queue.prompts("s"),
    "runs.list": lambda w: w.runs.list("s", limit=5),
    "runs.get": lambda w: w.runs.get("r"),
    "runs.capsule": lambda w: w.runs.capsule("r"),
    "runs.timeline": lambda w: w.runs.timeline("r"),
    "runs.cancel": lambda w: w.runs.cancel("r"),
    "sessions.list": lambda w: w.sessions.list(),
    "sessions.create": lambda w: w.sessions.create("a title"),
    "sessions.get": lambda w: w.sessions.get("s"),
    "sessions.save": lambda w: w.sessions.save(Session(id="s", title="t")),
    "sessions.delete": lambda w: w.sessions.delete("s"),
    "sessions.messages": lambda w: w.sessions.messages("s"),
    "sessions.prompts": lambda w: w.sessions.prompts("s"),
    "sessions.history": lambda w: w.sessions.history("s"),
    "sessions.files_read": lambda w: w.sessions.files_read("s"),
    "sessions.note_read": lambda w: w.sessions.note_read("s", "a.py"),
    "sessions.last_read": lambda w: w.sessions.last_read("s", "a.py"),
    "skills.list": lambda w: w.skills.list(),
    "skills.read": lambda w: w.skills.read("skill"),
}

COMPOSED = {
    "sessions.rename": (lambda w: w.sessions.rename("s", "t"), ["GET", "PUT"]),
    "queue.move": (lambda w: w.queue.move("s", "r", 0), ["PATCH"]),
    "queue.run_now": (lambda w: w.queue.run_now("s", "r"), ["PATCH"]),
    "permissions.grant": (lambda w: w.permissions.grant(ASKED), ["POST"]),
    "permissions.deny": (lambda w: w.permissions.deny(ASKED), ["POST"]),
}
"""Methods that are made of others: they reach no route that those do not reach."""


def methods_of(cls, prefix=""):
    return {
        prefix + name
        for name, value in vars(cls).items()
        if not name.startswith("_") and iscoroutinefunction(value)
    }


def all_methods():
    groups = [field for field in attrs.fields(RemoteWorkspace) if not field.init]
    found = methods_of(RemoteWorkspace)
    for group in groups:
        found |= methods_of(group.type, f"{group.name}.")
    return found


def test_the_tables_of_this_file_have_every_method():
    assert set(WORKSPACE_CALLS) | set(COMPOSED) == all_methods()
    assert set(CLIENT_CALLS) == methods_of(Client)


# ── What is sent ────────────────────────────────────────────────────────────────────────────────


@attrs.define(eq=False)
class Wire:
    """Takes note of what is sent, and answers everything with the zero of whatever is asked for."""

    sent: list = attrs.field(factory=list)

    def __call__(self, request):
        self.sent.append(request)
        if re.search(r"/runs/[^/]+$", request.path):
            return answered({"state": "completed"})
        if request.path.endswith("/timeline"):
            return answered({"run": {"state": "completed"}})
        if request.path.endswith("/permissions/rules") and request.method == "POST":
            return answered({"decision": "ask"})
        if request.path.endswith("/sessions/s"):
            return answered({"id": "s"})
        return answered(b"null")


@asynccontextmanager
async def recorded():
    wire = Wire()
    address = parse_address("unix:///memory")
    async with open_link(address, transport=FakeTransport(wire)) as link:
        request = WorkspaceRequest(path="/p", client_id=client_id(1))
        keeper = Keeper(link, Picture(), request, interactive=False, init=True, patience=1)
        keeper.id = "w"
        view = WorkspaceView(id="w", path="/p")
        workspace = RemoteWorkspace(view, Calls(keeper), CountingIds("run"))
        yield wire, workspace, Client(client_id(1), link, CountingIds("run"))


def route_of(request):
    """Return the one route that a request is for."""
    return route_at(request.method, request.path)


def route_at(method, path):
    found = [
        route
        for route in ROUTES
        if route.method == method and re.fullmatch(re.sub(r"{\w+}", "[^/]+", route.path), path)
    ]
    exact = [route for route in found if "{" not in route.path.removeprefix("/v1/workspaces/{wid}")]
    [route] = exact or found
    return route


def check_sent(request, route):
    """What is sent is what the route takes."""
    query = dict(parse_qsl(urlsplit(request.target).query, keep_blank_values=True))
    assert set(query) <= {each.name for each in route.query}
    assert {each.name for each in route.query if each.check is not None} <= set(query)
    if route.body is None:
        assert request.body == b""
    else:
        assert request.headers["content-type"] == "application/json"
        decode_body(request.body, route.body)


async def reached(call, pick):
    async with recorded() as (wire, workspace, client):
        await call(client if pick == "client" else workspace)
        return wire.sent


@pytest.mark.parametrize("name", [*CLIENT_CALLS, *WORKSPACE_CALLS])
async def test_a_method_sends_one_request_that_its_route_understands(name):
    calls, pick = (
        (CLIENT_CALLS, "client") if name in CLIENT_CALLS else (WORKSPACE_CALLS, "workspace")
    )
    [request] = await reached(calls[name], pick)
    check_sent(request, route_of(request))


@pytest.mark.parametrize("name", COMPOSED)
async def test_a_composed_method_sends_what_its_parts_send(name):
    call, expected = COMPOSED[name]
    requests = await reached(call, "workspace")
    assert [request.method for request in requests] == expected
    for request in requests:
        check_sent(request, route_of(request))


async def test_every_route_is_reached_by_exactly_one_method():
    reached_by = {}
    for pick, calls in (("client", CLIENT_CALLS), ("workspace", WORKSPACE_CALLS)):
        for name, call in calls.items():
            [request] = await reached(call, pick)
            route = route_of(request)
            reached_by.setdefault((route.method, route.path), []).append(f"{pick}.{name}")
    assert {route: names for route, names in reached_by.items() if len(names) > 1} == {}
    wanted = (
        {(route.method, route.path) for route in ROUTES} - FOR_PEOPLE - FOR_BROWSERS - BY_OPENING
    )
    assert set(reached_by) == wanted


async def test_a_token_of_an_account_is_sent_as_the_object_it_is():
    [request] = await reached(lambda w: w.config.provider_key("p", TOKEN), "workspace")
    assert b'"kind":"oauth"' in request.body
    assert b'"access_token":"secret"' in request.body


async def test_ids_are_quoted_and_the_name_of_a_task_session_is_left_readable():
    [odd] = await reached(lambda w: w.sessions.get("a/b?c d"), "workspace")
    assert odd.target == "/v1/workspaces/w/sessions/a%2Fb%3Fc%20d"
    [task] = await reached(lambda w: w.sessions.messages("m$$t"), "workspace")
    assert task.target == "/v1/workspaces/w/sessions/m$$t/messages"


# ── What is answered ────────────────────────────────────────────────────────────────────────────


async def test_opening_a_workspace_creates_it_attaches_and_gives_it_up():
    async with open_test_server() as server:
        network = MemoryTransport(server.driver)
        async with open_test_client(server, transport=network) as client:
            async with client.open_workspace("/srv/project") as workspace:
                place = f"/v1/workspaces/{workspace.id}"
    who = f"client_id={client_id(1)}"
    assert network.requests == [
        "POST /v1/workspaces",
        f"POST {place}/agent/init",
        f"GET {place}/events?{who}&form=native",
        f"DELETE {place}?{who}",
    ]


@pytest.mark.parametrize("name", [*WORKSPACE_CALLS, *COMPOSED])
async def test_the_server_answers_every_method_with_what_it_promises_or_a_code_it_names(name):
    call = WORKSPACE_CALLS.get(name) or COMPOSED[name][0]
    async with open_test_server() as server:
        network = MemoryTransport(server.driver)
        async with open_test_client(server, transport=network) as client:
            async with client.open_workspace("/srv/project") as workspace:
                try:
                    await call(workspace)
                except CrushError as error:
                    check_refused(error, network.requests[-1])


def check_refused(error, sent):
    assert not isinstance(error, AnswerGarbled)
    assert not isinstance(error, ApiError) or not error.code.startswith("http_")
    method, target = sent.split()
    route = route_at(method, urlsplit(target).path)
    assert error.code in route.codes


@pytest.mark.parametrize("name", sorted(set(CLIENT_CALLS)))
async def test_the_server_answers_what_belongs_to_no_workspace(name):
    async with open_test_server() as server, open_test_client(server) as client:
        await CLIENT_CALLS[name](client)
