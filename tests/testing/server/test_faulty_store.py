"""`FaultyStore`: what it spoils, when, and what it leaves alone."""

import inspect

import pytest
import trio
import trio.testing

from crush_trio.errors import SessionNotFound
from crush_trio.store.base import Store
from crush_trio.store.changes import (
    FileRead,
    MessageCreated,
    MessageDeleted,
    PartsCut,
    RunAccepted,
    RunMoved,
    TextAppended,
)
from crush_trio.store.errors import DiskFull, StoreSlow
from crush_trio.store.memory.store import MemoryStore
from crush_trio.testing.server.faults import Moment
from crush_trio.testing.server.faulty_store import FaultyStore, StoreFault
from crush_trio.testing.server.forwarding_store import ForwardingStore
from tests.store.stores import STOP, S, ids, message, run, session, text

settle = trio.testing.wait_all_tasks_blocked


async def stored(store):
    """The names of the sessions that the real store has."""
    return sorted(ids(await store.inner.sessions()))


# ── Passing on ──────────────────────────────────────────────────────────────────────────────────


async def test_without_faults_everything_is_passed_on():
    store = FaultyStore(MemoryStore("b1"))
    await store.commit(session())
    store.post(session("t"))
    await store.commit(message("m", text("hello"), STOP), run())
    await store.commit(FileRead(session_id=S, path="/a", at=5))
    file = await store.add_file("f", S, "/a", "content", 1)
    assert store.boot_id == "b1"
    assert sorted(ids(await store.sessions())) == ["s", "t"]
    assert (await store.session(S)).message_count == 1
    assert (await store.totals(S)).prompt_tokens == 0
    assert (await store.message("m")).finished
    assert ids(await store.messages(S)) == ["m"]
    assert await store.user_messages(S) == await store.unfinished_messages(S) == []
    assert (await store.run("r")).prompt == "hello"
    assert ids(await store.runs(S, limit=1)) == ["r"]
    assert await store.orphans() == await store.pending_asks() == []
    assert await store.files(S) == [file]
    assert await store.latest_file(S, "/a") == file
    assert (await store.read_paths(S), await store.last_read(S, "/a")) == (["/a"], 5)
    assert await store.tail_after("b0", 0) is None
    assert (store.degraded, store.struck, store.overlaps) == (None, [], [])


def test_it_does_all_that_a_store_does():
    names = [name for name, _ in inspect.getmembers(Store) if not name.startswith("_")]
    assert len(names) > 15
    for name in names:
        assert name in vars(ForwardingStore), f"{name} would be answered by the Protocol"


async def test_what_the_real_store_refuses_is_refused():
    store = FaultyStore(MemoryStore())
    with pytest.raises(SessionNotFound):
        await store.commit(message())
    assert store.under_way == 0


async def test_an_unspoiled_commit_is_applied_at_the_call_and_is_a_checkpoint():
    store = FaultyStore(MemoryStore())
    with trio.testing.assert_checkpoints():
        await store.commit(session())
    with trio.move_on_after(0):
        await store.commit(session("t"))
    assert await stored(store) == ["s", "t"]


async def test_it_keeps_book_of_what_it_was_given():
    store = FaultyStore(MemoryStore(), [StoreFault(of=(RunAccepted,), error=DiskFull)])
    await store.commit(session())
    with pytest.raises(DiskFull):
        await store.commit(message(), run())
    store.post(session("t"))
    assert store.commits == [(session(),), (message(), run())]
    assert store.posts == [(session("t"),)]
    assert store.committed(RunAccepted, MessageCreated) == [message(), run()]


# ── Spoiling commits ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("moment", list(Moment))
async def test_a_commit_fails_before_the_write_or_after_it(moment):
    fault = StoreFault(error=DiskFull, moment=moment)
    store = FaultyStore(MemoryStore(), [fault])
    with pytest.raises(DiskFull):
        await store.commit(session())
    assert await stored(store) == (["s"] if moment is Moment.AFTER else [])
    assert store.struck == [fault]
    assert store.degraded == str(DiskFull())


@pytest.mark.parametrize("moment", list(Moment))
async def test_a_commit_that_hangs_does_so_until_it_is_withdrawn(moment):
    store = FaultyStore(MemoryStore(), [StoreFault(moment=moment)])
    with trio.move_on_after(3600) as patience:
        await store.commit(session())
    assert patience.cancelled_caught
    assert store.under_way == 1
    with pytest.raises(StoreSlow):
        await store.submit(session()).certain(within=1)
    store.abandon()
    assert await stored(store) == (["s"] if moment is Moment.AFTER else [])
    assert store.under_way == 0


@pytest.mark.parametrize("moment", list(Moment))
async def test_healing_lets_a_commit_go_on_that_hangs(moment):
    store = FaultyStore(MemoryStore(), [StoreFault(moment=moment)])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.commit, session())
        await settle()
        assert store.under_way == 1
        store.heal()
    assert await stored(store) == ["s"]
    await store.commit(session("t"))
    assert await stored(store) == ["s", "t"]


