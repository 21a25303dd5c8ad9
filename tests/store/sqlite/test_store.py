"""What only the store on SQLite promises: transactions, reads past the writer, rows as designed."""

import sqlite3
import threading
from contextlib import asynccontextmanager, closing

import pytest
import trio
from attrs import evolve

from crush_trio.store.changes import (
    AskOpened,
    AskResolved,
    BootClosed,
    MessageFinished,
    PartPut,
    PartsCut,
    RunEnded,
    TailKept,
    TextAppended,
)
from crush_trio.store.errors import StoreCorrupt, StoreFailed, StoreLocked, StoreTooNew
from crush_trio.store.sqlite.store import open_sqlite_store
from crush_trio.wire.ids import AskId, RunId, ToolCallId
from crush_trio.wire.requests import Attachment
from crush_trio.wire.runs import RunState
from tests.store.stores import END, M, S, ids, message, run, session, text, thought

pytestmark = pytest.mark.real_clock

PATIENCE = 10.0


def append(content, index=0, at=100):
    return TextAppended(message_id=M, index=index, text=content, at=at)


def rows(store, statement):
    with closing(sqlite3.connect(store.path)) as connection:
        return connection.execute(statement).fetchall()


def spoil(store, statement):
    with closing(sqlite3.connect(store.path, isolation_level=None)) as connection:
        assert connection.execute(statement).rowcount == 1


@asynccontextmanager
async def busy(store):
    """Keep the writer busy for the length of the block."""
    entered, release = threading.Event(), threading.Event()

    def hold(_connection):
        entered.set()
        release.wait(PATIENCE)

    store._database.post(hold)  # past the store, which does not count it
    assert await trio.to_thread.run_sync(entered.wait, PATIENCE)
    try:
        yield release
    finally:
        release.set()


@pytest.fixture
def traced():
    """Return a function that collects what a store's writer executes from now on."""

    def start(store):
        statements = []
        store._database._writer._connection.set_trace_callback(statements.append)
        return statements

    return start


# ── Transactions and reads ──────────────────────────────────────────────────────────────────────


async def test_changes_given_together_are_one_transaction(tmp_path, traced):
    async with open_sqlite_store(tmp_path) as store:
        statements = traced(store)
        await store.commit(session("s"), message("m", text()), append("a"), append("b"))
        assert [s for s in statements if s.startswith(("BEGIN", "COMMIT"))] == [
            "BEGIN IMMEDIATE",
            "COMMIT",
        ]


async def test_a_read_with_nothing_outstanding_does_not_wait_for_the_writer(tmp_path):
    async with open_sqlite_store(tmp_path) as store:
        await store.commit(session("s"))
        store.post(message("m", text()))
        await store.commit(append("a"))  # whoever waits for this has waited for the post
        async with busy(store):
            with trio.fail_after(PATIENCE / 2):
                assert (await store.messages(S))[0].parts == (text("a"),)


async def test_a_read_waits_for_posts_and_for_commits_that_were_given_up(tmp_path):
    async with open_sqlite_store(tmp_path) as store:
        await store.commit(session("s"))
        seen = []

        async def read():
            seen.append(ids(await store.messages(S)))

        async with trio.open_nursery() as nursery, busy(store):
            with trio.CancelScope() as scope:
                scope.cancel()
                await store.commit(message("a"))
            nursery.start_soon(read)
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert seen == []
        assert seen == [["a"]]


def kept(seq, keep=100):
    return TailKept(seq=seq, terminal=False, event="{}", keep=keep)


async def test_a_read_does_not_wait_for_events_that_are_to_be_kept(tmp_path):
    async with open_sqlite_store(tmp_path) as store:
        await store.commit(session("s"))
        async with busy(store):
            store.post(kept(1))
            with trio.fail_after(PATIENCE / 2):
                assert (await store.session(S)).id == S


async def test_a_reader_that_comes_back_sees_which_events_were_given_up_for_newer_ones(tmp_path):
    async with open_sqlite_store(tmp_path) as store:
        before = store.boot_id
        await store.commit(kept(1), kept(2), BootClosed(at=200))
    async with open_sqlite_store(tmp_path) as store:
        assert len(await store.tail_after(before, 0)) == 2
        async with trio.open_nursery() as nursery, busy(store):
            store.post(kept(1, keep=1))
            found = []
            nursery.start_soon(_append_result, found, store.tail_after, before, 0)
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert found == []
        assert found == [None]


