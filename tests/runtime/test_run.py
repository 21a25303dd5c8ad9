"""A run's task from acceptance to ending, when storage and turns do not do as they should."""

from contextlib import asynccontextmanager, suppress

import pytest
import trio
from attrs import define, field
from attrs.exceptions import FrozenInstanceError
from outcome import Error
from trio.testing import wait_all_tasks_blocked

from crush_trio.config.errors import ExpansionFailed
from crush_trio.errors import AcceptanceNotStored, AnswerTooLong, CancelSwallowed
from crush_trio.events.facts import Fact, MessageChange, RunChange, agent_error
from crush_trio.providers.errors import ProviderError
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
from crush_trio.testing.server.faults import FaultyJournal, JournalFault, Moment
from crush_trio.testing.server.turns import Fold, Pause, ScriptedTurns, prompt
from crush_trio.testing.server.workspace import check_promises, open_test_workspace
from crush_trio.wire.events import AgentEvent, AgentEventType, EventType, PayloadType
from crush_trio.wire.ids import RunId, SessionId
from crush_trio.wire.requests import Attachment
from crush_trio.wire.runs import RunKind, RunState

CANCELLED, COMPLETED = RunState.CANCELLED, RunState.COMPLETED
ERRORED, FOLDED = RunState.ERRORED, RunState.FOLDED
ENDING, INTERRUPTED = RunState.ENDING, RunState.INTERRUPTED
DISK_FULL = OSError("disk full")
NOTE = Attachment(file_path="/n.txt", file_name="n.txt", mime_type="text/plain", content=b"hi")


@define(eq=False)
class CountingJournal(FaultyJournal):
    """Keeps book of the calls that reach the journal, spoiled or not."""

    calls: list[tuple[str, RunId]] = field(factory=list, init=False)

    def accept(self, run, *, begins):
        self.calls.append(("accept", run.id))
        return super().accept(run, begins=begins)

    def retract(self, run):
        self.calls.append(("retract", run.id))
        super().retract(run)

    def end(self, run, outcome):
        self.calls.append(("end", run.id))
        return super().end(run, outcome)


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


async def test_a_slow_acceptance_holds_up_its_own_session_only_and_not_for_ever():
    async with open_faulty(None, fault("accept", "bad")) as (bench, _):
        began = trio.current_time()
        refused = [bench.accept("bad"), bench.accept("behind")]
        other = bench.accept("other", "another session")
        assert (await other.wait()).state is COMPLETED
        assert trio.current_time() == began
        for run in refused:
            with pytest.raises(AcceptanceNotStored):
                await run.wait()
        assert trio.current_time() - began == pytest.approx(5)
        check_promises(bench, [other])


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


async def test_the_prompt_is_stored_when_the_turn_begins_and_published_once():
    seen = []

    async def turn(run):
        await trio.lowlevel.checkpoint()
        seen.append([message.id for message in bench.messages()])

    async with open_test_workspace(turn) as bench:
        runs = [bench.accept(text, run_id=text) for text in ("one", "two")]
        for run in runs:
            await run.wait()
        assert seen == [["prompt-run-1"], ["prompt-run-1", "prompt-run-2"]]
        told = [e.message_id for e in bench.recorder.events if isinstance(e, MessageChange)]
        assert told == ["prompt-run-1", "prompt-run-2"]
        check_promises(bench, runs)


@pytest.mark.parametrize("text", ["first", "second"])
async def test_a_prompt_that_cannot_be_stored_fails_its_run_and_is_stored_with_the_end(text):
    async with open_faulty(None, fault("begin", text, error=DISK_FULL)) as (bench, _):
        runs = [bench.accept(each, run_id=each) for each in ("first", "second", "third")]
        states = [(await run.wait()).state for run in runs]
        assert states == [ERRORED if run.outcome.error else COMPLETED for run in runs]
        assert [run.submission.run_id for run in runs if run.outcome.error] == [text]
        check_promises(bench, runs)


async def test_a_prompt_that_takes_long_to_store_only_makes_its_turn_late():
    async with open_faulty(None, fault("begin", "slow")) as (bench, journal):
        run = await in_line(bench.accept("slow"))
        await trio.sleep(60)
        assert run.state is RunState.ACTIVE
        journal.heal()
        assert (await run.wait()).state is COMPLETED
        check_promises(bench, [run])


# ── Folding ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("moment", list(Moment))
async def test_a_folding_that_cannot_be_stored_fails_its_run_and_the_prompts_wait_again(moment):
    gate = Gate()
    turns = ScriptedTurns({"host": [Pause(gate), Fold()]})
    spoiled = fault("fold", "good", error=DISK_FULL, times=1)
    async with open_faulty(turns, spoiled) as (bench, _):
        runs = [await in_line(bench.accept(text)) for text in ("host", "good", "better")]
        gate.open()
        assert [(await run.wait()).state for run in runs] == [ERRORED, COMPLETED, COMPLETED]
        assert turns.started == ["host", "good", "better"]
        check_promises(bench, runs)


