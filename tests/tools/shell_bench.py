"""The shell tools of one workspace: with real processes, or with commands that a test scripts."""

import os
from contextlib import asynccontextmanager
from pathlib import Path

import orjson
import trio
from attrs import define, evolve, field

from crush_trio.clock import CountingIds, SystemClock, TrioClock
from crush_trio.config.files import SandboxConfig
from crush_trio.config.sources import Places
from crush_trio.nursery import open_hidden_nursery
from crush_trio.testing.server.config import open_fixed_config
from crush_trio.tools.base import ToolCall, ToolError
from crush_trio.tools.sandbox.confinement import SandboxKind
from crush_trio.tools.sandbox.machine import MachineSandbox
from crush_trio.tools.sandbox.settings import CommandSandbox
from crush_trio.tools.shell.bash import BashTool, JobKillTool, JobOutputTool, no_rules
from crush_trio.tools.shell.jobs import Jobs
from crush_trio.tools.shell.process import Command, CommandEnd, open_process_group
from crush_trio.tools.workbench import Workbench
from crush_trio.wire.ids import MessageId, RunId, SessionId, ToolCallId


@define(eq=False)
class Scripted:
    """A command that does nothing: it ends when the test says so, and takes *ending* to be stopped."""

    command: Command
    stdout: object
    stderr: object
    ending: float
    on_ended: object
    pid: int = 7
    ended: CommandEnd | None = None
    _done: trio.Event = field(factory=trio.Event)
    _code: int = 0

    async def wait(self):
        await self._done.wait()

    def finish(self, code=0):
        self._code = code
        self._done.set()

    async def leave(self):
        ended = self._done.is_set()
        if not ended:
            with trio.CancelScope(shield=True):
                await trio.sleep(self.ending)
        code = self._code if ended else None
        self.ended = CommandEnd(exit_code=code, stopped=not ended, started_at=0, ended_at=1000)
        self.on_ended(self.ended)


@define(eq=False)
class ScriptedCommands:
    """Opens commands that do nothing, or fails as told."""

    ending: float = 1.0
    failure: Exception | None = None
    opened: list[Scripted] = field(factory=list)

    @asynccontextmanager
    async def __call__(self, command, *, clock, stdout, stderr, on_ended):
        await trio.lowlevel.checkpoint()
        if self.failure is not None:
            raise self.failure
        scripted = Scripted(command, stdout, stderr, self.ending, on_ended)
        self.opened.append(scripted)
        try:
            yield scripted
        finally:
            await scripted.leave()


@define(eq=False)
class Person:
    """Says yes, unless told not to, and remembers what was asked."""

    refuses: bool = False
    asked: list = field(factory=list)

    async def __call__(self, wanted):
        await trio.lowlevel.checkpoint()
        self.asked.append(wanted)
        if self.refuses:
            raise ToolError("denied", stop_turn=True)


def unnoted(stopped, left=()):
    """Satisfy `Reaped` for calls of which no test wants to know."""


@define(eq=False)
class ShellBench:
    """The tools `bash`, `job_output` and `job_kill` of a workspace."""

    bench: Workbench
    jobs: Jobs
    services: trio.Nursery
    person: Person = field(factory=Person)
    restricted: object = no_rules

    async def bash(self, command, reaped=unnoted, **arguments):
        return await self._call(
            BashTool(self.bench, self.jobs, self.restricted),
            {"command": command, "description": "a test", **arguments},
            reaped,
        )

    async def job_output(self, shell_id, **arguments):
        return await self._call(JobOutputTool(self.jobs), {"shell_id": shell_id, **arguments})

    async def job_kill(self, shell_id, reaped=unnoted):
        return await self._call(JobKillTool(self.jobs), {"shell_id": shell_id}, reaped)

    async def _call(self, tool, arguments, reaped=unnoted):
        call = ToolCall(
            id=ToolCallId("call"),
            name=tool.name,
            input=orjson.dumps(arguments).decode(),
            session_id=SessionId("session"),
            run_id=RunId("run"),
            message_id=MessageId("message"),
            permit=self.person,
            reaped=reaped,
        )
        return await tool.run(call)


WANTED = os.environ.get("CRUSH_TRIO_TEST_SANDBOX")
MACHINE = MachineSandbox(SandboxKind(WANTED) if WANTED else None)
"""The sandbox of this machine, found once for all tests of a process, unless a variable names one."""

IMAGINED = MachineSandbox(SandboxKind.BUBBLEWRAP)
"""What commands are judged by that a test scripts: none of them runs."""


@asynccontextmanager
async def open_shell_bench(
    directory, opens=open_process_group, *, machine=None, config=None, **env
):
    """Open the tools; leaving the block closes the workspace.

    Real commands run in the sandbox of this machine unless told. *config* is the sandbox's configuration.
    """
    real = opens is open_process_group
    clock = SystemClock() if real else TrioClock()
    place = directory.resolve()
    environment = {"PATH": os.environ["PATH"], **env}
    home = Path(env.get("HOME", "/nowhere"))
    async with open_fixed_config(
        Places(directory=place, home=home, environment=environment)
    ) as live:
        live.current = evolve(live.current, sandbox=config or SandboxConfig())
        bench = Workbench(
            directory=place,
            store=None,
            publish=lambda event: None,
            clock=clock,
            ids=CountingIds(),
            env=environment,
            sandbox=CommandSandbox(live=live, machine=machine or (MACHINE if real else IMAGINED)),
        )
        async with open_hidden_nursery() as services:
            yield ShellBench(bench, Jobs(services, clock, opens), services)
            services.cancel_scope.cancel()
