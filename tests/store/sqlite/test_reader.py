"""Reading: what a read sees, and what becomes of its connection whatever happens to it."""

import sqlite3
import threading
from contextlib import closing, suppress

import pytest
import trio
from attrs import define, field
from trio.testing import wait_all_tasks_blocked

from crush_trio.store.errors import DiskFailed, StoreFailed, StoreReadOnly
from crush_trio.store.health import Health
from crush_trio.store.sqlite.reader import CACHE_KIB, SHORT_READ_TASKS, open_reader

pytestmark = pytest.mark.real_clock

PATIENCE = 10.0


@pytest.fixture
def path(tmp_path):
    return tmp_path / "50% of & what?.db"


@pytest.fixture
def writer(path):
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE rows (n INTEGER)")
        connection.execute("INSERT INTO rows VALUES (1)")
        yield connection


def count(connection):
    return connection.execute("SELECT count(*) FROM rows").fetchone()[0]


async def test_a_read_sees_every_write_committed_before_it(path, writer):
    async with open_reader(path, health=Health(), count=2) as reader:
        for n in range(1, 20):
            assert await reader.read(count) == n
            writer.execute("INSERT INTO rows VALUES (?)", (n,))


@pytest.mark.usefixtures("writer")
async def test_all_statements_of_a_read_see_the_same_moment(path):
    first_done, go_on = threading.Event(), threading.Event()

    def count_twice(connection):
        first = count(connection)
        first_done.set()
        go_on.wait(PATIENCE)
        return first, count(connection)

    async def write_between():
        assert await trio.to_thread.run_sync(first_done.wait, PATIENCE)
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("INSERT INTO rows VALUES (2)")
        go_on.set()

    async with open_reader(path, health=Health()) as reader, trio.open_nursery() as nursery:
        nursery.start_soon(write_between)
        assert await reader.read(count_twice) == (1, 1)
        assert await reader.read(count) == 2


# ── Short reads ─────────────────────────────────────────────────────────────────────────────────


@define(eq=False)
class Stuck:
    """Reads that hold every server of a reader until they are let go."""

    begun: threading.Semaphore = field(factory=lambda: threading.Semaphore(0))
    go_on: threading.Event = field(factory=threading.Event)

    def work(self, _connection):
        self.begun.release()
        assert self.go_on.wait(PATIENCE)

    async def hold(self, reader, nursery):
        for number in range(SHORT_READ_TASKS):
            nursery.start_soon(reader.read_soon, ("stuck", number), self.work)
            await trio.to_thread.run_sync(self.begun.acquire)


@pytest.mark.usefixtures("writer")
async def test_short_reads_that_gather_go_together_and_the_same_is_read_once(path):
    groups, stuck = [], Stuck()

    def look(name):
        def work(connection):
            groups.append((id(connection), name))
            return name

        return work

    async def ask(name):
        assert await reader.read_soon(name, look(name)) == name

    async with open_reader(path, health=Health()) as reader, trio.open_nursery() as nursery:
        await stuck.hold(reader, nursery)
        for name in "abcabcaab":
            nursery.start_soon(ask, name)
        await wait_all_tasks_blocked()
        stuck.go_on.set()
    assert sorted(name for _, name in groups) == ["a", "b", "c"]
    assert len({connection for connection, _ in groups}) == 1


async def test_a_shared_read_sees_all_that_was_written_before_it_was_asked_for(path, writer):
    seen, stuck = [], Stuck()

    async def ask():
        seen.append(await reader.read_soon("count", count))

    async with open_reader(path, health=Health()) as reader, trio.open_nursery() as nursery:
        await stuck.hold(reader, nursery)
        for number in range(1, 4):
            nursery.start_soon(ask)
            await wait_all_tasks_blocked()
            writer.execute("INSERT INTO rows VALUES (?)", (number,))
        stuck.go_on.set()
    assert seen == [4, 4, 4]


@pytest.mark.usefixtures("writer")
async def test_a_short_read_that_fails_fails_for_each_who_wants_it_and_for_nobody_else(path):
    failures, stuck = [], Stuck()

    def broken(_connection):
        raise KeyError("no such thing")

    async def ask_for_it():
        with pytest.raises(KeyError) as caught:
            await reader.read_soon("broken", broken)
        failures.append(caught.value)

    async def ask():
        assert await reader.read_soon("count", count) == 1

    async with open_reader(path, health=Health()) as reader, trio.open_nursery() as nursery:
        await stuck.hold(reader, nursery)
        for each in (ask_for_it, ask, ask_for_it):
            nursery.start_soon(each)
        await wait_all_tasks_blocked()
        stuck.go_on.set()
    assert len(set(map(id, failures))) == 2


@pytest.mark.usefixtures("writer")
async def test_one_who_leaves_takes_nobody_along(path):
    stuck, seen = Stuck(), []

    async def ask():
        seen.append(await reader.read_soon("count", count))

    async with open_reader(path, health=Health()) as reader, trio.open_nursery() as nursery:
        await stuck.hold(reader, nursery)
        async with trio.open_nursery() as leaving:
            leaving.start_soon(ask)
            await wait_all_tasks_blocked()
            nursery.start_soon(ask)
            await wait_all_tasks_blocked()
            leaving.cancel_scope.cancel()
        stuck.go_on.set()
    assert seen == [1]