async def test_a_cancel_while_a_folding_fails_withdraws_what_was_to_be_folded():
    gate = Gate()
    turns = ScriptedTurns({"host": [Pause(gate), Fold()]})
    async with open_faulty(turns, fault("fold", "guest")) as (bench, journal):
        host, guest, other = [
            await in_line(bench.accept(text, run_id=name))
            for text, name in (("host", None), ("guest", None), ("other", "other"))
        ]
        gate.open()
        await wait_all_tasks_blocked()
        bench.cancel()
        for entry in journal.open:
            entry.commit.settle(Error(DISK_FULL))
        assert [(await run.wait()).state for run in (host, guest, other)] == [CANCELLED] * 3
        assert turns.started == ["host"]
        check_promises(bench, [host, guest, other])


async def test_a_run_cancelled_while_it_folds_does_not_lose_the_prompt_it_took():
    gate = Gate()
    turns = ScriptedTurns({"host": [Pause(gate), Fold()]})
    async with open_faulty(turns, fault("fold", "guest")) as (bench, journal):
        host, guest = [await in_line(bench.accept(text)) for text in ("host", "guest")]
        gate.open()
        await wait_all_tasks_blocked()
        bench.cancel()
        await trio.sleep(60)
        assert not host.ended
        assert not guest.ended
        journal.heal()
        assert (await host.wait()).state is CANCELLED
        assert await guest.wait() == Outcome.folded(host.id)
        check_promises(bench, [host, guest])


async def test_a_folded_prompt_is_taken_in_whole_even_if_its_run_has_ended_by_then():
    taken, gate = [], Gate()

    async def turn(run):
        await gate.wait()
        taken.extend(await run.fold())

    async with open_test_workspace(turn) as bench:
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


def run_states(bench, run):
    """Every state of *run* that readers were told of, in order, with the outcome to come."""
    changes = [e.run for e in bench.recorder.events if isinstance(e, RunChange)]
    return [(view.state, view.outcome) for view in changes if view.id == run.id]


@pytest.mark.explored
@pytest.mark.parametrize("moment", list(Moment))
@pytest.mark.parametrize("error", [DISK_FULL, None], ids=["fails", "hangs"])
async def test_an_ending_is_owed_until_it_is_stored_and_announced_only_then(error, moment, caplog):
    notice = finished("s")

    async def turn(run):
        await trio.lowlevel.checkpoint()
        return Completion(text="the answer", notices=(notice,))

    spoiled = fault("end", "slow", error=error, moment=moment)
    async with open_faulty(turn, spoiled) as (bench, journal):
        slow, behind = (bench.accept(text, run_id=text) for text in ("slow", "behind"))
        elsewhere = bench.accept("elsewhere", "another session")
        assert (await elsewhere.wait()).state is COMPLETED
        await trio.sleep(300)
        assert (slow.state, slow.view.outcome, slow.view.text) == (ENDING, COMPLETED, "the answer")
        assert behind.state is RunState.QUEUED, "the session goes on when the ending is stored"
        assert bench.workspace.session_busy(slow.session_id)
        assert bench.recorder.endings_per_run == {elsewhere.id: 1}
        assert bench.recorder.events.count(notice) == 1
        journal.heal()
        assert await slow.wait() == Outcome(state=COMPLETED, text="the answer", notices=(notice,))
        assert (await behind.wait()).state is COMPLETED
        check_promises(bench, [slow, behind, elsewhere])
        assert bench.recorder.errors == []
        assert run_states(bench, slow)[-2:] == [(ENDING, COMPLETED), (COMPLETED, None)]
        assert ENDING not in dict(run_states(bench, behind))
    logged = [record.message for record in caplog.records]
    assert logged == (["run.ending_not_stored"] if error else [])


async def test_an_ending_that_is_stored_soon_is_not_shown_on_its_way():
    limits = Limits(notice=0.25)
    async with open_faulty(None, fault("end", "slow"), limits=limits) as (bench, journal):
        run = await in_line(bench.accept("slow"))
        await trio.sleep(0.2)
        journal.heal()
        await run.wait()
        assert ENDING not in dict(run_states(bench, run))


