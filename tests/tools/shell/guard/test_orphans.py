"""Processes whose guard was killed: how they are recognised, and that no other is touched."""

import ast
import os
import signal
import subprocess
from pathlib import Path

import pytest

import crush_trio
from crush_trio.clock import SystemClock
from crush_trio.tools.shell.guard.orphans import (
    MARK,
    Traces,
    kill_orphans,
    name_of,
    signal_process,
    with_mark,
)
from crush_trio.tools.shell.guard.process_table import ProcessId, below, children, read_process
from crush_trio.tools.shell.process import open_process_group
from tests.tools.process_probe import Probe, Watched

MINE = "0123456789abcdef-mine"
GONE = 1 << 30
"""A process that there is not: Linux has smaller ids."""


@pytest.fixture
def probe(tmp_path):
    probe = Probe(tmp_path)
    yield probe
    probe.kill_all()


def sleeping(probe, **options):
    return subprocess.Popen(probe.sleep.split(), **options)


def traces(watcher=None, leader=GONE, mark="a mark that nothing has"):
    return Traces(watcher and ProcessId(watcher), leader and ProcessId(leader), mark)


def test_a_command_inside_a_command_has_the_marks_of_both():
    outer = with_mark({"A": "1"}, "outer")
    assert outer == {"A": "1", MARK: "outer"}
    assert with_mark(outer, "inner") == {"A": "1", MARK: "outer:inner"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "found_by"),
    [
        ({"env": with_mark({}, MINE), "start_new_session": True}, lambda _: traces(mark=MINE)),
        ({"env": {}, "start_new_session": True}, lambda pid: traces(leader=pid)),
    ],
    ids=["mark", "session"],
)
def test_processes_are_recognised_by_each_of_their_traces(probe, options, found_by):
    with sleeping(probe, **options) as one:
        assert kill_orphans(found_by(one.pid), 5) == ({one.pid}, set())
        assert one.wait() == -signal.SIGKILL


@pytest.mark.slow
def test_a_watcher_goes_last_and_with_it_all_is_gone(probe):
    script = f"{probe.sleep} & {probe.sleep} & echo ready; wait"
    with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE) as shell:
        shell.stdout.readline()
        two = set(children(shell.pid))
        os.kill(shell.pid, signal.SIGSTOP)  # it does not get on, and does not reap its children
        assert kill_orphans(traces(shell.pid), 5) == (two, set())
    assert shell.returncode == -signal.SIGKILL
    assert probe.left() == []


@pytest.mark.slow
def test_a_command_that_never_had_a_process_is_not_looked_for(probe):
    with sleeping(probe, env=with_mark({}, MINE)) as one:
        assert kill_orphans(traces(leader=None, mark=MINE), 5) == (set(), set())
        assert one.poll() is None
        one.kill()


@pytest.mark.slow
def test_orphans_are_killed_and_others_are_not(probe):
    with sleeping(probe) as other, sleeping(probe, env=with_mark({}, MINE)) as one:
        assert kill_orphans(traces(mark=MINE), 5) == ({one.pid}, set())
        assert one.wait() == -signal.SIGKILL
        assert other.poll() is None
        other.kill()


@pytest.mark.slow
def test_what_does_not_end_in_time_is_left(probe):
    with sleeping(probe, env=with_mark({}, MINE)) as one:
        assert kill_orphans(traces(mark=MINE), 0) == (set(), {one.pid})
        one.kill()


@pytest.mark.slow
def test_a_process_that_is_not_the_one_meant_gets_no_signal(probe):
    with sleeping(probe) as one:
        signal_process(ProcessId(one.pid), signal.SIGKILL, lambda process: False)
        assert one.poll() is None
        signal_process(ProcessId(one.pid), signal.SIGKILL, lambda process: process.pid == one.pid)
        assert one.wait() == -signal.SIGKILL
    signal_process(ProcessId(one.pid), signal.SIGKILL, lambda process: True)


@pytest.mark.slow
def test_processes_below_are_found_parents_first_and_with_their_names(probe):
    script = f"sh -c '{probe.sleep} & {probe.sleep}; true' & echo $!; wait"
    with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE) as shell:
        inner = int(shell.stdout.readline())
        assert children(shell.pid) == [inner]
        found = [process.pid for process in below(shell.pid)]
        assert found[0] == inner
        assert name_of(inner) == f"{inner} (sh)"
        probe.kill_all()
    assert list(below(shell.pid)) == []
    assert read_process(ProcessId(shell.pid)) is None
    assert name_of(shell.pid) == str(shell.pid)


@pytest.mark.slow
@pytest.mark.real_clock
async def test_a_command_can_be_recognised_by_its_mark_and_has_the_marks_around_it(probe):
    stdout = Watched()
    command = probe.command(f"echo ${MARK}", **{MARK: "outer"})
    async with open_process_group(command, clock=SystemClock(), stdout=stdout) as group:
        await group.wait()
    outer, inner = stdout.text().strip().split(":")
    assert outer == "outer"
    assert len(inner) == 49


# ── Where signals are sent ──────────────────────────────────────────────────────────────────────

SENDERS = {"kill", "killpg", "pidfd_send_signal", "send_signal"}
ALLOWED = {
    "tools/shell/guard/subreaper.py": {"kill", "killpg"},  # a child, a group: both a `ProcessId`
    "tools/shell/guard/orphans.py": {"pidfd_send_signal"},
    "tools/shell/guard/link.py": {"send_signal"},  # to the watcher, a child of this process
    "cli/terminal/keyboard.py": {"kill"},  # suspends its own job, as ctrl-z does
    "cli/terminal/signals.py": {"kill"},  # ends this process by the signal that it caught
}


@pytest.mark.heavy
def test_signals_are_sent_in_few_places():
    """A process id that is 0 or -1 by mistake would end the server with all its relatives."""
    root = Path(crush_trio.__file__).parent
    found = {}
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_bytes())):
            match node:
                case ast.Call(func=ast.Attribute(attr=name)) if name in SENDERS:
                    found.setdefault(str(path.relative_to(root)), set()).add(name)
    del found["tools/shell/bash.py"]  # `Jobs.kill`, which is no signal
    assert found == ALLOWED
