"""Commands and everything they start: run, captured, and gone when their task has left."""

import errno
import fcntl
import os
import resource
import signal
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
import trio

from crush_trio.clock import SystemClock
from crush_trio.tools.shell.process import Command, open_process_group, run_command
from tests.tools.process_probe import Cancelled, Probe, Watched, ended

pytestmark = [pytest.mark.slow, pytest.mark.real_clock]

CLOCK = SystemClock()


@pytest.fixture
def probe(tmp_path):
    probe = Probe(tmp_path)
    yield probe
    probe.kill_all()


async def finished(command, **kwargs):
    with trio.fail_after(5):
        return await run_command(command, clock=CLOCK, **kwargs)


def texts(result):
    return result.stdout.text(), result.stderr.text()


# ── Running ─────────────────────────────────────────────────────────────────────────────────────


async def test_a_command_is_run_to_its_end_and_its_streams_are_kept_apart(probe):
    result = await finished(probe.command("echo out; echo err >&2; exit 3"))
    assert texts(result) == ("out\n", "err\n")
    assert (result.ended.exit_code, result.ended.signal, result.ended.status) == (3, None, 3)
    assert not result.ended.stopped
    assert (result.ended.reaped, result.ended.left) == ((), ())
    assert 0 <= result.ended.ended_at - result.ended.started_at < 5000
    assert probe.left() == []


async def test_a_command_that_a_signal_ends_says_which(probe):
    result = await finished(probe.command("kill -TERM $$"))
    assert (result.ended.exit_code, result.ended.signal) == (None, signal.SIGTERM)
    assert result.ended.status == 128 + signal.SIGTERM


@pytest.mark.item("H9", "L21")
async def test_environment_directory_and_input_are_what_was_given(probe, monkeypatch):
    monkeypatch.setenv("OF_THE_SERVER", "1")
    result = await finished(probe.command("env; pwd; cat", MINE="2"))
    lines = texts(result)[0].splitlines()
    assert "MINE=2" in lines
    assert not [line for line in lines if line.startswith("OF_THE_SERVER")]
    assert lines[-1] == str(probe.directory)


@pytest.mark.item("H9")
async def test_a_command_leads_a_session_and_a_group_of_its_own(probe):
    result = await finished(probe.command("ps -o pid=,pgid=,sid= -p $$ || cat /proc/$$/stat"))
    first, second, third, *_ = texts(result)[0].split()
    assert first == second == third
    assert int(first) != os.getsid(0)


async def test_a_command_starts_with_the_usual_signals(probe):
    """Python ignores SIGPIPE, and so would everything it starts: `yes | head` would complain."""
    result = await finished(probe.command("yes | head -n 1; trap"))
    assert texts(result) == ("y\n", "")


async def test_a_program_that_is_not_there_is_an_error_of_the_system(probe):
    command = Command(argv=("no-such-program",), working_dir=probe.directory, env={})
    with pytest.raises(FileNotFoundError, match="no-such-program"):
        await finished(command)
    missing = Command(argv=("true",), working_dir=probe.directory / "missing", env={})
    with pytest.raises(FileNotFoundError):
        await finished(missing)
    assert probe.left() == []


async def test_a_command_line_that_is_too_long_is_an_error_of_the_system(probe):
    with pytest.raises(OSError, match="too long") as caught:
        await finished(probe.command(f": {'x' * 3_000_000}"))
    assert caught.value.errno == errno.E2BIG


def test_a_null_character_cannot_hide_an_argument(tmp_path):
    with pytest.raises(ValueError, match="null"):
        Command(argv=("echo", "a\0b"), working_dir=tmp_path, env={})


