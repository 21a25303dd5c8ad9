"""A workspace as its owner sees it: which run an id names, what is going on, and how it closes."""

from contextlib import asynccontextmanager, suppress
from itertools import pairwise

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from crush_trio.errors import RunIdTaken, RunNotFound, WorkspaceClosing
from crush_trio.events import RunChange, open_event_log
from crush_trio.runtime import Limits, MemoryJournal, Outcome, open_workspace
from crush_trio.runtime.accepted import REMEMBERED
from crush_trio.testing import Gate
from crush_trio.testing.server.faults import FaultyJournal, JournalFault
from crush_trio.testing.server.turns import Do, Pause, Say, ScriptedTurns, Sleep, prompt
from crush_trio.testing.server.workspace import check_promises, open_test_workspace
from crush_trio.wire.ids import RunId, SessionId
from crush_trio.wire.requests import Attachment
from crush_trio.wire.runs import RunKind, RunState

S = SessionId("s")
CANCELLED, COMPLETED = RunState.CANCELLED, RunState.COMPLETED
NOTE = Attachment(file_path="/n.txt", file_name="n.txt", mime_type="text/plain", content=b"hi")


async def in_line(run):
    """Let *run* take its place before anything else happens."""
    await wait_all_tasks_blocked()
    return run


async def dig_in(_run):
    """Take a minute and let nobody interfere."""
    with trio.CancelScope(shield=True):
        await trio.sleep(60)


@asynccontextmanager
async def three_runs():
    """Yield a bench and an active, a queued and an accepted run."""
    turns = ScriptedTurns({"one": [Say("so far"), Pause(Gate())]})
    async with open_test_workspace(turns) as bench:
        runs = [await in_line(bench.accept("one")), await in_line(bench.accept("two"))]
        runs.append(bench.accept("three", "other"))
        yield bench, runs


# ── Run ids ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize(
    "other",
    [
        prompt("other prompt", run_id="mine"),
        prompt("hello", "other session", run_id="mine"),
        prompt("hello", run_id="mine", kind=RunKind.SUMMARIZE),
    ],
    ids=["prompt", "session", "kind"],
)
async def test_a_run_id_that_names_another_run_is_taken(other, ended):
    async with open_test_workspace() as bench:
        run = bench.accept("hello", run_id="mine")
        if ended:
            await run.wait()
        with pytest.raises(RunIdTaken, match="mine"):
            bench.workspace.accept(other)
        await run.wait()
        assert bench.find("mine") is run
        assert bench.workspace._lanes == {}, "nothing was accepted, so nothing is there"


async def test_a_run_id_that_comes_with_other_attachments_is_taken():
    async with open_test_workspace() as bench:
        bench.accept("hello", run_id="mine")
        with pytest.raises(RunIdTaken):
            bench.workspace.accept(prompt("hello", run_id="mine", attachments=(NOTE,)))


async def test_a_submission_that_makes_no_run_leaves_no_lane_behind():
    async with open_test_workspace() as bench:
        with suppress(TypeError):
            await bench.workspace.accept(prompt("hello", attachments=[NOTE])).wait()
        assert bench.workspace._lanes == {}


async def test_the_same_submission_names_the_same_run_also_when_its_attachments_are_gone():
    async with open_test_workspace() as bench:
        submission = prompt("hello", run_id="mine", attachments=(NOTE,))
        run = bench.workspace.accept(submission)
        assert bench.workspace.accept(submission) is run
        await run.wait()
        assert bench.workspace.accept(submission) is run


async def test_a_run_is_found_by_either_id_as_long_as_it_lives_and_after():
    gate = Gate()
    async with open_test_workspace(ScriptedTurns({"hello": [Pause(gate)]})) as bench:
        run = bench.accept("hello", run_id="mine")
        assert bench.find("mine") is bench.find(run.id) is run
        await gate.reached()
        gate.open()
        await run.wait()
        assert bench.find("mine") is bench.find(run.id) is run


async def test_an_id_that_names_no_run_is_not_found():
    journal = FaultyJournal(MemoryJournal(), (JournalFault(method="accept", error=OSError()),))
    async with open_test_workspace(journal=journal) as bench:
        refused = bench.accept("hello", run_id="refused")
        await refused.wait_ended()
        for name in ("nobody", "refused", refused.id):
            with pytest.raises(RunNotFound, match=name):
                bench.find(name)
            with pytest.raises(RunNotFound):
                bench.workspace.cancel_run(RunId(name))


async def test_ended_runs_are_remembered_up_to_a_bound_oldest_forgotten_first():
    async with open_test_workspace(ScriptedTurns(default=())) as bench:
        runs = []
        for n in range(REMEMBERED + 1):
            runs.append(bench.accept(str(n), run_id=f"mine-{n}"))
            await runs[-1].wait()
        for name in ("mine-0", runs[0].id):
            with pytest.raises(RunNotFound):
                bench.find(name)
        assert [bench.find(f"mine-{n}") for n in range(1, len(runs))] == runs[1:]
        assert [bench.find(run.id) for run in runs[1:]] == runs[1:]
        again = bench.accept("0", run_id="mine-0")
        assert again is not runs[0], "a forgotten id names a new run"


