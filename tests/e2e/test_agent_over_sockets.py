"""The whole thing: a server, a model behind HTTP, two clients, real files and real processes.

Nothing is scripted here but the model. It stands on a real socket and speaks the words of both kinds
of providers, so what is tested is what a user with a key gets.
"""

import os
import signal
from collections import deque
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import h11
import orjson
import pytest
import trio
import trio.testing
from attrs import Factory, define

from crush_trio.net.address import Origin, TcpAddress
from crush_trio.net.client import HttpClient, Request, open_http_client
from crush_trio.server.run import run_server
from crush_trio.server.settings import ServerSettings
from crush_trio.testing import Gate, ModelServer, open_model_server
from crush_trio.testing.model.script import CallTool, Pause, Refuse, Say, Think
from crush_trio.testing.server.server import client_id
from crush_trio.tools.shell.guard import link
from tests.server.raw_client import RawClient, open_client
from tests.tools.altered_guard import altered

pytestmark = [pytest.mark.slow, pytest.mark.real_clock]

KEYS = {
    "openai": lambda url: {
        "OPENAI_API_KEY": "sk-test-0123456789abcdef",
        "OPENAI_BASE_URL": f"{url}/v1",
    },
    "anthropic": lambda url: {
        "ANTHROPIC_API_KEY": "sk-ant-test-0123456789",
        "ANTHROPIC_BASE_URL": url,
    },
}
ENDED = {"completed", "cancelled", "errored", "folded", "interrupted"}


async def asked(http, address, method, path, body=None, status=200):
    """Send a request and return the JSON of its answer, if there is any."""
    request = Request(
        method=method,
        origin=Origin(address.host, address.port, secure=False),
        target=path,
        headers={"content-type": "application/json"},
        body=b"" if method == "GET" else orjson.dumps(body),
    )
    async with http.open(request) as response:
        data = await response.read(10**8)
        assert response.status == status, data
    return orjson.loads(data) if data else None


@define(eq=False)
class Place:
    """One workspace of a running server, and the model behind it."""

    http: HttpClient
    address: TcpAddress
    model: ModelServer
    directory: Path
    path: str
    session: str

    async def get(self, path):
        return await asked(self.http, self.address, "GET", self.path + path)

    async def post(self, path, body=None, status=200):
        return await asked(self.http, self.address, "POST", self.path + path, body, status)

    async def submit(self, prompt, run_id="r1", **more):
        body = {"session_id": self.session, "prompt": prompt, "run_id": run_id, **more}
        await self.post("/agent", body, 202)

    async def messages(self):
        return await self.get(f"/sessions/{self.session}/messages")

    @asynccontextmanager
    async def watching(self, number, form="crush"):
        """Be a client at its stream; gives an iterator of what comes."""
        url = f"{self.path}/events?client_id={client_id(number)}&form={form}"
        async with open_client(self.address) as client:
            host = [("Host", f"127.0.0.1:{self.address.port}")]
            head = h11.Request(method="GET", target=url, headers=host)
            sent = client.parser.send(head), client.parser.send(h11.EndOfMessage())
            await client.stream.send_all(b"".join(sent))
            assert (await client.next_event()).status_code == 200
            yield Watched(client)

    async def ending(self, events):
        """Read until the run has ended, and return how."""
        async for event in events:
            if event["type"] == "run_complete":
                return event["payload"]["payload"]
        raise AssertionError("the stream ended before the run")


@define(eq=False)
class Watched:
    """What a client reads from its stream, event by event."""

    client: RawClient
    _rest: bytes = b""
    _events: deque = Factory(deque)

    def __aiter__(self):
        return self

    async def __anext__(self):
        while not self._events:
            piece = await self.client.next_event()
            if not isinstance(piece, h11.Data):
                raise StopAsyncIteration
            *lines, self._rest = (self._rest + bytes(piece.data)).split(b"\n")
            self._events += [orjson.loads(line[5:]) for line in lines if line.startswith(b"data:")]
        return self._events.popleft()


