"""`sessions`, `permissions`, `config`, `import` and `doctor`, on a directory of the test's own."""

import io
import json
import os
import socket
import sqlite3
import sys

import orjson
import pytest
import trio

from crush_trio.audit.file import AuditFile
from crush_trio.audit.record import audit_path
from crush_trio.cli.commands.doctor import (
    Level,
    configuration,
    crush_sessions,
    data_directory,
    programs,
    providers,
    server,
    versions,
)
from crush_trio.cli.commands.import_ import default_root, find_database
from crush_trio.cli.commands.sessions import ago, roster_table, sessions_table
from crush_trio.cli.configuration import configuration_of
from crush_trio.cli.main import main
from crush_trio.config.checks import file_schema
from crush_trio.store.changes import RunAccepted, SessionCreated
from crush_trio.store.go_import import NotCrushDatabase
from crush_trio.store.sqlite.store import open_sqlite_store
from crush_trio.wire.runs import RunState, RunView
from crush_trio.wire.views import (
    Need,
    Roster,
    RosterRun,
    RosterSession,
    RosterWorkspace,
    Session,
    SessionGroup,
)
from tests.cli.drawing import drawn


@pytest.fixture(autouse=True)
def work(monkeypatch, tmp_path):
    """A directory to work in, a home without configuration, and no server."""
    for name in ("home", "run", "work"):
        (tmp_path / name).mkdir()
    kept = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8"}
    monkeypatch.setattr(os, "environ", kept)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("CRUSH_TRIO_BACKGROUND", "0")
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


def said(capsys, *arguments, code=0):
    """Run a command that ends with *code*; return what it says on standard output."""
    assert main(list(arguments)) == code
    return capsys.readouterr().out


# ── config ──────────────────────────────────────────────────────────────────────────────────────


def test_without_any_file_it_is_said_where_to_write_one(capsys, work):
    report = said(capsys, "config", "check")
    assert "none: the defaults are used" in report
    assert f"{work.parent}/home/.config/crush/crush.json" in report
    assert "large  demo/demo" in report
    assert not (work / ".crush").exists(), "looking changes nothing"


def test_files_warnings_and_models_are_shown_and_keys_are_not(capsys, work):
    provider = {"api_key": "sk-very-secret-very-secret", "base_url": "http://localhost:1"}
    model = {"id": "m", "name": "m", "context_window": 1, "default_max_tokens": 1}
    config = {"providers": {"local": {**provider, "models": [model]}}, "nonsense": 1}
    own = work.parent / "home" / ".config" / "crush"
    own.mkdir(parents=True)
    (own / "crush.json").write_text(json.dumps(config))
    (work / "crush.json").write_text("{}")
    report = said(capsys, "config", "check")
    assert f"{work}/crush.json  (project, not trusted: commands in it are not run)" in report
    assert "large  local/m" in report
    assert "nonsense: unknown key, ignored" in report
    assert "The configuration is valid." in report
    assert "very-secret" not in report


def test_a_mistake_is_named_with_its_file_its_place_and_what_belongs_there(capsys, work):
    (work / "crush.json").write_text('{"options": {"debug": "yes"}}')
    report = said(capsys, "config", "check", str(work), code=1)
    assert [line.strip() for line in report.splitlines()] == [
        "✗ The configuration is not valid.",
        f"{work}/crush.json",
        "options.debug: expected a boolean, got a string",
        "Next: correct the file, then check again.",
    ]


def test_the_schema_is_printed(capfdbinary):
    assert main(["config", "schema"]) == 0
    assert orjson.loads(capfdbinary.readouterr().out) == file_schema()


# ── import ──────────────────────────────────────────────────────────────────────────────────────


def make_go_database(folder):
    folder.mkdir()
    with sqlite3.connect(folder / "crush.db") as connection:
        connection.executescript(
            """
            CREATE TABLE sessions (id, parent_session_id, title, message_count, prompt_tokens,
                completion_tokens, cost, updated_at, created_at, summary_message_id, todos);
            CREATE TABLE messages (id, session_id, role, parts, model, created_at, updated_at,
                finished_at, provider, is_summary_message);
            CREATE TABLE files (id, session_id, path, content, version, created_at, updated_at);
            INSERT INTO sessions VALUES ('go-1', NULL, 'From Go', 1, 1, 1, 0.1, 5, 4, NULL, NULL);
            INSERT INTO messages VALUES ('gm-1', 'go-1', 'user',
                '[{"type":"text","data":{"text":"hello"}},{"type":"smell","data":{}}]',
                '', 4, 4, 4, '', 0);
            INSERT INTO files VALUES ('gf-1', 'go-1', 'a.txt', 'text', 0, 4, 4);
            """
        )
    connection.close()
    return folder


