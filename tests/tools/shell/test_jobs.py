"""Shell commands in the foreground and behind it: who ends them, and when."""

from functools import partial
from pathlib import Path

import pytest
import trio
from attrs import evolve
from trio.testing import wait_all_tasks_blocked

from crush_trio.clock import TrioClock
from crush_trio.testing.explore import explore
from crush_trio.tools.base import ToolError
from crush_trio.tools.shell.jobs import MOST_JOBS, REMEMBERED, Jobs
from crush_trio.tools.shell.process import Command
from tests.tools.process_probe import Reaped
from tests.tools.shell_bench import ScriptedCommands, open_shell_bench

COMMAND = Command(argv=("true",), working_dir=Path("/"), env={})


class Scene:
    """Jobs whose commands do nothing until they are told to end."""

    def __init__(self, services, commands=None):
        self.services = services
        self.commands = commands or ScriptedCommands()
        self.jobs = Jobs(services, TrioClock(), self.commands)
        self._commands = {}

    def start(self, script="a command"):
        command = evolve(COMMAND)
        job = self.jobs.start(script, command, description="a test")
        self._commands[job] = command
        return job

    def foreground(self):
        return self.jobs.foreground("a command", COMMAND)

    async def finish(self, job, code=0):
        await wait_all_tasks_blocked()
        [its] = [each for each in self.commands.opened if each.command is self._commands[job]]
        its.finish(code)
        await wait_all_tasks_blocked()


@pytest.fixture
async def scene():
    async with trio.open_nursery() as services:
        yield Scene(services)
        services.cancel_scope.cancel()


# ── Background ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.item("H14")
async def test_ids_are_hexadecimal_counters(scene):
    ids = [scene.start().id for _ in range(17)]
    assert ids[:2] == ["001", "002"]
    assert ids[9] == "00A"
    assert ids[16] == "011"


async def test_a_job_tells_what_it_is_and_how_it_ended(scene):
    job = scene.start("make all")
    assert (job.script, job.description, job.working_dir) == ("make all", "a test", Path("/"))
    await wait_all_tasks_blocked()
    scene.commands.opened[0].stdout.append(b"out")
    assert job.running
    assert (job.output().stdout, job.output().stderr, job.output().ended) == ("out", "", None)
    await scene.finish(job, code=3)
    await job.wait()
    assert not job.running
    assert job.ended.exit_code == 3


async def test_jobs_are_found_by_id_and_listed_in_their_order(scene):
    first, second = scene.start(), scene.start()
    assert scene.jobs.get("001") is first
    assert scene.jobs.list() == (first, second)
    with pytest.raises(ToolError, match="0FF"):
        scene.jobs.get("0FF")


async def test_a_killed_job_has_ended_and_is_forgotten(scene):
    job = scene.start()
    await wait_all_tasks_blocked()
    assert await scene.jobs.kill("001") is job
    assert job.ended.stopped
    assert scene.jobs.list() == ()
    with pytest.raises(ToolError):
        await scene.jobs.kill("001")


async def test_a_job_can_be_killed_before_its_task_has_run(scene):
    job = scene.start()
    await scene.jobs.kill(job.id)
    assert job.ended.stopped
    assert scene.commands.opened == []


async def test_cancelling_somebody_who_waits_for_a_job_does_not_end_it(scene):
    job = scene.start()
    with trio.move_on_after(1):
        await job.wait()
    assert job.running


@pytest.mark.item("H14")
async def test_an_ended_job_is_remembered_for_eight_hours(scene):
    assert REMEMBERED == 8 * 60 * 60
    job, running = scene.start(), scene.start()
    await scene.finish(job)
    await trio.sleep(REMEMBERED - 1)
    assert scene.jobs.get(job.id) is job
    await trio.sleep(2)
    assert scene.jobs.list() == (running,)
    with pytest.raises(ToolError):
        scene.jobs.get(job.id)


@pytest.mark.item("H14")
async def test_no_more_than_fifty_jobs_run_at_a_time(scene):
    for _ in range(MOST_JOBS):
        scene.start()
    assert MOST_JOBS == 50
    with pytest.raises(ToolError, match="50 commands are running"):
        scene.start()
    with pytest.raises(ToolError):
        async with scene.foreground():
            pass
    await scene.jobs.kill("001")
    scene.start()


@pytest.mark.item("H14")
async def test_an_ended_job_makes_room_the_oldest_first(scene):
    jobs = [scene.start() for _ in range(MOST_JOBS)]
    await scene.finish(jobs[3])
    await scene.finish(jobs[1])
    new = scene.start()
    assert scene.jobs.list() == (*jobs[:1], *jobs[2:], new)


async def test_a_command_that_cannot_be_started_ends_like_one_that_a_shell_does_not_find():
    commands = ScriptedCommands(failure=FileNotFoundError(2, "No such file", "nowhere"))
    async with trio.open_nursery() as services:
        scene = Scene(services, commands)
        job = scene.start()
        await job.wait()
        assert job.ended.status == 127
        assert "No such file" in job.output().stderr


