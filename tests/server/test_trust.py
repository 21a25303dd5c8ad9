"""Trust over the wire: the request that clients are shown, their answers, and where these are kept."""

import json

import orjson
import pytest
import trio

from crush_trio.config import Places
from crush_trio.testing.model.provider import ScriptedProvider
from crush_trio.testing.model.script import Say, text_of
from crush_trio.testing.server.server import client_id
from tests.server.brought import open_server_with

# Configurations are read in threads, and the virtual clock does not see those.
pytestmark = pytest.mark.real_clock

A = client_id(1)
MODELS = [
    {"id": name, "name": name, "context_window": 9000, "default_max_tokens": 90}
    for name in ("mine", "theirs", "chosen")
]


def large(model):
    return {"models": {"large": {"provider": "p1", "model": model}}}


class Bench:
    """A project that wants another model than its user, open in a server."""

    def __init__(self, root):
        self.work = root / "work"
        self.places = Places(directory=self.work, home=root)
        self.model = ScriptedProvider(lambda _request: [Say("yes")])
        self.work.mkdir()
        (self.work / "crush.json").write_bytes(orjson.dumps(large("theirs")))
        file = root / ".config" / "crush" / "crush.json"
        file.parent.mkdir(parents=True)
        file.write_bytes(orjson.dumps({**large("mine"), "providers": {"p1": {"models": MODELS}}}))

    async def open(self, server):
        self.server, self.place = server, await server.create(A, str(self.work))
        self.watcher = await self.place.watch(A)

    async def send(self, prompt, **more):
        """Submit a prompt in a session of its own; without a run id it is an interactive client's."""
        session = await self.place.create_session()
        body = {"session_id": session, "prompt": prompt, **more}
        assert (await self.place.request("POST", "/agent", body)).status in {200, 202}
        return session

    async def asked(self):
        return (await self.event("permission_request"))["payload"]

    async def event(self, kind, **values):
        """Return the next event of a kind with these values, as the Go client decodes it."""
        found = await self.watcher.until(
            lambda event: (
                event["type"] == kind and values.items() <= event["payload"]["payload"].items()
            )
        )
        return found["payload"]

    async def answer(self, request, action):
        body = {"permission": {**request, "params": None}, "action": action}
        answer = await self.place.request("POST", "/permissions/grant", body)
        assert answer.json() == {"resolved": True}

    def models_asked(self):
        """Return which model was asked each prompt."""
        return {
            text_of(request): request.chosen.model
            for request in self.model.requests
            if request.tools
        }


@pytest.fixture
async def bench(tmp_path):
    made = Bench(tmp_path.resolve())
    async with open_server_with(
        open_config=None, make_turn=None, home=made.places.home, providers={"p1": made.model}
    ) as server:
        await made.open(server)
        with trio.fail_after(20):
            yield made


@pytest.mark.item("I.2")
async def test_one_request_is_raised_and_trust_counts_for_the_runs_that_waited(bench):
    sessions = [await bench.send(f"prompt {number}") for number in range(3)]
    request = await bench.asked()
    assert (request["tool_name"], request["action"]) == ("trust", "trust")
    assert request["session_id"] in sessions
    assert request["tool_call_id"]
    assert request["path"] == str(bench.work)
    assert "- choose the large model: p1/theirs\n" in request["description"]
    assert request["params"]["wishes"][0]["key"] == "models.large"
    assert bench.model.requests == [], "nothing begins before the answer"
    await bench.answer(request, "allow_session")
    ended = {(await bench.event("run_complete"))["payload"]["session_id"] for _ in sessions}
    assert ended == set(sessions), "in any order"
    assert bench.models_asked() == {f"prompt {number}": "theirs" for number in range(3)}
    seen = [event for event in bench.watcher.seen if event["type"] == "permission_request"]
    assert len(seen) == 1
    assert json.loads(bench.places.data_file.read_text()) == {
        "crush_trio": {"trusted_directories": [str(bench.work)]}
    }
    assert (await bench.place.request("GET", "/permissions/grants")).json() == []


async def test_a_denial_is_not_asked_again(bench):
    session = await bench.send("first")
    await bench.answer(await bench.asked(), "deny")
    await bench.event("run_complete", session_id=session)
    await bench.event("run_complete", session_id=await bench.send("second"))
    assert bench.models_asked() == {"first": "mine", "second": "mine"}
    (bench.work / "crush.json").write_bytes(orjson.dumps(large("chosen")))
    await bench.send("third")
    assert "p1/chosen" in (await bench.asked())["description"], "the files have changed"


@pytest.mark.item("I3")
async def test_what_a_client_chooses_is_kept_outside_of_the_project(bench):
    chosen = {"provider": "p1", "model": "chosen"}
    body = {"scope": 1, "model_type": "large", "model": chosen}
    assert (await bench.place.request("POST", "/config/model", body)).status == 200
    key = {"scope": 1, "provider_id": "p1", "api_key": "sk-of-the-user", "kind": "string"}
    assert (await bench.place.request("POST", "/config/provider-key", key)).status == 200
    session = await bench.send("first", run_id="script")  # it cannot be asked
    await bench.event("run_complete", session_id=session)
    assert bench.models_asked() == {"first": "chosen"}
    kept = json.loads(bench.places.workspace_file.read_text())
    assert kept["models"]["large"] == chosen
    assert kept["providers"]["p1"] == {"api_key": "sk-of-the-user"}
    assert not (bench.work / ".crush" / "crush.json").exists()


async def test_a_run_that_cannot_ask_says_what_was_ignored(bench):
    native = await bench.place.watch(client_id(2), "&form=native")
    await bench.send("first", run_id="script", interactive=False)
    ended = await native.until(lambda event: "'completed'" in str(event))
    assert f"crush-trio trust {bench.work}" in str(ended)
    view = (await bench.place.request("GET", "/runs/script")).json()
    assert view["notices"][0].startswith("This project is not trusted")
    [hosted] = bench.server.backend.workspaces()
    [stored] = await hosted.store.runs()
    assert list(stored.notices) == view["notices"]
    assert bench.models_asked() == {"first": "mine"}
