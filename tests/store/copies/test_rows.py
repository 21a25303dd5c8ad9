"""Copying a workspace between SQLite and PostgreSQL: every row, exactly, or nothing."""

import hashlib
import shutil
import sqlite3
import tracemalloc
from contextlib import closing, contextmanager
from itertools import count

import pytest
import trio
from attrs import frozen
from hypothesis import HealthCheck, example, given, settings

from crush_trio.store.copies.backup import run_copy
from crush_trio.store.copies.postgres import workspace_end
from crush_trio.store.copies.rows import (
    CopyDiffers,
    NothingToCopy,
    RowRefused,
    WorkspaceInTheWay,
    copy_workspace,
    count_workspace,
)
from crush_trio.store.copies.sqlite import BackupFile, DataDirectory
from crush_trio.store.copies.tables import FIRST, workspace_tables
from crush_trio.store.errors import (
    LeaseLost,
    StoreCorrupt,
    StoreLocked,
    StoreTooNew,
    StoreUnreachable,
    StoreUnsuitable,
)
from crush_trio.store.postgres.migrations import known_migrations as postgres_migrations
from crush_trio.store.postgres.opening import open_postgres_store
from crush_trio.store.postgres.workspaces import TABLES
from crush_trio.store.sqlite.database import DATABASE_NAME
from crush_trio.store.sqlite.migrations import known_migrations
from crush_trio.store.sqlite.store import open_sqlite_store
from crush_trio.wire.ids import SessionId
from tests.store.copies.rows import LIMIT, dump, workspaces, write_file
from tests.store.postgres.server import connect, new_database, shared_database_url
from tests.store.sqlite.test_older_versions import write_old
from tests.store.stores import ids, message, run, session, text

pytestmark = [pytest.mark.slow, pytest.mark.real_clock]

NUMBERS = count()

SESSION = {"n": 1, "id": "s", "created_at": 1, "updated_at": 1}
MESSAGE = {
    "n": 1,
    "id": "m",
    "session_id": "s",
    "seq": 1,
    "role": "user",
    "created_at": 1,
    "updated_at": 1,
}
FILE = {
    "id": "f",
    "session_id": "s",
    "path": "/f",
    "content": "",
    "version": 0,
    "created_at": 1,
    "updated_at": 1,
}


def ignore(_):
    pass


def copied(source, target, note=ignore):
    return copy_workspace(source, target, note)


def in_postgres(directory=None, *, url=None, site="copies", live=False):
    """Return a workspace of the shared database; one of its own without a *directory*."""
    path = f"/copied/{next(NUMBERS)}" if directory is None else str(directory)
    return workspace_end(url or shared_database_url(), site, path, live=live)


def rows_in_postgres(end):
    """Return every row of a workspace, by table."""
    with connect(shared_database_url()) as connection:
        return {
            table.name: connection.execute(
                f"SELECT t::text FROM {table.name} AS t JOIN workspaces ON number = workspace"
                " WHERE site = 'copies' AND workspaces.path = %s ORDER BY 1",
                (end._key.path,),
            ).fetchall()
            for table in workspace_tables()
        }


