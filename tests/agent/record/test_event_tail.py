"""Events that outlive the program: the exact continuation of what was read, or one resync."""

from itertools import pairwise

import orjson
import pytest
import trio
import trio.testing
from attrs import evolve

from crush_trio.agent.record.event_tail import STORE_LIMIT, EventTail
from crush_trio.events.facts import Fact, MessageChange, Position, RunChange, agent_error
from crush_trio.events.frames import Form
from crush_trio.events.growing_message import GrowingMessage
from crush_trio.store.changes import RunEnded, SessionDeleted, TailKept
from crush_trio.store.errors import DiskFull
from crush_trio.testing import Gate
from crush_trio.testing.server.client import Replica
from crush_trio.testing.server.faulty_store import FaultyStore, StoreFault
from crush_trio.wire.events import EventType, PayloadType
from crush_trio.wire.runs import RunState
from crush_trio.wire.views import Session
from tests.agent.durable import (
    END,
    S,
    Turns,
    answer,
    assistant,
    completion,
    done,
    entries_of,
    give_result,
    memory,
    open_bench,
)
from tests.store.stores import call, run, session, text

settle = trio.testing.wait_all_tasks_blocked


# ── What is kept ────────────────────────────────────────────────────────────────────────────────


def message_change(change=EventType.UPDATED, **more):
    view = GrowingMessage(assistant("m", text("a secret"))).view()
    return MessageChange(change=change, view=view, **more)


def run_change(state):
    return RunChange(run=evolve(run().run, state=state, text="a secret"))


KEPT = {
    "a created message": message_change(EventType.CREATED),
    "a structural change": message_change(),
    "the calls before their results": message_change(plain=True, kept=True),
    "a deleted message": message_change(EventType.DELETED),
    "an ending": run_change(RunState.COMPLETED),
    "a fact": agent_error(S, None, "broken"),
}
NOT_KEPT = {
    "one more piece of an answer": message_change(plain=True),
    "an acceptance": run_change(RunState.ACCEPTED),
    "a run that begins": run_change(RunState.ACTIVE),
    "a run that waits": run_change(RunState.QUEUED),
}


@pytest.mark.parametrize("event", KEPT)
async def test_what_nothing_later_says_again_is_kept(event):
    store = FaultyStore(await memory())
    EventTail(store, kept=7).keep(3, KEPT[event])
    ((kept,),) = store.posts
    assert (type(kept), kept.seq, kept.keep) == (TailKept, 3, 7)
    assert kept.terminal is (event == "an ending")
    assert "secret" not in kept.event, "what a message says is in the store already"
    orjson.loads(kept.event)


@pytest.mark.parametrize("event", NOT_KEPT)
async def test_what_a_later_event_says_too_is_not_kept(event):
    store = FaultyStore(await memory())
    EventTail(store).keep(3, NOT_KEPT[event])
    assert store.posts == []


# ── A reader that comes back ────────────────────────────────────────────────────────────────────


async def use_tool(current, transcript):
    """Two steps, with deltas, a tool, and a finish of its own for each."""
    opened = await answer(current, transcript)
    opened.append_reasoning("hm")
    await opened.close_reasoning()
    opened.append_text("let me ")
    await settle()
    opened.append_text("see")
    await opened.put_tool_call(call(f"call-{current.id}", finished=True))
    await give_result(current, transcript, f"call-{current.id}")
    await opened.finish(END)
    opened = await answer(current, transcript, "second")
    opened.append_text("there")
    await settle()
    opened.append_text(" it is")
    await opened.finish(END)
    return completion(opened)


async def fail(current, transcript):
    opened = await answer(current, transcript)
    opened.append_text("half")
    raise ValueError("broken")


async def retract(current, transcript):
    opened = await answer(current, transcript)
    opened.append_text("never mind")
    await opened.flush()
    await opened.delete()


TURNS = Turns({"tool": use_tool, "fail": fail, "retract": retract})


async def live(bench):
    """What happens in one start of the program: six runs, a renamed and a deleted session."""
    for prompt in ("tool", "fail", "retract", "hello"):
        await bench.accept(prompt).wait()
    stopped = bench.accept("cancelled")
    bench.cancel()
    await stopped.wait()
    renamed = Session(id=S, title="renamed")
    bench.events.publish(
        Fact(payload_type=PayloadType.SESSION, change=EventType.UPDATED, entity=renamed)
    )
    await bench.store.commit(session("gone"))
    await bench.accept("hello", session="gone").wait()
    await bench.store.commit(SessionDeleted(id="gone"))
    bench.events.publish(
        Fact(payload_type=PayloadType.SESSION, change=EventType.DELETED, entity=Session(id="gone"))
    )


def entries(bench):
    return entries_of(bench.events)


def replica_of(*batches):
    """Return a client that was given these entries one by one."""
    replica = Replica()
    for batch in batches:
        for entry in batch:
            replica.feed(entry.frame(Form.NATIVE))
    return replica


