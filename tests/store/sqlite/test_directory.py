"""A data directory that goes away under an open store: noticed before anything else is promised."""

import os
import shutil
import sqlite3
from contextlib import closing

import pytest

from crush_trio.store.errors import StoreLost
from crush_trio.store.sqlite import database
from crush_trio.store.sqlite import directory as in_place
from crush_trio.store.sqlite.database import DATABASE_NAME, open_database
from crush_trio.store.sqlite.directory import LOCK_NAME, FilesInPlace

pytestmark = pytest.mark.real_clock


def add_session(session_id):
    def work(connection):
        connection.execute(
            "INSERT INTO sessions (id, created_at, updated_at) VALUES (?, 1, 1)", (session_id,)
        )

    return work


def sessions(connection):
    return [row[0] for row in connection.execute("SELECT id FROM sessions ORDER BY rowid")]


def stored(path):
    with closing(sqlite3.connect(path)) as connection:
        return sessions(connection)


@pytest.fixture
def data(tmp_path, monkeypatch):
    """The data directory of a workspace; pytest gives the path of a test that passed to the next one."""
    monkeypatch.setattr(database, "_lost", set())
    return tmp_path / "project" / ".crush"


# ── Ways to lose it ─────────────────────────────────────────────────────────────────────────────


def remove(data):
    shutil.rmtree(data)


def remove_workspace(data):
    shutil.rmtree(data.parent)


def rename_workspace(data):
    data.parent.rename(data.parent.with_name("elsewhere"))


def replace_by_a_checkout(data):
    shutil.rmtree(data)
    data.mkdir()
    (data / "crush.json").write_text("{}")


def replace_by_a_file(data):
    shutil.rmtree(data)
    data.write_text("not a directory")


def replace_by_a_copy(data):
    copy = data.with_name("copy")
    shutil.copytree(data, copy)
    shutil.rmtree(data)
    copy.rename(data)


def remove_database(data):
    (data / DATABASE_NAME).unlink()


def replace_database(data):
    copy = data / "restored.db"
    shutil.copy(data / DATABASE_NAME, copy)
    copy.rename(data / DATABASE_NAME)


def remove_log(data):
    (data / f"{DATABASE_NAME}-wal").unlink()


def remove_lock(data):
    (data / LOCK_NAME).unlink()


WAYS = [
    remove,
    remove_workspace,
    rename_workspace,
    replace_by_a_checkout,
    replace_by_a_file,
    replace_by_a_copy,
    remove_database,
    replace_database,
    remove_log,
    remove_lock,
]


@pytest.mark.parametrize("settled", [0.0, 3.0])
@pytest.mark.parametrize("lose", WAYS)
async def test_nothing_is_promised_that_would_go_with_the_open_file(
    data, lose, settled, monkeypatch, caplog
):
    monkeypatch.setattr(in_place, "SETTLE_SECONDS", settled)
    async with open_database(data) as database:
        for name in "abc":
            await database.transact(add_session(name))
        lose(data)
        left = sorted(data.parent.rglob("*")) if data.parent.exists() else None
        for _ in range(3):
            with pytest.raises(StoreLost, match="removed, moved or replaced") as caught:
                await database.transact(add_session("d"))
        database.post(add_session("e"))
        assert str(data) in str(caught.value)
        assert database.degraded == str(caught.value)
        assert await database.read(sessions) == ["a", "b", "c"]
        assert database.degraded == str(caught.value)
        assert left == (sorted(data.parent.rglob("*")) if data.parent.exists() else None)
    assert caplog.messages == ["store.degraded"]


async def test_a_directory_that_comes_back_is_not_believed(data):
    """Another server may have used it meanwhile; opening it again looks at what is there."""
    async with open_database(data) as database:
        await database.transact(add_session("a"))
        data.rename(data.with_name("away"))
        with pytest.raises(StoreLost):
            await database.transact(add_session("b"))
        data.with_name("away").rename(data)
        with pytest.raises(StoreLost):
            await database.transact(add_session("c"))
        assert database.degraded is not None
    async with open_database(data) as database:
        assert await database.read(sessions) == ["a"]
        assert database.warning is not None


