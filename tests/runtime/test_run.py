"""A run's task from acceptance to ending, when storage and turns do not do as they should."""

from contextlib import asynccontextmanager, suppress

import pytest
import trio
from attrs import define, field
from attrs.exceptions import FrozenInstanceError
from trio.testing import wait_all_tasks_blocked

from crush_trio.errors import AcceptanceNotStored, CancelSwallowed
from crush_trio.events.facts import Fact, RunChange, agent_error
from crush_trio.runtime import (
    Completion,
    Limits,
    MemoryJournal,
    Outcome,
    Submission,
    open_workspace,
)
from crush_trio.runtime.run import describe
from crush_trio.testing import Gate
from crush_trio.testing.faults import FaultyJournal, JournalFault, Moment
from crush_trio.testing.harness import open_test_workspace
from crush_trio.testing.promises import check_promises
from crush_trio.testing.scripted import Fold, Pause, ScriptedTurns, prompt
from crush_trio.wire.events import AgentEvent, AgentEventType, EventType, PayloadType
from crush_trio.wire.ids import RunId, SessionId
from crush_trio.wire.native import RunKind, RunState
from crush_trio.wire.requests import Attachment

CANCELLED, COMPLETED = RunState.CANCELLED, RunState.COMPLETED
ERRORED, FOLDED = RunState.ERRORED, RunState.FOLDED
DISK_FULL = OSError("disk full")
NOTE = Attachment(file_path="/n.txt", file_name="n.txt", mime_type="text/plain", content=b"hi")


@define(eq=False)
class CountingJournal(FaultyJournal):
    """Keeps book of the calls that reach the journal, spoiled or not."""

    calls: list[tuple[str, RunId]] = field(factory=list, init=False)

    async def accept(self, run):
        self.calls.append(("accept", run.id))
        await super().accept(run)

    def retract(self, run):
        self.calls.append(("retract", run.id))
        super().retract(run)

    async def end(self, run, outcome):
        self.calls.append(("end", run.id))
        await super().end(run, outcome)


@asynccontextmanager
async def open_faulty(turn, *faults, limits=None):
    """Open a workspace whose journal has *faults* and otherwise writes the bench's transcript."""
    journal = CountingJournal(MemoryJournal(), faults)
    async with open_test_workspace(turn, journal=journal, limits=limits) as bench:
        journal.inner = bench.transcript
        yield bench, journal


def fault(method, text, **more):
    """A fault that befalls the run with the prompt *text* only."""
    return JournalFault(method=method, wanted=lambda run: run.submission.prompt == text, **more)


def finished(session):
    """The notice that a turn is over; any other would do."""
    entity = AgentEvent(type=AgentEventType.AGENT_FINISHED, session_id=SessionId(session))
    return Fact(payload_type=PayloadType.AGENT_EVENT, change=EventType.CREATED, entity=entity)


async def in_line(run):
    """Let *run* take its place before anything else happens."""
    await wait_all_tasks_blocked()
    return run


# ── Acceptance ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("moment", list(Moment))
@pytest.mark.parametrize("error", [DISK_FULL, None], ids=["fails", "hangs"])
async def test_a_refused_acceptance_is_retracted_once_and_nothing_else_happens(error, moment):
    spoiled = fault("accept", "bad", error=error, moment=moment)
    async with open_faulty(None, spoiled, limits=Limits(accept=2)) as (bench, journal):
        began = trio.current_time()
        bad = bench.accept("bad", run_id="mine")
        with pytest.raises(AcceptanceNotStored):
            await bad.journaled()
        assert trio.current_time() - began == (0 if error else 2)
        assert journal.calls == [("accept", bad.id), ("retract", bad.id)]
        assert bench.recorder.events == []
        following = bench.accept("good", run_id="mine")
        assert (await following.wait()).state is COMPLETED
        check_promises(bench, [following])


async def test_a_slow_acceptance_holds_up_its_own_run_only():
    async with open_faulty(None, fault("accept", "bad")) as (bench, _):
        began = trio.current_time()
        bad = bench.accept("bad")
        good = bench.accept("good")
        assert (await good.wait()).state is COMPLETED
        assert trio.current_time() == began
        await bad.wait_ended()
        check_promises(bench, [good])


