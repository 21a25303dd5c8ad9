"""What could not be stopped is named: to its owner, in the log, and in the receipt of a cancel."""

import pytest
import trio

from crush_trio.clock import SystemClock
from crush_trio.tools.sandbox.machine import no_sandbox
from crush_trio.tools.shell.guard import link
from crush_trio.tools.shell.process import run_command
from tests.tools.altered_guard import altered
from tests.tools.process_probe import Cancelled, Mailbox, Probe, Reaped
from tests.tools.shell_bench import open_shell_bench

pytestmark = [pytest.mark.slow, pytest.mark.real_clock]


@pytest.fixture
def probe(tmp_path):
    probe = Probe(tmp_path)
    yield probe
    probe.kill_all()


@pytest.fixture
def _hasty(monkeypatch, probe):
    """Have guards that leave what does not end by itself."""
    monkeypatch.setattr(link, "GUARD", altered(link.GUARD, "hasty", probe.token))


def stubborn(probe, before="echo ready"):
    """A command with one process that does not end when it is asked to."""
    return f"(trap '' TERM; {before}; exec {probe.sleep}) & wait"


def messages(caplog):
    return [record.message for record in caplog.records]


@pytest.mark.usefixtures("_hasty")
async def test_a_guard_whose_time_is_up_says_what_is_left(probe, caplog):
    cancelled = await Cancelled(probe.command(stubborn(probe)), grace=0.05).run()
    [left] = cancelled.ended.left
    assert probe.left() == [left]
    assert left not in cancelled.ended.reaped
    assert messages(caplog) == ["process.left"]
    assert caplog.records[0].processes == [f"{left} (sleep)"]


@pytest.mark.usefixtures("_hasty")
async def test_what_a_command_leaves_behind_when_it_ends_is_named_too(probe, caplog):
    script = f"trap '' TERM; {probe.sleep} & echo $!"
    with trio.fail_after(5):
        finished = await run_command(probe.command(script), clock=SystemClock(), grace=0.05)
    child = int(finished.stdout.text())
    assert (finished.ended.exit_code, finished.ended.left) == (0, (child,))
    assert messages(caplog) == ["process.left"]


@pytest.mark.usefixtures("_hasty")
async def test_a_cancelled_tool_tells_what_is_left(probe):
    reaped = Reaped()
    with trio.fail_after(10), Mailbox(probe.directory) as mailbox:
        async with (
            open_shell_bench(probe.directory, machine=no_sandbox()) as tools,
            trio.open_nursery() as nursery,
        ):
            script = stubborn(probe, f"echo ready > {mailbox}")
            nursery.start_soon(lambda: tools.bash(script, reaped=reaped))
            await mailbox.line()
            nursery.cancel_scope.cancel()
    assert reaped.left == probe.left() != []


@pytest.mark.usefixtures("_hasty")
async def test_a_job_that_is_killed_says_what_is_left(probe):
    reaped = Reaped()
    with trio.fail_after(10), Mailbox(probe.directory) as mailbox:
        async with open_shell_bench(probe.directory, machine=no_sandbox()) as tools:
            script = stubborn(probe, f"echo ready > {mailbox}")
            started = await tools.bash(script, run_in_background=True)
            await mailbox.line()
            killed = await tools.job_kill(started.metadata["shell_id"], reaped=reaped)
    [left] = probe.left()
    assert killed.content == (
        f"Background job 001 was ended. These processes could not be stopped: {left}."
    )
    assert reaped.left == [left]


# ── A cancel that comes before the block is entered ─────────────────────────────────────────────


async def test_a_command_that_is_cancelled_while_it_is_opened_is_accounted_for(probe, monkeypatch):
    monkeypatch.setattr(link, "GUARD", altered(link.GUARD, "say started", probe.token))
    reaped = Reaped()
    with trio.fail_after(10), Mailbox(probe.directory) as mailbox:
        async with (
            open_shell_bench(probe.directory, machine=no_sandbox()) as tools,
            trio.open_nursery() as nursery,
        ):
            script = f"echo $$ > {mailbox}; exec {probe.sleep}"
            nursery.start_soon(lambda: tools.bash(script, reaped=reaped))
            leader = int(await mailbox.line())
            nursery.cancel_scope.cancel()
    assert reaped.stopped == [leader]
    assert (reaped.left, probe.left()) == ([], [])
