"""Turns of a real agent under every schedule within a bound.

In each scenario two or three things happen at the same moment; the explorer tries every order in
which they, and the tasks of the turn, can come. The promises are the same in all of them. What a
scenario returns says which of the allowed endings came about, and the tests assert the set of those
too, so that a scenario which no longer reaches an interesting case fails.
"""

from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing
from attrs import frozen

from crush_trio.runtime.ending import announce
from crush_trio.store.changes import SessionCreated
from crush_trio.testing.explore.checkpoints import Gate
from crush_trio.testing.explore.explorer import explore, find_violation
from crush_trio.testing.model.provider import ScriptedProvider
from crush_trio.testing.model.script import CallTool, Pause, Say, by_text
from crush_trio.testing.server.agent import ScriptedTool, open_test_agent
from crush_trio.tools.base import ToolResult, Wanted
from crush_trio.wire.asks import PermissionAction
from crush_trio.wire.ids import SessionId
from crush_trio.wire.messages import ToolResultPart
from crush_trio.wire.runs import RunKind, RunState
from crush_trio.wire.views import Session
from tests.agent.durable import parts_of
from tests.agent.whole_turn import Played, check_settled, new_store

CANCELLED = RunState.CANCELLED
COMPLETED = RunState.COMPLETED
FOLDED = RunState.FOLDED

WANTED = Wanted(action="execute", description="look", params={}, path=Path("/nowhere/a"))


# ── Scenes ──────────────────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def scene(answers, *tools, **options):
    """Open an agent for one scenario; whatever came about, every promise is kept in the end."""
    script = by_text(answers) if isinstance(answers, dict) else answers
    played = Played(ScriptedProvider(script))
    async with open_test_agent(played.model, tools, **options) as bench:
        played.bench = bench
        yield bench
        await trio.testing.wait_all_tasks_blocked()
        await check_settled(played)


async def at_once(*actions, delay=0):
    """Perform each action as a task of its own, so that the explorer can place it anywhere.

    The last one comes *delay* steps later; what the others set off has come that far by then.
    """

    async def act(action, steps):
        for _ in range(steps):
            await trio.lowlevel.checkpoint()
        action()

    async with trio.open_nursery() as nursery:
        for action in actions:
            nursery.start_soon(act, action, 1 + (delay if action is actions[-1] else 0))


async def states(*runs):
    return tuple([(await run.wait()).state for run in runs])


def waiting_tool(gate):
    """Return a tool that waits at *gate*, and a list of what it has done."""
    done = []

    async def play(_call):
        await gate.wait()
        done.append("looked")
        return ToolResult(content="seen")

    return ScriptedTool("look", play), done


async def results(bench, session="s"):
    messages = await bench.messages(session)
    return tuple(p.is_error for m in messages for p in parts_of(m, ToolResultPart))


# ── Scenarios ───────────────────────────────────────────────────────────────────────────────────


async def cancel_against_the_end_of_a_stream(delay):
    gate = Gate()
    async with scene([[Say("a"), Pause(gate), Say("b")]]) as bench:
        run = bench.accept("go", run_id="r")
        await gate.reached()
        await at_once(gate.open, bench.cancel, delay=delay)
        [state] = await states(run)
        assert run.outcome.text in ({"ab"} if state is COMPLETED else {"a", "ab"})
        return state


async def cancel_against_a_tool_result(delay):
    gate = Gate()
    tool, done = waiting_tool(gate)
    async with scene([[CallTool("look")], [Say("ok")]], tool) as bench:
        run = bench.accept("go", run_id="r")
        await gate.reached()
        await at_once(gate.open, bench.cancel, delay=delay)
        [state] = await states(run)
        [is_error] = await results(bench)
        assert done or is_error, "a result that the tool did not give"
        return state, is_error