async def test_a_refused_run_leaves_the_active_run_and_the_queue_of_its_session_alone():
    gate = Gate()
    turns = ScriptedTurns({"one": [Pause(gate)]})
    async with open_faulty(turns, fault("accept", "bad", error=DISK_FULL)) as (bench, _):
        runs = [await in_line(bench.accept(text, run_id=text)) for text in ("one", "two")]
        await bench.accept("bad").wait_ended()
        assert [run.state for run in runs] == [RunState.ACTIVE, RunState.QUEUED]
        gate.open()
        assert [(await run.wait()).state for run in runs] == [COMPLETED] * 2
        check_promises(bench, runs)


# ── The prompt ─────────────────────────────────────────────────────────────────────────────────


async def test_a_turn_sees_what_was_submitted():
    seen = []

    async def turn(run):
        seen.append((run.id, run.session_id, run.prompt, run.kind, run.submission))

    async with open_test_workspace(turn) as bench:
        submission = prompt("hi", run_id="m", attachments=(NOTE,), kind=RunKind.SUMMARIZE)
        await bench.workspace.accept(submission).wait()
    assert seen == [("run-1", "s", "hi", RunKind.SUMMARIZE, submission)]


async def test_recording_the_prompt_again_does_nothing_but_wait_a_moment():
    async def turn(run):
        for _ in range(3):
            with trio.testing.assert_checkpoints():
                await run.record_prompt()

    async with open_test_workspace(turn) as bench:
        run = bench.accept("hi")
        await run.wait()
        check_promises(bench, [run])


async def test_two_tasks_of_one_turn_record_the_prompt_once():
    async def turn(run):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run.record_prompt)
            nursery.start_soon(run.record_prompt)

    async with open_test_workspace(turn) as bench:
        run = bench.accept("hi")
        await run.wait()
        check_promises(bench, [run])


async def test_a_prompt_that_takes_too_long_to_record_fails_its_run_and_is_stored_with_the_end():
    limits = Limits(record=2)
    async with open_faulty(None, fault("record_prompt", "bad"), limits=limits) as (bench, _):
        began = trio.current_time()
        bad = await in_line(bench.accept("bad"))
        behind = bench.accept("behind", run_id="behind")
        assert (await bad.wait()).state is ERRORED
        assert trio.current_time() - began == pytest.approx(2)
        assert (await behind.wait()).state is COMPLETED
        check_promises(bench, [bad, behind])


# ── Folding ────────────────────────────────────────────────────────────────────────────────────


async def test_a_prompt_that_hangs_while_it_is_folded_is_left_out_after_a_while():
    gate = Gate()
    turns = ScriptedTurns({"host": [Pause(gate), Fold()]})
    limits = Limits(record=2)
    async with open_faulty(turns, fault("record_prompt", "bad"), limits=limits) as (bench, _):
        host, bad, good = [await in_line(bench.accept(text)) for text in ("host", "bad", "good")]
        began = trio.current_time()
        gate.open()
        assert (await host.wait()).state is COMPLETED
        assert trio.current_time() - began == pytest.approx(2)
        assert turns.folded == {host.id: ["good"]}
        assert [(await run.wait()).state for run in (bad, good)] == [ERRORED, FOLDED]
        check_promises(bench, [host, bad, good])


async def test_a_run_cancelled_while_it_folds_does_not_lose_the_prompt_it_took():
    gate, writing = Gate(), Gate()

    class Slow(JournalFault):
        async def strike(self):
            await writing.wait()

    slow = Slow(method="record_prompt", wanted=lambda run: run.submission.prompt == "guest")
    turns = ScriptedTurns({"host": [Pause(gate), Fold()]})
    async with open_faulty(turns, slow) as (bench, _):
        host, guest = [await in_line(bench.accept(text)) for text in ("host", "guest")]
        gate.open()
        await writing.reached()
        bench.workspace.cancel_run(host.id)
        assert (await host.wait()).state is CANCELLED
        assert not guest.ended
        writing.open()
        assert await guest.wait() == Outcome.folded(host.id)
        check_promises(bench, [host, guest])


