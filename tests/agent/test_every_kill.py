"""A turn that is killed at every single write: each time, the next start completes all of it.

A store in memory can be copied at any moment, and a copy made just before a write is what a kill at
that moment leaves behind. So one turn gives a crash for each of its writes, at no cost, in the same
order whenever the test is run. `tests/e2e/test_agent_crash.py` does the same with real processes.
"""

import pytest
import trio
from attrs import evolve
from trio.testing import MockClock

from crush_trio.store.changes import PartPut
from crush_trio.testing.explore.schedule import seeded
from crush_trio.testing.model.script import Say
from crush_trio.testing.server.agent import open_test_agent
from crush_trio.testing.server.faulty_store import FaultyStore
from crush_trio.wire.ids import ToolCallId
from crush_trio.wire.messages import Role, ToolResultPart
from crush_trio.wire.runs import RunKind, RunState
from tests.agent.durable import check_complete, memory, open_bench
from tests.agent.whole_turn import (
    FULL,
    NEXT,
    SUMMARY,
    WHOLE,
    Hands,
    check_settled,
    continues,
    new_store,
    play,
    scripted_model,
    sends_prompt,
    sessions_of,
)
from tests.store.stores import STOP, call, message, run, text


def sends_several(bench):
    """Send a prompt, and behind it a summary and another prompt, which have to wait."""
    run = sends_prompt(bench)
    bench.accept("", run_id="summary", kind=RunKind.SUMMARIZE)
    bench.accept("later", run_id="later")
    return run


CROWDED = evolve(
    WHOLE,
    name="crowded",
    answers={**SUMMARY.answers, **WHOLE.answers, "later": [[Say("yes")]]},
    go=sends_several,
)


def run_seeded(seed, async_fn, *args):
    with seeded(seed):
        return trio.run(async_fn, *args, clock=MockClock(autojump_threshold=0))


async def left_by_kills(scenario):
    """Play a scenario; return what a kill before each of its writes would leave."""
    store, left = FaultyStore(await new_store()), []

    def begin(_played):
        store.watch = lambda _changes: left.append(store.inner.reopened(f"after {len(left)}"))

    played = await play(scenario, begin, store=store)
    await check_settled(played)
    return left


async def check_recovered(store, scenario):
    """Open what a kill has left: everything has its ending, and the next prompt works."""
    accepted = {run.id for run in await store.runs(limit=1000)}
    async with open_test_agent(scripted_model(scenario), Hands().tools(), store=store) as bench:
        recovered = bench.workspace.recovery.ended
        runs = await check_complete(store, *await sessions_of(store), besides=continues)
        assert runs.keys() == accepted
        assert {view.state for view in recovered} <= {RunState.INTERRUPTED}
        assert [view.id for view in bench.recorder.endings] == []
        assert (await bench.accept(NEXT, run_id="again").wait()).text == "yes"
    return len(recovered)


@pytest.mark.explored
@pytest.mark.item("A33", "B1", "D15", "D16", "D17")
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    "scenario", [WHOLE, SUMMARY, FULL, CROWDED], ids=lambda scenario: scenario.name
)
def test_whichever_write_a_kill_prevents_the_next_start_completes_every_turn(scenario, seed):
    left = run_seeded(seed, left_by_kills, scenario)
    recovered = []
    for number, store in enumerate(left):
        try:
            recovered.append(run_seeded(seed, check_recovered, store, scenario))
        except BaseException as exc:
            exc.add_note(f"killed before write {number}")
            raise
    assert len(left) > 15
    assert max(recovered) >= 1


@pytest.mark.item("C10", "D17")
async def test_a_summary_that_waited_leaves_the_answer_of_the_active_run_to_that_run():
    waiting = run("waiting", seq=1, prompt="")
    part = ToolResultPart(tool_call_id=ToolCallId("c"), name="look", content="seen")
    store = await memory()
    await store.commit(
        evolve(waiting, run=evolve(waiting.run, kind=RunKind.SUMMARIZE)),
        run("active", seq=2),
        message("active", text("hello"), STOP, role=Role.USER, run_id="active"),
        message("answer", run_id="active"),
        PartPut(message_id="answer", index=0, part=call("c", finished=True), at=100),
        message("result", part, STOP, role=Role.TOOL, run_id="active"),
    )
    async with open_bench(store=store.reopened("again")) as bench:
        first, second = bench.workspace.recovery.ended
        await check_complete(bench.store)
    assert (first.id, second.id) == ("waiting", "active")
    assert second.message_id == "answer" != first.message_id
