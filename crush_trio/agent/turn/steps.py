"""`Steps`: the step loop of a turn. Calls the model, runs its tool calls, and repeats until it stops.

Each step is one model call with its tool calls, and becomes one assistant message and one tool message per
result (D13). Before each step, queued prompts are folded in: those without a caller's run id, and those that steer (C2). The last
message is stored with the run's own ending: the answer is finished and the run is over in one commit.

Nothing here cleans up after a cancel or a failure; the journal does that for every turn.

`LoopGuard` stops a model that repeats itself: it counts identical tool interactions (same tools, arguments
and results) over the last steps. Steps without tool calls end the turn anyway (D30).
"""

import hashlib
import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import Final

import orjson
import trio
from attrs import define, evolve, field, frozen

from crush_trio.agent.record.recording import note
from crush_trio.agent.record.transcript import TurnRecord
from crush_trio.agent.turn.answer import AnswerBudget, StepAnswer
from crush_trio.agent.turn.context_window import Growth, fitted, is_crowded, size_of, with_room
from crush_trio.agent.turn.model import nearly_full, step_usage
from crush_trio.agent.turn.model_call import call_model
from crush_trio.agent.turn.plan import Desk, EarlyRead, Opening, Tools, TurnPlan
from crush_trio.agent.turn.prompt import ModelAbilities, affinity, build_prompt, tool_call_ids
from crush_trio.agent.turn.prompt_hooks import hooks_section, prompt_context, reason_to_go_on
from crush_trio.agent.turn.summary import CONTINUE, Summarizer
from crush_trio.agent.turn.tool_calls import ToolRunner
from crush_trio.errors import AnswerTooLong
from crush_trio.events.facts import finished_notice
from crush_trio.nursery import open_hidden_nursery
from crush_trio.providers.base import Finished, ModelRequest, ToolSpec
from crush_trio.providers.errors import ProviderContextFull, ProviderError
from crush_trio.runtime.outcome import Completion
from crush_trio.runtime.run import Run
from crush_trio.store.changes import UsageAdded
from crush_trio.tools.base import ToolResult
from crush_trio.wire.codec import unstructure
from crush_trio.wire.ids import MessageId
from crush_trio.wire.messages import FinishPart, FinishReason, Message, Role, TextPart, ToolCallPart
from crush_trio.wire.runs import RunKind

log = logging.getLogger(__name__)

CUT_OFF: Final = "the answer was cut off before this call could be made"
MAX_SHORTENED: Final = 4
"""How often in a row a conversation that is too long is shortened."""

LENGTH: Final = "Cut off: the answer reached {limit}; raise max_tokens of the model to allow more"
FILTERED: Final = "Cut off: the provider's content filter ended the answer"
EMPTY: Final = "The model ended its turn without an answer"
REPEATED: Final = "Stopped: the same tool calls were repeated with the same results"


@frozen(kw_only=True)
class Step:
    """The result of one step: whether another follows, and why it ended."""

    answer: StepAnswer
    finish: FinishPart
    goes_on: bool
    full: bool
    used: UsageAdded
    """The usage of the model call."""
    stopped_by: str = ""
    """The content of the tool results that stopped the turn; empty if none did, or a person."""


LOOP_WINDOW: Final = 10
MAX_REPEATS: Final = 5


@define(eq=False)
class LoopGuard:
    """Detects repeated steps of one turn."""

    _recent: deque[bytes] = field(factory=lambda: deque(maxlen=LOOP_WINDOW), init=False)

    def repeats(self, calls: Iterable[ToolCallPart], results: Iterable[ToolResult]) -> bool:
        """Record a step; return whether one step occurs too often among the last ones."""
        pairs = [
            (call.name, call.input, result.content)
            for call, result in zip(calls, results, strict=False)
        ]
        if not pairs:
            return False
        digest = hashlib.sha256(orjson.dumps(pairs)).digest()
        self._recent.append(digest)
        full = len(self._recent) == LOOP_WINDOW
        return full and Counter(self._recent).most_common(1)[0][1] > MAX_REPEATS


