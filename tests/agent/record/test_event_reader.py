"""Readers that lost their place: every ending they have not seen, once, from the store and the log.

What was missed exactly, after a clean close, is in `test_tail.py`.
"""

import copy
import gc

import orjson
import pytest
import trio
import trio.testing
from attrs import define, evolve, field
from outcome import Error

from crush_trio.agent.record.event_reader import PAGE, PAGE_SIZE, new_reader
from crush_trio.agent.record.event_tail import STORE_LIMIT, EventTail, StoredEventCache
from crush_trio.errors import LogClosed
from crush_trio.events.facts import Position, RunChange
from crush_trio.events.frames import Form
from crush_trio.events.log import Window, open_event_log
from crush_trio.events.pieces import PIECE, pieces_of
from crush_trio.store.base import UNPLACED
from crush_trio.store.changes import BootClosed, RunAccepted, RunEnded, TailKept
from crush_trio.store.commit import Commit
from crush_trio.store.errors import DiskFull
from crush_trio.store.memory.store import Kept, MemoryStore
from crush_trio.testing.explore.explorer import explore
from crush_trio.testing.server.client import Replica
from crush_trio.testing.server.faulty_store import FaultyStore
from crush_trio.wire.ids import MessageId
from crush_trio.wire.messages import BinaryPart, Message, Role
from crush_trio.wire.runs import RunState
from tests.agent.durable import S, Turns, done, memory, open_bench
from tests.agent.patient_store import PatientStore
from tests.store.stores import STOP, run, session

settle = trio.testing.wait_all_tasks_blocked
SMALL = Window(events=4, endings=3)


# ── A client ────────────────────────────────────────────────────────────────────────────────────


@define(eq=False)
class Listener:
    """A native client that reads a workspace and can be copied, with what it knows, at any time."""

    start: Position
    replica: Replica = field(factory=Replica)
    reading: bool = False

    @property
    def place(self):
        last = self.replica.last_id
        return self.start if last is None else Position.parse(last)

    def copy(self):
        return Listener(self.start, copy.deepcopy(self.replica))

    async def listen(self, bench, seen=lambda: None, *, batches=None):
        """Read until the log closes, or so many *batches*; call *seen* after each."""
        reader = await bench.new_reader(Form.NATIVE, self.place)
        while (batch := await reader.missed()) is not None:
            self.replica.feed(batch.encode(Form.NATIVE))
            seen()
        self.reading = True
        read = 0
        while read != batches:
            try:
                batch = await reader.read()
            except LogClosed:
                return
            self.replica.feed(batch.encode(Form.NATIVE))
            read += 1
            seen()

    async def catch_up(self, bench):
        """Come back, and read all there is now."""
        reader = await bench.new_reader(Form.NATIVE, self.place)
        while (batch := await reader.missed()) is not None:
            self.replica.feed(batch.encode(Form.NATIVE))
        await settle()
        while reader.behind:
            self.replica.feed((await reader.read()).encode(Form.NATIVE))


async def stored_endings(store):
    return {view.id for view in await store.runs(limit=10**6) if view.state.terminal}


# ── After a kill ────────────────────────────────────────────────────────────────────────────────


async def lives_with_kills():
    """Have runs end in many ways while two clients listen; return what kills would have left.

    One kill before each write, posted ones too, and one right after each time a client got something.
    """
    store, left = PatientStore("b1"), []
    await store.commit(session("s"), session("t"))
    async with open_bench(Turns(default=done), store=store) as bench:
        eager = Listener(Position(boot="b1", seq=0))
        idle = Listener(Position(boot="b1", seq=0))

        def kill():
            left.append((store.reopened("b2"), (eager.copy(), idle.copy())))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(eager.listen, bench, kill)
            await settle()
            store.before_commit = kill
            await bench.accept("hello").wait()
            runs = [bench.accept("hello"), bench.accept("hello", session="t", run_id="mine")]
            for each in runs:
                await each.wait()
            waiting = [bench.accept(f"{number}", run_id=f"{number}") for number in range(4)]
            bench.cancel()
            for each in waiting:
                await each.wait()
            await settle()
            store.before_commit = lambda: None
            nursery.cancel_scope.cancel()
    return left


