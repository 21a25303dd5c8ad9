"""Hooks of a test: commands that are played by functions, and a configuration that names them."""

from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import orjson
import trio
from attrs import define, field

from crush_trio.clock import TrioClock
from crush_trio.integrations.hook_input import Subject, claude_name, hook_input, tool_occasion
from crush_trio.integrations.hooks import ConfiguredHooks
from crush_trio.tools.base import ToolCall
from crush_trio.tools.shell.process import Command, CommandEnd
from crush_trio.wire.config import Config, HookConfig
from crush_trio.wire.ids import MessageId, RunId, SessionId, ToolCallId

STOPPING = 0.5
"""Seconds that a program takes to end when it is stopped."""


@define(eq=False)
class Program:
    """A hook that runs. *play* returns its exit code, and may write into its streams."""

    command: Command
    stdout: object
    stderr: object
    grace: float
    play: object
    stdin: object = None
    ended: CommandEnd | None = None

    async def wait(self):
        code = await self.play(self)
        self.ended = CommandEnd(exit_code=code, started_at=0, ended_at=0)

    async def leave(self):
        if self.ended is None:
            with trio.CancelScope(shield=True):
                await trio.sleep(STOPPING)
            self.ended = CommandEnd(
                exit_code=None, stopped=True, reaped=(7,), started_at=0, ended_at=0
            )


@define(eq=False)
class Programs:
    """Satisfies `Opens`: each command that is opened is played by the function of its name."""

    plays: dict
    running: list = field(factory=list)
    opened: list = field(factory=list)

    @asynccontextmanager
    async def __call__(self, command, *, clock, stdin, stdout, stderr, grace, on_ended):
        await trio.lowlevel.checkpoint()
        play = self.plays[command.argv[-1]]
        if isinstance(play, Exception):
            raise play
        program = Program(command, stdout, stderr, grace, play)
        self.opened.append(program)
        self.running.append(program)
        try:
            yield program
        finally:
            await program.leave()
            on_ended(program.ended)
            self.running.remove(program)


def saying(text):
    """Return what plays a hook that prints a plain text."""

    async def play(program):
        await trio.lowlevel.checkpoint()
        program.stdout.append(text.encode())
        return 0

    return play


def answering(code=0, *, seconds=0.0, reason="", **said):
    """Return what plays a hook that takes some time and then answers."""

    async def play(program):
        await trio.sleep(seconds)
        program.stdout.append(orjson.dumps(said) if said else b"")
        program.stderr.append(reason.encode())
        return code

    return play


def configured(*hooks, environment=None, event="PreToolUse"):
    """Return a configuration of the moment that has *hooks*; a text is a command."""
    listed = tuple(HookConfig(command=h) if isinstance(h, str) else h for h in hooks)
    current = SimpleNamespace(
        config=Config(hooks={event: listed} if listed else {}),
        environment=environment or {},
        project=SimpleNamespace(root=Path("/project")),
    )
    return SimpleNamespace(current=current)


def played(plays, *hooks, **options):
    """Return the hooks that *plays* plays, and those of them that were opened."""
    programs = Programs(plays)
    live = configured(*(hooks or plays), **options)
    return ConfiguredHooks(
        live=live, directory=Path("/project/work"), clock=TrioClock(), opens=programs
    ), programs


def input_of(asked, directory="/w", root="/w"):
    """Return what hooks are told of a call."""
    subject = Subject(ours=asked.name, theirs=claude_name(asked.name))
    return hook_input(tool_occasion(asked), subject, Path(directory), Path(root))


def call(name="bash", reaped=lambda stopped, left=(): None, **arguments):
    return ToolCall(
        id=ToolCallId("c1"),
        name=name,
        input=orjson.dumps(arguments).decode(),
        session_id=SessionId("s1"),
        run_id=RunId("r1"),
        message_id=MessageId("m1"),
        permit=None,
        reaped=reaped,
    )
