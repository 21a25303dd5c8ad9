"""Migrations, and the promises of the schema they lead to."""

import sqlite3
from contextlib import closing

import pytest

from crush_trio.store.errors import DiskFull, MigrationFailed, StoreTooNew
from crush_trio.store.migrations import Migration
from crush_trio.store.sqlite.migrations import known_migrations, migrate
from crush_trio.wire.runs import RunState

FIRST = Migration(number=1, name="0001_first.sql", sql="CREATE TABLE a (x);\nCREATE TABLE b (x);\n")
SECOND = Migration(
    number=2,
    name="0002_second.sql",
    sql="""-- with a trigger, whose semicolons are its own
CREATE TRIGGER copied AFTER INSERT ON a BEGIN
    INSERT INTO b VALUES (NEW.x);
    DELETE FROM b WHERE x < 0;
END;
INSERT INTO a VALUES (1)""",
)
BROKEN = Migration(
    number=2, name="0002_broken.sql", sql="CREATE TABLE c (x);\nINSERT INTO nowhere VALUES (1);\n"
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "test.db"


@pytest.fixture
def connection(path):
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        yield connection


@pytest.fixture
def store(connection, path):
    """A database with our schema."""
    migrate(connection, path, known_migrations())
    connection.execute("PRAGMA foreign_keys = ON")
    return connection


def version(connection):
    return connection.execute("PRAGMA user_version").fetchone()[0]


def tables(connection):
    return {row[0] for row in connection.execute("SELECT name FROM sqlite_schema WHERE sql <> ''")}


def test_migrations_are_applied_once_and_in_order(connection, path):
    migrate(connection, path, (FIRST,))
    assert version(connection) == 1
    for _ in range(2):
        migrate(connection, path, (FIRST, SECOND))
        assert version(connection) == 2
    assert connection.execute("SELECT x FROM b").fetchall() == [(1,)]


def test_a_failing_migration_leaves_the_file_as_it_was(connection, path):
    migrate(connection, path, (FIRST,))
    before = tables(connection)
    with pytest.raises(MigrationFailed, match=r"0002_broken\.sql .*nowhere") as caught:
        migrate(connection, path, (FIRST, BROKEN))
    assert str(path) in str(caught.value)
    assert isinstance(caught.value.__cause__, sqlite3.OperationalError)
    assert (version(connection), tables(connection)) == (1, before)
    migrate(connection, path, (FIRST, SECOND))
    assert version(connection) == 2


def test_a_disk_that_fills_up_during_a_migration_is_a_full_disk(connection, path):
    connection.execute("PRAGMA max_page_count = 2")
    with pytest.raises(DiskFull):
        migrate(connection, path, (FIRST,))
    assert (version(connection), tables(connection)) == (0, set())


def test_a_file_from_a_newer_program_is_refused_untouched(connection, path):
    connection.execute("PRAGMA user_version = 3")
    before = path.read_bytes()
    with pytest.raises(StoreTooNew, match="has schema 3, this program knows up to 2"):
        migrate(connection, path, (FIRST, SECOND))
    assert path.read_bytes() == before


def test_the_migrations_of_this_program_are_numbered_without_gaps():
    migrations = known_migrations()
    assert [migration.number for migration in migrations] == list(range(1, len(migrations) + 1))
    assert migrations[0].name == "0001_initial.sql"


# ── The schema ──────────────────────────────────────────────────────────────────────────────────


def add_session(store, session_id="s"):
    store.execute(
        "INSERT INTO sessions (id, created_at, updated_at) VALUES (?, 100, 100)", (session_id,)
    )


def add_message(store, message_id, seq, at=100):
    store.execute(
        "INSERT INTO messages (id, session_id, seq, role, created_at, updated_at)"
        " VALUES (?, 's', ?, 'user', ?, ?)",
        (message_id, seq, at, at),
    )


def session(store, columns):
    return store.execute(f"SELECT {columns} FROM sessions WHERE id = 's'").fetchone()


@pytest.mark.item("J1")
def test_a_session_counts_its_messages_and_is_as_fresh_as_the_freshest(store):
    add_session(store)
    add_message(store, "a", 1, at=110)
    add_message(store, "b", 2, at=105)
    assert session(store, "message_count, updated_at") == (2, 110)
    store.execute("UPDATE messages SET updated_at = 120 WHERE id = 'b'")
    assert session(store, "message_count, updated_at") == (2, 120)
    store.execute("DELETE FROM messages WHERE id = 'a'")
    assert session(store, "message_count, updated_at") == (1, 120)


@pytest.mark.item("L14")
def test_a_place_in_the_order_of_messages_is_never_given_out_twice(store):
    add_session(store)
    add_message(store, "a", 1)
    add_message(store, "b", 2)
    with pytest.raises(sqlite3.IntegrityError, match="UNIQUE"):
        add_message(store, "c", 2)
    store.execute("DELETE FROM messages WHERE id = 'b'")
    assert session(store, "last_seq") == (2,)


@pytest.mark.item("L44")
def test_token_gauges_and_totals_are_apart(store):
    add_session(store)
    store.execute(
        "UPDATE sessions SET prompt_tokens = 5, total_prompt_tokens = total_prompt_tokens + 7"
    )
    assert session(store, "prompt_tokens, total_prompt_tokens") == (5, 7)


@pytest.mark.item("J4")
def test_deleting_a_session_takes_everything_of_its_own_and_leaves_its_runs(store):
    add_session(store)
    add_message(store, "m", 1)
    store.execute("INSERT INTO parts VALUES ('m', 0, 'text', '{}')")
    store.execute("INSERT INTO chunks VALUES ('m', 0, 0, 'hello')")
    store.execute("INSERT INTO files VALUES ('f', 's', '/p', 'content', 0, 1, 1)")
    store.execute("INSERT INTO read_files VALUES ('s', '/p', 1)")
    add_run(store, "r")
    store.execute("DELETE FROM sessions")
    for table in ("messages", "parts", "chunks", "files", "read_files"):
        assert store.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)
    assert store.execute("SELECT id FROM runs").fetchall() == [("r",)]


