"""The run core under every schedule within a bound.

Each scenario is small, real (workspace, lanes, log, journal) and checked against the same promises
in every schedule. What a scenario returns says which of the allowed endings came about; the tests
assert the set of those too, so that a scenario which no longer reaches an interesting case fails.
"""

from contextlib import suppress

import pytest
import trio
import trio.testing
from attrs import frozen

from crush_trio.errors import RunNotQueued
from crush_trio.testing import Gate
from crush_trio.testing.explore import explore
from crush_trio.testing.server.faults import FaultyJournal, JournalFault
from crush_trio.testing.server.turns import Fail, Fold, Pause, Say, ScriptedTurns, prompt
from crush_trio.testing.server.workspace import check_promises, open_test_workspace
from crush_trio.wire.runs import RunState, WhenBusy

CANCELLED = RunState.CANCELLED
COMPLETED = RunState.COMPLETED
FOLDED = RunState.FOLDED
ERRORED = RunState.ERRORED


async def soon(*actions):
    """Perform each action as a task of its own, so that the explorer can place it anywhere."""

    async def act(action):
        await trio.lowlevel.checkpoint()
        action()

    async with trio.open_nursery() as nursery:
        for action in actions:
            nursery.start_soon(act, action)


async def states(*runs):
    return tuple([(await run.wait()).state for run in runs])


async def accept_cancel_enter():
    async with open_test_workspace(ScriptedTurns(default=(Say("x"),))) as bench:
        run = bench.accept("one")
        await soon(bench.cancel)
        result = await states(run)
        check_promises(bench, [run])
    return result


async def two_accepts_cancel_third_accept():
    """The third prompt is accepted in the same breath as the cancel, just after it."""
    async with open_test_workspace(ScriptedTurns(default=())) as bench:
        first, second = bench.accept("one"), bench.accept("two", run_id="second")
        third = []

        def cancel_then_accept():
            bench.cancel()
            third.append(bench.accept("three", run_id="third"))

        await soon(cancel_then_accept)
        result = await states(first, second, *third)
        check_promises(bench, [first, second, *third])
        assert result[2] is COMPLETED, "a prompt accepted after the cancel was hit by it"
    return result


async def active_queued_follow_up_cancel():
    gate = Gate()
    turns = ScriptedTurns({"one": [Pause(gate)]}, default=())
    async with open_test_workspace(turns) as bench:
        first = bench.accept("one")
        await gate.reached()
        second = bench.accept("two", run_id="second")
        await soon(bench.cancel, gate.open)
        result = await states(first, second)
        check_promises(bench, [first, second])
        assert turns.overlaps == []
    return result


async def finish_cancel_promote():
    """The first run finishes while a cancel of the session and the promotion of the next race."""
    async with open_test_workspace(ScriptedTurns(default=())) as bench:
        runs = [bench.accept("one", run_id="1"), bench.accept("two", run_id="2")]
        receipts = []
        await soon(lambda: receipts.append(bench.cancel()))
        result = await states(*runs)
        check_promises(bench, runs)
        hit = {h.run_id for h in receipts[0].hits}
        for run, state in zip(runs, result, strict=True):
            assert state is COMPLETED or run.id in hit, "cancelled without being hit"
        assert receipts[0].complete
    return result


async def fold_cancel():
    """A prompt waits; the active run goes on to fold it while the session is cancelled."""
    gate = Gate()
    turns = ScriptedTurns({"one": [Pause(gate), Fold()]}, default=())
    async with open_test_workspace(turns) as bench:
        first = bench.accept("one", run_id="1")
        await gate.reached()
        runs = [first, bench.accept("two"), bench.accept("three")]
        await trio.testing.wait_all_tasks_blocked()
        await soon(gate.open, bench.cancel)
        result = await states(*runs)
        check_promises(bench, runs)
        folded = turns.folded.get(first.id, [])
        prompts = ("one", "two", "three")
        ended_folded = [
            text for text, state in zip(prompts, result, strict=True) if state is FOLDED
        ]
        assert folded in ([], ended_folded), "folded by one side only"
        assert COMPLETED not in result[1:], "a prompt that was folded or cancelled ran as well"
    return result


def prompts_in_order(bench):
    """The numbers of the runs whose prompts are stored, in the order in which they are."""
    ids = [message.id for message in bench.messages() if message.id.startswith("prompt-")]
    return [int(name.removeprefix("prompt-run-")) for name in ids]