async def test_a_caller_may_talk_with_a_command(probe):
    with trio.fail_after(5):
        async with open_process_group(
            probe.command("cat"), clock=CLOCK, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as group:
            await group.stdin.send_all(b"hello")
            assert await group.stdout.receive_some() == b"hello"
            await group.stdin.aclose()
            await group.wait()
    assert group.ended.exit_code == 0
    assert probe.left() == []


async def test_no_descriptor_is_left_open(probe):
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for _ in range(5):
        await finished(probe.command("echo x"))
        with pytest.raises(FileNotFoundError):
            await finished(Command(argv=("no-such",), working_dir=probe.directory, env={}))
        with pytest.raises(FileNotFoundError):
            await finished(Command(argv=("ls",), working_dir=Path("/no-such"), env={}))
    assert len(os.listdir("/proc/self/fd")) <= before + 1  # noqa: PTH208  # a trio wakeup


# ── Output ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.item("H13")
async def test_a_flood_of_output_does_not_fill_the_memory(probe):
    await finished(probe.command("head -c 1000000 /dev/zero"), keep=10_000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = await finished(probe.command("head -c 100000000 /dev/zero; echo end"), keep=10_000)
    assert result.stdout.total == 100_000_004
    assert result.stdout.text().endswith("end\n")
    assert len(result.stdout.text()) < 20_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 4_000  # kilobytes


async def test_a_pipe_that_a_stranger_holds_does_not_keep_a_command_alive(probe):
    stdout = Watched()
    with trio.fail_after(5), ExitStack() as held:
        async with open_process_group(
            probe.command("echo ready; read -t 1 x; echo last"),
            clock=CLOCK,
            stdin=subprocess.PIPE,
            stdout=stdout,
        ) as group:
            await stdout.shows("ready")
            pipe = os.open(f"/proc/{group.pid}/fd/1", os.O_WRONLY)
            held.callback(os.close, pipe)
            await group.stdin.send_all(b"\n")
            await group.wait()
    assert stdout.text() == "ready\nlast\n"
    assert group.ended.exit_code == 0


async def test_what_a_command_says_while_it_is_stopped_is_kept(probe):
    script = f"trap 'seq 50000; exit 7' TERM; echo ready; {probe.sleep} & wait"
    cancelled = await Cancelled(probe.command(script)).run()
    assert cancelled.ended.stopped
    assert cancelled.ended.exit_code == 7
    assert cancelled.stdout.text().endswith("\n50000\n")


async def test_what_is_in_the_pipe_when_a_command_has_ended_is_read(probe):
    stdout = Watched()
    script = "echo ready; read -t 3 x; head -c 500000 /dev/zero"
    with trio.fail_after(5):
        async with open_process_group(
            probe.command(script), clock=CLOCK, stdin=subprocess.PIPE, stdout=stdout
        ) as group:
            await stdout.shows("ready")
            pipe = os.open(f"/proc/{group.pid}/fd/1", os.O_WRONLY)
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, 1024 * 1024)
            os.close(pipe)
            await group.stdin.send_all(b"\n")
            time.sleep(0.3)  # noqa: ASYNC251  # nothing is read while the whole program stands still
            await group.wait()
    assert stdout.total == 500_006


async def test_a_stream_ends_when_the_command_closes_it(probe):
    with trio.fail_after(5):
        async with open_process_group(
            probe.command(f"exec >&-; {probe.sleep}"), clock=CLOCK, stdout=subprocess.PIPE
        ) as group:
            assert await group.stdout.receive_some() == b""


# ── Leaving nothing behind ──────────────────────────────────────────────────────────────────────


@pytest.mark.item("H9")
async def test_cancelling_ends_children_of_children_of_children(probe):
    nested = (
        f'sh -c "sh -c \\"sh -c \'echo ready; {probe.sleep} & {probe.sleep}\' & wait\\" & wait"'
    )
    cancelled = await Cancelled(probe.command(f"{nested} & {probe.sleep}")).run()
    assert cancelled.ended.stopped
    assert len(cancelled.ended.reaped) >= 5
    assert cancelled.ended.left == ()
    assert cancelled.took < 1.4
    assert probe.left() == []


@pytest.mark.item("H9")
async def test_a_command_that_ignores_the_polite_signal_is_killed(probe):
    script = f"trap '' TERM INT HUP; echo ready; {probe.sleep} & {probe.sleep}"
    cancelled = await Cancelled(probe.command(script)).run()
    assert cancelled.ended.signal == signal.SIGKILL
    assert 1.5 <= cancelled.took < 3
    assert probe.left() == []


async def test_a_stopped_process_is_ended_too(probe):
    script = f"{probe.sleep} & kill -STOP $!; echo ready; {probe.sleep}"
    cancelled = await Cancelled(probe.command(script)).run()
    assert cancelled.took < 1.4
    assert probe.left() == []


DAEMONS = {
    "setsid": "setsid {sleep} &",
    "forked twice": "(setsid sh -c '{sleep} & {sleep}' &);",
    "without environment": "(env -i setsid sh -c '{sleep} & exit' &);",
    "ignoring signals": "(setsid sh -c 'trap \"\" TERM; {sleep} & {sleep}' &);",
}


@pytest.mark.parametrize("daemon", DAEMONS.values(), ids=DAEMONS)
async def test_a_daemon_does_not_outlive_a_cancelled_command(probe, daemon):
    script = f"{daemon.format(sleep=probe.sleep)} echo ready; {probe.sleep}"
    cancelled = await Cancelled(probe.command(script), grace=0.2).run()
    assert cancelled.ended.left == ()
    assert probe.left() == []


@pytest.mark.parametrize("daemon", DAEMONS.values(), ids=DAEMONS)
async def test_a_daemon_does_not_outlive_a_command_that_ended(probe, daemon):
    script = f"{daemon.format(sleep=probe.sleep)} echo done"
    result = await finished(probe.command(script), grace=0.2)
    assert texts(result)[0] == "done\n"
    assert result.ended.exit_code == 0
    assert not result.ended.stopped
    assert result.ended.reaped
    assert probe.left() == []


async def test_processes_that_multiply_while_they_are_killed_are_all_killed(probe):
    script = f"trap '' TERM; f() {{ {probe.sleep} & sleep 0.01; f; }}; f & f & echo ready; f"
    cancelled = await Cancelled(probe.command(script), grace=0.1).run()
    assert cancelled.ended.left == ()
    assert probe.left() == []


async def test_an_error_in_the_block_ends_the_command_and_leaves_as_it_is(probe):
    with trio.fail_after(5), pytest.raises(KeyError):
        async with open_process_group(probe.command(probe.sleep), clock=CLOCK) as group:
            raise KeyError
    assert group.ended.stopped
    assert probe.left() == []


# ── Cancel at any time ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("delay", [0, 0.002, 0.005, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.06])
async def test_a_cancel_while_a_command_starts_leaves_nothing(probe, delay):
    with trio.fail_after(5):
        with trio.move_on_after(delay) as scope:
            await run_command(probe.command(f"setsid {probe.sleep} & {probe.sleep}"), clock=CLOCK)
    assert scope.cancelled_caught
    assert probe.left() == []


async def test_a_cancel_before_the_start_starts_nothing(probe):
    with trio.CancelScope() as scope:
        scope.cancel()
        await run_command(probe.command(f"touch started; {probe.sleep}"), clock=CLOCK)
    assert scope.cancelled_caught
    assert not (probe.directory / "started").exists()
    assert probe.left() == []


async def test_a_cancel_while_a_command_ends_does_not_cut_its_end_short(probe):
    """The leader has ended; what it left behind ignores the polite signal when the cancel comes."""
    stdout = Watched()
    script = f"trap '' TERM; {probe.sleep} & echo ready"
    with trio.fail_after(5), trio.CancelScope() as scope:
        async with open_process_group(
            probe.command(script), clock=CLOCK, stdout=stdout, grace=0.5
        ) as group:
            await stdout.shows("ready")
            await ended(group.pid)
            scope.cancel()
            await group.wait()
    assert scope.cancelled_caught
    assert (group.ended.exit_code, group.ended.stopped) == (0, False)
    assert len(group.ended.reaped) == 1
    assert probe.left() == []
