"""The tool calls of one step: run, and each result written as it comes.

Calls that may run beside others (`Tool.parallel`) and follow each other run together, in a nursery;
every other call runs alone, in its place (H8). A tool that answers with an error lets the model go
on; once one has stopped the turn, the calls behind it are not made; one that raises ends the run, and
the calls beside it with it. However this is left, no tool is still running then, and whatever call has
no result gets one with the run's ending (D17).

Before a tool is used, the hooks that are configured for it have their say (I11): they may refuse the
call, end the turn, allow what would have to be asked for, or change what the tool is given. The tools of
a task have none: its run had them when it started the task.
"""

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import groupby
from typing import Final, Protocol

import orjson
import trio
from attrs import define, evolve, field, frozen

from crush_trio.agent.record.turn_record import TurnRecord, result_message
from crush_trio.agent.spans import NO_SPANS, Spans
from crush_trio.agent.turn.answer import Answer
from crush_trio.clock import Clock, IdSource
from crush_trio.integrations.hook_answers import NO_OPINION, Decision, HookVerdict, combine_answers
from crush_trio.limits import DEFAULTS
from crush_trio.nursery import open_hidden_nursery
from crush_trio.runtime.run import Run
from crush_trio.tools.arguments import INVALID_JSON
from crush_trio.tools.base import Permit, Tool, ToolCall, ToolError, ToolResult
from crush_trio.tools.shell.output import Excerpt
from crush_trio.wire.config import HookConfig
from crush_trio.wire.ids import MessageId, RunId
from crush_trio.wire.messages import ToolCallPart, ToolResultPart
from crush_trio.wire.runs import RunKind


class ApprovablePermit(Permit, Protocol):
    """Asks for permission in the name of one call, unless that call has been approved."""

    def approve(self) -> None:
        """Ask nobody about what this call wants to do, and no other (F8)."""
        ...


class RunPermissions(Protocol):
    """Who may do what, as a turn needs it; `agent.permissions.Permissions` satisfies it."""

    def permit_call(self, run: Run, call: ToolCallPart, /) -> ApprovablePermit:
        """Return what asks for permission in the name of one call of one run."""
        ...

    def granting(self, run_id: RunId, /) -> AbstractContextManager[None]:
        """Let what is granted for a run hold until the end of the block."""
        ...


class ToolHooks(Protocol):
    """Who is asked before a tool is used; `integrations.hooks.ConfiguredHooks` satisfies it."""

    def matching(self, tool_name: str, /) -> tuple[HookConfig, ...]:
        """Return the hooks to ask, which costs nothing where there are none."""
        ...

    async def ask(self, hooks: tuple[HookConfig, ...], call: ToolCall, /) -> HookVerdict:
        """Ask them about a call. None of them runs any more when this is left."""
        ...


@frozen
class NoHooks:
    """Satisfies `ToolHooks`: nobody is asked."""

    def matching(self, _tool_name: str, /) -> tuple[HookConfig, ...]:
        """Return nothing."""
        return ()

    async def ask(self, hooks: tuple[HookConfig, ...], _call: ToolCall, /) -> HookVerdict:
        """Have no opinion, like every one of *hooks*."""
        await trio.lowlevel.checkpoint()
        return combine_answers(hooks, [NO_OPINION] * len(hooks))


NO_HOOKS: Final = NoHooks()

_NOT_MADE: Final = ToolResult(
    content="this call was not made: the turn was stopped by the one before it", is_error=True
)