async def fold_against_the_last_step(delay):
    gate = Gate()
    tool, _ = waiting_tool(gate)
    answers = {"go": [[CallTool("look")], [Say("ok")]], "more": [[Say("both")]]}
    async with scene(answers, tool) as bench:
        run, more = bench.accept("go", run_id="r"), []
        await gate.reached()
        await at_once(gate.open, lambda: more.append(bench.accept("more")), delay=delay)
        outcome = await states(run, *more)
        assert run.outcome.text == ("both" if outcome[1] is FOLDED else "ok")
        return outcome


async def cancel_against_a_permission(delay):
    used = []

    async def play(call):
        await call.permit(WANTED)
        used.append(call.id)
        return ToolResult(content="done")

    async with scene([[CallTool("look")], [Say("ok")]], ScriptedTool("look", play)) as bench:
        run = bench.accept("go", run_id="r")
        await trio.testing.wait_all_tasks_blocked()
        [asked] = bench.permissions.pending
        granted = []

        def answer():
            granted.append(bench.permissions.answer(asked.id, PermissionAction.ALLOW))

        await at_once(answer, bench.cancel, delay=delay)
        [state] = await states(run)
        assert granted[0] or not used, "used without being granted"
        return state, granted[0], bool(used)


async def cancel_of_a_task_against_that_of_its_run(delay):
    gate = Gate()
    answers = {
        "go": [[CallTool("agent", {"prompt": "find"})], [Say("without")]],
        "find": [[Say("I am"), Pause(gate)]],
    }
    async with scene(answers) as bench:
        run = bench.accept("go", run_id="r")
        await gate.reached()
        [task] = [r for r in bench.workspace.runs.runs if r is not run]
        await at_once(task.cancel, bench.cancel, delay=delay)
        return await states(task, run)


async def close_against_the_start_of_a_task(delay):
    gate = Gate()
    tool, _ = waiting_tool(gate)
    answers = {
        "go": [[CallTool("look"), CallTool("agent", {"prompt": "find"})], [Say("ok")]],
        "find": [[Say("found")]],
    }
    async with scene(answers, tool) as bench:
        run = bench.accept("go", run_id="r")
        await gate.reached()
        await at_once(gate.open, bench.workspace.runs.close, delay=delay)
        await run.wait()
        assert bench.recorder.errors == [], "a stop is no error"
        return tuple(view.state for view in bench.recorder.endings)


async def summary_against_a_prompt(delay):
    answers = [[Say("hello")], [Say("one")], [Say("two")]]
    async with scene(answers) as bench:
        await bench.accept("hi", run_id="before").wait()
        runs = []
        await at_once(
            lambda: runs.append(bench.accept("", run_id="s", kind=RunKind.SUMMARIZE)),
            lambda: runs.append(bench.accept("more", run_id="p")),
            delay=delay,
        )
        await states(*runs)
        messages = await bench.messages()
        begins_with = (await bench.session()).summary_message_id
        [summary] = [m for m in messages if m.is_summary_message]
        assert begins_with == summary.id
        return summary is messages[-1]


async def two_sessions_share_a_model(delay):
    store = await new_store()
    await store.commit(SessionCreated(session=Session(id=SessionId("t"), title="Other")))
    answers = {
        "go": [[CallTool("look", id="c1")], [Say("one")]],
        "come": [[CallTool("look", id="c2")], [Say("two")]],
    }
    async with scene(answers, ScriptedTool("look"), store=store) as bench:
        runs = [bench.accept("go", "s", "r1"), bench.accept("come", "t", "r2")]
        await at_once(bench.cancel, delay=delay)
        outcome = await states(*runs)
        assert runs[1].outcome.text == "two", "the cancel of one session hit another"
        return outcome


@frozen
class Explored:
    """A scenario, how far to explore it, and the endings that must come about on the way.

    *bounds* are the deviations to allow, by the delay of the last action.
    """

    scenario: object
    bounds: dict
    at_least: int
    endings: set