def add_run(store, identity, *, run_id=None, state="accepted", ended_at=None, folded_into=None):
    store.execute(
        "INSERT INTO runs (id, run_id, session_id, kind, state, seq, boot_id, accepted_at, ended_at,"
        " folded_into) VALUES (?, ?, 's', 'prompt', ?, 1, 'boot', 1, ?, ?)",
        (identity, run_id, state, ended_at, folded_into),
    )


def test_a_run_id_of_a_caller_names_one_run_and_having_none_is_common(store):
    add_run(store, "a", run_id="mine")
    add_run(store, "b")
    add_run(store, "c")
    with pytest.raises(sqlite3.IntegrityError, match=r"runs\.run_id"):
        add_run(store, "d", run_id="mine")


@pytest.mark.parametrize("state", [state for state in RunState if state is not RunState.ENDING])
def test_a_run_has_an_end_exactly_if_its_state_is_one(store, state):
    folded_into = "other" if state is RunState.FOLDED else None
    right, wrong = (5, None) if state.terminal else (None, 5)
    add_run(store, "a", state=state, ended_at=right, folded_into=folded_into)
    with pytest.raises(sqlite3.IntegrityError, match="CHECK"):
        add_run(store, "b", state=state, ended_at=wrong, folded_into=folded_into)


def test_a_run_that_is_ending_is_never_stored_as_such(store):
    with pytest.raises(sqlite3.IntegrityError, match="CHECK"):
        add_run(store, "a", state=RunState.ENDING)


def test_unended_runs_are_found_through_their_index(store):
    plan = store.execute(
        "EXPLAIN QUERY PLAN SELECT id FROM runs"
        " WHERE state IN ('accepted', 'queued', 'active') AND boot_id <> 'ours'"
    ).fetchall()
    assert "runs_unended" in plan[0][3]


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO read_files VALUES ('s', '', 1)",
        "INSERT INTO read_files VALUES ('', '/p', 1)",
        "INSERT INTO read_files VALUES ('unknown', '/p', 1)",
        "UPDATE sessions SET cost = -1",
        "UPDATE sessions SET message_count = -1",
        "UPDATE sessions SET todos = 'not json'",
        "UPDATE sessions SET title = NULL",
        "UPDATE sessions SET updated_at = 'today'",
    ],
)
@pytest.mark.item("J1")
def test_rows_that_make_no_sense_are_refused(store, statement):
    add_session(store)
    with pytest.raises(sqlite3.IntegrityError):
        store.execute(statement)


def test_the_event_tail_keeps_growing_as_its_oldest_rows_are_trimmed(store):
    for seq in range(10):
        store.execute(
            "INSERT INTO event_tail (boot_id, seq, terminal, event) VALUES ('boot', ?, 0, '{}')",
            (seq,),
        )
        store.execute("DELETE FROM event_tail WHERE n <= (SELECT max(n) FROM event_tail) - 3")
    assert store.execute("SELECT n, seq FROM event_tail").fetchall() == [(8, 7), (9, 8), (10, 9)]


def test_the_places_of_endings_are_taken_from_the_events_that_are_still_kept(connection, path):
    migrations = known_migrations()
    migrate(connection, path, migrations[:1])
    for name in ("kept", "trimmed"):
        add_run(connection, name, state="completed", ended_at=5)
    add_run(connection, "open")
    for seq, event in ((3, '{"message":"m"}'), (4, '{"run":"kept"}'), (5, '{"run":"gone"}')):
        connection.execute(
            "INSERT INTO event_tail (boot_id, seq, terminal, event) VALUES ('boot', ?, ?, ?)",
            (seq, "run" in event, event),
        )
    migrate(connection, path, migrations)
    found = connection.execute("SELECT id, ending_boot, ending_seq FROM runs ORDER BY n").fetchall()
    assert found == [("kept", "boot", 4), ("trimmed", None, None), ("open", None, None)]


@pytest.mark.parametrize(
    "placed", ["ending_seq > 5 ORDER BY ending_seq", "ending_seq IS NULL ORDER BY n"]
)
def test_endings_are_found_through_their_index(store, placed):
    plan = store.execute(
        f"EXPLAIN QUERY PLAN SELECT text FROM runs WHERE ending_boot = 'boot' AND {placed}"
    ).fetchall()
    assert len(plan) == 1, "and need not be sorted"
    assert "runs_by_ending" in plan[0][3]
