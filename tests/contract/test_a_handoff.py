"""Contract A.6, A.7 and A.9: how one run makes way for the next, and how a workspace closes.

What must hold at every instant is looked at after every step of every task (`after_every_step`), not
only where a test happens to look.
"""

from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from inspect import stack

import pytest
import trio
from attrs import define, field
from trio.testing import wait_all_tasks_blocked

from crush_trio.errors import WorkspaceClosing
from crush_trio.events.facts import RunChange, agent_error
from crush_trio.runtime import AcceptedRun, Completion, MemoryJournal, Run, Turn
from crush_trio.testing import Gate
from crush_trio.testing.server.faults import FaultyJournal, JournalFault
from crush_trio.testing.server.turns import Do, Fail, Pause, Say, ScriptedTurns, Sleep
from crush_trio.testing.server.workspace import Bench, check_promises, open_test_workspace
from crush_trio.wire.ids import SessionId
from crush_trio.wire.runs import RunState

S = SessionId("s")
COMPLETED, CANCELLED, ERRORED = RunState.COMPLETED, RunState.CANCELLED, RunState.ERRORED


@define(eq=False)
class AfterEveryStep(trio.abc.Instrument):
    """Collects what *look* returns, if anything, each time a task has taken a step."""

    look: Callable[[], object]
    seen: list[object] = field(factory=list)

    def after_task_step(self, _task: trio.lowlevel.Task) -> None:
        seen = self.look()
        if seen:
            self.seen.append(seen)


@contextmanager
def after_every_step(look: Callable[[], object]) -> Iterator[list[object]]:
    """Look after every task step of the block; give the list of what was seen."""
    instrument = AfterEveryStep(look)
    trio.lowlevel.add_instrument(instrument)
    try:
        yield instrument.seen
    finally:
        trio.lowlevel.remove_instrument(instrument)  # raises if Trio dropped it for an error


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
    assert bench.workspace.runs == ()
    assert bench.workspace._lanes == {}, "an empty lane was kept"
    return states


async def in_line(run: AcceptedRun) -> AcceptedRun:
    """Let *run* take its place in the lane before anything else happens."""
    await wait_all_tasks_blocked()
    return run


# ── A24 to A29: from one turn to the next ───────────────────────────────────────────────────────


@pytest.mark.item("A24", "D28")
async def test_a_reader_of_the_ending_finds_the_session_idle_and_the_notices_before_it():
    notice = agent_error(S, None, "for instance")

    async def turn(run: Run) -> Completion:
        await trio.lowlevel.checkpoint()
        return Completion(notices=(notice,))

    async with open_test_workspace(turn) as bench, trio.open_nursery() as nursery:
        cursor = bench.events.cursor()

        async def read() -> None:
            while True:
                batch = await cursor.read()
                if any(isinstance(e, RunChange) and e.terminal for e in batch.events):
                    assert not bench.workspace.session_busy(S)
                    return

        nursery.start_soon(read)
        assert await settled(bench, bench.accept("hello")) == [COMPLETED]
        assert bench.recorder.events[-2] == notice
        assert bench.recorder.events[-1].terminal


@pytest.mark.item("A25", "A37", "A35")
@pytest.mark.parametrize("seed", range(10))
async def test_nobody_ever_sees_a_session_idle_while_a_run_is_waiting(seed):
    turns = ScriptedTurns({"1": [Fail(ValueError("boom"))]}, default=[Sleep(1)])
    async with open_test_workspace(turns) as bench:
        first = await in_line(bench.accept("0", run_id="0"))
        runs = [first, *(bench.accept(str(n), run_id=str(n)) for n in range(1, 6))]

        def broken_rule() -> str:
            lane = bench.workspace._lanes.get(S)
            live = [run for run in runs if not run.ended]
            if lane is None:
                return "a live run has no lane" if live else ""
            if list(lane.runs) != live:
                return f"the lane holds {lane.runs}, alive are {live}"
            return "" if lane.busy else f"idle before {lane.waiting}"

        with after_every_step(broken_rule) as broken:
            runs[-1].cancel()
            await settled(bench, *runs)
        assert broken == []
        assert sorted(turns.started) == ["0", "1", "2", "3", "4"]
        assert turns.overlaps == []


@pytest.mark.item("A25", "L7")
async def test_a_reader_that_sees_one_turn_end_finds_the_next_one_active():
    async with open_test_workspace(ScriptedTurns(default=[Sleep(1)])) as bench:
        cursor, found = bench.events.cursor(), []
        runs = [await in_line(bench.accept(str(n), run_id=str(n))) for n in range(3)]
        while len(found) < 3:
            batch = await cursor.read()
            ended = [e.run.run_id for e in batch.events if isinstance(e, RunChange) and e.terminal]
            active = [run.submission.run_id for run in runs if run.state is RunState.ACTIVE]
            found += [(run_id, active) for run_id in ended]
        assert found == [("0", ["1"]), ("1", ["2"]), ("2", [])]
        assert await settled(bench, *runs) == [COMPLETED] * 3


