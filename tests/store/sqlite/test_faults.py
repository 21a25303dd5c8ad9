"""Faults of the disk, the file and other programs, as whoever uses the store meets them."""

import errno
import resource
import sqlite3
from contextlib import closing, contextmanager

import pytest
import trio

from crush_trio.errors import Unavailable
from crush_trio.store.errors import (
    DiskFailed,
    DiskFull,
    StoreBusy,
    StoreCorrupt,
    StoreFailed,
    StoreReadOnly,
)
from crush_trio.store.health import Health
from crush_trio.store.sqlite.database import open_database
from crush_trio.store.sqlite.faults import translate

pytestmark = pytest.mark.real_clock


def insert(session_id, title=""):
    def work(connection):
        connection.execute(
            "INSERT INTO sessions (id, title, created_at, updated_at) VALUES (?, ?, 1, 1)",
            (session_id, title),
        )

    return work


def ids(connection):
    return [row[0] for row in connection.execute("SELECT id FROM sessions ORDER BY rowid")]


def fill_disk(connection):
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count = {pages}")


def free_disk(connection):
    connection.execute("PRAGMA max_page_count = 100000")


async def test_a_full_disk_fails_the_write_and_the_next_one_tries_again(tmp_path, caplog):
    async with open_database(tmp_path) as database:
        await database.transact(fill_disk)
        for _ in range(3):
            with pytest.raises(DiskFull) as caught:
                await database.transact(insert("a", "x" * 100_000))
        assert str(database.path) in str(caught.value)
        assert database.degraded == str(caught.value)
        assert [record.msg for record in caplog.records] == ["store.degraded"]
        assert await database.read(ids) == []
        assert database.degraded == str(caught.value)  # a read that works frees no space

        await database.transact(free_disk)
        assert database.degraded is None
        await database.transact(insert("a", "x" * 100_000))
        assert await database.read(ids) == ["a"]


async def test_a_post_that_meets_a_full_disk_degrades_the_store(tmp_path, caplog):
    async with open_database(tmp_path) as database:
        await database.transact(fill_disk)
        for _ in range(3):
            database.post(insert("a", "x" * 100_000))
        with pytest.raises(DiskFull) as caught:
            await database.transact(insert("b", "x" * 100_000))
        assert database.degraded == str(caught.value)
        assert [record.msg for record in caplog.records] == ["store.degraded"]
        await database.transact(free_disk)
        assert database.degraded is None


async def test_an_io_error_at_commit_fails_the_write_and_passes(tmp_path):
    async with open_database(tmp_path) as database:
        await database.transact(insert("a"))
        with file_size_limit((tmp_path / "crush-trio.db-wal").stat().st_size):
            with pytest.raises(DiskFailed) as caught:
                await database.transact(insert("b"))
        assert database.degraded == str(caught.value)
        await database.transact(insert("c"))
        assert database.degraded is None
        assert await database.read(ids) == ["a", "c"]


