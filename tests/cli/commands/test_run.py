"""How `run` finds out that a tool call was refused permission: by a field, not by a sentence."""

import os

import orjson
import pytest

from crush_trio.agent.asks import permissions
from crush_trio.cli.commands.run import _RunWatcher
from crush_trio.cli.exits import ExitCode
from crush_trio.cli.main import main
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
    watcher = _RunWatcher(Silent())
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
        ([CALLED, result(permissions.FORBIDDEN, metadata="")], (None, False)),
        ([CALLED, result(permissions.DENIED, metadata='{"output":"x"}')], (None, False)),
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


@pytest.fixture
def work(monkeypatch, tmp_path):
    for name in ("home", "run", "work"):
        (tmp_path / name).mkdir()
    kept = {
        "PATH": os.environ["PATH"],
        "LANG": "C.UTF-8",
        "HOME": str(tmp_path / "home"),
        "XDG_RUNTIME_DIR": str(tmp_path / "run"),
    }
    monkeypatch.setattr(os, "environ", kept)
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


@pytest.mark.slow
@pytest.mark.item("F5")
def test_the_exit_code_of_a_refusal_does_not_depend_on_its_sentence(capsys, monkeypatch, work):
    monkeypatch.setitem(permissions._SENTENCES, Refusal.FORBIDDEN, "Certainly not.")
    assert main(["run", "-q", "run `touch made`"]) == ExitCode.DENIED
    printed = capsys.readouterr()
    assert printed.out == "", "the sentence is no answer of the model"
    assert "not allowed to use bash touch made" in printed.err
    assert not (work / "made").exists()


@pytest.mark.slow
def test_a_tool_that_prints_the_sentence_of_a_refusal_is_not_taken_for_one(capsys, work):
    command = f"echo '{permissions.FORBIDDEN}'; exit 1"
    assert main(["run", "-q", "--policy", "allow", f"run `{command}`"]) == ExitCode.OK
    assert permissions.FORBIDDEN in capsys.readouterr().out
