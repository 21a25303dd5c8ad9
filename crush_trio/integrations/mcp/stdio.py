"""An MCP server that is a command: what it reads and writes, as the `mcp` package wants it.

The command is one of our process groups. It sees the environment it is given and nothing of ours, and
however the block is left, the command and all it has started are gone. A line is a message; what is on
a line and is none, is passed over, because many programs print a greeting first.
"""

import logging
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Final, Self

import anyio
import trio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from attrs import define, field
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from crush_trio.config.redaction import redact_text, worth_finding
from crush_trio.integrations.mcp.session import McpFailure, McpTarget
from crush_trio.nursery import open_hidden_nursery
from crush_trio.tools.shell.output import BoundedOutput
from crush_trio.tools.shell.process import Command, ProcessGroup, open_process_group

log = logging.getLogger(__name__)

LONGEST_MESSAGE: Final = 16 * 1024 * 1024
"""Bytes of one message. A server that writes more has lost its way."""

CHUNK: Final = 64 * 1024
MAX_STDERR: Final = 4096
"""Bytes kept of what a server complains about."""

EXIT_WAIT: Final = 0.5
"""Seconds in which a command that has hung up should have ended."""

MAX_QUEUED: Final = 64
"""Messages that may wait while a server does not read. A caller who goes away leaves one, too."""


@define(eq=False)
class LineReader:
    """What a command writes, message by message. Satisfies the package's `ReadStream`."""

    _source: trio.abc.ReceiveStream
    answered: bool = field(default=False, init=False)
    """Whether there was a message."""
    _pending: bytearray = field(factory=bytearray, init=False, repr=False)
    _searched: int = field(default=0, init=False, repr=False)

    async def receive(self) -> SessionMessage | Exception:
        """Return the next message; raises `EndOfStream` when there will be none."""
        while True:
            line = await self._line()
            try:
                message = jsonrpc_message_adapter.validate_json(line, by_name=False)
            except ValueError:
                log.debug("mcp.line_ignored", extra={"bytes": len(line)})
            else:
                self.answered = True
                return SessionMessage(message)

    async def _line(self) -> bytes:
        await trio.lowlevel.checkpoint()
        while (end := self._pending.find(b"\n", self._searched)) < 0:
            self._searched = len(self._pending)
            if self._searched > LONGEST_MESSAGE:
                raise anyio.EndOfStream
            try:
                data = await self._source.receive_some(CHUNK)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                data = b""
            if not data:
                raise anyio.EndOfStream
            self._pending += data
        line = bytes(self._pending[:end])
        del self._pending[: end + 1]
        self._searched = 0
        return line

    async def aclose(self) -> None:
        """Leave the pipe to the process group, which closes it."""
        await trio.lowlevel.checkpoint()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> Self:
        await trio.lowlevel.checkpoint()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        await self.aclose()


@asynccontextmanager
async def open_stdio(
    target: McpTarget,
) -> AsyncIterator[tuple[LineReader, MemoryObjectSendStream[SessionMessage]]]:
    """Start the command of a server and give what reads and what writes its messages."""
    config = target.config
    if not config.command:
        raise McpFailure("it has no command")
    command = Command(
        argv=(config.command, *config.args), working_dir=target.directory, env=target.environment
    )
    complaints = BoundedOutput(MAX_STDERR)
    group: ProcessGroup | None = None
    reader: LineReader | None = None
    try:
        async with open_process_group(
            command,
            clock=target.clock,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=complaints,
        ) as group:
            async with _unless_ended(group), _written(group) as outgoing:
                assert group.stdout is not None
                reader = LineReader(group.stdout)
                yield reader, outgoing
    except* McpFailure as failures:
        raise _explained(failures, group) from None
    finally:
        if reader is not None and not reader.answered:
            _log_complaints(target, complaints)


@asynccontextmanager
async def _unless_ended(group: ProcessGroup) -> AsyncIterator[None]:
    """Let a command end by itself that has hung up: how it ended says more than that it did."""
    try:
        yield
    except* McpFailure:
        with trio.move_on_after(EXIT_WAIT):
            await group.wait()
        raise


@asynccontextmanager
async def _written(group: ProcessGroup) -> AsyncIterator[MemoryObjectSendStream[SessionMessage]]:
    """Give what takes messages for a command. Each is written whole, whoever stops waiting for it."""
    sender, receiver = anyio.create_memory_object_stream[SessionMessage](MAX_QUEUED)
    with sender, receiver:
        async with open_hidden_nursery() as nursery:
            nursery.start_soon(_write, group.stdin, receiver)
            yield sender
            nursery.cancel_scope.cancel()


async def _write(
    pipe: trio.abc.SendStream | None, messages: MemoryObjectReceiveStream[SessionMessage]
) -> None:
    assert pipe is not None
    with messages:
        async for each in messages:
            text = each.message.model_dump_json(by_alias=True, exclude_unset=True)
            try:
                await pipe.send_all(f"{text}\n".encode())
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return


def _log_complaints(target: McpTarget, complaints: BoundedOutput) -> None:
    """Log what a server wrote that never answered. Later it could be about what was asked of it."""
    text = complaints.text()
    if text.strip():
        secrets = worth_finding(target.config.env.values())
        extra = {"server": target.name, "stderr": redact_text(text, secrets=secrets)}
        log.warning("mcp.complaint", extra=extra)


def _explained(
    failures: ExceptionGroup[McpFailure], group: ProcessGroup | None
) -> McpFailure | ExceptionGroup[McpFailure]:
    """Return a failure that says how the command ended, if it did so by itself."""
    ended = None if group is None else group.ended
    if ended is None or ended.stopped:
        return failures
    return McpFailure(f"the command has ended, with exit code {ended.status}")
