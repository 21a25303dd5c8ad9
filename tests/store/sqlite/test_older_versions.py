"""Files that older versions wrote are upgraded, and files that newer versions wrote are refused.

The file of an older version is made with the numbered schema files that it had, and nothing else.
"""

import sqlite3
from contextlib import closing

import pytest

from crush_trio.store.errors import StoreTooNew
from crush_trio.store.sqlite import database
from crush_trio.store.sqlite.database import DATABASE_NAME
from crush_trio.store.sqlite.migrations import known_migrations
from crush_trio.store.sqlite.store import open_sqlite_store
from crush_trio.wire.ids import RunId, SessionId
from crush_trio.wire.messages import TextPart
from tests.store.stores import ids, message, session, text

pytestmark = pytest.mark.real_clock

NEWEST = known_migrations()[-1].number

ROWS = """
INSERT INTO boots (id, started_at, pid, version) VALUES ('old', 1, 1, '0.0.1');
INSERT INTO sessions (id, title, created_at, updated_at) VALUES ('s', 'kept', 100, 100);
INSERT INTO runs (id, run_id, session_id, kind, state, seq, boot_id, prompt, text, accepted_at, ended_at)
    VALUES ('r', 'mine', 's', 'prompt', 'completed', 1, 'old', 'hello', 'world', 100, 102);
INSERT INTO runs (id, session_id, kind, state, seq, boot_id, prompt, accepted_at)
    VALUES ('crashed', 's', 'prompt', 'active', 2, 'old', 'again', 103);
INSERT INTO messages (id, session_id, seq, role, created_at, updated_at, finished_at)
    VALUES ('r', 's', 1, 'user', 100, 100, 100), ('m', 's', 2, 'assistant', 101, 102, 102);
INSERT INTO parts VALUES ('r', 0, 'text', '{"text": "hello"}');
INSERT INTO parts VALUES ('m', 0, 'text', '{"text": "world"}');
"""


def write_old(folder, version):
    """Make the file that the version with this schema left, with a conversation in it."""
    folder.mkdir()
    with closing(sqlite3.connect(folder / DATABASE_NAME)) as old:
        for migration in known_migrations()[:version]:
            old.executescript(migration.sql)
        old.executescript(ROWS)
        old.execute(f"PRAGMA user_version = {version}")
        old.commit()


def schema_of(folder):
    with closing(sqlite3.connect(folder / DATABASE_NAME)) as found:
        return found.execute("PRAGMA user_version").fetchone()[0]


@pytest.mark.item("J2")
@pytest.mark.parametrize("version", range(1, NEWEST))
async def test_a_file_of_every_older_version_is_upgraded_with_all_that_is_in_it(tmp_path, version):
    folder = tmp_path / "data"
    write_old(folder, version)
    for _ in range(2):  # the second start finds it upgraded
        async with open_sqlite_store(folder) as store:
            [kept] = await store.sessions()
            assert (kept.id, kept.title, kept.message_count) == ("s", "kept", 2)
            told = await store.messages(SessionId("s"))
            assert [part for each in told for part in each.parts] == [
                TextPart(text="hello"),
                TextPart(text="world"),
            ]
            stored = await store.run(RunId("mine"))
            assert (stored.view.id, stored.prompt, stored.view.text) == ("r", "hello", "world")
            assert [each.run_id for each in await store.orphans()] == ["crashed"]
            await store.check()
        assert schema_of(folder) == NEWEST


@pytest.mark.parametrize("version", range(1, NEWEST))
async def test_an_upgraded_file_takes_new_rows(tmp_path, version):
    folder = tmp_path / "data"
    write_old(folder, version)
    async with open_sqlite_store(folder) as store:
        await store.commit(session("new", at=200), message("n", text("more"), session="new"))
    async with open_sqlite_store(folder) as store:
        assert ids(await store.sessions()) == ["new", "s"]


@pytest.mark.item("J2")
async def test_an_older_version_refuses_the_file_of_a_newer_one_and_says_what_to_do(
    tmp_path, monkeypatch
):
    async with open_sqlite_store(tmp_path) as store:
        await store.commit(session("s"))
    before = (tmp_path / DATABASE_NAME).read_bytes()
    with monkeypatch.context() as older:
        older.setattr(database, "known_migrations", lambda: known_migrations()[:-1])
        with pytest.raises(StoreTooNew) as caught:
            async with open_sqlite_store(tmp_path):
                pytest.fail("it was opened")
    assert f"has schema {NEWEST}, this program knows up to {NEWEST - 1}" in str(caught.value)
    assert "newer version" in str(caught.value)
    assert (tmp_path / DATABASE_NAME).read_bytes() == before
    async with open_sqlite_store(tmp_path) as store:
        assert ids(await store.sessions()) == ["s"]
