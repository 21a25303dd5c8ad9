"""`open_test_workspace`: everything real except the model, the disk and the clock."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from crush_trio.clock import TrioClock
from crush_trio.errors import RunNotFound
from crush_trio.events.log import Window
from crush_trio.runtime import Completion, Limits, MemoryJournal
from crush_trio.testing import Gate
from crush_trio.testing.explore import explore
from crush_trio.testing.server.faults import FaultyJournal, JournalFault
from crush_trio.testing.server.turns import Pause, Say, ScriptedTurns
from crush_trio.testing.server.workspace import check_promises, open_test_workspace
from crush_trio.wire.runs import RunState


async def test_a_workspace_without_further_ado_answers_and_remembers():
    async with open_test_workspace() as bench:
        run = bench.accept("hello")
        assert (await run.wait()).text == "done"
        assert [message.id for message in bench.messages()] == ["prompt-run-1"]
        assert bench.transcript.rows == {"run-1": RunState.COMPLETED}
        assert bench.messages("another session") == []
        check_promises(bench, [run])


async def test_ids_count_and_stamps_follow_virtual_time():
    async with open_test_workspace() as bench:
        await trio.sleep(1000)
        runs = [bench.accept(str(n)) for n in range(3)]
        assert [run.id for run in runs] == ["run-1", "run-2", "run-3"]
        assert {run.view.accepted_at for run in runs} == {TrioClock().unix()}
        assert bench.events.boot == "boot"


async def test_any_turn_will_do():
    async def turn(run):
        await trio.lowlevel.checkpoint()
        return Completion(text=run.prompt.upper())

    async with open_test_workspace(turn) as bench:
        assert (await bench.accept("hello").wait()).text == "HELLO"


async def test_the_recorder_has_read_everything_whenever_it_is_asked():
    async with open_test_workspace() as bench:
        run = bench.accept("hello", run_id="mine")
        assert bench.recorder.events == []
        await run.wait()
        assert bench.recorder.states("mine")[-1] is RunState.COMPLETED
        assert bench.recorder is bench.recorder
    assert bench.recorder.endings_per_run == {"run-1": 1}


async def test_cancel_and_find_speak_plain_strings():
    async with open_test_workspace(ScriptedTurns(default=[Pause(Gate())])) as bench:
        run = bench.accept("hello", "t", run_id="mine")
        await wait_all_tasks_blocked()
        assert bench.cancel().hits == ()
        assert [hit.run for hit in bench.cancel("t").hits] == [run]
        assert bench.find("mine") is bench.find("run-1") is run
        with pytest.raises(RunNotFound):
            bench.find("nobody")


async def test_a_journal_of_ones_own_takes_the_place_of_the_transcript():
    journal = MemoryJournal()
    async with open_test_workspace(journal=journal) as bench:
        await bench.accept("hello").wait()
    assert journal.accepted == ["run-1"]
    assert (bench.transcript.rows, bench.messages()) == ({}, [])


async def test_limits_reach_the_workspace():
    journal = FaultyJournal(MemoryJournal(), [JournalFault(method="accept")])
    async with open_test_workspace(journal=journal, limits=Limits(accept=2)) as bench:
        began = trio.current_time()
        await bench.accept("hello").wait_ended()
        assert trio.current_time() - began == pytest.approx(2)


async def test_the_window_reaches_the_log():
    turns = ScriptedTurns(default=[Say("x")] * 20)
    async with open_test_workspace(turns, window=Window(events=4)) as bench:
        runs = [bench.accept(str(n)) for n in range(5)]
        for run in runs:
            await run.wait()
        assert len(bench.recorder.resyncs) == 1
        assert bench.recorder.endings_per_run == {run.id: 1 for run in runs}


async def test_the_tick_reaches_the_log():
    async with open_test_workspace(tick=30) as bench:
        await wait_all_tasks_blocked()
        assert bench.events.tick == 30


async def test_leaving_the_block_stops_the_workspace_and_closes_the_log():
    async with open_test_workspace(ScriptedTurns(default=[Pause(Gate())])) as bench:
        run = bench.accept("hello")
        await wait_all_tasks_blocked()
        assert not bench.events.closed
    assert bench.events.closed
    check_promises(bench, [run])


async def test_an_exception_of_the_test_leaves_as_itself():
    error = ZeroDivisionError()

    async def fail():
        async with open_test_workspace() as bench:
            bench.accept("hello")
            raise error

    with pytest.raises(ZeroDivisionError) as caught:
        await fail()
    assert caught.value is error


def test_it_works_in_a_scenario_that_is_explored():
    async def scenario():
        async with open_test_workspace() as bench:
            run = bench.accept("hello")
            await trio.lowlevel.checkpoint()
            bench.cancel()
            await run.wait()
        check_promises(bench, [run])
        return run.outcome.state

    exploration = explore(scenario, deviations=1)
    assert exploration.schedules > 1
