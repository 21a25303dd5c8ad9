"""Hooks of prompts, sessions, results and the end of a turn, in turns of a real agent."""

import orjson
import pytest
import trio
import trio.testing

from crush_trio.agent.turn.prompt_hooks import MAX_CONTINUED
from crush_trio.testing.model.provider import ScriptedProvider
from crush_trio.testing.model.script import CallTool, Say
from crush_trio.testing.server.agent import ScriptedTool, open_test_agent
from crush_trio.tools.base import ToolResult
from crush_trio.tools.files.edit import EditTool, MultiEditTool, WriteTool
from crush_trio.wire.asks import PermissionAction, PermissionRequest
from crush_trio.wire.messages import Role, TextPart, ToolResultPart
from crush_trio.wire.runs import RunState
from tests.agent.durable import parts_of
from tests.integrations.hook_programs import answering, played, saying
from tests.tools.file_bench import open_bench

pytestmark = pytest.mark.item("I12")


def told(model, number=0):
    """Return the system messages of a request."""
    return "\n".join(model.requests[number].system)


def texts(messages, role):
    found = [message for message in messages if message.role is role]
    return [part.text for message in found for part in parts_of(message, TextPart)]


async def results(bench):
    return [part for each in await bench.messages() for part in parts_of(each, ToolResultPart)]


# ── Prompts and sessions ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "hook",
    [
        saying("It rains."),
        answering(hookSpecificOutput={"additionalContext": "It rains."}),
    ],
)
async def test_a_hook_of_the_prompt_adds_context(hook):
    hooks, programs = played({"x": hook}, event="UserPromptSubmit")
    model = ScriptedProvider([[Say("ok")]])
    async with open_test_agent(model, hooks=hooks) as bench:
        assert (await bench.accept("go", run_id="r").wait()).text == "ok"
    assert "# Hooks" in told(model)
    assert "It rains." in told(model)
    [program] = programs.opened
    assert program.command.env["CRUSH_EVENT"] == "UserPromptSubmit"


async def test_a_refused_prompt_reaches_no_model_and_the_run_says_why():
    hooks, _ = played({"no": answering(2, reason="no passwords")}, event="UserPromptSubmit")
    model = ScriptedProvider([[Say("ok")]])
    async with open_test_agent(model, hooks=hooks) as bench:
        outcome = await bench.accept("go", run_id="r").wait()
    assert model.requests == []
    assert outcome.state is RunState.ERRORED
    assert "no passwords" in outcome.error


async def test_a_prompt_that_is_folded_in_is_judged_too():
    hooks, programs = played({"judge": saying("checked")}, event="UserPromptSubmit")
    gate = trio.Event()

    async def wait(_call):
        await gate.wait()
        return ToolResult(content="seen")

    model = ScriptedProvider([[CallTool("look")], [Say("ok")]])
    async with open_test_agent(model, [ScriptedTool("look", wait)], hooks=hooks) as bench:
        run = bench.accept("go", run_id="r")
        await trio.testing.wait_all_tasks_blocked()
        bench.accept("and this")
        await trio.testing.wait_all_tasks_blocked()
        gate.set()
        await run.wait()
    assert len(programs.opened) == 2


async def test_a_hook_of_the_session_runs_once_and_its_words_stay():
    hooks, programs = played({"x": saying("Use tabs.")}, event="SessionStart")
    model = ScriptedProvider([[Say("one")], [Say("two")]])
    async with open_test_agent(model, hooks=hooks) as bench:
        await bench.accept("go", run_id="r").wait()
        await bench.accept("again", run_id="r2").wait()
    assert len(programs.opened) == 1
    assert all("Use tabs." in told(model, number) for number in (0, 1))


# ── The end of a turn ───────────────────────────────────────────────────────────────────────────


async def test_a_stop_hook_has_the_model_go_on():
    asked = []

    async def judge(program):
        await trio.lowlevel.checkpoint()
        asked.append(program)
        program.stderr.append(b"run the tests first")
        return 2 if len(asked) == 1 else 0

    hooks, _ = played({"judge": judge}, event="Stop")
    model = ScriptedProvider([[Say("done")], [Say("tests pass")]])
    async with open_test_agent(model, hooks=hooks) as bench:
        outcome = await bench.accept("go", run_id="r").wait()
        messages = await bench.messages()
    assert (outcome.state, outcome.text) == (RunState.COMPLETED, "tests pass")
    assert texts(messages, Role.USER) == ["go", "run the tests first"]
    assert texts(messages, Role.ASSISTANT) == ["done", "tests pass"]
    assert len(asked) == 2