async def cancel_of_a_queue_and_next_accept():
    """Prompts wait; the session is cancelled; the next prompt is accepted in the same breath."""
    gate = Gate()
    turns = ScriptedTurns({"one": [Pause(gate)]}, default=(Say("x"),))
    async with open_test_workspace(turns) as bench:
        first = bench.accept("one", run_id="1")
        await gate.reached()
        waiting = [bench.accept("two"), bench.accept("three", run_id="3")]
        late = []

        def cancel_then_accept():
            bench.cancel()
            late.append(bench.accept("late", run_id="late"))

        await soon(cancel_then_accept)
        runs = [first, *waiting, *late]
        result = await states(*runs)
        check_promises(bench, runs)
        assert prompts_in_order(bench) == [1, 2, 3, 4], "not the order of acceptance"
        assert turns.started == ["one", "late"]
        ended = [view.id for view in bench.recorder.endings]
        assert ended.index(late[0].id) == 3, "it ended before one that was withdrawn before it"
    return result


async def interrupt_against_the_end():
    """A prompt that interrupts is accepted while a run is active, one waits, and one comes later."""
    gate = Gate()
    turns = ScriptedTurns({"one": [Pause(gate)]}, default=())
    async with open_test_workspace(turns) as bench:
        runs = [bench.accept("one", run_id="1")]
        await gate.reached()
        runs.append(bench.accept("two", run_id="2"))
        await trio.testing.wait_all_tasks_blocked()

        def interrupt():
            submission = prompt("three", run_id="3", when_busy=WhenBusy.INTERRUPT)
            runs.append(bench.workspace.accept(submission))
            runs.append(bench.accept("four", run_id="4"))

        await soon(interrupt, gate.open)
        result = await states(*runs)
        check_promises(bench, runs)
        assert result[2:] == (COMPLETED, COMPLETED)
        assert prompts_in_order(bench) == [1, 2, 3, 4]
    return result


def steering(text, run_id):
    return prompt(text, run_id=run_id, when_busy=WhenBusy.STEER)


async def steers_against_the_end_and_a_cancel(*, cancel):
    """Two prompts steer, both with run ids, while the active run folds once and then ends."""
    gate = Gate()
    turns = ScriptedTurns({"one": [Pause(gate), Fold()]}, default=(Fold(),))
    async with open_test_workspace(turns) as bench:
        runs = [bench.accept("one", run_id="1")]
        await gate.reached()
        runs.append(bench.workspace.accept(steering("two", "2")))

        def steer_again():
            runs.append(bench.workspace.accept(steering("three", "3")))

        await soon(steer_again, gate.open, *([bench.cancel] if cancel else []))
        result = await states(*runs)
        check_promises(bench, runs)
        taken = [text for texts in turns.folded.values() for text in texts]
        played = [text for text in turns.started if text != "one"]
        assert len({*taken, *played}) == len(taken) + len(played), "a prompt was seen twice"
        for text, run, state in zip(("two", "three"), runs[1:], result[1:], strict=True):
            assert text not in taken or state is FOLDED, "folded by one side only"
            assert text not in played or state is not FOLDED, "folded, and ran as well"
            assert run.outcome.folded_into in (None, runs[0].id, runs[1].id)
        if not cancel:
            assert sorted(taken + played) == ["three", "two"], "a prompt was lost"
    return result


async def steers_against_the_end():
    return await steers_against_the_end_and_a_cancel(cancel=False)


async def steers_against_a_cancel():
    return await steers_against_the_end_and_a_cancel(cancel=True)


async def run_now_against_a_fold_and_the_end():
    """One of two waiting prompts is to run now, while the active run may take both in, or end."""
    gate = Gate()
    turns = ScriptedTurns({"one": [Pause(gate), Fold()]}, default=())
    async with open_test_workspace(turns) as bench:
        runs = [bench.accept("one", run_id="1")]
        await gate.reached()
        runs += [bench.accept("two"), bench.accept("three")]
        await trio.testing.wait_all_tasks_blocked()
        sent = []

        def run_now():
            with suppress(RunNotQueued):
                bench.workspace.run_now(runs[2].id)
                sent.append("three")

        await soon(gate.open, run_now)
        result = await states(*runs)
        check_promises(bench, runs)
        if sent:
            assert result[1:] == (COMPLETED, COMPLETED), "what was to run now was folded or stopped"
            assert turns.started == ["one", "three", "two"]
        else:
            assert result == (COMPLETED, FOLDED, FOLDED)
    return result


