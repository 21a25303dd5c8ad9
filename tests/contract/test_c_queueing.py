"""Section C: prompts that arrive while their session is busy.

C7 is tested as corrected by L11, C8 and C10 by L12: there are no untracked calls, and summarising is
a run like any other. C9 and the sampling options of C5 belong to the agent.
"""

import orjson
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from crush_trio.events import Form, MessageChange
from crush_trio.runtime.journal import MemoryJournal
from crush_trio.testing.explore.checkpoints import Gate
from crush_trio.testing.server.faults import FaultyJournal, JournalFault
from crush_trio.testing.server.turns import Fail, Fold, Pause, Say, ScriptedTurns, Sleep, prompt
from crush_trio.testing.server.workspace import open_test_workspace
from crush_trio.wire.events import EventType
from crush_trio.wire.ids import SessionId
from crush_trio.wire.messages import Role, TextPart
from crush_trio.wire.runs import RunKind, RunState

S = SessionId("s")


def queue(bench):
    return [run.submission.prompt for run in bench.workspace.queue(S)]


def asked(bench):
    """What the user said in the session, in the order in which it was stored."""
    return [
        next(part.text for part in message.parts if isinstance(part, TextPart))
        for message in bench.messages()
        if message.role is Role.USER
    ]


def completed_run_ids(reader):
    frames = reader.take().encode(Form.CRUSH).split(b"\n\n")[:-1]
    events = [orjson.loads(frame.removeprefix(b"data: ")) for frame in frames]
    return [
        event["payload"]["payload"].get("run_id")
        for event in events
        if event["type"] == "run_complete"
    ]


async def accept_in_order(bench, *prompts, run_ids=False):
    """Accept prompts one after another, each when the one before has found its place."""
    accepted = []
    for text in prompts:
        accepted.append(bench.accept(text, run_id=text if run_ids else None))
        await wait_all_tasks_blocked()
    return accepted


# ── The queue ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.item("C1")
async def test_prompts_queue_up_in_the_order_of_acceptance_however_late_that_is_stored():
    gate = Gate()
    slow = JournalFault(method="accept", wanted=lambda run: run.submission.prompt == "slow")
    journal = FaultyJournal(MemoryJournal(), [slow])
    turns = ScriptedTurns({"first": [Pause(gate)]})
    async with open_test_workspace(turns, journal=journal) as bench:
        bench.accept("first")
        await gate.reached()
        await accept_in_order(bench, "slow", "b", "c", run_ids=True)
        assert queue(bench) == []
        journal.heal()
        await wait_all_tasks_blocked()
        assert queue(bench) == ["slow", "b", "c"]
        gate.open()
        await bench.find("c").wait()
        assert turns.started == ["first", "slow", "b", "c"]


@pytest.mark.item("C2")
async def test_a_step_folds_prompts_without_run_id_and_keeps_the_others_in_order():
    gate, stand = Gate(), Gate("stand still after folding")
    turns = ScriptedTurns({"first": [Pause(gate), Fold(), Pause(stand)]})
    async with open_test_workspace(turns) as bench:
        first = bench.accept("first")
        await gate.reached()
        for text, run_id in [("a", None), ("b", "b"), ("c", None), ("d", "d"), ("e", None)]:
            bench.accept(text, run_id=run_id)
            await wait_all_tasks_blocked()
        gate.open()
        await stand.reached()
        assert turns.folded == {first.id: ["a", "c", "e"]}
        assert queue(bench) == ["b", "d"]


@pytest.mark.item("C2")
async def test_every_step_folds_again_and_takes_nothing_that_was_cancelled():
    gates = [Gate("before step 1"), Gate("before step 2")]
    script = [Pause(gates[0]), Fold(), Pause(gates[1]), Fold()]
    turns = ScriptedTurns({"first": script})
    async with open_test_workspace(turns) as bench:
        first = bench.accept("first")
        await gates[0].reached()
        a, dropped = await accept_in_order(bench, "a", "dropped")
        bench.workspace.cancel_run(dropped.id)
        gates[0].open()
        await gates[1].reached()
        assert turns.folded == {first.id: ["a"]}
        (b,) = await accept_in_order(bench, "b")
        gates[1].open()
        await first.wait()
        assert turns.folded == {first.id: ["a", "b"]}
        states = [(await run.wait()).state for run in (a, dropped, b)]
        assert states == [RunState.FOLDED, RunState.CANCELLED, RunState.FOLDED]


