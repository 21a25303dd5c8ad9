"""The journal on a store: acceptance is one commit, an ending is one commit, whatever it takes."""

import pytest
import trio
import trio.testing

from crush_trio.agent.record.transcript import PACE
from crush_trio.errors import NotAccepted, RunNotFound
from crush_trio.events.facts import MessageChange, RunChange
from crush_trio.limits import Limits
from crush_trio.store.changes import (
    MessageCreated,
    MessageFinished,
    RunAccepted,
    RunEnded,
    RunMoved,
    RunRetracted,
    SessionDeleted,
    SessionEdited,
)
from crush_trio.store.errors import DiskFull
from crush_trio.testing import Gate
from crush_trio.testing.explore import explore
from crush_trio.testing.server.faults import Moment
from crush_trio.testing.server.faulty_store import StoreFault
from crush_trio.wire.messages import BinaryPart, Role
from crush_trio.wire.requests import Attachment
from crush_trio.wire.runs import RunState
from tests.agent.durable import (
    END,
    S,
    Turns,
    all_events,
    answer,
    check_complete,
    completion,
    ending_commit,
    give_result,
    kinds,
    message_events,
    open_bench,
    parts_of,
    roles,
    text_of,
    told,
)
from tests.store.stores import call, session

settle = trio.testing.wait_all_tasks_blocked


# ── Accepting ───────────────────────────────────────────────────────────────────────────────────


async def test_an_acceptance_is_stored_before_the_caller_is_told():
    files = (Attachment(file_path="/a", file_name="a", mime_type="text/plain", content=b"x"),)
    async with open_bench() as bench:
        bench.store.latency = 1
        run = bench.accept("hello", attachments=files)
        with trio.move_on_after(0.5) as patience:
            await run.journaled()
        assert patience.cancelled_caught
        await run.journaled()
        stored = await bench.store.run(run.id)
        assert (stored.prompt, stored.attachments, stored.boot_id) == ("hello", files, "b1")
        assert stored.view.session_id == S


@pytest.mark.parametrize("error", [DiskFull, None], ids=["fails", "hangs"])
@pytest.mark.parametrize("moment", list(Moment))
async def test_an_acceptance_that_is_not_stored_is_refused_and_taken_back(error, moment):
    fault = StoreFault(of=(RunAccepted,), error=error, moment=moment)
    async with open_bench(faults=[fault], limits=Limits(accept=3)) as bench:
        run = bench.accept("hello")
        with pytest.raises(NotAccepted):
            await run.journaled()
        assert trio.current_time() == (0 if error else 3)
        await run.wait_ended()
        assert bench.store.posts[-1] == (RunRetracted(id=run.id),)
        with pytest.raises(RunNotFound):
            await bench.store.run(run.id)
        assert all_events(bench.events) == ()
        assert await bench.messages() == []


async def test_when_a_run_became_active_is_noted_without_waiting():
    gate = Gate()

    async def wait(_run, _transcript):
        await gate.wait()

    async with open_bench(Turns(default=wait)) as bench:
        first = bench.accept("one")
        await gate.reached()
        moves = [change for post in bench.store.posts for change in post]
        assert RunMoved(id=first.id, state=RunState.ACTIVE, at=first.view.started_at) in moves
        assert (await bench.stored(first)).started_at == first.view.started_at
        gate.open()


@pytest.mark.item("D1", "D23a")
async def test_the_prompt_of_a_run_that_begins_is_written_with_its_acceptance():
    files = (Attachment(file_path="/a", file_name="a", mime_type="image/png", content=b"x"),)
    async with open_bench() as bench:
        run = bench.accept("hello", attachments=files)
        await run.wait()
        (commit,) = [c for c in bench.store.commits if RunAccepted in kinds(c)]
        assert kinds(commit) == [RunAccepted, MessageCreated]
        stored = (await bench.messages())[0]
        assert (await bench.store.run(run.id)).prompt_message_id == stored.id
        assert parts_of(stored, BinaryPart) == [
            BinaryPart(path="/a", mime_type="image/png", data=b"x")
        ]