async def test_a_folded_prompt_is_taken_in_whole_even_if_its_run_has_ended_by_then():
    class Prompt(MemoryJournal):
        async def end(self, run, outcome):
            self.endings[run.id] = outcome  # at once: the run is over before anybody else moves

    taken, gate = [], Gate()

    async def turn(run):
        await gate.wait()
        taken.extend(await run.fold())

    async with open_test_workspace(turn, journal=Prompt()) as bench:
        host = await in_line(bench.accept("host"))
        guest = bench.workspace.accept(prompt("guest", attachments=(NOTE,)))
        await in_line(guest)
        gate.open()
        await host.wait()
        assert await guest.wait() == Outcome.folded(host.id)
    assert [(each.prompt, each.attachments) for each in taken] == [("guest", (NOTE,))]


async def test_a_run_that_is_over_takes_no_prompt_from_the_one_that_is_active():
    kept, gate = [], Gate()

    async def turn(run):
        kept.append(run)
        await trio.sleep(1)
        if run.prompt == "two":
            await gate.wait()

    async with open_test_workspace(turn) as bench:
        runs = [await in_line(bench.accept(text, run_id=text)) for text in ("one", "two")]
        await gate.reached()
        waiting = await in_line(bench.accept("three"))
        with suppress(AssertionError):
            await kept[0].fold()
        assert waiting.state is RunState.QUEUED
        gate.open()
        assert [(await run.wait()).state for run in (*runs, waiting)] == [COMPLETED] * 3


# ── The ending ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("moment", list(Moment))
@pytest.mark.parametrize("error", [DISK_FULL, None], ids=["fails", "hangs"])
async def test_an_ending_that_is_not_stored_is_never_announced_as_completed(error, moment, caplog):
    notice = finished("s")

    async def turn(run):
        await run.record_prompt()
        return Completion(text="the answer", notices=(notice,))

    spoiled = fault("end", "bad", error=error, moment=moment)
    async with open_faulty(turn, spoiled, limits=Limits(ending=2)) as (bench, journal):
        began = trio.current_time()
        bad = await in_line(bench.accept("bad", run_id="bad"))
        good = bench.accept("good", run_id="good")
        outcome = await bad.wait()
        assert trio.current_time() - began == (0 if error else 2)
        assert (outcome.state, outcome.text) == (ERRORED, "the answer")
        assert outcome.error.startswith("the end of the run could not be stored: ")
        assert (await good.wait()).state is COMPLETED
        assert bench.recorder.endings_per_run == {bad.id: 1, good.id: 1}
        assert [error.run_id for error in bench.recorder.errors] == ["bad"]
        assert bench.recorder.events.count(notice) == 1, "only the run that completed gives notice"
        assert journal.calls.count(("end", bad.id)) == 1
    assert [record.message for record in caplog.records] == ["run.ending_not_stored"]


async def test_an_ending_whose_write_fails_while_it_is_given_up_concerns_its_own_run_only():
    """A journal with tasks inside raises a group when it is cancelled, and not a lone error."""

    class Splitting(MemoryJournal):
        async def end(self, run, outcome):
            if run.submission.prompt == "bad":
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self.flush)
                    await trio.sleep_forever()
            await super().end(run, outcome)

        async def flush(self):
            try:
                await trio.sleep_forever()
            finally:
                raise OSError("gone")

    gate = Gate()
    turns = ScriptedTurns({"sibling": [Pause(gate)]})
    async with open_test_workspace(turns, journal=Splitting()) as bench:
        bad, sibling = bench.accept("bad", "a"), bench.accept("sibling", "b")
        assert (await bad.wait()).state is ERRORED
        assert sibling.state is RunState.ACTIVE
        gate.open()
        assert (await sibling.wait()).state is COMPLETED
        assert bench.recorder.endings_per_run == {bad.id: 1, sibling.id: 1}


@pytest.mark.item("B19", "D28")
async def test_everything_that_goes_with_an_ending_comes_right_before_it():
    notices = finished("one"), finished("another")

    async def turn(run):
        await run.record_prompt()
        if run.prompt == "bad":
            raise ValueError("boom")
        return Completion(text="done", notices=notices)

    async with open_test_workspace(turn) as bench:
        for text in ("good", "bad"):
            await bench.accept(text, run_id=text).wait()
        last = bench.recorder.events[-2:]
        assert last == [
            agent_error(SessionId("s"), RunId("bad"), "boom"),
            RunChange(run=bench.find("bad").view),
        ]
        ending = bench.recorder.events.index(RunChange(run=bench.find("good").view))
        assert tuple(bench.recorder.events[ending - 2 : ending]) == notices


