"""What a submission may ask for when its session is busy, and what may be changed in the queue."""

import pytest
import trio
from attrs import evolve
from trio.testing import wait_all_tasks_blocked

from crush_trio.errors import PromptEmpty, RunIdTaken, RunNotFound, RunNotQueued, SessionBusy
from crush_trio.testing import Gate
from crush_trio.testing.explore import explore
from crush_trio.testing.server.turns import Do, Fold, Pause, ScriptedTurns, prompt
from crush_trio.testing.server.workspace import check_promises, open_test_workspace
from crush_trio.wire.ids import RunId
from crush_trio.wire.runs import RunState, WhenBusy, WhenUnclaimed

CANCELLED, COMPLETED, FOLDED = RunState.CANCELLED, RunState.COMPLETED, RunState.FOLDED


def held(gate, **more):
    """Return turns of which "one" stands at *gate*."""
    return ScriptedTurns({"one": [Pause(gate)], **more}, default=())


def interrupting(text, run_id=None):
    return prompt(text, run_id=run_id, when_busy=WhenBusy.INTERRUPT)


def rejecting(text, run_id=None):
    return prompt(text, run_id=run_id, when_busy=WhenBusy.REJECT)


def prompts(bench, session="s"):
    return [run.submission.prompt for run in bench.workspace.queue(session)]


async def endings(*runs):
    return tuple([(await run.wait()).state for run in runs])


# ── When the session is busy ────────────────────────────────────────────────────────────────────


async def test_a_prompt_that_will_not_wait_is_refused_while_a_run_is_active():
    gate = Gate()
    async with open_test_workspace(held(gate)) as bench:
        first = bench.accept("one")
        await gate.reached()
        with pytest.raises(SessionBusy):
            bench.workspace.accept(rejecting("two"))
        elsewhere = bench.workspace.accept(evolve(rejecting("three"), session_id="t"))
        gate.open()
        assert await endings(first, elsewhere) == (COMPLETED, COMPLETED)
        assert len(bench.recorder.endings) == 2


async def test_of_two_prompts_that_will_not_wait_one_is_accepted():
    async with open_test_workspace() as bench:
        first = bench.workspace.accept(rejecting("one"))
        with pytest.raises(SessionBusy):
            bench.workspace.accept(rejecting("two"))
        assert await endings(first) == (COMPLETED,)
        again = bench.workspace.accept(rejecting("three"))
        assert await endings(again) == (COMPLETED,)


async def test_an_interrupting_prompt_stops_what_there_is_and_runs():
    gate = Gate()
    turns = held(gate)
    async with open_test_workspace(turns) as bench:
        runs = [bench.accept("one"), bench.accept("two", run_id="2")]
        await gate.reached()
        elsewhere = bench.accept("one", session="t")
        await gate.reached(2)
        runs.append(bench.workspace.accept(interrupting("three")))
        assert await endings(*runs) == (CANCELLED, CANCELLED, COMPLETED)
        assert not elsewhere.ended
        assert turns.overlaps == []
        check_promises(bench, runs)


async def test_an_interrupting_prompt_for_an_idle_session_just_runs():
    async with open_test_workspace() as bench:
        assert await endings(bench.workspace.accept(interrupting("one"))) == (COMPLETED,)


async def test_the_same_run_id_under_another_policy_is_still_the_same_run():
    gate = Gate()
    async with open_test_workspace(held(gate)) as bench:
        first = bench.accept("one", run_id="1")
        await gate.reached()
        for policy in WhenBusy:
            assert bench.workspace.accept(prompt("one", run_id="1", when_busy=policy)) is first
        with pytest.raises(RunIdTaken):
            bench.workspace.accept(interrupting("another", run_id="1"))
        gate.open()
        assert await endings(first) == (COMPLETED,)


async def test_a_prompt_that_is_to_outlive_the_clients_is_not_folded():
    gate = Gate()
    turns = ScriptedTurns({"one": [Pause(gate), Fold()]}, default=())
    async with open_test_workspace(turns) as bench:
        runs = [bench.accept("one")]
        await gate.reached()
        runs.append(bench.accept("two"))
        runs.append(bench.workspace.accept(prompt("three", when_unclaimed=WhenUnclaimed.CONTINUE)))
        await wait_all_tasks_blocked()
        gate.open()
        assert await endings(*runs) == (COMPLETED, FOLDED, COMPLETED)


async def finish_interrupt():
    """The first run finishes while a prompt interrupts the session."""
    turns = ScriptedTurns(default=())
    async with open_test_workspace(turns) as bench:
        runs = [bench.accept("one", run_id="1"), bench.accept("two", run_id="2")]

        async def interrupt():
            await trio.lowlevel.checkpoint()
            runs.append(bench.workspace.accept(interrupting("three", run_id="3")))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(interrupt)
        result = await endings(*runs)
        check_promises(bench, runs)
        assert turns.overlaps == []
        assert result[2] is COMPLETED, "the interrupting prompt was hit by its own interruption"
    return result


@pytest.mark.parametrize(
    ("deviations", "endings"), [(1, 1), pytest.param(2, 2, marks=pytest.mark.long)]
)
def test_under_every_schedule_an_interruption_ends_each_run_once_and_its_own_completes(
    deviations, endings, report_exploration
):
    report = explore(finish_interrupt, deviations=deviations)
    report_exploration(report)
    assert report.exhaustive
    known = {(CANCELLED, CANCELLED, COMPLETED), (COMPLETED, CANCELLED, COMPLETED)}
    assert len(known & set(report.outcomes)) == endings


