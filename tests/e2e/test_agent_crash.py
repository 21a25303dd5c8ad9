"""An agent at work, killed at many points: nothing that was accepted is lost, and no process is left.

Each data directory lives through several kills, some of them during the recovery from the one
before, and is then opened in peace. What a client was told must be true of what is found there. After
every single kill, each command that the agent had started must be gone, with all that it started.
"""

import json
import random
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import trio

from crush_trio.agent.asks.asks import withdraw_orphans
from crush_trio.agent.record.journal import open_recorded_runs
from crush_trio.nursery import open_hidden_nursery
from crush_trio.store.sqlite.store import open_sqlite_store
from tests.agent.durable import check_complete, endings
from tests.e2e.agent_crash_worker import CLOCK, IDS, bearers, make_agent
from tests.tools.process_probe import ended

KILLS = 18
"""In each part."""
PARTS = 4
KILLS_PER_DIRECTORY = 6
GONE = 4.0
"""Seconds after a kill in which every process must have ended. A guard gives its command two."""

pytestmark = [pytest.mark.slow, pytest.mark.real_clock]


@pytest.fixture
def worker():
    """Return a function that has one order carried out by a process of its own."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.e2e.agent_crash_worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    ) as process:

        def carry_out(directory, where, n):
            directory.mkdir(exist_ok=True)
            token = f"{directory} {IDS.new()}"
            order = {"directory": str(directory), "where": where, "n": n, "token": token}
            process.stdin.write(json.dumps(order) + "\n")
            process.stdin.flush()
            answer = json.loads(process.stdout.readline())
            assert not answer["failed"], f"the workspace failed under {order}"
            return answer, token

        yield carry_out
        process.stdin.close()


# ── What is left ────────────────────────────────────────────────────────────────────────────────


async def wait_gone(token):
    """Wait until every command of a life has ended."""
    with trio.fail_after(GONE):
        while left := bearers(token):
            for pid in left:
                await ended(pid)


async def check_directory(directory):
    """Open what the kills have left, and compare it with what clients were told."""
    told = [line.split() for line in (directory / "told.txt").read_text().splitlines()]
    async with open_sqlite_store(directory / "data") as store, open_hidden_nursery() as jobs:
        agent = make_agent(directory, store, jobs, "nobody")
        async with open_recorded_runs(
            store, lambda transcript: agent.make_turn(transcript, store, IDS)
        ) as workspace:
            await workspace.recovery.done.wait()
            await withdraw_orphans(store, workspace.events.publish, CLOCK)
            assert await store.pending_asks() == []
            runs = {run.id: run for run in await store.runs(limit=100_000)}
            for what, state, run_id in told:
                assert run_id in runs, f"{run_id} was {what} and is gone"
                assert state in {"-", runs[run_id].state.value}, f"{run_id} was {state}"
            await check_complete(store, *{run.session_id for run in runs.values()})
            await store.check()
            assert set(Counter(view.id for view in endings(workspace.events)).values()) <= {1}
            return len(runs), len(workspace.recovery.ended)


@pytest.mark.item("A20", "A33", "B1")
@pytest.mark.parametrize(
    "part", [0, *(pytest.param(n, marks=pytest.mark.long) for n in range(1, PARTS))]
)
async def test_a_killed_agent_loses_nothing_it_accepted_and_leaves_no_process(
    worker, tmp_path, record_property, part
):
    calm = {}
    for where in ("step", "statement", "time"):
        answer, token = worker(tmp_path / f"calm {where}", where, 0)
        calm[where] = answer["seen"]
        assert bearers(token) == [], "an agent that ends in peace leaves nothing to wait for"
        await check_directory(tmp_path / f"calm {where}")
    choose = random.Random(20261116 + part)
    kills = runs = recovered = processes = 0
    while kills < KILLS:
        directory = tmp_path / f"killed {kills}"
        for _ in range(KILLS_PER_DIRECTORY):
            where = choose.choice(["step", "step", "statement", "time"])
            # A small number lands in the recovery from the kill before.
            limit = choose.choice([calm[where], calm[where], calm[where] // 6])
            answer, token = worker(directory, where, choose.randint(1, limit))
            kills += answer["killed"]
            processes += answer["processes"]
            await wait_gone(token)
        counts = await check_directory(directory)
        runs, recovered = runs + counts[0], recovered + counts[1]
        shutil.rmtree(directory)
    record_property(
        "crash",
        f"{kills} kills, {runs} runs, {recovered} recovered at the last open,"
        f" {processes} processes had to end after their server",
    )
    assert runs > KILLS
    assert recovered
    assert processes > KILLS // 4
