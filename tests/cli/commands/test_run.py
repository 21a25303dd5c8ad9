"""How `run` finds out that a tool call was refused permission: by a field, not by a sentence."""

import json
import os
import time
from pathlib import Path

import orjson
import pytest
import trio

from crush_trio.agent.asks import permit
from crush_trio.agent.asks.attendance import DEFAULT_PATIENCE
from crush_trio.cli.exits import ExitCode
from crush_trio.cli.following import CANCEL_LIMIT, Canceller, RunWatcher
from crush_trio.cli.main import main
from crush_trio.client.http import AnswerLost
from crush_trio.client.messages import MessageRestarted, TextPiece, ToolCallFinished, ToolResult
from crush_trio.wire.asks import REFUSAL_KEY, Refusal, is_refused
from crush_trio.wire.messages import ToolCallPart, ToolResultPart

CALL = ToolCallPart(id="c1", name="bash", input='{"command":"touch x"}', finished=True)
REFUSED = orjson.dumps({"diff": "", REFUSAL_KEY: Refusal.DENIED}).decode()


class Silent:
    """A reporter that shows nothing."""

    def tell(self, piece):
        pass


def watched(*pieces):
    watcher = RunWatcher(Silent())
    for piece in pieces:
        watcher.see(piece)
    return watcher.denied, watcher.text_is_refusal


def result(content="no", metadata=REFUSED, *, is_error=True):
    part = ToolResultPart(
        tool_call_id="c1", name="bash", content=content, metadata=metadata, is_error=is_error
    )
    return ToolResult("m2", part)


CALLED = ToolCallFinished("m1", CALL)
SPOKE = TextPiece("m1", "I will make a file.")


@pytest.mark.item("F5")
@pytest.mark.parametrize(
    ("pieces", "seen"),
    [
        ([CALLED, result()], (CALL, True)),
        ([SPOKE, CALLED, result()], (CALL, False)),
        ([SPOKE, MessageRestarted("m1"), CALLED, result()], (CALL, True)),
        ([CALLED, result(), TextPiece("m3", "Then not.")], (None, False)),
        ([CALLED, result(permit.FORBIDDEN, metadata="")], (None, False)),
        ([CALLED, result(permit.DENIED, metadata='{"output":"x"}')], (None, False)),
        ([CALLED, result(is_error=False)], (None, False)),
        ([result()], (None, False)),
    ],
)
def test_a_refusal_counts_by_its_metadata_and_until_the_model_writes_more(pieces, seen):
    assert watched(*pieces) == seen


@pytest.mark.parametrize(
    ("metadata", "refused"),
    [
        (REFUSED, True),
        ("", False),
        (REFUSAL_KEY, False),
        (f'["{REFUSAL_KEY}"]', False),
        (f'{{"output": "{REFUSAL_KEY}"}}', False),
        (f'{{"{REFUSAL_KEY}": null}}', False),
    ],
)
def test_only_the_key_itself_says_that_a_call_was_refused(metadata, refused):
    assert is_refused(metadata) is refused


class DeafHandle:
    """The handle of a run on a server that is stopped."""

    async def cancel(self):
        await trio.sleep_forever()


async def test_a_cancel_is_told_at_once_and_ends_in_time_if_the_server_does_not_answer():
    """Nothing was shown, and the command waited for ever."""
    told = []
    reporter = Silent()
    reporter.cancelling = lambda: told.append(trio.current_time())
    canceller, began = Canceller(float("inf"), reporter), trio.current_time()

    async def request():
        await trio.sleep(100)
        assert told == []
        canceller.request()
        assert told == [began + 100]

    async def wait():
        with canceller.bounded():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(canceller.wait, DeafHandle())
                nursery.start_soon(request)

    with pytest.raises(AnswerLost, match="the cancel was not answered"):
        await wait()
    assert (told, trio.current_time()) == ([began + 100], began + 100 + CANCEL_LIMIT)


@pytest.fixture
def work(monkeypatch, tmp_path):
    for name in ("home", "run", "work"):
        (tmp_path / name).mkdir()
    kept = {
        "PATH": os.environ["PATH"],
        "LANG": "C.UTF-8",
        "HOME": str(tmp_path / "home"),
        "XDG_RUNTIME_DIR": str(tmp_path / "run"),
        "CRUSH_TRIO_BACKGROUND": "0",
    }
    monkeypatch.setattr(os, "environ", kept)
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


@pytest.mark.slow
@pytest.mark.item("F5")
def test_the_exit_code_of_a_refusal_does_not_depend_on_its_sentence(capsys, monkeypatch, work):
    monkeypatch.setitem(permit._SENTENCES, Refusal.FORBIDDEN, "Certainly not.")
    assert main(["run", "--demo", "-q", "run `touch made`"]) == ExitCode.DENIED
    printed = capsys.readouterr()
    assert printed.out == "", "the sentence is no answer of the model"
    assert "not allowed to use bash touch made" in printed.err


@pytest.mark.slow
def test_what_a_hook_wants_asked_is_not_said_to_be_allowed_by_a_policy(capsys, work):
    said = {"hookSpecificOutput": {"permissionDecision": "ask"}}
    hook = {"type": "command", "command": f"echo '{json.dumps(said)}'"}
    file = Path(os.environ["HOME"]) / ".config" / "crush" / "crush.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"hooks": {"PreToolUse": [{"matcher": "Bash", "hooks": [hook]}]}}))
    for more in ((), ("--policy", "ask"), ("--policy", "allow")):
        assert main(["run", "--demo", "-q", *more, "run `touch made`"]) == ExitCode.DENIED
        advice = capsys.readouterr().err
        assert "a hook says so, is asked under every policy; run it at a terminal" in advice
        assert "--allow-tool" not in advice


@pytest.mark.slow
@pytest.mark.item("F21")
def test_a_run_that_no_one_can_answer_ends_at_once_as_denied(capsys, work):
    began = time.monotonic()
    assert main(["run", "--demo", "-q", "--policy", "ask", "run `touch made`"]) == ExitCode.DENIED
    assert time.monotonic() - began < DEFAULT_PATIENCE / 2
    assert "not allowed to use bash touch made" in capsys.readouterr().err
    assert not (work / "made").exists()
    assert not (work / "made").exists()


@pytest.mark.slow
def test_in_a_script_without_a_model_nothing_is_run_and_the_exit_code_is_5(
    capsys, work, monkeypatch
):
    """It printed the text of the demo, with exit code 0."""
    assert main(["run", "-q", "hello"]) == ExitCode.NO_MODEL
    printed = capsys.readouterr()
    assert printed.out == ""
    what, following = printed.err.splitlines()
    assert what == "crush-trio: no model is configured, so nothing was run"
    assert following.startswith("Next: set a key such as ANTHROPIC_API_KEY")
    assert "--demo" in following
    monkeypatch.setenv("AWS_PROFILE", "mine")
    assert main(["run", "-q", "hello"]) == ExitCode.NO_MODEL
    assert "AWS_PROFILE is set, but the provider bedrock is not supported; use" in (
        capsys.readouterr().err
    )
    assert main(["run", "-q", "-m", "demo/demo", "think about tea"]) == ExitCode.OK
    assert "thought about tea" in capsys.readouterr().out


@pytest.mark.slow
def test_a_tool_that_prints_the_sentence_of_a_refusal_is_not_taken_for_one(capsys, work):
    command = f"echo '{permit.FORBIDDEN}'; exit 1"
    assert main(["run", "--demo", "-q", "--policy", "allow", f"run `{command}`"]) == ExitCode.OK
    assert permit.FORBIDDEN in capsys.readouterr().out
