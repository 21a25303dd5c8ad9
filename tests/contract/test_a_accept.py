"""Contract A.2, A.3 and A34: what is accepted, who owns it from then on, and how it gets its turn.

Workspace lookup and the missing agent (A1.1, A1.2) and the status 202 (A3) belong to the server.
"""

from contextlib import asynccontextmanager
from inspect import iscoroutinefunction

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from crush_trio.errors import PromptEmpty, SessionMissing, SessionNotFound, WorkspaceClosing
from crush_trio.runtime import AcceptedRun, MemoryJournal, Run, Workspace
from crush_trio.testing import Gate
from crush_trio.testing.server.faults import FaultyJournal, JournalFault
from crush_trio.testing.server.turns import Do, Fail, Fold, Pause, ScriptedTurns, Sleep, prompt
from crush_trio.testing.server.workspace import Bench, check_promises, open_test_workspace
from crush_trio.wire.ids import SessionId
from crush_trio.wire.requests import Attachment
from crush_trio.wire.runs import RunState

S = SessionId("s")
COMPLETED, CANCELLED, ERRORED = RunState.COMPLETED, RunState.CANCELLED, RunState.ERRORED

IMAGE = Attachment(file_path="/a.png", file_name="a.png", mime_type="image/png", content=b"\x89")
NOTE = Attachment(file_path="/a.txt", file_name="a.txt", mime_type="text/plain", content=b"note")


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


def assert_untouched(bench: Bench) -> None:
    """Nothing was accepted: no run, no row, no message, no event."""
    assert bench.workspace.runs == ()
    assert bench.workspace._lanes == {}
    assert bench.transcript.rows == {}
    assert bench.messages() == []
    assert bench.recorder.events == []


# ── A1, A2: what is refused ─────────────────────────────────────────────────────────────────────


@pytest.mark.item("A1")
@pytest.mark.parametrize(
    ("submission", "error"),
    [
        (prompt(""), PromptEmpty),
        (prompt("", attachments=(IMAGE,)), PromptEmpty),
        (prompt("", session=""), PromptEmpty),
        (prompt("hello", session=""), SessionMissing),
    ],
    ids=["nothing", "image only", "neither prompt nor session", "no session"],
)
async def test_a_bad_submission_is_refused_before_anything_is_recorded(submission, error):
    async with open_test_workspace() as bench:
        with pytest.raises(error):
            bench.workspace.accept(submission)
        await wait_all_tasks_blocked()
        assert_untouched(bench)


@pytest.mark.item("A1")
async def test_a_text_attachment_alone_is_accepted_and_runs():
    async with open_test_workspace() as bench:
        run = bench.workspace.accept(prompt("", attachments=(IMAGE, NOTE)))
        assert await settled(bench, run) == [COMPLETED]


@pytest.mark.item("A2")
async def test_a_closing_workspace_accepts_nothing_and_records_nothing():
    async with open_test_workspace() as bench:
        bench.workspace.close()
        with pytest.raises(WorkspaceClosing):
            bench.accept("hello")
        await wait_all_tasks_blocked()
        assert_untouched(bench)


@pytest.mark.item("A2")
async def test_a_bad_submission_to_a_closing_workspace_is_told_what_is_wrong_with_it():
    async with open_test_workspace() as bench:
        bench.workspace.close()
        with pytest.raises(PromptEmpty):
            bench.accept("")


# ── A3 to A5: what acceptance promises ────────────────────────────────────────────────────────────


@pytest.mark.item("A3", "T2")
async def test_acceptance_waits_for_nothing_and_the_run_is_there_at_once():
    async with open_test_workspace() as bench:
        run = bench.accept("hello")
        assert run.state is RunState.ACCEPTED
        assert bench.workspace.runs == (run,)
        assert bench.transcript.rows == {run.id: RunState.ACCEPTED}, "handed over, in its order"
        assert bench.recorder.events == []
        assert await settled(bench, run) == [COMPLETED]


@pytest.mark.item("A3", "T13")
async def test_the_workspace_owns_the_run_whoever_submitted_it():
    owners = []

    async def note_owner(_run: Run) -> None:
        owners.append(trio.lowlevel.current_task().parent_nursery)

    async with open_test_workspace(ScriptedTurns({"hello": [Do(note_owner)]})) as bench:
        async with trio.open_nursery() as request:
            request.start_soon(bench.accept("hello").journaled)
        await wait_all_tasks_blocked()
        assert owners == [bench.workspace._runs]


