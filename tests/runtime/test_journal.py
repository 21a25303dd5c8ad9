"""`MemoryJournal`: what it remembers, and in which order."""

import pytest
from trio.testing import wait_all_tasks_blocked

from crush_trio.runtime import AcceptedRun, Completion, Lane, MemoryJournal, Outcome
from crush_trio.testing import Gate
from crush_trio.testing.server.turns import Fold, Pause, ScriptedTurns, prompt
from crush_trio.testing.server.workspace import open_test_workspace
from crush_trio.wire.ids import RunId
from crush_trio.wire.runs import RunState, RunView


def bare_run(name: str) -> AcceptedRun:
    """Return a token that no workspace knows."""
    submission = prompt("hello")
    view = RunView(id=RunId(name), session_id=submission.session_id, state=RunState.ACCEPTED)
    return AcceptedRun(view, submission, Lane(), lambda _run: None, lambda _run: None)


async def test_acceptances_and_prompts_are_kept_in_the_order_in_which_they_were_written():
    journal = MemoryJournal()
    runs = [bare_run(name) for name in "cab"]
    for run in runs:
        await journal.accept(run, begins=False).commit.certain()
    for run in reversed(runs):
        await journal.begin(run).commit.certain()
    assert journal.accepted == ["c", "a", "b"]
    assert journal.prompts == ["b", "a", "c"]


async def test_the_prompt_of_a_run_that_begins_is_written_with_its_acceptance():
    journal, run = MemoryJournal(), bare_run("a")
    journal.accept(run, begins=True)
    assert journal.prompts == ["a"]
    journal.begin(run)
    assert journal.prompts == ["a"]


async def test_a_retracted_acceptance_is_gone_and_the_others_stay():
    journal = MemoryJournal()
    runs = [bare_run(name) for name in "abc"]
    for run in runs:
        journal.accept(run, begins=True)
    journal.retract(runs[1])
    assert (journal.accepted, journal.prompts) == (["a", "c"], ["a", "c"])


async def test_retracting_what_was_never_written_does_nothing():
    journal = MemoryJournal()
    journal.retract(bare_run("a"))
    assert journal.accepted == []


@pytest.mark.item("A21")
async def test_an_ending_brings_the_prompt_if_and_only_if_it_is_still_missing():
    journal = MemoryJournal()
    early, late = bare_run("early"), bare_run("late")
    journal.begin(late)
    journal.withdraw([late, early])
    assert journal.prompts == ["late", "early"]
    assert journal.endings == {"late": Outcome.cancelled(), "early": Outcome.cancelled()}


async def test_the_life_of_a_run_that_waits_and_of_one_that_is_folded_is_written_down():
    gate = Gate()
    journal = MemoryJournal()
    turns = ScriptedTurns({"one": [Pause(gate), Fold()]})
    async with open_test_workspace(turns, journal=journal) as bench:
        for text, run_id in (("one", None), ("two", "named"), ("three", None)):
            bench.accept(text, run_id=run_id)
            await wait_all_tasks_blocked()
        gate.open()
        await bench.find("named").wait()
    assert journal.accepted == ["run-1", "run-2", "run-3"]
    assert journal.prompts == ["run-1", "run-3", "run-2"]
    assert journal.endings["run-3"] == Outcome.folded(RunId("run-1"))
    assert journal.endings["run-2"] == Outcome.completed(
        Completion(message_id="answer-run-2", text="done")
    )
