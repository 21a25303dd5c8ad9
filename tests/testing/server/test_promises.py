"""`check_promises`: it holds for an honest core, and fails for each way of breaking a promise."""

from contextlib import asynccontextmanager

import pytest
from attrs import evolve
from trio.testing import wait_all_tasks_blocked

from crush_trio.events import RunChange
from crush_trio.runtime import Lane
from crush_trio.testing import Gate
from crush_trio.testing.server.turns import Fail, Fold, Pause, Say, ScriptedTurns
from crush_trio.testing.server.workspace import check_promises, open_test_workspace
from crush_trio.wire.runs import RunState


@asynccontextmanager
async def every_ending():
    """Yield a bench and one ended run of each kind, by name."""
    gate = Gate()
    turns = ScriptedTurns(
        {
            "host": [Pause(gate), Fold(), Say("done")],
            "errored": [Fail(ValueError("boom"))],
            "half-way": [Say("so far"), Pause(Gate("never opened"))],
        }
    )
    async with open_test_workspace(turns) as bench:
        runs = {}
        for text, session in (
            ("host", "a"),
            ("folded", "a"),
            ("errored", "b"),
            ("half-way", "c"),
            ("behind", "c"),
        ):
            runs[text] = bench.accept(text, session)
            await wait_all_tasks_blocked()
        runs["early"] = bench.accept("early", "d")
        for session in ("c", "d"):
            bench.cancel(session)
        gate.open()
        for run in runs.values():
            await run.wait()
        yield bench, runs


async def test_an_honest_core_passes_whatever_became_of_the_runs():
    async with every_ending() as (bench, runs):
        states = {name: run.outcome.state for name, run in runs.items()}
        assert states == {
            "host": RunState.COMPLETED,
            "folded": RunState.FOLDED,
            "errored": RunState.ERRORED,
            "half-way": RunState.CANCELLED,
            "behind": RunState.CANCELLED,
            "early": RunState.CANCELLED,
        }
        check_promises(bench, iter(runs.values()))
    check_promises(bench, runs.values())


async def test_no_runs_make_no_promises():
    async with open_test_workspace() as bench:
        check_promises(bench, [])


async def test_a_run_that_has_not_ended_is_a_broken_promise():
    async with open_test_workspace(ScriptedTurns(default=[Pause(Gate())])) as bench:
        run = bench.accept("hello")
        await wait_all_tasks_blocked()
        with pytest.raises(AssertionError, match="has not ended"):
            check_promises(bench, [run])


# ── One breach each ────────────────────────────────────────────────────────────────────────────


def announced_again(bench, run):
    bench.events.publish(RunChange(run=run.view))


def announced_again_in_another_state(bench, run):
    bench.events.publish(RunChange(run=evolve(run.view, state=RunState.INTERRUPTED)))


def never_announced(bench, run):
    events = bench.recorder.events
    events[:] = [e for e in events if not (isinstance(e, RunChange) and e.run.id == run.id)]


def announce(bench, run, **changes):
    """Make the one announcement of an ending say something else."""
    events = bench.recorder.events
    for at, event in enumerate(events):
        if isinstance(event, RunChange) and event.terminal and event.run.id == run.id:
            events[at] = RunChange(run=evolve(event.run, **changes))


def announced_in_another_state(bench, run):
    announce(bench, run, state=RunState.INTERRUPTED)


def announced_with_another_answer(bench, run):
    announce(bench, run, text="something else")


def never_stored(bench, run):
    del bench.transcript.endings[run.id]
    del bench.transcript.rows[run.id]


def stored_with_another_outcome(bench, run):
    bench.transcript.endings[run.id] = evolve(run.outcome, error="something else")


def stored_in_another_state(bench, run):
    bench.transcript.rows[run.id] = RunState.ACTIVE


def prompt_missing(bench, run):
    messages = bench.messages(run.session_id)
    messages[:] = [message for message in messages if message.id != f"prompt-{run.id}"]


def prompt_stored_twice(bench, run):
    messages = bench.messages(run.session_id)
    messages.append(next(m for m in messages if m.id == f"prompt-{run.id}"))


def still_in_its_lane(bench, run):
    lane = Lane()
    lane.admit(run)
    bench.workspace._lanes[run.session_id] = lane


BREACHES = {
    announced_again: "has 2 endings",
    announced_again_in_another_state: "has 2 endings",
    never_announced: "has 0 endings",
    announced_in_another_state: "was announced differently",
    announced_with_another_answer: "was announced differently",
    stored_with_another_outcome: "is stored differently",
    stored_in_another_state: None,
    never_stored: None,
    prompt_missing: "has its prompt stored",
    prompt_stored_twice: "has its prompt stored",
    still_in_its_lane: "has ended but is still held",
}


@pytest.mark.parametrize("breach", BREACHES, ids=lambda breach: breach.__name__)
@pytest.mark.parametrize("name", ["host", "folded", "early"])
async def test_a_breach_is_found_whichever_run_it_befalls(name, breach):
    async with every_ending() as (bench, runs):
        check_promises(bench, runs.values())
        breach(bench, runs[name])
        with pytest.raises(AssertionError, match=BREACHES[breach]):
            check_promises(bench, runs.values())
        others = [run for run in runs.values() if run is not runs[name]]
        check_promises(bench, others)
        bench.workspace._lanes.clear()


@pytest.mark.item("A21", "D20")
@pytest.mark.parametrize("name", ["behind", "early"])
async def test_a_cancelled_run_without_its_record_is_a_broken_promise(name):
    async with every_ending() as (bench, runs):
        messages = bench.messages(runs[name].session_id)
        messages[:] = [m for m in messages if m.id != f"cancelled-{runs[name].id}"]
        with pytest.raises(AssertionError, match="has 0 cancelled records"):
            check_promises(bench, runs.values())


@pytest.mark.parametrize("name", ["host", "errored", "half-way", "folded"])
async def test_a_record_of_a_cancel_that_does_not_belong_there_is_a_broken_promise(name):
    async with every_ending() as (bench, runs):
        (record,) = [m for m in bench.messages("d") if m.id.startswith("cancelled-")]
        run = runs[name]
        bench.messages(run.session_id).append(evolve(record, id=f"cancelled-{run.id}"))
        with pytest.raises(AssertionError, match="has 1 cancelled records"):
            check_promises(bench, runs.values())


async def test_a_run_of_another_workspace_is_a_broken_promise():
    async with every_ending() as (_, runs), open_test_workspace() as stranger:
        with pytest.raises(AssertionError, match="has 0 endings"):
            check_promises(stranger, runs.values())
