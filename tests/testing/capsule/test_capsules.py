"""Capsules of runs in memory: what is recorded, what is bounded, what is redacted, what can be replayed."""

from pathlib import Path

import orjson
import pytest
import trio
import trio.testing
from attrs import Factory, define, evolve

from crush_trio.agent.record import recorded
from crush_trio.agent.record.recording import current_recording
from crush_trio.agent.record.redactor import Redactor
from crush_trio.cli.main import main as program
from crush_trio.config.checks import HookEvent
from crush_trio.config.secrets.known import KnownSecrets
from crush_trio.integrations.hook_answers import Decision, HookAnswer, combine_answers
from crush_trio.testing import CallTool, Say, Sleep
from crush_trio.testing.capsule import NotReplayable, replay
from crush_trio.testing.capsule.file import CapsuleInvalid, read_capsule
from crush_trio.testing.model.script import by_text
from crush_trio.testing.server.server import client_id
from crush_trio.tools.base import ToolResult
from crush_trio.wire.config import HookConfig, ProviderConfig
from tests.testing.capsule.played import CONFIG, MODEL, ended, open_agent_server, run_recorded

WIDE = evolve(MODEL, context_window=10**9)
KEY = "correct-horse-battery-9"


@define
class Reading:
    """A tool that returns a text of some length."""

    text: str
    name: str = "read_all"
    parallel: bool = True
    description: str = "Reads all."
    parameters: dict = Factory(lambda: {"type": "object", "properties": {}})
    metadata: dict = Factory(dict)

    async def run(self, call):
        await trio.sleep(0.5)
        call.progress("halfway")
        return ToolResult(content=self.text, metadata=self.metadata)


def record(main, **settings):
    """Run an async function with a server and a workspace on the virtual clock; return its result."""

    async def play():
        script = settings.pop("script")
        async with open_agent_server(script, **settings) as (server, place):
            return await main(server, place)

    return trio.run(play, clock=trio.testing.MockClock(autojump_threshold=0))


def silent(_request):
    """Answer with some words, and then nothing for a day."""
    return [Say("I was"), Sleep(86_400)]


# ── Replays ─────────────────────────────────────────────────────────────────────────────────────


def test_a_later_run_of_a_session_replays_with_its_history():
    async def main(_server, place):
        session = await place.create_session()
        await run_recorded(place, session, "first", "r1")
        return await run_recorded(place, session, "second", "r2")

    data = record(main, script=[[Say("one")], [Say("two")]])
    capsule = read_capsule(data)
    assert [each["role"] for each in capsule.header["history"]] == ["user", "assistant"]
    assert replay(data).same, str(replay(data))


def test_a_tool_of_the_program_is_played_with_its_progress():
    async def main(_server, place):
        return await run_recorded(place, await place.create_session(), "go", "r1")

    script = [[CallTool("read_all"), CallTool("read_all")], [Say("done")]]
    data = record(main, script=script, extra_tools=lambda _bench: [Reading("text")])
    assert [each["text"] for each in read_capsule(data).of("progress")] == ["halfway"] * 2
    assert replay(data).same, str(replay(data))


def test_a_difference_deep_in_a_long_text_is_shown():
    async def main(_server, place):
        return await run_recorded(place, await place.create_session(), "go", "r1")

    data = record(main, script=[[Say("same " * 200 + "before " + "same " * 200)]])
    changed = data.replace(b"same before same", b"same after same")
    told = str(replay(changed.replace(b"same after same", b"same before same", 1)))
    assert "same before same" in told
    assert "same after same" in told


