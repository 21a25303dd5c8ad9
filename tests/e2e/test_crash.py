"""Killed at three hundred points, sixty of them in `make test`, nothing that was accepted is lost.

Each data directory lives through several kills, some of them during the recovery from the one
before, and is then opened in peace. What a client was told must be true of what is found there.
"""

import json
import random
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from crush_trio.agent.record.journal import open_recorded_runs
from crush_trio.store.sqlite.store import open_sqlite_store
from crush_trio.wire.messages import FinishPart, Role, ToolCallPart, ToolResultPart
from tests.agent.durable import entries_of
from tests.e2e.crash_worker import SESSIONS, make_turn

KILLS = 60
"""In each part."""
PARTS = 5
KILLS_PER_DIRECTORY = 6

pytestmark = [pytest.mark.slow, pytest.mark.real_clock]


@pytest.fixture
def worker():
    """Return a function that has one order carried out by a process of its own."""
    with subprocess.Popen(
        [sys.executable, Path(__file__).with_name("crash_worker.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    ) as process:

        def carry_out(directory, where, n):
            directory.mkdir(exist_ok=True)
            order = {"directory": str(directory), "where": where, "n": n}
            process.stdin.write(json.dumps(order) + "\n")
            process.stdin.flush()
            answer = json.loads(process.stdout.readline())
            assert not answer["failed"], f"the workspace failed under {order}"
            return answer

        yield carry_out
        process.stdin.close()


async def check_directory(directory):
    """Open what the kills have left, and compare it with what clients were told."""
    told = [line.split() for line in (directory / "told.txt").read_text().splitlines()]
    async with (
        open_sqlite_store(directory / "data") as store,
        open_recorded_runs(store, make_turn) as workspace,
    ):
        await workspace.recovery.done.wait()
        assert await store.orphans() == []
        runs = {run.id: run for run in await store.runs(limit=100_000)}
        for what, run_id in told:
            assert run_id in runs, f"{run_id} was {what} and is gone"
        assert all(run.state.terminal for run in runs.values())
        for session_id in SESSIONS:
            await check_session(store, session_id, runs)
        await store.check()
        endings = Counter(entry.event.run.id for entry in endings_of(workspace.events))
        assert set(endings.values()) <= {1}
        return len(runs), len(workspace.recovery.ended)


def endings_of(events):
    return [entry for entry in entries_of(events) if entry.terminal]


async def check_session(store, session_id, runs):
    """Every message is finished, every tool call answered once, every prompt there once."""
    messages = await store.messages(session_id)
    assert await store.unfinished_messages(session_id) == []
    for message in messages:
        assert isinstance(message.parts[-1], FinishPart), f"{message} dangles"
    calls = Counter(p.id for m in messages for p in m.parts if isinstance(p, ToolCallPart))
    results = Counter(
        p.tool_call_id for m in messages for p in m.parts if isinstance(p, ToolResultPart)
    )
    assert calls == results
    prompts = Counter(message.id for message in messages if message.role is Role.USER)
    mine = [run for run in runs.values() if run.session_id == session_id]
    recorded = [(await store.run(run.id)).prompt_message_id for run in mine]
    assert Counter(recorded) == prompts


@pytest.mark.item("A33", "B1")
@pytest.mark.parametrize(
    "part", [0, *(pytest.param(n, marks=pytest.mark.long) for n in range(1, PARTS))]
)
async def test_nothing_that_was_accepted_is_lost_to_a_kill(worker, tmp_path, record_property, part):
    calm = {
        where: worker(tmp_path / f"calm {where}", where, 0)["seen"]
        for where in ("step", "statement")
    }
    assert all(calm.values())
    choose = random.Random(20261116 + part)
    kills = runs = recovered = 0
    while kills < KILLS:
        directory = tmp_path / f"killed {kills}"
        for _ in range(KILLS_PER_DIRECTORY):
            where = choose.choice(["step", "statement"])
            # A small number lands in the recovery from the kill before.
            limit = choose.choice([calm[where], calm[where], calm[where] // 6])
            kills += worker(directory, where, choose.randint(1, limit))["killed"]
        counts = await check_directory(directory)
        runs, recovered = runs + counts[0], recovered + counts[1]
        shutil.rmtree(directory)
    record_property("crash", f"{kills} kills, {runs} runs, {recovered} recovered at the last open")
    assert runs > KILLS
    assert recovered