@pytest.mark.usefixtures("writer")
async def test_reads_that_take_turns_leave_connections_to_others(path):
    stuck, order = Stuck(), []

    async def take_a_turn(number):
        await reader.read_in_turn(lambda _connection: order.append(number))

    async with (
        open_reader(path, health=Health(), count=2) as reader,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(reader.read_in_turn, stuck.work)
        await trio.to_thread.run_sync(stuck.begun.acquire)
        for number in range(3):
            nursery.start_soon(take_a_turn, number)
            await wait_all_tasks_blocked()
        assert await reader.read(count) == 1
        assert order == []
        stuck.go_on.set()
    assert order == [0, 1, 2]


@pytest.mark.usefixtures("writer")
async def test_nobody_waits_for_a_reader_that_is_closed(path):
    async def ask():
        with suppress(StoreFailed):  # unless there was time enough
            await reader.read_soon("count", count)
        told.set()

    told, stuck = trio.Event(), Stuck()
    async with trio.open_nursery() as nursery:
        async with open_reader(path, health=Health()) as reader:
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as holding:
                    await stuck.hold(reader, holding)
                    nursery.start_soon(ask)
                    await wait_all_tasks_blocked()
                    scope.cancel()
            stuck.go_on.set()
        with trio.fail_after(PATIENCE):
            await told.wait()
        with pytest.raises(StoreFailed, match="closed"):
            await reader.read_soon("count", count)


@pytest.mark.usefixtures("writer")
async def test_reads_one_after_the_other_share_one_connection_and_it_keeps_little(path):
    def look(connection):
        return id(connection), connection.execute("PRAGMA cache_size").fetchone()[0]

    async with open_reader(path, health=Health(), count=3) as reader:
        seen = {await reader.read(look) for _ in range(6)}
    assert len(seen) == 1
    assert seen.pop()[1] == -CACHE_KIB


@pytest.mark.usefixtures("writer")
async def test_a_read_cannot_write(path):
    health = Health()
    async with open_reader(path, health=health, count=1) as reader:
        with pytest.raises(StoreReadOnly) as caught:
            await reader.read(lambda connection: connection.execute("DELETE FROM rows"))
        assert health.degraded == str(caught.value)
        assert await reader.read(count) == 1
        assert health.degraded is None


@pytest.mark.usefixtures("writer")
async def test_as_many_reads_run_at_once_as_there_are_connections_and_the_rest_wait(path):
    together = threading.Barrier(3)
    at_once, most = [], []

    def meet(connection):
        at_once.append(connection)
        most.append(len(at_once))
        together.wait(PATIENCE)  # breaks unless three reads run at the same time
        at_once.remove(connection)
        return count(connection)

    results = []

    async def read_one():
        results.append(await reader.read(meet))

    async with open_reader(path, health=Health(), count=3) as reader:
        async with trio.open_nursery() as nursery:
            for _ in range(9):
                nursery.start_soon(read_one)
    assert results == [1] * 9
    assert max(most) == 3


@pytest.mark.usefixtures("writer")
async def test_a_failed_read_gives_its_connection_back_and_its_error_to_the_caller(path):
    def fail(_connection):
        raise LookupError("no such thing")

    health = Health()
    async with open_reader(path, health=health, count=1) as reader:
        for _ in range(3):
            with pytest.raises(LookupError, match="no such thing"):
                await reader.read(fail)
        assert await reader.read(count) == 1
        assert health.degraded is None


@pytest.mark.usefixtures("writer")
async def test_a_cancelled_read_gives_its_connection_back(path):
    entered, go_on = threading.Event(), threading.Event()

    def slow(connection):
        entered.set()
        go_on.wait(PATIENCE)
        return count(connection)

    async def cancel_soon(scope):
        assert await trio.to_thread.run_sync(entered.wait, PATIENCE)
        scope.cancel()
        go_on.set()

    async with open_reader(path, health=Health(), count=1) as reader:
        async with trio.open_nursery() as nursery:
            with trio.CancelScope() as scope:
                nursery.start_soon(cancel_soon, scope)
                await reader.read(slow)
                await trio.lowlevel.checkpoint()
            assert scope.cancelled_caught
        assert await reader.read(count) == 1


@pytest.mark.usefixtures("writer")
async def test_leaving_closes_every_connection_and_later_reads_are_refused(path):
    used = []
    async with open_reader(path, health=Health(), count=2) as reader:
        for _ in range(2):
            await reader.read(used.append)
    for connection in used:
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            connection.execute("SELECT 1")
    with pytest.raises(StoreFailed, match="closed"):
        await reader.read(count)


@pytest.mark.usefixtures("writer")
async def test_leaving_does_not_wait_for_ever_for_a_read_that_hangs(path, caplog):
    entered, release = threading.Event(), threading.Event()

    def hang(_connection):
        entered.set()
        release.wait(PATIENCE)

    async with trio.open_nursery() as nursery:
        async with open_reader(path, health=Health(), count=1, close_limit=0.01) as reader:
            nursery.start_soon(reader.read, hang)
            assert await trio.to_thread.run_sync(entered.wait, PATIENCE)
        assert [record.msg for record in caplog.records] == ["store.reader_stuck"]
        release.set()


async def test_a_file_that_is_not_there_cannot_be_read(path):
    with pytest.raises(DiskFailed) as caught:
        async with open_reader(path, health=Health()):
            pass
    assert str(path) in str(caught.value)
    assert not path.exists()