async def test_after_a_kill_at_any_moment_every_stored_ending_is_told_exactly_once():
    left = await lives_with_kills()
    assert len(left) > 30
    unplaced = 0
    for store, clients in left:
        rows = await store.endings_after("b1", 0, upto=0)
        unplaced += any(row.seq > UNPLACED for row in rows)
        async with open_bench(Turns(default=done), store=store) as bench:
            for client in clients:
                await client.catch_up(bench)  # raises if an ending is told twice
                assert set(client.replica.endings) == await stored_endings(store)
    assert unplaced > 5, "some kills came before the places of endings were stored"


async def test_a_client_sees_no_ending_whose_place_a_kill_could_still_take():
    for store, clients in await lives_with_kills():
        rows = await store.endings_after("b1", 0, upto=0)
        placed = {row.run.id for row in rows if row.seq < UNPLACED}
        for client in clients:
            assert set(client.replica.endings) <= placed


async def test_a_client_that_is_cut_while_it_catches_up_and_another_kill_lose_nothing():
    left = await lives_with_kills()
    for number, (store, (eager, idle)) in enumerate(left[::3]):
        async with open_bench(Turns(default=done), store=store, window=SMALL) as bench:
            for _ in range(number % 3):
                await bench.accept("hello").wait()
            with trio.move_on_after(1):
                await idle.listen(bench, batches=number % 4)
            killed = store.reopened("b3")
        async with open_bench(Turns(default=done), store=killed) as bench:
            for client in (eager, idle):
                await client.catch_up(bench)
                assert set(client.replica.endings) == await stored_endings(killed)


async def dead_start(boot, *names, kept=(), before=None, text=""):
    """Return a store in which a start named *boot* has ended runs, and was killed."""
    store = MemoryStore(boot) if before is None else before.reopened(boot)
    for number, name in enumerate(names):
        accepted = run(name, run_id=name, seq=number)
        ended = evolve(accepted.run, state=RunState.COMPLETED, ended_at=9, text=text)
        await store.commit(accepted, RunEnded(run=ended))
        if name in kept:
            EventTail(store).keep(number + 1, RunChange(run=ended))
    return store


async def test_a_reader_is_told_the_endings_of_several_killed_starts_in_order():
    store = await dead_start("b1", "a1", "a2", "a3", kept=("a1", "a2"))
    store = await dead_start("b2", before=store)
    store = await dead_start("b3", "c1", "c2", kept=("c1", "c2"), before=store)
    await store.commit(BootClosed(at=1))
    store = await dead_start("b4", "d1", before=store)
    async with open_bench(store=store.reopened("b5")) as bench:
        await bench.store.commit(session())
        await bench.accept("hello").wait()
        for place, unseen in (
            (("b1", 0), ["a1", "a2", "a3", "c1", "c2", "d1"]),
            (("b1", 1), ["a2", "a3", "c1", "c2", "d1"]),
            (("b1", 99), ["a3", "c1", "c2", "d1"]),
            (("b2", 0), ["c1", "c2", "d1"]),
            (("b3", 1), ["c2", "d1"]),
            (("b4", 5), ["d1"]),
        ):
            client = Listener(Position(boot=place[0], seq=place[1]))
            await client.catch_up(bench)
            *told, ours = client.replica.endings
            assert told == unseen
            assert ours.startswith("b5")
            assert client.replica.resyncs == 1


@pytest.mark.heavy
@pytest.mark.parametrize("form", [Form.NATIVE, Form.CRUSH])
async def test_thousands_of_endings_come_in_small_pieces(form):
    names = [f"run-{number}" for number in range(2000)]
    store = PatientStore("b1")
    accepted = [run(name, run_id=name, seq=number) for number, name in enumerate(names)]
    ended = [evolve(each.run, state=RunState.CANCELLED, ended_at=9) for each in accepted]
    await store.commit(*accepted, *(RunEnded(run=view) for view in ended))
    async with open_bench(store=store.reopened("b2")) as bench:
        reader = await bench.new_reader(form, Position(boot="b1", seq=7))
        told, batches = [], 0
        while reader.behind:
            batch = await reader.read()
            batches += 1
            assert len(batch.entries) <= PAGE
            assert len(batch.content(form)) <= PIECE
            told += [entry.event.run.id for entry in batch.entries]
        assert told == names
        assert batch.resync is not None
        assert batches >= 2000 / PAGE