@pytest.mark.heavy
async def test_a_live_run_is_never_forgotten_however_many_end():
    gate = Gate()
    async with open_test_workspace(ScriptedTurns({"long": [Pause(gate)]}, default=())) as bench:
        run = bench.accept("long", "other", run_id="long")
        for n in range(2 * REMEMBERED + 1):
            await bench.accept(str(n)).wait()
        assert bench.find("long") is bench.accept("long", "other", run_id="long") is run


async def test_what_was_sent_is_there_for_the_turn_and_not_kept_after_it():
    seen = []

    async def turn(run):
        seen.append((run.prompt, run.submission.attachments))

    async with open_test_workspace(turn) as bench:
        run = bench.workspace.accept(prompt("hello", run_id="mine", attachments=(NOTE,)))
        await run.wait()
        assert seen == [("hello", (NOTE,))]
        kept = bench.find("mine").submission
        assert (kept.prompt, kept.attachments, kept.run_id) == ("", (), "mine")


# ── Stopping ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["mine", "run-1"])
async def test_one_run_is_cancelled_by_either_id_and_hit_only_while_it_lives(name):
    async with open_test_workspace(ScriptedTurns({"one": [Pause(Gate())]})) as bench:
        run = await in_line(bench.accept("one", run_id="mine"))
        behind = await in_line(bench.accept("two", run_id="behind"))
        receipt = bench.workspace.cancel_run(RunId(name))
        assert [hit.run for hit in receipt.hits] == [run]
        assert (await run.wait()).state is CANCELLED
        assert (await behind.wait()).state is COMPLETED
        assert bench.workspace.cancel_run(RunId(name)).hits == ()
        check_promises(bench, [run, behind])


async def test_stopping_what_is_idle_hits_nothing():
    async with open_test_workspace() as bench:
        for receipt in (
            bench.workspace.cancel(S),
            bench.workspace.clear_queue(S),
            bench.workspace.cancel_all(),
        ):
            assert receipt.hits == ()
        assert (await bench.accept("hello").wait()).state is COMPLETED


# ── Looking ────────────────────────────────────────────────────────────────────────────────────


async def test_the_views_of_an_idle_workspace_are_empty():
    async with open_test_workspace() as bench:
        await bench.accept("hello").wait()
        workspace = bench.workspace
        assert (workspace.runs, workspace.queue(S), workspace.busy) == ((), (), False)
        assert not workspace.session_busy(S)
        assert workspace._lanes == {}, "the lane of an idle session is dropped"


async def test_the_views_show_every_run_session_by_session():
    async with three_runs() as (bench, (active, queued, accepted)):
        workspace, other = bench.workspace, SessionId("other")
        assert workspace.runs == (active, queued, accepted)
        assert (workspace.queue(S), workspace.queue(other)) == ((queued,), ())
        assert (workspace.session_busy(S), workspace.session_busy(other)) == (True, False)
        assert workspace.busy
        assert (await accepted.wait()).state is COMPLETED
        assert workspace.runs == (active, queued)


async def test_the_view_of_a_run_carries_the_times_of_its_life():
    gate = Gate()
    turns = ScriptedTurns({"one": [Pause(gate)], "two": [Sleep(30)]})
    async with open_test_workspace(turns) as bench:
        await in_line(bench.accept("one"))
        run = bench.accept("two", run_id="mine")
        await trio.sleep(10)
        gate.open()
        await run.wait()
        times = run.view.accepted_at, run.view.started_at, run.view.ended_at
        assert [later - earlier for earlier, later in pairwise(times)] == [10, 30]


# ── Closing ────────────────────────────────────────────────────────────────────────────────────


async def test_a_closed_workspace_refuses_also_a_run_id_it_knows():
    async with open_test_workspace() as bench:
        await bench.accept("hello", run_id="mine").wait()
        assert bench.workspace.close().hits == ()
        for run_id in ("mine", "new"):
            with pytest.raises(WorkspaceClosing):
                bench.accept("hello", run_id=run_id)


async def test_a_workspace_that_is_to_hurry_does_not_wait_for_a_dead_store():
    journal = FaultyJournal(MemoryJournal(), (JournalFault(method="end"),))
    async with open_test_workspace(ScriptedTurns(), journal=journal) as bench:
        run = bench.accept("hello")
        await trio.sleep(1)
        assert run.state is RunState.ENDING
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bench.workspace.stop)
            await trio.sleep(3)
            bench.workspace.hurry()
        assert trio.current_time() - began < 4
        assert run.outcome == Outcome.interrupted()
        assert bench.recorder.endings_per_run[run.id] == 1


async def test_everybody_who_stops_a_workspace_gets_the_same_answer():
    reports = []

    async def stop(bench):
        reports.append(await bench.workspace.stop())

    async with three_runs() as (bench, runs):
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(stop, bench)
        await stop(bench)
        assert {report.receipt for report in reports} == {reports[0].receipt}
        assert [hit.run for hit in reports[0].receipt.hits] == runs
        assert {report.unfinished for report in reports} == {()}
        check_promises(bench, runs)