SCENARIOS = [
    Explored(
        cancel_against_the_end_of_a_stream,
        {0: 1, 20: 1, 30: 1},
        230,
        {CANCELLED, COMPLETED},
    ),
    Explored(
        cancel_against_a_tool_result,
        {0: 1, 5: 1, 50: 1},
        230,
        {(CANCELLED, True), (CANCELLED, False), (COMPLETED, False)},
    ),
    Explored(
        fold_against_the_last_step,
        {0: 1, 20: 1, 30: 1},
        330,
        {(COMPLETED, FOLDED), (COMPLETED, COMPLETED)},
    ),
    Explored(
        cancel_against_a_permission,
        {0: 1, 50: 1},
        320,
        {(CANCELLED, True, True), (CANCELLED, False, False), (COMPLETED, True, True)},
    ),
    Explored(
        cancel_of_a_task_against_that_of_its_run,
        {0: 1, 70: 1},
        320,
        {(CANCELLED, CANCELLED), (CANCELLED, COMPLETED)},
    ),
    Explored(
        close_against_the_start_of_a_task,
        {10: 1, 20: 1, 30: 1, 80: 1},
        380,
        {(CANCELLED,), (CANCELLED, CANCELLED), (COMPLETED, CANCELLED)},
    ),
    Explored(summary_against_a_prompt, {0: 1, 5: 1}, 320, {True, False}),
    Explored(two_sessions_share_a_model, {0: 1}, 180, {(CANCELLED, COMPLETED)}),
]


@pytest.mark.item("A12", "A13", "A20", "B1", "C6", "D17", "D32", "F2")
@pytest.mark.parametrize("explored", SCENARIOS, ids=lambda e: e.scenario.__name__)
def test_every_schedule_of_a_turn_keeps_the_promises(explored, report_exploration):
    delay, deviations = next(iter(explored.bounds.items()))
    report = explore(partial(explored.scenario, delay), deviations=deviations)
    report_exploration(report)
    assert report.exhaustive
    assert report.schedules > 50
    assert set(report.outcomes) <= explored.endings


@pytest.mark.long
@pytest.mark.item("A12", "A13", "A20", "B1", "C6", "D17", "D32", "F2")
@pytest.mark.parametrize("explored", SCENARIOS, ids=lambda e: e.scenario.__name__)
def test_with_every_delay_too_and_every_ending_comes_about(explored, report_exploration):
    schedules, endings = 0, set()
    for delay, deviations in explored.bounds.items():
        report = explore(partial(explored.scenario, delay), deviations=deviations)
        report_exploration(report)
        assert report.exhaustive
        schedules += report.schedules
        endings |= set(report.outcomes)
    assert endings == explored.endings
    assert schedules >= explored.at_least


@pytest.mark.long
@pytest.mark.parametrize("part", range(2))
@pytest.mark.parametrize(
    ("scenario", "at_least"),
    [(cancel_against_the_end_of_a_stream, 900), (cancel_against_a_permission, 1_300)],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_two_deviations_keep_the_promises_too(scenario, at_least, part, report_exploration):
    report = explore(partial(scenario, 0), deviations=2, part=(part, 2))
    report_exploration(report)
    assert report.exhaustive
    assert report.schedules >= at_least
    [endings] = [explored.endings for explored in SCENARIOS if explored.scenario is scenario]
    assert set(report.outcomes) <= endings


@pytest.mark.parametrize("explored", SCENARIOS, ids=lambda e: e.scenario.__name__)
def test_a_broken_promise_would_be_found(explored, monkeypatch):
    """Readers are told of an ending twice: each scenario must notice."""

    def announce_twice(*ending):
        announce(*ending)
        announce(*ending)

    monkeypatch.setattr("crush_trio.runtime.workspace.announce", announce_twice)
    delay = next(iter(explored.bounds))
    assert find_violation(partial(explored.scenario, delay), deviations=0) is not None