async def test_the_ids_of_endings_say_that_the_state_is_still_to_come():
    store = await dead_start("b1", *(f"run-{number}" for number in range(100)))
    async with open_bench(store=store.reopened("b2")) as bench:
        client = Listener(Position(boot="b1", seq=0))
        await client.listen(bench, batches=1)
        assert (client.place.boot, client.place.synced) == ("b1", False)
        assert 0 < len(client.replica.endings) < 100
        assert client.replica.resyncs == 0
        await client.catch_up(bench)
        assert len(client.replica.endings) == 100
        assert (client.place, client.replica.resyncs) == (bench.events.position, 1)


async def test_a_place_in_an_unknown_start_is_answered_with_the_newest_endings_of_the_log():
    store = await dead_start("b1", "old", kept=("old",))
    async with open_bench(store=store.reopened("b2"), window=SMALL) as bench:
        await bench.store.commit(session())
        runs = [bench.accept("hello") for _ in range(10)]
        for each in runs:
            await each.wait()
        client = Listener(Position(boot="unheard of", seq=3))
        await client.catch_up(bench)
        assert client.replica.resyncs == 1
        assert len(client.replica.endings) == SMALL.endings
        assert "old" not in client.replica.endings


@pytest.mark.parametrize("form", [Form.NATIVE, Form.CRUSH])
async def test_long_answers_are_told_whole_in_crush_form_and_one_at_a_time(form):
    text = "x" * (3 * PAGE_SIZE)
    store = await dead_start("b1", "one", "two", "three", kept=("one",), text=text)
    async with open_bench(store=store.reopened("b2")) as bench:
        reader = await bench.new_reader(form, Position(boot="b1", seq=0))
        sent = []
        while reader.behind:
            sent.append(b"".join(pieces_of((await reader.read()).content(form))))
        if form is Form.CRUSH:
            assert [frames.count(text.encode()) for frames in sent] == [1, 1, 1, 0]
            assert b"".join(sent).count(b'"type":"run_complete"') == 3
        else:
            assert text.encode() not in b"".join(sent)
            assert b"".join(sent).count(b'"state":"completed"') == 3


# ── In the same start ───────────────────────────────────────────────────────────────────────────


class Slow:
    """A reader of either form that counts the endings it was told."""

    def __init__(self, form):
        self.form = form
        self.replica = Replica()
        self.completed = []

    async def read_all(self, log, reader):
        while reader.behind:
            data = (await reader.read()).encode(self.form)
            if self.form is Form.NATIVE:
                self.replica.feed(data)
            else:
                self.completed += completions(data)
            await trio.lowlevel.checkpoint()

    @property
    def endings(self):
        return list(self.replica.endings) if self.form is Form.NATIVE else self.completed


def completions(data):
    events = [orjson.loads(f.removeprefix(b"data: ")) for f in data.split(b"\n\n") if f.strip()]
    return [e["payload"]["payload"]["run_id"] for e in events if e["type"] == "run_complete"]


async def herd(form, store, count=9, *, first=3):
    """End *count* runs while a reader that has fallen out of the window comes back."""
    names = [f"run-{number}" for number in range(count)]
    views = [run(name, run_id=name, seq=number).run for number, name in enumerate(names)]
    await store.commit(*(RunAccepted(run=view, prompt="") for view in views))
    ended = [evolve(view, state=RunState.CANCELLED, ended_at=9) for view in views]
    tail = EventTail(store)
    async with (
        trio.open_nursery() as nursery,
        open_event_log("b1", window=Window(events=1, endings=1), keeper=tail) as log,
    ):
        tail.attach(log, nursery)
        slow = Slow(form)
        reader = await new_reader(log, store, StoredEventCache(store), None, form)

        async def end(view):
            await store.commit(RunEnded(run=view))
            log.publish(RunChange(run=view))

        for view in ended[:first]:
            await end(view)

        async def end_the_rest():
            for view in ended[first:]:
                await end(view)

        async with trio.open_nursery() as together:
            together.start_soon(end_the_rest)
            together.start_soon(slow.read_all, log, reader)
        await settle()
        await slow.read_all(log, reader)
        assert sorted(slow.endings) == sorted(names), "each ending once, and none left out"
        return slow.replica.resyncs