def test_a_question_to_a_person_is_answered_as_it_was():
    asked = {
        "questions": [
            {"id": "q", "type": "yes_no", "question": "Really?", "description": "It matters."}
        ]
    }

    async def main(_server, place):
        session = await place.create_session()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(answer, place)
            return await run_recorded(place, session, "ask me", "r1")

    async def answer(place):
        await trio.sleep(1)
        batches = (await place.request("GET", "/questions")).json()
        [question] = batches[0]["questions"]
        said = {"request_id": question["id"], "yes": True}
        answered = {"batch_request_id": batches[0]["id"], "responses": [said]}
        assert (await place.request("POST", "/questions/answer", answered)).status == 200

    data = record(main, script=[[CallTool("question", asked)], [Say("done")]])
    [given] = read_capsule(data).of("answer")
    assert given["resolution"] == "answered"
    assert replay(data).same, str(replay(data))


def test_a_prompt_that_was_folded_is_queued_again():
    async def main(_server, place):
        session = await place.create_session()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(queue, place, session)
            return await run_recorded(place, session, "go", "r1")

    async def queue(place, session):
        await trio.sleep(0.2)
        await place.submit(session, "and this")

    script = [[CallTool("read_all")], [Say("both")]]
    data = record(main, script=script, extra_tools=lambda _bench: [Reading("text")])
    assert [each["prompt"] for each in read_capsule(data).of("fold")] == ["and this"]
    assert replay(data).same, str(replay(data))


def test_what_the_next_run_of_the_session_does_is_not_in_the_capsule():
    """It begins at once when the run ends, while the recording is still being completed."""

    async def main(server, place):
        session = await place.create_session()
        store = server.stores.of("/srv/nowhere/project").inner
        read = store.run_messages

        async def slowly(runs):
            await trio.sleep(1)
            return await read(runs)

        store.run_messages = slowly
        async with trio.open_nursery() as nursery:
            nursery.start_soon(queue, place, session)
            return await run_recorded(place, session, "go", "r1")

    async def queue(place, session):
        await trio.sleep(0.2)
        await place.submit(session, "the next", "r2")

    script = [[CallTool("read_all")], [Say("one")], [Say("two")]]
    data = record(main, script=script, extra_tools=lambda _bench: [Reading("text")])
    assert b"the next" not in data
    assert replay(data).same, str(replay(data))


class Hooks:
    """Hooks that refuse the second call, and want a word added to the prompt."""

    calls = 0

    def matching(self, subject, event=HookEvent.PRE_TOOL_USE):
        wanted = {HookEvent.PRE_TOOL_USE, HookEvent.USER_PROMPT_SUBMIT}
        return (HookConfig(name="mine", command="true"),) if event in wanted else ()

    async def ask(self, hooks, call, result=None):
        await trio.sleep(0.1)
        self.calls += 1
        no = HookAnswer(decision=Decision.DENY, reason="not twice")
        return combine_answers(hooks, [no if self.calls > 1 else HookAnswer()])

    async def ask_about(self, hooks, occasion, subject=""):
        await trio.sleep(0.1)
        return combine_answers(hooks, [HookAnswer(context="Mind the gap.")])


def test_the_verdicts_of_hooks_are_played():
    async def main(_server, place):
        return await run_recorded(place, await place.create_session(), "go", "r1")

    script = [[CallTool("read_all")], [CallTool("read_all")], [Say("done")]]
    tools = {"extra_tools": lambda _bench: [Reading("text")]}
    data = record(main, script=script, hooks=Hooks(), **tools)
    assert len(read_capsule(data).of("hooks")) == 3
    assert "not twice" in data.decode()
    assert replay(data).same, str(replay(data))


class AskingHooks(Hooks):
    """Hooks that have a person decide about each call."""

    async def ask(self, hooks, call, result=None):
        await trio.lowlevel.checkpoint()
        said = combine_answers(hooks, [HookAnswer(decision=Decision.ASK, reason="mind")])
        return evolve(said, directory=Path("/srv/nowhere/project"))


