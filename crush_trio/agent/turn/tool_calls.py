"""`ToolRunner`: runs the tool calls of one step, and writes each result when it is ready.

Consecutive parallel calls (`Tool.parallel`) run concurrently, in a nursery; every other call runs alone,
in its order (H8). After a tool error the model continues. After a result that stops the turn, the
following calls are not made. A tool that raises another exception fails the run and cancels the concurrent
calls. When this returns or raises, no tool is running; calls without a result get one with the run's
ending (D17).

Before a tool runs, its configured hooks run (I11): they may deny the call, end the turn, approve it
without asking for permission, or change its arguments. Calls of a task have no hooks, because the call
that started the task had them.
"""

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import groupby
from typing import Final, Protocol

import orjson
import trio
from attrs import define, evolve, field, frozen

from crush_trio.agent.record.transcript import TurnRecord, result_message
from crush_trio.agent.spans import NO_SPANS, Spans
from crush_trio.agent.turn.answer import StepAnswer
from crush_trio.clock import Clock, IdSource
from crush_trio.config.secrets.known import KnownSecrets
from crush_trio.integrations.hook_answers import NO_OPINION, Decision, HookVerdict, combine_answers
from crush_trio.limits import DEFAULTS
from crush_trio.nursery import open_hidden_nursery
from crush_trio.runtime.run import Run
from crush_trio.tools.base import (
    INVALID_JSON,
    Permit,
    Tool,
    ToolCall,
    ToolError,
    ToolResult,
    Wanted,
)
from crush_trio.tools.shell.output import Excerpt
from crush_trio.wire.config import HookConfig
from crush_trio.wire.fields import Json
from crush_trio.wire.ids import MessageId, RunId
from crush_trio.wire.messages import ToolCallPart, ToolResultPart
from crush_trio.wire.runs import RunKind


class ApprovablePermit(Permit, Protocol):
    """The permit of one call, which a hook may approve."""

    def approve(self) -> None:
        """Grant what this call wants without asking; applies to no other call (F8)."""
        ...


class RunPermissions(Protocol):
    """What a turn needs from permissions; `agent.asks.permissions.Permissions` satisfies it."""

    def permit_call(self, run: Run, call: ToolCallPart, /) -> ApprovablePermit:
        """Return the permit of one call of a run."""
        ...

    def granting(self, run_id: RunId, /) -> AbstractContextManager[None]:
        """Remove the grants of a run when the block is left."""
        ...


class ToolHooks(Protocol):
    """What a turn needs from hooks; `integrations.hooks.ConfiguredHooks` satisfies it."""

    def matching(self, tool_name: str, /) -> tuple[HookConfig, ...]:
        """Return the hooks of a tool; cheap if there are none."""
        ...

    async def ask(self, hooks: tuple[HookConfig, ...], call: ToolCall, /) -> HookVerdict:
        """Run the hooks for a call; all of them have ended when this returns or raises."""
        ...


@frozen
class NoHooks:
    """`ToolHooks` without hooks."""

    def matching(self, _tool_name: str, /) -> tuple[HookConfig, ...]:
        """Return nothing."""
        return ()

    async def ask(self, hooks: tuple[HookConfig, ...], _call: ToolCall, /) -> HookVerdict:
        """Return a verdict without opinion."""
        await trio.lowlevel.checkpoint()
        return combine_answers(hooks, [NO_OPINION] * len(hooks))


NO_HOOKS: Final = NoHooks()

LONG: Final = 64 * 1024
"""Characters of a result that are searched for secrets in Trio's thread; more in another one."""

_NOT_MADE: Final = ToolResult(
    content="this call was not made: the turn was stopped by the one before it", is_error=True
)


@define(eq=False)
class ToolRunner:
    """Runs the tool calls of one run."""

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
    """Maximum bytes kept of a tool result."""
    secrets: KnownSecrets = field(factory=KnownSecrets, repr=False)
    """What is hidden in the results of tools and in what they ask a person."""

    async def run_all(self, answer: StepAnswer, tools: Mapping[str, Tool]) -> list[ToolResult]:
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
        answer: StepAnswer,
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
                hidden = await self._hide({"content": said.content, "metadata": said.metadata})
                said = evolve(said, **hidden)
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
            permit=partial(self._permit, permit),
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

    async def _permit(self, permit: Permit, wanted: Wanted, /) -> None:
        """Ask for permission, without showing known secrets: requests are stored and published."""
        shown = {
            "description": wanted.description,
            "params": wanted.params,
            "denied": wanted.denied,
        }
        await permit(evolve(wanted, **await self._hide(shown)))

    async def _hide(self, shown: dict[str, Json]) -> dict[str, Json]:
        """Return texts and trees without known secrets; nothing has been cut off from them yet.

        Whole files are searched in another thread, because that takes milliseconds.
        """
        if not self.secrets.matcher.values:
            return shown  # noqa: ASYNC910  # most workspaces; a step less for each call
        if _size(shown) > LONG:
            return await trio.to_thread.run_sync(self._hidden, shown)
        return self._hidden(shown)  # noqa: ASYNC910

    def _hidden(self, shown: dict[str, Json]) -> dict[str, Json]:
        return {name: self.secrets.redact_tree(value) for name, value in shown.items()}

    def _reaped(self, stopped: Iterable[int], left: Iterable[int] = ()) -> None:
        self.run.accepted.reaped.extend(stopped)
        self.run.accepted.left.extend(left)

    async def write(self, call: ToolCallPart, result: ToolResult) -> None:
        """Store and publish one result, as its own message (D13)."""
        message_id = MessageId(self.ids.new())
        part = result_part(call, result)
        message = result_message(part, self.run.session_id, message_id, self.clock.unix())
        await self.turn.write(message)

    async def refuse(self, calls: Iterable[ToolCallPart], why: str) -> None:
        """Write error results for calls that will not be run."""
        await trio.lowlevel.checkpoint()
        for call in calls:
            await self.write(call, ToolResult(content=why, is_error=True))


def _size(value: Json) -> int:
    """Return the number of characters in a tree of plain values, names aside; it may be deep."""
    size, waiting = 0, [value]
    while waiting:
        match waiting.pop():
            case str() as text:
                size += len(text)
            case Mapping() as tree:
                waiting += tree.values()
            case list() | tuple() as items:
                waiting += items
    return size


async def _use(tool: Tool, call: ToolCall) -> ToolResult:
    """Run a tool; a `ToolError` becomes its result."""
    try:
        return await tool.run(call)
    except ToolError as error:
        return error.result  # noqa: ASYNC910  # the tool has run


def result_part(call: ToolCallPart, result: ToolResult) -> ToolResultPart:
    """Return a result as it is stored; media without text gets a default text (D14c)."""
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
    """Yield the calls in groups that may run concurrently, each with its index."""

    def alone(placed: tuple[int, ToolCallPart]) -> int | None:
        index, call = placed
        tool = tools.get(call.name)
        return None if tool is not None and tool.parallel else index

    for _, group in groupby(enumerate(calls), key=alone):
        yield list(group)
