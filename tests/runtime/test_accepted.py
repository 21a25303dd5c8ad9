"""The token of an accepted run: what its submitter sees, and what its task may rely on."""

from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from crush_trio.errors import AcceptanceNotStored, RunReentered
from crush_trio.events.facts import RunChange
from crush_trio.runtime import (
    AcceptedRun,
    Active,
    CancelledOnEntry,
    Completion,
    Folded,
    Lane,
    MemoryJournal,
    Outcome,
)
from crush_trio.runtime.accepted import RunLane
from crush_trio.testing import Gate
from crush_trio.testing.server.faults import FaultyJournal, JournalFault, Moment
from crush_trio.testing.server.turns import Fold, Pause, ScriptedTurns, prompt
from crush_trio.testing.server.workspace import check_promises, open_test_workspace
from crush_trio.wire.ids import RunId
from crush_trio.wire.runs import RunState, RunView


def bare_run(
    name: str = "a", lane: RunLane | None = None, run_id: str | None = None
) -> AcceptedRun:
    """Return a token in a lane, with no workspace and no task of its own."""
    submission = prompt("hello", run_id=run_id)
    view = RunView(id=RunId(name), session_id=submission.session_id, state=RunState.ACCEPTED)
    lane = Lane() if lane is None else lane
    run = AcceptedRun(view, submission, lane, lambda _run: None, lambda run: lane.cancel([run]))
    lane.admit(run)
    return run


@asynccontextmanager
async def open_faulty(*faults: JournalFault):
    """Open a workspace whose journal has *faults* and otherwise writes the bench's transcript."""
    journal = FaultyJournal(MemoryJournal(), faults)
    async with open_test_workspace(journal=journal) as bench:
        journal.inner = bench.transcript
        yield bench


def ended(outcome: Outcome) -> AcceptedRun:
    """Return a token of a run that has ended."""
    run = bare_run()
    run.will_end(outcome, 7)
    run.conclude(outcome)
    return run


async def in_line(run: AcceptedRun) -> AcceptedRun:
    """Let *run* take its place in the lane before the next is accepted."""
    await wait_all_tasks_blocked()
    return run


# ── For the caller that submitted ───────────────────────────────────────────────────────────────────────


async def test_a_run_has_an_id_of_ours_and_keeps_the_callers():
    async with open_test_workspace() as bench:
        named, anonymous = bench.accept("one", run_id="mine"), bench.accept("two")
        assert named.id != anonymous.id
        assert named.submission.run_id == "mine"
        assert bench.find("mine") is bench.find(named.id) is named
        assert not named.folds_into(anonymous)
        assert anonymous.folds_into(named)
        assert named.session_id == "s"
        await named.wait()
        await anonymous.wait()


async def test_journaled_returns_when_the_acceptance_is_stored_and_not_before():
    journal = FaultyJournal(MemoryJournal(), [JournalFault(method="accept")])
    async with open_test_workspace(journal=journal) as bench, trio.open_nursery() as nursery:
        run = bench.accept("hello")
        answered = trio.Event()

        async def submit() -> None:
            await run.journaled()
            assert journal.inner.accepted == [run.id]
            answered.set()

        nursery.start_soon(submit)
        await wait_all_tasks_blocked()
        assert not answered.is_set()
        journal.heal()
        await answered.wait()


@pytest.mark.parametrize("moment", list(Moment))
async def test_a_refused_run_raises_for_everybody_who_asks_and_leaves_nothing(moment):
    fault = JournalFault(method="accept", error=OSError("disk full"), moment=moment)
    async with open_faulty(fault) as bench:
        run = bench.accept("hello", run_id="mine")
        for wait in (run.journaled, run.journaled, run.wait):
            with pytest.raises(AcceptanceNotStored, match="not accepted: disk full"):
                await wait()
        assert run.ended
        assert run.outcome is None
        assert bench.workspace.runs == ()
        assert bench.workspace._lanes == {}
        assert bench.transcript.rows == {}, "a restart must not bring it back"
        assert bench.messages() == []
        assert bench.recorder.events == []


