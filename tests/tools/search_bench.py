"""A workspace with files to search, and a person who answers as the test wants."""

import os
import stat
import sys
from textwrap import dedent

import orjson
import pytest
import trio
from attrs import define, field

from crush_trio.clock import CountingIds, TrioClock
from crush_trio.store.memory.store import MemoryStore
from crush_trio.tools.base import ToolCall, ToolError
from crush_trio.tools.workbench import Workbench
from crush_trio.wire.ids import MessageId, RunId, SessionId, ToolCallId
from tests.tools.process_probe import Reaped


@define(eq=False)
class Asked:
    """Takes note of what is asked, and says yes unless told not to."""

    refuses: bool = False
    wanted: list = field(factory=list)

    async def __call__(self, wanted):
        self.wanted.append(wanted)
        await trio.lowlevel.checkpoint()
        if self.refuses:
            raise ToolError("User denied permission", stop_turn=True)


@define(eq=False)
class SearchBench:
    """A directory, and calls of tools in it."""

    bench: Workbench
    asked: Asked = field(factory=Asked)
    reaped: Reaped = field(factory=Reaped)
    """Processes that had to be stopped with their calls."""

    @property
    def root(self):
        return self.bench.directory

    def put(self, name, content="", *, at=None):
        """Write a file; *at* is when it was last changed."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        if at is not None:
            os.utime(path, (at, at))
        return path

    async def run(self, tool, arguments=None, **named):
        given = named if arguments is None else arguments
        text = given if isinstance(given, str) else orjson.dumps(given).decode()
        return await tool.run(
            ToolCall(
                id=ToolCallId("c"),
                name=tool.name,
                input=text,
                session_id=SessionId("s"),
                run_id=RunId("r"),
                message_id=MessageId("m"),
                permit=self.asked,
                reaped=self.reaped,
            )
        )

    async def error(self, tool, arguments=None, **named):
        """Return the error that the model is told."""
        with pytest.raises(ToolError) as raised:
            await self.run(tool, arguments, **named)
        assert raised.value.result.is_error
        return raised.value.result.content


def search_bench(tmp_path, *, env=None, refuses=False):
    """Return a bench in an empty directory, which is no Git work tree."""
    directory = tmp_path / "workspace"
    directory.mkdir(exist_ok=True)
    bench = Workbench(
        directory=directory.resolve(),
        store=MemoryStore(),
        publish=lambda event: None,
        clock=TrioClock(),
        ids=CountingIds("id"),
        env=env or {},
    )
    return SearchBench(bench, Asked(refuses=refuses))


def fake_ripgrep(tmp_path, body):
    """Put a program `rg` on a search path of its own; it runs *body* and notes its arguments."""
    directory = tmp_path / "bin"
    directory.mkdir()
    program = directory / "rg"
    head = f"#!{sys.executable} -IS\nimport json, os, sys, time\n"
    note = f"open({str(tmp_path / 'argv')!r}, 'w').write(json.dumps(sys.argv[1:]))\n"
    program.write_text(head + note + dedent(body))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return {"PATH": str(directory)}


def noted_arguments(tmp_path):
    return orjson.loads((tmp_path / "argv").read_bytes())
