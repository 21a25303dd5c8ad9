"""What becomes of a command when its guard, its server or a thread of the server does not live on."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import trio

from crush_trio.clock import SystemClock
from crush_trio.tools.shell.process import open_process_group, run_command
from tests.tools.process_probe import Cancelled, Probe, Watched, ended

pytestmark = [pytest.mark.slow, pytest.mark.real_clock]

CLOCK = SystemClock()


@pytest.fixture
def probe(tmp_path):
    probe = Probe(tmp_path)
    yield probe
    probe.kill_all()


async def test_a_command_that_kills_its_guard_dies_with_it(probe):
    result = await run_command(
        probe.command(f"{probe.sleep} & kill -9 $PPID; {probe.sleep}"), clock=CLOCK
    )
    assert (result.ended.stopped, result.ended.signal) == (True, signal.SIGKILL)
    assert probe.left() == []


async def test_a_command_that_stops_its_guard_can_be_stopped(probe):
    script = f"trap '' TERM; sleep 0.1; kill -STOP $PPID; echo ready; {probe.sleep}"
    cancelled = await Cancelled(probe.command(script), grace=0.2).run()
    assert cancelled.took < 1
    assert probe.left() == []


async def test_a_command_that_keeps_stopping_its_guard_is_ended(probe):
    loop = f": {probe.token}; while true; do kill -STOP $PPID; done"
    daemon = f"setsid {probe.sleep} & {probe.sleep} &"
    script = f"trap '' TERM; {daemon} sleep 0.1; kill -STOP $PPID; echo ready; {loop}"
    cancelled = await Cancelled(probe.command(script), grace=0.2).run()
    assert cancelled.took < 3
    assert probe.left() == []


SERVER = """
import sys, trio
from pathlib import Path
from crush_trio.clock import SystemClock
from crush_trio.tools.shell.output import BoundedOutput
from crush_trio.tools.shell.process import Command, open_process_group

async def main():
    env, script, shells = {"PATH": sys.argv[1]}, sys.argv[2], int(sys.argv[3])
    command = Command(argv=("/bin/sh", "-c", script), working_dir=Path("/"), env=env)
    out = BoundedOutput()
    async with open_process_group(command, clock=SystemClock(), stdout=out) as group:
        while out.text().count("ready") < shells:
            await trio.sleep(0.01)
        await trio.to_thread.run_sync(lambda: None)
        print(f"{group._guard.process.pid} {group.pid}", flush=True)
        await group.wait()

trio.run(main)
"""


async def numbers(stream):
    """Return the numbers on the first line."""
    line = b""
    while not line.endswith(b"\n"):
        line += await stream.receive_some()
    return map(int, line.split())


@pytest.mark.item("H9")
async def test_a_server_that_is_killed_leaves_no_process_behind(probe):
    stays = f"echo ready; {probe.sleep}; true"
    script = f"(setsid sh -c 'trap \"\" TERM; ({stays}) & {stays}' &); sh -c '({stays}) & {stays}' & {stays}"
    argv = [sys.executable, "-c", SERVER, os.environ["PATH"], script, "5"]
    with trio.fail_after(10):
        server = await trio.lowlevel.open_process(argv, stdout=subprocess.PIPE)
        guard, _ = await numbers(server.stdout)
        assert len(probe.left()) >= 6
        server.kill()
        await server.wait()
        killed = time.perf_counter()
        await ended(guard)
        await server.stdout.aclose()
    assert time.perf_counter() - killed < 3
    assert probe.left() == []


async def test_a_command_ends_with_its_guard_though_the_server_does_nothing(probe):
    argv = [
        sys.executable,
        "-c",
        SERVER,
        os.environ["PATH"],
        f"echo ready; exec {probe.sleep}",
        "1",
    ]
    with trio.fail_after(10):
        server = await trio.lowlevel.open_process(argv, stdout=subprocess.PIPE)
        guard, leader = await numbers(server.stdout)
        server.send_signal(signal.SIGSTOP)
        os.kill(guard, signal.SIGKILL)
        await ended(leader)
        server.kill()
        await server.wait()
        await server.stdout.aclose()
    assert probe.left() == []


async def test_a_command_outlives_the_thread_that_started_it(probe, monkeypatch):
    """Linux would send a parent-death signal of the guard when Trio's idle worker thread ends."""
    monkeypatch.setattr("trio._core._thread_cache.IDLE_TIMEOUT", 0.01)
    stdout = Watched()
    with trio.fail_after(40):  # threads of tests before this one wait longer until they end
        async with open_process_group(
            probe.command("echo ready; read -t 30 x; echo still here"),
            clock=CLOCK,
            stdin=subprocess.PIPE,
            stdout=stdout,
        ) as group:
            await stdout.shows("ready")
            for thread in threading.enumerate():
                if thread.name.startswith("Trio"):
                    thread.join()
            await group.stdin.send_all(b"\n")
            await group.wait()
    assert stdout.text() == "ready\nstill here\n"
