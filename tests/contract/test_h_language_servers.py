"""Contract H and I.4: language servers of a whole workspace, seen by its agent and over HTTP.

The parts have tests of their own in `tests/integrations/`. Here the servers are real processes: programs in
Python that speak the protocol.
"""

import os
import sys
from contextlib import asynccontextmanager

import orjson
import pytest

from crush_trio.testing.model.script import CallTool, Say
from crush_trio.testing.server.server import client_id
from tests.contract.machine import A, Machine
from tests.integrations import lsp_program
from tests.server.scenarios import ending_of, entity

pytestmark = [pytest.mark.real_clock, pytest.mark.slow]

B = client_id(2)
PARSER = "def parse\n  words\n\ndef main\n  parse it\n"


def toy(*flags, **more):
    """Return the configuration of a server that is a real process."""
    args = ["-I", "-S", lsp_program.__file__, *flags]
    return {"command": sys.executable, "args": args, "filetypes": ["toy"], **more}


class Understood(Machine):
    """A machine with a language server on it."""

    def __attrs_post_init__(self):
        super().__attrs_post_init__()
        self.configure({"lsp": {"toy": toy()}})

    def put(self, name, text):
        file = self.project() / name
        file.write_text(text)
        return file

    @asynccontextmanager
    async def opened(self, **more):
        """Open a server with one workspace, in which nobody is asked anything unless told otherwise."""
        async with self.serve() as server:
            yield await server.create(A, str(self.project()), **{"yolo": True, **more})


@pytest.fixture
def machine(tmp_path):
    return Understood(tmp_path)


async def ask(machine, place, *answers):
    """Let the agent answer one prompt; return what its tools said, and the events meanwhile."""
    results, events = await machine.ask(place, *answers)
    return [result["content"] for result in results], events


def tool_names(machine):
    """Return the names of the tools in each request that had any, oldest first."""
    return [
        [spec.name for spec in request.tools] for request in machine.model.requests if request.tools
    ]


def lsp_events(events):
    return [entity(event) for event in events if event["type"] == "lsp_event"]


async def states(place):
    return (await place.request("GET", "/lsps")).json()


def alive(pid_file):
    try:
        os.kill(int(pid_file.read_text()), 0)
    except ProcessLookupError:
        return False
    return True


# ── What a model and its clients see ────────────────────────────────────────────────────────────


@pytest.mark.item("H7", "I.4")
async def test_a_model_that_edits_a_file_sees_what_is_wrong_with_it(machine):
    file = machine.put("a.toy", "def a\n  fine\n")
    edit = {"file_path": "a.toy", "old_string": "fine", "new_string": "BAD"}
    async with machine.opened() as place:
        [viewed, edited], events = await ask(
            machine,
            place,
            [CallTool("view", {"file_path": "a.toy"})],
            [CallTool("edit", edit)],
            [Say("done")],
        )
        assert "Diagnostics" not in viewed
        assert edited.endswith(
            "Diagnostics of this file:\nerror: a.toy:2:3: BAD is bad (toy)\n\nIn all: 1 error."
        )
        [info] = (await states(place)).values()
        assert info.pop("connected_at") > "2020"
        assert info == {"name": "toy", "state": 2, "diagnostic_count": 1}
        said = (await place.request("GET", "/lsps/toy/diagnostics")).json()
        [problem] = said.pop(file.as_uri())
        assert said == {}
        assert problem == {
            "range": {"start": {"line": 1, "character": 2}, "end": {"line": 1, "character": 5}},
            "severity": 1,
            "source": "toy",
            "message": "BAD is bad",
        }
    assert lsp_events(events) == [
        {"type": "state_changed", "name": "toy", "state": 1},
        {"type": "state_changed", "name": "toy", "state": 2},
        {"type": "diagnostics_changed", "name": "toy", "state": 2, "diagnostic_count": 1},
    ]


@pytest.mark.item("H7")
async def test_where_no_server_is_for_a_file_nothing_is_started_or_said(machine):
    machine.put("a.py", "BAD\n")
    async with machine.opened() as place:
        [viewed], events = await ask(
            machine, place, [CallTool("view", {"file_path": "a.py"})], [Say("done")]
        )
        assert lsp_events(events) == []
        assert (await states(place))["toy"]["state"] == 0
    assert "Diagnostics" not in viewed


@pytest.mark.item("H3")
async def test_a_model_has_the_tools_of_language_servers_only_where_there_are_some(machine):
    async with machine.opened() as place:
        await ask(machine, place, [Say("done")])
    machine.configure({})
    async with machine.opened() as place:
        await ask(machine, place, [Say("done")])
    with_servers, without = tool_names(machine)
    assert sorted(with_servers) == with_servers
    assert {name for name in with_servers if name not in without} == {
        "lsp_call_hierarchy",
        "lsp_definition",
        "lsp_diagnostics",
        "lsp_references",
        "lsp_rename",
        "lsp_replace_symbol",
        "lsp_restart",
        "lsp_symbols",
    }
    assert not [name for name in without if name.startswith("lsp")]