async def test_a_stop_hook_that_never_agrees_is_ignored_in_the_end(caplog):
    hooks, _ = played({"never": answering(decision="block", reason="more")}, event="Stop")
    model = ScriptedProvider([[Say("done")]] * (MAX_CONTINUED + 1))
    async with open_test_agent(model, hooks=hooks) as bench:
        outcome = await bench.accept("go", run_id="r").wait()
    assert outcome.state is RunState.COMPLETED
    assert len(model.requests) == MAX_CONTINUED + 1
    assert "hook.stop_ignored" in [each.message for each in caplog.records]


# ── Tool calls ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("hook", "content", "state"),
    [
        (answering(2, reason="lint"), "ok\nA hook objects to this result: lint", "ran"),
        (answering(hookSpecificOutput={"additionalContext": "noted"}), "ok\nnoted", "ran"),
        (answering(**{"continue": False, "stopReason": "enough"}), None, "stopped"),
    ],
)
async def test_a_hook_after_a_call_adds_to_its_result(hook, content, state):
    hooks, _ = played({"x": hook}, event="PostToolUse")
    model = ScriptedProvider([[CallTool("look")], [Say("fine")]])
    async with open_test_agent(model, [ScriptedTool("look")], hooks=hooks) as bench:
        outcome = await bench.accept("go", run_id="r").wait()
        [result] = await results(bench)
    assert result.content == (content or "ok\nA hook objects to this result: enough")
    assert orjson.loads(result.metadata)["hook_after"]["hook_count"] == 1
    assert len(model.requests) == (2 if state == "ran" else 1)
    assert outcome.state is RunState.COMPLETED


@pytest.mark.parametrize("answer", [PermissionAction.ALLOW, PermissionAction.DENY])
async def test_a_hook_can_have_a_person_asked_about_a_call_that_asks_nothing(answer):
    said = {"permissionDecision": "ask", "permissionDecisionReason": "a look costs money"}
    hooks, _ = played({"x": answering(hookSpecificOutput=said)})
    model = ScriptedProvider([[CallTool("look", {"a": 1})], [Say("fine")]])
    look = ScriptedTool("look")
    async with open_test_agent(model, [look], hooks=hooks) as bench:
        run = bench.accept("go", run_id="r")
        await trio.testing.wait_all_tasks_blocked()
        [asked] = bench.permissions.pending
        assert asked.tool_name == "look"
        assert asked.params == {"a": 1}
        assert asked.description.endswith(": a look costs money")
        bench.permissions.answer(asked.id, answer)
        await run.wait()
        [result] = await results(bench)
    assert len(look.calls) == (answer is PermissionAction.ALLOW)
    assert result.is_error is (answer is PermissionAction.DENY)
    assert orjson.loads(result.metadata)["hook"]["decision"] == "ask"


EDITS = {
    EditTool: {"old_string": "one", "new_string": "two"},
    MultiEditTool: {"edits": [{"old_string": "one", "new_string": "two"}]},
    WriteTool: {"content": "two\n"},
}


@pytest.mark.real_clock
@pytest.mark.parametrize("tool", EDITS)
@pytest.mark.parametrize("answer", [PermissionAction.ALLOW, PermissionAction.DENY])
async def test_a_hook_has_a_person_asked_once_about_a_change_of_a_file_that_is_allowed(
    tmp_path, tool, answer
):
    said = {"permissionDecision": "ask", "permissionDecisionReason": "look at this"}
    hooks, _ = played({"x": answering(hookSpecificOutput=said)})
    async with open_bench(tmp_path) as files:
        path = await files.put_seen("a.txt", "one\n")
        wanted = {"file_path": str(path), **EDITS[tool]}
        model = ScriptedProvider([[CallTool(tool.name, wanted)], [Say("fine")]])
        async with open_test_agent(model, [tool(files.changes)], hooks=hooks) as bench:
            bench.permissions.allowed_tools = lambda: (tool.name,)
            events = bench.events.cursor()
            run = bench.accept("go", run_id="r")
            async for batch in events:
                if any(
                    isinstance(getattr(each, "entity", None), PermissionRequest)
                    for each in batch.events
                ):
                    break
            [asked] = bench.permissions.pending
            assert asked.description.endswith("look at this")
            assert asked.params["new_content"] == "two\n"
            assert files.get("a.txt") == "one\n"
            bench.permissions.answer(asked.id, answer)
            await run.wait()  # and nothing else is asked
            [result] = await results(bench)
    assert files.get("a.txt") == ("two\n" if answer is PermissionAction.ALLOW else "one\n")
    assert result.is_error is (answer is PermissionAction.DENY)
