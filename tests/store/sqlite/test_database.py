"""Opening and closing the store: the directory, the settings, the lock and the boot."""

import json
import os
import sqlite3
import stat
import threading
from contextlib import closing
from socket import gethostname

import pytest
import trio

from crush_trio import __version__
from crush_trio.clock import CountingIds
from crush_trio.store.errors import DiskFailed, StoreFailed, StoreLocked, StoreTooNew
from crush_trio.store.sqlite.database import open_database
from crush_trio.store.sqlite.directory import SKIP_VARIABLE

pytestmark = pytest.mark.real_clock

PATIENCE = 10.0


class FixedClock:
    def unix(self):
        return 1_700_000_000

    def monotonic(self):
        return 0.0


def add_session(session_id):
    def work(connection):
        connection.execute(
            "INSERT INTO sessions (id, created_at, updated_at) VALUES (?, 1, 1)", (session_id,)
        )

    return work


def sessions(connection):
    return [row[0] for row in connection.execute("SELECT id FROM sessions ORDER BY rowid")]


def pragma(name):
    return lambda connection: connection.execute(f"PRAGMA {name}").fetchone()[0]


async def test_what_was_written_is_there_after_opening_again(tmp_path):
    async with open_database(tmp_path) as database:
        await database.transact(add_session("a"))
        database.post(add_session("b"))
    async with open_database(tmp_path) as database:
        assert await database.read(sessions) == ["a", "b"]
        assert database.degraded is None


async def test_a_read_sees_the_writes_that_were_awaited(tmp_path):
    async with open_database(tmp_path) as database:
        for n in range(20):
            await database.transact(add_session(str(n)))
            assert len(await database.read(sessions)) == n + 1


async def test_the_directory_is_private_and_hidden_from_git(tmp_path):
    directory = tmp_path / "deep" / "data"
    async with open_database(directory) as database:
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        assert stat.S_IMODE(database.path.stat().st_mode) == 0o600
        assert (directory / ".gitignore").read_text() == "*\n"
        assert database.path == directory / "crush-trio.db"


async def test_what_is_already_in_the_directory_is_left_alone(tmp_path):
    (tmp_path / ".gitignore").write_text("mine\n")
    (tmp_path / "crush.db").write_bytes(b"another program's")
    async with open_database(tmp_path) as database:
        await database.transact(add_session("a"))
    assert (tmp_path / ".gitignore").read_text() == "mine\n"
    assert (tmp_path / "crush.db").read_bytes() == b"another program's"
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".gitignore",
        "crush-trio.db",
        "crush-trio.lock",
        "crush.db",
    ]


@pytest.mark.item("J2")
@pytest.mark.parametrize(("synchronous", "number"), [("NORMAL", 1), ("FULL", 2)])
async def test_connections_have_the_settings_of_the_contract(tmp_path, synchronous, number):
    async with open_database(tmp_path, synchronous=synchronous) as database:
        assert await database.read(pragma("journal_mode")) == "wal"
        assert await database.read(pragma("query_only")) == 1
        for name, value in {
            "foreign_keys": 1,
            "busy_timeout": 30_000,
            "synchronous": number,
            "secure_delete": 1,
        }.items():
            assert await database.transact(pragma(name)) == value, name


async def test_every_opening_is_a_boot_of_its_own(tmp_path):
    ids = CountingIds("boot")
    for n in (1, 2):
        async with open_database(tmp_path, clock=FixedClock(), ids=ids) as database:
            assert database.boot_id == f"boot-{n}"
            boots = await database.read(
                lambda c: c.execute(
                    "SELECT id, started_at, holder FROM boots ORDER BY n"
                ).fetchall()
            )
            *place, holder = boots[-1]
            assert place == [f"boot-{n}", 1_700_000_000]
            assert json.loads(holder) == {
                "host": gethostname(),
                "pid": os.getpid(),
                "version": __version__,
                "started": 1_700_000_000,
            }
            assert len(boots) == n


@pytest.mark.item("J3")
async def test_a_directory_that_is_open_cannot_be_opened_again_until_it_is_closed(tmp_path):
    async with open_database(tmp_path, clock=FixedClock()):
        with pytest.raises(StoreLocked, match=f"{os.getpid()}.*2023-11-14 22:13:20 UTC"):
            async with open_database(tmp_path):
                pass
    async with open_database(tmp_path):
        pass


@pytest.mark.item("J3")
async def test_without_the_lock_two_can_share_a_file(tmp_path, monkeypatch):
    monkeypatch.setenv(SKIP_VARIABLE, "1")
    async with open_database(tmp_path) as one, open_database(tmp_path) as other:
        await one.transact(add_session("a"))
        await other.transact(add_session("b"))
        assert await one.read(sessions) == ["a", "b"]
    assert not (tmp_path / "crush-trio.lock").exists()


async def test_a_refused_opening_gives_the_directory_up(tmp_path):
    async with open_database(tmp_path) as database:
        pass
    with closing(sqlite3.connect(database.path)) as other:
        other.execute("PRAGMA user_version = 999")
    for _ in range(2):
        with pytest.raises(StoreTooNew, match="999"):
            async with open_database(tmp_path):
                pass


async def test_a_directory_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "data").write_text("not a directory")
    with pytest.raises(DiskFailed, match="data"):
        async with open_database(tmp_path / "data"):
            pass


async def test_an_error_of_the_caller_leaves_as_it_is_and_closes_the_store(tmp_path):
    async def fail():
        async with open_database(tmp_path) as database:
            database.post(add_session("a"))
            raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        await fail()
    async with open_database(tmp_path) as database:
        assert await database.read(sessions) == ["a"]


async def test_a_closed_store_refuses_everything(tmp_path):
    async with open_database(tmp_path) as database:
        pass
    for verb in (database.transact, database.read):
        with pytest.raises(StoreFailed, match="closed"):
            await verb(sessions)
    database.post(add_session("a"))
    assert "closed" in database.degraded


async def test_an_opening_that_is_cancelled_half_way_leaves_nothing_open(tmp_path):
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cancel_when_blocked, nursery.cancel_scope)
        async with open_database(tmp_path):
            pytest.fail("opened although cancelled")
    assert nursery.cancel_scope.cancelled_caught
    assert (tmp_path / "crush-trio.db").exists()  # it had got further than the beginning
    async with open_database(tmp_path) as database:
        await database.transact(add_session("a"))


async def cancel_when_blocked(scope):
    await trio.lowlevel.checkpoint()
    scope.cancel()


async def test_closing_folds_the_log_into_the_file(tmp_path):
    async with open_database(tmp_path) as database:
        await database.transact(add_session("a"))
        await database.read(sessions)
        assert (tmp_path / "crush-trio.db-wal").exists()
    assert not (tmp_path / "crush-trio.db-wal").exists()


async def test_the_directory_stays_taken_while_a_writer_hangs_in_it(tmp_path):
    release = threading.Event()
    async with open_database(tmp_path, close_limit=0.01) as database:
        database.post(lambda _: release.wait(PATIENCE))
    with pytest.raises(StoreLocked):
        async with open_database(tmp_path):
            pass
    release.set()
    await trio.to_thread.run_sync(database._writer._thread.join)
