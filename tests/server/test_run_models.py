"""A submission may say what is to answer it, and nobody else has that model for it."""

import os
from types import SimpleNamespace

import orjson
import pytest
import trio

from crush_trio.backend.workspace import INITS_KEPT
from crush_trio.server.http.outgoing import CARRIER
from crush_trio.server.http.peer import Peer
from crush_trio.server.routes import agent
from crush_trio.testing.model.provider import ScriptedProvider
from crush_trio.testing.model.script import CallTool, Say, text_of
from crush_trio.testing.server.server import client_id, open_test_server
from crush_trio.wire.messages import Role
from crush_trio.wire.requests import AgentInitRequest, AgentMessage
from tests.server.brought import open_server_with

# Configurations are read in threads, and the virtual clock does not see those.
pytestmark = pytest.mark.real_clock

A = client_id(1)
OTHER = {"provider": "p1", "model": "other", "max_tokens": 7}
CONFIG = {
    "models": {"large": {"provider": "p1", "model": "usual"}},
    "providers": {
        "p1": {
            "models": [
                {"id": name, "name": name, "context_window": 9000, "default_max_tokens": 90}
                for name in ("usual", "other")
            ],
        }
    },
}
ASK = CallTool("agent", {"prompt": "find it"}, id="c1")


class Bench:
    """A workspace, its session, and what its model was asked."""

    def __init__(self, place, session, model):
        self.place, self.session, self.model = place, session, model

    async def send(self, prompt, run_id, **more):
        body = {"session_id": self.session, "prompt": prompt, "run_id": run_id, **more}
        return await self.place.request("POST", "/agent", body)

    async def play(self, prompt, run_id, **more):
        """Have a prompt answered."""
        watcher = await self.place.watch(A, "&form=native")
        assert (await self.send(prompt, run_id, **more)).status == 202
        await watcher.until(lambda event: "'completed'" in str(event) and run_id in str(event))

    def asked(self, prompt):
        """Return which model was asked this, and for how many tokens at most."""
        return [
            (request.chosen.model, request.max_tokens)
            for request in self.model.requests
            if request.tools and text_of(request) == prompt
        ]


def answer(request):
    """Have a task done when told to go, and say yes to everything else."""
    done = any(message.role is Role.TOOL for message in request.messages)
    return [ASK] if request.tools and text_of(request) == "go" and not done else [Say("yes")]


@pytest.fixture
async def bench(tmp_path):
    model = ScriptedProvider(answer)
    user_file = tmp_path / ".config" / "crush" / "crush.json"
    user_file.parent.mkdir(parents=True)
    user_file.write_bytes(orjson.dumps(CONFIG))
    async with open_server_with(
        open_config=None, make_turn=None, home=tmp_path, providers={"p1": model}
    ) as server:
        place = await server.create(A, str(tmp_path / "work"))
        yield Bench(place, await place.create_session(), model)


async def test_a_run_is_answered_by_the_model_it_names_and_the_next_one_by_the_usual(bench):
    await bench.play("first", "r1", model=OTHER)
    await bench.play("second", "r2")
    assert bench.asked("first") == [("other", 7)]
    assert bench.asked("second") == [("usual", 90)]
    info = (await bench.place.request("GET", "/agent")).json()
    assert info["model_cfg"]["model"] == "usual"


async def test_what_a_run_has_others_do_is_done_by_the_same_model(bench):
    await bench.play("go", "r1", model=OTHER)
    assert bench.asked("find it") == [("other", 7)]


async def test_a_model_that_is_not_configured_is_refused_and_nothing_is_accepted(bench):
    answer = await bench.send("first", "r1", model={"provider": "p1", "model": "none"})
    assert (answer.status, answer.json()["code"]) == (404, "not_configured")
    assert "'p1/none'" in answer.json()["message"]
    assert (await bench.place.request("GET", "/runs")).json() == []
    assert bench.model.requests == []


async def test_a_built_in_provider_is_asked_for_models_that_its_catalogue_does_not_list(tmp_path):
    """The client's model dialog could select such a model, and a single run could not name it."""
    user_file = tmp_path / ".config" / "crush" / "crush.json"
    user_file.parent.mkdir(parents=True)
    entry = {"api_key": "k", "models": [{"id": "listed"}]}
    user_file.write_bytes(orjson.dumps({"providers": {"openai": entry}}))
    model, newer = ScriptedProvider(answer), {"provider": "openai", "model": "newer-than-ours"}
    async with open_server_with(
        open_config=None, make_turn=None, home=tmp_path, providers={"openai": model}
    ) as server:
        place = await server.create(A, str(tmp_path / "work"))
        bench = Bench(place, await place.create_session(), model)
        await bench.play("first", "r1", model=newer)
        assert [chosen for chosen, _ in bench.asked("first")] == ["newer-than-ours"]


@pytest.mark.item("F17")
async def test_questions_can_be_asked_by_named_runs_too_after_an_interactive_start(bench):
    for number, (interactive, more) in enumerate(
        [(False, {}), (True, {}), (True, {"interactive": False}), (False, {"interactive": True})]
    ):
        body = {"interactive": interactive}
        assert (await bench.place.request("POST", "/agent/init", body)).status == 200
        await bench.play(f"prompt {number}", f"r{number}", **more)
    asked = [r for r in bench.model.requests if r.tools and text_of(r).startswith("prompt")]
    offers = ["question" in {tool.name for tool in request.tools} for request in asked]
    assert offers == [False, True, False, True]


@pytest.mark.item("F17")
async def test_another_clients_start_does_not_make_a_run_of_a_script_interactive():
    """The requests carry no client id; on a Unix socket the process of the client is known."""
    ours, _ = pair = trio.socket.socketpair()
    peers = [Peer(ours), Peer(ours)]
    assert peers[0].pid == os.getpid()
    peers[1].pid = 1
    script, terminal = (
        {"state": {CARRIER: SimpleNamespace(peer=peer)}, "query_string": b""} for peer in peers
    )
    async with open_test_server() as server:
        place = await server.create(A)
        hosted = server.backend.workspace(place.id)
        for scope, interactive in ((script, False), (terminal, True), ({}, True)):
            body = AgentInitRequest(interactive=interactive)
            agent.init(SimpleNamespace(scope=scope, body=body, workspace=hosted))
        body = AgentMessage(session_id="s", prompt="go", run_id="r")
        found = []
        for scope in (script, terminal, {}):
            process = agent._process(SimpleNamespace(scope=scope))
            found.append(agent._submission(body, hosted, process).interactive)
        assert found == [False, True, True]
        for process in range(100, 300):
            hosted.init_agent(process=process)
        assert len(hosted._inits) == INITS_KEPT
    for each in pair:
        each.close()