# ── The queue ───────────────────────────────────────────────────────────────────────────────────


async def test_an_edited_prompt_is_the_one_that_runs_and_is_recorded():
    gate = Gate()
    turns = held(gate)
    async with open_test_workspace(turns) as bench:
        first, second = bench.accept("one"), bench.accept("two", run_id="2")
        await gate.reached()
        await wait_all_tasks_blocked()
        assert bench.workspace.edit_queued(RunId("2"), "better") is second
        assert prompts(bench) == ["better"]
        assert bench.accept("two", run_id="2") is second  # still a repetition
        gate.open()
        assert await endings(first, second) == (COMPLETED, COMPLETED)
        assert turns.started == ["one", "better"]
        [stored] = [m for m in bench.messages() if m.id == f"prompt-{second.id}"]
        assert stored.parts[0].text == "better"


async def test_a_waiting_run_can_be_moved_and_the_order_is_the_one_they_run_in():
    gate = Gate()
    turns = held(gate)
    async with open_test_workspace(turns) as bench:
        bench.accept("one")
        await gate.reached()
        runs = []
        for text in ("a", "b", "c"):
            runs.append(bench.accept(text, run_id=text))
            await wait_all_tasks_blocked()
        bench.workspace.move_queued(RunId("c"), 0)
        assert prompts(bench) == ["c", "a", "b"]
        bench.workspace.move_queued(RunId("c"), 1)
        assert prompts(bench) == ["a", "c", "b"]
        bench.workspace.move_queued(RunId("a"), 99)
        assert prompts(bench) == ["c", "b", "a"]
        with pytest.raises(ValueError, match="-1"):
            bench.workspace.move_queued(RunId("a"), -1)
        gate.open()
        await endings(*runs)
        assert turns.started == ["one", "c", "b", "a"]


async def test_a_run_that_was_cancelled_takes_in_nothing_on_its_last_few_lines():
    gate = Gate()

    async def late(run):
        bench.workspace.run_now(RunId("2"))
        await run.fold()

    turns = ScriptedTurns({"one": [Pause(gate), Do(late)]}, default=())
    async with open_test_workspace(turns) as bench:
        first = bench.accept("one")
        await gate.reached()
        now = bench.workspace.accept(prompt("two", run_id="2", when_busy=WhenBusy.STEER))
        waiting = (bench.accept("other"), now)
        await wait_all_tasks_blocked()
        gate.open()
        assert await endings(first, *waiting) == (CANCELLED, COMPLETED, COMPLETED)


async def test_readers_are_told_that_the_queue_changed():
    gate = Gate()
    async with open_test_workspace(held(gate)) as bench:
        bench.accept("one")
        await gate.reached()
        waiting = bench.accept("two")
        await wait_all_tasks_blocked()
        before = bench.recorder.states(waiting.id).count(RunState.QUEUED)
        bench.workspace.edit_queued(waiting.id, "better")
        bench.workspace.move_queued(waiting.id, 0)
        assert bench.recorder.states(waiting.id).count(RunState.QUEUED) == before + 2


async def test_only_a_waiting_run_can_be_changed():
    gate = Gate()
    async with open_test_workspace(held(gate)) as bench:
        active = bench.accept("one")
        await gate.reached()
        waiting = bench.accept("two")
        await wait_all_tasks_blocked()
        ended = bench.accept("elsewhere", session="t")
        await ended.wait()
        for run in (active, ended):
            with pytest.raises(RunNotQueued):
                bench.workspace.edit_queued(run.id, "better")
            with pytest.raises(RunNotQueued):
                bench.workspace.move_queued(run.id, 0)
        with pytest.raises(RunNotFound):
            bench.workspace.edit_queued(RunId("unknown"), "better")
        with pytest.raises(PromptEmpty):
            bench.workspace.edit_queued(waiting.id, "")
        assert prompts(bench) == ["two"]
        bench.workspace.cancel_run(waiting.id)
        with pytest.raises(RunNotQueued):
            bench.workspace.edit_queued(waiting.id, "better")


# ── The task tree ───────────────────────────────────────────────────────────────────────────────


async def test_the_task_tree_says_who_waits_on_what_and_for_how_long():
    async def two_below(run):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one_below, name="child")
            nursery.start_soon(trio.sleep_forever, name="sibling")
            await trio.sleep_forever()

    async def one_below():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever, name="grandchild")

    gate = Gate()
    turns = held(gate, parent=[Do(two_below)])
    async with open_test_workspace(turns) as bench:
        active = bench.accept("one")
        await gate.reached()
        await trio.sleep(3)
        waiting = bench.accept("two")
        parent = bench.accept("parent", session="t")
        await trio.sleep(2)
        views = {view.run: view for view in bench.workspace.tasks().runs}
        assert list(views) == [active.id, *sorted([waiting.id, parent.id])]
        assert [views[run.id].state for run in (active, waiting)] == ["active", "queued"]
        assert [views[run.id].seconds for run in (active, waiting)] == [5.0, 2.0]
        assert views[active.id].waits_on.function == "Gate.wait"
        assert views[active.id].waits_on.module == "crush_trio.testing.explore.checkpoints"
        assert views[waiting.id].waits_on.function == "AcceptedRun.enter"
        assert views[parent.id].waits_on.function.endswith("two_below")
        assert [(task.name, task.depth) for task in views[parent.id].below] == [
            ("child", 1),
            ("grandchild", 2),
            ("sibling", 1),
        ]
        assert views[parent.id].below[0].waits_on.function.endswith("one_below")
        assert views[active.id].below == ()
