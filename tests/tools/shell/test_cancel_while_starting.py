"""A cancel while a command starts, with a guard that does not get on: only the command is ended."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from crush_trio.tools.shell.guard.process_table import ProcessId
from crush_trio.tools.shell.guard.subreaper import signal_group
from tests.tools import sacrifice
from tests.tools.altered_guard import FOR_EVER
from tests.tools.process_probe import Probe

ROOT = Path(__file__).parents[3]


@pytest.fixture
def probe(tmp_path):
    probe = Probe(tmp_path)
    yield probe
    probe.kill_all()


@pytest.mark.slow
@pytest.mark.real_clock
async def test_a_server_survives_a_cancel_at_every_checkpoint_whatever_its_guard_is_late_with(
    probe,
):
    """The server once sent SIGKILL to its own process group, which has the number 0."""
    with trio.fail_after(60):
        server = await trio.run_process(
            [sys.executable, sacrifice.__file__, probe.token, probe.sleep],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            start_new_session=True,
            capture_stdout=True,
            stderr=subprocess.DEVNULL,
            check=False,
        )
    assert server.returncode == 0
    told = {tuple(line.split(",")) for line in server.stdout.decode().splitlines()}
    assert told == {
        (stage, str(checkpoint), "True", "0")
        for stage in FOR_EVER
        for checkpoint in range(sacrifice.CHECKPOINTS)
    }
    assert probe.left() == []


@pytest.mark.parametrize("number", [1, 0, -1, -4711])
def test_what_is_no_single_process_cannot_be_signalled(number):
    with pytest.raises(ValueError, match="not the id of a process"):
        ProcessId(number)


OWN_GROUP = """
import os, signal
from crush_trio.tools.shell.guard.process_table import ProcessId
from crush_trio.tools.shell.guard.subreaper import signal_group
signal_group(ProcessId(os.getpgrp()), signal.SIGKILL)
print("survived")
"""


@pytest.mark.slow
def test_a_process_does_not_signal_its_own_group():
    done = subprocess.run(
        [sys.executable, "-c", OWN_GROUP],
        cwd=ROOT,
        start_new_session=True,
        capture_output=True,
        check=False,
    )
    assert done.stdout == b"survived\n"


def test_a_group_that_is_gone_is_no_error():
    process = subprocess.Popen(["true"], start_new_session=True)
    process.wait()
    signal_group(ProcessId(process.pid), 0)