async def test_only_writes_with_a_change_of_the_named_kinds_are_spoiled():
    fault = StoreFault(of=(RunMoved, RunAccepted), error=DiskFull)
    store = FaultyStore(MemoryStore(), [fault])
    await store.commit(session())
    with pytest.raises(DiskFull):
        await store.commit(session("t"), run())
    assert await stored(store) == ["s"]


async def test_of_the_named_kinds_only_the_wanted_are_spoiled():
    fault = StoreFault(
        of=(MessageCreated,), error=DiskFull, wanted=lambda change: change.message.id == "b"
    )
    store = FaultyStore(MemoryStore(), [fault])
    await store.commit(session(), message("a"))
    with pytest.raises(DiskFull):
        await store.commit(message("b"))
    assert ids(await store.messages(S)) == ["a"]


async def test_a_fault_strikes_as_often_as_it_is_told_to():
    store = FaultyStore(MemoryStore(), [StoreFault(error=DiskFull, times=2)])
    for _ in range(2):
        with pytest.raises(DiskFull):
            await store.commit(session())
    await store.commit(session())
    assert len(store.struck) == 2


async def test_each_failure_is_an_exception_of_its_own():
    store = FaultyStore(MemoryStore(), [StoreFault(error=lambda: DiskFull("here"))])
    raised = []
    for _ in range(2):
        with pytest.raises(DiskFull, match="here") as caught:
            await store.commit(session())
        raised.append(caught.value)
    assert raised[0] is not raised[1]


async def test_of_several_faults_the_first_that_fits_strikes():
    faults = [StoreFault(error=lambda text=text: OSError(text)) for text in ("one", "two")]
    store = FaultyStore(MemoryStore())
    store.spoil(*faults)
    with pytest.raises(OSError, match="one"):
        await store.commit(session())
    assert store.struck == faults[:1]


async def test_trouble_lasts_until_a_write_comes_through():
    store = FaultyStore(MemoryStore(), [StoreFault(of=(RunAccepted,), error=ValueError)])
    with pytest.raises(ValueError):  # noqa: PT011  # it has no message
        await store.commit(run())
    assert store.degraded == "ValueError"
    await store.commit(session())
    assert store.degraded is None


# ── Spoiling posts ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("moment", list(Moment))
@pytest.mark.parametrize("error", [DiskFull, None], ids=["fails", "hangs"])
async def test_a_spoiled_post_is_lost_or_not_and_never_raises(moment, error):
    store = FaultyStore(MemoryStore(), [StoreFault(error=error, moment=moment, times=1)])
    store.post(session())
    assert await stored(store) == (["s"] if moment is Moment.AFTER else [])
    assert store.degraded == (str(DiskFull()) if error else None)
    store.post(session("t"))
    assert "t" in await stored(store)
    assert store.degraded is None


async def test_the_trouble_of_the_real_store_shows():
    store = FaultyStore(MemoryStore())
    store.post(message())
    assert store.degraded == str(SessionNotFound("s"))


# ── Looking on ──────────────────────────────────────────────────────────────────────────────────


async def test_latency_is_the_time_from_the_write_to_the_answer():
    store = FaultyStore(MemoryStore(), latency=2)
    with trio.move_on_after(1):
        await store.commit(session())
    assert await stored(store) == ["s"]
    began = trio.current_time()
    await store.commit(session("t"))
    assert trio.current_time() - began == 2


async def test_the_watch_sees_each_write_just_before_it_takes_place():
    store = FaultyStore(MemoryStore("b1"), [StoreFault(of=(RunAccepted,), error=DiskFull)])
    seen = []

    def look(changes):
        seen.append((changes, store.inner.reopened("b2")))

    store.watch = look
    await store.commit(session())
    store.post(session("t"))
    with pytest.raises(DiskFull):
        await store.commit(run())
    assert [changes for changes, _ in seen] == [(session(),), (session("t"),)]
    assert [sorted(ids(await copy.sessions())) for _, copy in seen] == [[], ["s"]]


@pytest.mark.parametrize(
    ("one", "other", "overlap"),
    [
        (TextAppended(message_id="m", index=0, text="x", at=1), MessageDeleted(id="m"), False),
        (message("m"), PartsCut(message_id="m", length=0, at=1), False),
        (message("m"), PartsCut(message_id="m", length=1, at=1), True),
        (message("m"), TextAppended(message_id="m", index=0, text="x", at=1), True),
        (message("m"), message("n"), False),
        (message("m"), session("t"), False),
    ],
)
async def test_commits_of_one_message_at_the_same_time_are_noted(one, other, overlap):
    store = FaultyStore(MemoryStore(), [StoreFault()])
    async with trio.open_nursery() as nursery:
        for change in (one, other):
            nursery.start_soon(store.commit, change)
        await settle()
        assert store.under_way == 2
        nursery.cancel_scope.cancel()
    assert bool(store.overlaps) is overlap
