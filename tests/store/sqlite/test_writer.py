"""The writer thread: order, groups, waiters that go away, and every way in which it can fail."""

import sqlite3
import threading
from contextlib import asynccontextmanager, closing, contextmanager
from queue import Empty

import outcome
import pytest
import trio
from attrs import define, field
from trio.testing import wait_all_tasks_blocked

from crush_trio.store.errors import DiskFull, StoreBusy, StoreFailed
from crush_trio.store.group_commit import WriteRequest
from crush_trio.store.health import Health
from crush_trio.store.sqlite.writer import Writer, open_writer

pytestmark = pytest.mark.real_clock

PATIENCE = 10.0


@pytest.fixture
def path(tmp_path):
    return tmp_path / "test.db"


def connect(path, busy_timeout):
    connection = sqlite3.connect(
        path, timeout=busy_timeout, isolation_level=None, check_same_thread=False
    )
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("CREATE TABLE IF NOT EXISTS parents (id INTEGER PRIMARY KEY)")
    connection.execute(
        "CREATE TABLE IF NOT EXISTS rows (n INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT UNIQUE,"
        " parent INTEGER REFERENCES parents (id) DEFERRABLE INITIALLY DEFERRED)"
    )
    return connection


@asynccontextmanager
async def open_test_writer(path, *, busy_timeout=5.0, close_limit=PATIENCE, post_delay=0.0):
    health = Health()
    async with open_writer(
        connect(path, busy_timeout),
        path=path,
        health=health,
        close_limit=close_limit,
        post_delay=post_delay,
    ) as writer:
        yield writer, health


def insert(name, parent=None):
    def work(connection):
        connection.execute("INSERT INTO rows (name, parent) VALUES (?, ?)", (name, parent))
        return name

    return work


def names(path):
    with closing(sqlite3.connect(path)) as connection:
        return [row[0] for row in connection.execute("SELECT name FROM rows ORDER BY n")]


@asynccontextmanager
async def busy(writer):
    """Keep the thread busy for the length of the block, so that what is submitted gathers."""
    entered, release = threading.Event(), threading.Event()

    def hold(_connection):
        entered.set()
        release.wait(PATIENCE)

    writer.post(hold)
    assert await trio.to_thread.run_sync(entered.wait, PATIENCE)
    try:
        yield
    finally:
        release.set()


async def transact_together(writer, *works):
    """Submit the works in this order, as one group, and return how each came out."""
    outcomes = {}

    async def wait_for(place, work):
        outcomes[place] = await outcome.acapture(writer.transact, work)

    async with trio.open_nursery() as nursery:
        async with busy(writer):
            for place, work in enumerate(works):
                nursery.start_soon(wait_for, place, work)
                await wait_all_tasks_blocked()
    return [outcomes[place] for place in range(len(works))]


def errors(outcomes):
    return [type(o.error) if isinstance(o, outcome.Error) else None for o in outcomes]


@contextmanager
def traced(writer):
    """Collect the statements that begin and end transactions."""
    statements = []
    writer._connection.set_trace_callback(
        lambda sql: statements.append(sql) if sql.split()[0] in {"BEGIN", "COMMIT"} else None
    )
    yield statements
    writer._connection.set_trace_callback(None)


def fail_with(exc):
    def work(_connection):
        raise exc

    return work


# ── Order and groups ────────────────────────────────────────────────────────────────────────────


async def test_a_write_is_on_disk_when_its_waiter_goes_on(path):
    async with open_test_writer(path) as (writer, _):
        assert await writer.transact(insert("a")) == "a"
        assert names(path) == ["a"]


async def test_posts_and_transactions_are_written_in_the_order_of_submission(path):
    async with open_test_writer(path) as (writer, _):
        async with trio.open_nursery() as nursery, busy(writer):
            for place in range(0, 40, 2):
                writer.post(insert(f"{place:02}"))
                nursery.start_soon(writer.transact, insert(f"{place + 1:02}"))
                await wait_all_tasks_blocked()
        assert names(path) == [f"{place:02}" for place in range(40)]