async def crush_here(work):
    return await crush_sessions(await configuration_of(work, dict(os.environ)))


@pytest.mark.slow
def test_sessions_of_the_go_program_are_taken_over_once(capsys, work):
    make_go_database(work / ".crush")
    advice = f"crush-trio import {work}/.crush/crush.db --cwd {work}"
    hint = f"1 session of Crush in {work}/.crush/crush.db not imported"
    assert f"{hint}; to do that: {advice}" in said(capsys, "sessions")
    own = work.parent / "home" / ".config" / "crush" / "crush.json"
    own.parent.mkdir(parents=True)
    nobody = {"base_url": "http://127.0.0.1:9", "models": [{"id": "m"}]}
    own.write_text(json.dumps({"providers": {"nobody": nobody}}))
    main(["run", "--timeout", "0.01", "hello"])
    assert hint in capsys.readouterr().err
    found = trio.run(lambda: crush_here(work))
    assert [(each.level, each.text, each.advice) for each in found] == [(Level.WARN, hint, advice)]
    report = said(capsys, "import", ".")
    assert "1 session with 1 message" in report
    assert "1 version of files" in report
    assert "left out 1 time: part of type 'smell'" in report
    again = said(capsys, "import", ".crush/crush.db")
    assert "Nothing was imported" in again
    assert "1 session already present" in again
    assert "of files" not in again
    listed = said(capsys, "sessions")
    assert "From Go" in listed
    assert "not imported" not in listed
    assert trio.run(lambda: crush_here(work)) == []
    assert "> hello" in said(capsys, "sessions", "show", "go-1")


def test_something_else_is_not_imported(capsys, work):
    (work / "notes.db").write_bytes(b"")
    assert main(["import", "notes.db"]) == 1
    what, following = capsys.readouterr().err.splitlines()
    assert "not a database of crush" in what
    assert following.startswith("Next: give the path of a crush.db")


def test_a_database_is_found_in_its_directory_and_in_the_one_above(tmp_path):
    folder = make_go_database(tmp_path / ".crush")
    for path in (tmp_path, folder, folder / "crush.db"):
        assert find_database(path) == folder / "crush.db"
    assert default_root(folder / "crush.db") == tmp_path
    assert default_root(tmp_path / "backup" / "crush.db") == tmp_path / "backup"
    with pytest.raises(NotCrushDatabase):
        find_database(tmp_path / "home")


# ── permissions ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_permission_rules_are_added_listed_and_removed(capsys, work):
    assert "There are no rules" in said(capsys, "permissions")
    assert "git push *" in said(capsys, "permissions", "add", "deny", "bash", "git push *")
    said(capsys, "permissions", "add", "--here", "allow", "bash", "npm test *")
    deny, allow = json.loads(said(capsys, "permissions", "--json"))
    assert (deny["decision"], deny.get("directory")) == ("deny", None)
    assert (allow["pattern"], allow["directory"]) == ("npm test *", str(work.resolve()))
    assert f"{work.parent}/home/.local/share/crush/crush.json" in said(
        capsys, "permissions", "list"
    )
    assert "Removed: deny bash git push *" in said(capsys, "permissions", "remove", deny["id"][:6])
    assert main(["permissions", "remove", deny["id"]]) == 1
    done = [each.what for each in AuditFile(audit_path(os.environ)).read(0, 10)]
    assert done == [
        "added a rule: deny bash",
        "added a rule: allow bash",
        f"removed the rule {deny['id']}",
    ]
    assert "list them with: crush-trio permissions" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["permissions", "add", "allow", "bash", "sh -c *"])
    told = capsys.readouterr().err
    assert "Invalid value for PATTERN: sh runs other programs" in told
    assert "file" not in told, "there is no file to correct"
    user = work.parent / "home" / ".config" / "crush" / "crush.json"
    user.parent.mkdir(parents=True)
    user.write_text(json.dumps({"permissions": {"rules": [{"decision": "ask", "tool": "edit"}]}}))
    [ask, _] = json.loads(said(capsys, "permissions", "list", "--json"))
    assert main(["permissions", "remove", ask["id"]]) == 1
    assert str(user) in capsys.readouterr().err
    assert list(work.iterdir()) == [], "the directory stays as it is"