@contextmanager
def file_size_limit(size):
    """Make the kernel refuse to let any file of this process grow beyond *size* bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def test_a_store_that_turns_read_only_says_so(tmp_path):
    async with open_database(tmp_path) as database:
        await database.transact(lambda connection: connection.execute("PRAGMA query_only = ON"))
        with pytest.raises(StoreReadOnly) as caught:
            await database.transact(insert("a"))
        assert database.degraded == str(caught.value)
        assert isinstance(caught.value.__cause__, sqlite3.OperationalError)


async def test_a_read_only_file_is_refused_when_it_is_opened(tmp_path):
    async with open_database(tmp_path) as database:
        pass
    with database.path.open("r+b") as file:
        file.seek(18)
        file.write(b"\x03")  # a write version from the future: SQLite reads such a file, no more
    with pytest.raises(StoreReadOnly, match="writable"):
        async with open_database(tmp_path):
            pass


async def test_a_file_locked_by_another_program_fails_the_write_and_not_the_next(tmp_path):
    async with open_database(tmp_path, busy_timeout=0.01) as database:
        with closing(sqlite3.connect(database.path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreBusy) as caught:
                await database.transact(insert("a"))
            assert database.degraded == str(caught.value)
        await database.transact(insert("b"))
        assert database.degraded is None
        assert await database.read(ids) == ["b"]


async def test_a_file_locked_by_another_program_cannot_be_opened(tmp_path):
    async with open_database(tmp_path) as database:
        pass
    with closing(sqlite3.connect(database.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreBusy, match="locked"):
            async with open_database(tmp_path, busy_timeout=0.01):
                pass


async def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "crush-trio.db"
    path.write_bytes(b"not a database at all\n" * 1000)
    with pytest.raises(StoreCorrupt, match="backup") as caught:
        async with open_database(tmp_path):
            pass
    assert str(path) in str(caught.value)
    assert path.read_bytes() == b"not a database at all\n" * 1000


async def test_damage_in_the_middle_is_found_when_it_is_read_and_is_not_forgotten(tmp_path):
    await damage_middle(tmp_path)
    async with open_database(tmp_path) as database:
        assert database.degraded is None
        with pytest.raises(StoreCorrupt) as caught:
            await database.read(lambda c: c.execute("SELECT title FROM sessions").fetchall())
        assert await database.read(lambda c: c.execute("SELECT 1").fetchone()) == (1,)
        assert database.degraded == str(caught.value)


async def test_check_finds_damage_in_the_middle(tmp_path):
    async with open_database(tmp_path) as database:
        await database.check()
    await damage_middle(tmp_path)
    async with open_database(tmp_path) as database:
        with pytest.raises(StoreCorrupt) as caught:
            await database.check()
        assert str(database.path) in str(caught.value)
        assert database.degraded == str(caught.value)


async def damage_middle(directory):
    """Fill the table of sessions and write garbage over one of its pages."""
    async with open_database(directory) as database:
        for n in range(50):
            await database.transact(insert(f"session-{n}", "y" * 2000))
    content = bytearray(database.path.read_bytes())
    page = content.rindex(b"y" * 1000) // 4096
    content[page * 4096 : (page + 1) * 4096] = b"\xaa" * 4096
    database.path.write_bytes(content)


async def test_when_the_writer_dies_reads_go_on_and_writes_fail_at_once(tmp_path):
    def exit_thread(_connection):
        raise SystemExit("out of luck")

    async with open_database(tmp_path) as database:
        await database.transact(insert("a"))
        for work in (exit_thread, insert("b")):
            with pytest.raises(StoreFailed, match="out of luck"), trio.fail_after(10):
                await database.transact(work)
        assert await database.read(ids) == ["a"]
        assert "restart" in database.degraded
    async with open_database(tmp_path) as database:
        await database.transact(insert("c"))
        assert await database.read(ids) == ["a", "c"]


# ── Translation ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (errno.ENOSPC, DiskFull),
        (errno.EDQUOT, DiskFull),
        (errno.EROFS, StoreReadOnly),
        (errno.EACCES, StoreReadOnly),
        (errno.EIO, DiskFailed),
    ],
)
def test_errors_of_the_operating_system_become_store_errors(tmp_path, number, expected):
    cause = OSError(number, "as the kernel puts it")
    fault = translate(cause, tmp_path)
    assert type(fault) is expected
    assert isinstance(fault, Unavailable)
    assert fault.__cause__ is cause
    assert str(tmp_path) in str(fault)


def test_errors_of_a_statement_are_left_as_they_are(tmp_path):
    with closing(sqlite3.connect(":memory:")) as connection:
        for statement in ("SELECT nothing", "CREATE TABLE"):
            with pytest.raises(sqlite3.OperationalError) as caught:
                connection.execute(statement)
            assert translate(caught.value, tmp_path) is caught.value
    with pytest.raises(sqlite3.ProgrammingError) as caught:
        connection.execute("SELECT 1")
    assert translate(caught.value, tmp_path) is caught.value


def test_health_reports_the_oldest_trouble_and_logs_changes_only(caplog):
    caplog.set_level("INFO")
    health = Health()
    for _ in range(2):
        health.failed("write", DiskFull("a"))
    health.failed("read", DiskFailed("b"))
    assert health.degraded == str(DiskFull("a"))
    health.succeeded("write")
    assert health.degraded == str(DiskFailed("b"))
    health.succeeded("read")
    health.succeeded("read")
    assert health.degraded is None
    seen = [(record.msg, record.kind) for record in caplog.records]
    assert seen == [
        ("store.degraded", "write"),
        ("store.degraded", "read"),
        ("store.recovered", "write"),
        ("store.recovered", "read"),
    ]
