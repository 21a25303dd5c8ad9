"""Hooks in turns of a real agent: what each of their answers does to a call, and to the turn.

The commands are played by functions, so the explorer can place a cancel anywhere between them.
"""

from functools import partial
from pathlib import Path

import orjson
import pytest
import trio
import trio.testing

from crush_trio.testing.explore.checkpoints import Gate
from crush_trio.testing.explore.explorer import explore
from crush_trio.testing.model.provider import ScriptedProvider
from crush_trio.testing.model.script import CallTool, Say, by_text
from crush_trio.testing.server.agent import ScriptedTool, open_test_agent
from crush_trio.tools.base import ToolError, ToolResult, Wanted
from crush_trio.wire.asks import PermissionAction
from crush_trio.wire.config import HookConfig
from crush_trio.wire.messages import FinishReason, ToolResultPart
from crush_trio.wire.runs import RunState
from tests.agent.durable import check_complete, finish_of, parts_of
from tests.agent.whole_turn import Played, check_settled
from tests.integrations.hook_programs import answering, played

WANTED = Wanted(action="execute", description="look", params={}, path=Path("/nowhere/a"))


async def play(hooks, *tools, answers=None):
    """Let an agent answer one prompt; return how it ended, its messages, and the results in them."""
    script = [[CallTool("look", {"a": 1, "b": 1})], [Say("ok")]] if answers is None else answers
    model = ScriptedProvider(script)
    async with open_test_agent(model, tools, hooks=hooks) as bench:
        outcome = await bench.accept("go", run_id="r").wait()
        messages = await bench.messages()
        await check_complete(bench.store)
        assert len(bench.recorder.endings) == 1
    results = [part for message in messages for part in parts_of(message, ToolResultPart)]
    return outcome, messages, results


def shown(result):
    """Return what those who look on see of the hooks."""
    return orjson.loads(result.metadata)["hook"]


# ── What an answer does ─────────────────────────────────────────────────────────────────────────


@pytest.mark.item("I11")
async def test_a_refused_call_is_not_made_and_the_turn_goes_on():
    hooks, _ = played({"no": answering(2, reason="not here")})
    look = ScriptedTool("look")
    outcome, _, [result] = await play(hooks, look)
    assert look.calls == []
    assert (result.content, result.is_error) == ("A hook has refused this call: not here", True)
    assert shown(result)["decision"] == "deny"
    assert (outcome.state, outcome.text) == (RunState.COMPLETED, "ok")


@pytest.mark.item("I11", "D14")
async def test_a_halt_ends_the_turn_and_the_run_ends_as_usual():
    hooks, _ = played({"no": answering(49, reason="enough")})
    look = ScriptedTool("look")
    outcome, messages, [result] = await play(hooks, look)
    assert look.calls == []
    assert result.is_error
    assert finish_of(messages[1]).reason is FinishReason.END_TURN
    assert [message.role.value for message in messages] == ["user", "assistant", "tool"]
    assert outcome.state is RunState.COMPLETED
    assert outcome.text == result.content == "A hook has ended the turn: enough"


@pytest.mark.item("F5", "I11")
async def test_calls_behind_one_that_stops_the_turn_are_not_made():
    hooks, _ = played({"no": answering(49)}, HookConfig(command="no", matcher="stop"))
    tools = [
        ScriptedTool("beside", parallel=True),
        ScriptedTool("stop"),
        ScriptedTool("change"),
        ScriptedTool("look", parallel=True),
    ]
    calls = [CallTool(name) for name in ("beside", "stop", "change", "look", "look")]
    outcome, _, results = await play(hooks, *tools, answers=[calls])
    assert [len(tool.calls) for tool in tools] == [1, 0, 0, 0]
    assert [(result.name, result.is_error) for result in results] == [
        ("beside", False),
        *((name, True) for name in ("stop", "change", "look", "look")),
    ]
    assert outcome.text == "A hook has ended the turn"


@pytest.mark.item("I11")
async def test_the_tool_gets_what_the_hooks_made_of_the_call():
    hooks, _ = played({"patch": answering(updated_input={"b": 2, "c": 3})})
    look = ScriptedTool("look")
    _, messages, [result] = await play(hooks, look)
    [made] = look.calls
    assert orjson.loads(made.input) == {"a": 1, "b": 2, "c": 3}
    assert result.content == "ok"
    assert shown(result)["input_rewrite"] is True
    assert '"b":1' in messages[1].parts[0].input, "the model is not told that it said otherwise"


@pytest.mark.item("I11")
@pytest.mark.parametrize("fails", [False, True])
async def test_context_and_metadata_are_added_to_what_the_tool_says(fails):
    def look(_call):
        if fails:
            raise ToolError("broken", metadata={"own": 1})
        return ToolResult(content="seen", metadata={"own": 1})

    hooks, _ = played({"note": answering(context="mind the gap")})
    _, _, [result] = await play(hooks, ScriptedTool("look", look))
    assert result.content == ("broken" if fails else "seen") + "\nmind the gap"
    assert result.is_error is fails
    assert orjson.loads(result.metadata) == {
        "own": 1,
        "hook": {
            "hook_count": 1,
            "decision": "none",
            "hooks": [{"name": "note", "decision": "none"}],
        },
    }


@pytest.mark.item("I9")
async def test_tools_that_no_hook_matches_are_used_as_ever():
    hooks, programs = played({"no": answering(2)}, HookConfig(command="no", matcher="^other$"))
    _, _, [result] = await play(hooks, ScriptedTool("look"))
    assert (result.content, result.metadata) == ("ok", "")
    assert programs.opened == []


async def test_a_tool_that_is_not_there_is_no_reason_to_ask():
    hooks, programs = played({"no": answering(2)})
    _, _, [result] = await play(hooks)
    assert result.content == "there is no tool named look"
    assert programs.opened == []


