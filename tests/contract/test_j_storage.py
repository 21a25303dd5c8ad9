"""Section J: what is stored, and how; where the contract names a weakness, as section L corrects it."""

import os
import sqlite3
import stat
from contextlib import closing

import pytest

from crush_trio.errors import MessageNotFound, SessionNotFound
from crush_trio.store.changes import (
    FileRead,
    MessageDeleted,
    MessageFinished,
    SessionDeleted,
    SessionEdited,
    TextAppended,
    UsageAdded,
)
from crush_trio.store.errors import StoreLocked
from crush_trio.store.sqlite.store import open_sqlite_store
from crush_trio.wire.ids import FileId, MessageId, RunId, SessionId
from crush_trio.wire.messages import Role
from tests.store.stores import OPENINGS, STOP, M, S, ids, message, run, session, text

pytestmark = pytest.mark.real_clock


@pytest.fixture(params=OPENINGS)
def openings(request, tmp_path):
    return OPENINGS[request.param](tmp_path)


async def add_file(store, identity, path, session_id="s"):
    return await store.add_file(FileId(identity), SessionId(session_id), path, "content", 100)


# ── Times and counts ────────────────────────────────────────────────────────────────────────────


@pytest.mark.item("J1")
async def test_a_session_counts_its_messages(openings):
    async with openings.open() as store:
        await store.commit(session("s"), message("m"), message("n"))
        assert (await store.session(S)).message_count == 2
        await store.commit(MessageDeleted(id=M))
        assert (await store.session(S)).message_count == 1


@pytest.mark.item("J1")
async def test_a_session_is_updated_with_its_messages_to_the_second_and_never_backwards(openings):
    async with openings.open() as store:
        await store.commit(session("s", at=1_767_225_600))
        for at, expected in ((1_767_225_601, 1_767_225_601), (1_767_225_500, 1_767_225_601)):
            await store.commit(message(f"m{at}", text(), at=at))
            assert (await store.session(S)).updated_at == expected
        await store.commit(
            TextAppended(message_id=MessageId("m1767225500"), index=0, text="x", at=1_767_225_602)
        )
        assert (await store.session(S)).updated_at == 1_767_225_602


@pytest.mark.item("J1")
async def test_times_in_the_file_are_whole_unix_seconds(tmp_path):
    async with open_sqlite_store(tmp_path) as store:
        await store.commit(session("s", at=1_767_225_600), message("m", at=1_767_225_601))
        await store.commit(FileRead(session_id=S, path="/a", at=1_767_225_602))
        await store.commit(MessageFinished(message_id=M, at=1_767_225_603))
        with closing(sqlite3.connect(store.path)) as connection:
            times = connection.execute(
                "SELECT s.created_at, m.created_at, read_at, finished_at"
                " FROM sessions s, messages m, read_files"
            ).fetchall()
            assert times == [(1_767_225_600, 1_767_225_601, 1_767_225_602, 1_767_225_603)]
            (started,) = connection.execute("SELECT started_at FROM boots").fetchone()
            assert len(str(started)) == len("1767225600")


# ── The file and its owner ──────────────────────────────────────────────────────────────────────


@pytest.mark.item("J2")
async def test_the_file_is_in_wal_mode_with_its_constraints_on(tmp_path):
    async with open_sqlite_store(tmp_path) as store:
        expected = {
            "journal_mode": "wal",
            "foreign_keys": 1,
            "synchronous": 1,
            "busy_timeout": 30_000,
            "secure_delete": 1,
        }
        for name, value in expected.items():
            found = await store._database.transact(
                lambda connection, name=name: connection.execute(f"PRAGMA {name}").fetchone()[0]
            )
            assert found == value, name


@pytest.mark.item("J2")
async def test_what_was_deleted_cannot_be_found_in_the_file(tmp_path):
    async with open_sqlite_store(tmp_path) as store:
        await store.commit(session("s"), message("m", text("a very secret word")))
        await store.commit(SessionDeleted(id=S))
    assert b"very secret" not in store.path.read_bytes()


@pytest.mark.item("J3")
async def test_a_data_directory_has_one_owner_and_the_next_is_told_who(tmp_path):
    async with open_sqlite_store(tmp_path):
        with pytest.raises(StoreLocked, match=rf"process {os.getpid()}, version .*, started "):
            async with open_sqlite_store(tmp_path):
                pass
    assert (tmp_path / "crush-trio.lock").exists()
    async with open_sqlite_store(tmp_path) as store:
        await store.commit(session("s"))


@pytest.mark.item("J3")
async def test_the_lock_can_be_switched_off(tmp_path, monkeypatch):
    monkeypatch.setenv("CRUSH_SKIP_DATADIR_LOCK", "1")
    async with open_sqlite_store(tmp_path) as one, open_sqlite_store(tmp_path) as other:
        await one.commit(session("s"))
        assert ids(await other.sessions()) == ["s"]


@pytest.mark.item("J3")
async def test_nobody_else_can_look_into_the_data_directory(tmp_path):
    async with open_sqlite_store(tmp_path / "data") as store:
        assert stat.S_IMODE(store.path.parent.stat().st_mode) == 0o700


# ── Deleting a session ──────────────────────────────────────────────────────────────────────────


