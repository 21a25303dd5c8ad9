"""Backups: complete, checked, and made while the store is in use; and what a restore leaves."""

import os
import sqlite3
import stat
from contextlib import closing

import pytest
import trio

from crush_trio.store.copies.backup import StoredPlace, back_up, restore
from crush_trio.store.errors import StoreCorrupt, StoreFileForeign, StoreLocked, StoreTooNew
from crush_trio.store.open import StoreSettings
from crush_trio.store.sqlite.store import open_sqlite_store
from crush_trio.wire.ids import SessionId
from tests.store.stores import ids, message, session, text

pytestmark = [pytest.mark.slow, pytest.mark.real_clock]


@pytest.fixture
def data(tmp_path):
    return tmp_path / "data"


@pytest.fixture
def file(tmp_path):
    return tmp_path / "copy.db"


def at(data):
    return StoredPlace(settings=StoreSettings(), directory=data.parent, data_dir=data)


async def fill(data, *names):
    async with open_sqlite_store(data) as store:
        for name in names:
            await store.commit(session(name), message(f"m-{name}", text("hello"), session=name))


async def test_a_copy_of_a_store_in_use_has_what_was_committed_and_leaves_the_store_as_it_is(
    data, file
):
    async with open_sqlite_store(data) as store:
        await store.commit(session("s"), message("m", text("hello")))
        assert (data / "crush-trio.db-wal").stat().st_size, "it is still in the write-ahead log"
        before = (data / "crush-trio.db").read_bytes()
        report = await back_up(at(data), file)
        assert (data / "crush-trio.db").read_bytes() == before
        await store.commit(session("later"))
        assert ids(await store.sessions()) == ["later", "s"]
    assert (report.sessions, report.messages, report.bytes) == (1, 1, file.stat().st_size)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert sorted(path.name for path in file.parent.iterdir()) == ["copy.db", "data"]


async def test_while_a_copy_is_made_the_store_goes_on(data, file):
    async with open_sqlite_store(data) as store:
        await store.commit(session("s"))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(back_up, at(data), file)
            for number in range(50):
                await store.commit(message(f"m{number}", text("x" * 1000)))
        assert len(await store.messages(SessionId("s"))) == 50


async def test_a_copy_replaces_no_file(data, file):
    await fill(data, "s")
    file.write_text("precious")
    with pytest.raises(FileExistsError):
        await back_up(at(data), file)
    assert file.read_text() == "precious"
    file.unlink()
    file.symlink_to("nowhere")
    with pytest.raises(FileExistsError):
        await back_up(at(data), file)


async def test_a_damaged_store_gives_no_copy(data, file):
    await fill(data, "s")
    with (data / "crush-trio.db").open("r+b") as database:
        database.seek(5000)
        database.write(os.urandom(20_000))
    with pytest.raises(StoreCorrupt):
        await back_up(at(data), file)
    assert [path.name for path in file.parent.iterdir()] == ["data"]


async def test_a_link_in_place_of_the_store_is_not_followed(data, file, tmp_path):
    await fill(tmp_path / "other", "s")
    data.mkdir()
    (data / "crush-trio.db").symlink_to(tmp_path / "other" / "crush-trio.db")
    with pytest.raises(StoreFileForeign):
        await back_up(at(data), file)


async def test_a_restore_brings_back_the_copy_and_keeps_what_was_there(data, file):
    await fill(data, "first")
    await back_up(at(data), file)
    await fill(data, "second")
    report, former = await restore(file, at(data))
    assert report.sessions == 1
    async with open_sqlite_store(data) as store:
        assert ids(await store.sessions()) == ["first"]
        await store.commit(session("third"))
    with closing(sqlite3.connect(former)) as old:
        assert old.execute("SELECT count(*) FROM sessions").fetchone() == (2,)
    assert file.exists()


async def test_a_copy_can_be_restored_into_a_new_directory(data, file, tmp_path):
    await fill(data, "s")
    await back_up(at(data), file)
    _, former = await restore(file, at(tmp_path / "new"))
    assert former is None
    async with open_sqlite_store(tmp_path / "new") as store:
        assert ids(await store.messages(SessionId("s"))) == ["m-s"]


async def test_nothing_is_restored_while_a_server_has_the_directory(data, file):
    await fill(data, "s")
    await back_up(at(data), file)
    async with open_sqlite_store(data) as store:
        with pytest.raises(StoreLocked):
            await restore(file, at(data))
        assert ids(await store.sessions()) == ["s"]


@pytest.mark.parametrize("spoilt", ["damaged", "newer", "foreign", "text"])
async def test_a_copy_that_is_not_good_changes_nothing(data, file, spoilt):
    await fill(data, "s")
    await back_up(at(data), file)
    error = StoreTooNew if spoilt == "newer" else StoreCorrupt
    if spoilt == "damaged":
        with file.open("r+b") as copy:
            copy.seek(5000)
            copy.write(os.urandom(20_000))
    elif spoilt == "text":
        file.write_text("not a database, but long enough to be looked at" * 100)
    elif spoilt == "newer":
        with closing(sqlite3.connect(file)) as copy:
            copy.execute("PRAGMA user_version = 9999")
    else:
        file.unlink()
        with closing(sqlite3.connect(file)) as copy:
            copy.execute("CREATE TABLE other (x)")
    with pytest.raises(error):
        await restore(file, at(data))
    async with open_sqlite_store(data) as store:
        assert ids(await store.sessions()) == ["s"]