async def test_the_next_opening_is_warned_once_and_begins_with_what_there_is(data, caplog):
    async with open_database(data) as database:
        await database.transact(add_session("a"))
        assert database.warning is None
        remove(data)
        with pytest.raises(StoreLost):
            await database.transact(add_session("b"))
    assert not data.exists()
    caplog.clear()
    async with open_database(data) as database:
        assert await database.read(sessions) == []
        assert database.warning.code == "data_directory_lost"
        assert str(data) in database.warning.message
        assert database.degraded is None
        await database.transact(add_session("c"))
    assert caplog.messages == ["store.data_directory_lost"]
    async with open_database(data) as database:
        assert database.warning is None
        assert await database.read(sessions) == ["c"]


async def test_a_store_that_was_lost_does_not_harm_the_one_in_its_place(data):
    """Closing a database removes its log by name; that name may be another server's by then."""
    async with open_database(data) as lost:
        await lost.transact(add_session("a"))
        remove(data)
        async with open_database(data) as successor:
            await successor.transact(add_session("b"))
            with pytest.raises(StoreLost):
                await lost.transact(add_session("c"))
        async with open_database(data) as successor:
            await successor.transact(add_session("d"))
            names = sorted(each.name for each in data.iterdir())
            with pytest.raises(StoreLost):
                await lost.transact(add_session("e"))
            assert sorted(each.name for each in data.iterdir()) == names
    assert stored(data / DATABASE_NAME) == ["b", "d"]


async def test_other_files_in_the_directory_come_and_go(data):
    async with open_database(data) as database:
        for number in range(3):
            (data / "crush.json").write_text("{}")
            await database.transact(add_session(str(number)))
            (data / "crush.json").unlink()
        assert await database.read(sessions) == ["0", "1", "2"]


async def test_a_directory_without_a_lock_is_looked_after_too(data, monkeypatch):
    monkeypatch.setenv("CRUSH_SKIP_DATADIR_LOCK", "1")
    async with open_database(data) as database:
        await database.transact(add_session("a"))
        remove(data)
        with pytest.raises(StoreLost):
            await database.transact(add_session("b"))


# ── One look is enough ──────────────────────────────────────────────────────────────────────────


def test_files_in_a_directory_that_stands_still_are_not_looked_at(tmp_path, monkeypatch):
    monkeypatch.setattr(in_place, "SETTLE_SECONDS", -1.0)
    file = tmp_path / "file"
    file.touch()
    place = FilesInPlace(tmp_path)
    place.remember(file)
    place.check()
    looked = []
    stat = os.stat
    monkeypatch.setattr(os, "stat", lambda path: looked.append(path) or stat(path))
    place.check()
    assert looked == [str(tmp_path)]
    (tmp_path / "other").touch()
    place.check()
    assert looked[1:] == [str(tmp_path), str(file)]


def test_a_directory_that_changed_a_moment_ago_is_looked_at_file_by_file(tmp_path):
    """A second change may leave the time as it is, so the first one proves nothing yet."""
    file = tmp_path / "file"
    file.touch()
    place = FilesInPlace(tmp_path)
    place.remember(file)
    place.check()
    before = tmp_path.stat()
    file.unlink()
    os.utime(tmp_path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(StoreLost, match=str(file)):
        place.check()


def test_a_directory_that_cannot_be_looked_at_is_not_taken_for_lost(tmp_path, monkeypatch):
    place = FilesInPlace(tmp_path)
    place.remember()

    def refuse(path):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "stat", refuse)
    with pytest.raises(PermissionError):
        place.check()
    monkeypatch.undo()
    place.check()
