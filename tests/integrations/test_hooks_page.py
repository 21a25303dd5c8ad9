"""The page about hooks: its examples load and do what it says, and its tables are complete."""

import os
import re
from pathlib import Path
from types import SimpleNamespace

import orjson
import pytest
import trio

from crush_trio.clock import SystemClock
from crush_trio.config.load import read_draft
from crush_trio.config.sources import Places
from crush_trio.integrations import hook_answers, hook_input, hooks
from crush_trio.integrations.hooks import ConfiguredHooks
from crush_trio.tools.base import ToolResult
from crush_trio.wire.config import HookConfig
from tests.integrations.hook_programs import call, input_of

PAGE = (Path(__file__).parents[2] / "docs" / "hooks.md").read_text("utf-8")
CODE = set(re.findall(r"`([^`\n]+)`", PAGE))


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


async def ask(home, example, asked):
    """Ask the hooks of an example about a call, with the script of the page where it says."""
    [script] = blocks("sh")
    file = home / ".config" / "crush" / "hooks" / "no-force-push"
    file.parent.mkdir(parents=True)
    file.write_text(script)
    file.chmod(0o755)
    file.parent.with_name("crush.json").write_text(example)
    draft = read_draft(Places(directory=home, home=home, system_file=home / "none"))
    assert draft.warnings == ()
    live = SimpleNamespace(
        current=SimpleNamespace(
            config=draft.config,
            project=draft.project,
            environment={"PATH": os.environ["PATH"], "HOME": str(home)},
        )
    )
    asking = ConfiguredHooks(live=live, directory=home, clock=SystemClock())
    with trio.fail_after(30):
        return await asking.ask(asking.matching(asked.name), asked)


@pytest.mark.slow
@pytest.mark.real_clock
@pytest.mark.parametrize(("command", "refused"), [("git push --force", True), ("git push", False)])
async def test_the_hook_to_try_does_what_the_page_says(tmp_path, command, refused):
    verdict = await ask(tmp_path, blocks("json")[0], call(command=command))
    assert len(verdict.hooks) == 1
    assert verdict.combined.refuses is refused
    if refused:
        assert f"> {verdict.refusal().content}\n" in PAGE


@pytest.mark.slow
@pytest.mark.real_clock
async def test_the_short_hook_tells_the_model_something(tmp_path):
    verdict = await ask(tmp_path, blocks("json")[1], call("edit", file_path="a"))
    result = verdict.added_to(ToolResult(content="done"))
    assert result.content == "done\nRun make format when you have changed a file."


def test_the_call_on_the_page_is_what_a_hook_reads():
    [shown] = blocks("text")
    told = input_of(call(command="ls", description="look"), "/srv/app", "/")
    assert orjson.loads(shown) | {"session_id": "s1"} == orjson.loads(told.payload(HookConfig()))


def test_every_variable_key_and_number_is_on_the_page():
    told = input_of(call(command="", file_path=""), "/", "/")
    named = set(told.variables) | set(hook_answers._ENVELOPE) | set(hook_answers._ENVELOPE.values())
    assert named | {"halt", "continue", "stopReason", hook_answers.METADATA} <= CODE
    assert f"{hook_input.MAX_VARIABLE_BYTES:,} bytes" in PAGE
    assert f"has {hooks.TIMEOUT:g} seconds" in PAGE
    assert hooks.MAX_OUTPUT_BYTES == 1024**2
    assert f"| {hook_answers.DENY_EXIT_CODE} | the call is refused" in PAGE
    assert f"| {hook_answers.HALT_EXIT_CODE} | the same" in PAGE
