"""Contract I.3: the hooks of a workspace, as its agent and its clients see them.

The parts have tests of their own in `tests/integrations/` and `tests/agent/turn/test_tool_hooks.py`; here a
whole workspace is opened over real files, hooks are real programs, and clients ask over HTTP.
"""

import os
from contextlib import asynccontextmanager

import orjson
import pytest
import trio

from crush_trio.testing.model.script import CallTool, Say
from crush_trio.tools.shell.process import open_process_group
from tests.contract.machine import A, Machine
from tests.server.scenarios import ending_of, entity

pytestmark = [pytest.mark.slow, pytest.mark.real_clock]


def hooks(*commands, **more):
    return {"hooks": {"PreToolUse": [{"command": command, **more} for command in commands]}}


class Hooked(Machine):
    """A machine with hooks on it, where commands are run."""

    def of_the_project(self, config):
        (self.project() / "crush.json").write_bytes(orjson.dumps(config))

    @asynccontextmanager
    async def opened(self, **more):
        """Serve the project; yield it as a client knows it."""
        environment = {"PATH": os.environ["PATH"]}
        async with self.serve(environment=environment, opens=open_process_group) as server:
            yield await server.create(A, str(self.project()), **more)

    async def call(self, place, *calls):
        """Let the agent make some calls; return what they came to, how the run ended, and what was asked."""
        self.answers.clear()
        results, events = await self.ask(place, *([call] for call in calls), [Say("done")])
        asked = [event for event in events if event["type"] == "permission_request"]
        return results, entity(events[-1]), asked


@pytest.fixture
def machine(tmp_path):
    return Hooked(tmp_path)


def bash(command, **more):
    return CallTool("bash", {"command": command, "description": "a test"}, **more)


# ── I9, I10 ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.item("I9", "I10")
async def test_hooks_are_asked_about_the_tools_they_match_and_told_what_is_to_be_done(machine):
    told = 'echo "$CRUSH_TOOL_NAME in $CRUSH_CWD" >> asked; cat >> payloads'
    machine.configure(hooks(told, told, matcher="^(ba|z)sh$"))
    async with machine.opened() as place:
        await machine.call(place, CallTool("ls", {}), bash("echo hello"))
    assert (machine.project() / "asked").read_text() == f"bash in {machine.project()}\n"
    payload = orjson.loads((machine.project() / "payloads").read_bytes())
    assert (payload["event"], payload["tool_name"]) == ("PreToolUse", "bash")
    assert payload["tool_input"] == {"command": "echo hello", "description": "a test"}


@pytest.mark.item("I10")
@pytest.mark.parametrize(
    "script", ["exit 1", "kill -9 $$", "echo hm", """echo '{"decision"'""", "no-such-program"]
)
async def test_a_hook_that_fails_stops_nobody(machine, script):
    machine.configure(hooks(script))
    async with machine.opened() as place:
        [result], ending, _ = await machine.call(place, bash("echo hello"))
    assert "hello" in result["content"]
    assert ending["text"] == "done"


# ── I11 ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.item("I11")
async def test_a_hook_refuses_a_call_and_the_turn_goes_on(machine):
    guard = 'case "$CRUSH_TOOL_INPUT_COMMAND" in *secret*) echo "not that" >&2; exit 2;; esac'
    machine.configure(hooks(guard, name="guard"))
    async with machine.opened() as place:
        results, ending, asked = await machine.call(place, bash("touch secret"), bash("echo hello"))
    refused, made = results
    assert refused["is_error"]
    assert refused["content"] == "A hook has refused this call: not that"
    assert orjson.loads(refused["metadata"])["hook"] == {
        "hook_count": 1,
        "decision": "deny",
        "reason": "not that",
        "hooks": [{"name": "guard", "decision": "deny", "reason": "not that"}],
    }
    assert asked == [], "a refused call asks nobody"
    assert not (machine.project() / "secret").exists()
    assert "hello" in made["content"]
    assert orjson.loads(made["metadata"])["hook"]["decision"] == "none"
    assert ending["text"] == "done"