def digest(folder):
    """Return the content of every file of a folder."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.iterdir()
        if not path.name.endswith(("-shm", ".lock"))
    }


@pytest.fixture
def data(tmp_path):
    """A data directory with some rows."""
    write_file(tmp_path / "data", {"sessions": [SESSION], "messages": [MESSAGE], "files": [FILE]})
    return tmp_path / "data"


# ── The list of tables ──────────────────────────────────────────────────────────────────────────

TYPES = {
    "INTEGER": {"bigint", "boolean"},
    "TEXT": {"text"},
    "REAL": {"double precision"},
    "BLOB": {"bytea"},
}


def test_both_databases_have_the_same_tables_and_columns_and_all_of_them_are_copied(data):
    url = new_database()
    copied(DataDirectory(data), in_postgres(url=url))
    with connect(url) as connection:
        found = {}
        for table, column, kind in connection.execute(
            "SELECT table_name, column_name, data_type FROM information_schema.columns"
            " WHERE table_schema = 'public'"
        ):
            found.setdefault(table, {})[column] = kind
    of_workspaces = {table: columns for table, columns in found.items() if "workspace" in columns}
    of_workspaces.pop("leases")
    assert set(of_workspaces) == {table.name for table in workspace_tables()} == set(TABLES)
    kinds = sqlite_types(data)
    for table in workspace_tables():
        theirs = of_workspaces[table.name]
        assert theirs.keys() == {"workspace", *table.columns}
        for column in table.columns:
            assert theirs[column] in TYPES[kinds[table.name, column]], (table.name, column)


def sqlite_types(data):
    with closing(sqlite3.connect(data / DATABASE_NAME)) as found:
        return {
            (table.name, row[1]): row[2]
            for table in workspace_tables()
            for row in found.execute(f"PRAGMA table_info({table.name})")
        }


def test_the_order_of_the_rows_has_no_ties_in_either_database(data):
    url = new_database()
    copied(DataDirectory(data), in_postgres(url=url))
    with connect(url) as connection:
        for table in workspace_tables():
            unique = connection.execute(
                "SELECT array_agg(attname::text) FROM pg_index JOIN pg_attribute"
                " ON attrelid = indrelid AND attnum = ANY(indkey)"
                " WHERE indrelid = %s::regclass AND indisunique AND indpred IS NULL"
                " GROUP BY indexrelid",
                (table.name,),
            ).fetchall()
            assert {"workspace", *table.key} in [set(columns) for (columns,) in unique]


def test_a_table_comes_after_those_that_its_rows_refer_to_but_for_the_first(data):
    names = [table.name for table in workspace_tables()]
    assert names[0] == FIRST
    for place, table in enumerate(workspace_tables()):
        assert place == 0 or table.parents <= set(names[:place])


def test_a_message_without_its_session_is_refused(tmp_path):
    path = write_file(tmp_path / "data", {"sessions": [SESSION], "messages": [MESSAGE]})
    with closing(sqlite3.connect(path)) as file:  # without foreign keys, as other programs write
        file.execute("DELETE FROM sessions")
        file.commit()
    for target in targets(tmp_path):
        with pytest.raises(RowRefused, match="messages in "):
            copied(DataDirectory(tmp_path / "data"), target)
        assert count_workspace(DataDirectory(tmp_path / "data"), target, ignore).messages == 1


# ── There and back ──────────────────────────────────────────────────────────────────────────────


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example({})
@given(workspaces())
def test_from_sqlite_to_postgres_and_back_every_row_is_the_same(tmp_path, rows):
    folder = tmp_path / str(next(NUMBERS))
    before = write_file(folder / "data", rows)
    middle = in_postgres()
    there = copied(DataDirectory(folder / "data"), middle)
    back = copied(middle, BackupFile(folder / "back.db"))
    assert dump(folder / "back.db") == dump(before)
    assert there == back
    assert there.rows == sum(map(len, rows.values()))


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(workspaces())
def test_between_two_of_the_same_kind_every_row_is_the_same(tmp_path, rows):
    folder = tmp_path / str(next(NUMBERS))
    before = write_file(folder / "data", rows)
    copied(DataDirectory(folder / "data"), DataDirectory(folder / "other"))
    assert dump(folder / "other" / DATABASE_NAME) == dump(before)
    one, two = in_postgres(), in_postgres()
    copied(DataDirectory(folder / "other"), one)
    copied(one, two)
    copied(two, BackupFile(folder / "back.db"))
    assert dump(folder / "back.db") == dump(before)


def test_large_values_and_numbers_at_their_limits_are_kept(tmp_path):
    large = "\0\x01é\U0001f600" * 400_000
    run_row = {
        "n": LIMIT,
        "id": "r",
        "session_id": "s",
        "kind": "prompt",
        "state": "queued",
        "seq": -LIMIT - 1,
        "boot_id": "b",
        "accepted_at": LIMIT,
        "attachments": bytes(range(256)) * 40_000,
    }
    rows = {"sessions": [SESSION], "files": [{**FILE, "content": large}], "runs": [run_row]}
    before = write_file(tmp_path / "data", rows)
    middle = in_postgres()
    copied(DataDirectory(tmp_path / "data"), middle)
    copied(middle, BackupFile(tmp_path / "back.db"))
    assert dump(tmp_path / "back.db") == dump(before)


async def test_a_copied_workspace_goes_on_where_it_was(tmp_path):
    async with open_sqlite_store(tmp_path / ".crush") as store:
        await store.commit(session("s"), message("m", text("hello")), run("r"))
    copied(DataDirectory(tmp_path / ".crush"), in_postgres(tmp_path))
    async with open_postgres_store(shared_database_url(), tmp_path, site="copies") as store:
        assert [orphan.run_id for orphan in await store.orphans()] == ["r"]
        await store.commit(message("n", text("world")), session("t", at=200))
        assert ids(await store.messages(SessionId("s"))) == ["m", "n"]
        assert (await store.session(SessionId("s"))).message_count == 2
    copied(in_postgres(tmp_path), DataDirectory(tmp_path / "back"))
    async with open_sqlite_store(tmp_path / "back") as store:
        assert ids(await store.sessions()) == ["t", "s"]
        await store.commit(message("o", text("again")), session("u", at=300))
        assert ids(await store.messages(SessionId("s"))) == ["m", "n", "o"]


# ── The source ──────────────────────────────────────────────────────────────────────────────────


def test_what_is_copied_from_stays_as_it_is(data):
    before = digest(data)
    middle, other = in_postgres(), in_postgres()
    copied(DataDirectory(data), middle)
    assert digest(data) == before
    rows = rows_in_postgres(middle)
    copied(middle, other)
    assert rows_in_postgres(middle) == rows


async def test_what_is_still_in_the_log_of_a_killed_server_is_copied_and_left_there(tmp_path):
    async with open_sqlite_store(tmp_path / "open") as store:
        await store.commit(session("s"), message("m", text("in the log")))
        shutil.copytree(tmp_path / "open", tmp_path / "killed")
    before = digest(tmp_path / "killed")
    assert (tmp_path / "killed" / f"{DATABASE_NAME}-wal").stat().st_size
    for _ in range(2):
        assert copied(DataDirectory(tmp_path / "killed"), in_postgres()).messages == 1
        assert digest(tmp_path / "killed") == before


@pytest.mark.parametrize("version", range(1, len(known_migrations())))
def test_a_file_of_an_older_version_is_copied_and_not_upgraded(tmp_path, version):
    write_old(tmp_path / "data", version)
    before = digest(tmp_path / "data")
    middle = in_postgres()
    assert copied(DataDirectory(tmp_path / "data"), middle).sessions == 1
    assert digest(tmp_path / "data") == before
    copied(middle, BackupFile(tmp_path / "back.db"))
    assert len(dump(tmp_path / "back.db")["messages"]) == 2


def test_a_file_of_a_newer_version_is_refused(data, tmp_path):
    with closing(sqlite3.connect(data / DATABASE_NAME)) as file:
        file.execute("PRAGMA user_version = 999")
    with pytest.raises(StoreTooNew):
        copied(DataDirectory(data), in_postgres())


def test_a_database_of_another_version_is_refused_with_what_to_do(tmp_path):
    url = new_database()
    write_file(tmp_path / "data", {"sessions": [SESSION]})
    source = in_postgres("/here", url=url)
    copied(DataDirectory(tmp_path / "data"), source)
    newest = len(postgres_migrations())
    with connect(url) as connection:
        connection.execute("DELETE FROM schema_versions WHERE number = %s", (newest,))
        with pytest.raises(StoreUnsuitable, match="start a server of this version on it once"):
            copied(source, BackupFile(tmp_path / "back.db"))
        connection.execute(
            "INSERT INTO schema_versions (number, name) VALUES (%s, 'later')", (newest + 1,)
        )
    with pytest.raises(StoreTooNew):
        copied(source, BackupFile(tmp_path / "back.db"))
    assert not (tmp_path / "back.db").exists()


def test_what_is_not_there_cannot_be_copied(tmp_path):
    for source in (DataDirectory(tmp_path), in_postgres(), in_postgres(url=new_database())):
        with pytest.raises(NothingToCopy):
            copied(source, BackupFile(tmp_path / "back.db"))
    assert list(tmp_path.iterdir()) == []


def test_text_that_is_not_utf8_is_reported_with_its_table(data):
    with closing(sqlite3.connect(data / DATABASE_NAME)) as file:
        file.execute("UPDATE files SET content = CAST(x'ff61' AS TEXT)")
        file.commit()
    target = in_postgres()
    with pytest.raises(StoreCorrupt, match=r"files in .*UTF-8"):
        copied(DataDirectory(data), target)
    assert not any(rows_in_postgres(target).values())


async def test_a_workspace_that_a_server_has_is_neither_read_nor_written(data, tmp_path):
    async with open_sqlite_store(tmp_path / "open"):
        for ends in (
            (DataDirectory(tmp_path / "open"), in_postgres()),
            (DataDirectory(data), DataDirectory(tmp_path / "open")),
        ):
            with pytest.raises(StoreLocked, match="belongs to process"):
                copied(*ends)
    url = shared_database_url()
    async with open_postgres_store(url, tmp_path, site="copies"):
        opened = in_postgres(tmp_path)
        for ends in ((opened, BackupFile(tmp_path / "b.db")), (DataDirectory(data), opened)):
            with pytest.raises(StoreLocked, match="belongs to process"):
                copied(*ends)
            with pytest.raises(StoreLocked, match="belongs to process"):
                count_workspace(*ends, ignore)


async def test_no_server_opens_a_workspace_while_it_is_copied(data, tmp_path):
    """It waits, and finds what is there afterwards."""
    target = in_postgres(tmp_path)
    source = DataDirectory(data)
    tried = []

    def try_to_claim():
        with connect(shared_database_url()) as other:
            other.execute("SET lock_timeout = '5s'")
            tried.append(
                other.execute(
                    "SELECT workspace FROM leases JOIN workspaces ON number = workspace"
                    " WHERE path = %s FOR NO KEY UPDATE OF leases SKIP LOCKED",
                    (str(tmp_path),),
                ).fetchall()
            )

    copied(Noting(source, try_to_claim), target)
    copied(Noting(target, try_to_claim), BackupFile(tmp_path / "back.db"))
    assert tried == [[], [], [], []], "while it is written, and while it is compared"
    async with open_postgres_store(shared_database_url(), tmp_path, site="copies") as store:
        assert ids(await store.sessions()) == ["s"]


# ── The target ──────────────────────────────────────────────────────────────────────────────────


def targets(tmp_path):
    return [DataDirectory(tmp_path / "target"), in_postgres(tmp_path)]


def test_data_of_the_workspace_is_never_replaced(data, tmp_path):
    for target in targets(tmp_path):
        copied(DataDirectory(data), target)
        with pytest.raises(WorkspaceInTheWay, match="a copy replaces nothing; move it away"):
            copied(DataDirectory(data), target)
        with pytest.raises(WorkspaceInTheWay):
            count_workspace(DataDirectory(data), target, ignore)


async def test_a_workspace_that_was_opened_and_not_used_is_not_in_the_way(data, tmp_path):
    async with (
        open_sqlite_store(tmp_path / "target"),
        open_postgres_store(shared_database_url(), tmp_path, site="copies"),
    ):
        pass
    for target in targets(tmp_path):
        assert count_workspace(DataDirectory(data), target, ignore).sessions == 1
        copied(DataDirectory(data), target)
        copied(target, BackupFile(tmp_path / f"back-{next(NUMBERS)}.db"))
    for back in tmp_path.glob("back-*.db"):
        assert dump(back) == dump(data / DATABASE_NAME)


def test_counting_writes_nothing(data, tmp_path):
    url = new_database()
    for target in (DataDirectory(tmp_path / "target"), in_postgres(url=url)):
        counted = count_workspace(DataDirectory(data), target, ignore)
        assert (counted.sessions, counted.messages, counted.rows) == (1, 1, 3)
    assert not (tmp_path / "target").exists()
    with connect(url) as connection:
        assert connection.execute("SELECT to_regclass('workspaces')").fetchone() == (None,)


def test_a_row_that_the_other_store_cannot_hold_leaves_nothing(tmp_path):
    long = "/" + "".join(hashlib.sha512(bytes([n])).hexdigest() for n in range(64))
    write_file(tmp_path / "data", {"sessions": [SESSION], "files": [{**FILE, "path": long}]})
    target = in_postgres()
    with pytest.raises(RowRefused, match=r"files in .*index row requires"):
        copied(DataDirectory(tmp_path / "data"), target)
    assert not any(rows_in_postgres(target).values())
    write_file(tmp_path / "data", {"sessions": [SESSION]})
    copied(
        DataDirectory(tmp_path / "data"), target
    )  # what is left of the first try is not in the way
    with connect(shared_database_url()) as connection:
        connection.execute(
            "UPDATE sessions SET todos = 'not json' FROM workspaces WHERE number = workspace AND path = %s",
            (target._key.path,),
        )
    with pytest.raises(RowRefused, match=r"sessions in .*json_valid"):
        copied(target, DataDirectory(tmp_path / "other"))
    assert not list((tmp_path / "other").glob("*.db*"))


@pytest.mark.parametrize("place", ["first", "last"])
def test_a_copy_that_differs_is_dropped(data, tmp_path, place):
    for target in targets(tmp_path):
        with pytest.raises(
            CopyDiffers, match=f"row 1 of {'sessions' if place == 'first' else 'files'}"
        ):
            copied(DataDirectory(data), Forgetful(target, place))
        assert count_workspace(DataDirectory(data), target, ignore).sessions == 1
    assert not list((tmp_path / "target").glob("*.db*"))


def test_a_copy_that_is_given_up_in_the_middle_is_dropped(tmp_path):
    messages = [{**MESSAGE, "n": n, "id": f"m{n}", "seq": n} for n in range(1, 2000)]
    write_file(tmp_path / "data", {"sessions": [SESSION], "messages": messages})
    for target in targets(tmp_path):
        for wanted in (500, 2500):  # while it is written, and while it is compared

            def give_up(rows, wanted=wanted):
                if rows == wanted:
                    raise KeyboardInterrupt

            with pytest.raises(KeyboardInterrupt):
                copied(DataDirectory(tmp_path / "data"), target, give_up)
        noted = []
        copied(DataDirectory(tmp_path / "data"), target, noted.append)
        assert noted == list(range(500, 4001, 500))


async def test_a_copy_that_is_cancelled_is_dropped(tmp_path):
    messages = [{**MESSAGE, "n": n, "id": f"m{n}", "seq": n} for n in range(1, 2000)]
    write_file(tmp_path / "data", {"sessions": [SESSION], "messages": messages})
    for target in targets(tmp_path):
        with trio.CancelScope() as scope:
            await run_copy(DataDirectory(tmp_path / "data"), target, note=_cancelling(scope))
        assert scope.cancelled_caught
        counted = await run_copy(DataDirectory(tmp_path / "data"), target, dry_run=True)
        assert counted.messages == 1999, "nothing is in the way"


def _cancelling(scope):
    def note(_):
        trio.from_thread.run_sync(scope.cancel)

    return note


async def test_a_server_that_was_suspended_writes_nothing_into_a_copy(data, tmp_path):
    async with open_postgres_store(shared_database_url(), tmp_path, site="copies") as store:
        with connect(shared_database_url()) as connection:
            connection.execute(
                "UPDATE leases SET expires_at = '-infinity' WHERE workspace = %s",
                (store.workspace.number,),
            )
        await trio.to_thread.run_sync(copied, DataDirectory(data), in_postgres(tmp_path))
        with pytest.raises(LeaseLost):
            await store.commit(session("late"))
        assert ids(await store.sessions()) == ["s"]


def test_a_connection_that_breaks_in_the_middle_leaves_nothing(data):
    target = in_postgres()

    def end_others():
        with connect(shared_database_url()) as other:
            other.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
                " AND state <> 'idle'"
            )

    with pytest.raises(StoreUnreachable):
        copied(Noting(DataDirectory(data), end_others), target)
    assert not any(rows_in_postgres(target).values())


def test_only_a_few_rows_are_in_memory_at_a_time(tmp_path):
    files = [{**FILE, "id": f"f{n:03}", "version": n, "content": "x" * 200_000} for n in range(150)]
    write_file(tmp_path / "data", {"sessions": [SESSION], "files": files})
    middle = in_postgres()
    tracemalloc.start()
    try:
        copied(DataDirectory(tmp_path / "data"), middle)
        copied(middle, BackupFile(tmp_path / "back.db"))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 15_000_000, "the whole is 30 MB"


# ── Ends that do something else ─────────────────────────────────────────────────────────────────


@frozen
class Noting:
    """An end that calls a function when its files are read."""

    end: object
    call: object

    @property
    def label(self):
        return self.end.label

    @contextmanager
    def reading(self):
        with self.end.reading() as rows:
            yield NotingRows(rows, self.call)


@frozen
class NotingRows:
    rows: object
    call: object

    def read(self, table):
        if table.name == "files":
            self.call()
        yield from self.rows.read(table)


@frozen
class Forgetful:
    """An end that reads a row otherwise than it was written, or not at all."""

    end: object
    place: str

    @property
    def label(self):
        return self.end.label

    @contextmanager
    def writing(self):
        with self.end.writing() as rows:
            yield ForgetfulRows(rows, self.place)


@frozen
class ForgetfulRows:
    rows: object
    place: str

    @property
    def label(self):
        return self.rows.label

    def write(self, table, rows):
        self.rows.write(table, rows)

    def read(self, table):
        for row in self.rows.read(table):
            if self.place == "first" and table.name == "sessions":
                row = (*row[:-1], row[-1] + 1)
            if self.place == "first" or table.name != "files":
                yield row
