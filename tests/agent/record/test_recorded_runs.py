"""Recorded runs: opened in order, closed in the reverse, whatever the reason for leaving."""

import pytest
import trio
import trio.testing

from crush_trio.agent.record.event_reader import new_reader
from crush_trio.agent.record.event_tail import STORE_LIMIT, StoredEventCache
from crush_trio.agent.record.journal import CLOSE_LIMIT, open_recorded_runs
from crush_trio.events.facts import Position
from crush_trio.events.frames import Form
from crush_trio.limits import Limits
from crush_trio.store.changes import BootClosed, RunEnded
from crush_trio.store.errors import DiskFull
from crush_trio.store.sqlite.store import open_sqlite_store
from crush_trio.testing import Gate
from crush_trio.testing.explore import cancel_everywhere
from crush_trio.testing.server.client import Replica
from crush_trio.testing.server.faulty_store import FaultyStore, StoreFault
from crush_trio.testing.server.turns import prompt
from crush_trio.testing.server.workspace import Recorder
from crush_trio.wire.runs import RunState
from tests.agent.durable import (
    END,
    S,
    Turns,
    answer,
    check_complete,
    completion,
    endings,
    entries_of,
    give_result,
    memory,
    open_bench,
    text_of,
)
from tests.store.stores import call, run, session

settle = trio.testing.wait_all_tasks_blocked


def waiting(gate):
    """Return turns that say something and then stand at *gate*."""

    async def stream(current, transcript):
        opened = await answer(current, transcript)
        opened.append_text("half")
        await opened.put_tool_call(call(f"call-{current.id}"))
        await gate.wait()

    return Turns(default=stream)


async def orphaned():
    """Return a store in which an earlier start has left a run without an ending."""
    store = await memory()
    await store.commit(run())
    return store.reopened("b2")


# ── Opening ─────────────────────────────────────────────────────────────────────────────────────


def test_a_cancel_at_any_step_of_an_opening_leaves_no_task():
    async def opening():
        store = await memory()
        async with open_recorded_runs(store, lambda _: Turns()):
            await trio.lowlevel.checkpoint()

    found = cancel_everywhere(opening, deviations=1)
    assert found.places > 10


async def test_what_was_left_is_ended_and_published_before_its_session_goes_on():
    async with open_bench(store=await orphaned()) as bench:
        (view,) = bench.workspace.recovery.ended
        assert bench.endings() == [view]
        assert await bench.store.orphans() == []
        recovered = bench.events.head
        accepted = bench.accept("hello")
        await accepted.wait()
        assert [ending.id for ending in bench.endings()] == ["r", accepted.id]
        cursor = bench.events.cursor(after=Position(boot="b2", seq=recovered))
        assert "r" not in {e.run.id for e in cursor.take().events if hasattr(e, "run")}


async def test_turns_are_made_with_the_transcript_they_write_to():
    made = []

    def make_turn(transcript):
        made.append(transcript)
        return Turns()(transcript)

    async with open_recorded_runs(await memory(), make_turn) as workspace:
        assert made == [workspace.transcript]
        assert workspace.events is workspace.transcript.events is workspace.runs.events


async def test_a_recovery_that_fails_is_tried_again_and_only_its_session_waits():
    store = FaultyStore(await orphaned(), [StoreFault(of=(RunEnded,), error=DiskFull, times=5)])
    await store.commit(session("t"))
    async with open_recorded_runs(store, Turns()) as workspace:
        here, there = (workspace.runs.accept(prompt("hello", name)) for name in ("s", "t"))
        await settle()
        assert (here.state, there.view.outcome) == (RunState.QUEUED, RunState.COMPLETED)
        assert workspace.recovery.ended == []
        assert (await here.wait()).state is (await there.wait()).state is RunState.COMPLETED
        assert [view.id for view in workspace.recovery.ended] == ["r"]
        ended = [view.id for view in endings(workspace.events)]
        assert ended.index("r") < ended.index(here.id)