# ── sessions ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_a_directory_without_sessions_has_none_and_stays_as_it_is(capsys, work):
    assert "There are no sessions here yet" in said(capsys, "sessions")
    assert said(capsys, "sessions", "--json") == "[]\n"
    assert list(work.iterdir()) == []


@pytest.mark.slow
def test_sessions_are_listed_shown_renamed_and_deleted(capsys):
    said(capsys, "run", "--demo", "-q", "-o", "json", "think about lunch")
    [listed] = json.loads(said(capsys, "sessions", "list", "--json"))
    short = listed["id"][:8]
    assert (
        said(capsys, "sessions", "rename", short, "A", "better", "title")
        .strip()
        .endswith("A better title")
    )
    assert "A better title" in said(capsys, "sessions")
    assert "> think about lunch" in said(capsys, "sessions", "show", short)
    shown = json.loads(said(capsys, "sessions", "show", short, "--json"))
    assert [message["role"] for message in shown["messages"]] == ["user", "assistant"]
    assert "think about lunch" in said(capsys, "sessions", "summarize", short)
    shown = json.loads(said(capsys, "sessions", "show", short, "--json"))
    assert shown["session"]["summary_message_id"] == shown["messages"][-1]["id"]
    assert "Deleted" in said(capsys, "sessions", "delete", "--yes", short)
    assert main(["sessions", "show", short]) == 1
    assert "session not found" in capsys.readouterr().err


def test_deleting_asks_first(capsys, monkeypatch):
    monkeypatch.setattr("click.termui.visible_prompt_func", lambda _: "n")
    assert main(["sessions", "delete", "abcdefgh"]) == 130


def test_deleting_in_a_script_tells_how_to_confirm(capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    with pytest.raises(SystemExit) as ended:
        main(["sessions", "delete", "abcdefgh"])
    assert ended.value.code == 2
    assert "nothing was deleted; in scripts use --yes" in capsys.readouterr().err


def test_a_table_of_sessions_shows_what_somebody_looks_for():
    found = [
        Session(id="0123456789", title="Tea\x1b[2J", message_count=3, updated_at=40, is_busy=True),
        Session(id="abcdefghij", updated_at=0),
    ]
    _, first, second = drawn(sessions_table(found, 100), 80)
    assert first.split() == ["01234567", "Tea␛[2J", "3", "1", "min", "ago", "busy"]
    assert second.split() == ["abcdefgh", "(no", "title)", "0", "1", "min", "ago"]


def test_a_roster_is_a_table_in_three_groups():
    def row(identity, group, **more):
        title = f"{identity}\x1b[2J"
        return RosterSession(id=identity, workspace_id="w", title=title, group=group, **more)

    roster = Roster(
        directory="/",
        version="1",
        right="admin",
        workspaces=(RosterWorkspace(id="w", path="/srv/tea", name="tea"),),
        sessions=(
            row("calm", SessionGroup.IDLE),
            row(
                "busy",
                SessionGroup.WORKING,
                queue=2,
                cost=0.5,
                run=RosterRun(id="r", state=RunState.ACTIVE, started_at=90),
            ),
            row("stuck", SessionGroup.NEEDS_YOU, needs=(Need.PERMISSION, Need.ERROR)),
        ),
    )
    lines = [line.split() for line in drawn(roster_table(roster, 100), 120)[1:]]
    assert [line[0] for line in lines] == ["Needs", "stuck", "Working", "busy", "Idle", "calm"]
    assert lines[1][2:5] == ["stuck␛[2J", "permission,", "error"]
    assert lines[3][3:7] == ["10", "s", "2", "$0.50"]


def test_without_a_server_there_is_no_roster(capsys):
    assert "No server is running" in said(capsys, "ps")
    assert json.loads(said(capsys, "ps", "--json"))["sessions"] == []


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "now"), (30, "30 s ago"), (60, "1 min ago"), (7300, "2 h ago"), (200_000, "2 d ago")],
)
def test_a_time_is_told_in_the_largest_unit(seconds, text):
    assert ago(seconds) == text