async def test_a_refused_run_id_may_be_used_again():
    fault = JournalFault(
        method="accept", error=OSError("disk full"), wanted=lambda run: run.id == "run-1"
    )
    async with open_faulty(fault) as bench:
        with pytest.raises(AcceptanceNotStored):
            await bench.accept("hello", run_id="mine").journaled()
        again = bench.accept("another prompt", run_id="mine")
        assert (await again.wait()).state is RunState.COMPLETED
        check_promises(bench, [again])


async def test_an_acceptance_that_takes_too_long_is_refused():
    async with open_faulty(JournalFault(method="accept", moment=Moment.AFTER)) as bench:
        began = trio.current_time()
        run = bench.accept("hello")
        with pytest.raises(AcceptanceNotStored):
            await run.journaled()
        assert trio.current_time() - began == pytest.approx(5)
        assert bench.transcript.rows == {}
        assert bench.workspace.runs == ()


async def test_a_cancelled_run_that_is_refused_completes_the_receipt():
    async with open_faulty(JournalFault(method="accept", error=OSError("disk full"))) as bench:
        run = bench.accept("hello")
        receipt = await bench.cancel().settled()
        assert receipt.complete
        assert [hit.outcome for hit in receipt.hits] == [None]
        assert run.ended


@pytest.mark.item("A4")
@pytest.mark.parametrize("waiting_for", ["journaled", "wait", "wait_ended"])
async def test_giving_up_a_wait_changes_nothing_for_the_run(waiting_for):
    async with open_test_workspace() as bench:
        run = bench.accept("hello")
        with trio.move_on_after(0) as gave_up:
            await getattr(run, waiting_for)()
        assert gave_up.cancelled_caught
        assert (await run.wait()).state is RunState.COMPLETED
        check_promises(bench, [run])


async def test_wait_returns_the_outcome_to_everybody_and_at_any_time():
    async with open_test_workspace() as bench:
        run = bench.accept("hello")
        assert not run.ended
        first = await run.wait()
        assert run.ended
        assert await run.wait() is first is run.outcome
        assert run.state is RunState.COMPLETED


async def test_cancelling_the_token_of_a_queued_run_ends_that_run_only():
    gate = Gate()
    turns = ScriptedTurns({"one": [Pause(gate)]})
    async with open_test_workspace(turns) as bench:
        runs = [await in_line(bench.accept(text, run_id=text)) for text in ("one", "two", "three")]
        runs[1].cancel()
        assert (await runs[1].wait()).state is RunState.CANCELLED
        assert bench.workspace.queue(runs[0].session_id) == (runs[2],)
        gate.open()
        assert [(await run.wait()).state for run in (runs[0], runs[2])] == [RunState.COMPLETED] * 2
        check_promises(bench, runs)
        assert turns.started == ["one", "three"]


async def test_a_run_cancelled_by_its_token_is_not_folded_in_the_same_breath():
    gate = Gate()
    turns = ScriptedTurns({"one": [Pause(gate), Fold()]})
    async with open_test_workspace(turns) as bench:
        host = await in_line(bench.accept("one"))
        guest = await in_line(bench.accept("two"))
        guest.cancel()
        gate.open()
        assert (await guest.wait()).state is RunState.CANCELLED
        assert (await host.wait()).state is RunState.COMPLETED
        assert turns.folded.get(host.id, []) == []
        check_promises(bench, [host, guest])


# ── For the run's own task ──────────────────────────────────────────────────────────────────────


async def test_a_token_is_consumed_once():
    run = bare_run()
    async with run.enter() as entry:
        assert entry == Active()
        with pytest.raises(RunReentered):
            async with run.enter():
                pytest.fail("entered twice")
    with pytest.raises(RunReentered, match="accepted run entered twice: a"):
        async with run.enter():
            pytest.fail("entered after it was left")


async def test_a_run_cancelled_before_entry_does_not_begin():
    run = bare_run()
    run.cancel()
    async with run.enter() as entry:
        await trio.lowlevel.checkpoint()
    assert entry == CancelledOnEntry()


@pytest.mark.item("T3")
async def test_a_cancel_before_the_scope_is_entered_is_remembered():
    run = bare_run()
    run.cancel_scope()
    async with run.enter() as entry:
        assert entry == Active()
        await trio.sleep_forever()
    assert run.scope.cancelled_caught
    await trio.lowlevel.checkpoint()