@define(eq=False)
class Steps:
    """The steps of one turn."""

    run: Run
    plan: TurnPlan
    desk: Desk
    opening: Opening | None = None
    early: EarlyRead = field(factory=EarlyRead, repr=False)
    hooks_said: list[str] = field(factory=list, repr=False)
    """What hooks have told the model so far."""
    _continued: int = field(default=0, init=False)
    """How often `Stop` hooks have had the turn go on."""
    _guard: LoopGuard = field(factory=LoopGuard, init=False)
    _shortened: int = field(default=0, init=False)
    """How often in a row the conversation was too long for the model."""
    _fit: int = field(default=0, init=False)
    """The tokens that requests of this turn may have; 0 for no limit of ours."""
    _size: int = field(default=0, init=False)  # the estimated tokens of the present request
    _growth: Growth = field(factory=Growth, init=False)
    _when_answered: Callable[[], None] | None = field(default=None, init=False, repr=False)
    _turn: TurnRecord = field(init=False)
    _tools: ToolRunner = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._turn = self.desk.turn(self.run)
        self._tools = ToolRunner(
            self.run,
            self._turn,
            self.desk.clock,
            self.desk.ids,
            self.desk.permissions,
            images=self.plan.model.model.supports_attachments,
            interactive=self.plan.interactive,
            spans=self.desk.spans,
            hooks=self.desk.hooks,
            questions=self.desk.questions,
            kept=self.desk.sizes.tool_output,
            secrets=self.desk.secrets,
        )

    async def play(self) -> Completion:
        """Run steps until the model has answered the run's prompt."""
        try:
            return await self._play()
        finally:
            self._answering()

    def _answering(self) -> None:
        """Tell the opening that the model has begun to answer, or never will."""
        call, self._when_answered = self._when_answered, None
        if call is not None:
            call()

    async def _play(self) -> Completion:
        while True:
            tools = self.plan.tools()
            request = await self._request(tools)
            try:
                self._check_size()
                with self.desk.spans.step(self.run):
                    step = await self._step(request, tools)
            except ProviderContextFull as full:
                await self._shorten(request, full)
                continue
            self._shortened = 0
            held = await self._held_back(step)
            if held:
                step = evolve(step, goes_on=True)
            if step.full and self._summary_helps(request) and self._growth.worth_summary(step.used):
                await self._make_room(step)
            elif step.goes_on:
                await step.answer.opened.finish(step.finish, step.used)
            else:
                self._turn.usage = step.used
                step.answer.opened.seal(step.finish)
            if not step.goes_on:
                return self._completion(step)
            if held:
                await self._say_as_user(held)

    def _check_size(self) -> None:
        """Raise `ProviderContextFull` for a session that has outgrown its model, before any call."""
        window = self.desk.windows.of(self.plan.model)
        if not self._fit and window and self._size > window:
            raise ProviderContextFull(f"more than {window} tokens", window=window)

    def _summary_helps(self, request: ModelRequest) -> bool:
        window = self.desk.windows.of(self.plan.model)
        return self.plan.auto_summarize and not is_crowded(request, window)

    async def _shorten(self, request: ModelRequest, full: ProviderContextFull) -> None:
        """Make the next request shorter: by a summary, then by leaving out what is old.

        Raises *full* if that has not helped.
        """
        await trio.lowlevel.checkpoint()
        self.desk.windows.learn(self.plan.model, request, full)
        self._shortened += 1
        if self._shortened > MAX_SHORTENED:
            raise full
        if self._shortened == 1 and self._summary_helps(request):
            try:
                await Summarizer(self.run, self.plan, self.desk).summarize()
            except ProviderContextFull:
                pass  # the history is as long as before; it is cut instead
            else:
                return await self._say_as_user(CONTINUE.format(prompt=self.run.prompt))
        known = min(self.desk.windows.of(self.plan.model), self._fit or full.window or inf)
        self._fit = int(known if self._shortened == 1 else known * 2 / 3)
        return None

    async def _held_back(self, step: Step) -> str:
        """Return why hooks want the finished turn to go on; empty if they do not (I12)."""
        finished = step.finish.reason is FinishReason.END_TURN and not step.finish.message
        if step.goes_on or step.stopped_by or not finished:
            return ""  # noqa: ASYNC910  # the step has had checkpoints
        text = step.answer.said().text
        reason = await reason_to_go_on(self.desk, self.run, text, self._continued)
        self._continued += bool(reason)
        return reason

    async def _make_room(self, step: Step) -> None:
        """Summarise the session, and continue from the summary if the turn is not over (C9, D29)."""
        await step.answer.opened.finish(step.finish, step.used)
        try:
            await Summarizer(self.run, self.plan, self.desk).summarize()
        except (ProviderError, AnswerTooLong) as error:
            if step.goes_on:
                raise
            extra = {"run_id": self.run.id, "code": error.code, "error": str(error)}
            log.warning("summary.failed", extra=extra)
        if step.goes_on:
            await self._say_as_user(CONTINUE.format(prompt=self.run.prompt))

    async def _say_as_user(self, text: str) -> None:
        now = self.desk.clock.unix()
        message = Message(
            id=MessageId(self.desk.ids.new()),
            role=Role.USER,
            session_id=self.run.session_id,
            parts=(TextPart(text=text),),
            created_at=now,
            updated_at=now,
        )
        await self._turn.write(message)

    def _completion(self, step: Step) -> Completion:
        """Return the run's completion; its notice is published with the ending (D28).

        If a tool stopped the turn, and not a person, its error is part of the text: some clients see
        nothing of a turn but this (F5).
        """
        if self.run.kind is not RunKind.TASK:
            self._turn.notice = finished_notice
        said = step.answer.said()
        return evolve(said, text="\n\n".join(filter(None, (said.text, step.stopped_by))))

    # ── One step ────────────────────────────────────────────────────────────────────────────────

    async def _step(self, request: ModelRequest, tools: Tools) -> Step:
        new = self.desk.begin_answer(self.run, self.plan.model)
        answer = StepAnswer(
            new.opened,
            tool_call_ids(request.messages),
            budget=AnswerBudget(self.desk.sizes.answer),
            stored=new.stored,
            begun=self._answering,
        )

        async def store_message() -> None:
            await trio.lowlevel.cancel_shielded_checkpoint()  # the writer would delay the request
            await new.store()
            self.run.partial = answer.said

        try:
            async with open_hidden_nursery() as beside:  # the model is asked while this is stored
                beside.start_soon(store_message)
                ending = await call_model(self.run, self.plan, self.desk, request, answer)
        except ProviderContextFull:
            self._turn.discard(answer.opened)
            raise
        self.desk.windows.read(self.plan.model, ending.usage)
        results = await self._answer_calls(answer, ending, tools)
        used = step_usage(
            self.run.session_id,
            ending.usage,
            self.plan.model,
            request,
            answer.message(),
            self.desk.clock.unix(),
        )
        return self._judge(answer, ending, results, used)

    async def _request(self, tools: Tools) -> ModelRequest:
        """Fold queued prompts, and return the model request for the conversation.

        The stored messages are released when this returns: the answer may take minutes, and a long
        conversation would be in memory twice for that time.
        """
        prompts = await self.run.fold()
        for folded in prompts:
            note("fold", prompt=folded.prompt, attachments=unstructure(folded.attachments))
            self.hooks_said.append(await prompt_context(self.desk, self.run, folded.prompt))
        said, self.early.said = self.early.said, None
        if said is None or prompts:
            said = await self.desk.store.conversation(self.run.session_id, self.run.id)
        if self.opening is not None:
            self._when_answered, self.opening = self.opening(said), None
        model = self.plan.model
        can = ModelAbilities(
            images=model.model.supports_attachments, media_results=model.media_results
        )
        prefix = (model.system_prompt_prefix,) if model.system_prompt_prefix else ()
        request = ModelRequest(
            model=model.model,
            chosen=model.selected,
            system=(*prefix, *self.plan.system, *hooks_section(self.hooks_said)),
            messages=build_prompt(
                said.messages, said.session.summary_message_id, can, remind=self.plan.remind
            ),
            tools=tool_specs(tools),
            max_tokens=model.max_tokens,
            affinity=affinity(said.session.id),
        )
        if self._fit:
            return fitted(request, self._fit)
        self._size = size_of(request)
        return with_room(request, self.desk.windows.of(model), self._size)

    async def _answer_calls(
        self, answer: StepAnswer, ending: Finished, tools: Tools
    ) -> list[ToolResult]:
        """Run the tool calls, unless the answer was cut off while the model wrote them."""
        if ending.reason in _COMPLETE:
            return await self._tools.run_all(answer, tools)
        await answer.drop_incomplete()
        unanswered = [
            part for part in answer.opened.message().parts if isinstance(part, ToolCallPart)
        ]
        await self._tools.refuse(unanswered, CUT_OFF)
        return []

    def _judge(
        self,
        answer: StepAnswer,
        ending: Finished,
        results: Sequence[ToolResult],
        used: UsageAdded,
    ) -> Step:
        """Decide whether another step follows, and how this one's message ends (D14)."""
        asked = ending.reason in _COMPLETE and bool(answer.calls)
        stopping = [result for result in results if result.stop_turn]
        circling = asked and self._guard.repeats(answer.calls, results)
        goes_on = asked and not stopping and not circling
        if goes_on:
            reason = FinishReason.TOOL_USE
        elif asked or ending.reason is FinishReason.TOOL_USE:
            reason = FinishReason.END_TURN
        else:
            reason = ending.reason
        return Step(
            answer=answer,
            finish=FinishPart(
                reason=reason,
                time=self.desk.clock.unix(),
                message=REPEATED if circling else self._shortcoming(answer, reason),
            ),
            goes_on=goes_on,
            used=used,
            stopped_by="\n".join(each.content for each in stopping if not each.by_person),
            full=nearly_full(
                self.desk.windows.of(self.plan.model),
                used.prompt_tokens or 0,
                used.completion_tokens or 0,
            ),
        )

    def _shortcoming(self, answer: StepAnswer, reason: FinishReason) -> str:
        """Return what is wrong with an answer that ends the turn: cut off, or empty."""
        if reason is FinishReason.MAX_TOKENS:
            limit = self.plan.model.max_tokens
            return LENGTH.format(limit=f"its limit of {limit} tokens" if limit else "its limit")
        if reason is FinishReason.CONTENT_FILTER:
            return FILTERED
        silent = reason in _ENDS and not answer.calls and not answer.said().text.strip()
        return EMPTY if silent else ""


_ENDS: Final = frozenset({FinishReason.END_TURN, FinishReason.UNKNOWN})
"""Finish reasons after which there should be a text."""

_COMPLETE: Final = frozenset({FinishReason.TOOL_USE, FinishReason.END_TURN})
"""Finish reasons of a complete answer."""


def tool_specs(tools: Tools) -> tuple[ToolSpec, ...]:
    """Return the tools for a model request, sorted by name (H2)."""
    return tuple(
        ToolSpec(name=name, description=tool.description, parameters=tool.parameters)
        for name, tool in sorted(tools.items())
    )
