"""Contract A.4, A.5 and A.7: one cancel ends exactly the runs of its instant, and leaves a record."""

from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from crush_trio.events.facts import Fact
from crush_trio.runtime import AcceptedRun, MemoryJournal, Run, Turn
from crush_trio.testing import Gate
from crush_trio.testing.server.faults import FaultyJournal, JournalFault, Moment
from crush_trio.testing.server.turns import Do, Fold, Pause, Say, ScriptedTurns, Sleep
from crush_trio.testing.server.workspace import Bench, check_promises, open_test_workspace
from crush_trio.wire.codec import USER_CANCELLED
from crush_trio.wire.ids import SessionId
from crush_trio.wire.messages import FinishPart, FinishReason, Role, TextPart
from crush_trio.wire.runs import RunState

S = SessionId("s")
ACCEPTED, COMPLETED, CANCELLED = RunState.ACCEPTED, RunState.COMPLETED, RunState.CANCELLED


@asynccontextmanager
async def open_faulty(turn: Turn, *faults: JournalFault):
    """Open a workspace whose journal has *faults* and otherwise writes the bench's transcript."""
    journal = FaultyJournal(MemoryJournal(), faults)
    async with open_test_workspace(turn, journal=journal) as bench:
        journal.inner = bench.transcript
        yield bench, journal


async def settled(bench: Bench, *runs: AcceptedRun) -> list[RunState]:
    """Wait for *runs*, check rows, events and leftovers, and return how each ended."""
    with trio.fail_after(3600):
        states = [(await run.wait()).state for run in runs]
    check_promises(bench, runs)
    check_nothing_left(bench)
    assert bench.recorder.errors == [], "a cancelled run is no error (A19)"
    return states


def check_nothing_left(bench: Bench) -> None:
    assert bench.workspace.runs == ()
    assert bench.workspace._lanes == {}, "an empty lane was kept"


async def in_line(run: AcceptedRun) -> AcceptedRun:
    """Let *run* take its place in the lane before anything else happens."""
    await wait_all_tasks_blocked()
    return run


# ── A13 to A17: whom a cancel hits ──────────────────────────────────────────────────────────────


@pytest.mark.item("A13")
async def test_one_cancel_hits_the_active_the_queued_and_the_accepted_run():
    turns = ScriptedTurns({"one": [Pause(Gate())]})
    async with open_test_workspace(turns) as bench:
        active = await in_line(bench.accept("one"))
        queued = await in_line(bench.accept("two", run_id="2"))
        accepted = bench.accept("three")
        receipt = bench.cancel()
        assert [(hit.run, hit.state) for hit in receipt.hits] == [
            (active, RunState.ACTIVE),
            (queued, RunState.QUEUED),
            (accepted, ACCEPTED),
        ]
        assert bench.workspace.queue(S) == ()
        assert await settled(bench, active, queued, accepted) == [CANCELLED] * 3
        assert receipt.complete
        assert turns.started == ["one"]


@pytest.mark.item("A13", "A11")
async def test_a_cancelled_session_stays_busy_until_its_record_is_written():
    turns = ScriptedTurns({"one": [Pause(Gate())]})
    async with open_faulty(turns, JournalFault(method="end")) as (bench, journal):
        run = await in_line(bench.accept("one"))
        receipt = bench.cancel()
        await wait_all_tasks_blocked()
        assert bench.workspace.session_busy(S)
        assert not receipt.complete
        assert bench.recorder.endings == []
        journal.heal()
        assert await settled(bench, run) == [CANCELLED]
        assert not bench.workspace.session_busy(S)


@pytest.mark.item("A14", "A36")
async def test_cancelling_an_idle_session_leaves_nothing_that_hits_the_next_prompt():
    gate = Gate()
    async with open_test_workspace(ScriptedTurns({"elsewhere": [Pause(gate)]})) as bench:
        other = await in_line(bench.accept("elsewhere", session="other"))
        receipt = bench.cancel()
        assert receipt.hits == ()
        assert receipt.complete
        run = bench.accept("hello")
        assert (await run.wait()).state is COMPLETED
        gate.open()
        assert await settled(bench, run, other) == [COMPLETED] * 2