async def test_writes_that_gather_share_one_transaction(path):
    async with open_test_writer(path) as (writer, _):
        with traced(writer) as statements:
            outcomes = await transact_together(writer, *(insert(str(n)) for n in range(20)))
    assert [o.unwrap() for o in outcomes] == [str(n) for n in range(20)]
    assert statements == ["BEGIN IMMEDIATE", "COMMIT"] * 2  # the one that held the thread, the rest


async def test_a_post_shares_the_transaction_of_the_next_write_that_is_waited_for(path):
    async with open_test_writer(path, post_delay=PATIENCE) as (writer, _):
        with traced(writer) as statements:
            writer.post(insert("a"))
            writer.post(insert("b"))
            await writer.transact(insert("c"))
            assert names(path) == ["a", "b", "c"]
        assert statements == ["BEGIN IMMEDIATE", "COMMIT"]


@define(eq=False)
class Arrivals:
    """A queue into which the next work arrives when the thread waits for it, and no sooner."""

    coming: list[WriteRequest]
    waits: list[float | None] = field(factory=list, init=False)

    def get(self, timeout):
        self.waits.append(timeout)
        if not self.coming:
            raise Empty
        return self.coming.pop(0)


async def test_the_thread_waits_for_company_only_until_somebody_waits_for_it(path):
    async with open_test_writer(path) as (idle, _):
        writer = Writer(idle._connection, path, Health(), idle._token, post_delay=PATIENCE)
        requests = [
            WriteRequest(Health().lost, number, insert("x"), Health(), awaited=awaited)
            for number, awaited in enumerate([False, False, True])
        ]
        writer._queue = Arrivals(list(requests))
        assert writer._take() == requests
        first, *more, last = writer._queue.waits
        assert (first, last) == (None, 0)
        assert all(0 < wait <= PATIENCE for wait in more)


async def test_a_post_that_nobody_follows_is_written_after_a_while(path):
    written = threading.Event()

    def work(connection):
        insert("a")(connection)
        written.set()

    async with open_test_writer(path, post_delay=0.01) as (writer, _):
        writer.post(work)
        assert await trio.to_thread.run_sync(written.wait, PATIENCE)
    assert names(path) == ["a"]


async def test_leaving_does_not_wait_for_posts_to_find_company(path):
    async with open_test_writer(path, post_delay=100 * PATIENCE) as (writer, _):
        writer.post(insert("a"))
    assert writer.stopped
    assert names(path) == ["a"]


async def test_a_group_holds_a_hundred_writes_at_most(path):
    async with open_test_writer(path) as (writer, _):
        with traced(writer) as statements:
            async with busy(writer):
                for n in range(250):
                    writer.post(insert(str(n)))
            await writer.transact(lambda _: None)
    assert statements.count("COMMIT") in {4, 5}  # hold, 100, 100, 50 and the last, or 51
    assert len(names(path)) == 250


async def test_trio_is_woken_once_for_a_group(path):
    class CountingToken:
        def __init__(self, token):
            self.token, self.wakes = token, 0

        def run_sync_soon(self, *args):
            self.wakes += 1
            self.token.run_sync_soon(*args)

    token = CountingToken(trio.lowlevel.current_trio_token())
    async with open_test_writer(path) as (writer, _):
        writer._token = token
        await transact_together(writer, *(insert(str(n)) for n in range(50)))
        assert token.wakes == 2  # the one that held the thread, and the fifty


# ── Failures of the work itself ─────────────────────────────────────────────────────────────────


async def test_one_failing_write_of_a_group_fails_alone(path):
    async with open_test_writer(path) as (writer, health):
        await writer.transact(insert("taken"))
        outcomes = await transact_together(writer, insert("a"), insert("taken"), insert("b"))
        assert errors(outcomes) == [None, sqlite3.IntegrityError, None]
        assert names(path) == ["taken", "a", "b"]
        assert health.degraded is None


async def test_a_write_that_fails_only_at_commit_fails_alone(path):
    async with open_test_writer(path) as (writer, _):
        outcomes = await transact_together(writer, insert("a"), insert("orphan", 7), insert("b"))
        assert errors(outcomes) == [None, sqlite3.IntegrityError, None]
        assert names(path) == ["a", "b"]