@pytest.mark.parametrize("form", [Form.NATIVE, Form.CRUSH])
@pytest.mark.parametrize(
    ("kind", "deviations"),
    [
        (MemoryStore, 1),
        (PatientStore, 1),
        pytest.param(MemoryStore, 2, marks=pytest.mark.long),
        pytest.param(PatientStore, 2, marks=pytest.mark.long),
    ],
)
def test_a_reader_that_fell_out_of_the_window_is_told_every_ending_in_every_order(
    form, kind, deviations, report_exploration
):
    report = explore(lambda: herd(form, kind("b1")), deviations=deviations)
    report_exploration(report)
    assert report.exhaustive


@pytest.mark.parametrize("form", [Form.NATIVE, Form.CRUSH])
async def test_more_endings_than_the_log_remembers_come_from_the_store(form):
    async with open_bench(Turns(default=done), window=SMALL) as bench:
        reader = await bench.new_reader(form)
        runs = [bench.accept(f"{number}", run_id=f"{number}") for number in range(300)]
        bench.cancel()
        for each in runs:
            await each.wait()
        await settle()
        assert bench.events.forgotten > 0
        slow = Slow(form)
        await slow.read_all(bench.events, reader)
        assert len(slow.endings) == 300
        assert len(set(slow.endings)) == 300
        await bench.accept("hello", run_id="next").wait()
        await settle()
        await slow.read_all(bench.events, reader)
        assert len(slow.endings) == 301


# ── Endings and a store in trouble ──────────────────────────────────────────────────────────────


async def test_readers_do_not_wait_for_a_store_that_does_not_answer():
    class Stuck(FaultyStore):
        def submit(self, *changes, session=None):
            if any(isinstance(change, TailKept) for change in changes):
                return Commit(self._lose)
            return super().submit(*changes, session=session)

    async with open_bench(store=Stuck(await memory())) as bench:
        client, began = Listener(Position(boot="b1", seq=0)), trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.listen, bench)
            await bench.accept("hello").wait()
            await settle()
            assert client.replica.endings == {}
            await trio.sleep(STORE_LIMIT + 0.1)
            assert len(client.replica.endings) == 1
            nursery.cancel_scope.cancel()
        assert trio.current_time() - began < 2 * STORE_LIMIT


class Failing(MemoryStore):
    """Stores no event until `works` is set; counts the attempts."""

    works = False
    attempts = 0

    def submit(self, *changes, session=None):
        kept = any(isinstance(change, TailKept) for change in changes)
        self.attempts += kept
        if self.works or not kept:
            return super().submit(*changes, session=session)
        commit = Commit(self._lose)
        commit.settle(Error(DiskFull("no space")))
        return commit


async def test_a_store_that_fails_does_not_keep_an_ending_from_readers():
    store = Failing("b1")
    await store.commit(session())
    async with open_bench(store=FaultyStore(store)) as bench:
        client = Listener(Position(boot="b1", seq=0))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.listen, bench)
            await bench.accept("hello").wait()
            await settle()
            assert len(client.replica.endings) == 1
            nursery.cancel_scope.cancel()


async def test_an_event_that_could_not_be_stored_is_stored_again_and_then_not_any_more():
    store = Failing("b1")
    await store.commit(session())
    async with open_bench(store=FaultyStore(store)) as bench:
        await bench.accept("hello").wait()
        await settle()
        store.works = True
        await trio.sleep(2 * STORE_LIMIT)
        stored = store.attempts
        await trio.sleep(10 * STORE_LIMIT)
        assert store.attempts == stored


@pytest.mark.parametrize("comes_back", [True, False])
async def test_under_a_lease_an_ending_whose_place_is_not_stored_is_not_shown(comes_back):
    """If the store does not come back, the next owner of the workspace tells of that ending."""
    store = Failing("b1")
    await store.commit(session())
    async with trio.open_nursery() as nursery:
        async with open_bench(store=FaultyStore(store), leased=True) as bench:
            client, late = (Listener(Position(boot=boot, seq=0)) for boot in ("b1", "lost"))
            for each in (client, late):
                nursery.start_soon(each.listen, bench)
            await bench.accept("hello").wait()
            await trio.sleep(10 * STORE_LIMIT)
            assert client.replica.endings == late.replica.endings == {}
            store.works = comes_back
            await trio.sleep(STORE_LIMIT)
            assert len(client.replica.endings) == len(late.replica.endings) == comes_back
            bench.events.close()
    assert len(client.replica.endings) == len(late.replica.endings) == comes_back


