"""Faults of the store, as a message in progress and a whole workspace meet them.

Whatever goes wrong with a write: the error reaches the caller, no event claims what was not stored, and
the workspace says that something is wrong. A store that is slow makes a run slow, and nothing else.
"""

import pytest
import trio
import trio.testing

from crush_trio.agent.record.journal import open_recorded_runs
from crush_trio.agent.record.message import RETRY
from crush_trio.errors import NotAccepted
from crush_trio.events.facts import MessageChange
from crush_trio.runtime.outcome import Outcome
from crush_trio.store.changes import (
    MessageCreated,
    MessageFinished,
    PartPut,
    RunAccepted,
    RunEnded,
    RunMoved,
    TailKept,
    TextAppended,
)
from crush_trio.store.errors import DiskFull, StoreFailed
from crush_trio.store.sqlite.store import open_sqlite_store
from crush_trio.testing import Gate
from crush_trio.testing.server.faults import Moment
from crush_trio.testing.server.faulty_store import FaultyStore, StoreFault
from crush_trio.testing.server.turns import prompt
from crush_trio.wire.messages import FinishReason, Role, ToolCallPart
from crush_trio.wire.runs import RunState
from tests.agent.durable import (
    END,
    Turns,
    all_events,
    answer,
    check_complete,
    completion,
    finish_of,
    give_result,
    memory,
    open_bench,
    open_desk,
    parts_of,
    text_of,
    told,
)
from tests.store.stores import call, session

settle = trio.testing.wait_all_tasks_blocked


# ── A message in progress ───────────────────────────────────────────────────────────────────────


@pytest.mark.item("D8")
async def test_a_piece_that_was_not_stored_is_not_published_and_tried_again(caplog):
    async with open_desk(StoreFault(of=(TextAppended,), error=DiskFull, times=3)) as desk:
        opened = await desk.create()
        opened.append_text("a")
        await trio.sleep(2.5 * RETRY)
        opened.append_text("b")
        assert len(desk.published()) == 1
        assert text_of(await desk.stored()) == ""
        await trio.sleep(RETRY)
        assert text_of(desk.published()[-1].message) == text_of(await desk.stored()) == "ab"
        assert [r.msg for r in caplog.records] == ["message.not_stored"]


@pytest.mark.item("D8")
async def test_a_structural_change_tries_again_without_waiting():
    async with open_desk(StoreFault(of=(TextAppended,), error=DiskFull, times=1)) as desk:
        opened = await desk.create()
        opened.append_text("a")
        await settle()
        await opened.put_tool_call(call())
        assert trio.current_time() == 0
        assert told(await desk.stored()) == told(opened.message())


@pytest.mark.item("D8")
async def test_whoever_waits_for_a_failing_write_is_told_and_the_change_is_not_lost():
    async with open_desk() as desk:
        opened = await desk.create()
        desk.store.spoil(StoreFault(error=DiskFull, times=1))
        with pytest.raises(DiskFull):
            await opened.put_tool_call(call())
        assert len(desk.published()) == 1
        await trio.sleep(RETRY)
        await settle()
        assert parts_of(await desk.stored(), ToolCallPart) == [call()]
        assert not desk.published()[-1].plain, "a structural change that a reader may skip"


@pytest.mark.item("D8")
@pytest.mark.parametrize("moment", list(Moment))
async def test_a_write_that_hangs_makes_its_caller_wait_and_happens_once(moment):
    async with open_desk() as desk:
        opened = await desk.create()
        desk.store.spoil(StoreFault(moment=moment))
        opened.append_text("a")
        with trio.move_on_after(60) as patience:
            await opened.put_tool_call(call())
        assert patience.cancelled_caught
        desk.store.heal()
        await trio.sleep(RETRY)
        assert told(await desk.stored()) == told(opened.message())


@pytest.mark.parametrize("moment", list(Moment))
async def test_a_cancel_waits_until_it_is_certain_whether_a_message_was_created(moment):
    async with open_desk(StoreFault(moment=moment)) as desk, trio.open_nursery() as nursery:

        async def heal():
            await trio.sleep(60)
            desk.store.heal()

        nursery.start_soon(heal)
        with trio.move_on_after(1):
            await desk.create()
        assert trio.current_time() == 60
        assert told(desk.published()[-1].message) == told(await desk.stored())


# ── A whole workspace ───────────────────────────────────────────────────────────────────────────


async def everything(run, transcript):
    """A turn in which every kind of write happens."""
    opened = await answer(run, transcript)
    opened.append_reasoning("hm")
    await opened.close_reasoning()
    opened.append_text("some ")
    await settle()
    opened.append_text("words")
    await opened.put_tool_call(call(f"call-{run.id}", finished=True))
    await give_result(run, transcript, f"call-{run.id}")
    opened.seal(END)
    return completion(opened)