@pytest.mark.parametrize(
    ("action", "reason", "goes_on"),
    [("allow", "", True), ("deny", "", False), ("deny", "not now", True)],
)
def test_what_a_person_decides_because_of_a_hook_is_decided_again(action, reason, goes_on):
    async def main(_server, place):
        session = await place.create_session()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(answer, place)
            return await run_recorded(place, session, "go", "r1")

    async def answer(place):
        await trio.sleep(3)
        [asked] = (await place.request("GET", "/permissions")).json()
        said = {"permission": asked, "action": action, "reason": reason}
        assert (await place.request("POST", "/permissions/grant", said)).status == 200

    script = [[CallTool("read_all")], [Say("done")]]
    tools = {"extra_tools": lambda _bench: [Reading("text")]}
    data = record(main, script=script, hooks=AskingHooks(), **tools)
    assert [each["given"] for each in read_capsule(data).of("answer")] == [
        {"allow": "once", "deny": "deny"}[action]
    ]
    assert ('"done"' in data.decode()) is goes_on
    assert replay(data).same, str(replay(data))


def test_a_model_that_is_too_slow_and_a_run_that_fails_replay_at_once():
    async def main(_server, place):
        return await run_recorded(place, await place.create_session(), "go", "r1")

    data = record(main, script=silent)
    capsule = read_capsule(data)
    assert capsule.end["state"] == "errored"
    assert capsule.end["t"] > 120
    assert "waiting for more of the answer" in data.decode()
    assert replay(data).same, str(replay(data))


def test_a_title_that_takes_longer_than_its_run_is_not_in_the_capsule():
    def slow_title(request):
        return [Sleep(50), Say("A title")] if "title" in request.system[0] else [Say("done")]

    async def main(_server, place):
        session = await place.create_session("New Session")
        await run_recorded(place, session, "go", "r1")
        with await place.watch(client_id(1)):
            await trio.sleep(100)
        return (await place.request("GET", "/runs/r1/capsule")).body

    data = record(main, script=slow_title)
    capsule = read_capsule(data)
    assert [each["for"] for each in capsule.of("request")].count("title") == 1
    assert capsule.end["t"] < 50
    assert replay(data).same, str(replay(data))


# ── Bounds ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.heavy
@pytest.mark.long
def test_a_herd_of_recorded_runs_keeps_its_capsules_apart():
    names = [f"prompt {number}" for number in range(50)]

    async def main(_server, place):
        capsules = {}

        async def one(name):
            session = await place.create_session()
            capsules[name] = await run_recorded(place, session, name, name.replace(" ", "-"))

        async with trio.open_nursery() as nursery:
            for name in names:
                nursery.start_soon(one, name)
        return capsules

    script = by_text({name: [[CallTool("read_all")], [Say(f"to {name}")]] for name in names})
    found = record(main, script=script, extra_tools=lambda _bench: [Reading("text")])
    for name, data in found.items():
        capsule = read_capsule(data)
        assert capsule.end["complete"]
        assert capsule.header["prompt"] == name
        others = (other for other in names if other != name and f'"{other}"' in data.decode())
        assert not list(others)
    for name in names[:3]:
        assert replay(found[name]).same, str(replay(found[name]))


