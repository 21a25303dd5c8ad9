"""Faults of the store, as a message in progress and a whole workspace meet them.

Whatever goes wrong with a write: the error reaches whoever asked, nobody waits for ever, no event
claims what was not stored, and the workspace says that something is wrong.
"""

import pytest
import trio
import trio.testing

from crush_trio.agent.transcript import RETRY, WRITE_LIMIT
from crush_trio.backend.assemble import open_durable_workspace
from crush_trio.errors import AcceptanceNotStored, EndingNotStored
from crush_trio.events.facts import MessageChange
from crush_trio.store.changes import (
    MessageCreated,
    MessageFinished,
    PartPut,
    RunAccepted,
    RunEnded,
    RunMoved,
    RunPrompted,
    TailKept,
    TextAppended,
)
from crush_trio.store.errors import DiskFull, StoreFailed
from crush_trio.store.sqlite.store import open_sqlite_store
from crush_trio.testing import Gate
from crush_trio.testing.faults import Moment
from crush_trio.testing.faulty_store import FaultyStore, StoreFault
from crush_trio.testing.scripted import prompt
from crush_trio.wire.messages import FinishReason, Role, ToolCallPart
from crush_trio.wire.native import RunState
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
async def test_a_write_that_hangs_fails_the_one_who_waits_and_still_happens_once(moment):
    async with open_desk() as desk:
        opened = await desk.create()
        desk.store.spoil(StoreFault(moment=moment))
        opened.append_text("a")
        with trio.move_on_after(10 * WRITE_LIMIT) as patience:
            with pytest.raises(trio.TooSlowError):
                await opened.put_tool_call(call())
        assert not patience.cancelled_caught
        desk.store.heal()
        await trio.sleep(RETRY)
        assert told(await desk.stored()) == told(opened.message())


@pytest.mark.parametrize("moment", list(Moment))
async def test_a_cancel_waits_until_it_is_certain_whether_a_message_was_created(moment):
    async with open_desk(StoreFault(moment=moment)) as desk:
        with trio.move_on_after(1), pytest.raises(trio.TooSlowError):
            await desk.create()
        assert trio.current_time() == WRITE_LIMIT
        assert desk.published() == []


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
    "prompt": {"of": (RunPrompted,)},
    "answer": created(Role.ASSISTANT),
    "text": {"of": (TextAppended,)},
    "tool call": {"of": (PartPut,), "wanted": lambda change: isinstance(change.part, ToolCallPart)},
    "tool result": created(Role.TOOL),
    "finish": {"of": (MessageFinished,)},
    "ending": {"of": (RunEnded,)},
}

LONG = 60.0
"""More than all limits together."""


async def assert_no_event_claims_what_is_not_stored(bench):
    """Whatever readers were told of messages and completions is in the store."""
    for event in all_events(bench.events):
        if isinstance(event, MessageChange):
            stored = (await bench.store.message(event.message_id)).message
            assert text_of(stored).startswith(text_of(event.message))
            assert len(stored.parts) >= len(event.message.parts)
    for view in bench.endings():
        if view.state is RunState.COMPLETED:
            assert (await bench.store.run(view.id)).view.state is RunState.COMPLETED


@pytest.mark.parametrize("kind", ["fails", "hangs"])
@pytest.mark.parametrize("write", WRITES)
async def test_no_run_hangs_and_no_event_lies_whichever_write_goes_wrong(write, kind):
    error = DiskFull if kind == "fails" else None
    store = FaultyStore(await memory(), [StoreFault(error=error, **WRITES[write])])
    with trio.fail_after(4 * LONG):
        async with open_bench(Turns(default=everything), store=store) as bench:
            run = bench.accept("hello")
            with trio.move_on_after(LONG) as patience:
                await run.wait_ended()
            assert not patience.cancelled_caught, "the run hangs"
            assert store.struck
            await assert_no_event_claims_what_is_not_stored(bench)
            if write == "acceptance":
                with pytest.raises(AcceptanceNotStored):
                    await run.wait()
            else:
                outcome = await run.wait()
                assert outcome.state is RunState.ERRORED
                assert (str(DiskFull()) if kind == "fails" else "too long") in outcome.error
                assert [view.state for view in bench.endings()] == [RunState.ERRORED]
            store.heal()
            assert (await bench.accept("again").wait()).state is RunState.COMPLETED
            assert bench.workspace.degraded is None
            await assert_no_event_claims_what_is_not_stored(bench)
    async with open_bench(store=store.inner.reopened("b2")) as bench:
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
        assert bench.workspace.degraded is None
        bench.store.spoil(StoreFault(error=DiskFull))
        gate.open()
        assert str(DiskFull()) in (await run.wait()).error
        assert bench.workspace.degraded == str(DiskFull())
        with pytest.raises(AcceptanceNotStored, match=str(DiskFull())):
            await bench.accept("refused").journaled()
        await trio.sleep(10 * RETRY)
        assert bench.workspace.degraded == str(DiskFull())
        bench.store.heal()
        assert (await bench.accept("hello").wait()).state is RunState.COMPLETED
        assert bench.workspace.degraded is None