@asynccontextmanager
async def open_place(tmp_path, kind, script, *, sandbox="auto"):
    """Start a server whose only model is the scripted one, and open a workspace in it.

    In a *sandbox*, a command sees other process ids than this process does.
    """
    directory, home = tmp_path / "project", tmp_path / "home"
    directory.mkdir()
    config = home / ".config" / "crush" / "crush.json"
    config.parent.mkdir(parents=True)
    config.write_text(orjson.dumps({"crush_trio": {"sandbox": {"mode": sandbox}}}).decode())
    titles = []

    def choose(request):
        if "Write a title" in str(request.body):
            titles.append(request)
            return [Say("A title")]
        return answers.pop(0)

    answers = list(script)
    async with open_model_server(choose) as model, trio.open_nursery() as nursery:
        environment = {
            "HOME": str(home),
            "PATH": os.environ["PATH"],
            **KEYS[kind](model.base_url),
        }
        stop = trio.Event()
        [address] = await nursery.start(
            partial(
                run_server,
                [TcpAddress("127.0.0.1", 0)],
                settings=ServerSettings.from_environment(environment),
                shutdown=stop.wait,
            )
        )
        async with open_http_client(idle_limit=3.0) as http:
            post = partial(asked, http, address, "POST")
            who = {"path": str(directory), "client_id": client_id(1)}
            path = f"/v1/workspaces/{(await post('/v1/workspaces', who))['id']}"
            await post(f"{path}/agent/init", {"interactive": True})
            session = (await post(f"{path}/sessions", {"title": "New Session"}))["id"]
            with trio.fail_after(60):
                yield Place(http, address, model, directory, path, session)
        stop.set()


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.item("F2", "F4")
async def test_a_prompt_that_needs_tools_with_permissions_answered_by_another_client(
    tmp_path, kind
):
    script = [
        [Think("A file.", signature="sig"), CallTool("view", {"file_path": "greeting.txt"})],
        [
            CallTool(
                "edit",
                {"file_path": "greeting.txt", "old_string": "hello", "new_string": "goodbye"},
            )
        ],
        [
            CallTool(
                "bash", {"command": "tr a-z A-Z < greeting.txt > loud.txt", "description": "shout"}
            )
        ],
        [Say("Both "), Say("done.")],
    ]
    asked = []

    async def approve(place, events):
        async for event in events:
            if event["type"] == "permission_request":
                request = event["payload"]["payload"]
                asked.append((request["tool_name"], request["action"]))
                answer = {"permission": request, "action": "allow"}
                assert (await place.post("/permissions/grant", answer))["resolved"]

    async with open_place(tmp_path, kind, script) as place:
        (place.directory / "greeting.txt").write_text("hello\n")
        async with (
            place.watching(1) as mine,
            place.watching(2) as theirs,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(approve, place, theirs)
            await place.submit("say goodbye, loudly")
            ending = await place.ending(mine)
            nursery.cancel_scope.cancel()
        messages = await place.messages()
    assert ending["text"] == "Both done."
    assert asked == [("edit", "write"), ("bash", "execute")]
    assert (place.directory / "greeting.txt").read_text() == "goodbye\n"
    assert (place.directory / "loud.txt").read_text() == "GOODBYE\n"
    assert [m["role"] for m in messages] == ["user", *["assistant", "tool"] * 3, "assistant"]


@pytest.mark.parametrize("kind", KEYS)
async def test_cancel_while_the_model_streams_closes_its_connection(tmp_path, kind):
    gate = Gate("speaking")
    async with open_place(tmp_path, kind, [[Say("I was"), Pause(gate)]]) as place:
        async with place.watching(1) as events:
            await place.submit("go")
            await gate.reached()
            receipt = await place.post(f"/agent/sessions/{place.session}/cancel?receipt=1")
            ending = await place.ending(events)
        await trio.testing.wait_all_tasks_blocked(0.05)
        [asked] = [heard for heard in place.model.requests if heard.body.get("tools")]
    assert asked.connection.closed_by_client
    assert receipt["complete"]
    assert [hit["ended"] for hit in receipt["hits"]] == ["cancelled"]
    assert ending["cancelled"]


@pytest.mark.item("A20", "H12")
async def test_cancel_during_bash_leaves_no_process_and_the_receipt_lists_them(tmp_path):
    command = "trap '' TERM; (trap '' TERM; sleep 1000) & echo $$ $! > pids; wait"
    script = [[CallTool("bash", {"command": command, "description": "wait"})]]
    async with open_place(tmp_path, "openai", script, sandbox="off") as place:
        pipe = place.directory / "pids"
        os.mkfifo(pipe)
        async with place.watching(1) as events:
            await place.submit("go", permissions={"mode": "allow"})
            pids = [int(word) for word in (await trio.Path(pipe).read_text()).split()]
            with trio.fail_after(5):
                receipt = await place.post(f"/agent/sessions/{place.session}/cancel?receipt=1")
            ending = await place.ending(events)
    [hit] = receipt["hits"]
    assert receipt["complete"]
    assert "left" not in hit
    assert hit["seconds"] < 3
    assert set(pids) <= set(hit["processes"])
    assert ending["cancelled"]
    assert not any(alive(pid) for pid in pids)


async def test_a_cancel_that_cannot_stop_a_process_says_which(tmp_path, monkeypatch):
    monkeypatch.setattr(link, "GUARD", altered(link.GUARD, "hasty", "no token"))
    command = "(trap '' TERM; echo $BASHPID > pids; exec sleep 1000) & wait"
    script = [[CallTool("bash", {"command": command, "description": "wait"})]]
    async with open_place(tmp_path, "openai", script, sandbox="off") as place:
        pipe = place.directory / "pids"
        os.mkfifo(pipe)
        await place.submit("go", permissions={"mode": "allow"})
        pid = int(await trio.Path(pipe).read_text())
        with trio.fail_after(5):
            receipt = await place.post(f"/agent/sessions/{place.session}/cancel?receipt=1")
    os.kill(pid, signal.SIGKILL)
    [hit] = receipt["hits"]
    assert not receipt["complete"]
    assert (hit["ended"], hit["left"]) == ("cancelled", [pid])
    assert pid not in hit["processes"]


def alive(pid):
    return Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.item("D18", "B5")
async def test_a_key_that_is_refused_is_a_clear_error_and_is_never_repeated(tmp_path, kind):
    [key, *_] = KEYS[kind]("").values()
    script = [[Refuse(401, f"the key {key} is not valid")]]
    async with open_place(tmp_path, kind, script) as place:
        async with place.watching(1) as events:
            await place.submit("go")
            ending = await place.ending(events)
        messages = orjson.dumps(await place.messages()).decode()
        shown = orjson.dumps([await place.get(""), await place.get("/config")]).decode()
    assert "API key" in ending["error"]
    assert "Unauthorized" in messages
    for said in (ending["error"], messages, shown):
        assert key not in said


async def test_the_session_gets_a_title_and_its_usage_is_counted(tmp_path):
    async with open_place(tmp_path, "openai", [[Say("hello")]]) as place:
        async with place.watching(1) as events:
            await place.submit("hi there")
            wanted, sessions = {"run_complete", "A title"}, []
            while wanted:
                event = await anext(events)
                entity = event["payload"]["payload"]
                wanted -= {event["type"], entity.get("title")}
                sessions += [entity] if event["type"] == "session" else []
    assert any(session["title"] == "A title" for session in sessions)
    assert any(session["prompt_tokens"] > 0 for session in sessions)
