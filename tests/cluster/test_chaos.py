"""A cluster of processes on a real PostgreSQL, with one kind of fault after another (`benchmarks.chaos`).

`make chaos ROUNDS=60 SEED=7` plays more of the same.
"""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from benchmarks.chaos.counts import table
from benchmarks.chaos.rounds import Play
from benchmarks.chaos.scenarios import SCENARIOS

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.real_clock]

ROOT = Path(__file__).parents[2]
ROUNDS = 10
SEED = 1

TAKEN_OVER = ("kill", "suspend", "claim", "forward", "drain")
"""Where every round has another owner afterwards."""


@pytest.mark.parametrize("name", SCENARIOS)
async def test_every_promise_is_kept_whatever_fails(name, tmp_path, record_property):
    play = Play(name, SEED, ROUNDS, tmp_path / name, lambda _: None)
    await play.run()
    counts = play.counts
    record_property("chaos", (name, dict(counts)))
    assert not play.broken, f"{play.broken}\n{table({name: counts})}"
    assert counts["rounds"] == ROUNDS
    assert counts["prompts accepted"] >= 13 * ROUNDS
    assert counts["ended: completed"] > ROUNDS
    assert counts["forwarded requests"] > ROUNDS
    assert counts["texts compared"] > ROUNDS
    if name in TAKEN_OVER:
        assert counts["takeovers"] >= ROUNDS


CHILDREN = """
import sys, trio
from pathlib import Path
from benchmarks.chaos.cluster import open_cluster

async def main():
    async with open_cluster(Path(sys.argv[1])) as cluster:
        print(cluster.primary.pid, *(node.pid for node in cluster.nodes), flush=True)
        await trio.sleep_forever()

trio.run(main)
"""


async def test_a_program_that_is_killed_leaves_no_node_and_no_database(tmp_path):
    command = [sys.executable, "-c", CHILDREN, str(tmp_path)]
    process = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE, cwd=ROOT)
    async with process.stdout:
        line = await process.stdout.receive_some()
        process.send_signal(signal.SIGKILL)
        await process.wait()
    pids = [int(pid) for pid in line.split()]
    assert len(pids) == 4
    with trio.fail_after(60):
        while any(map(alive, pids)):  # noqa: ASYNC110 - no process of ours tells when they are gone
            await trio.sleep(0.05)


def alive(pid):
    try:
        return ") Z" not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
