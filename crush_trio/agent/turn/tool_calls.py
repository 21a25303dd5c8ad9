"""`ToolRunner`: runs the tool calls of one step, and writes each result when it is ready.

Consecutive parallel calls (`Tool.parallel`) run concurrently, in a nursery; every other call runs alone,
in its order (H8). After a tool error the model continues. After a result that stops the turn, the
following calls are not made. A tool that raises another exception fails the run and cancels the concurrent
calls. When this returns or raises, no tool is running; calls without a result get one with the run's
ending (D17).

Before a tool runs, its configured hooks run (I11): they may deny the call, end the turn, approve it
without asking for permission, have a person asked, or change its arguments. Others run after a successful
call and may add to its result. Calls of a task have no hooks, because the call that started the task had
them.
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

from crush_trio.agent.record.recorded import recorded_tool
from crush_trio.agent.record.transcript import TurnRecord
from crush_trio.agent.record.unfinished_turn import result_message
from crush_trio.agent.spans import NO_SPANS, Spans
from crush_trio.agent.turn.answer import StepAnswer
from crush_trio.clock import Clock, IdSource
from crush_trio.config.checks import HookEvent
from crush_trio.config.secrets.known import KnownSecrets
from crush_trio.events.facts import progress_notice
from crush_trio.integrations.hook_answers import NO_OPINION, Decision, HookVerdict, combine_answers
from crush_trio.integrations.hook_input import Occasion
from crush_trio.limits import DEFAULTS
from crush_trio.nursery import open_hidden_nursery
from crush_trio.runtime.run import Run
from crush_trio.runtime.timeline import timed
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
from crush_trio.wire.asks import Question, QuestionResponse
from crush_trio.wire.config import HookConfig
from crush_trio.wire.fields import Json
from crush_trio.wire.ids import MessageId, RunId, ToolCallId
from crush_trio.wire.messages import ResultMedia, ToolCallPart, ToolResultPart
from crush_trio.wire.runs import RunKind, SpanKind


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


class RunQuestions(Protocol):
    """What a turn needs from questions; `agent.asks.questions.Questions` satisfies it."""

    async def ask_for(
        self, run: Run, call_id: ToolCallId, questions: tuple[Question, ...], /
    ) -> tuple[QuestionResponse, ...] | None:
        """Put a tool's questions to a person; None if they are not answered."""
        ...


class ToolHooks(Protocol):
    """What a turn needs from hooks; `integrations.hooks.ConfiguredHooks` satisfies it."""

    def matching(
        self, subject: str, event: HookEvent = HookEvent.PRE_TOOL_USE, /
    ) -> tuple[HookConfig, ...]:
        """Return the hooks of an event, for a tool or another *subject*; cheap if there are none."""
        ...

    async def ask(
        self, hooks: tuple[HookConfig, ...], call: ToolCall, result: ToolResult | None = None, /
    ) -> HookVerdict:
        """Run the hooks for a call or its result; all have ended when this returns or raises."""
        ...

    async def ask_about(
        self, hooks: tuple[HookConfig, ...], occasion: Occasion, subject: str = "", /
    ) -> HookVerdict:
        """Run the hooks for an event that is not about a tool."""
        ...


@frozen
class NoHooks:
    """`ToolHooks` without hooks."""

    def matching(
        self, _subject: str, _event: HookEvent = HookEvent.PRE_TOOL_USE, /
    ) -> tuple[HookConfig, ...]:
        """Return nothing."""
        return ()

    async def ask(
        self, hooks: tuple[HookConfig, ...], _call: ToolCall, _result: ToolResult | None = None, /
    ) -> HookVerdict:
        """Return a verdict without opinion."""
        await trio.lowlevel.checkpoint()
        return combine_answers(hooks, [NO_OPINION] * len(hooks))

    async def ask_about(
        self, hooks: tuple[HookConfig, ...], _occasion: Occasion, _subject: str = "", /
    ) -> HookVerdict:
        """Return a verdict without opinion."""
        await trio.lowlevel.checkpoint()
        return combine_answers(hooks, [NO_OPINION] * len(hooks))


NO_HOOKS: Final = NoHooks()

SHOWING_CHANGES: Final = frozenset({"edit", "multiedit", "write"})
"""The tools that always ask for permission, and show the change that they want to make."""

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
    questions: RunQuestions | None = field(default=None, repr=False)
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
        with (
            self.spans.tool_call(self.run, call) as span,
            timed(SpanKind.TOOL, call.name, call.id),
        ):
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
            ask=partial(self.questions.ask_for, self.run, call.id)
            if self.questions is not None and self.interactive
            else None,
            progress=self._progress,
        )
        hooks = self._matching(call.name, HookEvent.PRE_TOOL_USE)
        if not hooks:
            return await self._after(asked, await _use(tool, asked))
        verdict = await self.hooks.ask(hooks, asked)
        if verdict.combined.refuses:
            return verdict.added_to(verdict.refusal())
        asked = verdict.rewritten(asked)
        try:
            if verdict.combined.decision is Decision.ASK:
                asked = await self._asking(verdict, permit, asked)
            elif verdict.combined.decision is Decision.ALLOW:
                permit.approve()
        except ToolError as denied:
            return verdict.added_to(denied.result)  # noqa: ASYNC910  # the hooks have run
        return await self._after(asked, verdict.added_to(await _use(tool, asked)))

    def _matching(self, tool: str, event: HookEvent) -> tuple[HookConfig, ...]:
        return () if self.run.kind is RunKind.TASK else self.hooks.matching(tool, event)

    async def _asking(
        self, verdict: HookVerdict, permit: ApprovablePermit, call: ToolCall
    ) -> ToolCall:
        """Have a person decide about a call, because a hook wants that; raise `ToolError` if denied.

        A tool that shows a change asks itself, always; for any other the person is asked here.
        """
        if call.name in SHOWING_CHANGES:
            own = call.permit

            async def ask_always(wanted: Wanted, /) -> None:
                why = ": ".join(filter(None, (wanted.description, verdict.combined.reason)))
                await own(evolve(wanted, always=True, description=why))

            return evolve(call, permit=ask_always)  # noqa: ASYNC910  # the tool asks
        await call.permit(verdict.wanted(call))
        permit.approve()
        return call

    async def _after(self, call: ToolCall, result: ToolResult) -> ToolResult:
        """Run the hooks that follow a successful call; return *result* with what they say."""
        if result.is_error or not (hooks := self._matching(call.name, HookEvent.POST_TOOL_USE)):
            return result  # noqa: ASYNC910  # the tool has run
        return (await self.hooks.ask(hooks, call, result)).added_after(result)

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

    def _progress(self, text: str) -> None:
        self.run.publish(progress_notice(self.run.session_id, self.run.submission.run_id, text))

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
        result: object = await recorded_tool(tool).run(call)
    except ToolError as error:
        return error.result  # noqa: ASYNC910  # the tool has run
    if not isinstance(result, ToolResult):
        said = type(result).__name__
        raise TypeError(
            f"the tool {call.name} returned a {said}: write `return ToolResult(content=…)`"
        )
    return result


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
        more_media=tuple(
            ResultMedia(data=base64.b64encode(each.data).decode("ascii"), mime_type=each.mime_type)
            for each in result.more_media
        ),
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