async def _append_result(found, read, *place):
    found.append(await read(*place))


async def test_a_read_that_has_waited_leaves_nothing_outstanding(tmp_path, traced):
    async with open_sqlite_store(tmp_path) as store:
        store.post(session("s"))
        await store.session(S)
        statements = traced(store)
        await store.session(S)
        assert statements == []


async def test_a_read_whose_wait_is_cancelled_lets_the_next_one_wait(tmp_path):
    async with open_sqlite_store(tmp_path) as store:
        async with busy(store):
            store.post(session("s"))
            with trio.CancelScope() as scope:
                scope.cancel()
                await store.session(S)
        assert (await store.session(S)).id == S


async def test_what_is_stored_can_be_read_when_the_writer_is_gone(tmp_path):
    def die(_connection):
        raise SystemExit

    async with open_sqlite_store(tmp_path) as store:
        await store.commit(session("s"))
        store._database.post(die)
        store.post(session("t"))
        assert ids(await store.sessions()) == ["s"]
        assert "SystemExit" in store.degraded
        with pytest.raises(StoreFailed):
            await store.commit(session("u"))


# ── Rows ────────────────────────────────────────────────────────────────────────────────────────


async def test_appending_adds_a_row_and_rewrites_none(tmp_path, traced):
    async with open_sqlite_store(tmp_path) as store:
        await store.commit(session("s"), message("m", thought("long " * 1000), text()))
        await store.commit(append("Hel", 1), append("hm", 0))
        statements = traced(store)
        await store.commit(append("lo", 1))
        assert not any("long" in s or "Hel" in s for s in statements)
        assert rows(store, "SELECT idx, n, text FROM chunks") == [
            (0, 0, "hm"),
            (1, 0, "Hel"),
            (1, 1, "lo"),
        ]
        assert rows(store, "SELECT data FROM parts WHERE idx = 1") == [('{"text":""}',)]


async def test_a_finished_message_has_no_chunks(tmp_path):
    async with open_sqlite_store(tmp_path) as store:
        await store.commit(session("s"), message("m", thought("a"), text("b"), text("c")))
        await store.commit(append("1", 0), append("2", 1), append("3", 1))
        await store.commit(
            PartPut(message_id=M, index=3, part=END, at=101), MessageFinished(message_id=M, at=102)
        )
        assert rows(store, "SELECT * FROM chunks") == []
        assert rows(store, "SELECT type, data FROM parts ORDER BY idx") == [
            ("reasoning", '{"thinking":"a1","signature":""}'),
            ("text", '{"text":"b23"}'),
            ("text", '{"text":"c"}'),
            ("finish", '{"reason":"end_turn","time":9}'),
        ]
        assert rows(store, "SELECT finished_at FROM messages") == [(102,)]


async def test_a_message_that_comes_complete_was_finished_when_it_was_updated(tmp_path):
    async with open_sqlite_store(tmp_path) as store:
        await store.commit(session("s"), message("m", text("a"), END, at=77))
        await store.commit(MessageFinished(message_id=M, at=99))
        assert rows(store, "SELECT finished_at, updated_at FROM messages") == [(77, 99)]


async def test_parts_that_are_cut_off_leave_no_chunks(tmp_path):
    async with open_sqlite_store(tmp_path) as store:
        await store.commit(session("s"), message("m", text(), text()))
        await store.commit(append("a", 0), append("b", 1))
        await store.commit(PartsCut(message_id=M, length=1, at=100))
        assert rows(store, "SELECT idx, text FROM chunks") == [(0, "a")]


async def test_appending_within_a_second_changes_no_row_but_its_own(tmp_path):
    async with open_sqlite_store(tmp_path) as store:
        await store.commit(session("s", at=100), message("m", text()))
        connection = store._database._writer._connection
        before = connection.total_changes
        await store.commit(append("a", at=100))
        assert connection.total_changes == before + 1
        await store.commit(append("b", at=101))
        assert connection.total_changes == before + 1 + 3  # the times of message and session too


