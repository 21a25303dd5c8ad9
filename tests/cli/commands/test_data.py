"""`crush-trio backup`, `restore` and `prune`: what they print and what they leave, without a server."""

import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import trio

from crush_trio.cli.commands.data.backup import back_up_directory
from crush_trio.cli.commands.data.prune import prune_directory
from crush_trio.cli.exits import ExitCode, NoData
from crush_trio.cli.main import main
from crush_trio.client import open_client
from crush_trio.clock import SystemClock
from crush_trio.server import open_server
from crush_trio.store.errors import StoreLocked
from crush_trio.store.sqlite.store import open_sqlite_store
from crush_trio.wire.views import DAY
from tests.store.stores import session

pytestmark = [pytest.mark.slow, pytest.mark.real_clock]


@pytest.fixture(autouse=True)
def place(monkeypatch, tmp_path):
    """A project with an old session and a new one, and a home."""
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "CRUSH_GLOBAL_DATA", "CRUSH_GLOBAL_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    now = SystemClock().unix()
    trio.run(write, project, [("old", now - 40 * DAY), ("new", now)])
    return project


async def write(project, sessions):
    async with open_sqlite_store(project / ".crush") as store:
        for name, at in sessions:
            await store.commit(session(name, title=f"the {name} one", at=at))


def stored(project):
    async def read():
        async with open_sqlite_store(project / ".crush") as store:
            return {each.id for each in await store.sessions()}

    return trio.run(read)


def configure(days):
    file = Path.home() / ".config" / "crush" / "crush.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"crush_trio": {"retention": {"sessions": days}}}))


# ── prune ───────────────────────────────────────────────────────────────────────────────────────


def test_without_a_limit_nothing_is_deleted(place, capsys):
    assert main(["prune"]) == 0
    assert "Everything is kept" in capsys.readouterr().out
    assert stored(place) == {"old", "new"}


def test_a_dry_run_lists_what_the_configuration_would_delete_and_deletes_nothing(place, capsys):
    configure(30)
    assert main(["prune", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "the old one" in out
    assert "the new one" not in out
    assert "1 session would be deleted" in out
    assert stored(place) == {"old", "new"}


def test_what_the_configuration_or_the_option_says_is_deleted(place, capsys):
    assert main(["prune", "--unused-for", "60d"]) == 0
    assert "No session is old enough" in capsys.readouterr().out
    configure(30)
    assert main(["prune"]) == 0
    assert "1 session was deleted" in capsys.readouterr().out
    assert stored(place) == {"new"}


def test_a_directory_without_sessions_stays_as_it_is(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    assert main(["prune", "--unused-for", "1d", "--cwd", str(tmp_path / "empty")]) == 0
    assert "no sessions" in capsys.readouterr().out
    assert list((tmp_path / "empty").iterdir()) == []


def test_where_a_server_has_the_directory_it_is_said_who_prunes(place, capsys):
    async def held():
        async with open_sqlite_store(place / ".crush"):
            return await trio.to_thread.run_sync(main, ["prune", "--unused-for", "1d"])

    assert trio.run(held) == ExitCode.FAILED
    assert "prunes this directory itself" in capsys.readouterr().err


# ── backup, restore ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("named", [".", ".crush"])
def test_a_backup_can_be_restored(place, tmp_path, capsys, named):
    file = tmp_path / "copy.db"
    assert main(["backup", named, str(file)]) == 0
    assert "2 sessions, 0 messages" in capsys.readouterr().out
    assert main(["prune", "--unused-for", "1d"]) == 0
    assert stored(place) == {"new"}
    assert main(["restore", str(file), str(place)]) == 0
    out = capsys.readouterr().out
    assert "Restored" in out
    assert "The former data is in" in out
    assert stored(place) == {"old", "new"}


@pytest.mark.parametrize(
    ("named", "sentence"), [("nowhere/at-all", "no directory"), ("../home", "has none")]
)
def test_what_has_no_data_cannot_be_copied(tmp_path, capsys, named, sentence):
    (tmp_path / "home").mkdir()
    assert main(["backup", named, str(tmp_path / "copy.db")]) == ExitCode.FAILED
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "copy.db").exists()


def test_a_file_that_exists_is_not_replaced(tmp_path, capsys):
    (tmp_path / "copy.db").write_text("precious")
    assert main(["backup", ".", str(tmp_path / "copy.db")]) == ExitCode.FAILED
    assert "choose another name" in capsys.readouterr().err
    assert (tmp_path / "copy.db").read_text() == "precious"


# ── With a server that has the directory open ───────────────────────────────────────────────────


async def test_a_workspace_that_is_open_is_copied_by_its_id_and_a_dry_run_asks_the_server(
    place, tmp_path, capsys, monkeypatch
):
    file = tmp_path / "copy.db"
    environ = {"HOME": str(tmp_path / "home"), "XDG_RUNTIME_DIR": str(tmp_path)}
    host = f"unix://{tmp_path}/crush-{os.getuid()}.sock"
    async with (
        open_server(host),
        open_client(host, environ=environ) as client,
        client.open_workspace(place) as workspace,
    ):
        assert await back_up_directory(environ, None, workspace.id[:8], place / "x", file) == 0
        assert "2 sessions" in capsys.readouterr().out
        assert await prune_directory(environ, str(place), 30 * DAY, True) == 0
        assert "1 session would be deleted" in capsys.readouterr().out
        with pytest.raises(NoData, match="not the id of one open workspace"):
            await back_up_directory(environ, None, "ffffffff", place / "x", tmp_path / "other.db")
        with pytest.raises(StoreLocked, match="prunes this directory itself"):
            await prune_directory(environ, str(place), 30 * DAY, False)
    assert stored_in(file) == {"old", "new"}


def stored_in(file):
    with closing(sqlite3.connect(file)) as copy:
        return {row[0] for row in copy.execute("SELECT id FROM sessions")}