# ── doctor ──────────────────────────────────────────────────────────────────────────────────────


def test_a_healthy_place_is_called_healthy(capsys, work):
    report = said(capsys, "doctor")
    for subject in ("versions", "git", "rg", "server", "configuration", "sandbox", "model", "data"):
        assert subject in report
    assert "each command starts its own" in report
    assert "has no sessions yet" in report
    assert "→ set a key such as ANTHROPIC_API_KEY" in report
    assert not (work / ".crush").exists()


def test_a_key_is_told_to_be_there_and_never_shown(capsys, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-nobody-may-see-this-key")
    report = said(capsys, "doctor")
    assert "provider openai" in report
    assert "key present" in report
    assert "nobody-may-see" not in report


def test_a_broken_configuration_is_a_failure(capsys, work):
    (work / "crush.json").write_text("{")
    report = said(capsys, "doctor", code=1)
    assert "✗ configuration" in report
    assert "→ correct the file" in report


def test_limits_that_differ_are_shown_and_a_wrong_one_is_a_failure(capsys, monkeypatch):
    assert "all at their defaults" in said(capsys, "doctor")
    monkeypatch.setenv("CRUSH_TRIO_LIMITS", "answer=32MiB,active_runs=8")
    report = " ".join(said(capsys, "doctor").split())
    assert "✓ limits answer 32 MiB (default 16 MiB), active_runs 8 (default 64)" in report
    monkeypatch.setenv("CRUSH_TRIO_LIMITS", "answer=much")
    report = " ".join(said(capsys, "doctor", code=1).split())
    assert "✗ limits a limit is not valid: CRUSH_TRIO_LIMITS: answer cannot be 'much'" in report
    assert "→ write a number of bytes above 0" in report


def test_another_program_at_the_address_is_noticed(capsys, work):
    path = work.parent / "run" / f"crush-{os.getuid()}.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        listener.settimeout(5)

        def rude():
            with listener.accept()[0] as connection:
                connection.recv(1000)
                connection.sendall(b"HTTP/1.1 418 I am a teapot\r\ncontent-length: 0\r\n\r\n")

        async def both():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.to_thread.run_sync, rude)
                [finding] = await server(dict(os.environ), None)
                return finding

        finding = trio.run(both)
    assert finding.level is Level.WARN
    assert "another program answers there" in finding.text
    assert finding.advice


@pytest.mark.slow
def test_what_a_crash_left_behind_is_told_and_a_lock_names_its_owner(capsys, work):
    view = RunView(id="r1", session_id="s1", state=RunState.ACCEPTED)

    async def crash():
        async with open_sqlite_store(work / ".crush") as store:
            session = SessionCreated(session=Session(id="s1"))
            await store.commit(session, RunAccepted(run=view, prompt="x"))
            [finding] = await data_directory(await configuration_of(work, dict(os.environ)))
            return finding

    finding = trio.run(crash)
    assert finding.level is Level.OK
    assert f"belongs to process {os.getpid()}" in finding.text
    report = said(capsys, "doctor")
    assert "1 unfinished run of an earlier process" in report
    assert "has 1 session" in report


def test_versions_and_programs_are_found(monkeypatch):
    [finding] = versions()
    assert f"trio {trio.__version__}" in finding.text
    monkeypatch.setenv("PATH", "/nowhere")
    assert {finding.level for finding in programs()} == {Level.WARN}


def test_the_demo_is_one_finding_and_not_two(work):
    config = trio.run(configuration_of, work, dict(os.environ))
    assert [finding.level for finding in configuration(config)] == [Level.OK]


async def test_doctor_names_a_key_that_cannot_be_used(work):
    environment = {"HOME": os.environ["HOME"], "AWS_PROFILE": "mine"}
    finding = (await providers(await configuration_of(work, environment)))[-1]
    assert finding.level is Level.WARN
    assert finding.advice.startswith("AWS_PROFILE is set, but the provider bedrock")