async def test_attachments_take_no_room_after_the_run(tmp_path):
    file = Attachment(file_path="/a", file_name="a", mime_type="image/png", content=b"\xff" * 10)
    async with open_sqlite_store(tmp_path) as store:
        await store.commit(run("r", attachments=(file,)))
        assert rows(store, "SELECT length(attachments) > 10 FROM runs") == [(1,)]
        ended = evolve(run("r").run, state=RunState.COMPLETED, ended_at=1)
        await store.commit(RunEnded(run=ended))
        assert rows(store, "SELECT attachments FROM runs") == [(None,)]


async def test_the_first_resolution_of_an_ask_is_the_one_on_record(tmp_path):
    opened = AskOpened(
        id=AskId("a"),
        kind="question",
        session_id=S,
        run_id=RunId("r"),
        tool_call_id=ToolCallId("c"),
        payload="{}",
        at=1,
    )
    async with open_sqlite_store(tmp_path) as store:
        await store.commit(opened)
        for at, resolution in ((2, "allow"), (3, "deny")):
            await store.commit(AskResolved(id=AskId("a"), resolution=resolution, at=at))
        assert rows(store, "SELECT resolution, resolved_at FROM asks") == [("allow", 2)]


# ── Files from other versions, and damaged ones ─────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("statement", "error", "words"),
    [
        (
            "UPDATE parts SET type = 'hologram' WHERE idx = 1",
            StoreTooNew,
            "part 1 of message m is of type 'hologram'",
        ),
        ("UPDATE messages SET role = 'judge'", StoreTooNew, "the role of message m is 'judge'"),
        ("UPDATE parts SET data = '{' WHERE idx = 0", StoreCorrupt, "part 0 of message m"),
        ("UPDATE parts SET data = '{\"text\":5}' WHERE idx = 0", StoreCorrupt, "expected a string"),
    ],
)
async def test_a_message_that_cannot_be_read_is_refused_not_shortened(
    tmp_path, statement, error, words
):
    async with open_sqlite_store(tmp_path) as store:
        await store.commit(session("s"), session("t"), message("m", text("a"), text("b")))
        spoil(store, statement)
        with pytest.raises(error, match=words):
            await store.messages(S)
        assert words in store.degraded
        assert len(await store.sessions()) == 2


async def test_a_session_whose_todos_cannot_be_read_is_refused(tmp_path):
    async with open_sqlite_store(tmp_path) as store:
        await store.commit(session("s"))
        spoil(store, "UPDATE sessions SET todos = '[1]'")
        with pytest.raises(StoreCorrupt, match="the todos of session s"):
            await store.session(S)


async def test_a_run_of_an_unknown_kind_is_refused(tmp_path):
    async with open_sqlite_store(tmp_path) as store:
        await store.commit(run("r"))
        spoil(store, "UPDATE runs SET kind = 'dream'")
        with pytest.raises(StoreTooNew, match="the kind of run r is 'dream'"):
            await store.runs()


async def test_a_store_can_be_checked_and_has_one_owner(tmp_path):
    async with open_sqlite_store(tmp_path) as store:
        await store.commit(session("s"))
        await store.check()
        assert store.path.parent == tmp_path
        with pytest.raises(StoreLocked):
            async with open_sqlite_store(tmp_path):
                pass


@pytest.mark.parametrize(
    ("query", "index"),
    [
        ("SELECT id FROM runs ORDER BY accepted_at DESC, seq DESC, n DESC LIMIT 9", "runs_by_time"),
        (
            "SELECT id FROM runs WHERE session_id = 's'"
            " ORDER BY accepted_at DESC, seq DESC, n DESC LIMIT 9",
            "runs_by_session",
        ),
        (
            "SELECT id FROM sessions WHERE parent_session_id IS NULL"
            " ORDER BY updated_at DESC, n DESC",
            "sessions_by_update",
        ),
        (
            "SELECT id FROM messages WHERE role = 'user' ORDER BY created_at DESC, n DESC",
            "messages_of_users",
        ),
        (
            "SELECT id FROM messages WHERE session_id = 's' AND finished_at IS NULL ORDER BY seq",
            "messages_unfinished",
        ),
        ("SELECT max(version) FROM files WHERE path = '/a'", "files_by_version"),
        ("SELECT id FROM asks WHERE resolved_at IS NULL ORDER BY created_at, n", "asks_pending"),
    ],
)
async def test_lists_are_read_through_their_index(tmp_path, query, index):
    async with open_sqlite_store(tmp_path) as store:
        plan = [row[3] for row in rows(store, f"EXPLAIN QUERY PLAN {query}")]
        assert index in plan[0]
