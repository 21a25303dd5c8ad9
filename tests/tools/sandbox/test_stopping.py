"""Commands in a sandbox are stopped like others: with grace, reported, and nothing is left."""

import os
import signal
import sys

import pytest
import trio
from attrs import evolve

from crush_trio.clock import SystemClock
from crush_trio.tools.sandbox.confinement import Confinement, SandboxKind
from crush_trio.tools.shell.process import Command, open_process_group, run_command
from tests.tools import torture
from tests.tools.process_probe import Cancelled, Probe, Watched, ended
from tests.tools.sandbox_runs import contents, needs_landlock

pytestmark = [pytest.mark.slow, pytest.mark.real_clock]

KINDS = [
    pytest.param(SandboxKind.BUBBLEWRAP, marks=pytest.mark.needs("bwrap")),
    pytest.param(SandboxKind.LANDLOCK, marks=needs_landlock),
]
racy = pytest.mark.parametrize("times", [2, pytest.param(8, marks=pytest.mark.long)])


@pytest.fixture
def probe(tmp_path):
    probe = Probe(tmp_path)
    yield probe
    probe.kill_all()


def confined(command, kind, workspace):
    protected = (workspace / ".git/hooks",) if kind is SandboxKind.BUBBLEWRAP else ()
    confinement = Confinement(writable=[workspace], protected=protected)
    return evolve(command, confinement=confinement, sandbox=kind)


def in_bubblewrap(probe, script):
    return confined(probe.command(script), SandboxKind.BUBBLEWRAP, probe.directory)


TORTURES = [
    pytest.param(each.__name__, SandboxKind.BUBBLEWRAP, marks=pytest.mark.needs("bwrap"))
    for each in torture.NAMES
]
TORTURES += [
    pytest.param(name, SandboxKind.LANDLOCK, marks=needs_landlock)
    for name in ("respawns", "many_generations", "changes_groups")  # others kill their guard
]


@racy
@pytest.mark.parametrize(("name", "kind"), TORTURES)
async def test_a_cancelled_command_leaves_nothing_whatever_it_does(probe, times, name, kind):
    argv = (sys.executable, "-I", "-S", torture.__file__, name, probe.token)
    command = Command(argv=argv, working_dir=probe.directory, env={"PATH": os.environ["PATH"]})
    for _ in range(times):
        cancelled = await Cancelled(confined(command, kind, probe.directory), grace=0.05).run()
        assert cancelled.ended.left == ()
        assert {pid for _ in range(5) for pid in probe.left()} == set()
    assert contents(probe.directory) == {}


@pytest.mark.parametrize("kind", KINDS)
async def test_every_process_has_its_time_to_end(probe, kind):
    """The shell dies at once of SIGTERM; what it waits for has something to do first."""
    slow = "trap 'sleep 0.1; echo ended; exit' TERM; echo ready; while :; do sleep 0.01; done"
    command = confined(probe.command(f'bash -c "{slow}"; {probe.sleep}'), kind, probe.directory)
    cancelled = await Cancelled(command).run()
    assert cancelled.stdout.text() == "ready\nended\n"
    assert cancelled.took < 1.5
    assert cancelled.ended.stopped
    assert cancelled.ended.left == ()
    assert probe.left() == []


@pytest.mark.needs("bwrap")
async def test_reported_processes_have_the_ids_of_the_host(probe):
    command = in_bubblewrap(probe, f"{probe.sleep} & echo ready; wait")
    stdout = Watched()
    with trio.fail_after(5), trio.CancelScope() as scope:
        async with open_process_group(
            command, clock=SystemClock(), stdout=stdout, grace=0.5
        ) as group:
            await stdout.shows("ready")
            seen = probe.left(guards=False)
            assert group.pid in seen
            assert len(seen) == 4  # bubblewrap, the init, the shell and the sleeper
            scope.cancel()
            await group.wait()
    assert set(seen) == set(group.ended.reaped)


@pytest.mark.needs("bwrap")
async def test_processes_that_a_command_leaves_end_with_it(probe):
    script = f"setsid {probe.sleep} & (trap '' TERM; {probe.sleep}) & exit 3"
    result = await run_command(in_bubblewrap(probe, script), clock=SystemClock())
    assert (result.ended.exit_code, result.ended.stopped, result.ended.left) == (3, False, ())
    assert probe.left() == []


@pytest.mark.needs("bwrap")
async def test_if_the_guard_is_killed_the_kernel_ends_everything(probe):
    """Guard and watcher at once, from outside: the command cannot see them."""
    script = f"setsid {probe.sleep} & echo ready; {probe.sleep}"
    command = in_bubblewrap(probe, script)
    stdout = Watched()
    with trio.fail_after(10):
        async with open_process_group(command, clock=SystemClock(), stdout=stdout) as group:
            await stdout.shows("ready")
            seen = probe.left(guards=False)
            guard = torture.above(group.pid)
            for number in (signal.SIGSTOP, signal.SIGKILL):  # neither can react to the other's end
                for pid in (torture.above(guard), guard):
                    os.kill(pid, number)
            for pid in seen:
                await ended(pid)
            await group.wait()
    assert group.ended.left == ()
    assert probe.left() == []
    # The guard could not remove its placeholder. The next command does.
    assert set(contents(probe.directory)) == {".git"}
    await run_command(in_bubblewrap(probe, "true"), clock=SystemClock())
    assert contents(probe.directory) == {}