@pytest.mark.item("A4")
@pytest.mark.parametrize("seed", range(10))
async def test_a_submitter_that_goes_away_takes_nothing_with_it(seed):
    async with open_test_workspace(ScriptedTurns({"hello": [Sleep(1)]})) as bench:

        async def submit(task_status: "trio.TaskStatus[AcceptedRun]") -> None:
            run = bench.accept("hello")
            task_status.started(run)
            await run.journaled()
            await trio.sleep_forever()

        async with trio.open_nursery() as requests:
            run = await requests.start(submit)
            for _ in range(seed):
                await trio.lowlevel.checkpoint()
            requests.cancel_scope.cancel()
        assert await settled(bench, run) == [COMPLETED]
        assert bench.recorder.errors == []


@pytest.mark.item("A5", "B7")
async def test_a_prompt_for_an_unknown_session_is_accepted_and_fails_later():
    turns = ScriptedTurns({"hello": [Fail(SessionNotFound("nowhere"))]})
    async with open_test_workspace(turns) as bench:
        run = bench.accept("hello", session="nowhere", run_id="mine")
        await run.journaled()
        assert await settled(bench, run) == [ERRORED]
        (error,) = bench.recorder.errors
        assert (error.session_id, error.run_id) == ("nowhere", "mine")
        assert "session not found" in bench.recorder.endings[0].error


# ── A6 to A8: before the turn ─────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def open_preparing(gate: Gate, error: Exception | None = None):
    """Open a workspace whose runs stand at *gate* before they begin, as in pre-run steps."""
    scripted = ScriptedTurns()

    async def turn(run: Run):
        await gate.wait()
        if error is not None:
            raise error
        return await scripted(run)

    async with open_test_workspace(turn) as bench:
        yield bench, scripted


@pytest.mark.item("A6", "T1")
async def test_a_run_that_fails_before_it_begins_is_released_and_hurts_nobody():
    gate = Gate()
    async with open_preparing(gate, LookupError("no such provider")) as (bench, turns):
        runs = [bench.accept("one", run_id="1"), bench.accept("two", session="other")]
        gate.open()
        assert await settled(bench, *runs) == [ERRORED, ERRORED]
        assert turns.started == []
        after = bench.accept("three")
        assert await settled(bench, *runs, after) == [ERRORED] * 3


@pytest.mark.item("A7", "A36")
async def test_when_the_cancelled_prompts_are_gone_the_next_one_runs():
    async with open_test_workspace() as bench:
        covered = [bench.accept("one"), bench.accept("two", run_id="2")]
        bench.cancel()
        assert await settled(bench, *covered) == [CANCELLED] * 2
        after = bench.accept("three")
        assert await settled(bench, *covered, after) == [CANCELLED, CANCELLED, COMPLETED]


@pytest.mark.item("A8", "L9")
async def test_a_cancel_during_the_pre_run_steps_is_honoured_at_once():
    gate = Gate()
    async with open_preparing(gate, LookupError("no such provider")) as (bench, turns):
        run = bench.accept("hello", run_id="mine")
        await gate.reached()
        bench.cancel()
        gate.open()
        assert await settled(bench, run) == [CANCELLED]
        assert [message.id for message in bench.messages()] == ["prompt-run-1", "cancelled-run-1"]
        assert bench.recorder.errors == []
        assert turns.started == []


@pytest.mark.item("A8")
async def test_the_callers_run_id_reaches_the_turn():
    seen = []

    async def look(run: Run) -> None:
        seen.append((run.submission.run_id, run.session_id, run.prompt))

    async with open_test_workspace(ScriptedTurns(default=[Do(look)])) as bench:
        run = bench.accept("hello", run_id="mine")
        assert await settled(bench, run) == [COMPLETED]
        assert seen == [("mine", "s", "hello")]


# ── A9 to A12: getting a turn ─────────────────────────────────────────────────────────────────────


@pytest.mark.item("A9")
async def test_a_cancelled_follow_up_is_not_queued_behind_the_active_run():
    gate = Gate()
    turns = ScriptedTurns({"one": [Pause(gate)]})
    async with open_test_workspace(turns) as bench:
        active = await in_line(bench.accept("one"))
        follow_up = bench.accept("two", run_id="2")
        bench.workspace.cancel_run(follow_up.id)
        assert (await follow_up.wait()).state is CANCELLED
        assert bench.recorder.states("2") == [RunState.ACCEPTED, CANCELLED], "never queued"
        assert active.state is RunState.ACTIVE
        gate.open()
        assert await settled(bench, active, follow_up) == [COMPLETED, CANCELLED]
        assert turns.started == ["one"]


@pytest.mark.item("A9", "B12")
async def test_a_follow_up_of_a_busy_session_is_queued_and_keeps_everything_it_came_with():
    gate = Gate()
    turns = ScriptedTurns({"one": [Pause(gate)]})
    async with open_test_workspace(turns) as bench:
        active = await in_line(bench.accept("one"))
        queued = await in_line(bench.accept("two", run_id="2"))
        assert (queued.state, queued.outcome) == (RunState.QUEUED, None)
        assert bench.workspace.queue(S) == (queued,)
        assert (queued.submission.prompt, queued.submission.run_id) == ("two", "2")
        gate.open()
        assert await settled(bench, active, queued) == [COMPLETED] * 2
        assert bench.recorder.states("2") == [
            *(RunState.ACCEPTED, RunState.QUEUED, RunState.ACTIVE, COMPLETED)
        ]


