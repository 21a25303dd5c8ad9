"""A server that cancels commands while they start, in a session of its own: it may die of that.

As a program: `python sacrifice.py <token> <script>`. For each stage at which a guard can halt, and each
checkpoint of starting a command, it starts one, cancels it there, and when it has seen its end, writes
a line: the stage, the checkpoint, whether the command was cancelled, how many processes are left.
"""

import os
import sys
from pathlib import Path

import trio

from crush_trio.clock import SystemClock
from crush_trio.testing.explore.checkpoints import Call, CheckpointFaults, Fault
from crush_trio.tools.shell.guard import link
from crush_trio.tools.shell.process import Command, open_process_group
from tests.tools.altered_guard import FOR_EVER, altered

GUARD = link.GUARD

CHECKPOINTS = 8
"""As many as a command is started in, and some after that."""

STARTS = 4.0
"""Seconds after which a command is cancelled if it has not come to the checkpoint."""


async def run(command, endings):
    async with open_process_group(
        command, clock=SystemClock(), grace=0.1, on_ended=endings.append
    ) as group:
        await group.wait()


async def cancel_at(checkpoint, stage, token, command):
    endings = []
    with trio.move_on_after(STARTS) as scope:
        faults = CheckpointFaults([Fault(checkpoint, Call(scope.cancel))])
        link.GUARD = altered(GUARD, stage, token)  # read before the first checkpoint
        await faults.drive(run(command, endings))
    left = sum(len(ended.left) for ended in endings)
    sys.stdout.write(f"{stage},{checkpoint},{scope.cancelled_caught},{left}\n")


async def main(token, script):
    env = {"PATH": os.environ["PATH"]}
    command = Command(argv=("/bin/sh", "-c", script), working_dir=Path("/"), env=env)
    async with trio.open_nursery() as nursery:
        for stage in FOR_EVER:
            for checkpoint in range(CHECKPOINTS):
                nursery.start_soon(cancel_at, checkpoint, stage, token, command)


if __name__ == "__main__":
    assert os.getpid() == os.getsid(0), "this program may kill its own process group"
    trio.run(main, sys.argv[1], sys.argv[2])