async def test_stopping_is_bounded_and_cannot_be_hurried_by_a_cancel():
    turns = ScriptedTurns({"stubborn": [Do(dig_in)]})
    async with open_test_workspace(turns, limits=Limits(join=7)) as bench:
        run = await in_line(bench.accept("stubborn"))
        with trio.CancelScope() as scope:
            scope.cancel()
            report = await bench.workspace.stop()
        assert report.took == pytest.approx(7)
        assert [hit.run for hit in report.unfinished] == [run]


async def test_leaving_the_block_names_a_turn_that_does_not_stop_and_waits_for_it(caplog):
    async with open_test_workspace(ScriptedTurns({"stubborn": [Do(dig_in)]})) as bench:
        run = await in_line(bench.accept("stubborn"))
    assert trio.current_time() >= 60
    check_promises(bench, [run])
    (record,) = caplog.records
    assert (record.message, record.levelname) == ("workspace.stop_incomplete", "ERROR")
    assert record.report == "0 runs stopped in 15.00 s; did not end: run-1 (active)"


@pytest.mark.parametrize(
    "error",
    [ValueError("mine"), KeyboardInterrupt(), ExceptionGroup("mine", [ValueError("a")])],
    ids=["exception", "interrupt", "group"],
)
async def test_an_exception_of_the_body_leaves_as_itself_after_every_run_has_ended(error):
    kept = []

    async def work():
        async with three_runs() as kept[:]:
            raise error

    with pytest.raises(type(error)) as caught:
        await work()
    if isinstance(error, ExceptionGroup):  # Trio rebuilds a group; what is in it stays
        assert caught.value.exceptions == error.exceptions
    else:
        assert caught.value is error
    bench, runs = kept
    check_promises(bench, runs)
    assert {run.outcome.state for run in runs} == {CANCELLED}


@pytest.mark.parametrize("seed", range(5))
async def test_a_cancel_around_the_workspace_ends_its_runs_when_the_body_gives_way_to_it(seed):
    """A body that shields itself still owns its runs; they are stopped as it leaves, in order."""
    with trio.CancelScope() as around:
        async with three_runs() as (bench, runs):
            around.cancel()
            with trio.CancelScope(shield=True):
                assert (await runs[2].wait()).state is COMPLETED
                assert (await bench.accept("late", "another").wait()).state is COMPLETED
                assert [run.state for run in runs[:2]] == [RunState.ACTIVE, RunState.QUEUED]
    assert around.cancelled_caught
    check_promises(bench, runs)
    assert [run.outcome.state for run in runs] == [CANCELLED, CANCELLED, COMPLETED]
    assert runs[0].outcome.text == "so far"
    assert bench.workspace._lanes == {}


@pytest.mark.parametrize("seed", range(5))
async def test_a_service_that_crashes_ends_the_workspace_and_its_error_leaves_as_itself(seed):
    kept = []

    async def crash():
        await trio.lowlevel.checkpoint()
        raise ZeroDivisionError

    async def work():
        async with three_runs() as kept[:]:
            kept[0].workspace.services.start_soon(crash)
            await trio.sleep_forever()

    with pytest.raises(ZeroDivisionError):
        await work()
    bench, runs = kept
    check_promises(bench, runs)
    assert {run.outcome.state for run in runs[:2]} == {CANCELLED}
    with pytest.raises(WorkspaceClosing):
        bench.accept("too late")


# ── Opening ────────────────────────────────────────────────────────────────────────────────────


async def test_a_workspace_needs_nothing_but_a_turn():
    async with open_workspace(ScriptedTurns()) as workspace:
        events = workspace.events.cursor()
        runs = [workspace.accept(prompt("hello")) for _ in range(2)]
        assert [(await run.wait()).text for run in runs] == ["done"] * 2
        assert runs[0].id != runs[1].id
        assert len(workspace.events.boot) == 12
        assert workspace.events.boot.isalnum()
        assert not workspace.events.closed
    assert workspace.events.closed
    changes = [event for event in events.take().events if isinstance(event, RunChange)]
    assert {change.run.id for change in changes if change.terminal} == {run.id for run in runs}


async def test_a_log_that_was_given_is_used_and_left_open():
    async with open_event_log("mine") as events:
        reader = events.cursor()
        for _ in range(2):
            async with open_workspace(ScriptedTurns(), events=events) as workspace:
                assert workspace.events is events
                run = workspace.accept(prompt("hello"))
                await run.wait()
            assert not events.closed
            assert reader.take().events[-1] == RunChange(run=run.view)


async def test_a_journal_that_was_given_is_used_also_if_it_counts_as_empty():
    class Counted(MemoryJournal):
        def __len__(self):
            return len(self.accepted)

    journal = Counted()
    async with open_workspace(ScriptedTurns(), journal=journal) as workspace:
        run = workspace.accept(prompt("hello"))
        await run.wait()
    assert journal.accepted == [run.id]