@pytest.mark.item("B3", "B10")
async def test_no_ending_but_a_failure_brings_an_agent_error():
    gate = Gate()
    turns = ScriptedTurns({"host": [Pause(gate), Fold()], "stopped": [Pause(Gate())]})
    async with open_faulty(turns, fault("end", "stopped", error=DISK_FULL)) as (bench, _):
        host, guest = [await in_line(bench.accept(text, "a")) for text in ("host", "guest")]
        stopped = await in_line(bench.accept("stopped", "b"))
        bench.cancel("b")
        gate.open()
        states = [(await run.wait()).state for run in (host, guest, stopped)]
        assert states == [COMPLETED, FOLDED, CANCELLED]
        assert stopped.outcome.error, "an error beside a cancellation is no agent error"
        assert bench.recorder.errors == []


# ── Turns that concern more than their run ─────────────────────────────────────────────────────


@pytest.mark.parametrize("grave", [KeyboardInterrupt, SystemExit])
async def test_what_is_no_exception_leaves_the_workspace_after_every_run_has_its_ending(grave):
    async def turn(run):
        await run.record_prompt()
        if run.prompt == "grave":
            raise grave
        await trio.sleep_forever()

    benches, runs = [], []

    async def work():
        async with open_test_workspace(turn) as bench:
            benches.append(bench)
            runs.append(await in_line(bench.accept("sibling", "a")))
            runs.append(bench.accept("grave", "b"))
            await trio.sleep_forever()

    with pytest.raises(grave):
        await work()
    check_promises(benches[0], runs)
    assert {run.outcome.state for run in runs} == {CANCELLED}


@pytest.mark.parametrize("seed", range(3))
async def test_a_turn_that_swallows_the_cancellation_of_its_surroundings_is_not_completed(seed):
    async def turn(_run):
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            return Completion(text="as if nothing had happened")

    with trio.CancelScope() as surroundings:
        async with open_test_workspace(turn) as bench:
            run = await in_line(bench.accept("hi"))
            surroundings.cancel()
    assert run.outcome.state is ERRORED
    assert run.outcome.error == CancelSwallowed.message


# ── Small things ───────────────────────────────────────────────────────────────────────────────


def test_limits_are_values_and_closing_outlasts_the_shielded_steps_of_a_run():
    limits = Limits()
    assert (limits.accept, limits.record, limits.ending) == (5, 5, 5)
    assert limits.join >= limits.accept + limits.record + limits.ending
    assert Limits(record=5.0) == limits
    with pytest.raises(FrozenInstanceError):
        limits.ending = 60
    with pytest.raises(TypeError):
        Limits(1)


@pytest.mark.parametrize(
    ("exc", "line"),
    [
        (ValueError("boom"), "boom"),
        (ValueError(), "ValueError"),
        (ExceptionGroup("some", [ValueError("boom")]), "boom"),
        (ExceptionGroup("outer", [ExceptionGroup("inner", [KeyError()])]), "KeyError"),
        (ExceptionGroup("some", [ValueError("a"), KeyError("b")]), "some (2 sub-exceptions)"),
        (BaseExceptionGroup("some", [SystemExit("bye")]), "bye"),
    ],
    ids=["plain", "empty", "lone", "nested", "two", "base"],
)
def test_an_exception_is_described_in_one_line(exc, line):
    assert describe(exc) == line


@pytest.mark.parametrize("seed", range(10))
async def test_with_courtesy_a_sender_goes_on_before_the_run_begins_to_work(seed):
    """In both orders in which Trio may take them."""
    order = []

    async def turn(run):
        order.append("run")
        await trio.lowlevel.checkpoint()

    async with open_workspace(turn, limits=Limits(courtesy=2)) as workspace:
        accepted = workspace.accept(Submission(session_id=SessionId("s"), prompt="hello"))
        await accepted.journaled()
        order.append("sender")
        await accepted.wait()
    assert order == ["sender", "run"]