@pytest.mark.item("C3")
async def test_folded_prompts_become_user_messages_in_queue_order():
    gate = Gate()
    turns = ScriptedTurns({"first": [Pause(gate), Fold(), Say("answer")]})
    async with open_test_workspace(turns) as bench:
        first = bench.accept("first")
        await gate.reached()
        await accept_in_order(bench, "a", "b", "c")
        gate.open()
        await first.wait()
        assert asked(bench) == ["first", "a", "b", "c"]
        changes = [event for event in bench.recorder.events if isinstance(event, MessageChange)]
        assert {change.change for change in changes[:4]} == {EventType.CREATED}
        assert [change.message for change in changes[:4]] == bench.messages()
        assert {change.message.role for change in changes[4:]} == {Role.ASSISTANT}


@pytest.mark.item("C3")
async def test_prompts_that_cannot_be_recorded_fail_the_run_and_are_not_folded():
    gate = Gate()
    turns = ScriptedTurns({"first": [Pause(gate), Fold()]})
    fault = JournalFault(method="fold", error=OSError("full"))
    journal = FaultyJournal(MemoryJournal(), [fault])
    async with open_test_workspace(turns, journal=journal) as bench:
        first = bench.accept("first")
        await gate.reached()
        waiting = await accept_in_order(bench, "good", "bad", "last")
        gate.open()
        assert (await first.wait()).state is RunState.ERRORED
        assert turns.folded == {}
        assert {(await run.wait()).state for run in waiting} == {RunState.COMPLETED}
        assert turns.started == ["first", "good", "bad", "last"], "they had turns of their own"


@pytest.mark.item("C4")
async def test_a_folded_prompt_has_no_completion_and_no_turn_of_its_own():
    gate = Gate()
    turns = ScriptedTurns({"first": [Pause(gate), Fold(), Say("for both")]})
    async with open_test_workspace(turns) as bench:
        reader = bench.events.cursor(Form.CRUSH)
        first = bench.accept("first", run_id="mine")
        await gate.reached()
        (folded,) = await accept_in_order(bench, "a")
        gate.open()
        await first.wait()
        outcome = await folded.wait()
        assert (outcome.state, outcome.folded_into) == (RunState.FOLDED, first.id)
        assert completed_run_ids(reader) == ["mine"]
        assert turns.started == ["first"]
        answers = [m for m in bench.recorder.messages.values() if m.role is Role.ASSISTANT]
        assert len(answers) == 1


# ── Turns of their own ─────────────────────────────────────────────────────────────────────────


@pytest.mark.item("C5")
@pytest.mark.parametrize("seed", range(5))
async def test_kept_prompts_run_one_after_another_first_in_first_out(seed):
    gate = Gate()
    script = [Fold(), Say("x"), Sleep(1)]
    turns = ScriptedTurns({"first": [Pause(gate), *script]}, default=script)
    async with open_test_workspace(turns) as bench:
        reader = bench.events.cursor(Form.CRUSH)
        bench.accept("first", run_id="first")
        await gate.reached()
        runs = await accept_in_order(bench, "a", "b", "c", "d", run_ids=True)
        gate.open()
        await runs[-1].wait()
        assert turns.started == ["first", "a", "b", "c", "d"]
        assert completed_run_ids(reader) == turns.started
        assert turns.overlaps == []