# ── Cancelled ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.item("D20")
async def test_a_queued_run_that_is_cancelled_leaves_the_answer_of_the_active_one_alone():
    gate = Gate()

    async def stream(run, transcript):
        opened = await answer(run, transcript)
        await opened.put_tool_call(call(finished=True))
        opened.append_text("half a sen")
        await gate.wait()
        await give_result(run, transcript, "c")
        await opened.finish(END)

    async with open_bench(Turns(default=stream)) as bench:
        first = bench.accept("one")
        await gate.reached()
        second = bench.accept("two", run_id="second")
        await settle()
        before = (await bench.store.message(f"answer-{first.id}")).message
        bench.workspace.runs.cancel_run(second.id)
        await second.wait()
        assert (await bench.store.message(before.id)).message == before
        assert bench.transcript.open_messages()[0].open
        assert kinds(ending_commit(bench, second)) == [MessageCreated, MessageCreated, RunEnded]
        gate.open()
        assert (await first.wait()).state is RunState.COMPLETED
        await check_complete(bench.store)


# ── Errored, folded, nowhere ────────────────────────────────────────────────────────────────────


async def test_a_folded_run_ends_with_its_prompt_in_the_turn_of_the_other():
    gate = Gate()

    async def fold(run, transcript):
        opened = await answer(run, transcript)
        opened.append_text("hm")
        await gate.wait()
        await run.fold()
        await opened.finish(END)

    async with open_bench(Turns(default=fold)) as bench:
        first = bench.accept("one")
        await gate.reached()
        second = bench.accept("two")
        await settle()
        gate.open()
        assert (await second.wait()).folded_into == first.id
        await first.wait()
        assert roles(await bench.messages()) == [Role.USER, Role.ASSISTANT, Role.USER]
        assert kinds(ending_commit(bench, second)) == [MessageCreated, RunEnded]
        assert (await bench.stored(second)).folded_into == first.id
        await check_complete(bench.store)


@pytest.mark.item("B7")
@pytest.mark.parametrize("cancel", [False, True])
async def test_a_run_of_an_unknown_session_ends_and_writes_nothing_else(cancel):
    async with open_bench() as bench:
        run = bench.accept("hello", session="nowhere")
        if cancel:
            bench.cancel("nowhere")
        outcome = await run.wait()
        assert outcome.state is (RunState.CANCELLED if cancel else RunState.ERRORED)
        assert (await bench.stored(run)).state is outcome.state
        assert all_events(bench.events)[-1] == RunChange(run=run.view)
        assert not [e for e in all_events(bench.events) if isinstance(e, MessageChange)]
        assert await bench.messages("nowhere") == []


@pytest.mark.parametrize("dirty", [False, True], ids=["all stored", "text waiting"])
@pytest.mark.parametrize("how", ["cancel", "return"])
async def test_a_session_deleted_under_a_run_takes_the_record_and_leaves_the_ending(dirty, how):
    gate, deleted = Gate(), Gate()

    async def stream(run, transcript):
        opened = await answer(run, transcript)
        opened.append_text("half")
        await gate.wait()
        if dirty:
            opened.append_text(" a sen")
        await deleted.wait()
        return completion(opened)

    async with open_bench(Turns(default=stream)) as bench:
        run = bench.accept("hello")
        await gate.reached()
        await settle()
        await bench.store.commit(SessionDeleted(id=S))
        gate.open()
        await deleted.reached()
        bench.cancel() if how == "cancel" else deleted.open()
        outcome = await run.wait()
        expected = RunState.CANCELLED if how == "cancel" else RunState.COMPLETED
        assert (outcome.state, (await bench.stored(run)).state) == (expected, expected)
        assert bench.transcript.open_messages() == ()
        await settle()
        assert not bench.transcript.services.child_tasks


# ── Completed ───────────────────────────────────────────────────────────────────────────────────


