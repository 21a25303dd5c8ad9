"""Receipts: what a cancel hit, and how the rest of the story fills in by itself."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from crush_trio.runtime import CloseReport, MemoryJournal, StopReceipt
from crush_trio.testing import Gate
from crush_trio.testing.server.faults import FaultyJournal, JournalFault
from crush_trio.testing.server.turns import Do, Fold, Pause, Say, ScriptedTurns
from crush_trio.testing.server.workspace import open_test_workspace
from crush_trio.wire.runs import RunState

ACCEPTED, QUEUED, ACTIVE = RunState.ACCEPTED, RunState.QUEUED, RunState.ACTIVE
CANCELLED, FOLDED = RunState.CANCELLED, RunState.FOLDED


async def tidy_up(seconds):
    """Take *seconds* to stop, as a turn does that ends a process."""
    try:
        await trio.sleep_forever()
    finally:
        with trio.CancelScope(shield=True):
            await trio.sleep(seconds)


def tidying(**seconds):
    """Return turns that each take the named time to stop."""

    def script(wait):
        return [Do(lambda _run: tidy_up(wait))]

    return ScriptedTurns({name: script(wait) for name, wait in seconds.items()})


async def test_a_hit_keeps_the_state_in_which_the_cancel_found_the_run():
    async with open_test_workspace(tidying(slow=1)) as bench:
        for text, run_id in (("slow", None), ("behind", "waiting")):
            bench.accept(text, run_id=run_id)
            await wait_all_tasks_blocked()
        bench.accept("just now")
        receipt = bench.cancel()
        expected = [("run-1", ACTIVE), ("run-2", QUEUED), ("run-3", ACCEPTED)]
        assert [(hit.run_id, hit.state) for hit in receipt.hits] == expected
        await receipt.settled()
        assert [(hit.run_id, hit.state) for hit in receipt.hits] == expected
        assert {hit.session_id for hit in receipt.hits} == {"s"}


async def test_outcomes_and_durations_fill_in_one_by_one():
    async with open_test_workspace(tidying(fast=1, slow=3)) as bench:
        bench.accept("fast", "a")
        bench.accept("slow", "b")
        await wait_all_tasks_blocked()
        receipt = bench.workspace.cancel_all()
        fast, slow = receipt.hits
        assert (fast.outcome, fast.took, slow.outcome, slow.took) == (None,) * 4
        assert receipt.unfinished == (fast, slow)
        await trio.sleep(2)
        assert fast.outcome.state is CANCELLED
        assert fast.took == pytest.approx(1)
        assert (slow.outcome, slow.took, receipt.complete) == (None, None, False)
        assert receipt.unfinished == (slow,)
        await trio.sleep(2)
        assert slow.took == pytest.approx(3)
        assert (receipt.complete, receipt.unfinished) == (True, ())


async def test_a_receipt_is_not_complete_while_a_process_of_a_run_is_left():
    async with open_test_workspace(tidying(slow=1)) as bench:
        run = bench.accept("slow", "a")
        await wait_all_tasks_blocked()
        run.reaped.append(4711)
        run.left.append(4712)
        receipt = await bench.workspace.cancel_all().settled()
        assert (receipt.complete, receipt.unfinished) == (False, ())
        [hit] = receipt.hits
        assert (hit.processes, hit.left) == ((4711,), (4712,))


async def test_settled_waits_for_the_last_run_and_returns_the_receipt():
    async with open_test_workspace(tidying(fast=1, slow=3)) as bench:
        bench.accept("fast", "a")
        bench.accept("slow", "b")
        await wait_all_tasks_blocked()
        began = trio.current_time()
        receipt = bench.workspace.cancel_all()
        assert await receipt.settled() is receipt
        assert trio.current_time() - began == pytest.approx(3)
        assert await receipt.settled() is receipt, "and at once, ever after"
        assert trio.current_time() - began == pytest.approx(3)


async def test_giving_up_on_settled_does_not_give_up_on_the_runs():
    async with open_test_workspace(tidying(slow=3)) as bench:
        run = bench.accept("slow")
        await wait_all_tasks_blocked()
        receipt = bench.cancel()
        with trio.move_on_after(1) as patience:
            await receipt.settled()
        assert patience.cancelled_caught
        assert (await run.wait()).state is CANCELLED
        assert receipt.complete


async def test_a_second_cancel_has_a_receipt_and_a_stopwatch_of_its_own():
    async with open_test_workspace(tidying(slow=3)) as bench:
        bench.accept("slow")
        await wait_all_tasks_blocked()
        first = bench.cancel()
        await trio.sleep(1)
        second = bench.cancel()
        await second.settled()
        assert first.hits[0].run is second.hits[0].run
        assert first.hits[0].took == pytest.approx(3)
        assert second.hits[0].took == pytest.approx(2)


async def test_a_receipt_that_hit_nothing_is_complete_and_settles_with_a_checkpoint():
    receipt = StopReceipt(())
    assert (receipt.complete, receipt.unfinished) == (True, ())
    with trio.testing.assert_checkpoints():
        assert await receipt.settled() is receipt


async def test_a_refused_run_counts_as_ended_and_has_no_outcome():
    journal = FaultyJournal(MemoryJournal(), (JournalFault(method="accept"),))
    async with open_test_workspace(journal=journal) as bench:
        bench.accept("hello")
        receipt = bench.cancel()
        assert not receipt.complete
        (hit,) = (await receipt.settled()).hits
        assert (hit.state, hit.outcome) == (ACCEPTED, None)
        assert hit.took == pytest.approx(5)


async def test_a_hit_that_came_too_late_tells_how_the_run_really_ended():
    step = Gate("before the step")
    journal = FaultyJournal(MemoryJournal(), [JournalFault(method="fold")])
    turns = ScriptedTurns({"host": [Pause(step), Fold()]})
    async with open_test_workspace(turns, journal=journal) as bench:
        for text in ("host", "guest"):
            bench.accept(text)
            await wait_all_tasks_blocked()
        step.open()
        await wait_all_tasks_blocked()
        receipt = bench.cancel()
        journal.heal()
        await receipt.settled()
        story = [(hit.state, hit.outcome.state) for hit in receipt.hits]
        assert story == [(ACTIVE, CANCELLED), (QUEUED, FOLDED)], "the prompt was taken in by then"


# ── The report of a workspace that closed ──────────────────────────────────────────────────────


async def test_a_report_counts_what_was_stopped_and_for_how_long():
    async with open_test_workspace(tidying(fast=1, slow=3)) as bench:
        bench.accept("fast", "a")
        bench.accept("slow", "b")
        await wait_all_tasks_blocked()
        report = await bench.workspace.stop()
        assert report.took == pytest.approx(3)
        assert str(report) == "2 runs stopped in 3.00 s"


async def test_a_report_of_nothing_says_so():
    assert str(CloseReport(StopReceipt(()), 0.0)) == "0 runs stopped in 0.00 s"


async def test_a_report_names_what_did_not_end_and_what_it_was_doing():
    async with open_test_workspace(tidying(fast=1, stubborn=60)) as bench:
        for text, session in (("fast", "a"), ("stubborn", "b"), ("behind", "b")):
            bench.accept(text, session)
            await wait_all_tasks_blocked()
        report = await bench.workspace.stop()
        assert str(report) == "2 runs stopped in 15.00 s; did not end: run-2 (active)"
        assert report.unfinished == (report.receipt.hits[1],)
        await report.receipt.settled()
        assert len(report.unfinished) == 1, "a report is what was known when it was written"


async def test_what_was_said_before_the_cancel_is_in_the_outcome_of_the_hit():
    turns = ScriptedTurns({"one": [Say("so far"), Pause(Gate())]})
    async with open_test_workspace(turns) as bench:
        bench.accept("one")
        await wait_all_tasks_blocked()
        (hit,) = (await bench.cancel().settled()).hits
        assert (hit.outcome.state, hit.outcome.text) == (CANCELLED, "so far")