@pytest.mark.parametrize("seed", range(10))
async def test_closing_a_workspace_stores_the_places_of_its_last_endings(seed):
    store = PatientStore("b1")
    await store.commit(session())
    async with trio.open_nursery() as nursery:
        async with open_bench(store=FaultyStore(store)) as bench:
            client = Listener(Position(boot="b1", seq=0))
            nursery.start_soon(client.listen, bench)
            for number in range(5):
                bench.accept(f"{number}", run_id=f"{number}")
            await trio.lowlevel.checkpoint()
    assert len(client.replica.endings) == 5
    rows = await store.endings_after("b1", 0, upto=10**6)
    assert {row.run.id for row in rows} == set(client.replica.endings)


# ── Exactly what was missed, in pages ───────────────────────────────────────────────────────────


async def missed_by(reader):
    return [batch async for batch in pages(reader)]


async def pages(reader):
    while (batch := await reader.missed()) is not None:
        yield batch


def with_file(name, size):
    file = BinaryPart(path="/a", mime_type="text/plain", data=bytes(size))
    head = Message(id=MessageId(name), role=Role.USER, session_id=S)
    return evolve(head, parts=(file, STOP))


async def start_with_files(store, count, size):
    async with open_bench(store=store) as bench:
        for number in range(count):
            await bench.transcript.write(with_file(f"file-{number}", size))


async def test_what_was_missed_comes_in_pages_with_one_long_event_each():
    store = await memory()
    await start_with_files(store, 5, 100_000)
    async with open_bench(store=store.reopened("b2")) as bench:
        reader = await bench.new_reader(Form.NATIVE, Position(boot="b1", seq=0))
        batches = await missed_by(reader)
        assert [len(batch.entries) for batch in batches] == [1] * 5
        assert not reader.lost


async def test_readers_that_come_back_together_share_what_they_are_told():
    store = await memory()
    await start_with_files(store, 1, 2**20)
    reads = []

    class Counting(MemoryStore):
        async def message(self, message_id):
            reads.append(message_id)
            return await super().message(message_id)

    reopened = Counting("b2", Kept(store._tables.copy()))
    async with open_bench(store=FaultyStore(reopened)) as bench:
        held, place = [], Position(boot="b1", seq=0)

        async def come_back():
            reader = await bench.new_reader(Form.CRUSH, place)
            batch = await reader.missed()
            held.append((reader, pieces_of(batch.content(Form.CRUSH))))

        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(come_back)
        assert len(reads) == 1
        gc.collect()
        await come_back()
        assert len(reads) == 1, "a stalled reader holds the event, and the next one finds it"
        assert len({b"".join(pieces) for _, pieces in held}) == 1
        held.clear()
        gc.collect()
        await come_back()
        assert len(reads) == 2


async def test_events_that_are_trimmed_while_a_reader_reads_them_make_it_lose_its_place():
    store = await memory()
    async with open_bench(store=store, kept=200) as bench:
        for _ in range(50):
            await bench.accept("hello").wait()
        ended = len(bench.endings())
    async with open_bench(store=store.reopened("b2"), kept=200) as bench:
        client = Listener(Position(boot="b1", seq=0))
        place = Position(boot="b1", seq=60)
        reader = await bench.new_reader(Form.NATIVE, place)
        first = await reader.missed()
        client.replica.feed(first.encode(Form.NATIVE))
        for _ in range(60):
            await bench.accept("hello").wait()
        while (batch := await reader.missed()) is not None:
            client.replica.feed(batch.encode(Form.NATIVE))
        assert reader.lost
        await settle()
        while reader.behind:
            client.replica.feed((await reader.read()).encode(Form.NATIVE))
        assert client.replica.resyncs == 1
        before = await store.endings_after("b1", 60, upto=10**6)
        told = [name for name in client.replica.endings if name.startswith("b1")]
        assert len(told) == len(before) < ended
        assert len(client.replica.endings) == len(told) + 60


async def test_a_reader_that_is_cancelled_while_the_store_is_asked_has_read_nothing():
    store = await dead_start("b1", *(f"run-{number}" for number in range(100)))
    async with open_bench(store=store.reopened("b2")) as bench:
        reader = await bench.new_reader(Form.NATIVE, Position(boot="b1", seq=0))
        replica = Replica()
        while reader.behind:
            with trio.CancelScope() as scope:
                scope.cancel()
                await reader.read()
            assert scope.cancelled_caught
            replica.feed((await reader.read()).encode(Form.NATIVE))
        assert len(replica.endings) == 100