@pytest.mark.item("A26")
async def test_a_cancel_between_promotion_and_the_first_step_is_not_lost():
    gate = Gate()
    turns = ScriptedTurns({"one": [Pause(gate)]})
    async with open_test_workspace(turns) as bench:
        first = await in_line(bench.accept("one", run_id="1"))
        second = await in_line(bench.accept("two", run_id="2"))

        def cancel_once_promoted() -> object:
            return second.state is RunState.ACTIVE and not cancels and bench.cancel()

        with after_every_step(cancel_once_promoted) as cancels:
            gate.open()
            assert await settled(bench, first, second) == [COMPLETED, CANCELLED]
        assert [hit.run for hit in cancels[0].hits] == [second]
        assert turns.started == ["one"]
        assert (second.outcome.error, second.outcome.message_id) == ("", "")
        after = bench.accept("three")
        assert await settled(bench, first, second, after) == [COMPLETED, CANCELLED, COMPLETED]


@pytest.mark.item("A26", "A27")
@pytest.mark.parametrize("seed", range(20))
async def test_a_cancel_about_the_time_of_the_handoff_ends_the_next_run_and_no_later_one(seed):
    turns = ScriptedTurns({"one": [Sleep(1)]}, default=[Say("x"), Sleep(1)])
    async with open_test_workspace(turns) as bench:
        first = await in_line(bench.accept("one", run_id="1"))
        second = await in_line(bench.accept("two", run_id="2"))
        await first.wait()
        for _ in range(seed // 4):
            await trio.lowlevel.checkpoint()
        bench.cancel()
        third = bench.accept("three", run_id="3")
        assert await settled(bench, first, second, third) == [COMPLETED, CANCELLED, COMPLETED]
        assert turns.overlaps == []


@pytest.mark.item("A27", "A36")
async def test_cancels_before_during_and_after_a_run_do_not_hit_the_one_that_follows():
    held = JournalFault(method="end", wanted=lambda run: run.view.seq == 1)
    async with open_faulty(ScriptedTurns(), held) as (bench, journal):
        bench.cancel()
        first = await in_line(bench.accept("one"))
        bench.cancel()
        journal.heal()
        assert await settled(bench, first) == [COMPLETED]
        bench.cancel()
        second = bench.accept("two")
        assert await settled(bench, first, second) == [COMPLETED] * 2


@pytest.mark.item("A28", "L2")
async def test_a_prompt_that_arrives_while_a_cancelled_run_cleans_up_runs_after_it():
    held = JournalFault(method="end", wanted=lambda run: run.view.seq == 1)
    async with open_faulty(ScriptedTurns(default=[Sleep(1)]), held) as (bench, journal):
        first = await in_line(bench.accept("one"))
        bench.cancel()
        second = await in_line(bench.accept("two"))
        assert (first.state, second.state) == (RunState.ACTIVE, RunState.QUEUED)
        journal.heal()
        await first.wait()
        assert bench.workspace.session_busy(S), "the first removed more than itself"
        assert await settled(bench, first, second) == [CANCELLED, COMPLETED]


@pytest.mark.item("A29", "L2")
@pytest.mark.parametrize("ending", [COMPLETED, CANCELLED, ERRORED])
async def test_however_a_run_ends_the_queue_behind_it_runs_in_order(ending):
    gate = Gate()
    last = {ERRORED: [Fail(ValueError("boom"))]}.get(ending, [])
    turns = ScriptedTurns({"0": [Pause(gate), *last]})
    async with open_test_workspace(turns) as bench:
        runs = [await in_line(bench.accept(str(n), run_id=str(n))) for n in range(4)]
        if ending is CANCELLED:
            bench.workspace.cancel_run(runs[0].id)
        gate.open()
        assert await settled(bench, *runs) == [ending, COMPLETED, COMPLETED, COMPLETED]
        assert turns.started == ["0", "1", "2", "3"]
        assert [view.run_id for view in bench.recorder.endings] == ["0", "1", "2", "3"]


@pytest.mark.heavy
@pytest.mark.item("T8")
async def test_each_turn_has_a_task_of_its_own_and_none_grows_the_stack():
    depths, tasks = [], set()

    async def look(_run: Run) -> None:
        depths.append(len(stack()))
        tasks.add(trio.lowlevel.current_task())

    async with open_test_workspace(ScriptedTurns(default=[Sleep(1), Do(look)])) as bench:
        runs = [await in_line(bench.accept(str(n), run_id=str(n))) for n in range(20)]
        assert await settled(bench, *runs) == [COMPLETED] * 20
    assert len(tasks) == 20
    assert len(set(depths)) == 1


# ── A32, A33: closing ───────────────────────────────────────────────────────────────────────────


@pytest.mark.item("A32", "A33")
async def test_a_workspace_closes_in_order_runs_then_services_then_the_log():
    order, read = [], []

    async def serve() -> None:
        try:
            await trio.sleep_forever()
        finally:
            order.append(f"services, after {len(bench.transcript.endings)} endings were stored")

    async def read_all() -> None:
        async for batch in cursor:
            read.extend(e for e in batch.events if isinstance(e, RunChange) and e.terminal)
        order.append(f"log, after {len(read)} endings were read")

    async with trio.open_nursery() as nursery:
        async with open_test_workspace(ScriptedTurns(default=[Sleep(60)])) as bench:
            cursor = bench.events.cursor()
            nursery.start_soon(read_all)
            bench.workspace.services.start_soon(serve)
            runs = [await in_line(bench.accept("one")), bench.accept("two", session="b")]
            bench.workspace.close()
            with pytest.raises(WorkspaceClosing):
                bench.accept("too late")
        assert await settled(bench, *runs) == [CANCELLED] * 2
    assert order == [
        "services, after 2 endings were stored",
        "log, after 2 endings were read",
    ]


@pytest.mark.item("A32", "L5")
@pytest.mark.parametrize("how", ["close", "stop", "leave", "raise", "cancelled"])
@pytest.mark.parametrize("seed", range(5))
async def test_prompts_accepted_just_before_the_end_get_a_whole_cancelled_turn(how, seed):
    turns = ScriptedTurns()
    with trio.CancelScope() as around:
        try:
            async with open_test_workspace(turns) as bench:
                runs = [
                    bench.accept("one"),
                    bench.accept("two", run_id="2"),
                    bench.accept("3", "b"),
                ]
                if how == "close":
                    bench.workspace.close()
                elif how == "stop":
                    assert (await bench.workspace.stop()).unfinished == ()
                elif how == "raise":
                    raise ZeroDivisionError
                elif how == "cancelled":
                    around.cancel()
        except ZeroDivisionError:
            assert how == "raise"
    assert around.cancelled_caught == (how == "cancelled")
    assert await settled(bench, *runs) == [CANCELLED] * 3
    assert [len(bench.messages(session)) for session in ("s", "b")] == [4, 2]
    assert turns.started == []


@pytest.mark.item("A33", "B3", "T4")
@pytest.mark.parametrize("how", ["close", "cancelled"])
async def test_a_run_stopped_with_its_workspace_keeps_what_it_had_said(how):
    turns = ScriptedTurns({"one": [Say("so far"), Pause(Gate())]})
    with trio.CancelScope() as around:
        async with open_test_workspace(turns) as bench:
            run = await in_line(bench.accept("one", run_id="1"))
            if how == "close":
                bench.workspace.close()
            else:
                around.cancel()
                await trio.lowlevel.checkpoint()
    assert await settled(bench, run) == [CANCELLED]
    assert (run.outcome.text, run.outcome.message_id) == ("so far", "answer-run-1")
    assert run.outcome.error


@pytest.mark.item("A32", "L6")
async def test_a_turn_that_does_not_stop_is_named_in_the_report_and_still_ends(caplog):
    async def dig_in(_run: Run) -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep(60)

    turns = ScriptedTurns({"stubborn": [Do(dig_in)]}, default=[Sleep(60)])
    async with open_test_workspace(turns) as bench:
        stubborn = await in_line(bench.accept("stubborn", session="a"))
        queued = await in_line(bench.accept("behind it", session="a"))
        docile = await in_line(bench.accept("docile", session="b"))
        report = await bench.workspace.stop()
        assert [hit.run for hit in report.unfinished] == [stubborn]
        assert report.took == pytest.approx(15)
        assert f"did not end: {stubborn.id} (active)" in str(report)
        assert [record.message for record in caplog.records] == ["workspace.stop_incomplete"]
    assert trio.current_time() >= 60
    assert await settled(bench, stubborn, queued, docile) == [CANCELLED] * 3


@pytest.mark.item("T14")
async def test_a_turn_that_stops_its_own_workspace_does_not_wait_for_itself_for_ever():
    reports = []

    async def stop(_run: Run) -> None:
        reports.append(await bench.workspace.stop())

    async with open_test_workspace(ScriptedTurns({"stop": [Do(stop)]})) as bench:
        run = bench.accept("stop")
        assert await settled(bench, run) == [CANCELLED]
        assert [hit.run for hit in reports[0].unfinished] == [run]


@pytest.mark.item("A32")
async def test_closing_again_changes_nothing_and_gives_the_same_receipt():
    async with open_test_workspace(ScriptedTurns(default=[Sleep(60)])) as bench:
        run = await in_line(bench.accept("one"))
        receipt = bench.workspace.close()
        assert bench.workspace.close() is receipt
        assert (await bench.workspace.stop()).receipt is receipt
        assert await settled(bench, run) == [CANCELLED]


# ── A38 ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.item("A38")
@pytest.mark.parametrize("steps", range(0, 60, 3))
async def test_every_cancel_hits_exactly_the_runs_that_have_not_ended(steps):
    turns = ScriptedTurns(default=[Say("x")])
    async with open_test_workspace(turns) as bench:
        runs = [bench.accept(str(n), run_id=str(n)) for n in range(3)]
        for _ in range(steps):
            await trio.lowlevel.checkpoint()
        live = {run for run in runs if not run.ended}
        receipt = bench.cancel()
        assert {hit.run for hit in receipt.hits} == live
        await settled(bench, *runs)
        assert {run for run in runs if run.state is CANCELLED} <= live