async def test_a_cancel_of_the_active_block_is_caught_by_the_run_and_names_it():
    run = bare_run()
    seen = []
    async with run.enter():
        run.cancel()
        try:
            await trio.sleep_forever()
        except trio.Cancelled as exc:
            seen.append(exc.reason)
            raise
    assert run.scope.cancelled_caught
    assert seen == ["run a was cancelled"]
    await trio.lowlevel.checkpoint()


@pytest.mark.item("T4")
async def test_a_cancel_from_further_out_passes_through_the_run():
    run = bare_run()
    with trio.CancelScope() as outer:
        async with run.enter():
            run.cancel()
            outer.cancel()
            await trio.sleep_forever()
        pytest.fail("the run caught what was not its own")
    assert outer.cancelled_caught
    assert not run.scope.cancelled_caught


async def test_an_error_in_the_active_block_leaves_as_it_is():
    run = bare_run()
    with pytest.raises(ZeroDivisionError):
        async with run.enter():
            raise ZeroDivisionError


@pytest.mark.item("A26")
async def test_a_run_promoted_and_then_cancelled_before_its_next_step_does_nothing():
    gate = Gate()
    turns = ScriptedTurns({"one": [Pause(gate)]})
    async with open_test_workspace(turns) as bench:
        first, second = [await in_line(bench.accept(text, run_id=text)) for text in ("one", "two")]

        class CancelsWhenPromoted:
            def keep(self, _seq, event):
                if event == RunChange(run=second.view) and second.state is RunState.ACTIVE:
                    second.cancel()
                return False

        bench.events.keeper = CancelsWhenPromoted()
        gate.open()
        assert (await second.wait()).state is RunState.CANCELLED
        assert turns.started == ["one"]
        check_promises(bench, [first, second])


async def test_a_decision_to_fold_stands_although_a_cancel_follows_in_the_same_step():
    lane = RunLane()
    host, guest = bare_run("a", lane), bare_run("b", lane)
    entries = []

    async def wait_for_a_turn() -> None:
        async with guest.enter() as entry:
            await trio.lowlevel.checkpoint()
            entries.append(entry)

    async with trio.open_nursery() as nursery, host.enter():
        nursery.start_soon(wait_for_a_turn)
        await wait_all_tasks_blocked()
        assert lane.fold(host) == (guest,)
        lane.cancel(lane.runs)
        guest.decide(Folded(into=host.id))
    assert entries == [Folded(into=host.id)]


async def test_a_cancelled_run_is_out_of_the_queue_when_it_is_told():
    lane = RunLane()
    first, second = bare_run("a", lane), bare_run("b", lane)

    async def wait_for_a_turn() -> None:
        async with second.enter() as entry:
            assert entry == CancelledOnEntry()
            assert lane.waiting == ()

    async with first.enter(), trio.open_nursery() as nursery:
        nursery.start_soon(wait_for_a_turn)
        await wait_all_tasks_blocked()
        assert lane.waiting == (second,)
        second.cancel()


# ── For the workspace ───────────────────────────────────────────────────────────────────────────


async def test_a_run_is_concluded_once():
    run = ended(Outcome.cancelled())
    with pytest.raises(AssertionError, match="a run ends once"):
        run.conclude(Outcome.completed(Completion()))
    assert (run.state, run.view.ended_at) == (RunState.CANCELLED, 7)


async def test_the_view_of_an_ended_run_tells_how_it_ended():
    run = ended(Outcome.folded(RunId("host")))
    assert (run.view.state, run.view.folded_into) == (RunState.FOLDED, "host")
    failed = ended(Outcome.errored("boom", Completion(text="so far")))
    assert (failed.view.error, failed.view.text) == ("boom", "so far")


async def test_a_run_whose_ending_is_not_stored_yet_shows_the_outcome_that_is_to_come():
    run = bare_run()
    stored = run.will_end(Outcome.completed(Completion(text="done")), 7)
    run.show_ending()
    assert (run.state, run.view.outcome) == (RunState.ENDING, RunState.COMPLETED)
    assert (run.view.text, run.view.ended_at, run.ended) == ("done", 0, False)
    run.conclude(Outcome.completed(Completion(text="done")))
    assert run.view == stored
    assert (run.view.outcome, run.view.ended_at) == (None, 7)