async def cancel_that_keeps_the_queue():
    gate = Gate()
    turns = ScriptedTurns({"one": [Pause(gate)]}, default=())
    async with open_test_workspace(turns) as bench:
        runs = [bench.accept("one", run_id="1")]
        await gate.reached()
        runs.append(bench.accept("two", run_id="2"))
        await trio.testing.wait_all_tasks_blocked()
        await soon(lambda: bench.workspace.cancel("s", keep_queue=True), gate.open)
        result = await states(*runs)
        check_promises(bench, runs)
    return result


async def accept_stop():
    async with open_test_workspace(ScriptedTurns(default=())) as bench:
        runs = [bench.accept("one", run_id="1"), bench.accept("two", run_id="2")]
        await soon(bench.workspace.close)
        report = await bench.workspace.stop()
        assert report.unfinished == ()
        result = await states(*runs)
        check_promises(bench, runs)
    return result


async def cancel_stop():
    gate = Gate()
    async with open_test_workspace(ScriptedTurns({"one": [Pause(gate)]}, default=())) as bench:
        runs = [bench.accept("one"), bench.accept("two", run_id="2")]
        await soon(bench.cancel, bench.workspace.close)
        result = await states(*runs)
        check_promises(bench, runs)
        assert bench.workspace.runs == ()
    return result


async def lagging_reader():
    """A reader that reads now and then sees every ending once, in the order of the log."""
    async with open_test_workspace(ScriptedTurns(default=())) as bench:
        cursor = bench.events.cursor()
        seen = []

        async def read_until_both_ended():
            while sum(entry.terminal for entry in seen) < 2:
                seen.extend((await cursor.read()).entries)

        runs = [bench.accept("one", run_id="1"), bench.accept("two", run_id="2")]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read_until_both_ended)
            await soon(lambda: bench.workspace.cancel_run("2"))
        result = await states(*runs)
        ids = [entry.id for entry in seen]
        assert ids == sorted(set(ids))
        assert [e.event.run for e in seen if e.terminal] == bench.recorder.endings
        check_promises(bench, runs)
    return result


async def error_promote_cancel():
    turns = ScriptedTurns({"one": [Fail(ValueError("boom"))]}, default=())
    async with open_test_workspace(turns) as bench:
        runs = [bench.accept("one"), bench.accept("two", run_id="2")]
        await soon(lambda: bench.workspace.cancel_run("2"))
        result = await states(*runs)
        check_promises(bench, runs)
    return result


async def clear_queue_promote():
    async with open_test_workspace(ScriptedTurns(default=())) as bench:
        runs = [bench.accept("one", run_id="1"), bench.accept("two", run_id="2")]
        await soon(lambda: bench.workspace.clear_queue("s"))
        result = await states(*runs)
        check_promises(bench, runs)
        assert COMPLETED in result, "clearing the queue stopped an active run"
    return result


def is_bad(run):
    return run.submission.prompt == "bad"


async def refused_acceptance_cancel():
    """One acceptance cannot be stored: its neighbour runs, and a cancel of both is complete."""
    async with open_test_workspace(ScriptedTurns(default=())) as outer:
        journal = FaultyJournal(
            outer.transcript,
            (JournalFault(method="accept", error=OSError("disk full"), wanted=is_bad),),
        )
    async with open_test_workspace(ScriptedTurns(default=()), journal=journal) as bench:
        good, bad = bench.accept("good", run_id="1"), bench.accept("bad", run_id="2")
        receipts = []
        await soon(lambda: receipts.append(bench.cancel()))
        await receipts[0].settled()
        await good.wait()
        await bad.wait_ended()
        assert bad.outcome is None
        assert bench.workspace.runs == ()
        assert [view.id for view in bench.recorder.endings] == [good.id]
    return good.outcome.state


@frozen
class Explored:
    """A scenario, how far to explore it, and the endings that must come about on the way."""

    scenario: object
    deviations: int
    at_least: int
    endings: set