async def test_a_job_that_fails_in_an_unexpected_way_does_not_end_the_others(caplog):
    commands = ScriptedCommands(failure=RuntimeError("broken"))
    async with trio.open_nursery() as services:
        scene = Scene(services, commands)
        job = scene.start()
        await job.wait()
        commands.failure = None
        other = scene.start()
        await wait_all_tasks_blocked()
        assert other.running
        services.cancel_scope.cancel()
    assert job.ended.status == 127
    assert [record.message for record in caplog.records] == ["job.failed"]


# ── Foreground ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.item("A20")
async def test_whoever_leaves_the_block_has_seen_the_command_end(scene):
    async with scene.foreground() as job:
        await wait_all_tasks_blocked()
        assert scene.jobs.list() == ()
        with pytest.raises(ToolError):
            scene.jobs.get(job.id)
    assert job.ended.stopped


@pytest.mark.item("A20", "H12")
async def test_a_cancelled_caller_leaves_only_when_the_command_has_ended(scene):
    began = trio.current_time()
    with trio.CancelScope() as scope:
        async with scene.foreground() as job:
            await wait_all_tasks_blocked()
            scope.cancel()
            await job.wait()
    assert scope.cancelled_caught
    assert job.ended.stopped
    assert trio.current_time() - began == scene.commands.ending


@pytest.mark.item("A20", "H12")
async def test_a_kept_command_survives_its_caller(scene):
    with trio.CancelScope() as scope:
        async with scene.foreground() as job:
            await wait_all_tasks_blocked()
            scene.jobs.keep(job)
            scope.cancel()
            await trio.lowlevel.checkpoint()
    assert job.running
    assert scene.jobs.get(job.id) is job
    assert len(scene.commands.opened) == 1


async def test_an_error_in_the_block_ends_the_command_and_leaves_as_it_is(scene):
    with pytest.raises(KeyError):
        async with scene.foreground() as job:
            raise KeyError
    assert job.ended.stopped


async def test_a_command_that_does_not_end_is_reported_and_not_waited_for_for_ever(scene, caplog):
    scene.commands.ending = 1000
    reaped = Reaped()
    async with scene.jobs.foreground("a command", COMMAND, reaped=reaped) as job:
        await wait_all_tasks_blocked()
    assert job.running
    assert (reaped.stopped, reaped.left) == ([], [scene.commands.opened[0].pid])
    assert [record.message for record in caplog.records] == ["job.stop_incomplete"]


# ── Workspaces ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.item("H14", "L20")
async def test_jobs_end_with_their_workspace_and_never_with_another(tmp_path):
    async with open_shell_bench(tmp_path, ScriptedCommands()) as one:
        theirs = one.jobs.start("a command", COMMAND)
        async with open_shell_bench(tmp_path, ScriptedCommands()) as other:
            ours = other.jobs.start("a command", COMMAND)
            await wait_all_tasks_blocked()
            assert ours.id == theirs.id
        assert ours.ended.stopped
        assert theirs.running
    assert theirs.ended.stopped


async def test_a_caller_is_told_when_the_workspace_ends_its_command():
    async with trio.open_nursery() as callers:
        async with trio.open_nursery() as services:
            scene = Scene(services)
            jobs = []
            callers.start_soon(partial(_wait_in_the_foreground, scene, jobs))
            await wait_all_tasks_blocked()
            services.cancel_scope.cancel()
    assert jobs[0].ended.stopped


async def _wait_in_the_foreground(scene, jobs):
    async with scene.foreground() as job:
        jobs.append(job)
        await job.wait()


# ── In every order ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.item("A20", "H12")
def test_a_command_is_kept_or_has_ended_when_its_caller_leaves_in_every_order(report_exploration):
    """The patience of a call ends, its run is cancelled and the command ends, all at one time."""

    async def scenario():
        ended_with_caller = None
        async with trio.open_nursery() as services:
            scene = Scene(services, ScriptedCommands(ending=0))
            run = trio.CancelScope()
            async with trio.open_nursery() as others:
                others.start_soon(_cancel_at, 1, run)
                others.start_soon(_finish_at, 1, scene)
                with run:
                    async with scene.foreground() as job:
                        with trio.move_on_after(1):
                            await job.wait()
                        if job.running:
                            scene.jobs.keep(job)
                ended_with_caller = not job.running
                assert ended_with_caller or job.kept
                assert job.kept == (job in scene.jobs.list())
            services.cancel_scope.cancel()
        assert not job.running
        return ended_with_caller, job.kept, job.ended.stopped

    found = explore(scenario, deviations=3)
    report_exploration(found)
    assert found.exhaustive
    assert len(found.outcomes) >= 2


async def _cancel_at(seconds, scope):
    await trio.sleep(seconds)
    scope.cancel()


async def _finish_at(seconds, scene):
    await trio.sleep(seconds)
    scene.commands.opened[0].finish()
