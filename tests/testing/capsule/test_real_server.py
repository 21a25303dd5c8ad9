"""Runs of a real server are recorded and replayed: real sockets, a model behind HTTP, real commands."""

import os
import subprocess
import sys
from functools import partial

import orjson
import pytest
import trio

from crush_trio.agent.asks import permit
from crush_trio.agent.turn import tool_calls
from crush_trio.cli.commands.capsule import write_capsule
from crush_trio.cli.main import main
from crush_trio.client.client import open_client
from crush_trio.client.http import ApiError
from crush_trio.net.address import UnixAddress
from crush_trio.testing import Gate, open_model_server
from crush_trio.testing.capsule import NotReplayable, capsule_test, replay
from crush_trio.testing.capsule.file import read_capsule
from crush_trio.testing.model.script import CallTool, Pause, Refuse, Say, Think
from crush_trio.tools.shell.bash import BashTool
from tests.e2e.test_agent_over_sockets import KEYS, open_place

pytestmark = [pytest.mark.slow, pytest.mark.real_clock]

KEY = "sk-test-0123456789abcdef"
BUSY = [
    [Refuse(503, "busy", retry_after=0.1)],
    [
        Think("A file.", signature="sig"),
        Say("I see sk-test-01234"),
        Say("56789abcdef "),
        CallTool("bash", {"command": "echo hi > x; cat x", "description": "write"}),
    ],
    [CallTool("agent", {"prompt": "look around"})],
    [CallTool("ls", {"path": "."})],
    [Say("there is x")],
    [CallTool("bash", {"command": "rm -rf x", "description": "remove"})],
]
"""A retry, a permission granted, a sub-agent, a permission denied."""


async def answer_asks(place, events):
    """Grant the first permission and deny the second."""
    actions = iter(["allow", "deny"])
    async for event in events:
        if event["type"] == "permission_request":
            asked = event["payload"]["payload"]
            await place.post("/permissions/grant", {"permission": asked, "action": next(actions)})


async def ended(place, events, run_id):
    while (await place.ending(events)).get("run_id") != run_id:
        pass


async def record(directory):
    """Record two runs of one server; return their capsules, and what the third is refused with."""
    gate = Gate("speaking")
    script = [*BUSY, [Say("I was"), Pause(gate)], [Say("plain")]]
    async with open_place(directory, "openai", script) as place:
        async with place.watching(1) as mine, place.watching(2) as theirs:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(answer_asks, place, theirs)
                await place.submit(f"do things with {KEY}", "busy", record=True)
                await ended(place, mine, "busy")
                nursery.cancel_scope.cancel()
            await place.submit("go on", "cancelled", record=True)
            await gate.reached()
            await place.post(f"/agent/sessions/{place.session}/cancel")
            await ended(place, mine, "cancelled")
            await place.submit("again", "plain")
            await ended(place, mine, "plain")
        with pytest.raises(AssertionError) as refused:
            await place.get("/runs/plain/capsule")
        host = f"tcp://127.0.0.1:{place.address.port}"
        for run in ("busy", "cancelled"):
            file = directory / f"{run}.capsule"
            await write_capsule({}, host, str(place.directory), run, file)
    return str(refused.value)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Return the directory of the capsules of a real server's runs."""
    directory = tmp_path_factory.mktemp("recorded")
    (directory / "refused").write_text(trio.run(record, directory))
    return directory


def lines(file):
    return [orjson.loads(line) for line in file.read_bytes().splitlines()]


def rewritten(entries):
    return b"".join(orjson.dumps(each) + b"\n" for each in entries)


@pytest.mark.parametrize("run", ["busy", "cancelled"])
def test_a_run_of_a_real_server_replays_to_the_same_events_and_record(recorded, run):
    result = replay(recorded / f"{run}.capsule")
    assert result.same, str(result)
    kinds = {each["k"] for each in result.capsule.entries}
    assert {"request", "parts", "event", "stored"} <= kinds
    if run == "busy":
        assert {"failed", "tool", "permit", "answer", "result"} <= kinds
        assert len(result.capsule.of("stored")) == 2  # the run and its task
    else:
        assert result.capsule.end["state"] == "cancelled"
        assert len(result.capsule.of("cancel")) == 1


def test_a_capsule_has_no_secret_and_says_what_was_removed(recorded):
    data = (recorded / "busy.capsule").read_bytes()
    assert KEY.encode() not in data
    assert b"56789abcdef" not in data  # the second half of the key, which came by itself
    assert read_capsule(data).end["redacted"]["OPENAI_API_KEY"] >= 2
    assert (recorded / "busy.capsule").stat().st_mode & 0o777 == 0o600


def test_a_run_that_was_not_recorded_is_refused_with_what_to_do(recorded):
    assert "not_recorded" in (recorded / "refused").read_text()
    assert "run --record" in (recorded / "refused").read_text()


