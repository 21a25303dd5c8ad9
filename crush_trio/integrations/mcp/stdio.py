"""`open_stdio`: runs an MCP server that is a command, with streams as the `mcp` package expects them.

The command runs in a process group (`process.py`): it gets only the environment it is given, and however
the block is left, the command and everything it started have ended. Each line is a message; lines that
are not messages are ignored, because many programs print a greeting first.
"""

import logging
import re
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Final, Self

import anyio
import trio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from attrs import define, field, frozen
from mcp.shared.message import SessionMessage
from mcp_types import INTERNAL_ERROR, ErrorData, JSONRPCError, jsonrpc_message_adapter

from crush_trio.config.redaction import redact_text, searchable_secrets
from crush_trio.integrations.mcp.session import McpFailure, McpTarget
from crush_trio.nursery import open_hidden_nursery
from crush_trio.tools.shell.output import BoundedOutput
from crush_trio.tools.shell.process import Command, ProcessGroup, open_process_group

log = logging.getLogger(__name__)

LONGEST_MESSAGE: Final = 16 * 1024 * 1024
"""Maximum bytes of one message."""

CHUNK: Final = 64 * 1024
MAX_STDERR: Final = 4096
"""Maximum bytes kept of standard error."""

EXIT_WAIT: Final = 0.5
"""Seconds to wait for the end of a command that has closed its output."""

MAX_QUEUED: Final = 64
"""Maximum queued messages while a server does not read; also those of cancelled callers."""


EDGE: Final = 128
"""Bytes at the beginning and at the end of a too long message in which its id is looked for."""

_ID_FIRST: Final = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*(\d+)\s*,')
_ID_LAST: Final = re.compile(rb'"id"\s*:\s*(\d+)\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*\Z')
METHOD: Final = re.compile(rb'"method"\s*:')
"""What a request or a notification has near its beginning, and an answer has not."""

TOO_LONG: Final = (
    f"its answer has more than {LONGEST_MESSAGE // 1024**2} MiB, which is too long; ask for less"
)
_MALFORMED: Final = "its answer is not what the protocol wants"


@frozen
class TooLong:
    """Both ends of a message that was too long."""

    head: bytes
    tail: bytes


def answered_by(head: bytes, tail: bytes) -> int | None:
    """Return the id of the request that a message answers, of which only both ends are known.

    Servers write the id before the result or after it; nothing else in a message looks like this at
    these two places. A request or a notification of the server has a method.
    """
    if METHOD.search(head):
        return None
    found = _ID_FIRST.match(head) or _ID_LAST.search(tail)
    return None if found is None else int(found[1])


def refusal(request_id: int, why: str) -> JSONRPCError:
    """Return an answer that takes the place of one that cannot be used."""
    error = ErrorData(code=INTERNAL_ERROR, message=why)
    return JSONRPCError(jsonrpc="2.0", id=request_id, error=error)


@define(eq=False)
class LineReader:
    """The messages that a command writes. Satisfies the package's `ReadStream`."""

    _source: trio.abc.ReceiveStream
    answered: bool = field(default=False, init=False)
    """Whether a message has been received."""
    _pending: bytearray = field(factory=bytearray, init=False, repr=False)
    _searched: int = field(default=0, init=False, repr=False)

    async def receive(self) -> SessionMessage | Exception:
        """Return the next message; raises `EndOfStream` at the end.

        A message that is too long is not kept. The request that it answers fails, as it does if the
        answer is malformed: otherwise it would wait for ever. If a too long message can be the answer
        to any request, the stream ends here.
        """
        while True:
            line = await self._line()
            if isinstance(line, TooLong):
                if (request_id := answered_by(line.head, line.tail)) is not None:
                    return SessionMessage(refusal(request_id, TOO_LONG))
                log.warning("mcp.message_too_long")
                if not METHOD.search(line.head):
                    raise anyio.EndOfStream
                continue
            try:
                message = jsonrpc_message_adapter.validate_json(line, by_name=False)
            except ValueError:
                if (request_id := answered_by(line[:EDGE], line[-EDGE:])) is not None:
                    return SessionMessage(refusal(request_id, _MALFORMED))
                log.debug("mcp.line_ignored", extra={"bytes": len(line)})
            else:
                self.answered = True
                return SessionMessage(message)

    async def _line(self) -> "bytes | TooLong":
        await trio.lowlevel.checkpoint()
        head = b""
        while (end := self._pending.find(b"\n", self._searched)) < 0:
            self._searched = len(self._pending)
            if self._searched > LONGEST_MESSAGE:
                head = head or bytes(self._pending[:EDGE])
                del self._pending[:-EDGE]
                self._searched = EDGE
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
        if not head and len(line) <= LONGEST_MESSAGE:
            return line
        return TooLong(head or line[:EDGE], line[-EDGE:])

    async def aclose(self) -> None:
        """Do nothing: the process group closes the pipe."""
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
    """Start the command of a server and yield the streams to read and write messages."""
    config = target.config
    if not config.command:
        raise McpFailure("it has no command")
    command = Command(
        argv=(config.command, *config.args), working_dir=target.directory, env=target.environment
    )
    if config.sandbox:
        command = await target.sandbox.held(command)
    stderr = BoundedOutput(MAX_STDERR)
    group: ProcessGroup | None = None
    reader: LineReader | None = None
    try:
        async with open_process_group(
            command,
            clock=target.clock,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
        ) as group:
            async with _unless_ended(group), _written(group) as outgoing:
                assert group.stdout is not None
                reader = LineReader(group.stdout)
                yield reader, outgoing
    except* McpFailure as failures:
        raise _explained(failures, group) from None
    finally:
        if reader is not None and not reader.answered:
            _log_stderr(target, stderr)


@asynccontextmanager
async def _unless_ended(group: ProcessGroup) -> AsyncIterator[None]:
    """After a failure, wait shortly for the command to end: its exit code explains the failure."""
    try:
        yield
    except* McpFailure:
        with trio.move_on_after(EXIT_WAIT):
            await group.wait()
        raise


@asynccontextmanager
async def _written(group: ProcessGroup) -> AsyncIterator[MemoryObjectSendStream[SessionMessage]]:
    """Yield a stream for messages to a command.

    A task writes them, so that a message is written completely even if its sender is cancelled.
    """
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


def _log_stderr(target: McpTarget, stderr: BoundedOutput) -> None:
    """Log the standard error of a server that never answered.

    After the first answer it is not logged, because it may contain data of requests.
    """
    text = stderr.text()
    if text.strip():
        secrets = searchable_secrets(target.config.env.values())
        extra = {"server": target.name, "stderr": redact_text(text, secrets=secrets)}
        log.warning("mcp.complaint", extra=extra)


def _explained(
    failures: ExceptionGroup[McpFailure], group: ProcessGroup | None
) -> McpFailure | ExceptionGroup[McpFailure]:
    """Return a failure with the exit code, if the command ended by itself."""
    ended = None if group is None else group.ended
    if ended is None or ended.stopped:
        return failures
    return McpFailure(f"the command has ended, with exit code {ended.status}")
