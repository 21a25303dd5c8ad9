"""Whether a start of the program ended in good order, if its event log closed before its runs ended."""

import pytest
from trio.testing import wait_all_tasks_blocked

from crush_trio.agent.record.journal import open_recorded_runs
from crush_trio.clock import CountingIds, TrioClock
from crush_trio.runtime.outcome import Submission
from crush_trio.store.memory.store import MemoryStore
from crush_trio.testing.server.server import WrittenTurns
from crush_trio.testing.server.turns import Say, Sleep
from tests.store.stores import S, session


@pytest.mark.parametrize("early", [False, True])
async def test_a_log_that_closed_before_the_last_ending_makes_readers_resync(early):
    store = MemoryStore("first")
    await store.commit(session())
    turns = WrittenTurns({"hello": [Say("Hel"), Sleep(1000)]})
    async with open_recorded_runs(store, turns, clock=TrioClock(), ids=CountingIds()) as recorded:
        recorded.runs.accept(Submission(session_id=S, prompt="hello"))
        await wait_all_tasks_blocked()
        if early:
            recorded.events.close()
    [run] = await store.runs()
    assert run.state.terminal
    missed = await store.reopened("second").tail_after("first", 0)
    assert (missed is None) == early
