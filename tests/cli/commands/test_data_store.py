"""`crush-trio store copy`, and `backup` and `restore` with PostgreSQL: what they print and what they leave."""

import sqlite3
from contextlib import closing

import pytest
import trio

from crush_trio.cli.exits import ExitCode
from crush_trio.cli.main import main
from crush_trio.store.postgres.opening import open_postgres_store
from crush_trio.store.sqlite.store import open_sqlite_store
from tests.store.postgres.server import new_database
from tests.store.stores import ids, message, session, text

pytestmark = [pytest.mark.slow, pytest.mark.real_clock]

SITE = "here"


@pytest.fixture(autouse=True)
def project(monkeypatch, tmp_path):
    """A project with a session, and a home."""
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "CRUSH_GLOBAL_DATA", "CRUSH_GLOBAL_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("CRUSH_TRIO_SITE", SITE)
    fill_file(tmp_path / "project", "s")
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "project"


@pytest.fixture
def url(monkeypatch):
    """An empty database, which the environment names."""
    made = new_database()
    monkeypatch.setenv("CRUSH_TRIO_STORE", made)
    return made


def fill_file(place, *names):
    place.mkdir(exist_ok=True)
    trio.run(fill, open_sqlite_store(place / ".crush"), names)


def fill_database(url, place, *names):
    place.mkdir(exist_ok=True)
    trio.run(fill, open_postgres_store(url, place, site=SITE), names)


async def fill(opening, names):
    async with opening as store:
        for name in names:
            await store.commit(session(name), message(f"m-{name}", text("hello"), session=name))


def in_file(path):
    with closing(sqlite3.connect(path)) as found:
        return {row[0] for row in found.execute("SELECT id FROM sessions")}


def in_database(url, place):
    async def read():
        async with open_postgres_store(url, place, site=SITE) as store:
            return set(ids(await store.sessions()))

    return trio.run(read)


# ── store copy ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("named", [".", ".crush"])
def test_a_directory_is_copied_into_a_database_and_back(project, url, tmp_path, capsys, named):
    assert main(["store", "copy", named, "env:CRUSH_TRIO_STORE"]) == 0
    out, err = capsys.readouterr()
    assert f"to {project} of site here in PostgreSQL" in out
    assert "1 session, 1 message" in out
    assert "compared one by one" in out
    assert err == "", "progress is for terminals"
    assert in_database(url, project) == {"s"}
    (tmp_path / "other").mkdir()
    assert main(["store", "copy", url, str(tmp_path / "other")]) == 0
    assert in_file(tmp_path / "other" / ".crush" / "crush-trio.db") == {"s"}
    assert in_file(project / ".crush" / "crush-trio.db") == {"s"}


def test_several_workspaces_are_copied_and_one_that_cannot_be_does_not_stop_the_others(
    project, url, tmp_path, capsys
):
    fill_file(tmp_path / "a", "in-a")
    fill_file(tmp_path / "b", "in-b")
    fill_database(url, tmp_path / "a", "there")
    named = [f"--workspace={tmp_path / name}" for name in ("a", "b", "project")]
    assert main(["store", "copy", "sqlite:", url, *named]) == ExitCode.FAILED
    out, err = capsys.readouterr()
    assert out.count("compared one by one") == 2
    assert "1 workspace of 3 could not be copied" in out
    assert err.startswith(f"crush-trio: {tmp_path}/a: there is data of this workspace already")
    assert "move it away" in err
    assert in_database(url, tmp_path / "a") == {"there"}
    assert in_database(url, tmp_path / "b") == {"in-b"}


def test_all_workspaces_of_a_database_are_copied_into_their_directories(url, tmp_path, capsys):
    fill_database(url, tmp_path / "a", "in-a")
    fill_database(url, tmp_path / "b", "in-b")
    fill_database(url, tmp_path / "empty")
    assert main(["store", "copy", url, "sqlite:", "--dry-run"]) == 0
    assert capsys.readouterr().out.count("Would copy") == 2
    assert not (tmp_path / "a" / ".crush").exists()
    assert main(["store", "copy", url, "sqlite:"]) == 0
    assert in_file(tmp_path / "a" / ".crush" / "crush-trio.db") == {"in-a"}
    assert in_file(tmp_path / "b" / ".crush" / "crush-trio.db") == {"in-b"}
    assert not (tmp_path / "empty" / ".crush").exists()


def test_a_workspace_whose_directory_is_not_here_is_not_copied_into_a_file(url, tmp_path, capsys):
    fill_database(url, tmp_path / "gone", "s")
    (tmp_path / "gone").rmdir()
    assert main(["store", "copy", url, "sqlite:"]) == ExitCode.FAILED
    assert "is no directory of this machine" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["sqlite:", "{url}"], "name them with --workspace"),
        ([".", "{url}", "--workspace", "."], "a directory is one workspace"),
        ([".", "env:NOWHERE"], "the variable NOWHERE is not set"),
        ([".", "."], "FROM and TO are both"),
        (["{url}", "{url}", "--workspace", "."], "FROM and TO are both"),
    ],
)
def test_what_makes_no_sense_is_refused_with_a_sentence(project, url, capsys, arguments, sentence):
    fill_database(url, project, "s")
    with pytest.raises(SystemExit) as caught:
        main(["store", "copy", *(each.format(url=url) for each in arguments)])
    assert caught.value.code == ExitCode.MISUSED
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    ("source", "target", "sentence"),
    [
        (".", "memory:", "cannot be copied"),
        (".", "mysql://x", "name no store"),
        ("{url}", "sqlite:", "no stored data"),
        ("../home", "{url}", "no stored data"),
    ],
)
def test_what_cannot_be_copied_is_refused_with_a_sentence(
    url, tmp_path, capsys, source, target, sentence
):
    (tmp_path / "home").mkdir()
    assert main(["store", "copy", source.format(url=url), target.format(url=url)]) > 0
    assert sentence in capsys.readouterr().err


