"""`ScriptedTurns`: every step does what it says, and the book it keeps can be trusted."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from crush_trio.events import MessageChange
from crush_trio.testing import Gate
from crush_trio.testing.server.turns import Do, Fail, Fold, Pause, Say, ScriptedTurns, Sleep, prompt
from crush_trio.testing.server.workspace import open_test_workspace
from crush_trio.wire.events import EventType
from crush_trio.wire.messages import FinishPart, TextPart
from crush_trio.wire.runs import RunKind, RunState


async def in_line(run):
    """Let *run* take its place before anything else happens."""
    await wait_all_tasks_blocked()
    return run


# ── Steps ──────────────────────────────────────────────────────────────────────────────────────


async def test_a_prompt_plays_its_own_script_and_others_the_default():
    turns = ScriptedTurns({"hi": [Say("Hel"), Say("lo")], "hush": []}, default=[Say("what?")])
    async with open_test_workspace(turns) as bench:
        answers = [(await bench.accept(text).wait()).text for text in ("hi", "hush", "eh")]
    assert answers == ["Hello", "", "what?"]
    assert (await one_answer(ScriptedTurns())).text == "done"


async def one_answer(turns):
    async with open_test_workspace(turns) as bench:
        return await bench.accept("anything").wait()


async def test_an_answer_is_created_grows_and_is_finished():
    async with open_test_workspace(ScriptedTurns({"hi": [Say("Hel"), Say("lo")]})) as bench:
        cursor = bench.events.cursor()
        run = bench.accept("hi")
        changes = []
        while not run.ended:
            await trio.lowlevel.checkpoint()
            events = cursor.take().events
            changes += [e for e in events if isinstance(e, MessageChange)]
    answer = [change for change in changes if change.message_id == f"answer-{run.id}"]
    assert answer[0].change is EventType.CREATED
    assert [change.plain for change in answer] == [False, *[True] * (len(answer) - 2), False]
    assert answer[-1].message.parts[0] == TextPart(text="Hello")
    assert isinstance(answer[-1].message.parts[-1], FinishPart)


async def test_a_turn_without_words_has_no_answer():
    async with open_test_workspace(ScriptedTurns(default=())) as bench:
        outcome = await bench.accept("hi").wait()
        assert (outcome.message_id, outcome.text) == ("", "")
        assert list(bench.recorder.messages) == ["prompt-run-1"]


async def test_a_pause_stands_until_its_gate_is_opened_and_ends_with_a_cancel():
    gate = Gate()
    async with open_test_workspace(ScriptedTurns(default=[Say("so far"), Pause(gate)])) as bench:
        stopped, patient = bench.accept("a", "a"), bench.accept("b", "b")
        await gate.reached(2)
        await bench.cancel("a").settled()
        assert (stopped.outcome.state, stopped.outcome.text) == (RunState.CANCELLED, "so far")
        assert not patient.ended
        gate.open()
        assert (await patient.wait()).text == "so far"


async def test_sleep_takes_virtual_time():
    async with open_test_workspace(ScriptedTurns(default=[Sleep(3600)])) as bench:
        began = trio.current_time()
        await bench.accept("hi").wait()
        assert trio.current_time() - began == pytest.approx(3600)


async def test_fail_raises_its_error_after_what_was_said():
    script = [Say("so far"), Fail(ValueError("boom")), Say("never said")]
    async with open_test_workspace(ScriptedTurns(default=script)) as bench:
        outcome = await bench.accept("hi").wait()
        assert (outcome.state, outcome.error) == (RunState.ERRORED, "boom")
        assert outcome.text == "so far"


async def test_do_is_given_the_run_and_waited_for():
    seen = []

    async def look(run):
        await trio.sleep(5)
        seen.append((run.id, run.prompt))

    async with open_test_workspace(ScriptedTurns(default=[Do(look)])) as bench:
        await bench.accept("hi").wait()
    assert seen == [("run-1", "hi")]


async def test_a_cancel_during_a_step_that_never_waits_is_noticed_after_it():
    async def cancel(run):
        run.accepted.cancel()

    script = [Do(cancel), Say("never said")]
    async with open_test_workspace(ScriptedTurns(default=script)) as bench:
        outcome = await bench.accept("hi").wait()
        assert (outcome.state, outcome.text) == (RunState.CANCELLED, "")


# ── The book ───────────────────────────────────────────────────────────────────────────────────


async def test_it_knows_who_started_and_who_was_folded_by_whom():
    first, second = Gate(), Gate()
    turns = ScriptedTurns({"host": [Pause(first), Fold(), Pause(second), Fold()]})
    async with open_test_workspace(turns) as bench:
        host = await in_line(bench.accept("host"))
        for text in ("a", "b"):
            await in_line(bench.accept(text))
        await in_line(bench.accept("named", run_id="named"))
        first.open()
        await second.reached()
        await in_line(bench.accept("c"))
        second.open()
        await bench.find("named").wait()
    assert turns.started == ["host", "named"]
    assert turns.folded == {host.id: ["a", "b", "c"]}
    assert turns.overlaps == []


@pytest.mark.item("A12")
async def test_two_runs_at_once_in_one_session_are_noticed():
    """Two workspaces that know nothing of each other stand in for a core that lets it happen."""
    gate = Gate()
    turns = ScriptedTurns(default=[Pause(gate)])
    async with open_test_workspace(turns) as one, open_test_workspace(turns) as other:
        await in_line(one.accept("a", "shared"))
        await in_line(other.accept("b", "alone"))
        assert turns.overlaps == []
        await in_line(other.accept("c", "shared"))
        assert turns.overlaps == ["shared"]
        gate.open()


@pytest.mark.parametrize("ending", ["completed", "errored", "cancelled"])
async def test_runs_one_after_another_are_no_overlap_however_they_end(ending):
    scripts = {"completed": (), "errored": [Fail(ValueError())], "cancelled": [Pause(Gate())]}
    turns = ScriptedTurns(scripts, default=())
    async with open_test_workspace(turns) as bench:
        first = await in_line(bench.accept(ending))
        bench.workspace.cancel_all()
        assert (await first.wait()).state == ending
        await bench.accept("second").wait()
    assert (turns.started, turns.overlaps) == ([ending, "second"], [])


# ── Submissions ────────────────────────────────────────────────────────────────────────────────


def test_a_prompt_needs_little_typing_and_takes_everything_else():
    plain = prompt("hi")
    assert (plain.prompt, plain.session_id, plain.run_id) == ("hi", "s", None)
    full = prompt("", "t", "mine", kind=RunKind.SUMMARIZE)
    assert (full.session_id, full.run_id, full.kind) == ("t", "mine", RunKind.SUMMARIZE)
    with pytest.raises(TypeError):
        prompt("hi", colour="blue")