@pytest.mark.heavy
@pytest.mark.long
def test_a_tool_result_of_100_mb_is_recorded_as_it_is_kept_for_the_model():
    async def main(_server, place):
        return await run_recorded(place, await place.create_session(), "go", "r1")

    script = [[CallTool("read_all")], [Say("done")]]
    text = "line of text\n" * (100_000_000 // 13)
    config = evolve(CONFIG, providers={"own": ProviderConfig(id="own", models=(WIDE,))})
    tools = {"extra_tools": lambda _bench: [Reading(text)]}
    data = record(main, script=script, config=config, **tools)
    assert len(data) < 5_000_000
    assert replay(data).same, str(replay(data))


def test_a_recording_that_reaches_its_limit_is_cut_and_says_so():
    async def main(server, place):
        server.server.workspace(place.id).agent.recordings.most = 60_000
        data = await run_recorded(place, await place.create_session(), "go", "r1")
        return data, (await place.request("GET", "/runs/r1")).json()

    data, run = record(main, script=[[Say("x" * 80_000)]])
    assert len(data) < 70_000
    assert read_capsule(data).cut
    assert not read_capsule(data).end["complete"]
    assert run["notices"] == [
        "The recording of this run was cut at 60,000 bytes; it cannot be replayed"
    ]
    with pytest.raises(NotReplayable, match="cut at the size limit"):
        replay(data)


def test_the_recording_goes_with_its_session_and_nothing_is_recorded_unasked():
    async def main(server, place):
        session = await place.create_session()
        await run_recorded(place, session, "go", "r1")
        await place.submit(session, "again", "r2")
        await ended(place, "r2")
        plain = await place.request("GET", "/runs/r2/capsule")
        tables = server.stores.of("/srv/nowhere/project").inner._tables
        runs = {run for run, _ in tables.recordings}
        await place.request("DELETE", f"/sessions/{session}")
        gone = await place.request("GET", "/runs/r1/capsule")
        return (
            plain,
            runs,
            tables,
            gone,
            dict(server.stores.of("/srv/nowhere/project").inner._tables.recordings),
        )

    plain, runs, _tables, gone, left = record(main, script=[[Say("one")], [Say("two")]])
    assert (plain.status, plain.json()["code"]) == (409, "not_recorded")
    assert len(runs) == 1
    assert (gone.status, gone.json()["code"]) == (409, "not_recorded")
    assert left == {}


async def test_without_a_recording_the_original_objects_are_used():
    provider, tool = object(), Reading("text")
    assert current_recording() is None
    assert recorded.recorded(provider, "s", "step") is provider
    assert recorded.recorded_tool(tool) is tool


# ── Redaction ───────────────────────────────────────────────────────────────────────────────────


def test_secrets_are_counted_by_the_name_of_their_variable():
    secrets = KnownSecrets()
    secrets.learn([KEY, "another-secret-0815"])
    redactor = Redactor(secrets, lambda: {"MY_TOKEN": KEY})
    tree = {"a": [f"x {KEY} y {KEY}", "another-secret-0815"], "b": "password=hunter2hunter2"}
    clean = orjson.dumps(redactor.tree(tree)).decode()
    assert KEY not in clean
    assert "hunter2" not in clean
    assert redactor.told == {"MY_TOKEN": 2, "known": 1, "pattern": 1}


def test_a_run_that_saw_a_secret_replays_without_it():
    async def main(_server, place):
        return await run_recorded(place, await place.create_session(), f"use {KEY}", "r1")

    script = [[Say("it is correct-horse"), Say("-battery-9!"), CallTool("read_all")], [Say("ok")]]
    data = record(
        main,
        script=script,
        environment={"MY_TOKEN": KEY}.items(),
        extra_tools=lambda _bench: [Reading(f"token: {KEY}")],
    )
    assert b"battery" not in data
    assert read_capsule(data).end["redacted"]["MY_TOKEN"] >= 3
    assert replay(data).same, str(replay(data))


def test_what_looks_like_a_secret_is_removed_from_the_metadata_of_a_result_too():
    """It is JSON in a text there, so the end of the line before is the letter n."""
    token = "ghp_" + "aB3dE5gH7jK9" * 3

    async def main(_server, place):
        return await run_recorded(place, await place.create_session(), "go", "r1")

    data = record(
        main,
        script=[[CallTool("read_all")], [Say("ok")]],
        extra_tools=lambda _bench: [Reading("ok", metadata={"content": f"first\n{token}"})],
    )
    assert token.encode() not in data
    assert replay(data).same, str(replay(data))


# ── Files ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "not the header"),
        (b"garbage\n", "line 1 is not JSON"),
        (b"[1]\n", "line 1 is not an object"),
        (b'{"a": 1}\n', "not the header"),
        (b'{"capsule": 2}\n', "version 2 of the format, and this program reads version 1"),
        (b'{"capsule": 1}\n', "cut off"),
        (b'{"capsule": 1}\n{"t": 0, "k": "part"}\n', "cut off"),
        (b'{"capsule": 1}\n{"t": 0, "k": "pa', "cut off"),
        (b'{"capsule": 1}\n{"t": 0, "k": "pa\n', "line 2 is not JSON"),
        (b'{"capsule": 1}\n{"k": "x"}\n{"t": 0, "k": "end"}\n', "line 2 has no kind or no time"),
    ],
)
def test_a_file_that_is_no_capsule_is_refused_with_the_reason(data, said):
    with pytest.raises(CapsuleInvalid, match=said):
        replay(data)


