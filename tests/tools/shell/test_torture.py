"""Commands that do all they can to leave a process behind: nothing is left, seen from outside."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from crush_trio.clock import SystemClock
from crush_trio.tools.shell.process import Command, open_process_group
from tests.tools import torture
from tests.tools.process_probe import Probe, Watched

pytestmark = [pytest.mark.slow, pytest.mark.real_clock]

GRACE = 0.05
racy = pytest.mark.parametrize("times", [5, pytest.param(20, marks=pytest.mark.long)])
"""Repeats what depends on who is faster."""


@pytest.fixture
def probe(tmp_path):
    probe = Probe(tmp_path)
    yield probe
    probe.kill_all()


def tortures(probe, name):
    argv = (sys.executable, "-I", "-S", torture.__file__, name, probe.token)
    return Command(argv=argv, working_dir=Path("/"), env={"PATH": os.environ["PATH"]})


def seen(probe, *, guards=True):
    """Return what is there in any of several looks: one may miss a process that is never still."""
    return {pid for _ in range(5) for pid in probe.left(guards=guards)}


async def cancelled(command):
    """Return how a command ended that was cancelled as soon as it had begun."""
    stdout, endings = Watched(), []
    with trio.fail_after(20), trio.CancelScope() as scope:
        async with open_process_group(
            command,
            clock=SystemClock(),
            stdout=stdout,
            stderr=subprocess.STDOUT,
            grace=GRACE,
            on_ended=endings.append,
        ) as group:
            await stdout.shows("ready")
            scope.cancel()
            await group.wait()
    assert stdout.text() == "ready\n"
    [ended] = endings
    return ended


async def ran(probe, command):
    """Return how a command ended that was not disturbed. All is over before its block is left."""
    stdout = Watched()
    with trio.fail_after(20):
        async with open_process_group(
            command, clock=SystemClock(), stdout=stdout, stderr=subprocess.STDOUT, grace=GRACE
        ) as group:
            await group.wait()
            assert seen(probe, guards=False) == set()
    assert stdout.text() == "ready\n"
    assert seen(probe) == set()
    return group.ended


@racy
@pytest.mark.parametrize("name", [each.__name__ for each in torture.NAMES])
async def test_a_cancelled_command_leaves_nothing_whatever_it_does(probe, times, name):
    for _ in range(times):
        ended = await cancelled(tortures(probe, name))
        assert (ended.left, seen(probe)) == ((), set())


@racy
@pytest.mark.parametrize("name", ["kills_its_guard", "survives_its_guard", "kills_both"])
async def test_a_guard_that_is_killed_is_noticed_and_its_command_stopped(
    probe, times, name, caplog
):
    for _ in range(times):
        ended = await ran(probe, tortures(probe, name))
        assert (ended.stopped, ended.left) == (True, ())
        assert len(ended.reaped) >= 5
    assert [record.message for record in caplog.records] == ["process.guard_failed"] * times


@racy
async def test_a_watcher_that_is_killed_is_noticed_and_its_command_stopped(probe, times, caplog):
    for _ in range(times):
        ended = await ran(probe, tortures(probe, "kills_its_watcher"))
        assert (ended.stopped, ended.left) == (True, ())
        assert len(ended.reaped) >= 6
    assert [record.message for record in caplog.records] == ["process.guard_failed"] * times


@racy
async def test_processes_that_respawn_do_not_outlive_a_command_that_ended(probe, times):
    for _ in range(times):
        ended = await ran(probe, tortures(probe, "respawns_and_ends"))
        assert (ended.exit_code, ended.stopped, ended.left) == (0, False, ())