def test_the_command_says_that_a_replay_is_the_same_and_where_it_is_not(recorded, capsys):
    file = recorded / "busy.capsule"
    assert main(["replay", str(file)]) == 0
    assert capsys.readouterr().out.startswith("the same: ")
    entries = lines(file)
    [changed] = [
        each
        for each in entries
        if each.get("type") == "message"
        and "there is x" in str(each)
        and "tool_result" in str(each)
    ]
    changed["value"]["parts"][0]["data"]["content"] = "there is y"
    other = recorded / "changed.capsule"
    other.write_bytes(rewritten(entries))
    assert main(["replay", str(other)]) == 1
    said = capsys.readouterr().out
    assert "first difference: events of the call call_4_1 in session, item 1" in said
    assert "at /parts/0/data/content:" in said
    assert 'recorded: "there is y"' in said
    assert 'replayed: "there is x"' in said


def test_events_in_another_order_are_a_difference(recorded):
    entries = lines(recorded / "busy.capsule")
    asked = next(n for n, e in enumerate(entries) if e.get("type") == "permission_request")
    entries[asked - 1], entries[asked] = entries[asked], entries[asked - 1]
    difference = replay(rewritten(entries)).difference
    assert difference.recorded.what.startswith("permission_request bash")
    assert difference.replayed.what.startswith("permission_notification")


def test_a_changed_tool_description_is_a_difference(recorded, monkeypatch):
    monkeypatch.setattr(BashTool, "description", "Runs things.")
    difference = replay(recorded / "busy.capsule").difference
    assert difference.strand == "requests of session for a step"
    assert difference.where == "/tools/bash/0"
    assert '"Runs things."' in str(difference)


def test_changed_code_fails_the_test_of_one_line(recorded, monkeypatch):
    check = capsule_test(recorded / "busy.capsule")
    check()
    monkeypatch.setitem(permit._SENTENCES, permit.Refusal.DENIED, "No")
    with pytest.raises(AssertionError, match=r"busy\.capsule: first difference: events of session"):
        check()


def test_a_cancelled_run_that_now_says_something_else_is_a_difference(recorded, monkeypatch):
    monkeypatch.setattr(tool_calls.ToolRunner, "write", _lost)
    difference = replay(recorded / "busy.capsule").difference
    assert difference is not None
    assert "message created (tool)" in str(difference)


async def _lost(self, call, result):
    await trio.lowlevel.checkpoint()


# ── A killed server ─────────────────────────────────────────────────────────────────────────────


async def started(nursery, directory, environment):
    """Start a server process; return it when it listens."""
    command = [sys.executable, "-m", "crush_trio", "serve", "--host", f"unix://{directory}/sock"]
    serve = partial(
        trio.run_process,
        command,
        env=environment,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    process = await nursery.start(serve)
    assert b"Listening" in await process.stdout.receive_some()
    return process


async def test_the_capsule_of_a_run_whose_server_was_killed_is_readable_and_says_so(tmp_path):
    gate, project = Gate("speaking"), tmp_path / "project"
    await trio.Path(project).mkdir()
    address = UnixAddress(str(tmp_path / "sock"))
    script = [
        [CallTool("ls", {"path": "."})],
        [Say("I was"), Pause(gate)],
        [Say("after the restart")],
    ]

    def choose(request):
        return [Say("A title")] if "Write a title" in str(request.body) else script.pop(0)

    async with open_model_server(choose) as model, trio.open_nursery() as nursery:
        environment = {
            "HOME": str(tmp_path),
            "PATH": os.environ["PATH"],
            "XDG_RUNTIME_DIR": str(tmp_path),
            **KEYS["openai"](model.base_url),
        }
        server = await started(nursery, tmp_path, environment)
        async with open_client(address) as client:
            with trio.fail_after(60):
                async with client.open_workspace(str(project)) as workspace:
                    session = await workspace.sessions.create()
                    run = await workspace.submit("go", session=session.id, record=True)
                    await gate.reached()
                    server.kill()
                    await server.wait()
                    await trio.Path(tmp_path, "sock").unlink()
                    await started(nursery, tmp_path, environment)
                    assert (await run.wait()).state == "interrupted"
                    data = await workspace.runs.capsule(run.run_id)
                    other = await workspace.submit("x", session=session.id)
                    with pytest.raises(ApiError, match="not recorded") as refused:
                        await workspace.runs.capsule(other.run_id)
        nursery.cancel_scope.cancel()
    assert refused.value.code == "not_recorded"
    capsule = read_capsule(data)
    assert capsule.end == {"t": 0, "k": "end", "state": "interrupted", "complete": False}
    assert capsule.header["prompt"] == "go"
    assert [each["name"] for each in capsule.of("tool")] == ["ls"]
    with pytest.raises(NotReplayable, match="interrupted"):
        await trio.to_thread.run_sync(replay, data)