async def test_a_recovery_that_is_cut_short_leaves_the_rest_to_the_next_start():
    store = FaultyStore(await orphaned(), [StoreFault(of=(RunEnded,), error=DiskFull)])
    async with open_recorded_runs(store, Turns()) as workspace:
        await settle()
        waiting = workspace.runs.accept(prompt("hello"))
        await settle()
        store.heal()
        store.spoil(StoreFault(of=(RunEnded,), error=DiskFull, wanted=lambda c: c.run.id == "r"))
    assert waiting.outcome.state is RunState.CANCELLED
    async with open_bench(store=store.inner.reopened("b3")) as bench:
        assert [view.id for view in bench.workspace.recovery.ended] == ["r"]


# ── Closing ─────────────────────────────────────────────────────────────────────────────────────


async def test_closing_ends_the_runs_then_the_log_and_tells_the_store_last():
    gate = Gate()
    seen = []
    async with open_bench(waiting(gate)) as bench:
        runs = [bench.accept("one")]
        await gate.reached()
        runs.append(bench.accept("two", run_id="two"))
        await settle()

        def look(changes):
            seen.append((type(changes[-1]), bench.events.closed, all(r.ended for r in runs)))

        bench.store.watch = look
    assert bench.store.commits[-1] == (bench.store.committed(BootClosed)[0],)
    assert seen[-1] == (BootClosed, True, True)
    assert not any(closed for _kind, closed, _ended in seen[:-1]), (
        "written after the log was closed"
    )
    assert bench.transcript.open_messages() == ()


@pytest.mark.item("A33")
async def test_runs_that_were_accepted_when_the_workspace_closed_have_a_whole_turn():
    gate = Gate()
    store = await memory()
    async with trio.open_nursery() as nursery:
        async with open_bench(waiting(gate), store=store) as bench:
            reader = Recorder(bench.events)
            await nursery.start(reader.record)
            active = bench.accept("active")
            await gate.reached()
            queued = bench.accept("queued", run_id="queued")
            await settle()
            late = bench.accept("late")
    runs = await check_complete(store)
    assert set(runs) == {active.id, queued.id, late.id}
    assert {view.state for view in runs.values()} == {RunState.CANCELLED}
    assert set(reader.endings_per_run) == set(runs), "a reader that stayed was not told"
    assert len(await store.messages(S)) == 7  # three prompts, three answers, one tool result


async def test_nothing_is_left_running():
    before = trio.lowlevel.current_statistics().tasks_living
    gate = Gate()
    async with open_bench(waiting(gate)) as bench:
        bench.accept("hello")
        await gate.reached()
        assert trio.lowlevel.current_statistics().tasks_living > before
    assert trio.lowlevel.current_statistics().tasks_living == before


@pytest.mark.parametrize("how", ["raises", "is cancelled"])
async def test_a_body_that_is_left_otherwise_still_has_every_run_ended(how):
    gate = Gate()
    store = FaultyStore(await memory())

    async def body(scope):
        async with open_bench(waiting(gate), store=store) as bench:
            bench.accept("hello")
            await gate.reached()
            if how == "raises":
                raise ValueError("the body's own")
            scope.cancel()
            await trio.sleep_forever()

    with trio.CancelScope() as scope:
        if how == "raises":
            with pytest.raises(ValueError, match="the body's own"):
                await body(scope)
        else:
            await body(scope)
    (view,) = (await check_complete(store)).values()
    assert view.state is RunState.CANCELLED


async def test_a_body_that_raises_is_no_close_in_good_order():
    store = FaultyStore(await memory())
    with pytest.raises(ValueError, match="the body's own"):
        async with open_bench(store=store):
            raise ValueError("the body's own")
    assert store.committed(BootClosed) == []
    async with open_bench(store=store.inner.reopened("b2")) as bench:
        reader = await bench.new_reader(after=Position(boot="b1", seq=0))
        assert (await reader.read()).resync is not None


async def test_a_store_that_hangs_at_the_last_word_is_waited_for_only_so_long():
    store = FaultyStore(await memory(), [StoreFault(of=(BootClosed,))])
    async with open_bench(store=store):
        began = trio.current_time()
    assert trio.current_time() - began == CLOSE_LIMIT