async def test_an_error_of_the_work_is_raised_as_it_is_and_nothing_is_written(path):
    def work(connection):
        insert("half")(connection)
        raise LookupError("no such thing")

    async with open_test_writer(path) as (writer, _):
        with pytest.raises(LookupError, match="no such thing"):
            await writer.transact(work)
        assert names(path) == []


async def test_work_that_ends_its_transaction_is_told_so(path):
    async with open_test_writer(path) as (writer, _):
        with pytest.raises(RuntimeError, match="ended the transaction"):
            await writer.transact(lambda connection: connection.commit())
        assert await writer.transact(insert("next")) == "next"


async def test_a_failed_post_is_logged_once_and_degrades_the_store_until_one_succeeds(path, caplog):
    async with open_test_writer(path) as (writer, health):
        writer.post(fail_with(LookupError("no such thing")))
        await writer.transact(insert("a"))
        assert health.degraded == "no such thing"
        lost = [record for record in caplog.records if record.msg == "store.write_lost"]
        assert [type(record.exc_info[1]) for record in lost] == [LookupError]
        writer.post(insert("b"))
        await writer.transact(insert("c"))
        assert health.degraded is None
    assert names(path) == ["a", "b", "c"]


# ── Waiters that go away ────────────────────────────────────────────────────────────────────────


async def test_a_cancelled_waiter_leaves_at_once_and_its_write_is_committed(path):
    async with open_test_writer(path) as (writer, _):
        async with busy(writer):
            with trio.CancelScope() as scope:
                scope.cancel()
                await writer.transact(insert("a"))
            assert scope.cancelled_caught
            assert names(path) == []  # the thread is still busy, yet the waiter is free
        await writer.transact(insert("b"))
        assert names(path) == ["a", "b"]


async def test_a_write_that_fails_after_its_waiter_was_cancelled_is_logged(path, caplog):
    gone = threading.Event()
    async with open_test_writer(path) as (writer, health):
        writer.post(lambda _connection: gone.wait(10))  # so that the waiter is gone before it fails
        with trio.CancelScope() as scope:
            scope.cancel()
            await writer.transact(fail_with(LookupError("no such thing")))
        gone.set()
        await writer.transact(insert("a"))
        assert health.degraded == "no such thing"
    assert [record.msg for record in caplog.records].count("store.write_lost") == 1


async def test_a_write_that_fails_between_a_cancel_and_its_waiter_leaving_is_logged(path, caplog):
    failed = outcome.Error(LookupError("no such thing"))
    async with open_test_writer(path) as (writer, health), busy(writer):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(writer.transact, fail_with(failed.error))
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()  # the waiter will leave, and has not had its turn yet
            writer._deliver([outcome.Value(None), failed], 0.0)
        assert health.degraded == "no such thing"
    assert [record.msg for record in caplog.records].count("store.write_lost") == 1


# ── Faults of the surroundings ──────────────────────────────────────────────────────────────────


async def test_a_write_that_does_not_fit_spares_the_small_ones_beside_it(path):
    def fill(connection):
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages}")

    async with open_test_writer(path) as (writer, _):
        await writer.transact(fill)
        outcomes = await transact_together(writer, insert("a"), insert("x" * 100_000), insert("b"))
        assert errors(outcomes) == [None, DiskFull, None]
        assert names(path) == ["a", "b"]


async def test_a_group_waits_for_a_locked_file_once_and_not_once_per_write(path):
    async with open_test_writer(path, busy_timeout=0.1) as (writer, _):
        with locked_elsewhere(path), traced(writer) as statements:
            for n in range(50):
                writer.post(insert(str(n)))
            with pytest.raises(StoreBusy):
                await writer.transact(insert("last"))
        assert len(statements) <= 5  # two, unless the machine was slow to submit
        assert names(path) == []


@contextmanager
def locked_elsewhere(path):
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


# ── The end of the thread ───────────────────────────────────────────────────────────────────────