@pytest.mark.item("H3")
async def test_a_task_has_those_that_find_something_out(machine):
    machine.configure({"lsp": {"toy": toy()}, "options": {"disabled_tools": ["lsp_restart"]}})
    machine.put("a.toy", PARSER)
    async with machine.opened() as place:
        await ask(
            machine,
            place,
            [CallTool("agent", {"prompt": "find it"})],
            [CallTool("lsp_definition", {"symbol": "parse"})],
            [Say("found")],
            [Say("done")],
        )
    main, task, *_ = tool_names(machine)
    assert "lsp_rename" in main
    assert "lsp_restart" not in main
    assert task == [
        "glob",
        "grep",
        "ls",
        "lsp_call_hierarchy",
        "lsp_definition",
        "lsp_symbols",
        "view",
    ]


@pytest.mark.item("L47", "F1", "H3")
async def test_a_rename_is_asked_for_in_the_name_of_its_call(machine):
    file = machine.put("a.toy", PARSER)
    machine.answers += [
        [CallTool("lsp_rename", {"symbol": "parse", "new_name": "read"})],
        [Say("done")],
    ]
    async with machine.opened(yolo=False, interactive=True) as place:
        session = await place.create_session()
        with await place.watch(A) as events:
            await place.submit(session, "go", "r")
            wanted = entity(await events.until(lambda event: event["type"] == "permission_request"))
            assert file.read_text() == PARSER
            body = {"permission": wanted, "action": "allow"}
            assert (await place.request("POST", "/permissions/grant", body)).status == 200
            await events.until(ending_of("r"))
            kept = [entity(event) for event in events.seen if event["type"] == "file"]
    assert (wanted["tool_name"], wanted["action"], wanted["params"]) == ("lsp_rename", "", None)
    assert wanted["tool_call_id"]
    assert wanted["path"] == str(machine.project())
    assert file.read_text() == PARSER.replace("parse", "read")
    assert [(each["version"], each["content"]) for each in kept] == [
        (0, PARSER),
        (1, file.read_text()),
    ]


# ── The processes ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.item("I.4", "T13")
async def test_a_client_starts_servers_and_stops_them_and_they_go_with_the_workspace(machine):
    pid = machine.root / "pid"
    machine.configure({"lsp": {"toy": toy(f"--pid={pid}")}})
    machine.put("a.toy", "BAD\n")

    def is_now(number):
        return lambda event: event["type"] == "lsp_event" and entity(event)["state"] == number

    async with machine.opened() as place:
        with await place.watch(A) as events:
            body = {"path": "a.toy"}
            assert (await place.request("POST", "/lsps/start", body)).status == 200
            await events.until(is_now(2))
            first = pid.read_text()
            assert alive(pid)
            assert (await place.request("POST", "/lsps/stop")).status == 200
            assert not alive(pid)
            await events.until(is_now(4))
            assert (await states(place))["toy"]["state"] == 4
            await place.request("POST", "/lsps/start", body)
            await events.until(is_now(2))
            assert pid.read_text() != first
            assert alive(pid)
    assert not alive(pid)


@pytest.mark.item("I.4")
async def test_a_server_that_crashes_is_an_error_of_nobody_else(machine):
    machine.configure({"lsp": {"toy": toy("--crash-on-open")}})
    machine.put("a.toy", "BAD\n")
    async with machine.opened() as place:
        calls = [CallTool("view", {"file_path": "a.toy"})]
        asks = [CallTool("lsp_symbols", {"file_path": "a.toy"})]
        with await place.watch(A) as events:
            [viewed, asked], _ = await ask(machine, place, calls, asks, [Say("done")])
            failed = await events.until(
                lambda event: event["type"] == "lsp_event" and entity(event)["state"] == 3
            )
        assert entity(failed)["error"] == "it has ended: the toy broke"
        assert (await states(place))["toy"]["error"] == "it has ended: the toy broke"
    assert "BAD" in viewed
    assert asked.startswith(("the language server toy is not available", "it has ended"))


@pytest.mark.item("I.4")
async def test_a_project_that_is_not_trusted_starts_nothing(machine):
    pid = machine.root / "pid"
    machine.configure({})
    machine.put("crush.json", orjson.dumps({"lsp": {"evil": toy(f"--pid={pid}")}}).decode())
    machine.put("a.toy", "BAD\n")
    async with machine.opened() as place:
        await place.request("POST", "/lsps/start", {"path": "a.toy"})
        await ask(machine, place, [CallTool("view", {"file_path": "a.toy"})], [Say("done")])
        info = (await states(place))["evil"]
    assert info["state"] == 5
    assert "crush-trio trust" in info["error"]
    assert not pid.exists()


@pytest.mark.item("L20")
async def test_the_servers_of_one_workspace_are_none_of_another(machine):
    machine.put("a.toy", "BAD\n")
    async with machine.serve() as server:
        one = await server.create(A, str(machine.project()), yolo=True)
        two = await server.create(B, str(machine.project("other")), yolo=True)
        with await two.watch(B) as others:
            await ask(machine, one, [CallTool("view", {"file_path": "a.toy"})], [Say("done")])
            assert (await states(one))["toy"]["state"] == 2
            assert (await states(two))["toy"]["state"] == 0
            await two.create_session("after")
            assert (await others.next())["type"] == "session"


@pytest.mark.item("I.4")
async def test_the_agent_can_report_its_language_servers(machine):
    async with machine.opened() as place:
        [result], _ = await ask(machine, place, [CallTool("crush_info", {})], [Say("done")])
    assert "toy is unstarted" in result
