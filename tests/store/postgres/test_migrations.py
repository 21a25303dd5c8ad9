"""Migrations: numbered, one transaction each, taken in turns, and never downwards."""

import threading
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from crush_trio.store.changes import FileRead, RunRecorded, SessionDeleted, TextAppended
from crush_trio.store.errors import MigrationFailed, StoreTooNew
from crush_trio.store.migrations import Migration
from crush_trio.store.postgres import database
from crush_trio.store.postgres.migrations import known_migrations, migrate, version
from crush_trio.store.postgres.opening import open_postgres_store
from crush_trio.store.postgres.place import Place
from crush_trio.store.postgres.workspaces import TABLES
from crush_trio.wire.ids import FileId, RunId
from tests.store.postgres.server import connect, new_database
from tests.store.stores import M, S, ids, message, run, session, text

pytestmark = [pytest.mark.real_clock, pytest.mark.slow]

FIRST = Migration(number=1, name="0001_first.sql", sql="CREATE TABLE a (x int); CREATE TABLE b ()")
SECOND = Migration(number=2, name="0002_second.sql", sql="INSERT INTO a VALUES (1)")
BROKEN = Migration(
    number=2, name="0002_broken.sql", sql="CREATE TABLE c (); INSERT INTO nowhere VALUES (1)"
)


@pytest.fixture
def url():
    return new_database()


def tables(connection):
    rows = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
    return {row[0] for row in rows}


def test_migrations_are_applied_once_and_in_order(url):
    with connect(url) as connection:
        migrate(connection, Place.of(url), (FIRST,))
        assert version(connection) == 1
        for _ in range(2):
            migrate(connection, Place.of(url), (FIRST, SECOND))
            assert version(connection) == 2
        assert connection.execute("SELECT x FROM a").fetchall() == [(1,)]


def test_a_failing_migration_leaves_the_database_as_it_was(url):
    with connect(url) as connection:
        migrate(connection, Place.of(url), (FIRST,))
        before = tables(connection)
        with pytest.raises(MigrationFailed, match=r"0002_broken\.sql .*nowhere") as caught:
            migrate(connection, Place.of(url), (FIRST, BROKEN))
        assert isinstance(caught.value.__cause__, psycopg.errors.UndefinedTable)
        assert (version(connection), tables(connection)) == (1, before)
        migrate(connection, Place.of(url), (FIRST, SECOND))
        assert version(connection) == 2


def test_a_migration_may_take_longer_than_the_time_limit_of_its_user(url):
    slow = Migration(number=1, name="0001_slow.sql", sql="SELECT pg_sleep(0.2)")
    with connect(url) as connection:
        connection.execute("SET statement_timeout = 50")
        migrate(connection, Place.of(url), (slow,))
        assert version(connection) == 1


async def test_a_database_of_a_newer_program_is_refused_untouched(url, tmp_path):
    newest = len(known_migrations())
    async with open_postgres_store(url, tmp_path, site="test") as store:
        await store.commit(session("s"))
    with connect(url) as connection:
        connection.execute(
            "INSERT INTO schema_versions (number, name) VALUES (%s, 'later')", (newest + 1,)
        )
        before = tables(connection)
        wanted = rf"has schema {newest + 1}, this program knows up to {newest}"
        with pytest.raises(StoreTooNew, match=wanted):
            async with open_postgres_store(url, tmp_path, site="test"):
                pass
        assert tables(connection) == before


async def test_an_older_version_refuses_a_database_of_a_newer_one_and_says_what_to_do(
    url, tmp_path, monkeypatch
):
    async with open_postgres_store(url, tmp_path, site="test") as store:
        await store.commit(session("s"))
    newest = len(known_migrations())
    with monkeypatch.context() as older:
        older.setattr(database, "known_migrations", lambda: known_migrations()[:-1])
        with pytest.raises(StoreTooNew) as caught:
            async with open_postgres_store(url, tmp_path, site="test"):
                pytest.fail("it was opened")
    assert f"has schema {newest}, this program knows up to {newest - 1}" in str(caught.value)
    assert "newer version" in str(caught.value)
    async with open_postgres_store(url, tmp_path, site="test") as store:
        assert ids(await store.sessions()) == ["s"]
        assert store.lease.epoch == 2, "the older one has not even claimed the workspace"


def test_servers_that_start_at_once_migrate_in_turns(url):
    """All of them have seen that there is no schema before the first begins to make it."""
    ready = threading.Barrier(4)

    def start(_):
        with connect(url) as connection:
            assert version(connection) == 0
            ready.wait(30)
            migrate(connection, Place.of(url), known_migrations())
            return version(connection)

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(start, range(4))) == {len(known_migrations())}


def test_the_migrations_of_this_program_are_numbered_without_gaps():
    migrations = known_migrations()
    assert [migration.number for migration in migrations] == list(range(1, len(migrations) + 1))
    assert migrations[0].name == "0001_initial.sql"


async def test_a_database_of_version_one_is_brought_up_to_date_with_its_rows(url, tmp_path):
    with connect(url) as connection:
        migrate(connection, Place.of(url), known_migrations()[:1])
        connection.execute(
            "INSERT INTO workspaces (id, site, path, created_at) VALUES ('w', 'test', %s, 100);",
            (str(tmp_path),),
        )
        connection.execute(
            "INSERT INTO sessions (workspace, n, id, created_at, updated_at)"
            " SELECT number, 1, 'old', 100, 100 FROM workspaces"
        )
    async with open_postgres_store(url, tmp_path, site="test") as store:
        await store.commit(session("new", at=200))
        assert ids(await store.sessions()) == ["new", "old"]
    with connect(url) as connection:
        assert version(connection) == len(known_migrations())
        rows = connection.execute("SELECT id, n FROM sessions ORDER BY n").fetchall()
        assert rows[0] == ("old", 1)
        assert rows[1][1] > 1


async def test_a_session_that_is_deleted_takes_everything_with_it_but_its_runs(url, tmp_path):
    async with open_postgres_store(url, tmp_path, site="test") as store:
        await fill(store)
        await store.commit(SessionDeleted(id=S))
    with connect(url) as connection:
        left = {
            table: connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
            for table in TABLES
        }
    assert {table for table, rows in left.items() if rows} == {"boots", "runs"}


async def fill(store):
    await store.commit(
        session("s"),
        run("r"),
        message("m", text("a"), run_id="r"),
        TextAppended(message_id=M, index=0, text="b", at=100),
        FileRead(session_id=S, path="/a", at=100),
        RunRecorded(run_id=RunId("r"), session_id=S, n=0, data="{}"),
    )
    await store.add_file(FileId("f"), S, "/a", "x", 100)