async def test_when_the_thread_dies_everyone_is_told_and_nothing_of_the_group_is_written(path):
    async with open_test_writer(path) as (writer, health):
        outcomes = await transact_together(
            writer, insert("a"), fail_with(SystemExit("out of luck")), insert("b")
        )
        assert errors(outcomes) == [StoreFailed] * 3
        assert isinstance(outcomes[2].error.__cause__, SystemExit)
        assert "out of luck" in health.degraded
        assert names(path) == []


async def test_after_the_thread_died_calls_fail_at_once_and_posts_do_not_raise(path, caplog):
    async with open_test_writer(path) as (writer, health):
        for _ in range(2):
            with pytest.raises(StoreFailed, match="out of luck"):
                await writer.transact(fail_with(SystemExit("out of luck")))
        for _ in range(3):
            writer.post(insert("a"))
        assert "out of luck" in health.degraded
    assert writer.stopped
    assert [record.msg for record in caplog.records].count("store.writer_died") == 1
    assert names(path) == []


async def test_a_dying_thread_does_not_deny_what_it_has_committed(path):
    calls = []

    def dies_when_alone(connection):
        calls.append(None)
        raise LookupError if len(calls) == 1 else SystemExit

    async with open_test_writer(path) as (writer, _):
        outcomes = await transact_together(writer, insert("a"), dies_when_alone, insert("b"))
        assert errors(outcomes) == [None, StoreFailed, StoreFailed]
        assert names(path) == ["a"]


async def test_leaving_writes_what_was_posted_and_ends_the_thread(path):
    async with open_test_writer(path) as (writer, _):
        async with busy(writer):
            for n in range(150):
                writer.post(insert(str(n)))
    assert len(names(path)) == 150
    assert writer.stopped
    assert "crush-trio-writer" not in {thread.name for thread in threading.enumerate()}
    assert not path.with_name("test.db-wal").exists()  # the connection was closed properly


async def test_leaving_a_cancelled_scope_still_writes_what_was_posted(path):
    with trio.CancelScope() as scope:
        async with open_test_writer(path) as (writer, _):
            writer.post(insert("a"))
            scope.cancel()
            await trio.lowlevel.checkpoint()
    assert writer.stopped
    assert names(path) == ["a"]


async def test_leaving_under_a_virtual_clock_still_waits_for_the_thread(path, autojump_clock):
    with trio.CancelScope():
        async with open_test_writer(path) as (writer, _):
            for n in range(500):
                writer.post(insert(str(n)))
    assert writer.stopped
    assert len(names(path)) == 500


async def test_a_closed_writer_refuses_work(path):
    async with open_test_writer(path) as (writer, health):
        pass
    with pytest.raises(StoreFailed, match="closed"):
        await writer.transact(insert("a"))
    writer.post(insert("b"))
    assert "closed" in health.degraded


async def test_a_thread_that_hangs_is_left_behind_and_its_waiters_are_told(path, caplog):
    outcomes = []

    async def wait_for(work):
        outcomes.append(await outcome.acapture(writer.transact, work))

    release = threading.Event()
    async with trio.open_nursery() as nursery:
        async with open_test_writer(path, close_limit=0.01) as (writer, _):
            writer.post(lambda _: release.wait(PATIENCE))
            nursery.start_soon(wait_for, insert("a"))
            await wait_all_tasks_blocked()
    assert errors(outcomes) == [StoreFailed]
    assert not writer.stopped
    assert "store.writer_stuck" in [record.msg for record in caplog.records]
    release.set()
    await trio.to_thread.run_sync(writer._thread.join)
    await wait_all_tasks_blocked()  # a late answer to a request that was given up does no harm
    assert names(path) == [], "its waiter was told that it failed"


def test_a_thread_whose_trio_is_gone_ends_quietly(path):
    release = threading.Event()

    async def main():
        async with open_test_writer(path, close_limit=0.01) as (writer, _):
            writer.post(lambda _: release.wait(PATIENCE))
        return writer

    writer = trio.run(main)
    release.set()
    writer._thread.join(PATIENCE)
    assert writer.stopped
