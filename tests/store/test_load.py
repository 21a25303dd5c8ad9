"""How much a store has to do: ranges of times, and what the writer of a real one counts."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crush_trio.store.base import COMMIT_BOUNDS, StoreLoad, Timings
from crush_trio.store.changes import SessionCreated
from crush_trio.store.health import Health
from crush_trio.store.memory.store import MemoryStore
from crush_trio.store.postgres import database
from crush_trio.store.postgres.opening import open_postgres_store
from crush_trio.store.sqlite.store import open_sqlite_store
from crush_trio.store.sqlite.writer import open_writer
from crush_trio.wire.ids import SessionId
from crush_trio.wire.views import Session
from tests.store.postgres.server import connect as connect_to_postgres
from tests.store.postgres.server import new_database
from tests.store.sqlite.test_writer import connect, insert


def test_a_time_is_counted_in_the_first_range_whose_bound_it_does_not_pass():
    timings = Timings((1.0, 2.0))
    for seconds in (0.0, 1.0, 1.5, 2.0, 2.1):
        timings.note(seconds)
    assert timings.counts == [2, 2, 1]
    assert timings.total == pytest.approx(6.6)


@given(st.lists(st.floats(0, 10)), st.lists(st.floats(0, 10)))
def test_absorbing_is_as_if_all_had_been_counted_in_one_place(first, second):
    here, there, both = Timings(COMMIT_BOUNDS), Timings(COMMIT_BOUNDS), Timings(COMMIT_BOUNDS)
    for timings, values in ((here, first), (there, second), (both, first + second)):
        for value in values:
            timings.note(value)
    here.absorb(there)
    assert here.counts == both.counts
    assert here.total == pytest.approx(both.total)


def test_a_store_that_is_never_behind_has_nothing_to_do():
    load = MemoryStore().load
    assert (load.pending, sum(load.commits.counts)) == (0, 0)
    assert load.commits.bounds == StoreLoad().commits.bounds == COMMIT_BOUNDS


@pytest.mark.real_clock
async def test_writes_are_pending_until_trio_knows_of_their_commit_and_a_group_is_one_commit(
    tmp_path,
):
    path, go_on = tmp_path / "test.db", threading.Event()
    async with open_writer(connect(path, 5.0), path=path, health=Health()) as writer:
        writer.post(lambda _: go_on.wait(10))
        for name in "abc":
            writer.post(insert(name))
        assert writer.load.pending == 4
        assert sum(writer.load.commits.counts) == 0
        go_on.set()
        await writer.transact(insert("d"))
        assert writer.load.pending == 0
        assert 1 <= sum(writer.load.commits.counts) <= 2
        assert writer.load.commits.total > 0


@pytest.mark.real_clock
async def test_a_store_on_disk_tells_what_its_writer_counts(tmp_path):
    async with open_sqlite_store(tmp_path) as store:
        await store.commit(SessionCreated(session=Session(id=SessionId("s"), title="")))
        assert sum(store.load.commits.counts) == 1
        assert store.load.pending == 0


@pytest.mark.real_clock
async def test_a_store_on_disk_tells_how_large_its_files_are(tmp_path):
    async with open_sqlite_store(tmp_path) as store:
        await store.commit(SessionCreated(session=Session(id=SessionId("s"), title="x" * 50_000)))
        files = sum(path.stat().st_size for path in tmp_path.glob("crush-trio.db*"))
        assert store.load.size == files > 50_000
    assert MemoryStore().load.size == 0


@pytest.mark.slow
@pytest.mark.real_clock
async def test_stores_in_one_database_tell_its_size_once_it_was_looked_up(tmp_path):
    url = new_database()
    async with (
        open_postgres_store(url, tmp_path / "a", site="test") as one,
        open_postgres_store(url, tmp_path / "b", site="test") as other,
    ):
        assert one.load.size == 0
        await one.measure()
        await other.measure()
        with connect_to_postgres(url) as connection:
            [size] = connection.execute("SELECT pg_database_size(current_database())").fetchone()
        assert one.load.size == pytest.approx(size, rel=0.1)
        assert (one.load.size, one.load.database) == (other.load.size, other.load.database)
        assert one.load.database.endswith(url.rpartition("/")[2])


@pytest.mark.slow
@pytest.mark.real_clock
async def test_metrics_do_not_wait_for_a_database_that_does_not_answer(tmp_path, monkeypatch):
    answer = threading.Event()

    def held(_):
        answer.wait(60)
        return 5

    monkeypatch.setattr(database, "_size", held)
    monkeypatch.setattr(database, "MEASURE_SECONDS", 0.01)
    async with open_postgres_store(new_database(), tmp_path, site="test") as store:
        await store.measure()
        assert store.load.size == 0
        assert store.degraded is None
        answer.set()