@pytest.mark.item("I11")
async def test_a_hook_ends_the_turn_and_the_run_ends_as_usual(machine):
    machine.configure(hooks("echo enough >&2; exit 49"))
    async with machine.opened() as place:
        [result], ending, _ = await machine.call(place, bash("echo hello"))
    assert result["is_error"]
    assert ending["text"] == result["content"] == "A hook has ended the turn: enough"
    assert not ending.get("error")
    assert not ending.get("cancelled")
    assert machine.answers == [[Say("done")]], "the model was not asked again"


@pytest.mark.item("I11")
async def test_a_hook_rewrites_what_a_tool_is_given_and_adds_to_what_it_says(machine):
    said = {"updated_input": {"command": "echo rewritten"}, "context": "a hook was here"}
    machine.configure(hooks(f"echo '{orjson.dumps(said).decode()}'"))
    async with machine.opened() as place:
        [result], _, _ = await machine.call(place, bash("echo original"))
    assert "rewritten" in result["content"]
    assert "original" not in result["content"]
    assert result["content"].endswith("\na hook was here")
    metadata = orjson.loads(result["metadata"])
    assert metadata["description"] == "a test"
    assert metadata["hook"]["input_rewrite"] is True


@pytest.mark.item("F8", "I11")
async def test_a_hook_approves_one_call_and_no_other(machine):
    yes = """case "$CRUSH_TOOL_INPUT_COMMAND" in *one) echo '{"decision": "allow"}';; esac"""
    machine.configure(hooks(yes))
    machine.answers += [[bash("touch one", id="c1"), bash("touch two", id="c2")], [Say("done")]]
    async with machine.opened(interactive=True) as place:
        session = await place.create_session()
        with await place.watch(A) as events:
            await place.submit(session, "go", "r")
            wanted = await events.until(lambda event: event["type"] == "permission_request")
            assert entity(wanted)["tool_call_id"] == "c2"
            assert (machine.project() / "one").exists()
            await place.cancel(session)
            await events.until(ending_of("r"))
    assert not (machine.project() / "two").exists()


@pytest.mark.item("I11")
async def test_hooks_follow_the_configuration(machine):
    async with machine.opened() as place:
        [result], _, _ = await machine.call(place, bash("echo hello"))
        assert "hook" not in orjson.loads(result["metadata"])
        body = {"scope": 0, "key": "hooks.PreToolUse", "value": [{"command": "exit 2"}]}
        assert (await place.request("POST", "/config/set", body)).status == 200
        [result], _, _ = await machine.call(place, bash("echo hello"))
        assert result["is_error"]


@pytest.mark.item("I11")
@pytest.mark.parametrize("trusted", [False, True], ids=["untrusted", "trusted"])
async def test_the_hooks_of_a_project_wait_for_its_user_to_trust_it(machine, trusted):
    trust = {"crush_trio": {"trusted_directories": [str(machine.project())]}} if trusted else {}
    machine.configure(hooks("touch mine") | trust)
    machine.of_the_project(hooks("touch theirs"))
    async with machine.opened() as place:
        [info], _, _ = await machine.call(place, CallTool("crush_info", {}))
    assert (machine.project() / "theirs").exists() is trusted
    assert (machine.project() / "mine").exists() is not trusted, "one list takes another's place"
    notice = (
        "hooks: ignored, because the file came with the project; to trust it: crush-trio trust "
    )
    assert (notice in info["content"]) is not trusted


@pytest.mark.item("A20", "B1", "I11")
async def test_a_cancel_ends_the_hooks_that_run(machine):
    os.mkfifo(machine.project() / "ready")
    machine.configure(hooks("echo $$ > leader; echo > ready; sleep 60"))
    machine.answers += [[bash("echo hello")]]
    async with machine.opened() as place:
        session = await place.create_session()
        with await place.watch(A) as events:
            await place.submit(session, "go", "r")
            async with await trio.open_file(machine.project() / "ready") as ready:
                await ready.read()
            await place.cancel(session)
            ending = entity(await events.until(ending_of("r")))
    assert ending["cancelled"]
    with pytest.raises(ProcessLookupError):
        os.kill(int((machine.project() / "leader").read_text()), 0)