async def fill(store):
    await store.commit(
        session("s"),
        session("t"),
        message("m", text("a")),
        message("n", text("b"), session="t"),
        FileRead(session_id=S, path="/a", at=100),
        run("r"),
    )
    await add_file(store, "f", "/a")
    await add_file(store, "g", "/a", "t")


@pytest.mark.item("J4")
async def test_deleting_a_session_takes_everything_of_its_own_and_nothing_else(openings):
    async with openings.open() as store:
        await fill(store)
        await store.commit(SessionDeleted(id=S))
        with pytest.raises(SessionNotFound):
            await store.session(S)
        with pytest.raises(MessageNotFound):
            await store.message(M)
        assert await store.messages(S) == await store.files(S) == await store.read_paths(S) == []
        assert ids(await store.messages(SessionId("t"))) == ["n"]
        assert ids(await store.files(SessionId("t"))) == ["g"]


@pytest.mark.item("J4")
async def test_a_session_is_deleted_as_a_whole_or_not_at_all(openings):
    async with openings.open() as store:
        await fill(store)
        with pytest.raises(SessionNotFound):
            await store.commit(SessionDeleted(id=S), SessionEdited(id=S, at=101, title="x"))
        assert ids(await store.messages(S)) == ["m"]
        assert ids(await store.files(S)) == ["f"]
        assert await store.read_paths(S) == ["/a"]


@pytest.mark.item("J4", "L19")
async def test_the_record_of_a_run_outlives_its_session(openings):
    """The ending of a run must be storable, whoever deletes the session in the meantime."""
    async with openings.open() as store:
        await fill(store)
        await store.commit(SessionDeleted(id=S))
        await store.commit(message("late", STOP, if_there=True))
        assert (await store.run(RunId("r"))).view.session_id == "s"
        assert await store.messages(S) == []


# ── Files ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.item("J5")
async def test_a_version_is_one_more_than_the_highest_of_its_path_over_all_sessions(openings):
    async with openings.open() as store:
        await store.commit(session("s"), session("t"))
        added = [
            await add_file(store, "1", "/a"),
            await add_file(store, "2", "/a", "t"),
            await add_file(store, "3", "/a"),
            await add_file(store, "4", "/b"),
        ]
        assert [file.version for file in added] == [0, 1, 2, 0]


@pytest.mark.item("J6", "L21")
async def test_paths_are_kept_absolute_so_that_they_mean_the_same_everywhere(
    openings, tmp_path, monkeypatch
):
    async with openings.open() as store:
        await store.commit(session("s"), FileRead(session_id=S, path="/srv/a", at=100))
        with pytest.raises(ValueError, match="not an absolute path: 'a'"):
            await store.commit(FileRead(session_id=S, path="a", at=100))
        monkeypatch.chdir(tmp_path)
        assert await store.read_paths(S) == ["/srv/a"]


# ── Order ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.item("J7", "L45")
async def test_sessions_of_sub_agents_are_in_no_list_not_even_as_the_last_session(openings):
    async with openings.open() as store:
        await store.commit(
            session("s", at=100), session("t", at=101), session("m$$c", parent="s", at=900)
        )
        assert ids(await store.sessions()) == ["t", "s"]
        assert (await store.session(SessionId("m$$c"))).parent_session_id == "s"


@pytest.mark.item("J8", "L14")
async def test_messages_of_the_same_second_keep_their_order(openings):
    async with openings.open() as store:
        await store.commit(session("s"))
        names = ["user", "assistant", "tool", "again"]
        for name in names:
            await store.commit(message(name, STOP, role=Role.USER, at=100))
        assert ids(await store.messages(S)) == names
        assert ids(await store.user_messages(S)) == names[::-1]
    async with openings.open() as store:
        await store.commit(message("new", at=50))
        assert ids(await store.messages(S)) == [*names, "new"]


# ── Columns ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.item("L25")
async def test_writers_of_different_columns_do_not_undo_each_other(openings):
    async with openings.open() as store:
        await store.commit(session("s", title="old"))
        stale = await store.session(S)
        await store.commit(SessionEdited(id=S, at=101, title="new"))
        await store.commit(
            UsageAdded(id=S, at=101, prompt_tokens=stale.prompt_tokens + 5, cost=0.5)
        )
        await store.commit(UsageAdded(id=S, at=101, cost=stale.cost + 0.25))
        stored = await store.session(S)
        assert (stored.title, stored.prompt_tokens, stored.cost) == ("new", 5, 0.75)


@pytest.mark.item("L44")
async def test_what_the_context_holds_and_what_was_used_in_all_are_apart(openings):
    async with openings.open() as store:
        await store.commit(session("s"))
        step = UsageAdded(
            id=S,
            at=101,
            prompt_tokens=700,
            completion_tokens=30,
            spent_prompt_tokens=700,
            spent_completion_tokens=30,
        )
        title = UsageAdded(id=S, at=102, spent_prompt_tokens=20, spent_completion_tokens=4)
        await store.commit(step, step, title)
        stored, totals = await store.session(S), await store.totals(S)
        assert (stored.prompt_tokens, stored.completion_tokens) == (700, 30)
        assert (totals.prompt_tokens, totals.completion_tokens) == (1420, 64)