@pytest.mark.item("I11", "H8")
async def test_calls_side_by_side_have_their_own_answers():
    async def judge(program):
        await trio.sleep(1)
        return 2 if program.command.env["CRUSH_TOOL_INPUT_COMMAND"] == "bad" else 0

    hooks, _ = played({"judge": judge})
    look = ScriptedTool("look", parallel=True)
    calls = [CallTool("look", {"command": word}) for word in ("good", "bad", "fine")]
    _, _, results = await play(hooks, look, answers=[calls, [Say("ok")]])
    assert {orjson.loads(call.input)["command"] for call in look.calls} == {"good", "fine"}
    assert sorted(result.is_error for result in results) == [False, False, True]


@pytest.mark.item("I11")
async def test_the_tools_of_a_task_are_used_without_hooks():
    hooks, programs = played({"note": answering(context="noted")})
    look = ScriptedTool("view")
    answers = by_text(
        {
            "go": [[CallTool("agent", {"prompt": "find"})], [Say("ok")]],
            "find": [[CallTool("view")], [Say("found")]],
        }
    )
    outcome = None
    async with open_test_agent(ScriptedProvider(answers), [look], hooks=hooks) as bench:
        outcome = await bench.accept("go", run_id="r").wait()
    assert outcome.text == "ok"
    assert len(look.calls) == 1
    assert [each.command.env["CRUSH_TOOL_NAME"] for each in programs.opened] == ["agent"]


# ── Approval ────────────────────────────────────────────────────────────────────────────────────


async def wants(call):
    await call.permit(WANTED)
    return ToolResult(content="done")


@pytest.mark.item("F8", "I11")
async def test_a_yes_is_for_the_call_it_was_given_for_and_no_other():
    async def judge(program):
        first = program.command.env["CRUSH_TOOL_INPUT_COMMAND"] == "first"
        program.stdout.append(b'{"decision": "allow"}' if first else b"")
        return 0

    hooks, _ = played({"judge": judge})
    calls = [CallTool("look", {"command": word}, id=word) for word in ("first", "second")]
    model = ScriptedProvider([calls, [Say("ok")]])
    async with open_test_agent(model, [ScriptedTool("look", wants)], hooks=hooks) as bench:
        run = bench.accept("go", run_id="r")
        await trio.testing.wait_all_tasks_blocked()
        [asked] = bench.permissions.pending
        assert asked.tool_call_id == "second"
        assert bench.permissions.answer(asked.id, PermissionAction.DENY)
        await run.wait()
        results = [p for m in await bench.messages() for p in parts_of(m, ToolResultPart)]
    assert [(each.tool_call_id, each.is_error) for each in results] == [
        ("first", False),
        ("second", True),
    ]


@pytest.mark.item("F8", "I11")
@pytest.mark.parametrize("said", [{}, {"context": "x"}, {"updated_input": {"b": 2}}])
async def test_a_hook_without_a_decision_approves_nothing(said):
    hooks, _ = played({"silent": answering(**said)})
    model = ScriptedProvider([[CallTool("look")]])
    async with open_test_agent(model, [ScriptedTool("look", wants)], hooks=hooks) as bench:
        run = bench.accept("go", run_id="r")
        await trio.testing.wait_all_tasks_blocked()
        assert len(bench.permissions.pending) == 1
        bench.cancel()
        await run.wait()


# ── Cancelling, in every order ──────────────────────────────────────────────────────────────────


async def cancel_against_the_answer_of_a_hook(code, delay):
    gate = Gate()

    async def judge(_program):
        await gate.wait()
        return code

    async def stubborn(_program):
        await gate.wait()
        for _ in range(5):
            await trio.lowlevel.checkpoint()
        return 0

    hooks, programs = played({"judge": judge, "stubborn": stubborn})
    look = ScriptedTool("look")
    scene = Played(ScriptedProvider([[CallTool("look")], [Say("ok")]]))
    async with open_test_agent(scene.model, [look], hooks=hooks) as bench:
        scene.bench = bench
        run = bench.accept("go", run_id="r")
        await gate.reached()

        async def later(action, steps):
            for _ in range(steps):
                await trio.lowlevel.checkpoint()
            action()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(later, gate.open, 1)
            nursery.start_soon(later, bench.cancel, 1 + delay)
        state = (await run.wait()).state
        assert programs.running == [], "a hook outlived its run"
        assert not (code and look.calls), "a refused call was made"
        await trio.testing.wait_all_tasks_blocked()
        await check_settled(scene)
        return state, bool(look.calls)


@pytest.mark.item("A20", "B1", "D17", "I11")
@pytest.mark.parametrize(
    ("code", "bounds", "endings"),
    [
        (
            0,
            {0: 1, 8: 1, 120: 0},
            {
                (RunState.CANCELLED, False),
                (RunState.CANCELLED, True),
                (RunState.COMPLETED, True),
            },
        ),
        (2, {0: 1, 10: 1, 120: 0}, {(RunState.CANCELLED, False), (RunState.COMPLETED, False)}),
        (49, {0: 1, 10: 1, 60: 0}, {(RunState.CANCELLED, False), (RunState.COMPLETED, False)}),
    ],
    ids=["no opinion", "deny", "halt"],
)
def test_every_schedule_of_a_cancel_and_a_hook_keeps_the_promises(
    code, bounds, endings, report_exploration
):
    found = set()
    for delay, deviations in bounds.items():
        scenario = partial(cancel_against_the_answer_of_a_hook, code, delay)
        report = explore(scenario, deviations=deviations)
        report_exploration(report)
        assert report.exhaustive
        found |= set(report.outcomes)
    assert found == endings
