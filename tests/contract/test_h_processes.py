"""Contract H9 to H14 and A20: shell commands inside runs, with real processes."""

import os
import sys
from contextlib import asynccontextmanager

import pytest
import trio

from crush_trio.clock import CountingIds, SystemClock
from crush_trio.runtime import Submission, open_workspace
from crush_trio.tools.shell.jobs import Jobs
from crush_trio.tools.workbench import Workbench
from crush_trio.wire.ids import SessionId
from crush_trio.wire.runs import RunState
from tests.tools import torture
from tests.tools.process_probe import Mailbox, Probe
from tests.tools.shell_bench import ShellBench

pytestmark = [pytest.mark.slow, pytest.mark.real_clock]

S = SessionId("s")


@pytest.fixture
def probe(tmp_path):
    probe = Probe(tmp_path.resolve())
    yield probe
    probe.kill_all()


class Shells:
    """A workspace in which every run executes its prompt as a shell command."""

    def __init__(self, mailbox):
        self.mailbox = mailbox
        self.results = []

    async def turn(self, run):
        prompt, _, seconds = run.accepted.submission.prompt.partition(" #")

        def reaped(stopped, left=()):
            run.accepted.reaped.extend(stopped)
            run.accepted.left.extend(left)

        patience = int(seconds or 60)
        result = await self.tools.bash(prompt, reaped, auto_background_after=patience)
        self.results.append(result)

    def open(self, workspace, directory):
        env = {"PATH": os.environ["PATH"]}
        clock = SystemClock()
        bench = Workbench(directory, None, lambda event: None, clock, CountingIds(), env)
        self.workspace = workspace
        self.tools = ShellBench(bench, Jobs(workspace.services, clock), workspace.services)

    def accept(self, prompt):
        return self.workspace.accept(Submission(session_id=S, prompt=prompt))


@asynccontextmanager
async def open_shells(directory):
    with trio.fail_after(8), Mailbox(directory) as mailbox:
        shells = Shells(mailbox)
        async with open_workspace(shells.turn) as workspace:
            shells.open(workspace, directory)
            yield shells


STAYING = 6


def busy(probe, mailbox):
    """A command of `STAYING` shells, each of which says that it is ready, and does not end.

    A shell and not a `sleep` is what stays: while a process executes another program, its arguments cannot be read.
    """
    stays = f"echo ready > {mailbox}; {probe.sleep}; true"
    return (
        f"({stays}) & (setsid sh -c '({stays}) & {stays}' &);"
        f" sh -c 'sh -c \"{stays}\" & {stays}' & {stays}"
    )


@pytest.mark.item("A20", "H9", "H12")
async def test_a_cancelled_run_is_over_only_when_its_processes_are(probe):
    async with open_shells(probe.directory) as shells:
        run = shells.accept(busy(probe, shells.mailbox))
        for _ in range(STAYING):
            await shells.mailbox.line()
        assert len(probe.left()) >= STAYING
        receipt = await shells.workspace.cancel(S).settled()
        assert probe.left() == []
        assert receipt.hits[0].took < 3
        assert run.outcome.state is RunState.CANCELLED
        assert shells.tools.jobs.list() == ()


def torturing(probe, name):
    """A command of a shell that does all it can to leave a process behind."""
    return f"exec {sys.executable} -I -S {torture.__file__} {name} {probe.token}"


@pytest.mark.item("A20", "H9")
@pytest.mark.parametrize("name", ["respawns", "survives_its_guard", "kills_both"])
async def test_a_complete_receipt_means_that_nothing_is_left_whatever_the_command_does(probe, name):
    async with open_shells(probe.directory) as shells:
        shells.accept(f"{torturing(probe, name)} > {shells.mailbox}")
        await shells.mailbox.line()
        receipt = await shells.workspace.cancel(S).settled()
        assert probe.left() == []
        assert receipt.complete


@pytest.mark.item("H9", "H14")
@pytest.mark.parametrize("name", ["respawns", "survives_its_guard", "kills_both"])
async def test_closing_a_workspace_ends_a_job_whatever_it_does(probe, name):
    async with open_shells(probe.directory) as shells:
        script = f"{torturing(probe, name)} > {shells.mailbox}"
        job = shells.tools.jobs.start("a job", probe.command(script))
        await shells.mailbox.line()
    assert (job.ended.stopped, job.ended.left) == (True, ())
    assert probe.left() == []


@pytest.mark.item("A20", "H12")
async def test_a_command_in_the_background_survives_the_cancel_of_its_run(probe):
    async with open_shells(probe.directory) as shells:
        run = shells.accept(f"echo ready > {shells.mailbox}; {probe.sleep} #1")
        await shells.mailbox.line()
        await run.wait()
        assert shells.results[0].metadata["shell_id"] == "001"
        shells.workspace.cancel(S)
        [job] = shells.tools.jobs.list()
        assert job.running
        assert probe.left() != []
    assert job.ended.stopped
    assert probe.left() == []


@pytest.mark.item("H9")
async def test_the_processes_of_a_command_have_a_session_of_their_own(probe):
    async with open_shells(probe.directory) as shells:
        await shells.accept("cut -d' ' -f 6 /proc/self/stat; echo $$").wait()
    session, leader = shells.results[0].metadata["output"].split()
    assert session == leader
    assert int(session) != os.getsid(0)


@pytest.mark.item("H10", "H11", "L18")
async def test_looking_runs_changing_asks_and_the_network_is_refused(probe):
    async with open_shells(probe.directory) as shells:
        asked = shells.tools.person.asked
        await shells.accept("ls | wc -l").wait()
        assert asked == []
        await shells.accept("ls & touch made").wait()
        assert [wanted.params["command"] for wanted in asked] == ["ls & touch made"]
        refused = await shells.accept("ls | xargs -I{} sh -c 'curl {}'").wait()
        assert refused.state is RunState.ERRORED  # this turn has nobody who turns it into a result
        assert "not allowed for security reasons" in refused.error
        assert len(asked) == 1


@pytest.mark.item("H13")
async def test_a_result_has_both_streams_the_exit_code_and_the_directory(probe):
    async with open_shells(probe.directory) as shells:
        await shells.accept("echo a; echo b >&2; exit 7").wait()
    assert shells.results[0].content == f"a\n\nb\nExit code 7\n\n<cwd>{probe.directory}</cwd>"


@pytest.mark.item("H14", "L20")
async def test_closing_a_workspace_ends_its_jobs_and_nobody_elses(probe, tmp_path_factory):
    elsewhere = Probe(tmp_path_factory.mktemp("elsewhere").resolve())
    async with open_shells(elsewhere.directory) as others:
        theirs = others.tools.jobs.start("their job", elsewhere.command(elsewhere.sleep))
        async with open_shells(probe.directory) as shells:
            job = shells.tools.jobs.start("a job", probe.command(busy(probe, shells.mailbox)))
            await shells.mailbox.line()
            assert job.id == theirs.id == "001"
        assert job.ended.stopped
        assert probe.left(guards=False) == []
        assert theirs.running
    assert elsewhere.left() == []