async def come_back(bench, replica, position):
    """Have a client resume at *position* and read all there is; return what it missed before."""
    reader = await bench.new_reader(Form.NATIVE, position)
    missed = await missed_by(reader)
    for entry in missed:
        replica.feed(entry.frame(Form.NATIVE))
    await read_on(reader, replica)
    return missed, reader


async def missed_by(reader):
    """Return the events of earlier starts that a reader missed."""
    missed = []
    while (batch := await reader.missed()) is not None:
        missed += batch.entries
    return missed


async def read_on(reader, replica):
    await settle()
    while reader.behind:
        replica.feed((await reader.read()).encode(Form.NATIVE))


def known(replica):
    """What a client knows; it need not know what was in a session that is gone."""
    messages = replica.messages.values()
    return replica.endings, {m["id"]: m for m in messages if m["session_id"] == "s"}


async def test_after_a_clean_close_every_reader_gets_exactly_what_it_missed():
    memory_store = await memory()
    async with open_bench(TURNS, store=memory_store) as bench:
        await live(bench)
        before = entries(bench)
    async with open_bench(TURNS, store=memory_store.reopened("b2")) as bench:
        await live(bench)
        stayed = replica_of(before, entries(bench))
        assert len(stayed.endings) == 12
        for cut in range(len(before) + 1):
            replica = replica_of(before[:cut])
            await come_back(bench, replica, Position(boot="b1", seq=cut))
            assert replica.resyncs == 0
            assert known(replica) == known(stayed)
            assert replica.last_id == stayed.last_id


async def test_a_reader_continues_across_several_starts():
    store, starts = await memory(), []
    for boot_id in ("b1", "b2", "b3"):
        store = store if boot_id == "b1" else store.reopened(boot_id)
        async with open_bench(TURNS, store=store) as bench:
            await bench.accept("tool").wait()
            starts.append(entries(bench))
            if boot_id == "b3":
                stayed = replica_of(*starts)
                for boot, read in (("b1", starts[:1]), ("b2", starts[:2])):
                    for cut in range(len(read[-1]) + 1):
                        replica = replica_of(*read[:-1], read[-1][:cut])
                        await come_back(bench, replica, Position(boot=boot, seq=cut))
                        assert replica.resyncs == 0
                        assert known(replica) == known(stayed)


async def test_what_was_missed_says_in_crush_form_how_each_run_ended_once():
    memory_store = await memory()
    async with open_bench(TURNS, store=memory_store) as bench:
        await live(bench)
        count = len(bench.endings())
    async with open_bench(TURNS, store=memory_store.reopened("b2")) as bench:
        missed = await missed_by(await bench.new_reader(Form.CRUSH, Position(boot="b1", seq=0)))
        frames = b"".join(entry.frame(Form.CRUSH) for entry in missed)
        assert frames.count(b'"type":"run_complete"') == count
        assert b'"title":"renamed"' in frames
        ids = [entry.id for entry in missed]
        assert all(one < other for one, other in pairwise(ids))


async def test_a_message_that_the_reader_had_not_heard_of_is_new_to_it():
    memory_store = await memory()
    async with open_bench(TURNS, store=memory_store) as bench:
        await bench.accept("hello").wait()
        (place,) = [e.id for e in entries(bench) if _creates(e.event, "answer-b1-1")]
    async with open_bench(store=memory_store.reopened("b2")) as bench:
        for seq, change in ((place - 1, EventType.CREATED), (place, EventType.UPDATED)):
            reader = await bench.new_reader(after=Position(boot="b1", seq=seq))
            events = [entry.event for entry in await missed_by(reader)]
            (event,) = [e for e in events if getattr(e, "message_id", "") == "answer-b1-1"]
            assert event.change is change


def _creates(event, identity):
    created = isinstance(event, MessageChange) and event.change is EventType.CREATED
    return created and event.message_id == identity


async def test_a_reader_of_this_start_continues_in_its_log():
    async with open_bench() as bench:
        await bench.accept("hello").wait()
        reader = await bench.new_reader(after=Position(boot="b1", seq=2))
        assert await missed_by(reader) == []
        first, *_ = (await reader.read()).entries
        assert first.id == 3


# ── When it is not certain ──────────────────────────────────────────────────────────────────────


async def test_after_a_kill_a_reader_gets_one_resync_with_the_endings_of_recovery():
    gate = Gate()

    async def wait(current, transcript):
        opened = await answer(current, transcript)
        opened.append_text("half")
        await gate.wait()

    memory_store = await memory()
    async with open_bench(Turns({"wait": wait}), store=memory_store) as bench:
        finished = bench.accept("hello")
        await finished.wait()
        cut_short = bench.accept("wait")
        await gate.reached()
        await settle()
        before = entries(bench)
        killed = memory_store.reopened("b2")
    async with open_bench(store=killed) as bench:
        for cut in range(len(before) + 1):
            replica = replica_of(before[:cut])
            missed, reader = await come_back(bench, replica, Position(boot="b1", seq=cut))
            assert (missed, replica.resyncs) == ([], 1)
            assert replica.endings[cut_short.id]["state"] == "interrupted"
            assert set(replica.endings) == {finished.id, cut_short.id}
        await bench.accept("hello").wait()
        await read_on(reader, replica)
        assert replica.resyncs == 1
        assert len(replica.endings) == 3