@pytest.mark.item("A15", "A21")
@pytest.mark.parametrize("seed", range(20))
async def test_one_cancel_ends_every_prompt_accepted_so_far(seed):
    async with open_test_workspace(ScriptedTurns(default=[Sleep(1)])) as bench:
        runs = [bench.accept(f"p{n}", run_id=str(n) if n % 2 else None) for n in range(5)]
        for _ in range(seed):
            await trio.lowlevel.checkpoint()  # each run is somewhere else by now
        receipt = await bench.cancel().settled()
        assert {hit.run for hit in receipt.hits} == set(runs)
        assert await settled(bench, *runs) == [CANCELLED] * 5
        assert len(bench.messages()) == 10


@pytest.mark.item("A16")
@pytest.mark.parametrize("seed", range(20))
async def test_a_prompt_accepted_after_the_cancel_runs_and_those_before_do_not(seed):
    turns = ScriptedTurns(default=[Sleep(1)])
    async with open_test_workspace(turns) as bench:
        before = [bench.accept("one"), bench.accept("two", run_id="2")]
        for _ in range(seed // 2):
            await trio.lowlevel.checkpoint()
        bench.cancel()
        after = bench.accept("three", run_id="3")
        assert await settled(bench, *before, after) == [CANCELLED, CANCELLED, COMPLETED]
        assert turns.overlaps == []
        assert turns.started[-1] == "three"


@pytest.mark.item("A16", "A7")
async def test_a_prompt_accepted_after_the_cancel_is_not_touched_while_those_before_are_late():
    held = JournalFault(method="accept", wanted=lambda run: run.view.seq <= 2)
    turns = ScriptedTurns()
    async with open_faulty(turns, held) as (bench, journal):
        before = [bench.accept("one", run_id="1"), bench.accept("two")]
        await wait_all_tasks_blocked()
        bench.cancel()
        after = await in_line(bench.accept("three"))
        assert [run.state for run in (*before, after)] == [ACCEPTED] * 3
        journal.heal()
        assert await settled(bench, after, *before) == [COMPLETED, CANCELLED, CANCELLED]
        assert turns.started == ["three"]


@pytest.mark.item("A17")
async def test_repeating_a_cancel_adds_only_the_prompts_accepted_since():
    async with open_test_workspace() as bench:
        first = bench.accept("one", run_id="1")
        receipts = [bench.cancel(), bench.cancel()]
        second = bench.accept("two")
        receipts.append(bench.cancel())
        third = bench.accept("three")
        hits = [{hit.run for hit in receipt.hits} for receipt in receipts]
        assert hits == [{first}, {first}, {first, second}]
        assert await settled(bench, first, second, third) == [CANCELLED, CANCELLED, COMPLETED]
        assert all(receipt.complete for receipt in receipts)


@pytest.mark.item("A13", "A.8")
async def test_a_cancel_while_a_run_is_finishing_hits_the_next_one_only():
    held = JournalFault(method="end", wanted=lambda run: run.view.seq == 1)
    turns = ScriptedTurns()
    async with open_faulty(turns, held) as (bench, journal):
        first = await in_line(bench.accept("one", run_id="1"))
        second = await in_line(bench.accept("two", run_id="2"))
        receipt = bench.cancel()
        third = bench.accept("three", run_id="3")
        journal.heal()
        assert await settled(bench, first, second, third) == [COMPLETED, CANCELLED, COMPLETED]
        outcomes = [hit.outcome for hit in receipt.hits]
        assert outcomes == [first.outcome, second.outcome], "the receipt tells what became of each"
        assert turns.started == ["one", "three"]


@pytest.mark.item("A13", "A21")
@pytest.mark.parametrize("moment", list(Moment))
async def test_a_cancel_while_the_prompt_is_written_neither_loses_nor_doubles_it(moment):
    held = JournalFault(method="begin", moment=moment)
    async with open_faulty(ScriptedTurns(), held) as (bench, journal):
        run = await in_line(bench.accept("one"))
        bench.cancel()
        await wait_all_tasks_blocked()
        assert not run.ended, "the write is not abandoned"
        journal.heal()
        assert await settled(bench, run) == [CANCELLED]
        assert [message.id for message in bench.messages()] == ["prompt-run-1", "cancelled-run-1"]


@pytest.mark.item("A13", "A.8")
async def test_a_cancel_after_the_last_checkpoint_of_a_turn_leaves_it_completed():
    receipts = []

    async def turn(run: Run) -> None:
        await trio.lowlevel.checkpoint()
        receipts.append(bench.cancel())

    async with open_test_workspace(turn) as bench:
        run = bench.accept("one")
        assert await settled(bench, run) == [COMPLETED]
        assert [hit.outcome for hit in receipts[0].hits] == [run.outcome]


# ── A18 to A20: what a cancel is to others ──────────────────────────────────────────────────────


@pytest.mark.item("A18", "T4")
async def test_anybody_may_cancel_at_any_time_and_it_is_never_an_error():
    async with open_test_workspace(ScriptedTurns(default=[Sleep(60)])) as bench:
        assert bench.cancel("never heard of").hits == ()
        run = await in_line(bench.accept("one"))

        async def somebody_else() -> None:
            bench.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(somebody_else)
        assert await settled(bench, run) == [CANCELLED]
        assert bench.cancel().hits == ()
        assert bench.workspace.cancel_run(run.id).hits == ()
        assert await settled(bench, run) == [CANCELLED]


@pytest.mark.item("A19")
@pytest.mark.parametrize("script", [[], [Sleep(9)], [Say("x"), Sleep(9)], [Fold(), Sleep(9)]])
async def test_no_observer_sees_an_error_of_a_cancelled_run(script, caplog):
    async with open_test_workspace(ScriptedTurns(default=script)) as bench:
        runs = [bench.accept("one", run_id="1"), bench.accept("two")]
        await trio.lowlevel.checkpoint()
        bench.cancel()
        await settled(bench, *runs)
        assert not [event for event in bench.recorder.events if isinstance(event, Fact)]
    assert caplog.records == []


@pytest.mark.item("A20")
async def test_everything_a_turn_waits_for_ends_with_it_and_detached_jobs_do_not():
    stopped, detached = [], []

    async def stand(what: str, record: list[str]) -> None:
        try:
            await trio.sleep_forever()
        finally:
            record.append(what)

    async def work(_run: Run) -> None:
        bench.workspace.services.start_soon(stand, "background job", detached)
        async with trio.open_nursery() as step:
            for what in ("permission", "question", "command", "sub-agent"):
                step.start_soon(stand, what, stopped)

    async with open_test_workspace(ScriptedTurns({"work": [Do(work)]})) as bench:
        run = await in_line(bench.accept("work"))
        bench.cancel()
        assert await settled(bench, run) == [CANCELLED]
        assert sorted(stopped) == ["command", "permission", "question", "sub-agent"]
        assert detached == []
    assert detached == ["background job"]


# ── A21 to A23: the record of a run that never began ────────────────────────────────────────────


@pytest.mark.item("A21", "A22", "A23", "B4")
async def test_a_prompt_cancelled_on_entry_gets_a_whole_turn_without_the_model():
    turns = ScriptedTurns()
    async with open_test_workspace(turns) as bench:
        run = bench.accept("hello", run_id="mine")
        bench.cancel()
        assert await settled(bench, run) == [CANCELLED]

        asked, answered = bench.messages()
        assert asked.role is Role.USER
        assert asked.parts[0] == TextPart(text="hello")
        assert answered.role is Role.ASSISTANT
        (finish,) = answered.parts
        assert isinstance(finish, FinishPart)
        assert (finish.reason, finish.message) == (FinishReason.CANCELLED, USER_CANCELLED)

        (ending,) = bench.recorder.endings
        assert (ending.run_id, ending.state, ending.error) == ("mine", CANCELLED, "")
        assert (ending.message_id, ending.text) == ("", "")
        assert not [event for event in bench.recorder.events if isinstance(event, Fact)]
        assert turns.started == []


@pytest.mark.item("A13", "B9", "L43")
async def test_a_prompt_cancelled_in_the_queue_gets_the_same_record_as_one_cancelled_on_entry():
    turns = ScriptedTurns({"one": [Pause(Gate())]})
    async with open_test_workspace(turns) as bench:
        active = await in_line(bench.accept("one"))
        queued = [await in_line(bench.accept(text, run_id=text)) for text in ("two", "three")]
        bench.cancel()
        assert await settled(bench, active, *queued) == [CANCELLED] * 3
        for run in queued:
            assert run.outcome == bench.transcript.endings[run.id]
            assert (run.outcome.error, run.outcome.message_id) == ("", "")
        assert {message.id for message in bench.messages()} >= {
            *(f"prompt-{run.id}" for run in queued),
            *(f"cancelled-{run.id}" for run in queued),
        }


@pytest.mark.item("A21", "A22", "T5")
@pytest.mark.parametrize("error", [OSError("disk full"), None], ids=["fails", "hangs"])
async def test_a_cancellation_is_announced_when_it_is_stored_and_without_an_error(error):
    fault = JournalFault(method="withdraw", error=error)
    async with open_faulty(ScriptedTurns(), fault) as (bench, journal):
        run = bench.accept("hello", run_id="mine")
        receipt = bench.cancel()
        await trio.sleep(60)
        assert (run.state, run.view.outcome) == (RunState.ENDING, CANCELLED)
        assert not receipt.complete
        assert bench.recorder.endings == []
        assert bench.transcript.rows == {run.id: ACCEPTED}, "a restart would find it unfinished"
        journal.heal()
        assert await settled(bench, run) == [CANCELLED]
        assert run.outcome.error == ""


# ── A30, A31: the other ways to stop ────────────────────────────────────────────────────────────


@pytest.mark.item("A30")
async def test_clearing_the_queue_leaves_the_active_and_the_accepted_runs_alone():
    gate = Gate()
    turns = ScriptedTurns({"one": [Pause(gate)]})
    async with open_test_workspace(turns) as bench:
        active = await in_line(bench.accept("one"))
        queued = [await in_line(bench.accept("two", run_id="2")), await in_line(bench.accept("3"))]
        accepted = bench.accept("four")
        receipt = bench.workspace.clear_queue(S)
        assert [hit.run for hit in receipt.hits] == queued
        gate.open()
        runs = (active, *queued, accepted)
        assert await settled(bench, *runs) == [COMPLETED, CANCELLED, CANCELLED, COMPLETED]
        assert bench.workspace.clear_queue(S).hits == ()
        assert turns.started == ["one", "four"]


@pytest.mark.item("A31", "L6")
async def test_cancel_all_hits_every_run_of_every_session_whatever_it_does():
    turns = ScriptedTurns({"one": [Pause(Gate())]})
    async with open_test_workspace(turns) as bench:
        assert bench.workspace.cancel_all().hits == ()
        active = await in_line(bench.accept("one", session="a"))
        queued = await in_line(bench.accept("two", session="a"))
        accepted = bench.accept("three", session="b")
        receipt = bench.workspace.cancel_all()
        after = bench.accept("four", session="b")
        assert {hit.run for hit in receipt.hits} == {active, queued, accepted}
        runs = (active, queued, accepted, after)
        assert await settled(bench, *runs) == [CANCELLED, CANCELLED, CANCELLED, COMPLETED]
        assert turns.started == ["one", "four"]