def test_a_terminal_shows_how_far_it_is(project, url, capsys, monkeypatch):
    async def many():
        async with open_sqlite_store(project / ".crush") as store:
            await store.commit(*(message(f"x{n}", text("x"), session="s") for n in range(600)))

    trio.run(many)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    assert main(["store", "copy", ".", url]) == 0
    err = capsys.readouterr().err
    assert f"\r{project}: 1,000 rows\r" in err
    assert err.endswith("\r\x1b[K")


# ── prune ───────────────────────────────────────────────────────────────────────────────────────


def test_old_sessions_are_pruned_in_the_database_as_in_a_file(project, url, capsys):
    fill_database(url, project, "old")  # of the year 1970
    assert main(["prune", "--unused-for", "60d", "--dry-run"]) == 0
    assert "1 session would be deleted" in capsys.readouterr().out
    assert in_database(url, project) == {"old"}
    assert main(["prune", "--unused-for", "60d"]) == 0
    assert "1 session was deleted" in capsys.readouterr().out
    assert in_database(url, project) == set()
    assert in_file(project / ".crush" / "crush-trio.db") == {"s"}, "the file is left alone"


def test_where_a_server_has_the_workspace_it_is_said_who_prunes(project, url, capsys):
    async def held():
        async with open_postgres_store(url, project, site=SITE) as store:
            await store.commit(session("old"))
            return await trio.to_thread.run_sync(main, ["prune", "--unused-for", "60d"])

    assert trio.run(held) == ExitCode.FAILED
    assert "prunes this directory itself" in capsys.readouterr().err
    assert in_database(url, project) == {"old"}


# ── backup, restore ─────────────────────────────────────────────────────────────────────────────


def test_with_postgres_a_backup_is_of_the_database_and_not_of_an_old_file(
    project, url, tmp_path, capsys
):
    file = tmp_path / "copy.db"
    assert main(["backup", ".", str(file)]) == ExitCode.FAILED
    assert f"{project} in PostgreSQL has none" in capsys.readouterr().err
    fill_database(url, project, "stored", "there")
    for named in (".", ".crush"):
        assert main(["backup", named, str(file)]) == 0
        assert "2 sessions, 2 messages" in capsys.readouterr().out
        assert in_file(file) == {"stored", "there"}
        assert main(["backup", named, str(file)]) == ExitCode.FAILED
        assert "choose another name" in capsys.readouterr().err
        file.unlink()


def test_a_backup_can_be_restored_into_an_empty_database_and_into_no_other(
    project, url, tmp_path, capsys, monkeypatch
):
    file = tmp_path / "copy.db"
    fill_database(url, project, "stored")
    assert main(["backup", ".", str(file)]) == 0
    assert main(["restore", str(file), "."]) == ExitCode.FAILED
    assert "there is data of this workspace already" in capsys.readouterr().err
    assert in_database(url, project) == {"stored"}
    other = new_database()
    monkeypatch.setenv("CRUSH_TRIO_STORE", other)
    assert main(["restore", str(file), "."]) == 0
    assert "1 session, 1 message" in capsys.readouterr().out
    assert in_database(other, project) == {"stored"}
    assert in_file(project / ".crush" / "crush-trio.db") == {"s"}, "the file is left alone"


def test_a_damaged_backup_is_not_restored(project, url, tmp_path, capsys):
    (tmp_path / "copy.db").write_text("not a database, but long enough to be looked at" * 100)
    assert main(["restore", str(tmp_path / "copy.db"), "."]) == ExitCode.FAILED
    assert "damaged" in capsys.readouterr().err
    assert in_database(url, project) == set()


def test_a_backup_of_memory_is_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("CRUSH_TRIO_STORE", "memory:")
    assert main(["backup", ".", str(tmp_path / "copy.db")]) == ExitCode.FAILED
    assert main(["restore", __file__, "."]) == ExitCode.MISUSED


async def test_a_backup_is_made_while_the_database_is_used(project, url, tmp_path):
    async with open_postgres_store(url, project, site=SITE) as store:
        await store.commit(session("s"))
        done = trio.Event()

        async def write():
            for number in range(200):
                await store.commit(message(f"m{number}", text("x"), session="s"))
                if done.is_set():
                    break

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            code = await trio.to_thread.run_sync(main, ["backup", ".", str(tmp_path / "copy.db")])
            done.set()
        assert code == 0
        with closing(sqlite3.connect(tmp_path / "copy.db")) as copy:
            [[told]] = copy.execute("SELECT message_count FROM sessions").fetchall()
            [[found]] = copy.execute("SELECT count(*) FROM messages").fetchall()
        assert told == found, "the copy is of one moment"
        await store.commit(session("later"))
        assert len(await store.sessions()) == 2