@pytest.mark.item("C5")
async def test_a_run_that_fails_or_is_cancelled_hands_over_to_the_next():
    gate = Gate()
    scripts = {"fails": [Pause(gate), Fail(ValueError("no"))], "stopped": [Pause(Gate())]}
    turns = ScriptedTurns(scripts)
    async with open_test_workspace(turns) as bench:
        runs = await accept_in_order(bench, "fails", "stopped", "last", run_ids=True)
        gate.open()
        await wait_all_tasks_blocked()
        assert runs[1].state is RunState.ACTIVE
        bench.workspace.cancel_run(runs[1].id)
        ends = [(await run.wait()).state for run in runs]
        assert ends == [RunState.ERRORED, RunState.CANCELLED, RunState.COMPLETED]


@pytest.mark.item("C6")
async def test_a_prompt_that_comes_after_the_last_step_gets_a_turn_of_its_own():
    gate = Gate()
    turns = ScriptedTurns({"first": [Fold(), Pause(gate)]})
    async with open_test_workspace(turns) as bench:
        reader = bench.events.cursor(Form.CRUSH)
        first = bench.accept("first")
        await gate.reached()
        (late,) = await accept_in_order(bench, "late")
        gate.open()
        await first.wait()
        assert (await late.wait()).state is RunState.COMPLETED
        assert turns.started == ["first", "late"]
        assert completed_run_ids(reader) == [None, None]


@pytest.mark.item("C7")
@pytest.mark.parametrize("seed", range(10))
async def test_nobody_slips_in_between_a_finished_run_and_the_first_in_line(seed):
    gate = Gate()
    turns = ScriptedTurns({"first": [Pause(gate)]})
    async with open_test_workspace(turns) as bench:
        first, waiting = await accept_in_order(bench, "first", "waiting", run_ids=True)
        never_idle = []

        async def intrude():
            await first.wait()
            never_idle.append(bench.workspace.session_busy(S))
            await bench.accept("intruder", run_id="intruder").wait()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(intrude)
            gate.open()
        await waiting.wait()
        assert turns.started == ["first", "waiting", "intruder"]
        assert turns.overlaps == []
        assert never_idle == [True]


@pytest.mark.item("C8")
async def test_a_cancel_drops_what_is_in_line_now_and_nothing_that_comes_later():
    gate = Gate()
    turns = ScriptedTurns({"first": [Pause(gate)]})
    async with open_test_workspace(turns) as bench:
        bench.cancel()
        hit = await accept_in_order(bench, "first", "a", "b")
        receipt = bench.cancel()
        later = bench.accept("later")
        bench.cancel("elsewhere")
        await receipt.settled()
        assert [hit.run for hit in receipt.hits] == hit
        assert {run.outcome.state for run in hit} == {RunState.CANCELLED}
        assert (await later.wait()).state is RunState.COMPLETED


@pytest.mark.item("C10")
async def test_prompts_that_come_during_a_summary_wait_for_it_and_then_run_in_order():
    gate = Gate()
    turns = ScriptedTurns({"": [Pause(gate), Fold()]})
    async with open_test_workspace(turns) as bench:
        reader = bench.events.cursor(Form.CRUSH)
        summary = bench.workspace.accept(prompt("", kind=RunKind.SUMMARIZE))
        await gate.reached()
        runs = await accept_in_order(bench, "a", "b", run_ids=True)
        assert [run.state for run in runs] == [RunState.QUEUED] * 2
        gate.open()
        await runs[-1].wait()
        assert summary.outcome.state is RunState.COMPLETED
        assert turns.started == ["", "a", "b"]
        assert completed_run_ids(reader) == [None, "a", "b"]


@pytest.mark.item("C10")
async def test_a_summary_waits_its_turn_and_is_never_folded():
    gate = Gate()
    turns = ScriptedTurns({"first": [Pause(gate), Fold()]})
    async with open_test_workspace(turns) as bench:
        bench.accept("first")
        await gate.reached()
        summary = bench.workspace.accept(prompt("", kind=RunKind.SUMMARIZE))
        await wait_all_tasks_blocked()
        gate.open()
        assert (await summary.wait()).state is RunState.COMPLETED
        assert turns.started == ["first", ""]