SCENARIOS = [
    Explored(accept_cancel_enter, 3, 1_400, {(CANCELLED,), (COMPLETED,)}),
    Explored(
        two_accepts_cancel_third_accept,
        1,
        50,
        {
            (CANCELLED, CANCELLED, COMPLETED),
            (COMPLETED, CANCELLED, COMPLETED),
            (COMPLETED, COMPLETED, COMPLETED),
        },
    ),
    Explored(
        active_queued_follow_up_cancel,
        2,
        700,
        {(CANCELLED, CANCELLED), (COMPLETED, CANCELLED), (COMPLETED, COMPLETED)},
    ),
    Explored(
        finish_cancel_promote,
        2,
        1_000,
        {(CANCELLED, CANCELLED), (COMPLETED, CANCELLED), (COMPLETED, COMPLETED)},
    ),
    Explored(
        fold_cancel,
        2,
        1_100,
        {(CANCELLED, CANCELLED, CANCELLED), (CANCELLED, FOLDED, FOLDED)},
    ),
    Explored(
        cancel_of_a_queue_and_next_accept,
        1,
        90,
        {(CANCELLED, CANCELLED, CANCELLED, COMPLETED)},
    ),
    Explored(
        interrupt_against_the_end,
        1,
        80,
        {
            (CANCELLED, CANCELLED, COMPLETED, COMPLETED),
            (COMPLETED, CANCELLED, COMPLETED, COMPLETED),
        },
    ),
    Explored(
        steers_against_the_end,
        2,
        500,
        {
            (COMPLETED, FOLDED, FOLDED),
            (COMPLETED, FOLDED, COMPLETED),
            (COMPLETED, COMPLETED, FOLDED),
        },
    ),
    Explored(
        steers_against_a_cancel,
        2,
        2_000,
        {
            (CANCELLED, CANCELLED, CANCELLED),
            (CANCELLED, CANCELLED, COMPLETED),
            (CANCELLED, FOLDED, FOLDED),
            (COMPLETED, FOLDED, COMPLETED),
        },
    ),
    Explored(
        run_now_against_a_fold_and_the_end,
        2,
        500,
        {(CANCELLED, COMPLETED, COMPLETED), (COMPLETED, FOLDED, FOLDED)},
    ),
    Explored(cancel_that_keeps_the_queue, 2, 400, {(CANCELLED, COMPLETED), (COMPLETED, CANCELLED)}),
    Explored(accept_stop, 2, 900, {(CANCELLED, CANCELLED), (COMPLETED, CANCELLED)}),
    Explored(cancel_stop, 1, 70, {(CANCELLED, CANCELLED)}),
    Explored(lagging_reader, 1, 50, {(COMPLETED, CANCELLED), (COMPLETED, COMPLETED)}),
    Explored(error_promote_cancel, 2, 1_100, {(ERRORED, COMPLETED), (ERRORED, CANCELLED)}),
    Explored(clear_queue_promote, 2, 1_100, {(COMPLETED, CANCELLED), (COMPLETED, COMPLETED)}),
    Explored(refused_acceptance_cancel, 2, 700, {COMPLETED, CANCELLED}),
]


@pytest.mark.item("A9", "A13", "A15", "A16", "A26", "A28", "A37", "A38", "A39", "B1", "B9")
@pytest.mark.parametrize("explored", SCENARIOS, ids=lambda e: e.scenario.__name__)
def test_every_schedule_keeps_the_promises(explored, report_exploration):
    report = explore(explored.scenario, deviations=explored.deviations)
    report_exploration(report)
    assert report.exhaustive
    assert report.schedules >= explored.at_least
    assert explored.endings <= set(report.outcomes)


@frozen
class Further:
    """One part of the exploration of a scenario with one deviation more."""

    scenario: object
    deviations: int
    at_least: int
    part: tuple

    def __str__(self):
        return f"{self.scenario.__name__}-{self.part[0] + 1} of {self.part[1]}"


def parts(scenario, deviations, count, *, each):
    return [Further(scenario, deviations, each, (n, count)) for n in range(count)]


FURTHER = [
    *parts(accept_cancel_enter, 4, 2, each=3_500),
    *parts(finish_cancel_promote, 3, 4, each=3_000),
    *parts(error_promote_cancel, 3, 5, each=3_200),
    *parts(clear_queue_promote, 3, 5, each=3_000),
    *parts(two_accepts_cancel_third_accept, 2, 1, each=1_800),
    *parts(cancel_stop, 2, 1, each=1_300),
    *parts(lagging_reader, 2, 1, each=1_700),
    *parts(cancel_of_a_queue_and_next_accept, 2, 2, each=1_500),
    *parts(interrupt_against_the_end, 2, 2, each=1_250),
]


@pytest.mark.long
@pytest.mark.parametrize("further", FURTHER, ids=str)
def test_every_schedule_with_one_deviation_more_keeps_the_promises(further, report_exploration):
    report = explore(further.scenario, deviations=further.deviations, part=further.part)
    report_exploration(report)
    assert report.exhaustive
    assert report.schedules >= further.at_least
    endings = {explored.scenario: explored.endings for explored in SCENARIOS}
    assert endings[further.scenario] <= set(report.outcomes)


def test_the_scenarios_add_up_to_fifty_thousand_schedules():
    assert sum(explored.at_least for explored in [*SCENARIOS, *FURTHER]) >= 50_000
