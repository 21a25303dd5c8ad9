"""`Steps`: the step loop of a turn. Calls the model, runs its tool calls, and repeats until it stops.

Each step is one model call with its tool calls, and becomes one assistant message and one tool message per
result (D13). Before each step, queued prompts without a caller's run id are folded in (C2). The last
message is stored with the run's own ending: the answer is finished and the run is over in one commit.

Nothing here cleans up after a cancel or a failure; the journal does that for every turn.

`LoopGuard` stops a model that repeats itself: it counts identical tool interactions (same tools, arguments
and results) over the last steps. Steps without tool calls end the turn anyway (D30).
"""

import hashlib
import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import orjson
from attrs import define, evolve, field, frozen

from crush_trio.agent.record.transcript import TurnRecord
from crush_trio.agent.turn.answer import AnswerBudget, StepAnswer
from crush_trio.agent.turn.model import nearly_full, step_usage
from crush_trio.agent.turn.plan import Desk, Tools, TurnPlan
from crush_trio.agent.turn.prompt import ModelAbilities, affinity, build_prompt, tool_call_ids
from crush_trio.agent.turn.summary import CONTINUE, Summarizer
from crush_trio.agent.turn.tool_calls import ToolRunner
from crush_trio.errors import AnswerTooLong
from crush_trio.events.facts import finished_notice, waiting_notice
from crush_trio.providers.base import Finished, ModelRequest, ToolSpec
from crush_trio.providers.call import Waiting, converse
from crush_trio.providers.errors import ProviderError
from crush_trio.runtime.outcome import Completion
from crush_trio.runtime.run import Run
from crush_trio.store.base import StoredConversation
from crush_trio.store.changes import UsageAdded
from crush_trio.tools.base import ToolResult
from crush_trio.wire.ids import MessageId
from crush_trio.wire.messages import FinishPart, FinishReason, Message, Role, TextPart, ToolCallPart

log = logging.getLogger(__name__)

CUT_OFF: Final = "the answer was cut off before this call could be made"
REPEATED: Final = "Stopped: the same tool calls were repeated with the same results"


ShowConversation = Callable[[StoredConversation], None]
"""Called with the conversation at the beginning of a step; must not keep a reference to it."""


def _show_nothing(_said: StoredConversation) -> None:
    """Ignore the conversation."""


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
    """The content of the tool result that stopped the turn; empty if none did."""


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
    opening: ShowConversation = _show_nothing
    """Called with the conversation at the beginning of the first step."""
    _guard: LoopGuard = field(factory=LoopGuard, init=False)
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
            kept=self.desk.sizes.tool_output,
            secrets=self.desk.secrets,
        )

    async def play(self) -> Completion:
        """Run steps until the model has answered the run's prompt."""
        show = self.opening
        while True:
            tools = self.plan.tools()
            request = await self._request(tools, show)
            with self.desk.spans.step(self.run):
                step = await self._step(request, tools)
            if step.full and self.plan.auto_summarize:
                await self._make_room(step)
            elif step.goes_on:
                await step.answer.opened.finish(step.finish, step.used)
            else:
                self._turn.usage = step.used
                step.answer.opened.seal(step.finish)
            if not step.goes_on:
                return self._completion(step)
            show = _show_nothing

    async def _make_room(self, step: Step) -> None:
        """Summarise the session, and continue from the summary if the turn is not over (C9, D29)."""
        await step.answer.opened.finish(step.finish, step.used)
        try:
            await Summarizer(self.run, self.plan, self.desk).summarize()
        except (ProviderError, AnswerTooLong):
            if step.goes_on:
                raise
            log.exception("summary.failed", extra={"run_id": self.run.id})
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

        If a tool stopped the turn before the model wrote any text, the tool's error is the text: some
        clients see nothing of a turn but this.
        """
        if self.plan.interactive:
            self._turn.notice = finished_notice
        said = step.answer.said()
        return evolve(said, text=said.text or step.stopped_by)

    # ── One step ────────────────────────────────────────────────────────────────────────────────

    async def _step(self, request: ModelRequest, tools: Tools) -> Step:
        answer = StepAnswer(
            await self.desk.begin_answer(self.run, self.plan.model),
            tool_call_ids(request.messages),
            budget=AnswerBudget(self.desk.sizes.answer),
        )
        self.run.partial = answer.said
        with self.desk.spans.model_call(self.run.session_id, request) as span:
            ending = await converse(
                self.plan.model.provider,
                request,
                answer,
                patience=self.desk.patience,
                waiting=self._waiting,
            )
            span.answered(ending, lambda: answer.message().parts)
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

    async def _request(self, tools: Tools, show: ShowConversation) -> ModelRequest:
        """Fold queued prompts, and return the model request for the conversation.

        The stored messages are released when this returns: the answer may take minutes, and a long
        conversation would be in memory twice for that time.
        """
        await self.run.fold()
        said = await self.desk.store.conversation(self.run.session_id, self.run.id)
        show(said)
        model = self.plan.model
        can = ModelAbilities(
            images=model.model.supports_attachments, media_results=model.media_results
        )
        prefix = (model.system_prompt_prefix,) if model.system_prompt_prefix else ()
        return ModelRequest(
            model=model.model,
            chosen=model.selected,
            system=(*prefix, *self.plan.system),
            messages=build_prompt(
                said.messages, said.session.summary_message_id, can, remind=self.plan.remind
            ),
            tools=tool_specs(tools),
            max_tokens=model.max_tokens,
            affinity=affinity(said.session.id),
        )

    def _waiting(self, waiting: Waiting) -> None:
        self.run.publish(
            waiting_notice(self.run.session_id, self.run.submission.run_id, str(waiting))
        )

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
        stopping = [result.content for result in results if result.stop_turn]
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
                reason=reason, time=self.desk.clock.unix(), message=REPEATED if circling else ""
            ),
            goes_on=goes_on,
            used=used,
            stopped_by="\n".join(stopping),
            full=nearly_full(
                self.plan.model.model, used.prompt_tokens or 0, used.completion_tokens or 0
            ),
        )


_COMPLETE: Final = frozenset({FinishReason.TOOL_USE, FinishReason.END_TURN})
"""Finish reasons of a complete answer."""


def tool_specs(tools: Tools) -> tuple[ToolSpec, ...]:
    """Return the tools for a model request, sorted by name (H2)."""
    return tuple(
        ToolSpec(name=name, description=tool.description, parameters=tool.parameters)
        for name, tool in sorted(tools.items())
    )