@pytest.mark.parametrize("error", [DISK_FULL, None], ids=["fails", "hangs"])
@pytest.mark.parametrize("how", ["completed", "errored", "cancelled", "withdrawn"])
async def test_an_ending_that_cannot_be_stored_before_the_workspace_closes_is_an_interruption(
    how, error, caplog
):
    async def turn(run):
        await trio.lowlevel.checkpoint()
        match run.prompt:
            case "errored":
                raise ValueError("boom")
            case "cancelled" | "first":
                await trio.sleep_forever()
        return Completion(text="done")

    spoiled = [fault(method, how, error=error) for method in ("end", "withdraw")]
    async with open_faulty(turn, *spoiled) as (bench, _):
        first = await in_line(bench.accept("first")) if how == "withdrawn" else None
        run = await in_line(bench.accept(how))
        if how in {"cancelled", "withdrawn"}:
            bench.workspace.cancel_run(run.id)
        await trio.sleep(60)
        expected = CANCELLED if how == "withdrawn" else RunState(how)
        assert (run.state, run.view.outcome) == (ENDING, expected)
        report = await bench.workspace.stop()
        assert report.unfinished == ()
        assert report.took == pytest.approx(15, abs=2.1)
        assert run.outcome == Outcome.interrupted()
        assert run_states(bench, run)[-2:] == [(ENDING, expected), (INTERRUPTED, None)]
        assert bench.recorder.endings_per_run[run.id] == 1
        assert bench.transcript.endings.keys() == ({first.id} if first and error else set())
    assert "run.ending_given_up" in [record.message for record in caplog.records]


@pytest.mark.item("A19")
@pytest.mark.parametrize("where", ["turn", "child"])
async def test_what_fails_while_a_run_is_cancelled_does_not_make_it_a_failure(where, caplog):
    async def clean_up_badly():
        try:
            await trio.sleep_forever()
        finally:
            raise OSError("disk full")

    async def turn(run):
        run.partial = lambda: Completion(text="so far")
        if where == "turn":
            await clean_up_badly()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(clean_up_badly)
            nursery.start_soon(trio.sleep_forever)

    async with open_test_workspace(turn) as bench:
        run = await in_line(bench.accept("hello", run_id="r"))
        bench.cancel()
        outcome = await run.wait()
        assert (outcome.state, outcome.text) == (CANCELLED, "so far")
        assert bench.recorder.errors == []
        check_promises(bench, [run])
    [line] = caplog.records
    assert line.message.startswith("run.failed_while_cancelled: ")
    assert line.message.endswith(f" (run {run.id})")


@pytest.mark.parametrize(
    "error", [AnswerTooLong("so much"), ProviderError("so much"), ExpansionFailed("so much")]
)
async def test_an_error_with_a_heading_is_one_line_in_the_log(error, caplog):
    """A model provider's error is not a defect of the program, and a traceback tells no more."""

    async def turn(run):
        await trio.lowlevel.checkpoint()
        raise error

    async with open_test_workspace(turn) as bench:
        await bench.accept("hello", run_id="r").wait()
    [line] = caplog.records
    assert (line.levelname, line.code) == ("WARNING", error.code)
    assert line.message == f"run.failed: {error} (run {line.run_id})"
    assert line.exc_info is None
    assert line.error.endswith("so much")


@pytest.mark.item("B19", "D28")
async def test_everything_that_goes_with_an_ending_comes_right_before_it():
    notices = finished("one"), finished("another")

    async def turn(run):
        await trio.lowlevel.checkpoint()
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
    async with open_faulty(turns, fault("end", "stopped", error=DISK_FULL, times=1)) as (bench, _):
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
        await trio.lowlevel.checkpoint()
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


def test_limits_are_values():
    limits = Limits()
    assert (limits.accept, limits.join) == (5, 15)
    assert Limits(accept=5.0) == limits
    with pytest.raises(FrozenInstanceError):
        limits.accept = 60
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


# ── Mistakes in a turn ──────────────────────────────────────────────────────────────────────────


async def says_text(run):
    await trio.lowlevel.checkpoint()
    return "text"


def is_not_async(run):
    return Completion(text="text")


@pytest.mark.parametrize(
    ("turn", "told"),
    [
        (says_text, "the turn returned a str: write `return Completion(text=…)`, or return None"),
        (is_not_async, "the turn returned a Completion without being awaited: write `async def`"),
    ],
)
async def test_a_turn_that_returns_something_else_is_told_what_to_write(turn, told):
    async with open_test_workspace(turn) as bench:
        outcome = await bench.accept("hello", run_id="r").wait()
    assert (outcome.state, outcome.error) == (RunState.ERRORED, told)


@pytest.mark.parametrize("given", ["hello", None])
async def test_a_prompt_alone_is_no_submission(given):
    async with open_test_workspace() as bench:
        with pytest.raises(TypeError, match=r"write `Submission\(session_id=SessionId"):
            bench.workspace.accept(given)


async def takes_two(run, more):
    raise NotImplementedError


async def generates(run):
    yield


@pytest.mark.parametrize(
    ("turn", "told"),
    [
        (takes_two, "the turn takes_two does not take one argument, the run: write `async def"),
        (generates, "the turn generates is an async generator: write `async def"),
        (7, "the turn is a int, not a function: write `async def"),
    ],
)
async def test_a_turn_that_cannot_be_called_is_refused_when_the_workspace_opens(turn, told):
    with pytest.raises(TypeError, match=told):
        async with open_workspace(turn):
            raise NotImplementedError
