"""The hooks of a call are asked at once, each has its time, and none outlives the call.

The commands are played by functions, under virtual time; `test_hook_processes.py` has real ones.
"""

import logging

import pytest
import trio
import trio.testing

from crush_trio.integrations.hook_answers import NO_OPINION, Decision
from crush_trio.integrations.hook_input import MAX_VARIABLE_BYTES
from crush_trio.integrations.hooks import GRACE, TIMEOUT
from crush_trio.wire.config import HookConfig
from tests.integrations.hook_programs import STOPPING, answering, call, configured, played
from tests.tools.process_probe import Reaped


async def ask(hooks, asked=None):
    asked = call() if asked is None else asked
    return await hooks.ask(hooks.matching(asked.name), asked)


@pytest.fixture
def logged(caplog):
    caplog.set_level(logging.INFO, logger="crush_trio.integrations.hooks")
    return lambda: caplog.records


@pytest.mark.item("I9")
async def test_all_hooks_run_at_the_same_time():
    hooks, programs = played({name: answering(seconds=10) for name in "abc"})
    began = trio.current_time()
    verdict = await ask(hooks)
    assert trio.current_time() == began + 10
    assert len(verdict.hooks) == 3
    assert programs.running == []


@pytest.mark.item("I9")
async def test_answers_count_in_the_order_of_the_configuration_not_of_their_coming():
    hooks, _ = played(
        {
            "slow": answering(seconds=2, context="one", updated_input={"a": 1, "b": 1}),
            "fast": answering(seconds=1, context="two", updated_input={"a": 2}),
        }
    )
    together = (await ask(hooks)).combined
    assert together.context == "one\ntwo"
    assert together.patch == {"a": 2, "b": 1}


@pytest.mark.item("I9")
async def test_a_no_that_comes_first_waits_for_the_others():
    hooks, _ = played(
        {"no": answering(2, reason="why"), "yes": answering(seconds=5, decision="allow")}
    )
    verdict = await ask(hooks)
    assert [each.decision for each in verdict.answers] == [Decision.DENY, Decision.ALLOW]
    assert verdict.combined.refuses


@pytest.mark.item("I9", "I10")
@pytest.mark.parametrize(("given", "seconds"), [(0, TIMEOUT), (-1, TIMEOUT), (5, 5)])
async def test_a_hook_has_its_time_and_no_more(given, seconds, logged):
    async def forever(_program):
        await trio.sleep_forever()

    hooks, programs = played(
        {"forever": forever, "no": answering(2)},
        HookConfig(command="forever", timeout=given, name="the slow one"),
        "no",
    )
    began = trio.current_time()
    verdict = await ask(hooks)
    assert trio.current_time() == began + seconds + STOPPING
    assert [each.decision for each in verdict.answers] == [Decision.NONE, Decision.DENY]
    assert programs.running == []
    assert [each.grace for each in programs.opened] == [GRACE, GRACE] == [1.0, 1.0]
    assert [(each.message, each.hook) for each in logged()] == [("hook.too_slow", "the slow one")]


@pytest.mark.item("I10")
@pytest.mark.parametrize("failure", [OSError("no such shell"), ValueError("embedded null byte")])
async def test_a_hook_that_cannot_be_started_has_no_opinion(failure, logged):
    hooks, _ = played({"broken": failure, "yes": answering(decision="allow")})
    verdict = await ask(hooks)
    assert verdict.answers[0] is NO_OPINION
    assert verdict.combined.decision is Decision.ALLOW
    assert [each.message for each in logged()] == ["hook.not_run"]


@pytest.mark.item("I10")
async def test_a_command_with_a_null_character_in_it_has_no_opinion(logged):
    hooks, programs = played({}, "a\0b")
    assert (await ask(hooks)).combined == NO_OPINION
    assert programs.opened == []
    assert [each.message for each in logged()] == ["hook.not_run"]


@pytest.mark.item("I10")
async def test_how_a_hook_failed_is_logged_without_secrets(logged):
    hooks, _ = played({"check --token=abc": answering(3, reason="api_key=hush went wrong")})
    assert (await ask(hooks)).combined == NO_OPINION
    [record] = logged()
    assert (record.message, record.exit_code) == ("hook.failed", 3)
    assert record.hook == "check --token=[redacted]"
    assert record.stderr == "api_key=[redacted] went wrong"


@pytest.mark.item("I10")
async def test_a_hook_runs_in_the_workspace_with_its_environment():
    hooks, programs = played(
        {"look": answering()}, environment={"PATH": "/bin", "CRUSH_EVENT": "x", "BASH_ENV": "/evil"}
    )
    await ask(hooks, call(command="ls"))
    [program] = programs.opened
    command = program.command
    assert str(command.working_dir) == "/project/work"
    assert command.argv[-1] == "look"
    assert command.env["PATH"] == "/bin"
    assert command.env["CRUSH_EVENT"] == "PreToolUse"
    assert command.env["CRUSH_TOOL_INPUT_COMMAND"] == "ls"
    assert command.env["CRUSH_CWD"] == "/project/work"
    assert command.env["CRUSH_PROJECT_DIR"] == "/project"
    assert "BASH_ENV" not in command.env


async def test_a_command_that_hooks_cannot_be_told_of_is_refused_and_nothing_is_started():
    hooks, programs = played({"look": answering(decision="allow")})
    verdict = await ask(hooks, call(command="x" * (MAX_VARIABLE_BYTES + 1)))
    assert verdict.combined.refuses
    assert programs.opened == []


@pytest.mark.item("I11")
async def test_the_hooks_are_those_of_the_moment():
    hooks, _ = played({"a": answering(), "b": answering()}, "a")
    assert [each.command for each in hooks.matching("bash")] == ["a"]
    hooks.live.current = configured("b").current
    assert [each.command for each in hooks.matching("bash")] == ["b"]
    hooks.live.current = configured().current
    assert hooks.matching("bash") == ()


@pytest.mark.item("I11", "A20")
async def test_a_cancelled_call_leaves_no_hook_behind():
    async def forever(_program):
        await trio.sleep_forever()

    hooks, programs = played({"a": forever, "b": forever, "done": answering()})
    reaped = Reaped()
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, hooks, call(reaped=reaped))
            await trio.testing.wait_all_tasks_blocked()
            assert len(programs.running) == 2
            scope.cancel()
    assert scope.cancelled_caught
    assert programs.running == []
    assert reaped.stopped == [7, 7]


async def test_a_hook_whose_time_was_up_was_not_stopped_by_a_cancel():
    async def forever(_program):
        await trio.sleep_forever()

    hooks, _ = played({"a": forever})
    reaped = Reaped()
    await ask(hooks, call(reaped=reaped))
    assert reaped.stopped == []