@define(eq=False)
class ToolRunner:
    """Runs calls of one run with the tools it may use."""

    run: Run
    turn: TurnRecord = field(repr=False)
    clock: Clock = field(repr=False)
    ids: IdSource = field(repr=False)
    permissions: RunPermissions = field(repr=False)
    images: bool = False
    interactive: bool = True
    spans: Spans = field(default=NO_SPANS, repr=False)
    hooks: ToolHooks = field(default=NO_HOOKS, repr=False)
    kept: int = DEFAULTS.tool_output
    """Bytes that are kept of what a tool answers."""

    async def run_all(self, answer: Answer, tools: Mapping[str, Tool]) -> list[ToolResult]:
        """Run the calls of *answer*; return their results in the order of the calls."""
        results: dict[int, ToolResult] = {}
        await trio.lowlevel.checkpoint()
        for together in _batches(answer.calls, tools):
            if any(result.stop_turn for result in results.values()):
                results |= dict.fromkeys((index for index, _ in together), _NOT_MADE)
                await self.refuse((call for _, call in together), _NOT_MADE.content)
                continue
            async with open_hidden_nursery() as nursery:
                for index, call in together:
                    nursery.start_soon(
                        self._run_one, answer, tools, call, results, index, name=f"tool {call.name}"
                    )
        return [results[index] for index in sorted(results)]

    async def _run_one(
        self,
        answer: Answer,
        tools: Mapping[str, Tool],
        call: ToolCallPart,
        results: dict[int, ToolResult],
        index: int,
    ) -> None:
        with self.spans.tool_call(self.run, call) as span:
            if call.id in answer.unreadable:
                result = ToolResult(content=INVALID_JSON, is_error=True)
            else:
                said = await self._call(answer.opened.id, tools.get(call.name), call)
                result = evolve(said, content=str(Excerpt.of(said.content, self.kept)))
            span.returned(result)
        results[index] = result
        await self.write(call, result)

    async def _call(
        self, message_id: MessageId, tool: Tool | None, call: ToolCallPart
    ) -> ToolResult:
        if tool is None:
            await trio.lowlevel.checkpoint()
            return ToolResult(content=f"there is no tool named {call.name}", is_error=True)
        permit = self.permissions.permit_call(self.run, call)
        asked = ToolCall(
            id=call.id,
            name=call.name,
            input=call.input,
            session_id=self.run.session_id,
            run_id=self.run.id,
            message_id=message_id,
            permit=permit,
            images=self.images,
            interactive=self.interactive,
            reaped=self._reaped,
        )
        hooks = () if self.run.kind is RunKind.TASK else self.hooks.matching(call.name)
        if not hooks:
            return await _use(tool, asked)
        verdict = await self.hooks.ask(hooks, asked)
        if verdict.combined.refuses:
            return verdict.added_to(verdict.refusal())
        if verdict.combined.decision is Decision.ALLOW:
            permit.approve()
        return verdict.added_to(await _use(tool, verdict.rewritten(asked)))

    def _reaped(self, stopped: Iterable[int], left: Iterable[int] = ()) -> None:
        self.run.accepted.reaped.extend(stopped)
        self.run.accepted.left.extend(left)

    async def write(self, call: ToolCallPart, result: ToolResult) -> None:
        """Store and publish one result, as a message of its own (D13)."""
        message_id = MessageId(self.ids.new())
        part = result_part(call, result)
        message = result_message(part, self.run.session_id, message_id, self.clock.unix())
        await self.turn.write(message)

    async def refuse(self, calls: Iterable[ToolCallPart], why: str) -> None:
        """Answer calls that will not be run."""
        await trio.lowlevel.checkpoint()
        for call in calls:
            await self.write(call, ToolResult(content=why, is_error=True))


async def _use(tool: Tool, call: ToolCall) -> ToolResult:
    """Return what a tool answers, be it an error."""
    try:
        return await tool.run(call)
    except ToolError as error:
        return error.result  # noqa: ASYNC910  # the tool has run


def result_part(call: ToolCallPart, result: ToolResult) -> ToolResultPart:
    """Return a result as it is stored; media without words get some (D14c)."""
    content, data, mime_type = result.content, "", ""
    if result.media is not None:
        mime_type = result.media.mime_type
        data = base64.b64encode(result.media.data).decode("ascii")
        content = content or f"Loaded {mime_type} content"
    return ToolResultPart(
        tool_call_id=call.id,
        name=call.name,
        content=content,
        data=data,
        mime_type=mime_type,
        metadata=orjson.dumps(result.metadata).decode() if result.metadata else "",
        is_error=result.is_error,
    )


def _batches(
    calls: Sequence[ToolCallPart], tools: Mapping[str, Tool]
) -> Iterator[list[tuple[int, ToolCallPart]]]:
    """Return the calls in groups that may run together, with their places."""

    def alone(placed: tuple[int, ToolCallPart]) -> int | None:
        index, call = placed
        tool = tools.get(call.name)
        return None if tool is not None and tool.parallel else index

    for _, group in groupby(enumerate(calls), key=alone):
        yield list(group)