def created(role):
    return {"of": (MessageCreated,), "wanted": lambda change: change.message.role is role}


WRITES = {
    "acceptance": {"of": (RunAccepted,)},
    "answer": created(Role.ASSISTANT),
    "text": {"of": (TextAppended,)},
    "tool call": {"of": (PartPut,), "wanted": lambda change: isinstance(change.part, ToolCallPart)},
    "tool result": created(Role.TOOL),
    "finish": {"of": (MessageFinished,)},
    "ending": {"of": (RunEnded,)},
}


async def assert_no_event_claims_what_is_not_stored(bench):
    """Whatever readers were told of messages and completions is in the store."""
    for event in all_events(bench.events):
        if isinstance(event, MessageChange):
            stored = (await bench.store.message(event.message_id)).message
            assert text_of(stored).startswith(text_of(event.message))
            assert len(stored.parts) >= len(event.message.parts)
    for view in bench.endings():
        assert (await bench.store.run(view.id)).view == view


@pytest.mark.parametrize("kind", ["fails", "hangs"])
@pytest.mark.parametrize("write", WRITES)
async def test_the_stream_says_what_the_disk_says_whichever_write_goes_wrong(write, kind):
    fails = kind == "fails"
    store = FaultyStore(await memory())
    store.spoil(StoreFault(error=DiskFull if fails else None, **WRITES[write]))
    async with open_bench(Turns(default=everything), store=store) as bench:
        run = bench.accept("hello")
        await trio.sleep(60)
        assert store.struck
        await assert_no_event_claims_what_is_not_stored(bench)
        if write == "acceptance":
            with pytest.raises(NotAccepted):
                await run.wait()
        elif fails and write in {"answer", "tool result"}:  # the ending itself can be stored
            assert run.state is (RunState.ERRORED if write == "answer" else RunState.ENDING)
        elif fails or write in {"finish", "ending"}:
            failed = write not in {"finish", "ending"}
            to_come = RunState.ERRORED if failed else RunState.COMPLETED
            assert (run.state, run.view.outcome) == (RunState.ENDING, to_come)
            assert str(DiskFull()) in run.view.error or not failed
        else:
            assert run.state is RunState.ACTIVE
        store.heal()
        if write != "acceptance":
            outcome = await run.wait()
            assert outcome.state is (RunState.ERRORED if outcome.error else RunState.COMPLETED)
            assert fails or outcome.state is RunState.COMPLETED, "a slow store made a run fail"
        assert (await bench.accept("again").wait()).state is RunState.COMPLETED
        assert bench.store.degraded is None
        await assert_no_event_claims_what_is_not_stored(bench)
        await check_complete(bench.store)
    async with open_bench(store=store.inner.reopened("b2")) as bench:
        assert bench.workspace.recovery.ended == []


@pytest.mark.parametrize("kind", ["fails", "hangs"])
async def test_a_store_that_is_dead_when_the_workspace_closes_leaves_interrupted_runs(kind):
    gate = Gate()

    async def wait(run, transcript):
        opened = await answer(run, transcript)
        opened.append_text("half")
        await opened.flush()
        await gate.wait()
        opened.seal(END)
        return completion(opened)

    async with open_bench(Turns(default=wait)) as bench:
        runs = [bench.accept("one"), bench.accept("two", run_id="two")]
        await gate.reached()
        events = bench.events.cursor()
        bench.store.spoil(StoreFault(error=DiskFull if kind == "fails" else None))
        gate.open()
        await trio.sleep(60)
        assert [run.state for run in runs] == [RunState.ENDING, RunState.QUEUED]
    told_endings = [e.run for e in (await events.read()).events if getattr(e, "terminal", False)]
    assert [(view.id, view.state) for view in told_endings] == [
        (run.id, RunState.INTERRUPTED) for run in sorted(runs, key=lambda run: run.view.seq)
    ]
    async with open_bench(store=bench.store.inner.reopened("b2")) as bench:
        assert [view.id for view in bench.workspace.recovery.ended] == [run.id for run in runs]
        await check_complete(bench.store)


async def test_a_workspace_whose_disk_is_full_says_so_until_it_is_not():
    gate = Gate()

    async def stream(run, transcript):
        opened = await answer(run, transcript)
        opened.append_text("half")
        await opened.flush()
        await gate.wait()
        await opened.put_tool_call(call())

    async with open_bench(Turns({"stream": stream})) as bench:
        run = bench.accept("stream")
        await gate.reached()
        assert bench.store.degraded is None
        bench.store.spoil(StoreFault(error=DiskFull))
        gate.open()
        await settle()
        assert bench.store.degraded == str(DiskFull())
        with pytest.raises(NotAccepted, match=str(DiskFull())):
            await bench.accept("refused").journaled()
        await trio.sleep(10 * RETRY)
        assert bench.store.degraded == str(DiskFull())
        bench.store.heal()
        assert str(DiskFull()) in (await run.wait()).error
        assert (await bench.accept("hello").wait()).state is RunState.COMPLETED
        assert bench.store.degraded is None