@pytest.mark.item("A9")
async def test_a_prompt_for_an_idle_session_is_active_without_being_queued():
    async with open_test_workspace() as bench:
        run = bench.accept("one")
        assert await settled(bench, run) == [COMPLETED]
        assert bench.recorder.states(run.id) == [RunState.ACCEPTED, RunState.ACTIVE, COMPLETED]


@pytest.mark.item("A10", "A12")
@pytest.mark.parametrize("seed", range(10))
async def test_of_many_concurrent_prompts_one_runs_and_the_others_wait_or_are_folded(seed):
    turns = ScriptedTurns(default=[Sleep(1), Fold(), Sleep(1)])
    async with open_test_workspace(turns) as bench:
        runs = [bench.accept(f"p{n}", run_id=str(n) if n % 3 == 0 else None) for n in range(8)]
        await trio.sleep(0.5)
        assert len(turns.started) == 1
        assert len(bench.workspace.queue(S)) == 7
        states = await settled(bench, *runs)
        assert turns.overlaps == []
        assert {run.submission.run_id for run in runs if run.state is COMPLETED} >= {"0", "3", "6"}
        assert states.count(RunState.FOLDED) == sum(map(len, turns.folded.values()))
        assert set(states) == {COMPLETED, RunState.FOLDED}


@pytest.mark.item("A11")
async def test_a_session_is_busy_from_the_active_run_to_its_ending_and_only_then():
    gate = Gate()
    async with open_test_workspace(ScriptedTurns({"one": [Pause(gate)]})) as bench:
        workspace = bench.workspace
        run = bench.accept("one")
        assert not workspace.session_busy(S), "accepted is not busy"
        await gate.reached()
        assert workspace.session_busy(S)
        assert workspace.busy
        assert not workspace.session_busy(SessionId("other"))
        gate.open()
        assert await settled(bench, run) == [COMPLETED]
        assert not workspace.session_busy(S)
        assert not workspace.busy


@pytest.mark.item("A12")
async def test_sessions_do_not_wait_for_each_other():
    gate = Gate()
    async with open_test_workspace(ScriptedTurns({"one": [Pause(gate)]})) as bench:
        first = await in_line(bench.accept("one", session="a"))
        second = bench.accept("two", session="b")
        assert (await second.wait()).state is COMPLETED
        assert not first.ended
        gate.open()
        assert await settled(bench, first, second) == [COMPLETED] * 2


@pytest.mark.item("A34")
async def test_the_queue_lists_the_waiting_prompts_in_order():
    gate = Gate()
    async with open_test_workspace(ScriptedTurns({"one": [Pause(gate)]})) as bench:
        assert bench.workspace.queue(S) == ()
        runs = [await in_line(bench.accept(text)) for text in ("one", "two", "three")]
        listed = [run.submission.prompt for run in bench.workspace.queue(S)]
        assert listed == ["two", "three"]
        assert bench.workspace.queue(SessionId("other")) == ()
        gate.open()
        await settled(bench, *runs)
        assert bench.workspace.queue(S) == ()


# ── A39, A40 ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.item("A39", "T6")
async def test_accepting_cancelling_and_clearing_do_no_io():
    deciding = ("accept", "cancel", "cancel_run", "cancel_all", "clear_queue", "close")
    assert not any(iscoroutinefunction(getattr(Workspace, name)) for name in deciding)
    journal = FaultyJournal(
        MemoryJournal(), [JournalFault(method=m) for m in ("accept", "withdraw", "end")]
    )
    async with open_test_workspace(journal=journal) as bench:
        run = bench.accept("one")
        bench.workspace.clear_queue(S)
        bench.workspace.cancel_run(run.id)
        bench.workspace.cancel(S)
        bench.workspace.close()
        assert [entry.method for entry in journal.open] == ["accept", "withdraw"]
        assert not run.ended, "handed over, and not waited for"
        journal.heal()


@pytest.mark.item("A40")
async def test_acceptance_is_numbered_upwards_across_sessions():
    async with open_test_workspace() as bench:
        runs = [bench.accept("p", session=session) for session in ("a", "b", "a", "c", "b")]
        with pytest.raises(PromptEmpty):
            bench.accept("")
        runs.append(bench.accept("p", session="a"))
        numbers = [run.view.seq for run in runs]
        assert numbers == sorted(set(numbers))
        await settled(bench, *runs)