@pytest.mark.parametrize("boot", ["unheard of", ""])
async def test_a_reader_from_nowhere_gets_one_resync(boot):
    async with open_bench() as bench:
        await bench.accept("hello").wait()
        replica = Replica()
        missed, _ = await come_back(bench, replica, Position(boot=boot, seq=5))
        assert (missed, replica.resyncs, len(replica.endings)) == ([], 1, 1)


async def test_one_start_that_was_killed_makes_all_before_it_uncertain():
    store = await memory()
    async with open_bench(store=store):
        pass
    async with open_bench(store=store.reopened("b2")) as bench:
        killed = bench.store.inner.reopened("b3")
    async with open_bench(store=killed) as bench:
        replica = Replica()
        await come_back(bench, replica, Position(boot="b1", seq=0))
        assert replica.resyncs == 1


async def test_a_reader_whose_events_were_trimmed_gets_a_resync_and_the_others_do_not():
    memory_store = await memory()
    async with open_bench(store=memory_store, kept=4) as bench:
        for _ in range(3):
            await bench.accept("hello").wait()
        before = entries(bench)
    async with open_bench(store=memory_store.reopened("b2"), kept=4) as bench:
        stayed = replica_of(before)
        resyncs = []
        for cut in range(len(before) + 1):
            replica = replica_of(before[:cut])
            await come_back(bench, replica, Position(boot="b1", seq=cut))
            resyncs.append(replica.resyncs)
            if not replica.resyncs:
                assert known(replica) == known(stayed)
        assert resyncs == sorted(resyncs, reverse=True)
        assert {0, 1} == set(resyncs)


@pytest.mark.parametrize("healed", [False, True])
async def test_events_that_could_not_be_kept_are_not_passed_over_in_silence(healed):
    """Facts and endings whose notes were lost while the disk was full, and then a clean close."""
    memory_store = await memory()
    store = FaultyStore(memory_store, [StoreFault(of=(TailKept,), error=DiskFull)])
    async with open_bench(store=store) as bench:
        ended = bench.accept("hello")
        await ended.wait()
        if healed:
            store.heal()
            await bench.accept("hello").wait()
    async with open_bench(store=memory_store.reopened("b2")) as bench:
        replica = Replica()
        await come_back(bench, replica, Position(boot="b1", seq=2))
        assert replica.resyncs == 1 or ended.id in replica.endings


async def test_an_ending_whose_place_was_stored_late_is_not_told_again():
    """The disk is full for a while just after the ending was stored; then there is a kill."""
    memory_store = await memory()
    fault = StoreFault(of=(TailKept,), error=DiskFull)
    async with open_bench(store=FaultyStore(memory_store, [fault])) as bench:
        replica = Replica()
        reader = await bench.new_reader(Form.NATIVE)
        ended = bench.accept("hello")
        await ended.wait()
        while ended.id not in replica.endings:
            replica.feed((await reader.read()).encode(Form.NATIVE))
        bench.store.heal()
        await trio.sleep(2 * STORE_LIMIT)
        left = memory_store.reopened("b2")
    async with open_bench(store=left) as bench:
        await come_back(bench, replica, Position.parse(replica.last_id))  # raises if told twice
        assert list(replica.endings) == [ended.id]


async def test_an_ending_that_was_stored_late_is_not_told_twice():
    memory_store = await memory()
    fault = StoreFault(of=(RunEnded,), error=DiskFull, times=1)
    async with open_bench(store=FaultyStore(memory_store, [fault])) as bench:
        assert (await bench.accept("hello").wait()).state is RunState.COMPLETED
        before = entries(bench)
    async with open_bench(store=memory_store.reopened("b2")) as bench:
        for cut in range(len(before) + 1):
            replica = replica_of(before[:cut])
            await come_back(bench, replica, Position(boot="b1", seq=cut))  # raises if told twice
            assert len(replica.endings) == 1


async def test_a_finish_that_was_sealed_is_kept():
    """The writer may store the finish before the run's end does; a reader must learn of it."""

    async def seal(current, transcript):
        opened = await answer(current, transcript)
        opened.append_text("done")
        await trio.sleep(1)
        opened.seal(END)
        await settle()
        return completion(opened)

    memory_store = await memory()
    async with open_bench(Turns(default=seal), store=memory_store) as bench:
        await bench.accept("hello").wait()
        before = entries(bench)
    async with open_bench(Turns(default=done), store=memory_store.reopened("b2")) as bench:
        for cut in range(len(before) + 1):
            replica = replica_of(before[:cut])
            await come_back(bench, replica, Position(boot="b1", seq=cut))
            assert known(replica) == known(replica_of(before))