@pytest.mark.parametrize("lost", [RunMoved, TailKept])
async def test_a_note_that_is_lost_harms_no_run_but_shows(lost):
    async with open_bench(faults=[StoreFault(of=(lost,), error=DiskFull)]) as bench:
        seen = []
        bench.store.watch = lambda _changes: seen.append(bench.store.degraded)
        assert (await bench.accept("hello").wait()).state is RunState.COMPLETED
        assert str(DiskFull()) in seen
        await check_complete(bench.store)


@pytest.mark.item("A19", "A22")
async def test_a_cancelled_run_stays_cancelled_when_that_is_stored_late():
    async with open_bench(faults=[StoreFault(of=(RunEnded,), error=DiskFull, times=1)]) as bench:
        run = bench.accept("hello")
        bench.cancel()
        outcome = await run.wait()
        assert (outcome.state, outcome.error) == (RunState.CANCELLED, "")
        await check_complete(bench.store)


async def test_an_answer_that_could_not_be_ended_is_ended_before_the_next_run_begins():
    async with open_bench(Turns({"first": everything})) as bench:
        bench.store.spoil(StoreFault(of=(TextAppended,), error=DiskFull))
        first = bench.accept("first")
        await trio.sleep(10 * RETRY)
        second = bench.accept("second")
        bench.store.heal()
        assert [(await run.wait()).state for run in (first, second)] == [
            RunState.ERRORED,
            RunState.COMPLETED,
        ]
        stored = await bench.store.message(f"answer-{first.id}")
        assert finish_of(stored.message).reason is FinishReason.ERROR
        roles_of_first = [m.role for m in (await bench.messages())[:-2]]
        assert roles_of_first == [Role.USER, Role.ASSISTANT]


# ── On a real disk ──────────────────────────────────────────────────────────────────────────────


def limit_pages(extra):
    """Return work that leaves the database room for *extra* more pages."""

    def work(connection):
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages + extra}")

    return work


@pytest.mark.real_clock
async def test_a_full_disk_is_told_to_the_caller_and_passes(tmp_path):
    async with (
        open_sqlite_store(tmp_path) as store,
        open_recorded_runs(store, Turns()) as workspace,
    ):
        await store.commit(session())
        await store._database.transact(limit_pages(0))
        refused = workspace.runs.accept(prompt("x" * 100_000))
        with pytest.raises(NotAccepted, match="disk is full"), trio.fail_after(10):
            await refused.journaled()
        # Small writes still fit, and each ends the trouble: look right after one that does not.
        with pytest.raises(DiskFull):
            await store.commit(session("t", title="x" * 100_000))
        assert "disk is full" in store.degraded
        await store._database.transact(limit_pages(100_000))
        with trio.fail_after(10):
            outcome = await workspace.runs.accept(prompt("y" * 100_000)).wait()
        assert outcome.state is RunState.COMPLETED
        assert store.degraded is None
        assert len(await check_complete(store)) == 1


@pytest.mark.real_clock
async def test_a_writer_that_dies_hangs_nobody_and_a_restart_finds_everything(tmp_path):
    gate = Gate()

    async def stream(run, transcript):
        opened = await answer(run, transcript)
        opened.append_text("half")
        await opened.flush()
        await gate.wait()
        await opened.put_tool_call(call())

    def die(_connection):
        raise SystemExit("out of luck")

    async with (
        open_sqlite_store(tmp_path) as store,
        open_recorded_runs(store, Turns(default=stream)) as workspace,
    ):
        await store.commit(session())
        run = workspace.runs.accept(prompt("hello"))
        await gate.reached()
        with pytest.raises(StoreFailed):
            await store._database.transact(die)
        gate.open()
        with trio.fail_after(10):
            assert await run.wait() == Outcome.interrupted(), "as the next start will say"
            with pytest.raises(NotAccepted, match="the store has stopped"):
                await workspace.runs.accept(prompt("more")).journaled()
        assert "restart" in store.degraded
    async with (
        open_sqlite_store(tmp_path) as store,
        open_recorded_runs(store, Turns()) as workspace,
    ):
        await workspace.recovery.done.wait()
        assert [view.id for view in workspace.recovery.ended] == [run.id]
        await check_complete(store)
        assert text_of((await store.messages("s"))[1]) == "half"