async def test_a_store_that_refuses_the_last_word_is_logged(caplog):
    store = FaultyStore(await memory(), [StoreFault(of=(BootClosed,), error=DiskFull)])
    async with open_bench(store=store):
        pass
    assert [record.message for record in caplog.records] == ["workspace.end_not_stored"]


async def test_a_store_that_hangs_cannot_keep_the_workspace_open():
    gate = Gate()
    async with open_bench(waiting(gate), limits=Limits(join=2)) as bench:
        run = bench.accept("hello")
        await gate.reached()
        bench.store.spoil(StoreFault())
        began = trio.current_time()
    assert trio.current_time() - began <= 2 + STORE_LIMIT + CLOSE_LIMIT
    assert run.outcome.state is RunState.INTERRUPTED, "as the next start will find it"


async def test_the_workspace_says_what_is_wrong_with_its_store():
    async with open_bench() as bench:
        assert bench.store.degraded is None
        bench.store.spoil(StoreFault(error=DiskFull, times=1))
        with pytest.raises(DiskFull):
            await bench.store.commit(session("t"))
        assert bench.store.degraded == str(DiskFull())


# ── On a real disk ──────────────────────────────────────────────────────────────────────────────


async def use_tool(current, transcript):
    opened = await answer(current, transcript)
    for piece in ("let ", "me ", "see"):
        opened.append_text(piece)
        await trio.sleep(0.001)
    await opened.put_tool_call(call("c", finished=True))
    await give_result(current, transcript, "c")
    opened.seal(END)
    return completion(opened)


@pytest.mark.real_clock
async def test_a_whole_life_on_a_real_disk(tmp_path):
    turns = Turns({"tool": use_tool})
    async with (
        open_sqlite_store(tmp_path) as store,
        open_recorded_runs(store, turns, pace=0.001) as workspace,
    ):
        await store.commit(session())
        first = workspace.runs.accept(prompt("tool"))
        assert (await first.wait()).state is RunState.COMPLETED
        second = workspace.runs.accept(prompt("hello", run_id="second"))
        workspace.runs.cancel(S)
        await second.wait()
        boot, before = workspace.events.boot, entries_of(workspace.events)
        written = await store.messages(S)
        assert text_of(written[1]) == "let me see"
    stayed = Replica()
    for entry in before:
        stayed.feed(entry.frame(Form.NATIVE))
    async with (
        open_sqlite_store(tmp_path) as store,
        open_recorded_runs(store, turns) as workspace,
    ):
        assert workspace.recovery.ended == []
        assert await store.messages(S) == written
        assert len(await check_complete(store)) == 2
        recall = StoredEventCache(store)
        for cut in range(len(before) + 1):
            replica = Replica()
            for entry in before[:cut]:
                replica.feed(entry.frame(Form.NATIVE))
            reader = await new_reader(
                workspace.events, store, recall, Position(boot=boot, seq=cut), Form.NATIVE
            )
            while (batch := await reader.missed()) is not None:
                replica.feed(batch.encode(Form.NATIVE))
            assert not reader.behind
            assert replica.resyncs == 0
            assert (replica.endings, replica.messages) == (stayed.endings, stayed.messages)


@pytest.mark.real_clock
async def test_a_run_that_was_only_accepted_is_recovered_from_a_real_disk(tmp_path):
    async with open_sqlite_store(tmp_path) as store:
        await store.commit(session())
        await store.commit(run())
        boot = store.boot_id
    for recovered in (["r"], []):
        async with (
            open_sqlite_store(tmp_path) as store,
            open_recorded_runs(store, Turns()) as workspace,
        ):
            await workspace.recovery.done.wait()
            assert [view.id for view in workspace.recovery.ended] == recovered
            assert set(await check_complete(store)) == {"r"}
            reader = await new_reader(
                workspace.events, store, StoredEventCache(store), Position(boot=boot, seq=0), None
            )
            batches = [await reader.read()]
            while batches[-1].resync is None:
                batches.append(await reader.read())
            assert [e.run.id for batch in batches for e in batch.events] == ["r"]
