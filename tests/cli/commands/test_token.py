"""`crush-trio token` and `crush-trio audit`: what they print, and what they leave."""

import json
import os

import pytest
import trio

from crush_trio.audit.file import AuditFile
from crush_trio.audit.record import Action, AuditRecord, audit_path
from crush_trio.cli.commands import audit as audit_command
from crush_trio.cli.commands.audit import moment, print_records
from crush_trio.cli.commands.doctor import Level, audit, tokens
from crush_trio.cli.exits import ExitCode
from crush_trio.cli.main import main
from crush_trio.clock import SystemClock
from crush_trio.server.tokens import Right, TokenFile, Tokens, tokens_path


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    (tmp_path / "home").mkdir()
    for name in ("XDG_DATA_HOME", "CRUSH_GLOBAL_DATA", "CRUSH_TRIO_TOKEN", "CRUSH_TRIO_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def records():
    return AuditFile(audit_path(os.environ)).read(0, 100)


# ── token ───────────────────────────────────────────────────────────────────────────────────────


def test_a_token_is_printed_once_and_works_until_it_is_revoked(capsys):
    assert main(["token", "add", "phone", "--rights", "watch", "--expires", "30d"]) == 0
    out, err = capsys.readouterr()
    token = out.strip()
    assert "phone, watch, valid until" in err
    view = Tokens(None, TokenFile(tokens_path(os.environ)))
    assert view.find(token) == ("phone", Right.WATCH)

    assert main(["token", "list"]) == 0
    listed = capsys.readouterr().out
    assert "phone" in listed
    assert token not in listed
    assert main(["token", "list", "--json"]) == 0
    [row] = json.loads(capsys.readouterr().out)
    assert (row["name"], row["rights"], row["expired"]) == ("phone", "watch", False)

    assert main(["token", "revoke", "phone"]) == 0
    assert view.find(token) is None
    assert [(each.action, each.uid) for each in records()] == [
        (Action.TOKEN_ADDED, os.getuid()),
        (Action.TOKEN_REVOKED, os.getuid()),
    ]
    assert token not in audit_path(os.environ).read_text()


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["add", "a b"], ExitCode.MISUSED, "not a name for a token"),
        (["revoke", "none"], ExitCode.FAILED, "crush-trio token list"),
    ],
)
def test_mistakes_are_told_with_what_to_do(capsys, words, code, told):
    assert main(["token", *words]) == code
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--rights", "all"], ["--expires", "soon"], ["--expires", "0d"]])
def test_wrong_options_are_told_with_what_is_valid(capsys, words):
    with pytest.raises(SystemExit) as ended:
        main(["token", "add", "a", *words])
    assert ended.value.code == ExitCode.MISUSED
    assert "watch, answer, admin" in (told := capsys.readouterr().err) or "30d" in told


def test_without_tokens_the_list_says_how_to_make_one(capsys):
    main(["token", "list"])
    assert "crush-trio token add" in capsys.readouterr().out


# ── audit ───────────────────────────────────────────────────────────────────────────────────────


def note(time, what):
    record = AuditRecord(time=time, action=Action.CONFIG_CHANGED, token="desk", what=what)
    AuditFile(audit_path(os.environ)).append([record])


def test_the_newest_records_are_shown_as_lines_or_as_json(capsys):
    note("2026-01-01T00:00:00Z", "one\x1b[31m")
    note("2026-01-02T00:00:00Z", "two")
    assert main(["audit"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("2026-01-01T00:00:00Z  config_changed  token desk")
    assert "\x1b" not in first
    assert second.endswith("two")
    assert main(["audit", "--last", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["what"] == "two"
    assert main(["audit", "--since", "2026-01-02"]) == 0
    assert capsys.readouterr().out.count("\n") == 1
    assert main(["audit", "--since", "1h"]) == 0
    assert capsys.readouterr().out == ""


def test_there_may_be_no_audit_yet(capsys):
    assert main(["audit"]) == 0
    assert capsys.readouterr().out == ""


def test_a_moment_is_a_date_a_time_or_an_age():
    assert moment("2026-01-31") == "2026-01-31T00:00:00Z"
    assert moment("2026-01-31T02:00:00+02:00") == "2026-01-31T00:00:00Z"
    assert moment("2h") < moment("1h")
    for wrong in ("yesterday", "2026-02-31"):
        with pytest.raises(Exception, match="write 90m"):
            moment(wrong)


async def test_following_goes_on_with_new_records(capsys):
    given = [
        [AuditRecord(seq=7, action=Action.SENT, what="old")],
        [],
        [AuditRecord(seq=8, action=Action.SENT, what="new")],
    ]
    asked = []

    async def read(after, limit):
        await trio.lowlevel.checkpoint()
        asked.append(after)
        if not given:
            await trio.sleep_forever()
        return given.pop(0)

    with trio.move_on_after(60):
        await print_records(read, None, 10, follow=True, as_json=False)
    assert asked == [None, 7, 7, 8]
    assert [line.split()[-1] for line in capsys.readouterr().out.splitlines()] == ["old", "new"]
    assert audit_command.FOLLOW_PAUSE > 0


# ── doctor ──────────────────────────────────────────────────────────────────────────────────────


def test_doctor_tells_whether_the_audit_and_the_tokens_can_be_used():
    environ, clock = os.environ, SystemClock()
    assert [each.level for each in (*audit(environ), *tokens(environ, clock))] == [Level.OK] * 2
    assert not audit_path(environ).exists(), "asking leaves nothing"
    TokenFile(tokens_path(environ)).add("old", Right.WATCH, 0)
    assert tokens(environ, clock)[0].level is Level.WARN
    tokens_path(environ).write_text("{")
    assert tokens(environ, clock)[0].level is Level.FAIL
    path = audit_path(environ)
    path.parent.mkdir(parents=True)
    path.symlink_to("/dev/null")
    [finding] = audit(environ)
    assert finding.level is Level.FAIL
    assert "cannot be written" in finding.text