ASKED = {"t": 1, "k": "answer", "ask": {"tool_call_id": "c"}}


@pytest.mark.parametrize(
    ("header", "entry", "said"),
    [
        ({"granted": True}, {"t": 1, "k": "planned"}, "earlier answers in its session"),
        ({}, {**ASKED, "resolution": "unattended"}, "no client was connected"),
        ({}, {**ASKED, "resolution": "granted"}, "asked whether to trust the project"),
        ({}, {"t": 1, "k": "fold", "prompt": "x", "attachments": []}, "queued before it began"),
    ],
)
def test_what_cannot_be_replayed_is_refused_with_the_reason(header, entry, said):
    end = {"t": 2, "k": "end", "state": "completed", "complete": True}
    lines = ({"capsule": 1, **header}, entry, end)
    with pytest.raises(NotReplayable, match=said):
        replay(b"".join(orjson.dumps(line) + b"\n" for line in lines))


def test_a_run_that_has_not_ended_has_a_capsule_that_says_so():
    async def main(_server, place):
        session = await place.create_session()
        body = {"session_id": session, "prompt": "go", "run_id": "r1", "record": True}
        await place.request("POST", "/agent", body)
        await trio.sleep(1)
        data = (await place.request("GET", "/runs/r1/capsule")).body
        await place.cancel(session)
        return data

    data = record(main, script=silent)
    assert read_capsule(data).end["state"] == "active"
    with pytest.raises(NotReplayable, match="the run was active"):
        replay(data)


@pytest.mark.parametrize(("wanted", "status"), [(True, 200), (False, 409)])
def test_the_configuration_has_every_run_recorded(wanted, status):
    async def main(server, place):
        live = server.server.workspace(place.id).config
        live.current = evolve(live.current, record=wanted)
        session = await place.create_session()
        await place.submit(session, "go", "r1")
        await ended(place, "r1")
        return (await place.request("GET", "/runs/r1/capsule")).status

    assert record(main, script=[[Say("one")]]) == status


@pytest.mark.parametrize("content", [b"garbage", b'{"capsule": 7}\n'])
def test_the_command_refuses_what_it_cannot_replay(tmp_path, capsys, content):
    file = tmp_path / "x.capsule"
    file.write_bytes(content)
    assert program(["replay", str(file)]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert "not a capsule that can be read" in said.err


def test_a_summary_is_recorded_and_replayed_like_any_run():
    async def main(server, place):
        workspace = server.server.workspace(place.id)
        session = await place.create_session()
        await run_recorded(place, session, "first", "r1")
        workspace.config.current = evolve(workspace.config.current, record=True)
        assert (await place.request("POST", f"/agent/sessions/{session}/summarize")).status == 200
        [newest, _] = (await place.request("GET", "/runs")).json()
        return (await place.request("GET", f"/runs/{newest['id']}/capsule")).body

    data = record(main, script=[[Say("one")], [Say("in short: one")]])
    capsule = read_capsule(data)
    assert capsule.header["kind"] == "summarize"
    assert [each["for"] for each in capsule.of("request")] == ["summary"]
    assert replay(data).same, str(replay(data))
