"""Prompts that steer: the active run takes them in at its next step, also those with a run id."""

import pytest
from attrs import evolve
from trio.testing import wait_all_tasks_blocked

from crush_trio.testing import Gate
from crush_trio.testing.server.faults import FaultyJournal, JournalFault
from crush_trio.testing.server.turns import Fold, Pause, ScriptedTurns, prompt
from crush_trio.testing.server.workspace import check_promises, open_test_workspace
from crush_trio.wire.asks import PermissionMode, PermissionPolicy
from crush_trio.wire.config import SelectedModel
from crush_trio.wire.requests import Attachment
from crush_trio.wire.runs import RunKind, RunState, WhenBusy, WhenUnclaimed

CANCELLED, COMPLETED, FOLDED = RunState.CANCELLED, RunState.COMPLETED, RunState.FOLDED
ALLOW = PermissionPolicy(mode=PermissionMode.ALLOW)
OTHER = SelectedModel(provider="p", model="m")


def steering(text, run_id=None, **more):
    return prompt(text, run_id=run_id, when_busy=WhenBusy.STEER, **more)


def turns_at(gate):
    """Return turns of which "one" stands at *gate* and then begins another step."""
    return ScriptedTurns({"one": [Pause(gate), Fold()]}, default=(Fold(),))


async def endings(*runs):
    return tuple([(await run.wait()).state for run in runs])


@pytest.mark.item("C2", "C3", "C4")
async def test_a_steering_prompt_with_a_run_id_is_folded_into_the_next_step():
    gate = Gate()
    turns = turns_at(gate)
    async with open_test_workspace(turns) as bench:
        runs = [bench.accept("one", run_id="1")]
        await gate.reached()
        runs.append(bench.accept("waits", run_id="2"))
        runs += [bench.workspace.accept(steering(text, text)) for text in ("left", "right")]
        await wait_all_tasks_blocked()
        gate.open()
        assert await endings(*runs) == (COMPLETED, COMPLETED, FOLDED, FOLDED)
        assert turns.folded[runs[0].id] == ["left", "right"]
        assert [run.outcome.folded_into for run in runs[2:]] == [runs[0].id] * 2
        assert turns.started == ["one", "waits"]
        check_promises(bench, runs)


async def test_a_steering_prompt_for_an_idle_session_is_an_ordinary_run():
    turns = ScriptedTurns(default=())
    async with open_test_workspace(turns) as bench:
        run = bench.workspace.accept(steering("one", "1"))
        assert await endings(run) == (COMPLETED,)
        assert turns.started == ["one"]


@pytest.mark.item("C6")
async def test_a_steering_prompt_that_comes_after_the_last_step_is_a_run_of_its_own():
    gate = Gate()
    turns = ScriptedTurns({"one": [Fold(), Pause(gate)]}, default=(Fold(),))
    async with open_test_workspace(turns) as bench:
        runs = [bench.accept("one", run_id="1")]
        await gate.reached()
        runs.append(bench.workspace.accept(steering("two", "2")))
        await wait_all_tasks_blocked()
        gate.open()
        assert await endings(*runs) == (COMPLETED, COMPLETED)
        assert turns.started == ["one", "two"]
        check_promises(bench, runs)


async def test_a_cancel_hits_a_steering_prompt_that_was_not_folded_yet():
    gate = Gate()
    turns = turns_at(gate)
    async with open_test_workspace(turns) as bench:
        runs = [bench.accept("one", run_id="1")]
        await gate.reached()
        runs.append(bench.workspace.accept(steering("two", "2")))
        await wait_all_tasks_blocked()
        receipt = bench.cancel()
        assert len(receipt.hits) == 2
        assert await endings(*runs) == (CANCELLED, CANCELLED)
        assert turns.started == ["one"]
        check_promises(bench, runs)


async def test_sending_a_steering_prompt_again_finds_the_folded_run():
    gate = Gate()
    async with open_test_workspace(turns_at(gate)) as bench:
        first = bench.accept("one", run_id="1")
        await gate.reached()
        second = bench.workspace.accept(steering("two", "2"))
        assert bench.workspace.accept(steering("two", "2")) is second
        await wait_all_tasks_blocked()
        gate.open()
        assert await endings(first, second) == (COMPLETED, FOLDED)
        assert bench.workspace.accept(steering("two", "2")) is second


async def test_attachments_come_along_with_a_steering_prompt():
    gate = Gate()
    taken = []
    notes = Attachment(file_path="n", file_name="n", mime_type="text/plain", content=b"notes")

    async def turn(run):
        await gate.wait()
        taken.extend(await run.fold())

    async with open_test_workspace(turn) as bench:
        first = bench.accept("one")
        await gate.reached()
        second = bench.workspace.accept(steering("see", "2", attachments=(notes,)))
        await wait_all_tasks_blocked()
        gate.open()
        assert await endings(first, second) == (COMPLETED, FOLDED)
        assert taken[0].attachments == (notes,)


async def test_the_run_that_takes_a_prompt_in_goes_on_without_clients_if_the_prompt_was_to():
    gate = Gate()
    async with open_test_workspace(turns_at(gate)) as bench:
        first = bench.accept("one")
        await gate.reached()
        stays = steering("two", "2", when_unclaimed=WhenUnclaimed.CONTINUE)
        second = bench.workspace.accept(stays)
        await wait_all_tasks_blocked()
        gate.open()
        assert await endings(first, second) == (COMPLETED, FOLDED)
        assert first.submission.when_unclaimed is WhenUnclaimed.CONTINUE


async def test_a_steering_prompt_whose_folding_cannot_be_stored_runs_by_itself():
    gate = Gate()
    turns = turns_at(gate)
    async with open_test_workspace(turns) as outer:
        fault = JournalFault(method="fold", error=OSError("disk full"))
        journal = FaultyJournal(outer.transcript, (fault,))
    async with open_test_workspace(turns, journal=journal) as bench:
        runs = [bench.accept("one", run_id="1")]
        await gate.reached()
        runs.append(bench.workspace.accept(steering("two", "2")))
        await wait_all_tasks_blocked()
        gate.open()
        assert await endings(*runs) == (RunState.ERRORED, COMPLETED)
        assert turns.started == ["one", "two"]


@pytest.mark.parametrize(
    ("mine", "active", "folds"),
    [
        ({}, {}, True),
        ({"when_unclaimed": WhenUnclaimed.CONTINUE}, {}, True),
        ({}, {"permissions": ALLOW}, False),
        ({"permissions": ALLOW}, {}, False),
        ({"permissions": ALLOW}, {"permissions": ALLOW}, True),
        ({"model": OTHER}, {}, False),
        ({"model": OTHER}, {"model": OTHER}, True),
        ({}, {"model": OTHER}, True),
        ({"record": True}, {}, False),
        ({"record": True}, {"record": True}, True),
        ({"kind": RunKind.SUMMARIZE}, {}, False),
    ],
)
def test_a_steering_prompt_is_folded_if_the_active_run_keeps_its_policies(mine, active, folds):
    wanted = steering("two", "2", **mine)
    assert wanted.folds_into(prompt("one", **active)) is folds
    assert not evolve(wanted, when_busy=WhenBusy.ENQUEUE).folds_into(prompt("one", **active))