@pytest.mark.parametrize("lost", [RunMoved, TailKept])
async def test_a_note_that_is_lost_harms_no_run_but_shows(lost):
    async with open_bench(faults=[StoreFault(of=(lost,), error=DiskFull)]) as bench:
        seen = []
        bench.store.watch = lambda _changes: seen.append(bench.workspace.degraded)
        assert (await bench.accept("hello").wait()).state is RunState.COMPLETED
        assert str(DiskFull()) in seen
        await check_complete(bench.store)


async def test_a_completion_that_is_not_stored_is_not_announced_as_one():
    async with open_bench(faults=[StoreFault(of=(RunEnded,), error=DiskFull, times=1)]) as bench:
        outcome = await bench.accept("hello").wait()
        assert (outcome.state, outcome.text) == (RunState.ERRORED, "done")
        assert outcome.error == str(EndingNotStored(str(DiskFull())))


async def test_a_cancelled_run_stays_cancelled_when_that_is_not_stored():
    async with open_bench(faults=[StoreFault(of=(RunEnded,), error=DiskFull, times=1)]) as bench:
        run = bench.accept("hello")
        bench.cancel()
        outcome = await run.wait()
        assert (outcome.state, outcome.error) == (
            RunState.CANCELLED,
            str(EndingNotStored(str(DiskFull()))),
        )


async def test_an_answer_that_could_not_be_ended_is_not_ended_in_the_name_of_the_next_run():
    async with open_bench(Turns({"first": everything})) as bench:
        bench.store.spoil(StoreFault(of=(TextAppended,), error=DiskFull))
        first = bench.accept("first")
        assert (await first.wait()).state is RunState.ERRORED
        bench.store.heal()
        await trio.sleep(RETRY)
        await bench.accept("second").wait()
        stored = await bench.store.message(f"answer-{first.id}")
        if stored.finished:
            assert finish_of(stored.message).reason is FinishReason.ERROR


@pytest.mark.parametrize("write", ["prompt", "answer", "tool result"])
async def test_a_write_that_lands_unheard_is_neither_repeated_nor_left_dangling(write):
    fault = StoreFault(moment=Moment.AFTER, times=1, **WRITES[write])
    async with open_bench(Turns(default=everything), faults=[fault]) as bench:
        outcome = await bench.accept("hello").wait()
        assert (outcome.state, outcome.error) == (RunState.ERRORED, "it took too long")
        await check_complete(bench.store)


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
        open_durable_workspace(store, Turns()) as workspace,
    ):
        await store.commit(session())
        await store._database.transact(limit_pages(0))
        refused = workspace.runs.accept(prompt("x" * 100_000))
        with pytest.raises(AcceptanceNotStored, match="disk is full"), trio.fail_after(10):
            await refused.journaled()
        # Small writes still fit, and each ends the trouble: look right after one that does not.
        with pytest.raises(DiskFull):
            await store.commit(session("t", title="x" * 100_000))
        assert "disk is full" in workspace.degraded
        await store._database.transact(limit_pages(100_000))
        with trio.fail_after(10):
            outcome = await workspace.runs.accept(prompt("y" * 100_000)).wait()
        assert outcome.state is RunState.COMPLETED
        assert workspace.degraded is None
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

    with pytest.raises(StoreFailed):  # noqa: PT012  # closing raises it, after all of this
        async with (
            open_sqlite_store(tmp_path) as store,
            open_durable_workspace(store, Turns(default=stream)) as workspace,
        ):
            await store.commit(session())
            run = workspace.runs.accept(prompt("hello"))
            await gate.reached()
            with pytest.raises(StoreFailed):
                await store._database.transact(die)
            gate.open()
            with trio.fail_after(10):
                outcome = await run.wait()
                assert outcome.state is RunState.ERRORED
                assert "the store has stopped" in outcome.error
                with pytest.raises(AcceptanceNotStored, match="the store has stopped"):
                    await workspace.runs.accept(prompt("more")).journaled()
            assert "restart" in workspace.degraded
    async with (
        open_sqlite_store(tmp_path) as store,
        open_durable_workspace(store, Turns()) as workspace,
    ):
        assert [view.id for view in workspace.recovered] == [run.id]
        await check_complete(store)
        assert text_of((await store.messages("s"))[1]) == "half"
