"""The command of the torture kit: options, refusals, the scripted model, the page."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from crush_trio.config.files import check_types, unknown_keys
from crush_trio.testing.model.script import CallTool, Say
from crush_trio.testing.torture.__main__ import _parser, answer_to, configuration, main, table
from crush_trio.testing.torture.kit import LONG, SHORT, TOOL
from crush_trio.testing.torture.promises import PROMISES, Verdict

PAGE = (Path(__file__).parents[3] / "docs" / "torture.md").read_text("utf-8")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--url", "127.0.0.1:1"], "write tcp://127.0.0.1:1"),
        (["--url", "http://192.0.2.1:1"], "pass --remote if you may"),
        (
            ["--url", "http://192.0.2.1:1", "--remote", "--token", "secret"],
            "the token would be sent unencrypted",
        ),
        (["--url", "unix:///nonexistent/crush.sock"], "start it, or name another with --url"),
    ],
)
@pytest.mark.real_clock
def test_what_cannot_run_is_told_in_a_sentence(arguments, sentence, capsys, monkeypatch):
    monkeypatch.delenv("CRUSH_TRIO_TOKEN", raising=False)
    assert main(arguments) == 2
    told = capsys.readouterr().err
    assert told.startswith("cannot run: ")
    assert sentence in told
    assert "secret" not in told
    assert "Traceback" not in told


def test_a_report_says_why_nothing_could_be_checked(capsys):
    assert main(["--url", "http://192.0.2.1:1", "--json"]) == 2
    report = json.loads(capsys.readouterr().out)
    assert report["exit_code"] == 2
    assert "--remote" in report["cannot_run"]


def test_an_unknown_promise_is_refused_with_the_known_ones(capsys):
    with pytest.raises(SystemExit) as exited:
        main(["--url", "http://127.0.0.1:1", "--only", "nothing"])
    assert exited.value.code == 2
    assert "cancel-storm" in capsys.readouterr().err


def test_the_table_has_the_evidence_and_the_counts():
    found = [
        Verdict("stored", "stored messages equal streamed ones", "kept", "", 1.0),
        Verdict("endings", "every accepted run ends", "broken", "t-1 ended twice", 2.0),
    ]
    lines = table(found, 7)
    assert "every accepted run ends              broken" in lines
    assert "  endings: t-1 ended twice" in lines
    assert lines[-1] == "1 kept, 1 broken; --seed 7 makes the same choices again"


def test_the_page_lists_the_promises_and_the_options():
    rows = re.findall(
        r"^\| `([\w-]+)` \| ([^|]+?) \|", PAGE.partition("## Verdicts")[0], re.MULTILINE
    )
    assert rows == [(promise.name, promise.sentence) for promise in PROMISES]
    options = {text for action in _parser()._actions for text in action.option_strings}
    assert set(re.findall(r"^\| `(--[\w-]+)", PAGE, re.MULTILINE)) == options - {"-h", "--help"}


# ── The scripted model ──────────────────────────────────────────────────────────────────────────


def asked(prompt, **more):
    """Return a request of a server to the model."""
    body = {"messages": [{"role": "user", "content": prompt}], "tools": [{}], **more}
    return SimpleNamespace(text=prompt, body=body)


def test_the_printed_configuration_is_valid():
    tree = configuration("http://127.0.0.1:1/v1")
    check_types(tree, Path("crush.json"))
    assert list(unknown_keys(tree)) == []
    assert tree["models"]["large"]["provider"] in tree["providers"]


def test_the_scripted_model_answers_every_prompt_of_the_kit():
    assert [step.text for step in answer_to(asked(SHORT)) if isinstance(step, Say)] == ["ok "]
    assert len(answer_to(asked(LONG))) > 400
    assert answer_to(asked(TOOL)) == [CallTool("ls", {"path": "."})]
    after = asked(TOOL, messages=[{"role": "user", "content": TOOL}, {"role": "tool"}])
    assert answer_to(after) == [Say("That is all.")]
    assert isinstance(answer_to(asked(TOOL, tools=[]))[0], Say)  # for a title