async def sealed(run, transcript):
    opened = await answer(run, transcript)
    opened.append_text("done")
    opened.seal(END)
    return completion(opened)


@pytest.mark.item("B6")
async def test_a_sealed_answer_and_the_outcome_are_one_commit_and_the_answer_is_told_first():
    async with open_bench(Turns(default=sealed)) as bench:
        run = bench.accept("hello")
        await run.wait()
        assert MessageFinished in kinds(ending_commit(bench, run))
        *_, last, ending = all_events(bench.events)
        assert isinstance(last, MessageChange)
        assert last.view.finished
        assert isinstance(ending, RunChange)
        assert (ending.run.state, ending.run.text) == (RunState.COMPLETED, "done")
        await check_complete(bench.store)


async def end_of_run_and_paced_flush():
    """A piece is due in the very moment in which the run ends."""

    async def stream(run, transcript):
        opened = await answer(run, transcript)
        opened.append_text("a")
        await trio.sleep(PACE / 2)
        opened.append_text("b")
        await trio.sleep(PACE / 2)
        opened.seal(END)
        return completion(opened)

    async with open_bench(Turns(default=stream)) as bench:
        run = bench.accept("hello")
        with trio.move_on_after(PACE):
            await trio.sleep_forever()
        bench.cancel()
        outcome = await run.wait()
        stored = (await bench.store.message(f"answer-{run.id}")).message
        published = message_events(bench.events, stored.id)
        assert text_of(stored) == "ab"
        assert told(published[-1].message) == told(stored)
        assert not published[-1].plain, "a finish that a reader may skip"
        assert [view.id for view in bench.endings()] == [run.id]
        await check_complete(bench.store)
    return outcome.state


@pytest.mark.item("B6", "D7")
def test_the_end_of_a_run_and_a_paced_flush_do_not_get_in_each_others_way(report_exploration):
    found = explore(end_of_run_and_paced_flush, deviations=2, limit=600)
    report_exploration(found)
    assert set(found.outcomes) == {RunState.COMPLETED, RunState.CANCELLED}


async def test_only_the_session_of_the_run_is_completed():
    gate = Gate()

    async def wait(run, transcript):
        opened = await answer(run, transcript)
        opened.append_text("still here")
        await gate.wait()
        await opened.finish(END)

    async with open_bench(Turns({"wait": wait})) as bench:
        await bench.store.commit(session("t"))
        waiting, run = bench.accept("wait", session="t"), bench.accept("hello")
        await gate.reached()
        await run.wait()
        assert [m.session_id for m in bench.transcript.open_messages()] == ["t"]
        gate.open()
        assert (await waiting.wait()).state is RunState.COMPLETED
        await check_complete(bench.store, "s", "t")


async def test_nothing_of_a_run_is_kept_in_memory_when_it_has_ended():
    async def stream(run, transcript):
        for n in range(3):
            opened = await answer(run, transcript, f"step{n}")
            await opened.put_tool_call(call(f"{run.id}-{n}", finished=True))
            await give_result(run, transcript, f"{run.id}-{n}")

    async with open_bench(Turns(default=stream)) as bench:
        for _ in range(3):
            await bench.accept("hello").wait()
            await settle()
            assert bench.transcript._turns == {}
            assert not bench.transcript.services.child_tasks
        await check_complete(bench.store)


async def test_a_turn_does_not_undo_what_others_change_about_its_session():
    gate = Gate()

    async def stream(run, transcript):
        opened = await answer(run, transcript)
        await gate.wait()
        await opened.finish(END)

    async with open_bench(Turns(default=stream)) as bench:
        run = bench.accept("hello")
        await gate.reached()
        await bench.store.commit(SessionEdited(id=S, at=1, title="renamed", cost=2.5))
        gate.open()
        await run.wait()
        session = await bench.store.session(S)
        assert (session.title, session.cost, session.message_count) == ("renamed", 2.5, 2)
