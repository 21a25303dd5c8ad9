"""Commits: handed over in order, certain through a cancel, and withdrawn in time or not at all."""

import sqlite3
import threading
from contextlib import asynccontextmanager

import pytest
import trio
from outcome import Error, Value

from crush_trio.errors import SessionNotFound
from crush_trio.store.changes import RunAccepted, RunMoved, SessionDeleted, SessionEdited
from crush_trio.store.commit import Commit
from crush_trio.store.errors import DiskFull, StoreFailed, StoreSlow
from crush_trio.store.sqlite.store import open_sqlite_store
from crush_trio.wire.ids import RunId
from crush_trio.wire.runs import RunState, RunView
from tests.store.stores import S, ids, session

PATIENCE = 10.0


# ── By themselves ───────────────────────────────────────────────────────────────────────────────


def new_commit():
    lost = []
    return Commit(lost.append), lost


async def test_a_commit_gives_its_result_as_often_as_it_is_asked():
    commit, _ = new_commit()
    commit.settle(Value("done"))
    assert [await commit.wait(), await commit.certain(), commit.known] == ["done", "done", True]


async def test_the_first_result_of_a_commit_stands():
    commit, _ = new_commit()
    commit.settle(Error(DiskFull()))
    commit.settle(Value("late"))
    for _ in range(2):
        with pytest.raises(DiskFull):
            await commit.wait()


async def test_a_cancel_ends_a_wait_and_not_the_wait_for_certainty():
    commit, _ = new_commit()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep, 5)
        with trio.move_on_after(1) as plain:
            await commit.wait()
        assert plain.cancelled_caught
        with trio.move_on_after(1):
            with pytest.raises(StoreSlow):
                await commit.certain(within=3)
        assert trio.current_time() == 4


async def test_a_failure_that_no_task_waits_for_is_not_lost():
    commit, lost = new_commit()
    with trio.move_on_after(1):
        await commit.wait()
    commit.settle(Error(DiskFull()))
    assert [type(error) for error in lost] == [DiskFull]


async def test_a_withdrawn_commit_takes_no_other_result():
    commit, _ = new_commit()
    commit.withdraw()
    commit.settle(Value("late"))
    with pytest.raises(StoreSlow):
        await commit.wait()
    assert not commit.withdraw()


# ── In every store ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.real_clock
async def test_commits_are_applied_in_the_order_in_which_they_were_handed_over(openings):
    async with openings.open() as store:
        commits = [store.submit(session("s"))]
        commits += [store.submit(SessionEdited(id=S, at=1, title=str(n))) for n in range(20)]
        await commits[-1].certain()
        assert all(commit.known for commit in commits)
        assert (await store.session(S)).title == "19"


@pytest.mark.real_clock
async def test_a_commit_returns_the_session_as_its_changes_leave_it(openings):
    async with openings.open() as store:
        made = await store.submit(session("s", title="a"), session=S).certain()
        assert made == await store.session(S)
        assert await store.submit(session("t")).certain() is None
        assert await store.submit(SessionDeleted(id=S), session=S).certain() is None


@pytest.mark.real_clock
async def test_what_is_wrong_with_a_commit_is_raised_where_it_is_waited_for(openings):
    async with openings.open() as store:
        refused = store.submit(SessionEdited(id=S, at=1, title="a"))
        with pytest.raises(SessionNotFound):
            await refused.certain()


@pytest.mark.real_clock
async def test_a_store_that_was_abandoned_takes_nothing_any_more(openings):
    async with openings.open() as store:
        store.abandon()
        with pytest.raises(StoreFailed):
            await store.commit(session("s"))
        store.post(session("t"))
        assert await store.sessions() == []


# ── While another program holds the database ────────────────────────────────────────────────────


@asynccontextmanager
async def held(directory):
    """Hold the write lock of a store's file, as another program would."""
    connection = sqlite3.connect(
        directory / "crush-trio.db", isolation_level=None, check_same_thread=False
    )
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        connection.rollback()
        connection.close()


@pytest.mark.real_clock
async def test_a_commit_that_was_withdrawn_in_time_is_never_applied(tmp_path):
    async with open_sqlite_store(tmp_path) as store:
        async with held(tmp_path):
            before = store.submit(session("a"))
            slow = store.submit(session("b"))
            after = store.submit(session("c"))
            with pytest.raises(StoreSlow):
                await slow.certain(within=0.05)
        await before.certain(PATIENCE)
        await after.certain(PATIENCE)
        assert sorted(ids(await store.sessions())) == ["a", "c"]


@pytest.mark.real_clock
async def test_nothing_that_was_under_way_when_a_store_was_abandoned_lands_later(tmp_path):
    async with open_sqlite_store(tmp_path) as store:
        async with held(tmp_path):
            commits = [store.submit(session(name)) for name in "abc"]
            assert not await commits[0].known_within(0.05)
            store.abandon()
            for commit in commits:
                with pytest.raises(StoreFailed):
                    await commit.wait()
    async with open_sqlite_store(tmp_path) as store:
        assert await store.sessions() == []


@pytest.mark.real_clock
async def test_a_write_in_its_middle_when_its_store_was_abandoned_is_rolled_back(tmp_path):
    begun, go_on = threading.Event(), threading.Event()

    def slow(connection):
        connection.execute("INSERT INTO sessions (id, created_at, updated_at) VALUES ('a', 1, 1)")
        begun.set()
        go_on.wait(PATIENCE)

    async with open_sqlite_store(tmp_path) as store:
        request = store._database.submit(slow)
        assert await trio.to_thread.run_sync(begun.wait, PATIENCE)
        assert not request.withdraw(), "it had begun"
        store.abandon()
        go_on.set()
    async with open_sqlite_store(tmp_path) as store:
        assert await store.sessions() == []


@pytest.mark.real_clock
async def test_what_is_stored_can_be_read_while_another_program_holds_the_database(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("crush_trio.store.sqlite.store.CATCH_UP_SECONDS", 0.05)
    async with open_sqlite_store(tmp_path) as store:
        await store.commit(session("a"))
        async with held(tmp_path):
            store.post(session("b"))
            with trio.fail_after(PATIENCE):
                assert ids(await store.sessions()) == ["a"]
                assert await store.tail_after("before", 0) is None
        assert sorted(ids(await store.sessions())) == ["a", "b"]


@pytest.mark.real_clock
async def test_a_conversation_does_not_wait_for_what_is_posted_about_its_run(tmp_path, monkeypatch):
    monkeypatch.setattr("crush_trio.store.sqlite.store.CATCH_UP_SECONDS", 10 * PATIENCE)
    run = RunView(id=RunId("r"), session_id=S, state=RunState.ACCEPTED)
    async with open_sqlite_store(tmp_path) as store:
        await store.commit(session(S), RunAccepted(run=run, prompt="hello"))
        async with held(tmp_path):
            store.post(RunMoved(id=run.id, state=RunState.ACTIVE, at=1))
            with trio.fail_after(PATIENCE):
                assert (await store.conversation(S, run.id)).messages == []
        assert (await store.run(run.id)).view.state is RunState.ACTIVE
